"""What an `AdaptiveLoader` is made of: a pipeline, a loader, or Ray Train's iterator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedstock import ConfigError, Loader, Pipeline
from feedstock._options import DEFAULTS, LoaderOptions, given

if TYPE_CHECKING:
    from feedstock.ray import DataIterator


def with_options(loader: Pipeline | Loader | DataIterator, options: LoaderOptions) -> Loader | DataIterator:
    """Returns the loader that an `AdaptiveLoader` iterates.

    Args:
        loader: What the caller gave.
        options: All options; those of a loader that exists cannot change.

    Raises:
        ConfigError: An option is given for a `Loader`.
    """
    if isinstance(loader, Pipeline):
        from feedstock.torch import loader as torch_loader

        return torch_loader(loader, **options)
    chosen = given(options, {**DEFAULTS, "output": "torch"})
    if isinstance(loader, Loader):
        if chosen:
            raise ConfigError(
                f"{', '.join(chosen)} must be given where the loader is made: pipeline.loader(…); or give "
                "AdaptiveLoader the pipeline"
            )
    elif chosen:
        loader._choose(chosen)
    return loader
