"""nginx with the profile of a real object store (testkit/nginx): its draws are the library's, and reads survive it."""

from __future__ import annotations

import http.client
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import debian
import pytest

import feedstock as fs

SERVE = Path(__file__).parents[2] / "testkit" / "nginx" / "serve"


@pytest.fixture(scope="module", autouse=True)
def _nginx() -> None:
    debian.install("nginx with Lua", ["nginx", "libnginx-mod-http-lua"], ["nginx"])
    if not Path("/usr/lib/nginx/modules/ngx_http_lua_module.so").exists():
        pytest.skip("nginx has no Lua module here")


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def serving(folder: Path, profile: str = "s3", seed: int = 1, limit: int = 5500) -> Iterator[int]:
    port = free_port()
    command = [str(SERVE), str(folder), str(port), profile, str(seed), str(limit)]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert server.poll() is None, server.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=20)
        assert server.stderr is not None
        server.stderr.close()


def delays(port: int, requests: int) -> list[tuple[int, float]]:
    """Returns, for each request, the delay in µs that the server drew, and the seconds that it took."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    found = []
    for _ in range(requests):
        begun = time.perf_counter()
        connection.request("GET", "/a")
        response = connection.getresponse()
        took = time.perf_counter() - begun
        assert response.read() == b"x"
        found.append((int(response.headers["X-First-Byte-Microseconds"]), took))
    return found


def test_delays_are_those_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with serving(tmp_path) as port:
        found = delays(port, 200)
    assert found[0][0] == 19_144  # as `fates_depend_on_seed_and_number_alone` pins in store_profile.rs
    assert 22e-3 < median(took for _, took in found) < 34e-3
    assert all(took > drawn / 1e6 - 2e-3 for drawn, took in found)
    with serving(tmp_path, "far", seed=3) as port:
        assert 0.1 < median(took for _, took in delays(port, 21)) < 0.25


def test_a_limit_is_shared_and_answered_by_503(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with serving(tmp_path, "express", limit=10) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        answers = []
        for _ in range(40):
            connection.request("GET", "/a")
            response = connection.getresponse()
            answers.append((response.status, response.read()))
    assert [status for status, _ in answers[:10]] == [200] * 10  # one second's worth
    refused = [body for status, body in answers if status == 503]
    assert refused
    assert all(b"<Code>SlowDown</Code>" in body for body in refused)


def test_an_epoch_arrives_exactly_once(imagenet: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(imagenet, root)
    files = sorted(path.relative_to(root) for path in root.rglob("*.parquet"))
    with serving(root, seed=5) as port:
        assert len(files) == 1
        data = fs.Dataset(f"http://127.0.0.1:{port}/{files[0]}")
        pipeline = (
            data.map("image", fs.decode_image(), fs.resize((32, 32))).shuffle(seed=3).batch(20).epochs(1)
        )
        loader = pipeline.loader()
        assert sum(batch.num_rows for batch in loader) == len(data)
        ledger = loader.ledger()
    assert ledger is not None
    assert ledger["exact"]


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    done = subprocess.run([SERVE, tmp_path, "1", "mars"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "serve: the profile must be s3, express or far; got mars\n")
