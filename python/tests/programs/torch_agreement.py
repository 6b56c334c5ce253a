"""Ranks that may load different data. Each writes what happened to `<folder>/<rank>.json`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

import feedstock as fs
from feedstock.torch import loader as torch_loader


def pipeline(data: str, **changes: Any) -> fs.Pipeline:
    dataset = fs.Dataset(data)
    if "filter" in changes:
        dataset = dataset.filter(changes["filter"])
    loading = dataset.columns(["image", "label"]).map(
        "image", fs.decode_image(), fs.resize(changes.get("resize", (8, 8)))
    )
    return (
        loading.shuffle(seed=changes.get("seed", 7)).batch(changes.get("batch_size", 10)).options(threads=1)
    )


@contextmanager
def outcome(folder: str) -> Iterator[dict[str, Any]]:
    """Yields a rank's notes, and writes them in any case. A ConfigError is noted and not raised further."""
    noted: dict[str, Any] = {"error": None, "batches": 0, "warnings": []}
    handler = logging.Handler()
    handler.emit = lambda record: noted["warnings"].append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("feedstock").addHandler(handler)
    begun = time.monotonic()
    try:
        yield noted
    except fs.ConfigError as error:
        noted["error"] = str(error)
    noted["seconds"] = time.monotonic() - begun
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(noted))


def differ(folder: str, data: list[str], changes: list[dict[str, Any]], by_hand: bool) -> None:
    """Rank k loads `data[k]` with `changes[k]`."""
    rank = dist.get_rank()
    mine = changes[rank]
    with outcome(folder) as noted:
        loading = pipeline(data[rank], **mine)
        whole = rank, dist.get_world_size()
        loader = loading.loader(*whole, output="torch") if by_hand else torch_loader(loading)
        if mine.get("world_size"):
            loader.reconfigure(world_size=mine["world_size"])
        if mine.get("epoch"):
            loader.set_epoch(mine["epoch"])
        if mine.get("step"):
            loader.seek(mine["step"])
        for _ in loader:
            noted["batches"] += 1


def some_only(folder: str, data: str, other: str) -> None:
    """Rank 0 loads something that the others do not. Then all load the same."""
    rank = dist.get_rank()
    with outcome(folder) as noted:
        if rank == 0:
            noted["alone"] = sum(1 for _ in torch_loader(pipeline(other, seed=1), compare_timeout=0.5))
        dist.barrier()
        noted["batches"] = sum(1 for _ in torch_loader(pipeline(data)))


def late(folder: str, data: str) -> None:
    """Rank 1 loads another order, after rank 0 has stopped waiting and has taken batches."""
    rank = dist.get_rank()
    with outcome(folder) as noted:
        if rank == 1:
            time.sleep(3.0)
        loader = torch_loader(pipeline(data, seed=rank), compare_timeout=1.0)
        for _ in range(100):  # epochs
            for _ in loader:
                noted["batches"] += 1
                time.sleep(0.02)


def groups(folder: str, data: str, other: str) -> None:
    """Ranks 0 and 2 load one thing, ranks 1 and 3 another, in separate groups."""
    rank = dist.get_rank()
    both = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    with outcome(folder) as noted:
        loading = pipeline(data if rank % 2 == 0 else other)
        noted["batches"] = sum(1 for _ in torch_loader(loading, group=both[rank % 2]))
