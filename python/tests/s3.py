"""The S3 server of the Rust tests, for tests of Python."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = "feedstock-test-s3"
PATIENCE_S = 900.0  # enough to build it on an overloaded machine


def _built() -> Path:
    """Returns the server, and builds it if it is not up to date."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    if not target.exists():  # the choice of scripts/common.sh
        target = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "feedstock", "target")
    # With the features of all tests. Otherwise the crates that it shares with them would be built again.
    features = ["--workspace", "--exclude", "feedstock-python", "--all-features"]
    build = ["cargo", "build", "--quiet", "--locked", *features, "--bin", PROGRAM]
    subprocess.run([*build, "--target-dir", str(target)], cwd=ROOT, check=True, timeout=PATIENCE_S)
    return target / "debug" / PROGRAM


@contextlib.contextmanager
def serve(root: Path) -> Iterator[None]:
    """Serves the folders of ``root`` as buckets. Processes that start meanwhile find it by their environment."""
    server = subprocess.Popen([_built(), root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", server.stdout.readline().strip())
            patch.setenv("AWS_REGION", "us-east-1")
            patch.setenv("AWS_ACCESS_KEY_ID", "feedstock-test-access")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "feedstock-test-SECRET-4f7a")
            yield
    finally:
        server.kill()
        server.wait()
