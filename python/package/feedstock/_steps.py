"""The steps of a pipeline. Each of its methods adds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from feedstock._rows.function import RowFunction

if TYPE_CHECKING:
    from typing_extensions import Self

    from feedstock import _feedstock

#: A method of the native pipeline, and its arguments.
Step = tuple[str, dict[str, Any]]
#: Functions of ``map_rows``, then those of ``map_python`` with their threads.
Functions = tuple[RowFunction | tuple[Callable[[Any], Any], int | None], ...]


class Steps:
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
