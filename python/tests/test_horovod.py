"""The loader in Elastic Horovod's state, against a stand-in for Horovod.

Horovod does not build against current torch, so nothing here runs it. The stand-in has the properties of its interface
that the handler needs (`horovod.torch.elastic`, 0.20 to 0.28):

- `TorchState(**objects)` makes a handler for each object whose type is in a registry of (type, handler class). The
  registry is read by `get_handler_registry()` and replaced by `set_handler_registry()`. Handlers are kept in
  `_handlers` by name.
- A handler is made with the object, and has `value`, `save()`, `restore()`, `sync()` and `set_value()`.
- `commit()` saves. Then, if hosts changed, all workers raise `HostsUpdatedInterrupt(skip_sync)`. `skip_sync` is true if
  workers were only removed.
- `@hvd.elastic.run` syncs and calls the function. After `HorovodInternalError` it restores. After either exception it
  makes new ranks, calls the state's reset callbacks, and syncs, unless `skip_sync`. Rank 0 is a worker from before.
"""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import feedstock as fs
import feedstock.horovod
from feedstock.adaptive import AdaptiveLoader
from feedstock.horovod import HorovodExchange, LoaderStateHandler

SAMPLES = 200


class Cluster:
    """Workers that take turns in one thread in the order of their ranks, so that rank 0 sends before others receive."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.said: Any = None


class StandInHorovod:
    """`horovod.torch` for one worker."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.place = (0, 1)

    def rank(self) -> int:
        return self.place[0]

    def size(self) -> int:
        return self.place[1]

    def broadcast_object(self, value: Any, root_rank: int = 0) -> Any:
        assert root_rank == 0
        if self.rank() == 0:
            self.cluster.said = copy.deepcopy(value)
        return copy.deepcopy(self.cluster.said)

    def allgather_object(self, value: Any) -> list[Any]:
        return [value] * self.size()


class StandInModelHandler:
    """Keeps and restores a model and its optimizer, as Horovod's handlers do."""

    def __init__(self, value: Any, hvd: StandInHorovod) -> None:
        self.value, self.hvd = value, hvd
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(self.saved)

    def sync(self) -> None:
        self.value.load_state_dict(self.hvd.broadcast_object(self.value.state_dict()))


class StandInState:
    """`TorchState`: handlers by type, reset callbacks."""

    def __init__(self, registry: list[tuple[type, Callable[[Any], Any]]], **objects: Any) -> None:
        self._handlers = {}
        self._callbacks: list[Callable[[], None]] = []
        for name, value in objects.items():
            self._handlers[name] = next(make for kind, make in registry if isinstance(value, kind))(value)

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        self._callbacks.extend(callbacks)

    def commit(self) -> None:
        for handler in self._handlers.values():
            handler.save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()

    def on_reset(self) -> None:
        for callback in self._callbacks:
            callback()


class Network(torch.nn.Module):  # type: ignore[misc]
    """A model that counts, in a buffer, how often each sample changed it. The count is undone and restored with it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = torch.nn.Linear(8 * 8 * 3, 10)
        self.register_buffer("seen", torch.zeros(SAMPLES, dtype=torch.int64))

    def forward(self, pictures: Any) -> Any:
        return self.head(pictures.flatten(1).float() / 255.0)


class Worker:
    def __init__(self, cluster: Cluster, pipeline: fs.Pipeline, adaptive: bool, rank: int, size: int) -> None:
        self.hvd = StandInHorovod(cluster)
        self.hvd.place = (rank, size)
        self.loader: Any = pipeline.loader(rank, size, output="torch")
        if adaptive:
            self.loader = AdaptiveLoader(self.loader, exchange=HorovodExchange(self.hvd))
            self.loader.autoscale_batch_size(64, (1, 64))
        self.model = Network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        registry: list[tuple[type, Callable[[Any], Any]]] = [
            (fs.Loader, lambda value: LoaderStateHandler(value, self.hvd)),
            (AdaptiveLoader, lambda value: LoaderStateHandler(value, self.hvd)),
            (torch.nn.Module, lambda value: StandInModelHandler(value, self.hvd)),
            (torch.optim.Optimizer, lambda value: StandInModelHandler(value, self.hvd)),
        ]
        self.state = StandInState(registry, model=self.model, optimizer=self.optimizer, loader=self.loader)
        feedstock.horovod.attach(self.state)
        self.batches: Iterator[Any] = iter(())

    def begin(self) -> None:
        self.batches = iter(self.loader)

    def gradient(self, ids: Any) -> None:
        batch = next(self.batches)
        rows = batch["valid"]
        ids.extend(batch["sample_ids"][rows].tolist())
        loss = torch.nn.functional.cross_entropy(
            self.model(batch["image"]), batch["label"] % 10, reduction="none"
        )
        self.optimizer.zero_grad()
        (loss * rows).mean().backward()


def step(workers: list[Worker]) -> None:
    """Makes one step of all workers, with averaged gradients, as Horovod's optimizer does."""
    ids: list[int] = []
    for worker in workers:
        worker.gradient(ids)
    parameters = [list(worker.model.parameters()) for worker in workers]
    for same in zip(*parameters, strict=True):
        mean = torch.stack([one.grad for one in same]).mean(dim=0)
        for one in same:
            one.grad = mean.clone()
    for worker in workers:
        worker.optimizer.step()
        worker.model.seen.index_add_(0, torch.tensor(ids), torch.ones(len(ids), dtype=torch.int64))


def reset(workers: list[Worker]) -> None:
    """Assigns new ranks, as Horovod does, and calls the reset callbacks."""
    for rank, worker in enumerate(workers):
        worker.hvd.place = (rank, len(workers))
    for worker in workers:
        worker.state.on_reset()


def sync(workers: list[Worker]) -> None:
    # One handler at a time over all workers, rank 0 first, since a broadcast is a single value in the stand-in.
    for name in ("model", "optimizer", "loader"):
        for worker in workers:
            worker.state._handlers[name].sync()


def begin(workers: list[Worker]) -> None:
    for worker in workers:
        worker.begin()


def commit(workers: list[Worker]) -> None:
    for worker in workers:
        worker.state.commit()


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    pictures = (
        fs.Dataset(str(imagenet)).map("image", fs.decode_image(), fs.random_resized_crop(8)).shuffle(seed=7)
    )
    return pictures.batch(global_batch_size=12, tail="pad").options(threads=1)


@pytest.mark.parametrize("adaptive", [False, True])
def test_workers_are_lost_added_and_removed_and_every_sample_changes_the_model_once(
    pipeline: fs.Pipeline, adaptive: bool
) -> None:
    cluster = Cluster()
    workers = [Worker(cluster, pipeline, adaptive, rank, 3) for rank in range(3)]
    sync(workers)
    begin(workers)
    for _ in range(4):
        step(workers)
    commit(workers)
    assert workers[0].model.seen.sum() == 48

    # Worker 1 is lost in the second step after the commit: HorovodInternalError in the others.
    step(workers)
    workers[0].gradient([])
    workers[2].gradient([])
    lost = workers.pop(1)
    lost.loader.close()
    for worker in workers:
        worker.state.restore()
    reset(workers)
    sync(workers)
    assert workers[0].model.seen.sum() == 48
    assert [(worker.loader.rank, worker.loader.world_size) for worker in workers] == [(0, 2), (1, 2)]
    assert {worker.loader.position for worker in workers} == {48}
    begin(workers)
    for _ in range(3):
        step(workers)
    commit(workers)

    # Two hosts are added: HostsUpdatedInterrupt. The new workers' loaders are at the beginning.
    workers += [Worker(cluster, pipeline, adaptive, rank, 4) for rank in (2, 3)]
    assert workers[3].loader.position == 0
    reset(workers)
    sync(workers)
    assert {worker.loader.position for worker in workers} == {84}
    begin(workers)
    for _ in range(2):
        step(workers)
    commit(workers)

    # Three are removed: HostsUpdatedInterrupt(skip_sync=True).
    for worker in workers[1:]:
        worker.loader.close()
    workers = workers[:1]
    reset(workers)
    begin(workers)
    assert (workers[0].loader.world_size, workers[0].loader.position) == (1, 108)
    while workers[0].model.seen.sum() < SAMPLES:
        step(workers)
    assert workers[0].model.seen.tolist() == [1] * SAMPLES
    assert next(workers[0].batches, None) is None
    workers[0].loader.close()


def test_a_worker_that_stays_keeps_its_model_beside_the_others(pipeline: fs.Pipeline) -> None:
    """The stand-in trains for real: workers' models are equal, and learn."""
    cluster = Cluster()
    workers = [Worker(cluster, pipeline, False, rank, 2) for rank in range(2)]
    sync(workers)
    before = workers[0].model.head.weight.detach().clone()
    begin(workers)
    for _ in range(5):
        step(workers)
    assert torch.equal(workers[0].model.head.weight, workers[1].model.head.weight)
    assert not torch.equal(workers[0].model.head.weight, before)
    for worker in workers:
        worker.loader.close()


def test_sums_are_committed_and_undone_with_the_model(pipeline: fs.Pipeline) -> None:
    worker = Worker(Cluster(), pipeline, True, 0, 1)
    sums = worker.loader.accumulator("train")
    sums.add(rows=3)
    worker.state.commit()
    sums.add(rows=100)
    worker.state.restore()
    assert sums.totals() == {"rows": 3}
    worker.loader.close()


def test_another_loader_may_be_assigned(pipeline: fs.Pipeline) -> None:
    worker = Worker(Cluster(), pipeline, False, 0, 1)
    handler = worker.state._handlers["loader"]
    other = pipeline.loader()
    other.seek(3)
    handler.set_value(other)
    other.seek(9)
    handler.restore()
    assert other.position == 36
    worker.loader.close()


def test_registering_puts_loaders_first_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    state = types.ModuleType("horovod.torch.elastic.state")
    held: list[list[Any]] = [[(torch.nn.Module, object)]]
    state.get_handler_registry = lambda: held[-1]  # type: ignore[attr-defined]
    state.set_handler_registry = held.append  # type: ignore[attr-defined]
    elastic = types.ModuleType("horovod.torch.elastic")
    elastic.state = state  # type: ignore[attr-defined]
    for name in ("horovod", "horovod.torch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "horovod.torch.elastic", elastic)
    monkeypatch.setitem(sys.modules, "horovod.torch.elastic.state", state)
    feedstock.horovod.register()
    feedstock.horovod.register()
    assert held[-1] == [
        (fs.Loader, LoaderStateHandler),
        (AdaptiveLoader, LoaderStateHandler),
        (torch.nn.Module, object),
    ]


def test_without_horovod_it_says_what_to_do(pipeline: fs.Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(ImportError, match=r"builds up to torch 2\.0.*torchrun's elastic launch"):
        LoaderStateHandler(pipeline.loader())
    with pytest.raises(ImportError, match=r"builds up to torch 2\.0"):
        feedstock.horovod.register()


def test_an_exchange_by_horovod(pipeline: fs.Pipeline) -> None:
    hvd = StandInHorovod(Cluster())
    exchange = HorovodExchange(hvd)
    assert (exchange.rank, exchange.size) == (0, 1)
    hvd.place = (0, 3)
    assert exchange.size == 3
    assert exchange.all_gather("x") == ["x"] * 3
    assert exchange.broadcast([1]) == [1]
