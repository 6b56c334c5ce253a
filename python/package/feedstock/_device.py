"""The device of a loader's batches, and the streams that use them."""

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

_LEGACY_DEFAULT_STREAM = 1  # its CUDA handle


def ordinal_of(device: Any) -> int | None:
    """Returns CUDA's number of ``device`` ("cuda:1", "cuda", 1, a torch.device); None for host memory.

    "cuda" is the device of this process; see ``_own_device``.
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
        f'device must be "cuda:0", "cuda", "cpu", an integer >= 0 or a torch.device; got {device!r}'
    )


def _own_device() -> int:
    """Returns this process's device: torch's current device if it is not 0; ``LOCAL_RANK`` under torchrun; 0.

    ``LOCAL_RANK`` does not apply if the process sees a single device.
    """
    in_use = torch_on_cuda()
    if in_use is not None and (current := int(in_use.cuda.current_device())) != 0:
        return current
    text = os.environ.get("LOCAL_RANK")
    if text is None:
        return 0
    if not text.isdigit():
        raise ConfigError(
            f'LOCAL_RANK must be an integer >= 0 for device="cuda"; got {text!r}. Set it, or name the device: '
            'device="cuda:0"'
        )
    torch = imported_torch()
    # Counting the devices does not initialize CUDA.
    return 0 if torch is not None and torch.cuda.device_count() == 1 else int(text)


def trainers_gpu(device: Any) -> Any:
    """Returns a trainer's device if batches can be delivered on it, which needs CUDA; None for all others.

    Args:
        device: A torch.device or its name; None if it is unknown.
    """
    if device is None or str(device).partition(":")[0] != "cuda":
        return None
    torch = imported_torch()
    # AMD's GPUs have the same name in torch.
    return None if torch is not None and getattr(torch.version, "hip", None) else device


def import_torch() -> Any:
    """Imports torch; raises ConfigError if that fails."""
    try:
        return importlib.import_module("torch")
    except Exception as error:
        message = f"torch tensors need PyTorch, which cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(message) from error


def imported_torch() -> Any:
    """Returns torch if this process has imported it; None while a thread is importing it."""
    torch = sys.modules.get("torch")
    return None if torch is None or getattr(torch.__spec__, "_initializing", False) else torch


def torch_on_cuda() -> Any:
    """Returns torch if this process uses CUDA through it."""
    torch = imported_torch()
    return torch if torch is not None and torch.cuda.is_initialized() else None


def consumer_stream(ordinal: int | None) -> Any:
    """Returns torch's current stream of this thread; None without a device, or if torch does not use CUDA."""
    torch = torch_on_cuda()
    return None if ordinal is None or torch is None else torch.cuda.current_stream(ordinal)


def on_stream(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which this thread works on ``stream``, a result of ``consumer_stream``."""
    return contextlib.nullcontext() if stream is None else sys.modules["torch"].cuda.stream(stream)


def current_stream(ordinal: int | None) -> int:
    """Returns the handle of torch's current stream; the legacy default stream if torch does not use CUDA."""
    stream = consumer_stream(ordinal)
    return _LEGACY_DEFAULT_STREAM if stream is None else int(stream.cuda_stream) or _LEGACY_DEFAULT_STREAM


def record_stream(tensors: Any, stream: Any) -> None:
    """Registers a further stream that uses a batch, in addition to the stream on which its views were taken.

    The stream waits for the data. The memory is used again only after the stream has passed the point where the last
    view is dropped. Call it before you give work to ``stream``, while you hold the views.

    Args:
        tensors: A tensor, or dicts, lists and tuples of tensors, as ``output="torch"`` yields; or a ``Batch``. For
            torch's own tensors on a GPU, such as augmented copies, it calls their ``record_stream``. It ignores tensors
            in host memory and other values.
        stream: The further stream: a torch.cuda.Stream, or its CUDA handle as a number.

    Raises:
        ConfigError: Batches cannot be used on the stream.
        ForkError: The batch belongs to the process from which this one was forked.
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
    """Returns ``stream``, which may be a number, as a stream of torch."""
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
    """Gives the library the files of NVIDIA's run-time compiler and JPEG decoder in Python packages, newest first."""
    found: list[Path] = []
    for folder in map(Path, sys.path):
        # nvidia/cuda_nvrtc/lib of CUDA 12's packages, nvidia/cu13/lib of CUDA 13's.
        found += folder.glob("nvidia/cu*/lib/libnvrtc.so.1[0-9]")
        found += folder.glob("nvidia/*/lib/libnvjpeg.so.1[0-9]")
        found += folder.glob("torchvision.libs/libnvjpeg.*")
    _feedstock.offer_libraries(
        [str(file) for file in sorted(found, key=lambda file: file.name, reverse=True)]
    )
