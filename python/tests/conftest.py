"""Sample data, made once for all tests by the package's command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from synthetic import synth


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps catalogs of sample data out of the user's cache, also in child processes."""
    before = os.environ.get("FEEDSTOCK_CACHE")
    os.environ["FEEDSTOCK_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["FEEDSTOCK_CACHE"]
    else:
        os.environ["FEEDSTOCK_CACHE"] = before


@pytest.fixture(scope="session")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 200 images in Parquet: columns image (bytes, path) and label."""
    folder = tmp_path_factory.mktemp("imagenet")
    synth("imagenet", folder, "--samples", 200, "--seed", 1, "--layout", "parquet")
    return folder


@pytest.fixture(scope="session")
def common_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns 80 audio clips as Mozilla ships Common Voice: the train table's audio, sentence, duration …"""
    folder = tmp_path_factory.mktemp("common_voice")
    synth("common-voice", folder, "--samples", 80, "--seed", 1, "--layout", "mozilla")
    return folder
