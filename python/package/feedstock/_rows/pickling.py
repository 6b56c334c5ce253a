"""Pickles functions for other processes, and names what cannot be pickled."""

from __future__ import annotations

import inspect
import io
import types
from collections import ChainMap
from typing import Any, ClassVar

from feedstock._rows.function import RowFunction
from feedstock.errors import ConfigError


def pickled(function: RowFunction) -> bytes:
    """Returns ``function.fn`` as cloudpickle pickles it: code of the main program by value, of modules by name.

    Raises:
        ConfigError: It cannot be pickled; the message names the variables that it uses and that cannot.
    """
    cloudpickle = _cloudpickle(function.STEP)
    try:
        return _dumps(function.fn, cloudpickle)
    except Exception as error:
        culprits = _culprits(function.pickles, cloudpickle)
        uses = f": it uses {', '.join(culprits)}" if culprits else ""
        raise ConfigError(
            f"{function.STEP} cannot send {function.name} to other processes{uses}. {type(error).__name__}: {error}. "
            f"{function.ADVICE}"
        ) from error


def _dumps(fn: Any, cloudpickle: Any) -> bytes:
    """Returns what ``cloudpickle.dumps`` does, but keeps the names of source files for tracebacks."""
    plain = cloudpickle.CloudPickler.dispatch_table[types.CodeType]

    class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        dispatch_table: ClassVar[Any] = ChainMap(
            {types.CodeType: lambda code: (code_of, (*plain(code), code.co_filename))},
            cloudpickle.CloudPickler.dispatch_table,
        )

    buffer = io.BytesIO()
    Pickler(buffer, protocol=5).dump(fn)
    return buffer.getvalue()


def code_of(make: Any, arguments: tuple[Any, ...], file: str) -> types.CodeType:
    """Returns a code object with the name of its file."""
    code: types.CodeType = make(*arguments)
    return code.replace(co_filename=file)


def _cloudpickle(step: str) -> Any:
    try:
        import cloudpickle
    except ImportError as error:
        instead = ', or use executor="thread"' if step == "map_rows" else ""
        raise ConfigError(
            f"{step} sends functions to processes by cloudpickle, which is not installed: pip install "
            f'"cloudpickle>=3"{instead}'
        ) from error
    return cloudpickle


def _culprits(fn: Any, cloudpickle: Any) -> list[str]:
    """Returns the variables that ``fn`` uses and that cannot be pickled, with their types."""
    found = []
    for name, value in _used(fn).items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            found.append(f"{name!r} ({type(value).__module__}.{type(value).__qualname__})")
    return found


def _used(fn: Any) -> dict[str, Any]:
    function = getattr(fn, "func", fn)
    used: dict[str, Any] = {}
    if function is not fn:  # functools.partial
        used.update({f"argument {index}": value for index, value in enumerate(getattr(fn, "args", ()))})
        used.update(getattr(fn, "keywords", {}))
    if inspect.ismethod(function):
        used["self"] = function.__self__
        function = function.__func__
    if inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        used.update({**variables.globals, **variables.nonlocals})
    elif hasattr(function, "__dict__"):
        used.update(vars(function))
    return used
