"""Stands in for Ray Train's notices that nodes leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import ray.train
from ray.train import PreemptionInfo

from feedstock import _preemption
from feedstock.ray import PreemptionNotice


def in_a_train_worker(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], PreemptionInfo | None], every: int = 10
) -> PreemptionNotice:
    """Makes ``answer`` Ray Train's function, as in one of its workers; returns a notice that asks it."""
    monkeypatch.setattr(ray.train, "get_preemption_info", answer)
    monkeypatch.setattr(_preemption, "_in_train_worker", lambda: True)
    return PreemptionNotice(every)
