"""The process around a loader: Ctrl-C, fork, exit, memory."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest

import feedstock as fs


def run(code: str, *arguments: object, timeout: float = 120, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


@pytest.mark.parametrize("functions", ["", ".map_python(lambda batch: batch, num_threads=2)"])
def test_ctrl_c_is_answered_soon(imagenet, functions):
    code = f"""
        import signal, sys, time, feedstock as fs
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
        pipeline = fs.Dataset(sys.argv[1]).columns(["label"]).batch(2).options(held_bytes=0){functions}
        print("waiting", flush=True)
        try:
            while True:
                hoard = []
                try:
                    for batch in pipeline.loader():
                        hoard.append(batch)  # waits for a second once all slots are held
                except fs.ConfigError:
                    pass
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(imagenet)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(1.0)  # until it waits; a shorter sleep makes the test weaker, not wrong
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    answered, _ = process.communicate(timeout=60)
    assert float(answered) - sent < 5.0  # one clock for all processes
    assert process.returncode == 0


@pytest.mark.parametrize("functions", ["", ".map_python(dict)"])
def test_torch_is_imported_while_batches_are_made(imagenet, functions):
    code = f"""
        import json, sys, time, feedstock as fs

        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name == "torch":
                    until = time.monotonic() + 60
                    while not (now := loader.stats().get("ready_batches")) and time.monotonic() < until:
                        time.sleep(0.01)
                    ready.append(now)
                    if len(ready) == 1:
                        raise OSError("libcudart.so: no such file")

        ready, errors = [], []
        sys.meta_path.insert(0, Watch())
        pipeline = fs.Dataset(sys.argv[1]).columns(["label"]).batch(20){functions}
        with pipeline.loader(output="torch") as loader:
            assert "torch" not in sys.modules
            try:
                next(iter(loader))
            except fs.ConfigError as error:
                errors.append(str(error))
            place = loader.position
            samples = next(iter(loader))["sample_ids"].tolist()
        print(json.dumps([ready, errors, place, samples]))
    """
    done = run(code, imagenet)
    assert done.returncode == 0, done.stderr
    ready, [error], place, samples = json.loads(done.stdout)
    assert len(ready) == 2
    assert all(ready)
    assert (
        error == "torch tensors need PyTorch, which cannot be imported: OSError: libcudart.so: no such file"
    )
    assert (place, samples) == (0, list(range(20)))


def test_ctrl_c_is_answered_while_a_data_set_opens():
    code = """
        import signal, sys, time, feedstock as fs
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("waiting", flush=True)
        try:
            fs.Dataset("s3://bucket/data", storage={"endpoint": sys.argv[1], "anonymous": True, "aws_allow_http": True})
        except KeyboardInterrupt:
            print(time.monotonic(), flush=True)
    """
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and sends nothing
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", textwrap.dedent(code), endpoint]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        silent.accept()  # it sends a request
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        answered, _ = process.communicate(timeout=60)
    assert float(answered) - sent < 5.0
    assert process.returncode == 0


def test_a_forked_child_is_told_what_to_do_and_ends(imagenet):
    code = """
        import os, sys, feedstock as fs
        dataset = fs.Dataset(sys.argv[1])
        pipeline = dataset.map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        loader = pipeline.loader()
        batches = iter(loader)
        next(batches)
        child = os.fork()
        if child == 0:
            for use in (lambda: next(batches), lambda: pipeline.loader(), lambda: dataset.filter("label > 1"),
                        lambda: loader.state_dict()):
                try:
                    use()
                    print("no error", flush=True)
                except fs.ForkError as error:
                    assert "fork" in str(error) and "spawn" in str(error), error
            del loader, batches, pipeline, dataset
            fresh = fs.Dataset(sys.argv[1]).columns(["label"]).batch(100).loader()
            print("child", sum(batch.num_rows for batch in fresh), flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        print("parent", status, sum(batch.num_rows for batch in batches), flush=True)
    """
    done = run(code, imagenet)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["child 200", "parent 0 196"]


def test_a_pipeline_travels_to_a_spawned_process(imagenet):
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    pipeline = fs.Dataset(imagenet).columns(["label"]).shuffle(seed=1).batch(50)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        there = pool.submit(_ids, pipeline).result(timeout=120)
    assert there == _ids(pipeline)


def _ids(pipeline):
    return [sample for batch in pipeline.loader() for sample in batch.sample_ids.tolist()]


def test_a_process_with_open_loaders_ends_cleanly(imagenet):
    code = """
        import sys, threading, feedstock as fs
        pipeline = fs.Dataset(sys.argv[1]).map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        keep = [iter(pipeline.loader()), iter(pipeline.map_python(lambda b: b, num_threads=2).loader())]
        held = [next(batches) for batches in keep]
        print("done")
    """
    done = run(code, imagenet, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_no_file_stays_open(imagenet):
    def files():
        links = []
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                links.append(os.readlink(f"/proc/self/fd/{fd}"))
        return Counter(links)

    def use():
        pipeline = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.resize((8, 8))).batch(4)
        with pipeline.loader() as loader:
            next(iter(loader))

    use()
    before = files()
    for _ in range(3):
        use()
    deadline = time.monotonic() + 10
    while files() - before and time.monotonic() < deadline:
        time.sleep(0.05)  # threads that end close theirs
    assert not files() - before


def test_errors_are_a_small_tree():
    assert issubclass(fs.ConfigError, ValueError)
    assert issubclass(fs.DeniedError, PermissionError)
    assert issubclass(fs.GoneError, FileNotFoundError)
    for error in (
        fs.ConfigError,
        fs.SampleError,
        fs.RetryableError,
        fs.DeniedError,
        fs.GoneError,
        fs.InternalError,
    ):
        assert issubclass(error, fs.FeedstockError)
    with pytest.raises(fs.GoneError, match="/no/such/place"):
        fs.Dataset("/no/such/place")
    with pytest.raises(ValueError, match="durations"):
        fs.Dataset("/", durations="maybe")
    with pytest.raises(fs.ConfigError, match="aws_no_such_key"):
        fs.Dataset("s3://bucket/x", storage={"aws_no_such_key": 1})


def test_storage_settings_have_their_types(imagenet):
    assert len(fs.Dataset(imagenet, storage={"hedge": False, "readers": 64})) == 200
    with pytest.raises(fs.ConfigError, match="hedge must be True or False; got 'no'"):
        fs.Dataset(imagenet, storage={"hedge": "no"})
    for wrong in (0, "many"):
        with pytest.raises(fs.ConfigError, match="readers must be an integer >= 1; got"):
            fs.Dataset(imagenet, storage={"readers": wrong})


@pytest.mark.skipif(
    not hasattr(fs._feedstock, "panic"), reason="the wheel was built without the feature test-hooks"
)
def test_a_panic_is_an_internal_error():
    with pytest.raises(fs.InternalError, match="defect in feedstock.*on purpose"):
        fs._feedstock.panic("on purpose")


def test_what_the_library_says_is_logged(imagenet, caplog):
    """Changed ops are not an error, but logged."""
    data = fs.Dataset(imagenet)
    state = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(2).loader().state_dict()
    with caplog.at_level("WARNING", logger="feedstock"):
        data.map("image", fs.decode_image(), fs.resize((9, 9))).batch(2).loader().load_state_dict(state)
    assert [record.name for record in caplog.records] == ["feedstock"]
    assert "ops differ" in caplog.text


def test_a_failing_logger_undoes_nothing(imagenet, monkeypatch):
    """The call that logs succeeds, even if its message fails."""

    class Broken(logging.Handler):
        def emit(self, record):
            raise ZeroDivisionError("mine")

    data, logger, broken = fs.Dataset(imagenet), logging.getLogger("feedstock"), Broken()
    loader = data.map("image", fs.decode_image(), fs.resize((8, 8))).batch(50).loader()
    next(iter(loader))
    other = data.map("image", fs.decode_image(), fs.resize((9, 9))).batch(50).loader()
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    logger.addHandler(broken)
    try:
        other.load_state_dict(loader.state_dict())
    finally:
        logger.removeHandler(broken)
    assert [event.exc_type for event in told] == [ZeroDivisionError]
    assert other.position == 50


def test_a_pickled_data_set_is_found_from_another_folder(imagenet, tmp_path, monkeypatch):
    monkeypatch.chdir(imagenet.parent)
    text = pickle.dumps(fs.Dataset(imagenet.name).columns(["label"]).batch(4))
    monkeypatch.chdir(tmp_path)
    assert len(pickle.loads(text).loader()) == 50


def test_opening_tells_how_far_it_is(imagenet):
    told = []
    fs.Dataset(imagenet, catalog="memory", progress=lambda *now: told.append(now))
    assert told
    stage, done, total = told[-1]
    assert isinstance(stage, str)
    assert isinstance(done, int)
    assert total is None or isinstance(total, int)


def test_a_stored_catalog_is_listed_or_rebuilt_on_request(imagenet, tmp_path):
    def stages(**options):
        reported = set()
        dataset = fs.Dataset(
            imagenet, catalog=tmp_path / "catalogs", progress=lambda *now: reported.add(now[0]), **options
        )
        assert len(pickle.loads(pickle.dumps(dataset))) == len(dataset)
        return reported - {"listing"}  # a stored catalog is compared with it

    assert stages()
    assert not stages()
    assert not stages(check="list")
    assert stages(rebuild=True)
    with pytest.raises(fs.ConfigError, match="check must be 'auto' or 'list'; got 'never'"):
        fs.Dataset(imagenet, check="never")
    with pytest.raises(fs.ConfigError, match="rebuild must be True or False; got 'yes'"):
        fs.Dataset(imagenet, rebuild="yes")


def test_the_command_comes_with_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "feedstock", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"feedstock {fs.__version__}\n"
    failed = subprocess.run(
        [sys.executable, "-m", "feedstock", "inspect", "/no/such"], capture_output=True, text=True
    )
    assert failed.returncode == 4
    assert "/no/such" in failed.stderr
