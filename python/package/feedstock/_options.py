"""The options of a loader: their names, types, defaults and documentation, once for every function that takes them."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

if TYPE_CHECKING:
    from feedstock._workers import WorkersLike
    from feedstock.finish import Finish

Output = Literal["batch", "numpy", "torch"]


class _CommonOptions(TypedDict, total=False):
    workers: WorkersLike | None
    device: Any
    finish: Mapping[str, Finish] | None
    depth: int
    static: bool
    nvjpeg: float


class OptionsWithoutOutput(_CommonOptions, total=False):
    """``LoaderOptions`` without ``output``, for functions whose result has another type for each ``output``."""

    restart: bool


class SharedOptions(_CommonOptions, total=False):
    """The options that loaders of training and of evaluation may share; see ``LoaderOptions``."""

    output: Output


class LoaderOptions(SharedOptions, total=False):
    """Keywords of every function that makes a loader.

    ``Pipeline.loader`` takes them, and so do ``feedstock.torch.loader`` and the loaders for Lightning, Accelerate,
    Transformers, Ray Train, AdaptDL and ``AdaptiveLoader``. Annotate a dict with this class to pass options on:

        options: fs.LoaderOptions = {"workers": "host:7070", "output": "torch"}

    Keys:
        workers: Where rows are prepared; default ``None``: on threads of this process. ``"host:port,host:port"`` or
            ``"dns:name:port"``; ``fs.Workers`` with a token and certificates; ``"ray"`` for the fleet of this Ray job;
            or any ``fs.WorkerSource``, such as a ``feedstock.ray.Fleet``. The batches are byte-identical.
        output: What iterating yields. ``"batch"``: ``fs.Batch``. ``"torch"``: a dict from column to ``torch.Tensor``
            or, for strings, bytes and nested values, to a list, with ``"sample_ids"`` (int64 [rows]) and ``"valid"``
            (bool [rows]) added. ``"numpy"``: the same with arrays (``"sample_ids"`` uint64). Tensors and arrays are
            views of the batch.
        restart: ``True``: every ``iter()`` begins an epoch at its start, for evaluation. Default ``False``: iterating
            continues an unfinished epoch.
        device: The device of the batches; default ``None``: host memory. ``"cuda:0"``, an integer or a torch.device.
            ``"cuda"`` picks, in this order: torch's current device, if you set one other than 0; ``LOCAL_RANK`` under
            torchrun; 0. Numeric columns are tensors on that device, copied from page-locked memory while the model
            computes. Without CUDA, batches stay in host memory, and one warning is logged. ``"cpu"`` is host memory
            without a warning. ``"auto"`` is the default for Lightning, Accelerate, Transformers and Ray Train, which
            know the trainer's device: its GPU, or host memory if it has none, if ``output`` is not ``"torch"``, or if
            the pipeline has functions of ``map_python`` or ``map_rows``.
        finish: Work that the device does, by mapped column: ``{"image": fs.finish_pictures("bfloat16")}``.
        depth: Batches on the device ahead of the one in use, at least 1; default 2.
        static: ``True``: every batch has the same addresses for the life of the loader, as CUDA graphs need. The next
            batch overwrites the one before it, in the order of torch's current stream. All batches must have one
            shape. Default ``False``.
        nvjpeg: Share of the JPEGs that nvJPEG decodes on the device, 0.0 (default) to 1.0; the CPU decodes the others.
            It applies to chains of ``decode_image``, then ``random_resized_crop``, or ``resize`` and a crop, then at
            most ``horizontal_flip`` and ``vertical_flip``. The choice is a pure function of seed, epoch and sample.
            The CPU decodes progressive and other unusual JPEGs, and all JPEGs without CUDA. Pixels differ from the
            CPU's by at most two levels (measured on an H100).
    """

    restart: bool


#: The value of every option that is not given, unless a function documents another one.
DEFAULTS: LoaderOptions = {
    "workers": None,
    "output": "batch",
    "restart": False,
    "device": None,
    "finish": None,
    "depth": 2,
    "static": False,
    "nvjpeg": 0.0,
}

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type[Any])


def takes_loader_options(
    *, without: Collection[str] = (), others: Callable[..., Any] | None = None, **defaults: Any
) -> Callable[[F], F]:
    """Returns a decorator for a function that ends in ``**options: Unpack[LoaderOptions]``.

    The function gets all options, those that are not given with their defaults. ``help()`` and ``inspect.signature``
    show each of them as a keyword. In the docstring, the line ``**options: …`` is replaced by their documentation.

    Args:
        without: Options that the function does not take.
        others: A function whose keywords are taken, too, and passed on.
        **defaults: Defaults that differ from ``DEFAULTS``.
    """
    offered = {name: value for name, value in {**DEFAULTS, **defaults}.items() if name not in without}
    theirs = [] if others is None else list(inspect.signature(others).parameters.values())

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own = {one.name for one in named}
        rest = [one.replace(kind=one.KEYWORD_ONLY) for one in theirs if one.name not in own]
        known = [one.name for one in named if one.name != "self"]
        known += [*offered, *(one.name for one in rest)]

        @functools.wraps(function)
        def checked(*args: Any, **keywords: Any) -> Any:
            for name in keywords:
                if name not in known:
                    raise TypeError(_unknown(function.__qualname__, name, known))
            return function(*args, **{**offered, **keywords})

        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=_annotation(name)
            )
            for name, value in offered.items()
        ]
        checked.__signature__ = signature.replace(parameters=[*named, *options, *rest])  # type: ignore[attr-defined]
        checked.__doc__ = _documented(function.__doc__, offered)
        checked._offered = offered  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def documents_loader_options(cls: C) -> C:
    """Decorates a class whose ``__init__`` takes options of a loader: its docstring gets their documentation."""
    cls.__doc__ = _documented(cls.__doc__, cls.__init__._offered)
    return cls


def chosen(options: Mapping[str, Any]) -> LoaderOptions:
    """Returns those of ``options`` that are options of a loader."""
    return {name: options[name] for name in DEFAULTS if name in options}  # type: ignore[return-value]


def given(options: LoaderOptions, defaults: LoaderOptions) -> LoaderOptions:
    """Returns those of ``options`` that differ from ``defaults``."""
    return {name: value for name, value in options.items() if value != defaults.get(name)}  # type: ignore[return-value]


def check_names(argument: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError if a key of the dict that was passed as ``argument`` is not the name of an option."""
    for name in options:
        if name not in DEFAULTS:
            raise TypeError(
                f"{argument} has no option {name!r}{_hint(name, list(DEFAULTS))}; it takes {', '.join(DEFAULTS)}"
            )


def _unknown(function: str, name: str, known: list[str]) -> str:
    return f"{function}() got an unexpected keyword argument {name!r}{_hint(name, known)}; it takes {', '.join(known)}"


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _annotation(name: str) -> str:
    annotation = LoaderOptions.__annotations__[name]
    return str(getattr(annotation, "__forward_arg__", annotation))


def _documented(text: str | None, offered: Collection[str]) -> str | None:
    """Returns a docstring with the options' documentation in place of its entry ``**options: …``."""
    if text is None:  # python -OO
        return None
    text = inspect.cleandoc(text)
    entries = "\n".join(entry for name, entry in documentation().items() if name in offered)
    return re.sub(
        r"^    \*\*options: .*(?:\n     +.*)*", lambda _: entries, text, count=1, flags=re.MULTILINE
    )


def documentation() -> dict[str, str]:
    """Returns the documentation of every option, from the docstring of ``LoaderOptions``."""
    keys = inspect.cleandoc(LoaderOptions.__doc__ or "").partition("Keys:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", keys, re.MULTILINE)
    return {name: f"    {name}: {entry}" for name, entry in entries}
