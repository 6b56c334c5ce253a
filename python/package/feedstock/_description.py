"""What a pipeline is, as a table: its data, columns, order, memory and reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedstock._table import facts_html, facts_text, shown, size
from feedstock.ops import Op


@dataclass(frozen=True)
class MapDescription:
    """A map: the column that it reads, and the tensor that it makes of each sample."""

    column: str
    #: Arrow's type of the column.
    column_type: str
    ops: tuple[Op, ...]
    output: str
    #: As numpy spells it.
    dtype: str
    #: Of one sample; None for a length that differs between samples.
    shape: tuple[int | None, ...]
    #: The meaning of the axes: ``hwc``, ``chw``, ``hw``, ``t``, ``tf``, ``ft``.
    layout: str

    def __str__(self) -> str:
        unknown = "N" if self.layout in ("hwc", "chw", "hw") else "T"  # images of a list, or time
        lengths = ", ".join(unknown if length is None else str(length) for length in self.shape)
        ops = ", ".join(json.loads(op.to_json())["op"] for op in self.ops)
        source = self.column if self.output == self.column else f"{self.output} of {self.column}"
        return f"{source}: {self.column_type} → {self.dtype} [{lengths}] by {ops}"


@dataclass(frozen=True)
class ColumnDescription:
    """A column without a map."""

    name: str
    #: Arrow's type of the column.
    column_type: str
    #: Whether batches have it as a tensor; else as a list.
    is_tensor: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.column_type} → {'tensor' if self.is_tensor else 'list'}"


@dataclass(frozen=True)
class MemoryDescription:
    """The bounds of a loader's memory. All but ``slots`` are bytes."""

    #: Batches in memory.
    slots: int
    #: A batch's mapped columns, without those of variable length.
    slot_bytes: int
    #: Whether batches have columns of variable length in addition.
    has_variable_length: bool
    budget_bytes: int
    prefetch_bytes: int
    #: Of each CPU thread.
    decoder_memory: int
    held_bytes: int
    #: Budget, slots, decoders of all threads, and 200 MB for everything else. Columns without a map, those of variable
    #: length, and batches that the caller keeps beyond its slots come on top.
    most_bytes: int


@dataclass(frozen=True)
class ReadDescription:
    """What an epoch reads from the storage without caches, if the budget has room for the window."""

    #: Of one rank, on average.
    rank_requests: int
    rank_bytes: int
    #: Of all ranks.
    requests: int
    bytes: int
    #: Ranks that read a block or a piece, on average.
    readers: float


@dataclass(frozen=True, repr=False)
class Description:
    """What a pipeline is. It prints as a table, and is one in notebooks. Made by ``Pipeline.describe``."""

    uri: str
    #: How the data set is stored: ``hf-parquet``, ``folder``, ``webdataset`` …
    layout: str
    catalog_samples: int
    #: Selected samples.
    samples: int
    #: What selects them, as one SQL expression.
    filter: str | None
    maps: tuple[MapDescription, ...]
    #: Columns without a map.
    columns: tuple[ColumnDescription, ...]
    #: Functions of ``map_rows`` and ``map_python``, in order.
    functions: tuple[str, ...]
    #: What is permuted, and in what windows.
    order: str
    order_seed: int
    #: The seed of the ops' random numbers.
    seed: int
    #: The column of lengths by which batches are bucketed.
    bucketed_by: str | None
    #: Rows of a step over all ranks; None if a total bounds them.
    global_batch_size: int | None
    #: Rows of a batch of rank 0, or the most of them if a total bounds them.
    batch_size: int
    #: Whether an incomplete last step is padded; else it is dropped.
    is_padded: bool
    #: Steps of an epoch; None if it does not end.
    steps: int | None
    world_size: int
    #: CPU threads of a process.
    threads: int
    memory: MemoryDescription
    #: None if an epoch does not end, or if a global batch may have more than 262,144 samples.
    reads: ReadDescription | None

    @classmethod
    def of(cls, report: Mapping[str, Any], functions: tuple[str, ...]) -> Description:
        """Makes it of the native library's report."""
        maps = tuple(
            MapDescription(
                **{
                    **one,
                    "ops": tuple(Op.from_json(json.dumps(op)) for op in one["ops"]),
                    "dtype": _numpy_name(one["dtype"]),
                    "shape": tuple(one["shape"]),
                }
            )
            for one in report["maps"]
        )
        return cls(
            **{
                **report,
                "maps": maps,
                "columns": tuple(ColumnDescription(**one) for one in report["columns"]),
                "functions": functions,
                "memory": MemoryDescription(**report["memory"]),
                "reads": None if report["reads"] is None else ReadDescription(**report["reads"]),
            }
        )

    def _facts(self) -> list[tuple[str, str]]:
        kept = f"{self.samples:,} samples"
        if self.samples != self.catalog_samples:
            kept = f"{self.samples:,} of {self.catalog_samples:,} samples"
        facts = [("data set", self.uri), ("layout", self.layout), ("samples", kept)]
        facts += [("selection", shown(self.filter, 200))] if self.filter is not None else []
        facts += [("maps", str(one)) for one in self.maps]
        facts += [("functions", one) for one in self.functions]
        facts += [("other columns", str(one)) for one in self.columns]
        facts += [("order", self._order()), ("batches", self._batches()), ("threads", str(self.threads))]
        return [*facts, ("memory", self._memory()), ("reads", self._reads())]

    def _order(self) -> str:
        order = f"{self.order}, seed {self.order_seed}"
        order += "" if self.seed == self.order_seed else f"; seed of the ops {self.seed}"
        return order if self.bucketed_by is None else f"{order}; bucketed by {self.bucketed_by}"

    def _batches(self) -> str:
        ranks = f"{self.world_size} rank{'' if self.world_size == 1 else 's'}"
        rows = f"{self.batch_size:,} rows of {self.global_batch_size} over {ranks}"
        if self.global_batch_size is None:
            rows = f"at most {self.batch_size:,} rows for each of {ranks}"
        tail = "padded" if self.is_padded else "dropped"
        steps = "epochs do not end" if self.steps is None else f"{self.steps:,} steps an epoch"
        return f"{rows}; {steps}; an incomplete last step is {tail}"

    def _memory(self) -> str:
        memory = self.memory
        slots = f"{memory.slots} slots of {size(memory.slot_bytes)}"
        slots += " and rows of variable length" if memory.has_variable_length else ""
        decoders = f"{self.threads} × {size(memory.decoder_memory)} for decoders"
        parts = f"{size(memory.budget_bytes)} fetched, {slots}, {decoders}, 200 MB"
        return f"{size(memory.most_bytes)} and other columns: {parts}"

    def _reads(self) -> str:
        if self.reads is None:
            return "not known"
        readers = f"{self.reads.readers:.3g} ranks read a block or a piece"
        return f"{self.reads.requests:,} requests and {size(self.reads.bytes)} an epoch over all ranks; {readers}"

    def __repr__(self) -> str:
        return facts_text(self._facts())

    def _repr_html_(self) -> str:
        return facts_html(self._facts())


def _numpy_name(dtype: str) -> str:
    """Returns ``uint8`` for ``u8``."""
    return {"u": "uint", "i": "int", "f": "float"}[dtype[0]] + dtype[1:]
