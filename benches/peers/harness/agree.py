"""Whether contenders' outputs agree: the same samples, found by their ids, beside the reference's.

The reference of pictures is PyTorch with Pillow; of speech libsndfile, torchaudio's resampler and its mel spectrogram.
Where the output is a function of the sample, every row is compared, and the worst decides. Random crops cannot be
compared one by one: there each picture is cropped many times, and the crops' means, standard deviations, channels and
coarse grids are compared with the reference's, of the same pictures, at a stated confidence. Values that are no finite
numbers are refused.
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

# Mean absolute differences of the worst row of what may be called the same output.
ALLOWED = {
    "pictures-eval": 0.5,  # levels of 255: another rounding, not another filter or place
    "speech": 0.1,  # of natural logarithms, where clips have values of -23 to 8; resamplers differ in the top bands
}

# Epochs of the small data set whose crops are compared: 128 pictures make 2,048 crops.
CROP_EPOCHS = 16

# Of each of the six tests of random crops. A contender that crops as the reference does fails one of them in 1,700
# checks.
CONFIDENCE = 0.9999

# Of crops' means, standard deviations and cells: a difference that is certain and smaller than two levels of 255 is
# another resampler or rounding, not other work. Of normalised values, as much in theirs.
TOLERATED = {"pictures-train": 2.0, "pictures-f32": 2.0 / (255 * statistics.mean(STD))}

# Pictures' channels about their means, whose order another one does not correlate with.
ALIKE_CHANNELS = 0.9

# What ``crop_facts`` tells of each crop: mean, standard deviation, the channels' means, the grid's.
CHANNELS, GRID = slice(2, 5), 5

Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Agreement:
    """How far a contender is from the reference."""

    agrees: bool
    rows: int
    difference: (
        float | None
    )  # mean of rows' mean absolute differences; of random crops, of the means of all crops
    limit: float | None  # of the worst row; of random crops, of the difference
    worst: float | None  # of a row
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
    """Compares rows, or means of crops, by name. All names of the reference must be there, and no others."""
    missing, unknown = sorted(reference.keys() - rows.keys()), sorted(rows.keys() - reference.keys())
    if missing or unknown:
        told = f"{len(missing)} samples are missing, {len(unknown)} are not the reference's"
        return refused(f"{told}, {(missing or unknown)[0]} for one", len(reference) - len(missing))
    broken = next((name for name, row in rows.items() if not np.isfinite(row).all()), None)
    if broken is not None:
        return refused(f"sample {broken} has values that are no finite numbers", len(rows))
    return (
        compare_rows(job, reference, rows)
        if job in ALLOWED
        else compare_crops(reference, rows, TOLERATED[job])
    )


def compare_rows(job: str, reference: Rows, rows: Rows) -> Agreement:
    """The worst row decides. Lengths of speech may differ by one frame, at the end."""
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
    """Same dtype and shape; of speech, a frame more or less."""
    if reference.dtype != row.dtype or reference.shape[1:] != row.shape[1:]:
        return False
    return abs(len(reference) - len(row)) <= (1 if job == "speech" else 0)


def difference(reference: NDArray[Any], row: NDArray[Any]) -> float:
    """The mean of absolute differences, over the frames that both have."""
    both = min(len(reference), len(row))
    return float(np.abs(reference[:both].astype(np.float64) - row[:both].astype(np.float64)).mean())


def compare_crops(reference: Rows, rows: Rows, tolerated: float) -> Agreement:
    """Tests of what ``crop_facts`` tells of each crop. Pictures are paired, so that what differs between pictures falls
    out: the mean (which another range of values, other pixels or another place of crops fail), the standard deviation
    (another filter, another size), and each cell of the grid about its crop's mean (another place, or a crop that is
    turned); the channels about it (another order of theirs). Of mean and deviation also their distribution about each
    picture's own (Kolmogorov and Smirnov's test, which another distribution of crops' sizes fails). And whether crops
    lean to the side that their picture leans to, which flips as often as not undo."""
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
            f"pictures' channels correlate by {alike_channels:.2f}, under {ALIKE_CHANNELS}: another order"
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
    """How far each picture's crops are brighter on one and the same side: the mean of products of two crops'
    differences between left and right half, which is 0 but for chance where each is flipped or not by a coin of its
    own: one number of each picture."""
    found = {}
    for name, crops in rows.items():
        side = math.isqrt(crops.shape[1] - GRID)
        grid = crops[:, GRID:].reshape(len(crops), side, side)
        lean = grid[:, :, : side // 2].mean(axis=(1, 2)) - grid[:, :, -(side // 2) :].mean(axis=(1, 2))
        pairs = len(lean) * (len(lean) - 1)
        found[name] = np.array([(lean.sum() ** 2 - (lean**2).sum()) / pairs])
    return found


def paired(reference: Rows, rows: Rows, confidence: float, tolerated: float = 0.0) -> tuple[float, float]:
    """The mean of pictures' differences between two sets of crops, and its limit: what is tolerated, or chance."""
    found = np.array([float(rows[name].mean() - reference[name].mean()) for name in reference])
    error = float(found.std(ddof=1) / math.sqrt(len(found))) if len(found) > 1 else 0.0
    return float(found.mean()), max(tolerated, NormalDist().inv_cdf((1 + confidence) / 2) * error)


def colours(rows: Rows) -> dict[str, NDArray[Any]]:
    """How far each picture's channels lie from its mean."""
    return {name: (crops[:, CHANNELS] - crops[:, :1]).mean(axis=0) for name, crops in rows.items()}


def correlation(reference: Rows, rows: Rows) -> float:
    ours, theirs = (np.concatenate([values[name] for name in reference]) for values in (reference, rows))
    norms = float(np.linalg.norm(ours) * np.linalg.norm(theirs))
    return float(ours @ theirs) / norms if norms else 0.0


def spreads_apart(reference: Rows, rows: Rows) -> tuple[float, float]:
    """Kolmogorov and Smirnov's distance of two sets of crops' figures, each about its picture's mean, and its limit."""
    theirs, ours = (
        np.sort(np.concatenate([crops - crops.mean() for crops in rows_of.values()]))
        for rows_of in (rows, reference)
    )
    at = np.concatenate([theirs, ours])
    below = [np.searchsorted(values, at, side="right") / len(values) for values in (theirs, ours)]
    distance = float(np.abs(below[0] - below[1]).max())
    limit = math.sqrt(-math.log((1 - CONFIDENCE) / 2) / 2) * math.sqrt(1 / len(theirs) + 1 / len(ours))
    return distance, limit
