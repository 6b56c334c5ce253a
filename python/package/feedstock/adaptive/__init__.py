"""Batch sizes that follow the goodput; and epochs, sums and state for elastic training.

The idea is Pollux's (Qiao et al., OSDI 2021; its library is AdaptDL): the best batch size has the highest product of
throughput and statistical efficiency. It changes during training, because the gradient noise scale changes.

```text
 noise.py       |G|², tr(Σ), the noise scale        meter.py       measures them on a model's gradients
 throughput.py  seconds a step, fitted              timer.py       measures them
 goodput.py     the best of all configurations      autoscaler.py  decides when to change
 exchange.py    ranks agree                         loader.py      AdaptiveLoader: a Loader with all of it
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
