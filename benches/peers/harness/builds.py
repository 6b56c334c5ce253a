"""Identifies what was measured: the package, its build and sources, the programs of this benchmark, and the
machine."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.stored import processor

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parents[1]

# Files that affect all figures. In addition, each figure depends on its contender's own program. Reports may
# change without affecting figures.
MEASURING = (
    "account.py",
    "agree.py",
    "bench.py",
    "ceilings.py",
    "contest.py",
    "data.py",
    "environments.py",
    "plan.py",
)

RELEASE = "release"

# The part of a contender's file that documents its settings' sources, and does not run.
SAID = "guidance"


def fingerprint(wheel: Path) -> dict[str, Any]:
    """Returns what ``run`` wrote next to the wheel about its build: commit, dirty, sources (their hash),
    profile."""
    told: dict[str, Any] = json.loads(wheel.with_name(f"{wheel.name}.build.json").read_text())
    profile = str(told["profile"])
    return {
        "commit": told["commit"],
        "dirty": told["dirty"],
        "profile": profile,
        "profile_settings": profile_settings((ROOT / "Cargo.toml").read_text(), profile),
        "sources": told["sources"],
        "programs": programs_hash(PROGRAMS / "harness"),
        "s3_server": sources_hash(ROOT / "testkit"),
        "cpu": processor(),
        "kernel": platform.release(),
    }


def content_hash(wheel: Path) -> str:
    """Returns a hash of the files that the wheel installs. A rebuild from the same sources changes times and
    the bill of materials, but not this hash."""
    found = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.endswith("/RECORD") and "/sboms/" not in name:
                found.update(f"{name}\n".encode() + hashlib.sha256(archive.read(name)).digest())
    return found.hexdigest()[:16]


def sources_hash(package: Path) -> str:
    """Returns a hash of a Rust package in this checkout: results of other sources are measured again."""
    sources = sorted([package / "Cargo.toml", *package.glob("src/**/*.rs")])
    return _hash({str(path.relative_to(package)): path.read_bytes() for path in sources})


def programs_hash(folder: Path) -> str:
    return _hash({name: (folder / name).read_bytes() for name in MEASURING})


def program_hash(peer: str, environment: str, folder: Path = PROGRAMS) -> str:
    """Returns a hash of one contender's file, the contenders' files that it imports, as far as they run, and
    its requirements."""
    found: set[str] = set()
    left = [peer]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            text = (folder / "contenders" / f"{name}.py").read_text()
            for module, names in re.findall(
                r"^\s*from contenders(?:\.(\w+))? import ([\w, ]*)", text, re.MULTILINE
            ):
                left += [module] if module else names.replace(" ", "").split(",")
    programs = [folder / "contenders" / f"{name}.py" for name in sorted(found)]
    parts = {path.name: _as_it_runs(path.read_text()).encode() for path in programs}
    requirements = folder / "requirements" / f"{environment}.txt"
    return _hash(parts | {requirements.name: requirements.read_bytes()})


def _as_it_runs(text: str) -> str:
    """Returns a program without comments, docstrings, and the documentation of its settings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != SAID]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            node.body = [line for line in node.body if not _says(line)]
    return ast.unparse(tree)


def _says(line: ast.stmt) -> bool:
    return isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [SAID.upper()]


def _hash(parts: Mapping[str, bytes]) -> str:
    found = hashlib.sha256()
    for name, content in parts.items():
        found.update(f"{name}\n".encode() + content)
    return found.hexdigest()[:16]


def profile_settings(manifest: str, profile: str) -> str:
    """Returns the lines of Cargo.toml under ``[profile.NAME]``."""
    section = re.search(rf"^\[profile\.{re.escape(profile)}\]\n((?:(?!\[).*\n)*)", manifest, re.MULTILINE)
    lines = section[1].splitlines() if section else []
    kept = [line.split("#", 1)[0].strip() for line in lines]
    return ", ".join(line for line in kept if line) or "Cargo's defaults"
