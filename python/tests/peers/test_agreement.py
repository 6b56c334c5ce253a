"""Comparison of the contenders' outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import agree


def crops(
    seed: int,
    spread: float = 12.0,
    shift: float = 0.0,
    deviation: float = 0.0,
    corner: float = 0.0,
    flipped: float = 0.5,
    swapped: bool = False,
) -> dict[str, Any]:
    """Returns facts of 16 crops of each of 128 images, whose means and slopes are the same for every seed."""
    own = np.random.default_rng(0)
    means, slopes = own.normal(126, 30, 128), own.normal(0, 4, 128)
    noise = np.random.default_rng(seed)
    found = {}
    across = np.tile(np.linspace(-1.0, 1.0, 8), 8)
    for name, (mean, slope) in enumerate(zip(means, slopes, strict=True)):
        of_crops = noise.normal(mean + shift, spread, 16)
        deviations = noise.normal(40.0 + deviation, 5.0, 16)
        grid = of_crops[:, None] + noise.normal(0.0, 8.0, (16, 64))
        grid += np.where(noise.random(16) < flipped, -slope, slope)[:, None] * across
        grid[:, 0] += corner
        channels = of_crops[:, None] + np.array([6.0, 0.0, -6.0]) + noise.normal(0.0, 2.0, (16, 3))
        channels = channels[:, ::-1] if swapped else channels
        found[str(name)] = np.column_stack([of_crops, deviations, channels, grid])
    return found


class TestAgreement:
    def test_the_worst_picture_decides(self) -> None:
        rows = {str(name): np.full((4, 4, 3), 100 + name, np.uint8) for name in range(100)}
        near = {name: row.copy() for name, row in rows.items()}
        near["7"][:2, :, :] += 1  # half of its values by one level
        found = agree.compare("pictures-eval", rows, near)
        assert found.agrees
        assert (found.worst, found.worst_name) == (pytest.approx(0.5), "7")
        assert found.difference == pytest.approx(0.005)
        near["7"][:3, :, :] = rows["7"][:3, :, :] + np.uint8(1)
        found = agree.compare("pictures-eval", rows, near)
        assert not found.agrees
        assert "sample 7 differs by 0.750" in found.note

    def test_another_layout_or_dtype_does_not(self) -> None:
        rows = {"0": np.zeros((4, 4, 3), np.uint8)}
        found = agree.compare("pictures-eval", rows, {"0": np.zeros((3, 4, 4), np.uint8)})
        assert not found.agrees
        assert "uint8 (3, 4, 4)" in found.note
        assert not agree.compare("pictures-eval", rows, {"0": np.zeros((4, 4, 3), np.float32)}).agrees

    @pytest.mark.parametrize("job", ["pictures-eval", "pictures-train"])
    def test_all_samples_and_no_others(self, job: str) -> None:
        rows = {"0": np.zeros((4, 4, 3)), "1": np.zeros((4, 4, 3))}
        assert "1 samples are missing" in agree.compare(job, rows, {"0": rows["0"]}).note
        assert not agree.compare(job, {"0": rows["0"]}, rows).agrees

    def test_random_crops_of_the_same_kind_agree(self) -> None:
        reference = crops(1)
        for seed in range(2, 42):
            found = agree.compare("pictures-train", reference, crops(seed))
            assert found.agrees, found.note
            assert found.limit is not None
            assert found.limit == 2.0

    def test_random_crops_of_another_mean_or_size_do_not(self) -> None:
        reference = crops(1)
        found = agree.compare("pictures-train", reference, crops(2, shift=3.0))
        assert not found.agrees
        assert "crops' mean is +" in found.note
        # Crops that are always large have means near their image's.
        found = agree.compare("pictures-train", reference, crops(2, spread=8.0))
        assert not found.agrees
        assert "distributions" in found.note
        # Another filter blurs; a crop that is always taken from one side has other corners.
        assert (
            "standard deviation is -"
            in agree.compare("pictures-train", reference, crops(2, deviation=-3.5)).note
        )
        assert (
            "cell 0 of the crops' grid"
            in agree.compare("pictures-train", reference, crops(2, corner=4.0)).note
        )
        swapped = agree.compare("pictures-train", reference, crops(2, swapped=True)).note
        assert swapped.startswith("images' channels correlate by -"), swapped
        # Without flips, and with flips of all, images keep their bright sides.
        for flipped in (0.0, 0.1, 1.0):
            note = agree.compare("pictures-train", reference, crops(2, flipped=flipped)).note
            assert note.startswith("crops lean to one side by +"), note
        once = {name: values[:1] for name, values in crops(2).items()}
        assert not agree.compare("pictures-train", reference, once).agrees

    @pytest.mark.parametrize("job", ["speech", "pictures-train"])
    def test_values_that_are_no_numbers_are_refused(self, job: str) -> None:
        rows = {"7": np.zeros((10, 80), np.float32)}
        broken = {"7": np.full((10, 80), np.nan, np.float32)}
        assert agree.compare(job, rows, broken).note == "sample 7 has values that are not finite numbers"

    def test_speech_may_differ_by_a_frame_and_a_tenth(self) -> None:
        rows = {"7": np.zeros((10, 80), np.float32)}
        assert agree.compare("speech", rows, {"7": np.full((9, 80), 0.09, np.float32)}).agrees
        assert not agree.compare("speech", rows, {"7": np.full((9, 80), 0.11, np.float32)}).agrees
        assert not agree.compare("speech", rows, {"7": np.zeros((8, 80), np.float32)}).agrees
