"""The steps of a pipeline. Each of its methods adds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from feedstock._rows.function import RowFunction

if TYPE_CHECKING:
    import typing_extensions
    from typing_extensions import Self

    from feedstock import _feedstock


class FromOutput:
    """In ``Pipeline[FromOutput]``: the type of batches follows from the option ``output`` of a loader."""


# What loaders yield: the results of the last function of ``map_python``, if there is one.
if TYPE_CHECKING:
    R = typing_extensions.TypeVar("R", default=Any)
else:
    R = TypeVar("R")

#: A method of the native pipeline, and its arguments.
Step = tuple[str, dict[str, Any]]
#: Functions of ``map_rows``, then those of ``map_python`` with their threads.
Functions = tuple[RowFunction | tuple[Callable[[Any], Any], int | None], ...]


class Steps(Generic[R]):
    """A data set and what is done to it. Immutable: every step makes a new object."""

    dataset: Any  # a Dataset, whose module imports this one
    _native: _feedstock.Pipeline
    _steps: tuple[Step, ...]
    _functions: Functions

    def _with(self, method: str, **arguments: Any) -> Self:
        native = getattr(self._native, method)(**arguments)
        return self._changed(native, (*self._steps, (method, arguments)), self._functions)

    def _changed(self, native: _feedstock.Pipeline, steps: tuple[Step, ...], functions: Functions) -> Self:
        pipeline = type(self).__new__(type(self))
        pipeline.dataset, pipeline._native = self.dataset, native
        pipeline._steps, pipeline._functions = steps, functions
        return pipeline
