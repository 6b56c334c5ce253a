"""Checks that contenders' outputs agree with the reference's: the same samples, matched by their ids.

The reference of images is PyTorch with Pillow; that of speech is libsndfile, torchaudio's resampler and its
mel spectrogram. If the output is a function of the sample, every row is compared, and the worst decides.
Random crops cannot be compared one by one. Instead, each image is cropped many times. The crops' means,
standard deviations, channels and coarse grids are compared with those of the reference for the same images,
at a given confidence. Values that are not finite numbers are rejected.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from contenders.protocol import STD
from numpy.typing import NDArray

REFERENCES = {
    "pictures-train": "torch_pil",
    "pictures-eval": "torch_pil",
    "pictures-f32": "torch_pil",
    "speech": "torch_soundfile",
}

# Limits of the mean absolute difference of the worst row, up to which outputs count as the same.
ALLOWED = {
    "pictures-eval": 0.5,  # levels of 255: allows another rounding, but not another filter or position
    "speech": 0.1,  # of natural logarithms; audio clips have values of -23 to 8, and resamplers differ in the top bands
}

# Epochs of the small data set whose crops are compared: 128 images make 2,048 crops.
CROP_EPOCHS = 16

# Confidence of each of the six tests of random crops. A contender that crops as the reference does fails one
# of them in 1,700 checks.
CONFIDENCE = 0.9999

# Tolerated differences of crops' means, standard deviations and cells. A significant difference of less than
# two levels of 255 is another resampler or rounding, not other work. For normalised values, the same in their
# unit.
TOLERATED = {"pictures-train": 2.0, "pictures-f32": 2.0 / (255 * statistics.mean(STD))}

# Minimum correlation of images' channels about their means; a different channel order does not reach it.
ALIKE_CHANNELS = 0.9

# The values of ``crop_facts`` for each crop: mean, standard deviation, the channels' means, the grid's means.
CHANNELS, GRID = slice(2, 5), 5

Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Agreement:
    """How far a contender is from the reference."""

    agrees: bool
    rows: int
    difference: (
        float | None
    )  # mean of rows' mean absolute differences; for random crops, the difference of the means of all crops
    limit: float | None  # for the worst row; for random crops, for the difference
    worst: float | None  # of one row
    worst_name: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def refused(note: str, rows: int = 0) -> Agreement:
    return Agreement(False, rows, None, None, None, "", note)


def load(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path) as rows:
        return {name: rows[name] for name in rows.files}


def compare(job: str, reference: Rows, rows: Rows) -> Agreement:
    """Compares rows, or means of crops, by name. All names of the reference must be present, and no others."""
    missing, unknown = sorted(reference.keys() - rows.keys()), sorted(rows.keys() - reference.keys())
    if missing or unknown:
        told = f"{len(missing)} samples are missing, {len(unknown)} are not the reference's"
        return refused(f"{told}, for example {(missing or unknown)[0]}", len(reference) - len(missing))
    broken = next((name for name, row in rows.items() if not np.isfinite(row).all()), None)
    if broken is not None:
        return refused(f"sample {broken} has values that are not finite numbers", len(rows))
    return (
        compare_rows(job, reference, rows)
        if job in ALLOWED
        else compare_crops(reference, rows, TOLERATED[job])
    )


def compare_rows(job: str, reference: Rows, rows: Rows) -> Agreement:
    """Compares rows; the worst one decides. Lengths of speech may differ by one frame, at the end."""
    odd = next((name for name in reference if not alike(job, reference[name], rows[name])), None)
    if odd is not None:
        theirs, ours = rows[odd], reference[odd]
        return refused(f"{theirs.dtype} {theirs.shape} instead of {ours.dtype} {ours.shape}", len(rows))
    differences = {name: difference(reference[name], rows[name]) for name in reference}
    worst = max(differences, key=lambda name: differences[name])
    limit = ALLOWED[job]
    agrees = differences[worst] <= limit
    note = "" if agrees else f"sample {worst} differs by {differences[worst]:.3f}, over {limit}"
    mean = float(np.mean(list(differences.values())))
    return Agreement(agrees, len(rows), mean, limit, differences[worst], worst, note)


def alike(job: str, reference: NDArray[Any], row: NDArray[Any]) -> bool:
    """Returns whether dtype and shape are the same; for speech, the number of frames may differ by one."""
    if reference.dtype != row.dtype or reference.shape[1:] != row.shape[1:]:
        return False
    return abs(len(reference) - len(row)) <= (1 if job == "speech" else 0)


def difference(reference: NDArray[Any], row: NDArray[Any]) -> float:
    """Returns the mean of absolute differences, over the frames that both have."""
    both = min(len(reference), len(row))
    return float(np.abs(reference[:both].astype(np.float64) - row[:both].astype(np.float64)).mean())


def compare_crops(reference: Rows, rows: Rows, tolerated: float) -> Agreement:
    """Tests the values of ``crop_facts`` for each crop. Images are paired, so that differences between images
    cancel out.

    The tests and the errors that fail them: the mean (another range of values, other pixels or another
    position of crops); the standard deviation (another filter or size); each cell of the grid about its
    crop's mean (another position, or a rotated crop); the channels about the mean (another channel order);
    the distributions of mean and deviation about each image's own (Kolmogorov-Smirnov test; another
    distribution of crop sizes); whether crops are brighter on the same side as their image (flips with
    another probability than one half).
    """
    few = [name for name in rows if len(rows[name]) < 2 or len(reference[name]) < 2]
    if few:
        return refused(f"{len(few)} samples have fewer than two crops", len(rows))
    notes = []
    for place, what in enumerate(("mean", "standard deviation")):
        theirs, ours = column(rows, place), column(reference, place)
        mean, limit = paired(ours, theirs, CONFIDENCE, tolerated)
        if abs(mean) > limit:
            notes.append(f"crops' {what} is {mean:+.3f} from the reference's, over {limit:.3f}")
        distance, allowed = spreads_apart(ours, theirs)
        if distance > allowed:
            notes.append(f"distributions of crops' {what}s are {distance:.3f} apart, over {allowed:.3f}")
    facts = next(iter(reference.values())).shape[1]
    apart_cells = []
    for place in range(GRID, facts):
        theirs, ours = about_mean(rows, place), about_mean(reference, place)
        mean, limit = paired(ours, theirs, 1 - (1 - CONFIDENCE) / (facts - GRID), tolerated)
        if abs(mean) > limit:
            told = f"cell {place - GRID} of the crops' grid is {mean:+.3f} from the reference's, over {limit:.3f}"
            apart_cells.append(told)
    if apart_cells:
        notes.append(f"{apart_cells[0]}; {len(apart_cells)} of {facts - GRID} cells")
    alike_channels = correlation(colours(reference), colours(rows))
    if alike_channels < ALIKE_CHANNELS:
        notes.append(
            f"images' channels correlate by {alike_channels:.2f}, under {ALIKE_CHANNELS}: another order"
        )
    mean, limit = paired(leaning(reference), leaning(rows), CONFIDENCE)
    if abs(mean) > limit:
        notes.append(
            f"crops lean to one side by {mean:+.3f} squared levels more, over {limit:.3f}: other flips"
        )
    theirs, ours = column(rows, 0), column(reference, 0)
    mean, limit = paired(ours, theirs, CONFIDENCE, tolerated)
    apart = {name: abs(float(theirs[name].mean() - ours[name].mean())) for name in ours}
    worst = max(apart, key=lambda name: apart[name])
    return Agreement(not notes, len(rows), abs(mean), limit, apart[worst], worst, "; ".join(notes))


def column(rows: Rows, place: int) -> dict[str, NDArray[Any]]:
    return {name: crops[:, place] for name, crops in rows.items()}


def about_mean(rows: Rows, place: int) -> dict[str, NDArray[Any]]:
    return {name: crops[:, place] - crops[:, 0] for name, crops in rows.items()}


def leaning(rows: Rows) -> Rows:
    """Returns one number per image: how far its crops are brighter on the same side. It is the mean of
    products of two crops' differences between left and right half, which is 0 except for chance if each crop
    is flipped independently with probability one half."""
    found = {}
    for name, crops in rows.items():
        side = math.isqrt(crops.shape[1] - GRID)
        grid = crops[:, GRID:].reshape(len(crops), side, side)
        lean = grid[:, :, : side // 2].mean(axis=(1, 2)) - grid[:, :, -(side // 2) :].mean(axis=(1, 2))
        pairs = len(lean) * (len(lean) - 1)
        found[name] = np.array([(lean.sum() ** 2 - (lean**2).sum()) / pairs])
    return found


def paired(reference: Rows, rows: Rows, confidence: float, tolerated: float = 0.0) -> tuple[float, float]:
    """Returns the mean of images' differences between two sets of crops, and its limit: the tolerance, or
    chance."""
    found = np.array([float(rows[name].mean() - reference[name].mean()) for name in reference])
    error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
    return float(found.mean()), max(tolerated, NormalDist().inv_cdf((1 + confidence) / 2) * error)


def colours(rows: Rows) -> dict[str, NDArray[Any]]:
    """Returns the difference of each image's channels from its mean."""
    return {name: (crops[:, CHANNELS] - crops[:, :1]).mean(axis=0) for name, crops in rows.items()}


def correlation(reference: Rows, rows: Rows) -> float:
    ours, theirs = (np.concatenate([values[name] for name in reference]) for values in (reference, rows))
    norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    return float(ours @ theirs) / norms if norms else 0.0


def spreads_apart(reference: Rows, rows: Rows) -> tuple[float, float]:
    """Returns the Kolmogorov-Smirnov distance of two sets of crops' values, each about its image's mean, and
    its limit."""
    theirs, ours = (
        np.sort(np.concatenate([crops - crops.mean() for crops in rows_of.values()]))
        for rows_of in (rows, reference)
    )
    at = np.concatenate([theirs, ours])
    below = [np.searchsorted(values, at, side="right") / len(values) for values in (theirs, ours)]
    distance = float(np.abs(below[0] - below[1]).max())
    limit = math.sqrt(-math.log((1 - CONFIDENCE) / 2) / 2) * math.sqrt(1 / len(theirs) + 1 / len(ours))
    return distance, limit
