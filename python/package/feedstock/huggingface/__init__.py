"""Hugging Face: the loader under Accelerate and under ``transformers.Trainer``.

Accelerate::

    from feedstock.huggingface import loader

    batches = loader(accelerator, pipeline)      # this rank's, registered for checkpointing
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in batches: …                      # dicts of tensors
    accelerator.save_state(folder)               # saves the position in the data, too

Trainer::

    from feedstock.huggingface import FeedstockTrainer

    trainer = FeedstockTrainer(model, args, train_dataset=pipeline)
    trainer.train(resume_from_checkpoint=True)   # continues with the next sample and reads none before it

For a custom trainer: ``class MyTrainer(TrainerMixin, SomeTrainer)``.

``import feedstock.huggingface`` imports neither package. ``loader`` needs Accelerate, and the rest needs transformers:
``pip install 'feedstock[huggingface]'``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accelerate import loader
    from .loaders import LoaderState, TrainerLoader
    from .trainer import FeedstockTrainer, TrainerMixin

__all__ = ["FeedstockTrainer", "LoaderState", "TrainerLoader", "TrainerMixin", "loader"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    package = "accelerate" if name == "loader" else "transformers"
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"feedstock.huggingface.{name} needs {package}, which cannot be imported ({error}): "
            "pip install 'feedstock[huggingface]'"
        ) from error
    module = importlib.import_module(".accelerate" if name == "loader" else ".trainer", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
