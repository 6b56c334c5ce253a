"""Batch sizes that follow the goodput, and what elastic training needs beside: epochs, sums and state.

The idea is Pollux's (Qiao et al., OSDI 2021; its library is AdaptDL): the best batch size is the one with the
highest throughput × statistical efficiency, and it changes while a model learns, because the gradient noise
scale does.

```text
 noise.py       |G|², tr(Σ), the noise scale        meter.py       reads them from a model's gradients
 throughput.py  seconds a step, fitted              timer.py       measures them
 goodput.py     the best of all configurations      autoscaler.py  when to change
 exchange.py    ranks agree                         loader.py      AdaptiveLoader: all of it around a Loader
 accumulator.py exact sums over ranks and restarts  epochs.py      epochs over restarts
 scaling.py     the learning rate
```
See docs/python/adaptive.md.
"""

from .accumulator import Accumulator, ExactSum
from .autoscaler import Autoscaler, Decision
from .epochs import remaining_epochs_until
from .exchange import Alone, Exchange, TorchExchange
from .goodput import Choice, Limits
from .loader import AdaptiveLoader
from .meter import GradientMeter
from .noise import GradientStatistics
from .scaling import AdaScale, Linear, ScalingRule, SquareRoot, Unscaled
from .throughput import Configuration, ThroughputModel, fit

__all__ = [
    "Accumulator",
    "AdaScale",
    "AdaptiveLoader",
    "Alone",
    "Autoscaler",
    "Choice",
    "Configuration",
    "Decision",
    "ExactSum",
    "Exchange",
    "GradientMeter",
    "GradientStatistics",
    "Limits",
    "Linear",
    "ScalingRule",
    "SquareRoot",
    "ThroughputModel",
    "TorchExchange",
    "Unscaled",
    "fit",
    "remaining_epochs_until",
]
