"""Counts the modules of the package that import each other in circles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import feedstock

PACKAGE = Path(feedstock.__file__).parent

#: Modules in circles. The numbers may only fall: a reader must read a circle's modules like one module.
AT_RUN_TIME = 0  # imports inside functions included
WITH_TYPES = 4  # imports for type checkers included: a loader has its pipeline, and a pipeline its data set

#: Modules that work without any framework. They must not import those that adapt one.
ADAPTERS = ("adaptdl", "adaptive", "horovod", "huggingface", "lightning", "ray", "torch")

Graph = dict[str, set[str]]


def _graph(sources: Mapping[str, ast.Module], *, types: bool) -> Graph:
    """Returns the imports of every module. ``sources`` is by dotted name; packages end in ``.__init__``."""
    return {
        name: {found for found in _imports(name, tree, sources, types=types) if found != name}
        for name, tree in sources.items()
    }


def _imports(name: str, tree: ast.Module, known: Mapping[str, ast.Module], *, types: bool) -> Iterator[str]:
    package = name.split(".")[:-1]
    for node in _statements(tree, types=types):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(alias.name, known)
            continue
        parts = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*parts, *([node.module] if node.module else [])])
        for alias in node.names:
            yield from _module(f"{base}.{alias.name}", known) or _module(base, known)


def _module(name: str, known: Mapping[str, ast.Module]) -> list[str]:
    return [found for found in (name, f"{name}.__init__") if found in known]


def _statements(tree: ast.AST, *, types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for other in node.orelse:
                yield from _statements(ast.Module([other], []), types=types)
        else:
            yield from _statements(node, types=types)


def _circles(graph: Graph) -> list[set[str]]:
    """Returns the sets of modules that reach each other."""
    reached = {name: _reached(graph, name) for name in graph}
    found = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return [set(circle) for circle in found if circle]


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
    return seen


def _sources() -> dict[str, ast.Module]:
    return {
        ".".join(("feedstock", *path.relative_to(PACKAGE).with_suffix("").parts)): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py*")
        if path.suffix in (".py", ".pyi")  # the native module has a .pyi
    }


def test_modules_do_not_import_each_other_in_circles():
    for types, allowed in ((False, AT_RUN_TIME), (True, WITH_TYPES)):
        circles = _circles(_graph(_sources(), types=types))
        assert sum(map(len, circles)) == allowed, (f"imports for types: {types}", circles)


def test_the_core_does_not_import_the_adapters():
    for name, imported in _graph(_sources(), types=True).items():
        if name.split(".")[1] not in ADAPTERS:
            adapters = [other for other in imported if other.split(".")[1] in ADAPTERS]
            assert not adapters, (name, adapters)


def test_importing_the_package_imports_no_framework():
    script = "import sys, feedstock; print(sorted({'torch', 'ray', 'lightning', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_circles_are_found_through_packages_functions_and_relative_imports():
    sources = {
        "p.__init__": "from p.a import one",
        "p.a": "def f():\n    from p import b",
        "p.b": "from .c.d import two",
        "p.c.__init__": "",
        "p.c.d": "from ... import outside\nfrom .. import a",
        "p.e": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import f",
        "p.f": "import p.e",
    }
    trees = {name: ast.parse(text) for name, text in sources.items()}
    assert _circles(_graph(trees, types=False)) == [{"p.a", "p.b", "p.c.d"}]
    assert sorted(map(len, _circles(_graph(trees, types=True)))) == [2, 3]
