"""Each peer's own virtual environment, made by uv from its requirements; uv shares files among them on disk."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness import builds
from harness.contest import last_line

PROGRAMS = Path(__file__).parents[1]
REQUIREMENTS = PROGRAMS / "requirements"

INSTALLED = """
import importlib.metadata, json
found = importlib.metadata.distributions()
print(json.dumps({one.metadata["Name"].lower().replace("_", "-"): one.version for one in found}))
"""


@dataclass
class Environment:
    """A peer's environment, or why it has none."""

    name: str
    python: Path
    error: str | None = None

    def installed(self) -> dict[str, str]:
        """Returns the version of every package in it."""
        said = subprocess.run([self.python, "-c", INSTALLED], check=True, capture_output=True, text=True)
        found: dict[str, str] = json.loads(said.stdout)
        return dict(sorted(found.items()))

    def asked_for(self) -> list[str]:
        """Returns the packages that its requirements name, and this checkout's own if it belongs in."""
        text = (REQUIREMENTS / f"{self.name}.txt").read_text()
        names = re.findall(r"^[\w-]+", text, re.MULTILINE)
        return [*(["feedstock"] if uses_feedstock(text) else []), *(name.replace("_", "-") for name in names)]


def install(name: str, folder: Path, wheel: Path) -> Environment:
    """Creates the environment ``name`` under ``folder``, unless it exists with these requirements."""
    place = folder / name
    environment = Environment(name, place / "bin" / "python")
    wanted = REQUIREMENTS / f"{name}.txt"
    text, ours = wanted.read_text(), ""
    if uses_feedstock(text):
        ours = f"# {wheel.name} {builds.content_hash(wheel)}\n"
    done = place / "installed.txt"
    found = done.read_text() if done.is_file() else ""
    if found == text + ours:
        return environment
    print(f"installing {name}", flush=True)
    log = folder / f"{name}.log"
    python = ["--python", str(environment.python)]
    steps = [["pip", "install", "-q", *python, "--no-deps", "--reinstall", str(wheel)]]
    if not ours or not found.startswith(text):  # other packages that it needs are not installed
        shutil.rmtree(place, ignore_errors=True)
        steps = [
            ["venv", "-q", "--python", sys.executable, str(place)],
            ["pip", "install", "-q", *python, "-r", str(wanted), *([str(wheel)] if ours else [])],
        ]
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        for step in steps:
            ended = subprocess.run([uv(), *step], stdout=output, stderr=subprocess.STDOUT)
            if ended.returncode:
                environment.error = last_line(log.read_text(errors="replace"))
                return environment
    done.write_text(text + ours)
    return environment


def uses_feedstock(requirements: str) -> bool:
    """Returns whether this checkout's package belongs in: a comment in the requirements marks it."""
    return "# with feedstock" in requirements


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else "uv"


def for_children(cache: Path) -> dict[str, str]:
    """Returns the environment variables of all contenders: none of the user's own Python, feedstock's caches
    in one place, no usage reports."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "VIRTUAL_ENV", "AWS_"))
    }
    return {
        **kept,
        "PYTHONPATH": str(PROGRAMS),
        "FEEDSTOCK_CACHE": str(cache / "feedstock"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_DATASETS_CACHE": str(cache / "huggingface"),
        "HF_HOME": str(cache / "huggingface"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "DAFT_ANALYTICS_ENABLED": "0",
        "DO_NOT_TRACK": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "NO_ALBUMENTATIONS_UPDATE": "1",
    }
