"""The wheel, installed by pip into a clean virtual environment, as by a user."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEEL = os.environ.get("FEEDSTOCK_WHEEL")

pytestmark = pytest.mark.skipif(not WHEEL, reason="FEEDSTOCK_WHEEL does not name a wheel (scripts/test does)")


def test_a_clean_environment_streams_batches_with_nothing_but_the_wheel(tmp_path, imagenet):
    environment = tmp_path / "environment"
    # Other tests' child processes find the package by PYTHONPATH. Here, pip would consider it installed.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, env=clean)
    binaries = environment / "bin"
    subprocess.run([binaries / "pip", "install", "-q", str(WHEEL)], check=True, timeout=300, env=clean)
    told = subprocess.run(
        [binaries / "feedstock", "--version"], check=True, capture_output=True, text=True, env=clean
    )
    assert told.stdout.startswith("feedstock ")
    script = """
import sys, feedstock as fs
pipeline = fs.Dataset(sys.argv[1]).map("image", fs.decode_image(), fs.resize((8, 8))).shuffle(seed=1).batch(10)
print(sorted(sample for batch in pipeline.loader() for sample in batch.sample_ids.tolist()) == list(range(200)))
print(next(iter(pipeline.loader(output="numpy")))["image"].shape)
try:
    next(iter(pipeline.loader()))["image"].torch()
except fs.ConfigError as error:
    print("torch" in str(error).lower())
"""
    command = [binaries / "python", "-c", script, imagenet]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120, env=clean
    )
    assert done.stdout.splitlines() == ["True", "(10, 8, 8, 3)", "True"], done.stderr


def test_it_is_typed_and_for_every_python_from_3_10():
    assert WHEEL is not None
    assert "cp310-abi3" in Path(WHEEL).name
    with zipfile.ZipFile(WHEEL) as wheel:
        names = wheel.namelist()
    assert {"feedstock/py.typed", "feedstock/_feedstock.pyi", "feedstock/__init__.py"} <= set(names)
    assert not [name for name in names if "test" in name.lower()]
