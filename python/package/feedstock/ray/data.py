"""Ray Data in both directions: a pipeline as a data set of Ray, and a data set of Ray as files that feedstock opens.

to_ray_data      plan of an epoch ─▶ ranges of steps, one for each read task ─▶ Arrow tables
from_ray_data    blocks ─▶ one Arrow IPC file for each write task, then _SUCCESS ─▶ feedstock.Dataset
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.fs
import ray
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import BlockBasedFileDatasink, Datasource, ReadTask
from ray.data.extensions import ArrowPythonObjectType, ArrowVariableShapedTensorType

from .. import ConfigError, Dataset, Pipeline
from .._check import whole, whole_or_none
from .convert import arrow_table
from .iterator import _Recipe

if TYPE_CHECKING:
    from ray.data.block import BlockAccessor
    from typing_extensions import Unpack

    from .. import DatasetOptions

#: Read tasks for each one that runs at a time: one runs while the next is scheduled.
TASKS_PER_SLOT = 2

#: Bytes of a record batch in the files that are written: the size of one read of ``Dataset(block_bytes=…)``.
RECORD_BATCH_BYTES = 4 * 2**20

#: An empty file that is written after all others.
COMPLETE = "_SUCCESS"


def to_ray_data(
    pipeline: Pipeline,
    *,
    epoch: int = 0,
    tasks: int | None = None,
    cpus_per_task: float = 1.0,
    resources: Mapping[str, float] | None = None,
    label_selector: Mapping[str, str] | None = None,
) -> ray.data.Dataset:
    """Returns one epoch of a pipeline as a lazy data set of Ray Data.

    The order is cut into ranges of whole batches. Each is one read task, which fetches and decodes in a process of Ray
    and yields a table for each batch. Every sample of the epoch is in exactly one row, whatever ``tail`` the pipeline
    has; samples that ``on_error("skip")`` skips are left out. The rows of a task are in the order of the plan, and
    tasks are numbered in that order. With ``preserve_order`` in Ray's execution options, all rows are in the order of
    the plan; without it, tasks may be delivered in any order. A task that Ray repeats yields the same rows.

    Columns are those of the batches, and ``sample_id`` (uint64). Encoded columns that no op decodes are bytes.

    Args:
        pipeline: The pipeline, without ``map_python`` and ``map_rows``. Its global batch size is the number of rows of
            a table.
        epoch: The epoch; default 0.
        tasks: The number of read tasks; default: two for each that the cluster runs at a time, at most one a batch.
        cpus_per_task: CPUs that a task reserves with Ray, and its threads; default 1.
        resources: Further logical resources of Ray that a task reserves; default: none.
        label_selector: Labels of the nodes where tasks run, as in Ray; default: any node.

    Raises:
        ConfigError: The pipeline has Python functions or no end, or a number is not valid.

    Example:
        >>> from feedstock.ray import to_ray_data
        >>> pipeline = fs.Dataset(images).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=7).batch(3)
        >>> data = to_ray_data(pipeline, tasks=2)
        >>> sorted(row["sample_id"] for row in data.iter_rows())
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    if pipeline._functions:
        raise ConfigError(
            "to_ray_data takes no pipeline with map_python or map_rows; use Dataset.map_batches of the result"
        )
    if not cpus_per_task > 0:
        raise ConfigError(f"cpus_per_task must be > 0; got {cpus_per_task}")
    whole_order = _with_tail(pipeline).options(threads=pipeline._native.threads or math.ceil(cpus_per_task))
    source = _Plan(whole_order, whole("epoch", epoch))
    tasks = whole_or_none("tasks", tasks, 1) or math.ceil(TASKS_PER_SLOT * _cluster_cpus() / cpus_per_task)
    return ray.data.read_datasource(
        source,
        override_num_blocks=min(tasks, source.steps),
        num_cpus=cpus_per_task,
        resources=dict(resources) if resources else None,
        label_selector=dict(label_selector) if label_selector else None,
    )


def from_ray_data(
    dataset: ray.data.Dataset,
    uri: str,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Writes a data set of Ray Data to Arrow IPC files, once, and opens them as a feedstock data set.

    Ray Data has no stable order: the number and order of blocks differ between executions. The files have one, so a
    saved position stays valid. The file ``_SUCCESS`` is written last. If it is there, ``dataset`` is not executed and
    the files are opened as they are, for example after a restart of the job.

    Tensors become columns of lists of one length, which batches deliver as tensors [rows, elements]; ``reshape`` them.

    Args:
        dataset: Ray's data set.
        uri: A folder that all nodes see, or a bucket with a prefix. It must be empty at first, or not exist.
        filesystem: How Ray and pyarrow reach ``uri``; default: by its scheme and the environment.
        **options: Of ``feedstock.Dataset`` except ``layout``, such as ``storage`` or ``catalog``.

    Raises:
        ConfigError: ``uri`` has files of an unfinished write or others, the data set is empty, a column is of Python
            objects or of tensors whose shapes differ, or it has a name that feedstock needs: rename ``sample_id``.

    Example:
        >>> from feedstock.ray import from_ray_data
        >>> import ray.data
        >>> rows = ray.data.from_items([{"station": number % 2, "celsius": number / 4} for number in range(8)])
        >>> dataset = from_ray_data(rows.filter(lambda row: row["station"] == 0), f"{made}/even_stations")
        >>> len(dataset)
        4
        >>> (batch,) = dataset.batch(4).loader(output="numpy")
        >>> sorted(batch["celsius"].tolist())
        [0.0, 0.5, 1.0, 1.5]
    """
    if filesystem is None:
        filesystem, folder = pyarrow.fs.FileSystem.from_uri(uri if "://" in uri else os.path.abspath(uri))
    else:
        folder = filesystem.normalize_path(uri.partition("://")[2] or uri)
    there = filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True))
    if not any(file.base_name == COMPLETE for file in there):
        if there:
            raise ConfigError(
                f"{uri} has {len(there)} files but no {COMPLETE}: an earlier write was cut off, or they are others; "
                "remove them or name another folder"
            )
        filesystem.create_dir(folder, recursive=True)
        dataset.write_datasink(_IpcFiles(folder, filesystem=filesystem))
        if not filesystem.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True)):
            raise ConfigError(f"the data set of Ray has no rows, so nothing was written to {uri}")
        made = Dataset(uri, layout="ipc", **options)  # not complete if it is not a data set
        with filesystem.open_output_stream(f"{folder}/{COMPLETE}"):
            pass
        return made
    return Dataset(uri, layout="ipc", **options)


def _cluster_cpus() -> float:
    return float(ray.cluster_resources().get("CPU", 1.0)) if ray.is_initialized() else 1.0


def _with_tail(pipeline: Pipeline) -> Pipeline:
    """Returns the pipeline with its last, incomplete batch."""
    sizes: dict[str, Any] = {"batch_size": 1}
    for method, arguments in pipeline._steps:
        if method == "batch":
            sizes = arguments["sizes"]
    return pipeline.batch(**sizes, tail="pad")


class _Plan(Datasource):  # type: ignore[misc]
    """The steps of an epoch, of one rank of one."""

    def __init__(self, pipeline: Pipeline, epoch: int) -> None:
        super().__init__()
        self._recipe, self._epoch = _Recipe(pipeline), epoch
        with pipeline.loader() as loader:
            loader.set_epoch(epoch)
            try:
                self.steps = len(loader)
            except TypeError as error:
                raise ConfigError(f"to_ray_data needs an epoch that ends: {error}") from None
            self._rows = loader.global_batch_size
        skips = any(method == "on_error" and a["policy"] == "skip" for method, a in pipeline._steps)
        samples = len(pipeline.dataset)
        padded = 0 if self._rows is None else self.steps * self._rows - samples
        if skips or self._rows is None or not 0 <= padded < self._rows:
            self._rows = None  # known only after reading
        self._samples = samples

    def get_name(self) -> str:
        return "Feedstock"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        count = max(1, min(parallelism, self.steps))
        cuts = [self.steps * number // count for number in range(count + 1)]
        return [
            ReadTask(
                self._read(first, end), self._metadata(first, end), per_task_row_limit=per_task_row_limit
            )
            for first, end in pairwise(cuts)
        ]

    def _metadata(self, first: int, end: int) -> BlockMetadata:
        rows = None if self._rows is None else min(end * self._rows, self._samples) - first * self._rows
        return BlockMetadata(num_rows=rows, size_bytes=None, input_files=None, exec_stats=None)

    def _read(self, first: int, end: int) -> Callable[[], Iterator[pyarrow.Table]]:
        recipe, epoch = self._recipe, self._epoch

        def read() -> Iterator[pyarrow.Table]:
            with recipe.pipeline().loader() as loader:
                loader.set_epoch(epoch)
                loader.seek(first)
                # Unlike a loop over batches, `map` keeps no batch and so no slot.
                yield from map(_owned, islice(loader, end - first))

        return read


def _owned(batch: Any) -> pyarrow.Table:
    """Returns a copy of the batch's valid rows, which holds no slot: Ray keeps tables until a block is full."""
    table = arrow_table(batch)
    # pyarrow takes no rows of views, in which encoded samples are.
    plain = pyarrow.schema([field.with_type(_without_views(field.type)) for field in table.schema])
    return table.cast(plain).take(np.flatnonzero(table.column("valid"))).drop_columns("valid")


def _without_views(kind: pyarrow.DataType) -> pyarrow.DataType:
    if pyarrow.types.is_binary_view(kind):
        return pyarrow.large_binary()
    if pyarrow.types.is_string_view(kind):
        return pyarrow.large_string()
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind


class _IpcFiles(BlockBasedFileDatasink):  # type: ignore[misc]
    """Writes one Arrow IPC file for each write task, of uncompressed record batches."""

    def __init__(self, folder: str, *, filesystem: pyarrow.fs.FileSystem) -> None:
        super().__init__(folder, filesystem=filesystem, file_format="arrow")

    def write_block_to_file(self, block: BlockAccessor, file: pyarrow.NativeFile) -> None:
        table = block.to_arrow()
        columns = [_plain(name, table.column(name)) for name in table.column_names]
        table = pyarrow.table(columns, names=table.column_names)
        rows = max(1, RECORD_BATCH_BYTES * table.num_rows // max(1, table.nbytes))
        with pyarrow.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table.combine_chunks(), max_chunksize=rows)


def _plain(name: str, column: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Returns a column without Ray's types: tensors as lists of one length."""
    kind = column.type
    if isinstance(kind, ArrowPythonObjectType | ArrowVariableShapedTensorType):
        raise ConfigError(
            f"column {name!r} has Python objects or tensors of several shapes ({kind}), which Arrow IPC files cannot "
            "hold; convert it with map_batches, for example to lists or bytes"
        )
    if not isinstance(kind, pyarrow.BaseExtensionType):
        return column
    shape: Iterable[int] | None = getattr(kind, "shape", None)
    if shape is None:
        return column.cast(kind.storage_type)
    length = math.prod(shape)
    chunks = [pyarrow.FixedSizeListArray.from_arrays(c.storage.flatten(), length) for c in column.chunks]
    return pyarrow.chunked_array(chunks, pyarrow.list_(kind.storage_type.value_type, length))
