"""``fs.from_torch`` on workers: the same bytes as on the rank, saved positions, and what is refused."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import map_style
import numpy as np
import pytest
from map_style import LENGTH, Augmented, Made
from served import TOKEN, Process, coder
from served import worker as in_process

import feedstock as fs

cloudpickle = pytest.importorskip("cloudpickle")


@pytest.fixture(scope="module", autouse=True)
def _code_travels() -> Iterator[None]:
    """Sends data sets of the tests by value, since workers cannot import them; and gives all the token."""
    modules = [sys.modules[__name__], map_style]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEEDSTOCK_TOKEN", TOKEN)  # of ranks and workers
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        yield
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the only folder that workers may read: it is empty, as items are not read by them."""
    return tmp_path_factory.mktemp("nothing")


@pytest.fixture(scope="module")
def serving(nothing: Path) -> Iterator[Process]:
    with coder(nothing) as process:
        yield process


def batches(pipeline: Any, output: Any = "numpy", epochs: int = 1, **options: Any) -> list[Any]:
    with pipeline.loader(output=output, **options) as loader:
        return [batch for _ in range(epochs) for batch in loader]


def assert_same(found: Any, expected: Any) -> None:
    """Compares structures and bytes of batches."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, (str, bytes)):
        assert found == expected
    else:
        found, expected = np.asarray(found), np.asarray(expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


def shuffled(dataset: Any, **options: Any) -> Any:
    return fs.from_torch(dataset, num_workers=1, **options).shuffle(seed=3).batch(global_batch_size=8)


class Placed:
    """States where items are made."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return os.environ.get("PLACE") == "worker", os.getppid(), index


@pytest.mark.parametrize("make", ["pair", "mixed", "nested", "alone", "listed", "of_lengths"])
def test_items_have_the_same_bytes_in_the_same_structure(serving: Process, make: str) -> None:
    pipeline = shuffled(Made(getattr(map_style, make)))
    expected = batches(pipeline, epochs=2)
    assert len(expected) == 2 * LENGTH // 8
    assert_same(batches(pipeline, epochs=2, workers=serving.address), expected)


def test_random_numbers_are_those_of_the_sample(serving: Process) -> None:
    pipeline = shuffled(Augmented())
    expected = batches(pipeline, epochs=2)
    assert_same(batches(pipeline, epochs=2, workers=serving.address), expected)
    ranks = []
    for rank in range(2):
        with pipeline.loader(rank, 2, output="numpy", workers=serving.address) as loader:
            ranks.append(list(loader))
    for step, (pixels, numbers) in enumerate(expected[: LENGTH // 8]):
        joined = [np.concatenate([rank[step][part] for rank in ranks]) for part in range(2)]
        assert_same(joined, [pixels, numbers])


class Drawn:
    """Draws from torch, which the first item of a process imports."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        import torch

        if torch.rand(1) < 0.5:
            return torch.randn(3, 4) + index, random.random()
        return torch.full((3, 4), float(index)), random.random()


def test_torch_draws_and_gives_tensors(serving: Process) -> None:
    torch = pytest.importorskip("torch")
    pipeline = shuffled(Drawn(), columns=["x", "draw"])
    found = batches(pipeline, "torch", workers=serving.address)
    assert_same(found, batches(pipeline, "torch"))
    assert (found[0]["x"].dtype, found[0]["x"].shape) == (torch.float32, (8, 3, 4))
    found[0]["x"].add_(1)  # it may be written


def test_workers_make_all_items(serving: Process) -> None:
    for there, parents, _ in batches(shuffled(Placed()), workers=serving.address):
        assert there.all()
        assert set(parents.tolist()) == {serving.process.pid}
    for there, parents, _ in batches(shuffled(Placed())):
        assert not there.any()
        assert set(parents.tolist()) == {os.getpid()}


def test_functions_follow_on_workers_and_on_the_rank(serving: Process) -> None:
    def counted(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"count": len(row["tokens"]), "draw": rng.random(), "columns": np.int64(len(row))}

    def doubled(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"twice": 2 * row["count"] + len(row["target.boxes"]), "draw": row["draw"] + rng.random()}

    def replaced(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"tokens": np.float32([row["tokens"].sum(), rng.random()])}

    items = shuffled(Made(map_style.of_lengths))
    for executors in (["worker", "worker"], ["worker", "process"], ["process", "thread"]):
        pipeline = items
        for function, executor in zip((counted, doubled), executors, strict=True):
            timeout = {} if executor == "thread" else {"timeout": 60}
            pipeline = pipeline.map_rows(function, executor=executor, num_workers=1, **timeout)
        pipeline = pipeline.map_python(lambda batch: {**batch, "sum": batch["twice"].sum()})
        expected = batches(pipeline)
        assert set(expected[0]["columns"].tolist()) == {4}  # values and their lengths, no index
        assert_same(batches(pipeline, workers=serving.address), expected)
    pipeline = items.map_rows(replaced, executor="worker", num_workers=1)
    expected = batches(pipeline)
    assert expected[0]["tokens"].shape == (8, 2)
    assert expected[0]["tokens_length"].max() == 5
    assert_same(batches(pipeline, workers=serving.address), expected)
    with pytest.raises(fs.ConfigError, match='executor="worker" must come before'):
        items.map_rows(counted).map_rows(doubled, executor="worker").loader(
            output="numpy", workers=serving.address
        )


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_saved_positions_load_with_and_without_workers(serving: Process, first: bool, second: bool) -> None:
    pipeline = shuffled(Augmented(), identity="1")
    whole = batches(pipeline, epochs=2)

    def options(has_workers: bool) -> dict[str, Any]:
        return {"output": "numpy", **({"workers": serving.address} if has_workers else {})}

    with pipeline.loader(**options(first)) as loader:
        iterator = iter(loader)
        found = [next(iterator) for _ in range(2)]
        state = json.loads(json.dumps(loader.state_dict()))
    with pipeline.loader(**options(second)) as loader:
        loader.load_state_dict(state)
        found += [batch for _ in range(2) for batch in loader]
    assert_same(found, whole)
    other = shuffled(Augmented(LENGTH + 1), identity="1")
    with other.loader(**options(second)) as loader, pytest.raises(fs.ConfigError):
        loader.load_state_dict(state)


class Slow(Placed):
    """Leaves time for a worker to be killed."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        return super().__getitem__(index)


def test_lost_workers_and_the_ranks_own_processes_change_nothing(serving: Process, nothing: Path) -> None:
    pipeline = shuffled(Slow())
    indexes = [batch[2].tolist() for batch in batches(shuffled(Placed()), epochs=2)]
    has_served = False
    found = []
    with coder(nothing) as lost:
        workers = fs.Workers([serving.address, lost.address])
        with pipeline.loader(output="numpy", workers=workers) as loader:
            for _ in range(2):
                for _, parents, numbers in loader:
                    found.append(numbers.tolist())
                    if lost.process.pid in parents and not has_served:
                        has_served = True
                        lost.process.kill()
                    if not has_served:
                        time.sleep(0.3)  # the other worker may serve alone until this one is ready
    assert has_served
    assert found == indexes
    augmented = shuffled(Augmented())
    expected = batches(augmented)
    assert_same(batches(augmented, workers=fs.Workers(serving.address, local="share")), expected)
    nobody = fs.Workers("127.0.0.1:9", local="fallback")
    assert_same(batches(augmented, workers=nobody), expected)


def test_bad_items_are_named_and_skipped(serving: Process) -> None:
    pipeline = shuffled(Made(map_style.sometimes_bad))
    with pytest.raises(fs.SampleError) as here:
        batches(pipeline)
    with pytest.raises(fs.SampleError) as there:
        batches(pipeline, workers=serving.address)
    message = f"sample {here.value.sample_id} of epoch 0: from_torch(Made) raised ValueError"
    assert here.value.sample_id == there.value.sample_id
    assert message in str(here.value)
    assert message in str(there.value)
    assert f"item {there.value.sample_id} is damaged" in str(there.value)
    skipping = pipeline.on_error("skip", max_fraction=0.2)
    with skipping.loader(output="numpy", workers=serving.address) as loader:
        found = list(loader)
        report, ledger = loader.skip_report(), loader.ledger()
    assert_same(found, batches(skipping))
    assert report["count"] == ledger["substituted"] == 5
    assert all("is damaged" in sample["reason"] for sample in report["samples"])
    with pytest.raises(
        fs.SampleError, match=r"sample 20 .*float64 \[3\], and the first items have float64 \[2\]"
    ):
        batches(shuffled(Made(map_style.once_longer)), workers=serving.address)


def test_selections_are_made_on_the_rank(serving: Process) -> None:
    part = fs.from_torch(Made(map_style.pair), num_workers=1).filter("index >= 10").take(20)
    pipeline = part.shuffle(seed=1).batch(10)
    found = batches(pipeline, workers=serving.address)
    assert_same(found, batches(pipeline))
    assert sorted(number for _, numbers in found for number in numbers.tolist()) == list(range(10, 30))


def test_a_worker_without_permission_refuses(nothing: Path, serving: Process) -> None:
    pipeline = shuffled(Made(map_style.pair))
    refusing = in_process(nothing)
    try:
        with pytest.raises(
            fs.ConfigError, match=r"from_torch\(Made\).*worker --allow-code.*leave out workers="
        ):
            batches(pipeline, workers=refusing.address)
        both = f"{refusing.address},{serving.address}"
        assert_same(batches(pipeline, workers=both), batches(pipeline))
    finally:
        refusing.stop()


def test_code_lets_no_other_pipeline_read_indexes(serving: Process) -> None:
    indexes = fs.Dataset("indexes://48/items.arrow", layout="ipc", progress=False)
    with pytest.raises(fs.DeniedError, match="outside of what is allowed here"):
        batches(indexes.batch(8), workers=serving.address)


def test_a_data_set_that_cannot_be_sent(serving: Process, tmp_path: Path, monkeypatch: Any) -> None:
    class Held(Placed):
        def __init__(self) -> None:
            self.samples = os.urandom(9 << 20)

    with pytest.raises(
        fs.ConfigError,
        match=r"from_torch\(.*Held\): the pickled functions have \d+ bytes.*keep its samples in files that",
    ):
        shuffled(Held()).loader(output="numpy", workers=serving.address)
    with pytest.raises(
        fs.ConfigError, match=r"cannot send the result '0' \(float64 \[0\]\), which has no bytes"
    ):
        shuffled(Made(without_elements)).loader(output="numpy", workers=serving.address)
    (tmp_path / "items_of_the_rank.py").write_text("def item(index):\n    return index\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import items_of_the_rank  # type: ignore[import-not-found]

    with pytest.raises(
        fs.ConfigError, match=r"(?s)from_torch\(Made\).*cannot load.*No module named 'items_of_the_rank'"
    ):
        batches(shuffled(Made(items_of_the_rank.item)), workers=serving.address)


def without_elements(index: int) -> Any:
    return np.zeros(0), index


def test_values_of_any_length_survive_the_way() -> None:
    from feedstock._rows.sent import gathered, packed, unpacked
    from feedstock._rows.spec import SentSpec

    rows = {
        SentSpec("str"): ["", "größer \udc80", "a\0b"],
        SentSpec("bytes"): [b"", b"\0\xff", b"x"],
        SentSpec("float16", (2, None)): [
            np.float16([[], []]),
            np.float16([[1], [2]]),
            np.ones((2, 3), np.float16),
        ],
        SentSpec("int64", (None,)): [np.arange(3), np.arange(0), np.arange(1)],
        SentSpec("bool", (None, 0)): [np.zeros((2, 0), bool), np.zeros((0, 0), bool), np.zeros((1, 0), bool)],
    }
    for spec, values in rows.items():
        sent = {row: {"x": value} for row, value in enumerate(values)}
        made = gathered({"x": spec}, sent, len(values))
        again = [unpacked("x", spec, data) for data in packed("x", spec, made)]
        for value, other in zip(values, again, strict=True):
            assert_same(other, value)
        assert_same(unpacked("x", spec, b""), spec.empty)
    with pytest.raises(fs.InternalError, match=r"a worker sent 11 bytes of column 'x', not 16"):
        unpacked("x", SentSpec("int64", (None,)), (1).to_bytes(8, "little") + b"abc")
