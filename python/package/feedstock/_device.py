"""Which device a loader's batches go to, and which streams use them."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feedstock import _feedstock
from feedstock.errors import ConfigError

_LEGACY_DEFAULT_STREAM = 1  # CUDA's number of it


def ordinal_of(device: Any) -> int | None:
    """CUDA's number of the device that ``device`` names ("cuda:1", "cuda", 1, a torch.device); None for host memory.

    "cuda" is the device of this process: see ``_own_device``.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        if device >= 0:
            return device
    elif (text := str(device)) == "cpu":
        return None
    elif text == "cuda":
        return _own_device()
    elif match := re.fullmatch(r"cuda:(\d+)", text):
        return int(match[1])
    raise ConfigError(
        f'device must be "cuda:0", "cuda", "cpu", a number >= 0 or a torch.device; got {device!r}'
    )


def _own_device() -> int:
    """torch's current device, where somebody set it to another than the first; else that of LOCAL_RANK, as torchrun
    sets it (the only one, where the process sees but one); else the first."""
    in_use = torch_on_cuda()
    if in_use is not None and (current := int(in_use.cuda.current_device())) != 0:
        return current
    text = os.environ.get("LOCAL_RANK")
    if text is None:
        return 0
    if not text.isdigit():
        raise ConfigError(
            f'LOCAL_RANK, which device="cuda" is taken from, must be a number; got {text!r}; set it, or name the '
            'device: device="cuda:0"'
        )
    torch = imported_torch()
    # Counting the devices does not start CUDA.
    return 0 if torch is not None and torch.cuda.device_count() == 1 else int(text)


def import_torch() -> Any:
    """torch; ConfigError where it is not there, or broken."""
    try:
        return importlib.import_module("torch")
    except Exception as error:
        message = f"torch tensors need PyTorch, which cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message) from error


def imported_torch() -> Any:
    """torch, where this process has imported it; None while a thread still does."""
    torch = sys.modules.get("torch")
    return None if torch is None or getattr(torch.__spec__, "_initializing", False) else torch


def torch_on_cuda() -> Any:
    """torch, where this process uses CUDA through it."""
    torch = imported_torch()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def consumer_stream(ordinal: int | None) -> Any:
    """torch's stream that this thread works on; None where that is CUDA's default one, or the batches are not there."""
    torch = torch_on_cuda()
    return None if ordinal is None or torch is None else torch.cuda.current_stream(ordinal)


def on_stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Has this thread work on ``stream``, of ``consumer_stream``."""
    return contextlib.nullcontext() if stream is None else sys.modules["torch"].cuda.stream(stream)


def current_stream(ordinal: int | None) -> int:
    """CUDA's number of the stream that torch works on now; the legacy default one where torch does not use CUDA."""
    stream = consumer_stream(ordinal)
    return _LEGACY_DEFAULT_STREAM if stream is None else int(stream.cuda_stream) or _LEGACY_DEFAULT_STREAM


def record_stream(tensors: Any, stream: Any) -> None:
    """Says that ``stream`` (a torch.cuda.Stream, or CUDA's number of one) uses the batch that ``tensors`` are views
    of, beside the stream that they were taken on: it waits for the data, and the memory is not used again before it has
    passed the place where the last view is dropped. To be called before ``stream`` is given work, while the views are
    held.

    Args:
        tensors: A tensor, or dicts, lists and tuples of them: what ``output="torch"`` yields. A ``Batch`` does, too.
            For tensors of torch's own on a GPU, such as augmented copies, their ``record_stream`` is called. Tensors in
            host memory, and whatever is no tensor, are left alone.
        stream: The further stream.

    Raises:
        ConfigError: Batches cannot be used on the stream.
        ForkError: The batch is of the process that this one was forked from.
    """
    number = int(getattr(stream, "cuda_stream", stream))
    for leaf in _leaves(tensors):
        if isinstance(leaf, _feedstock.Batch):
            leaf.record_stream(number)
        elif isinstance(leaf, _feedstock.Tensor):
            if leaf.device != "cpu":
                leaf.__dlpack__(stream=number or _LEGACY_DEFAULT_STREAM)
        elif hasattr(leaf, "data_ptr"):
            is_ours = _feedstock.use_address_on(leaf.data_ptr(), number)
            if not is_ours and leaf.is_cuda:
                leaf.record_stream(_torch_stream(stream, leaf.device))


def _torch_stream(stream: Any, device: Any) -> Any:
    """``stream`` as torch has it, where it may be a number."""
    return sys.modules["torch"].cuda.ExternalStream(stream, device) if isinstance(stream, int) else stream


def _leaves(tensors: Any) -> Iterator[Any]:
    if isinstance(tensors, Mapping) and not isinstance(tensors, _feedstock.Batch):
        tensors = list(tensors.values())
    if isinstance(tensors, list | tuple):
        for tensor in tensors:
            yield from _leaves(tensor)
    else:
        yield tensors


def find_libraries() -> None:
    """Names NVIDIA's run-time compiler and JPEG decoder to the library, where packages bring them: newest first."""
    found: list[Path] = []
    for folder in map(Path, sys.path):
        # nvidia/cuda_nvrtc/lib of CUDA 12's packages, nvidia/cu13/lib of CUDA 13's.
        found += folder.glob("nvidia/cu*/lib/libnvrtc.so.1[0-9]")
        found += folder.glob("nvidia/*/lib/libnvjpeg.so.1[0-9]")
        found += folder.glob("torchvision.libs/libnvjpeg.*")
    _feedstock.offer_libraries(
        [str(file) for file in sorted(found, key=lambda file: file.name, reverse=True)]
    )
