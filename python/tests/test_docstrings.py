"""The examples in docstrings run and print what they state."""

from __future__ import annotations

import doctest
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synthetic import synth

import feedstock as fs

MODULES = ("feedstock", "feedstock.torch", "feedstock.ray")

#: Entry points without which the documentation is incomplete.
EXPECTED = {
    "Dataset",
    "Dataset.batch",
    "Dataset.concat",
    "Dataset.map",
    "Dataset.mix",
    "Fleet",
    "Loader",
    "Loader.state_dict",
    "Pipeline.batch",
    "Pipeline.loader",
    "Pipeline.map",
    "Pipeline.on_error",
    "Pipeline.options",
    "loader",
    "mixup_cutmix",
}


def _documented() -> Iterator[tuple[str, str]]:
    """Yields (name, docstring) of public functions, classes and methods that have an example."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            try:
                value = getattr(module, name)
            except ImportError:  # a framework is not installed
                continue
            yield name, inspect.getdoc(value) or ""
            if inspect.isclass(value) and value.__module__.startswith("feedstock"):
                for member in dir(value):
                    inside = inspect.getattr_static(value, member)
                    inside = getattr(inside, "__func__", getattr(inside, "fget", inside))
                    source = getattr(inside, "__module__", None) or ""
                    if not member.startswith("_") and source.startswith("feedstock"):
                        yield f"{name}.{member}", inspect.getdoc(inside) or ""


EXAMPLES = {name: text for name, text in _documented() if ">>>" in text}


def test_the_main_entry_points_have_examples():
    missing = EXPECTED - EXAMPLES.keys()
    for framework, name in (("torch", "loader"), ("ray", "Fleet")):
        if importlib.util.find_spec(framework) is None:
            missing.discard(name)
    assert not missing


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the names that examples use: ``fs``, and the folders ``images``, ``damaged``, and the empty ``made``."""
    images, damaged, made = (tmp_path_factory.mktemp(name) for name in ("images", "damaged", "made"))
    synth("imagenet", images, "--samples", 8, "--seed", 1, "--layout", "parquet")
    synth("imagenet", damaged, "--samples", 8, "--seed", 1, "--layout", "folder")
    first = min(path for path in Path(damaged).rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    first.write_bytes(b"not an image")
    return {"fs": fs, "images": str(images), "damaged": str(damaged), "made": str(made)}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_example(name: str, names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], dict(names), name, None, 0)
    report: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    try:
        result = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=report.append)
    finally:
        # A fleet starts Ray. Later tests start clusters in this process, which must not find another one.
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()
    assert result.attempted > 0
    assert result.failed == 0, "".join(report)
