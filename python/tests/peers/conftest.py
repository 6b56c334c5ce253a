"""Fixtures for the harness of benches/peers. No peer is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benches" / "peers"))

from harness import plan, plots
from known import RATES


@pytest.fixture
def few_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all peers but those of ``results``."""
    monkeypatch.setattr(plan, "PEERS", (*RATES, "ffcv"))


@pytest.fixture
def plain_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces matplotlib, which the harness has in a separate environment."""
    monkeypatch.setattr(plots, "_draw", lambda made, job, storage, path: path.write_text("<svg/>"))
