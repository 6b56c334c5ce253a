"""Programs of Debian that tests install when they need them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest


def install(what: str, packages: Sequence[str], programs: Sequence[str]) -> None:
    """Installs ``packages`` unless all ``programs`` are there; skips the test if that is not possible."""
    if all(shutil.which(program) for program in programs):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        pytest.skip(f"{what} is not installed, and installing it needs apt-get and root")
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    # RUNLEVEL: the packages start no daemons.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for attempt in (command, ["apt-get", "update", "-qq"], command):
        done = subprocess.run(attempt, env=environment, capture_output=True, text=True, timeout=300)
        if attempt is command and done.returncode == 0:
            return
    pytest.skip(f"{what} cannot be installed: {done.stderr}")
