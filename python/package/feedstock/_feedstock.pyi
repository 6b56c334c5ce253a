"""The native module. The package's classes are its public interface."""

from collections.abc import Iterator, KeysView
from typing import Any

import numpy as np

from feedstock._reports import Ledger, LoaderStats

__version__: str

_Ids = np.ndarray[Any, np.dtype[np.uint64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]
_SimulateArguments = dict[str, int | float | str | None]  # made by feedstock._simulation.arguments
_BatchSizes = dict[str, float | None]  # made by feedstock._check.batch_sizes

class Tensor:
    """A column of a batch as a tensor on the CPU, or on the loader's device: rows first.

    ``numpy()``, ``torch()`` and ``__dlpack__`` return views of the batch's memory and copy nothing. The memory is not
    used for another batch while a view is alive; memory of a device not before the streams that used it have passed
    that point.
    """

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """The element type in numpy's and torch's spelling: ``uint8``, ``float32``, ``int64`` …"""
    @property
    def lengths(self) -> list[int] | None:
        """The lengths of the rows along ``padded_axis`` (samples, frames, tokens); None if all rows have one length."""
    @property
    def padded_axis(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str:
        """The tensor's device: ``cpu``, ``cuda:0`` …"""
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one entry of each axis to the next."""
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]: ...
    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a writable view as a numpy array; ConfigError on a GPU, and for bfloat16."""
    def torch(self) -> Any:
        """Returns a view as a torch.Tensor; on a GPU, for torch's current stream there."""

class Batch:
    """One rank's share of one global step: a mapping from column to ``Tensor`` (numbers) or list (all else).

    It holds one slot of the pipeline, or one buffer of its device, until the batch and every view of it are dropped.
    """

    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int:
        """The first global position of the batch's step."""
    @property
    def next_position(self) -> int: ...
    @property
    def num_rows(self) -> int:
        """The number of rows, padding and substitutes included."""
    @property
    def sample_ids(self) -> _Ids:
        """The id of each row's sample: uint64 [rows]."""
    @property
    def valid(self) -> _Flags:
        """bool [rows]: False for padding and for substitutes of unusable samples. Leave these rows out of the loss."""
    def __getitem__(self, name: str) -> Any: ...
    def __len__(self) -> int:
        """The number of columns. For rows see ``num_rows``."""
    def __contains__(self, name: object) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> KeysView[str]: ...
    def values(self) -> list[Any]: ...
    def items(self) -> list[tuple[str, Any]]: ...
    def get(self, name: str, default: Any = None) -> Any: ...
    def numpy(self, *, ids: bool = False) -> dict[str, Any]:
        """Returns numpy arrays (views) and lists; ``ids=True`` adds "sample_ids" (uint64) and "valid" (bool)."""
    def torch(self, *, ids: bool = False) -> dict[str, Any]:
        """Returns torch tensors (views) and lists; ``ids=True`` adds "sample_ids" (int64) and "valid" (bool)."""
    def record_stream(self, stream: Any) -> None:
        """Registers ``stream`` (a torch.cuda.Stream, or its CUDA handle as a number) as a further user of the batch.

        The stream waits for the data. The memory is used again only after the stream has passed the point where the
        last view is dropped. Does nothing for a batch in host memory.
        """
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
    def __arrow_c_schema__(self) -> Any: ...

class Table:
    """The result of a query, for ``pyarrow.table(result)`` and ``polars.DataFrame(result)``."""

    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

class Dataset:
    @staticmethod
    def open(
        uri: str,
        *,
        layout: str | None,
        split: str | None,
        durations: str,
        storage: dict[str, Any],
        catalog: str | None,
        catalogs_from: list[str],
        check: str,
        rebuild: bool,
        disk_cache: tuple[str, int] | None,
        block_bytes: int | None,
        bad_shards: str,
        tar_headers: str,
        progress: Any,
    ) -> Dataset: ...
    @staticmethod
    def mix(parts: list[tuple[Dataset, float]], stop: str) -> Dataset: ...
    @staticmethod
    def concat(parts: list[Dataset]) -> Dataset: ...
    def publish_catalog(self, folder: str) -> None: ...
    def named(self, name: str) -> Dataset: ...
    def filter(self, sql: str) -> Dataset: ...
    def columns(self, names: list[str]) -> Dataset: ...
    def sql(self, query: str) -> Table: ...
    def doctor(self, samples: int | None, threads: int | None, listed: int) -> str: ...
    def schema(self) -> list[tuple[str, str]]: ...
    def uri(self) -> str: ...
    def opened_uri(self) -> str: ...
    def samples(self) -> int: ...
    def pipeline(self) -> Pipeline: ...

class Pipeline:
    def map(
        self,
        column: str,
        output: str,
        ops: str,
        pad_value: float,
        key: str | None = None,
        joint: str | None = None,
    ) -> Pipeline: ...
    def annotate(self, column: str, annotation: str, ops: str, key: str | None, joint: str) -> Pipeline: ...
    def along(self, column: str, boxes: str) -> Pipeline: ...
    def shuffle(
        self,
        kind: str,
        seed: int,
        window: int | None,
        lanes: int | None,
        shuffle_bytes: int | None = None,
        piece: int | None = None,
    ) -> Pipeline: ...
    def seed(self, seed: int) -> Pipeline: ...
    def bucket_by(self, column: str, window: int | None) -> Pipeline: ...
    def lengths_from(self, column: str) -> Pipeline: ...
    def batch(self, sizes: _BatchSizes, tail: str) -> Pipeline: ...
    def on_error(self, policy: str, max_fraction: float) -> Pipeline: ...
    def nulls(self, column: str | None, to: str | bool | int | float) -> Pipeline: ...
    def epochs(self, epochs: int) -> Pipeline: ...
    def options(
        self,
        threads: int | None = None,
        slots: int | None = None,
        budget_bytes: int | None = None,
        prefetch_bytes: int | None = None,
        decoder_memory: int | None = None,
        row_index_bytes: int | None = None,
        deadline: float | None = None,
    ) -> Pipeline: ...
    @property
    def slots(self) -> int:
        """Slots of each loader: the option, or its default."""
    @property
    def threads(self) -> int | None:
        """The option ``threads``; None if the default applies."""
    def spec(self) -> str: ...
    def shuffle_quality(self, world_size: int, epoch: int, labels: str | None) -> str: ...
    def simulate(self, arguments: _SimulateArguments) -> str: ...
    def workers(self, members: Members) -> Pipeline: ...
    def device(
        self, ordinal: int | None, depth: int, fixed: bool, finish: list[tuple[str, str]], nvjpeg: float
    ) -> Pipeline: ...
    def loader(self, rank: int, world_size: int) -> Loader: ...

class Loader:
    def next(self, stacklevel: int, stream: int | None = None) -> Batch | None: ...
    def start_prefetch(self) -> None: ...
    def poll(self, seconds: float) -> tuple[bool, Batch | None]: ...
    def add_function_wait(self, seconds: float) -> None: ...
    def begin_epoch(self) -> bool: ...
    def state(self) -> tuple[int, int, str]: ...
    def state_at(self, epoch: int, position: int) -> tuple[int, int, str]: ...
    def load_state(self, cursor: str, on_change: str = ...) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def seek(self, epoch: int, step: int) -> None: ...
    def abandon_epoch(self, epoch: int) -> None: ...
    def reconfigure(self, rank: int, world_size: int, sizes: _BatchSizes) -> None: ...
    def stop(self) -> None: ...
    def samples_in(self, epoch: int, step: int) -> list[list[int]]: ...
    def steps_in(self, epoch: int) -> int | None: ...
    def steps_after(self, epoch: int, position: int) -> int | None: ...
    def share(self) -> tuple[int, int, int | None]: ...
    def place(self) -> str:
        """The device of batches: ``cpu``, ``cuda:0`` …"""
    def stats(self) -> LoaderStats: ...
    def ledger(self) -> Ledger | None: ...
    def skip_report(self) -> tuple[int, list[tuple[int, int, str]]]: ...
    def warning_report(self) -> tuple[dict[str, int], list[tuple[int, int, list[str]]]]: ...
    def padding_share(self, output: str) -> float | None: ...

class Worker:
    """Serves lanes from threads of this process."""

    def __init__(
        self,
        listen: str,
        *,
        advertise: str | None,
        allow: list[str],
        threads: int | None,
        memory_bytes: int | None,
        token: str | None,
        tls: tuple[str, str] | None,
        client_ca: str | None,
        insecure: bool,
        storage: dict[str, Any],
        decoder_memory: int | None = None,
        catalogs_from: list[str] = [],
    ) -> None: ...
    @property
    def address(self) -> str:
        """``host:port``; the host is the advertised one if one was given."""
    def status(self) -> str:
        """JSON: ``version``, ``protocol``, ``instance``, ``draining``, ``streams``, ``plans``, ``samples``, …"""
    def drain(self, timeout: float) -> bool:
        """Accepts no new streams and asks ranks to move theirs; True if all have moved within ``timeout`` seconds."""
    def stop(self) -> None: ...

class Members:
    """The list of workers, shared by all loaders that were given it."""

    def __init__(
        self,
        workers: str | list[str],
        *,
        token: str | None,
        ca: str | None,
        client: tuple[str, str] | None,
        server_name: str | None,
        local: str,
    ) -> None: ...
    def set(self, addresses: list[str]) -> None:
        """Replaces the list of workers. Streams move at the next step."""
    def addresses(self) -> list[str]: ...
    def status(self, address: str) -> str:
        """Returns the status of the worker at an address as JSON."""

def fleet_identity(names: list[str]) -> dict[str, str]:
    """Makes an authority, certificates that it signs, and a random "token".

    The others are "ca", "server_cert", "server_key", "client_cert" and "client_key" (PEM).
    """

def command(arguments: list[str]) -> int: ...
def check_ops(ops: str) -> None: ...
def check_annotation(annotation: str, ops: str) -> None: ...
def check_finish(finish: str) -> None: ...
def compile_kernels(capability: int) -> int:
    """Compiles the finishing kernels for GPUs of a compute capability (90 for 9.0) and stores them in the cache.

    Returns:
        Their size in bytes.
    """

def offer_libraries(files: list[str]) -> None:
    """Adds files of NVIDIA's run-time compiler and JPEG decoder that the system's loader does not find."""

def use_address_on(address: int, stream: int) -> bool:
    """Registers ``stream`` as a user of the batch whose memory contains ``address``; False if there is none."""

def preset(name: str) -> str: ...
def op_schema() -> str: ...
def default_threads() -> int: ...
def panic(message: str) -> None:
    """Only in the tests' wheel."""
