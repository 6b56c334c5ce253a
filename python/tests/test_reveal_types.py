"""Type checkers know what loaders yield."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

import feedstock as fs

SNIPPET = """
import feedstock as fs

pipeline = fs.Dataset("x").filter("label < 3").map("image", fs.decode_image()).shuffle(seed=1).batch(4)
options: fs.LoaderOptions = {"output": "torch"}


def count(batch: fs.Batch) -> int:
    return batch.num_rows


def given(loader: fs.Loader, unknown: fs.Pipeline) -> None:
    reveal_type(next(iter(loader)))  # Any
    reveal_type(next(iter(unknown.map_python(count).loader())))  # int


reveal_type(pipeline.loader())  # Loader[Batch]
reveal_type(pipeline.options(threads=2).epochs(3).on_error("skip").loader(1, 2, device="cuda"))  # Loader[Batch]
reveal_type(pipeline.loader(output="numpy"))  # Loader[dict[str, Any]]
reveal_type(pipeline.loader(output="torch", restart=True))  # Loader[dict[str, Any]]
reveal_type(pipeline.loader(**options))  # Loader[Any]
reveal_type([batch for batch in pipeline.loader()])  # list[Batch]
reveal_type(list(pipeline.loader(output="numpy")))  # list[dict[str, Any]]
reveal_type(pipeline.loader().peek())  # Batch | None
reveal_type(pipeline.map_python(count).batch(3).loader(output="batch"))  # Loader[int]
reveal_type(fs.Dataset("x")[0])  # dict[str, Any]
reveal_type(pipeline.loader().where(3)[0].step)  # int
given(pipeline.loader(), pipeline)
reveal_type(fs.from_items([1]).batch(1).loader(output="numpy"))  # Loader[dict[str, Any]]
reveal_type(fs.from_torch([1]).shuffle(seed=1).batch(1).loader(output="numpy"))  # Loader[ItemBatch]
pipeline.loader(otput="numpy")  # error
pipeline.loader(output="nmpy")  # error
"""

TORCH = """
import feedstock as fs
import feedstock.torch

pipeline = fs.Dataset("x").batch(4)
reveal_type(feedstock.torch.loader(pipeline))  # Loader[dict[str, Any]]
reveal_type(feedstock.torch.loader(pipeline, output="batch"))  # Loader[Batch]
reveal_type(feedstock.torch.loader(pipeline.map_python(len)))  # Loader[int]
"""


def checked(folder: Path, snippet: str, *command: str) -> dict[int, str]:
    """Returns the first message of a type checker for each line of a snippet."""
    (folder / "snippet.py").write_text(snippet)
    package = str(Path(fs.__file__).parents[1])
    is_installed = package in site.getsitepackages()  # mypy refuses these in MYPYPATH, and reads them anyway
    paths = {
        "PYTHONPATH": package,
        "MYPYPATH": "" if is_installed else package,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [*command, "snippet.py"],
        cwd=folder,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = re.findall(r"snippet\.py:(\d+):(?:\d+)?[ -:]*(.*)", done.stdout)
    assert found, done.stdout + done.stderr
    return {int(line): message for line, message in reversed(found)}


def compare(messages: dict[int, str], snippet: str) -> None:
    for number, line in enumerate(snippet.splitlines(), 1):
        code, _, expected = line.partition("  # ")
        if expected == "error":
            assert messages[number].startswith("error"), (code, messages.get(number))
        elif expected:
            revealed = re.sub(r"\b(?:feedstock|builtins|typing)\.(?:\w+\.)*", "", messages[number])
            assert revealed.rstrip().endswith(f'"{expected}"'), (code, messages[number])
        else:
            assert number not in messages, (code, messages[number])


@pytest.mark.parametrize("snippet", [SNIPPET, TORCH], ids=["loader", "torch"])
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_types(tmp_path: Path, checker: str, snippet: str) -> None:
    if snippet is TORCH:
        pytest.importorskip("torch")
    command = ["pyright"] if checker == "pyright" else ["mypy", "--strict", "--no-error-summary"]
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{checker} is not installed")
    compare(checked(tmp_path, snippet, program, *command[1:]), snippet)
