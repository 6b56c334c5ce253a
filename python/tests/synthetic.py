"""Sample data, made by the package's command."""

from __future__ import annotations

import subprocess
import sys


def synth(*arguments: object) -> None:
    """Runs `feedstock synth` with `arguments`."""
    command = [sys.executable, "-m", "feedstock", "synth", *map(str, arguments), "--quiet"]
    subprocess.run(command, check=True, timeout=300)
