"""Iteration and state: exactly once, for any world size, from anywhere."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import feedstock as fs
from feedstock._threads import assigned_threads


@pytest.fixture(scope="module")
def data(imagenet):
    return fs.Dataset(imagenet)


@pytest.fixture(scope="module")
def raw(data):
    """Returns a pipeline without decoding, to test the order."""
    return data.columns(["label"]).shuffle(seed=3, window=64)


def ids(loader):
    return [sample for batch in loader for sample in batch.sample_ids.tolist()]


def test_an_epoch_has_every_sample_once_and_the_next_another_order(raw):
    with raw.batch(20).loader() as loader:
        first, second = ids(loader), ids(loader)
    assert sorted(first) == sorted(second) == list(range(200))
    assert first != second
    assert loader.ledger() is None  # closed


def test_len_steps_and_places(raw):
    with raw.batch(16).loader(1, 4) as loader:
        assert (len(loader), loader.steps_left, loader.epoch, loader.position) == (3, 3, 0, 0)
        assert (loader.rank, loader.world_size, loader.batch_size, loader.global_batch_size) == (1, 4, 16, 64)
        next(iter(loader))
        assert (len(loader), loader.steps_left, loader.epoch, loader.position) == (3, 2, 0, 64)
    uneven = [raw.batch(global_batch_size=10).loader(rank, 4).batch_size for rank in range(4)]
    assert uneven == [3, 3, 2, 2]


@pytest.mark.parametrize("functions", [False, True])
def test_prefetching_begins_early_and_hands_out_nothing(raw, functions):
    pipeline = raw.map_python(lambda batch: batch) if functions else raw
    whole = ids(pipeline.batch(20).loader())
    with pipeline.batch(20).loader(restart=True) as loader:
        before = loader.state_dict()
        loader.start_prefetch()
        until = time.monotonic() + 60
        while not loader.stats()["ready_batches"]:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert loader.state_dict() == before
        assert ids(loader) == whole
        loader.load_state_dict(before)
        loader.start_prefetch()
        assert next(iter(loader)).sample_ids.tolist() == whole[:20]
        loader.start_prefetch()
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.start_prefetch()
        loader.reconfigure(batch_size=10)
        loader.start_prefetch()
        assert ids(loader) == whole[20:]


def test_ranks_share_the_same_global_batches(raw):
    whole = [batch.sample_ids.tolist() for batch in raw.batch(global_batch_size=24).loader()]
    for world_size in (2, 3, 4):
        loaders = [raw.batch(global_batch_size=24).loader(rank, world_size) for rank in range(world_size)]
        assert len({len(loader) for loader in loaders}) == 1
        for step, batches in enumerate(zip(*loaders, strict=True)):
            assert sorted(np.concatenate([b.sample_ids for b in batches])) == sorted(whole[step])
            planned = loaders[0].samples_in(step, epoch=0)
            assert [p.tolist() for p in planned] == [b.sample_ids.tolist() for b in batches]
        for loader in loaders:
            assert loader.ledger()["exact"]
            loader.close()


def test_state_counts_what_was_delivered_and_moves_between_world_sizes(raw):
    random.seed(5)
    for _ in range(6):
        seen, place, state = [], 0, None
        while place < 200:
            world_size, batch = random.choice([1, 2, 3]), random.choice([2, 5, 7])
            steps = random.randint(1, 4)
            loaders = [raw.batch(batch, tail="pad").loader(rank, world_size) for rank in range(world_size)]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            for done, batches in enumerate(zip(*loaders, strict=True), 1):
                seen += [
                    s for b in batches for s, real in zip(b.sample_ids.tolist(), b.valid, strict=True) if real
                ]
                if done == steps:
                    break
            assert len({str(loader.state_dict()) for loader in loaders}) == 1
            state = loaders[0].state_dict()
            place = 200 if state["epoch"] else state["position"]
            for loader in loaders:
                loader.close()
        assert sorted(seen) == list(range(200))


def test_state_is_small_and_round_trips(raw):
    loader = raw.batch(8).loader()
    next(iter(loader))
    state = loader.state_dict()
    assert len(str(state)) < 1024
    assert pickle.loads(pickle.dumps(state)) == state
    other = raw.batch(8).loader()
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert next(iter(other)).sample_ids.tolist() == next(iter(loader)).sample_ids.tolist()


def test_a_state_of_changed_data_is_refused_or_begins_the_next_epoch(tmp_path):
    for number in range(60):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"x")
    with fs.Dataset(tmp_path).columns(["path"]).batch(10).loader() as loader:
        assert next(iter(loader)).sample_ids.size == 10
        saved = loader.state_dict()
    (tmp_path / "60.jpg").write_bytes(b"x")
    with fs.Dataset(tmp_path).columns(["path"]).batch(10).loader() as loader:
        with pytest.raises(fs.ConfigError, match=r'1 file added: .*60.jpg.*on_change="next_epoch"'):
            loader.load_state_dict(saved)
        with pytest.raises(fs.ConfigError, match="on_change must be error, next_epoch or remap; got later"):
            loader.load_state_dict(saved, on_change="later")
        loader.load_state_dict(saved, on_change="next_epoch")
        assert loader.state_dict()["epoch"] == 1
        assert loader.state_dict()["position"] == 0


def test_an_epoch_of_changed_data_is_finished_with_what_was_left(tmp_path):
    for number in range(60):
        (tmp_path / f"{number:02}.jpg").write_bytes(b"x")

    def loader():
        return fs.Dataset(tmp_path).columns(["path"]).shuffle(seed=3).batch(5).loader()

    def paths(batches):
        return [path for batch in batches for path in batch["path"]]

    with loader() as before:
        batches = iter(before)
        seen = paths(next(batches) for _ in range(4))
        saved = before.state_dict()
        left = paths(batches)
    gone = left[7]
    (tmp_path / gone).unlink()
    (tmp_path / "60.jpg").write_bytes(b"x")
    with loader() as now:
        with pytest.raises(fs.ConfigError, match=r'on_change="remap"'):
            now.load_state_dict(saved)
        now.load_state_dict(saved, on_change="remap")
        batches = iter(now)
        rest = paths([next(batches)])
        between = now.state_dict()
        with loader() as again:
            again.load_state_dict(between)
            assert again.state_dict() == between
            rest += paths(again)
        assert len(rest) == 35
        assert set(rest) < set(left) - {gone}
        assert not set(rest) & set(seen)
        paths(batches)
        assert now.state_dict()["epoch"] == 1
        assert "60.jpg" in paths(now)


def test_a_foreign_state_is_refused_and_changes_nothing(raw, data):
    loader = raw.batch(8).loader()
    foreign = data.columns(["label"]).shuffle(seed=4, window=64).batch(8).loader().state_dict()
    with pytest.raises(fs.ConfigError, match="seed"):
        loader.load_state_dict(foreign)
    with pytest.raises(fs.ConfigError, match="version"):
        loader.load_state_dict({**foreign, "version": 99})
    with pytest.raises(fs.ConfigError, match="its cursor is not one of feedstock's"):
        loader.load_state_dict({**foreign, "cursor": "{"})
    assert ids(loader)[:3] == ids(raw.batch(8).loader())[:3]


def test_at_an_epochs_end_the_state_is_the_next_epochs_start(raw):
    loader = raw.batch(50).loader()
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (1, 0)
    other = raw.batch(50).loader()
    other.load_state_dict(loader.state_dict())
    assert len(ids(other)) == 200  # never an empty epoch


def test_who_counts_batches_gets_full_epochs_too(raw):
    """Frameworks that know the length never request a batch after the last."""
    loader = raw.batch(50).loader()
    epochs = []
    for _ in range(3):
        batches = iter(loader)
        epochs.append([next(batches).epoch for _ in range(len(loader))])
    assert epochs == [[0] * 4, [1] * 4, [2] * 4]


def test_an_unfinished_epoch_goes_on_or_restarts_as_asked(raw):
    going, restarting = raw.batch(50).loader(), raw.batch(50).loader(restart=True)
    for loader in (going, restarting):
        next(iter(loader))
    assert [b.position for b in going] == [50, 100, 150]
    places = [(b.epoch, b.position) for b in restarting]
    assert places == [(1, 0), (1, 50), (1, 100), (1, 150)]
    restarting.load_state_dict(raw.batch(50).loader().state_dict() | {"cursor": going_cursor(raw, 100)})
    assert [(b.epoch, b.position) for b in restarting] == [(0, 100), (0, 150)]
    assert len(ids(restarting)) == 200


def going_cursor(raw, position):
    loader = raw.batch(position).loader()
    next(iter(loader))
    return loader.state_dict()["cursor"]


def test_set_epoch_keeps_a_resumed_place(raw):
    loader = raw.batch(50).loader()
    next(iter(loader))
    loader.set_epoch(0)
    assert loader.position == 50
    loader.set_epoch(5)
    assert (loader.epoch, loader.position) == (5, 0)
    fifth = ids(loader)
    loader.set_epoch(5)
    assert ids(loader) == fifth
    assert loader.epoch == 6


def test_seek_and_samples_in(raw):
    loader = raw.batch(16).loader(0, 2)
    all_steps = [b.sample_ids.tolist() for b in loader]
    loader.set_epoch(0)
    for step in (4, 0, 3):
        loader.seek(step)
        assert (
            next(iter(loader)).sample_ids.tolist()
            == all_steps[step]
            == loader.samples_in(step, 0)[0].tolist()
        )
    with pytest.raises(fs.ConfigError, match="6 steps"):
        loader.seek(6)
    with pytest.raises(fs.ConfigError, match="6 steps"):
        loader.samples_in(6)


def test_reconfigure_goes_on_from_the_same_position(raw):
    whole = ids(raw.batch(10).loader())
    loaders = [raw.batch(10).loader()]
    seen = next(iter(loaders[0])).sample_ids.tolist()
    loaders.append(raw.batch(10).loader())
    loaders[1].load_state_dict(loaders[0].state_dict())
    for rank, loader in enumerate(loaders):
        loader.reconfigure(rank=rank, world_size=2, batch_size=15)
        assert (loader.rank, loader.world_size, loader.batch_size) == (rank, 2, 15)
    for _ in range(3):
        step = [next(iter(loader)).sample_ids.tolist() for loader in loaders]
        seen += [s for share in step for s in share]
    assert sorted(seen) == sorted(whole[:100])
    with pytest.raises(fs.ConfigError, match="rank"):
        loaders[0].reconfigure(rank=2, world_size=2)
    assert loaders[0].position == 100


def test_totals_and_buckets(common_voice):
    data = fs.Dataset(common_voice, split="train")
    pipeline = data.columns(["sentence", "duration"]).shuffle(seed=1).bucket_by("duration").batch(total=20.0)
    loader = pipeline.loader()
    assert loader.batch_size is None
    seen, steps = [], 0
    for batch in loader:
        longest = batch["duration"].numpy().max()
        assert batch.num_rows * longest <= 20.0 + 1e-3
        assert loader.samples_in(steps, epoch=0)[0].tolist() == batch.sample_ids.tolist()
        seen += batch.sample_ids.tolist()
        steps += 1
    assert steps == len(loader)
    assert sorted(seen) == list(range(len(data)))
    loader.seek(steps // 2)
    assert loader.steps_left == steps - steps // 2


def test_mixes(data):
    few, many = (
        data.columns(["label"]).filter("label < 50").named("few"),
        data.columns(["label"]).named("many"),
    )
    mix = fs.Dataset.mix([(few, 1.0), (many, 1.0)], stop="all_exhausted")
    batch = next(iter(mix.shuffle(seed=1).batch(64).loader()))
    assert {"few", "many"} == set(batch["dataset"])
    endless = fs.Dataset.mix([(few, 1.0), (many, 3.0)], stop="never").shuffle(seed=1).batch(10).loader()
    with pytest.raises(TypeError, match="never stops"):
        len(endless)
    with pytest.raises(fs.ConfigError, match="stop"):
        fs.Dataset.mix([(few, 1.0)], stop="sometimes")
    again = pickle.loads(pickle.dumps(mix))
    assert (
        next(iter(again.shuffle(seed=1).batch(64).loader())).sample_ids.tolist() == batch.sample_ids.tolist()
    )


def test_concat_delivers_each_sample_of_each_part_once(data):
    """A mix by lengths delivers 563 of these 600."""
    parts = [data.columns(["label"]).named(name) for name in ("first", "second", "third")]
    both = fs.Dataset.concat(parts[:2])
    whole = fs.Dataset.concat([both, parts[2]])
    assert len(whole) == 600
    assert whole.uri == "concatenation of first, second, third"
    for world_size in (1, 2, 3, 7):
        pipeline = whole.shuffle(seed=3, window=64).batch(global_batch_size=32, tail="pad")
        seen, names = [], []
        for rank in range(world_size):
            for batch in pipeline.loader(rank, world_size):
                seen += batch.sample_ids[batch.valid].tolist()
                names += [name for name, valid in zip(batch["dataset"], batch.valid, strict=True) if valid]
        assert sorted(seen) == list(range(600))
        assert all(name == parts[sample // 200]._recipe[2] for sample, name in zip(seen, names, strict=True))
    assert len(both.filter("label < 50")) == 2 * len(data.filter("label < 50"))

    with pipeline.loader() as loader:
        iterator = iter(loader)
        before = [sample for _ in range(4) for sample in next(iterator).sample_ids.tolist()]
        state = loader.state_dict()
    again = pickle.loads(pickle.dumps(whole)).shuffle(seed=3, window=64)
    rest = again.batch(global_batch_size=60, tail="pad").loader()
    rest.load_state_dict(state)
    after = [sample for batch in rest for sample in batch.sample_ids[batch.valid].tolist()]
    assert sorted(before + after) == list(range(600))
    turned = fs.Dataset.concat(reversed(parts)).columns(["label", "dataset"]).filter("label >= 0")
    other = turned.shuffle(seed=3, window=64).batch(global_batch_size=60).loader()
    with pytest.raises(fs.ConfigError, match="another order"):
        other.load_state_dict(state)

    blend = fs.Dataset.mix([(both, 0.5), (parts[2], 0.5)], stop="all_exhausted")
    drawn = {name for batch in blend.batch(100).loader() for name in batch["dataset"]}
    assert drawn == {"first", "second", "third"}


def test_what_cannot_be_concatenated_is_named(data):
    first, second = data.columns(["label"]).named("first"), data.columns(["label"]).named("second")
    mix = fs.Dataset.mix([(first, 1.0)]).named("blend")
    for parts, message in [
        ([], "at least 1 data set"),
        ([first, first], r"name first; give them different names with Dataset\.named"),
        ([second, mix], "blend: a mix draws samples by weight"),
        ([first, "s3://corpus"], "parts must be data sets; got str"),
    ]:
        with pytest.raises(fs.ConfigError, match=message):
            fs.Dataset.concat(parts)


def test_seven_samples_on_eight_ranks(data):
    seven = data.columns(["label"]).filter("label < 7")
    with pytest.raises(fs.ConfigError, match="7 selected samples"):
        seven.batch(1).loader(0, 8)
    loaders = [seven.batch(1, tail="pad").loader(rank, 8) for rank in range(8)]
    assert [len(loader) for loader in loaders] == [1] * 8
    batches = [next(iter(loader)) for loader in loaders]
    real = {int(b.sample_ids[0]) for b in batches if b.valid[0]}
    assert len(real) == 7
    assert sum(b.valid[0] for b in batches) == 7


@pytest.mark.parametrize("functions", [0, 1])
def test_changes_at_an_epochs_end_do_not_hide_it(raw, functions):
    pipeline = raw.batch(50)
    if functions:
        pipeline = pipeline.map_python(lambda batch: batch, num_threads=2)
    loader = pipeline.loader()
    for epoch in range(3):
        epochs = []
        for batch in loader:
            epochs.append(batch.epoch)
            loader.reconfigure(batch_size=50)
            if epoch == 1:
                loader.close()
        assert epochs == [epoch] * 4


def test_an_iteration_ends_once_and_a_newer_one_takes_over(raw):
    loader = raw.batch(50).loader()
    batches = iter(loader)
    assert [len(list(batches)), len(list(batches))] == [4, 0]
    older, newer = iter(loader), iter(loader)
    next(newer)
    with pytest.raises(RuntimeError, match="invalidated by a later iter"):
        next(older)
    assert len(list(newer)) == 3


def test_a_bounded_run_ends_and_stays_ended(raw):
    for pipeline in (raw.batch(50).epochs(1), raw.batch(50).epochs(1).map_python(lambda batch: batch)):
        with pipeline.loader() as loader:
            assert len(list(loader)) == len(pipeline.loader()) == 4
            assert list(loader) == []
            assert (len(loader), loader.steps_left) == (0, 0)
            loader.reconfigure(batch_size=25)
            assert list(loader) == []
            finished = loader.state_dict()
        again = pipeline.loader()
        again.load_state_dict(finished)
        assert list(again) == []
        with pytest.raises(fs.ConfigError, match="no epoch 1"):
            again.set_epoch(1)
        evaluation = pipeline.loader(restart=True)
        next(iter(evaluation))
        assert list(evaluation) == []


def test_evaluation_set_to_its_epoch_begins_it_anew(raw):
    loader = raw.batch(50).loader(restart=True)
    for _ in range(2):
        loader.set_epoch(0)
        batch = next(iter(loader))
        assert (batch.epoch, batch.position) == (0, 0)
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    assert next(iter(loader)).position == 50


def test_what_cannot_be_converted_is_not_delivered(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"image": [b"1", b"2"], "valid": [5, 6]})
    pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    data = fs.Dataset(tmp_path)
    loader = data.batch(1).loader(output="numpy")
    for _ in range(2):
        with pytest.raises(fs.ConfigError, match="'valid'"):
            next(iter(loader))
        assert loader.position == 0
    batch = next(iter(data.columns(["valid"]).batch(2).loader()))
    assert batch["valid"].numpy().tolist() == [5, 6]
    assert batch.valid.tolist() == [True, True]
    with pytest.raises(fs.ConfigError, match="'valid'"):
        pyarrow.record_batch(batch)


def test_a_bad_sample_fails_every_try_and_never_makes_an_empty_epoch(data):
    loader = data.map("image", fs.decode_image(max_pixels=10), fs.resize((8, 8))).batch(5).loader()
    for _ in range(3):
        with pytest.raises(fs.SampleError):
            list(loader)
        assert loader.position == 0


def two_of(batches):
    """Returns the first two batches, which may take longer than a deadline on a busy machine."""

    def one():
        for _ in range(10):
            with contextlib.suppress(fs.RetryableError):
                return next(batches)
        return next(batches)

    return [one(), one()]


def test_time_between_calls_is_no_wait(data):
    loader = data.columns(["label"]).batch(2).options(slots=2, deadline=5.0).loader()
    batches = iter(loader)
    held = two_of(batches)
    assert loader._native.poll(0.2) == (False, None)
    time.sleep(5.0)
    held.clear()
    assert next(batches).position == 4


def test_the_loaders_of_a_process_share_one_pool(data):
    base = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)

    def workers():
        found = set()
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/self/task/{task}/comm") as comm:
                if comm.read().startswith("feedstock-cpu"):
                    found.add(task)
        return found

    many = len(workers()) + 3  # more than earlier tests' loaders started
    few, more = base.options(threads=2).loader(), base.options(threads=many).loader()
    next(iter(few))
    next(iter(more))
    deadline = time.monotonic() + 20  # threads set their names once they run
    while len(workers()) < many and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(workers()) == many, "the pool grew to the larger share, and not to both"


def default_threads(**environment):
    program = (
        "import os, feedstock as fs; print(fs._feedstock.default_threads(), len(os.sched_getaffinity(0)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return map(int, done.stdout.split())


def test_ranks_of_a_machine_share_its_cpus():
    threads, cpus = default_threads(LOCAL_WORLD_SIZE="1")
    assert threads <= cpus
    half, _cpus = default_threads(LOCAL_WORLD_SIZE="2")
    assert half == max(threads // 2, 1)
    least, _cpus = default_threads(LOCAL_WORLD_SIZE=str(8 * cpus))
    assert least == 1


def test_a_number_of_ranks_that_is_none_is_named(imagenet):
    program = f"import feedstock as fs; next(iter(fs.Dataset({str(imagenet)!r}).batch(2).loader()))"
    for ranks, is_named in [("0", True), ("all", True), ("1", False)]:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"LOCAL_WORLD_SIZE": ranks},
            capture_output=True,
            text=True,
            check=True,
        )
        message = (
            f'LOCAL_WORLD_SIZE must be an integer >= 1, the number of ranks on this machine; got "{ranks}"'
        )
        assert done.stderr.count(message) == is_named, done.stderr


def test_cpus_that_ray_assigned_count_above_one(monkeypatch):
    class Ray:
        cpus = 4.0
        is_initialized = staticmethod(lambda: True)

        @classmethod
        def get_runtime_context(cls):
            return cls

        @classmethod
        def get_assigned_resources(cls):
            return {"CPU": cls.cpus} if cls.cpus is not None else {}

    monkeypatch.setitem(sys.modules, "ray", Ray)
    for cpus, threads in [(4.0, 4), (1.0, None), (0.5, None), (None, None)]:
        Ray.cpus = cpus
        assert assigned_threads() == threads, cpus

    def driver():
        raise AssertionError("This method is only available when the process is a worker. Current mode: 0")

    Ray.get_assigned_resources = staticmethod(driver)
    assert assigned_threads() is None
    monkeypatch.setitem(sys.modules, "ray", None)
    assert assigned_threads() is None


def test_options_that_do_not_fit_are_refused_before_anything_runs(data):
    pipeline = data.map("image", fs.decode_image(), fs.resize((8, 8)))
    with pytest.raises(fs.ConfigError, match="rank must be below world_size=2; got 2"):
        pipeline.batch(2).loader(2, 2)
    with pytest.raises(fs.ConfigError, match=r"rank must be an integer >= 0; got -1"):
        pipeline.batch(2).loader(-1, 2)
    with pytest.raises(fs.ConfigError, match="must be an integer >= "):
        pipeline.batch(2.5)
    with pytest.raises(fs.ConfigError, match="threads"):
        pipeline.options(threads=0)
    with pytest.raises(fs.ConfigError, match="epoch"):
        pipeline.batch(2).loader().set_epoch(-1)
    with pytest.raises(fs.ConfigError, match="only one of batch_size"):
        pipeline.batch(2, global_batch_size=4)
    with pytest.raises(fs.ConfigError, match="needs one of batch_size"):
        pipeline.batch()
    with pytest.raises(fs.ConfigError, match="tail"):
        pipeline.batch(2, tail="short")
    with pytest.raises(fs.ConfigError, match="output"):
        pipeline.batch(2).loader(output="tensor")
    with pytest.raises(fs.ConfigError, match="slots"):
        pipeline.batch(2).options(slots=1)
    with pytest.raises(fs.ConfigError, match="budget"):
        next(iter(pipeline.batch(100).options(budget_bytes=1000).loader()))
    with pytest.raises(fs.ConfigError, match=r"(?s)nothing.*label"):
        data.filter("nothing > 3")
    with pytest.raises(fs.ConfigError, match="two maps"):
        pipeline.map("image", fs.decode_image(), fs.resize((8, 8))).batch(2).loader()


def test_two_views_of_an_image_differ_unless_their_keys_are_equal(data):
    ops = fs.decode_image(), fs.random_resized_crop(16), fs.horizontal_flip(0.5)

    def views(**keys):
        pipeline = data.map("image", *ops, key=keys.get("image"))
        pipeline = pipeline.map("image", *ops, output="second", key=keys.get("second"))
        batch = next(iter(pickle.loads(pickle.dumps(pipeline)).batch(20).loader(output="numpy")))
        return batch["image"], batch["second"]

    first, second = views()
    single = next(iter(data.map("image", *ops).batch(20).loader(output="numpy")))["image"]
    assert np.array_equal(first, single), "the first map keeps its pixels"
    assert not any(np.array_equal(*pair) for pair in zip(first, second, strict=True))
    first, second = views(image="pair", second="pair")
    assert np.array_equal(first, second)
    for wrong in "", 3:
        with pytest.raises(fs.ConfigError, match="key must be a non-empty string; got"):
            data.map("image", *ops, key=wrong)


def test_pipelines_pickle_and_loaders_say_why_not(data):
    pipeline = (
        data.filter("label >= 10")
        .map("image", fs.decode_image(), fs.random_resized_crop(16), output="crop", pad_value=1)
        .map_python(len)
        .shuffle(seed=9, window=50, lanes=2)
        .batch(global_batch_size=12, tail="pad")
        .on_error("skip", max_fraction=0.5)
        .options(threads=1, slots=5)
    )
    again = pickle.loads(pickle.dumps(pipeline))
    assert repr(again) == repr(pipeline)
    assert list(again.loader()) == list(pipeline.loader()) == [5] * 16
    assert again.loader().state_dict() == pipeline.loader().state_dict()
    assert repr(copy.deepcopy(pipeline)) == repr(pipeline)
    chosen = pickle.loads(pickle.dumps(fs.Dataset(data.uri, columns=["label"])))
    assert list(next(iter(chosen.batch(2).loader()))) == ["label"]
    with pytest.raises(TypeError, match="pickle the Pipeline"):
        pickle.dumps(pipeline.loader())


def test_two_loaders_in_two_threads(data):
    pipeline = data.map("image", fs.decode_image(), fs.random_resized_crop(16)).shuffle(seed=2).batch(10)
    alone = [b["image"].numpy().copy() for b in pipeline.loader()]
    results: dict[int, list[np.ndarray]] = {}

    def run(number):
        with pipeline.loader() as loader:
            results[number] = [b["image"].numpy().copy() for b in loader]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number in range(2):
        assert all((a == b).all() for a, b in zip(alone, results[number], strict=True))


def test_other_threads_run_while_one_waits(data):
    """All slots are held, so next() waits. Meanwhile the interpreter's lock is free, and stats() answers."""
    loader = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(2).options(slots=2).loader()
    batches = iter(loader)
    held = [next(batches), next(batches)]
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(next(batches)))
    thread.start()
    deadline = time.monotonic() + 30
    while loader.stats()["held_batches"] < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert thread.is_alive()
    held.clear()
    thread.join(30)
    assert len(got) == 1


def test_a_dropped_loader_gives_its_memory_back(data):
    """Each loader holds 4 slots of 19 MB while it lives, so 15 leaked ones would take more than a gigabyte."""

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    pipeline = data.map("image", fs.decode_image(), fs.resize((320, 320))).batch(64).options(threads=2)
    loader = pipeline.loader()
    next(iter(loader))
    del loader
    before = resident()
    for _ in range(15):
        loader = pipeline.loader()
        next(iter(loader))
        del loader
    assert resident() - before < 400e6


def test_a_bad_sample_is_named_or_skipped_in_step(tmp_path, imagenet):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(next(imagenet.rglob("*.parquet"))).slice(0, 40)
    pictures = table.column("image").to_pylist()
    pictures[13]["bytes"] = pictures[13]["bytes"][:100]
    broken = table.set_column(table.schema.get_field_index("image"), "image", pyarrow.array(pictures))
    pyarrow.parquet.write_table(broken, tmp_path / "train.parquet")
    pipeline = fs.Dataset(tmp_path).map("image", fs.decode_image(), fs.resize((8, 8))).batch(5)
    with pytest.raises(fs.SampleError, match="row 13"):
        list(map(id, pipeline.loader()))
    loaders = [pipeline.on_error("skip", max_fraction=0.1).loader(rank, 2) for rank in range(2)]
    valid = [[b.valid.tolist() for b in loader] for loader in loaders]
    assert len(valid[0]) == len(valid[1]) == 4
    assert sum(not flag for rank in valid for batch in rank for flag in batch) == 1
    reports = [loader.skip_report() for loader in loaders]
    assert sum(report["count"] for report in reports) == 1
    skipped = [sample for report in reports for sample in report["samples"]]
    assert skipped[0]["sample_id"] == 13
    assert "row 13" in skipped[0]["reason"]
