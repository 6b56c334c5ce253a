"""Checks the options of a loader, and applies them to the native pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from feedstock import _device
from feedstock._check import one_of, whole
from feedstock._device import find_libraries, ordinal_of
from feedstock._options import DEFAULTS, LoaderOptions
from feedstock._threads import assigned_threads
from feedstock.errors import ConfigError

if TYPE_CHECKING:
    from feedstock import _feedstock
    from feedstock._workers import WorkerSource
    from feedstock.finish import Finish

_OUTPUTS = ("batch", "numpy", "torch")


def check(options: LoaderOptions, *, has_functions: bool) -> None:
    """Raises ConfigError for options that contradict each other or the pipeline."""
    one_of("output", options["output"], _OUTPUTS)
    finish = options["finish"] or {}
    if not isinstance(finish, Mapping) or not all(hasattr(how, "to_json") for how in finish.values()):
        raise ConfigError(f"finish must be a dict of columns and how they are finished; got {finish!r}")
    if options["device"] is None and needs_device(options):
        raise ConfigError(
            'finish, depth, static and nvjpeg need a device: device="cuda", or "cpu" to finish in host memory'
        )
    if options["static"] and has_functions:
        raise ConfigError(
            "static=True keeps one batch at fixed addresses, and map_python and map_rows work on several batches at "
            "once; leave out static, or the functions"
        )
    bfloats = [column for column, how in finish.items() if _is_bfloat(how)]
    if options["output"] == "numpy" and bfloats:
        raise ConfigError(
            f'numpy has no bfloat16, the dtype of finish for {bfloats}; use another dtype, or output="torch"'
        )


def for_trainer(options: LoaderOptions, device: Any, *, has_functions: bool) -> LoaderOptions:
    """Returns the options of a loader whose batches a trainer would move to its device; replaces ``device="auto"``.

    The GPU of the trainer is chosen for tensors. Host memory is chosen for other outputs, and for Python functions,
    which may use numpy. ``finish`` and other options of a device are then done in host memory.

    Args:
        options: All options of the loader.
        device: The trainer's device; None if it is unknown.
        has_functions: Whether the pipeline has functions of ``map_python`` or ``map_rows``.
    """
    if options["device"] != "auto":
        return options
    place = None
    if options["output"] == "torch" and not has_functions:
        place = _device.trainers_gpu(device)
    if place is None and needs_device(options):
        place = "cpu"
    return {**options, "device": place}


def needs_device(options: LoaderOptions) -> bool:
    """Returns whether an option was given that only applies to a loader with a device."""
    others = ("static", "depth", "nvjpeg")
    return bool(options["finish"]) or any(options.get(name) != DEFAULTS.get(name) for name in others)


def _is_bfloat(how: Finish) -> bool:
    return bool(json.loads(how.to_json()).get("dtype") == "bfloat16")


def set_up(
    native: _feedstock.Pipeline, source: WorkerSource | None, options: LoaderOptions, held: int
) -> tuple[_feedstock.Pipeline, int | None]:
    """Returns the pipeline with a loader's threads, slots, workers and device, and CUDA's number of that device.

    Args:
        native: The pipeline.
        source: The source of workers, if there is one.
        options: All options of the loader.
        held: Batches that Python functions hold, in addition to the one that the caller has.
    """
    if native.threads is None and (threads := assigned_threads()) is not None:
        native = native.options(threads=threads)
    if source is not None:
        native = native.workers(source.members())
    if held > 0:
        native = native.options(slots=native.slots + held)
    if options["device"] is None:
        return native, None
    ordinal = ordinal_of(options["device"])
    finish = [(column, how.to_json()) for column, how in (options["finish"] or {}).items()]
    if (finish or options["nvjpeg"]) and ordinal is not None:
        find_libraries()
    depth = whole("depth", options["depth"], 1) + held
    native = native.device(ordinal, depth, options["static"], finish, float(options["nvjpeg"]))
    return native, ordinal
