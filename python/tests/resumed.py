"""Compares a loader that was resumed with the one whose state it has."""

from __future__ import annotations

import numpy as np

import feedstock as fs


def assert_resumes(pipeline: fs.Pipeline) -> None:
    """Checks that a second loader, with the state after two batches of the first, delivers the third batch."""
    loader = pipeline.loader(output="numpy")
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    expected = {name: np.array(value) for name, value in next(batches).items()}
    other = pipeline.loader(output="numpy")
    other.load_state_dict(state)
    resumed = next(iter(other))
    assert resumed.keys() == expected.keys()
    for name, value in resumed.items():
        assert np.array_equal(value, expected[name]), name
