"""One ``map_rows`` step of a pipeline: the function and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from feedstock._check import column_names, one_of, positive, text, whole_or_none
from feedstock._rows.spec import TensorSpec, checked_outputs
from feedstock.errors import ConfigError

_EXECUTORS = ("process", "thread", "worker")


@dataclass(frozen=True)
class RowFunction:
    """The arguments of ``Pipeline.map_rows``, checked. Picklable if ``fn`` is."""

    fn: Callable[..., Any]
    inputs: tuple[str, ...] | None
    outputs: dict[str, TensorSpec] | None
    executor: str
    num_workers: int | None
    timeout: float | None
    version: str

    #: The method or function that makes such steps.
    STEP: ClassVar[str] = "map_rows"
    #: What to do if ``fn`` cannot be pickled.
    ADVICE: ClassVar[str] = 'Make such objects inside the function, or use executor="thread"'
    #: What to do if ``fn`` is too large for workers.
    LARGE: ClassVar[str] = "Load large objects inside the function, from a file that workers have"

    @property
    def pickles(self) -> Any:
        """The object of the user that is pickled."""
        return self.fn

    @property
    def is_for_workers(self) -> bool:
        """Whether workers run it if the loader has any."""
        return self.executor == "worker"

    @property
    def name(self) -> str:
        """The function's name as in its definition, without the module."""
        fn = getattr(self.fn, "func", self.fn)  # functools.partial
        return str(getattr(fn, "__qualname__", None) or type(fn).__qualname__)

    @property
    def identity(self) -> tuple[str, str]:
        """What a saved state keeps of the function: its name and version, never its code."""
        return self.name, self.version

    def __str__(self) -> str:
        return f"{self.STEP}({self.name})"


@dataclass(frozen=True)
class ItemFunction(RowFunction):
    """The arguments of ``fs.from_torch``, checked. ``fn`` is ``Items``, and ``version`` is ``identity``."""

    STEP: ClassVar[str] = "from_torch"
    ADVICE: ClassVar[str] = "Open such objects in __getitem__, when they are needed first"
    LARGE: ClassVar[str] = (
        "The data set is among them: keep its samples in files that workers have at the same paths, and open these in "
        "__getitem__"
    )

    @property
    def is_for_workers(self) -> bool:
        """Always: what comes after it needs the items."""
        return True

    @property
    def pickles(self) -> Any:
        """The data set."""
        return self.fn.dataset  # type: ignore[attr-defined]

    @property
    def name(self) -> str:
        """The name of the data set's class."""
        return type(self.pickles).__qualname__


def row_function(
    fn: Callable[..., Any],
    inputs: Iterable[str] | None,
    outputs: Mapping[str, TensorSpec] | None,
    executor: str,
    num_workers: int | None,
    timeout: float | None,
    version: str,
) -> RowFunction:
    """Returns the step with these arguments of ``Pipeline.map_rows``."""
    if not callable(fn):
        raise TypeError(f"fn must be a function of a row and its generator; got {fn!r}")
    one_of("executor", executor, _EXECUTORS)
    if timeout is not None and executor == "thread":
        raise ConfigError(
            'timeout needs executor="process" or "worker": a thread cannot be ended from outside'
        )
    return RowFunction(
        fn,
        None if inputs is None else tuple(column_names("inputs", inputs)),
        None if outputs is None else checked_outputs(outputs),
        executor,
        whole_or_none("num_workers", num_workers, 1),
        None if timeout is None else positive("timeout", timeout),
        text("version", version),
    )
