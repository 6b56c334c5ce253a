"""How a benchmark was made, in sentences for the page: nothing that the results do not hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.protocol import SHUFFLE_SAMPLES

from harness import goals, plan
from harness.stored import Results

JOBS = {
    "pictures-train": (
        "JPEG → random_resized_crop 224 (bilinear, antialiased) → flip of every other one",
        "u8 [224, 224, 3]",
    ),
    "pictures-eval": ("JPEG → resize 256 (shorter side) → center_crop 224", "u8 [224, 224, 3]"),
    "pictures-f32": ("as pictures-train → normalised → channels first", "f32 [3, 224, 224]"),
    "speech": (
        "MP3, 48 kHz mono → 16 kHz → 80-bin log-mel (25 ms windows every 10 ms) → padded to the batch's longest",
        "f32 [frames, 80]",
    ),
}

# What runs measure.
MODES = {"steady": "rates", "stall": "memory", "resume": "resuming"}

# Why goals are missed: a part of their names, and why.
REASONS = (
    (
        "with its defaults",
        "by default feedstock shuffles in windows of 512 MiB within a budget of 1 GiB, as machines that train can "
        "spare: data as small as these stay in memory whole. `options(budget_bytes=…)` and `shuffle(window=…)` bound "
        "it, as in the rows without “defaults”.",
    ),
)

COLUMNS = """\
- tensors: what batches are made of. **feedstock ×**: feedstock's rate with the same kind of tensors over this rate.
- CPU-s per 1000: CPU seconds of all its processes for 1,000 samples; cores: of them busy, while the rate was taken.
- first batch: from `exec` to the first batch. peak MiB: the most memory of the run (PSS); mapped files: beside it.
- processes, threads: the most at a time. workers: as calibrated (processes, or threads where it has them).
- server CPU-s a run: what the S3 server took of the same cores.
- rounds: that have a figure. outputs: how far from the reference's, of the limit; see below.
- bare: the part alone, without storage and batches, on one core (`cargo bench -p feedstock-ops`), times the number of
  cores: a codec (libjpeg-turbo, which peers use, too; symphonia, where peers have mpg123 or FFmpeg), and feedstock's
  own chain, which skips what a crop does not show. Its pictures are 48 others of the same size, its clips these.
"""


def limits(results: Results) -> Iterator[str]:
    """What these figures do not say."""
    missing = [
        f"{job} from {'S3' if storage == 's3' else 'local files'}"
        for job in plan.JOBS
        for storage in plan.STORAGES
        if not results.values(job, storage, "steady", goals.OURS["numpy"], "rate")
    ]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
    cores = results.content["machine"]["cores"]
    yield (
        f"A machine of {cores} cores, which is a guest among others. Consumers take batches and compute nothing: "
        "the loader is what is measured. There is no GPU; torch is what `pip install torch` brings, with CUDA."
    )
    yield (
        "The data are synthetic (`feedstock synth`): JPEGs of about 400×350 px, 4:2:0, quality 95, with six bits a "
        "pixel and none of them large; clips of synthetic voices. They "
        "are few, so that local files lie in the page cache: disks are not measured."
    )
    yield (
        "S3 is a server on the same machine: requests cost CPU time there and have next to no latency. Loaders that "
        "ask for every sample by itself (PyTorch's DataLoader on files, DALI, SPDL, Grain) pay for requests above all; "
        "with real latency they would need more of them at a time."
    )
    yield (
        "feedstock's own shards hold the same pictures, re-coded without loss: with restart markers and optimal "
        "Huffman tables, in fewer files. `feedstock, files as they are` reads the files that peers read. Its catalog "
        "of the data's files was made by an earlier run, its default; the first run of all over new data takes longer "
        "to its first batch."
    )
    yield (
        "feedstock decodes MP3s of 48 kHz at half that rate where 16 kHz are wanted, which none of the Python "
        "interfaces that peers decode with offers; the outputs agree within the limit that is stated below."
    )
    if any(peer in results.content["peers"] for peer in goals.DECODED_AHEAD):
        yield (
            "Every job begins with decoding. FFCV's documentation advises to store pixels where memory holds all of "
            "them, which are some four times the bytes here: `FFCV, pixels decoded ahead` shows what that gains, and "
            "never counts as the best peer."
        )
    yield (
        "Peers that read files take them from S3 by boto3, a request each, which is our choice: AWS's own connector "
        "for PyTorch was not measured."
    )
    yield (
        "That the measured batches hold every sample once is not checked: outputs are compared in runs of their own, "
        "and resumed ones by their samples."
    )
    yield (
        f"Shuffling is not alike: feedstock, WebDataset and HF datasets from S3 shuffle in buffers of "
        f"{SHUFFLE_SAMPLES} samples, as DALI and Lhotse from S3 do, MosaicML Streaming and LitData in their own "
        "blocks, DataLoaders, FFCV, tf.data, Grain and SPDL all of an epoch; Ray Data shuffles files, Daft nothing."
    )


def sentences(results: Results) -> Iterator[str]:
    """What was done: nothing that the results do not hold."""
    content = results.content
    runs: list[dict[str, Any]] = content["runs"]
    modes = {(run["mode"], run["storage"]) for run in runs if "error" not in run}
    rates = [storage for mode, storage in sorted(modes) if mode == "steady"]
    settings = content["settings"]
    yield (
        "Contenders read the same pictures and clips, made by `feedstock synth`"
        + (
            "; formats of their own were written from the same JPEG and MP3 bytes (feedstock's re-coded, see above)"
            if content["prepared"]
            else ""
        )
        + "."
    )
    yield (
        "Each run is a process of its own, in an environment of its own, held to the same "
        f"{content['machine']['cores']} cores. A round runs every contender once, in a random order (seed "
        f"{settings['order_seed']}); figures are medians, ± half of the range of the rounds."
    )
    yield (
        "Goals of rates and CPU seconds are judged beside all peers. First batch, memory and resume, where torch's "
        "import counts, and the column “feedstock ×” stand beside peers that hand out the same kind: torch tensors or "
        "arrays. A peer that lacks a round keeps a goal from being judged where one of its rounds is as good as the "
        "best peer's median."
    )
    if rates:
        yield (
            f"A rate is that of {settings['measured_batches']} batches in the consumer's hands in the middle of the "
            f"first epoch, behind {settings['warm_up_batches']} batches of warm-up and before the epoch's last ones: "
            "neither full queues nor idle workers count. From local files a fast contender is measured as many "
            f"times over, into its next epochs, as begin within {settings['least_s']:g} s."
        )
    if "s3" in rates:
        yield (
            "From S3 the same: peers that fetch far ahead, or keep a cache on disk (MosaicML Streaming, LitData), have "
            "part of what is measured on the local disk by then, which counts for them. Nothing is measured twice over "
            f"there: of feedstock these are {_seconds(results)} a run. The server runs on the same "
            "cores; its CPU time is not the contender's, and is told beside it, of the whole run"
            f"{f' (Cargo profile {told})' if (told := settings.get('s3_server')) else ''}."
        )
    shares = [run["fetched_share"] for run in runs if "fetched_share" in run]
    if shares:
        yield (
            "feedstock read from storage, while its rates were taken, at least "
            f"{min(shares):.0%} of the bytes of the samples that it handed out then; under "
            f"{settings['min_fetched_share']:.0%} no goal is judged."
        )
    if rates:
        scopes = " or ".join(sorted({run["scope"] for run in runs if "scope" in run}))
        yield (
            "CPU time is that of all the contender's processes and threads"
            f"{f' (its {scopes})' if scopes else ''}, while the rate was taken."
        )
        yield (
            "The first batch is counted from `exec`: interpreter, imports and the opening of the data are in it, and "
            "of Ray Data a cluster's start, of FFCV the compilation of its pipeline."
        )
    yield (
        "Memory is proportional (PSS), summed over processes: anonymous pages and shared memory. Pages of mapped files "
        "are told beside it, and not judged: they are the kernel's page cache."
    )
    if any(mode == "stall" for mode, _ in modes):
        yield (
            "At rest: a loader that was opened, and asked for nothing. feedstock has not imported torch by then, as "
            "most peers with torch tensors have. It is not judged."
        )
        yield (
            f"Memory running and stalled: the consumer took {settings['stall_steps']} batches as fast as they came, "
            f"then paused for {settings['stall_s']:g} s, in which loaders fill their queues: the most until the pause, "
            "and the most in its second half. Goals of memory are judged by these runs alone, whose PSS is read 20 "
            "times as often as that of runs for a rate. feedstock has the settings there that its rates were measured "
            "with; beside it stands what it takes with its defaults."
        )
    if any(mode == "resume" for mode, _ in modes):
        yield "Resuming is counted from `exec` to the batch that the saving run got next; its samples are compared."
    if any(mode in ("stall", "resume") for mode, _ in modes):
        yield "Memory and resuming are measured on local files, with pictures-train and speech."
    if content["calibration"]:
        yield (
            f"Workers (or threads) are what short runs ({_calibrations(results)} of each number) found best, from each "
            f"storage, on {plan.CALIBRATED_ON} for all pictures and on speech; versions and configurations, below, say "
            "what was tried."
        )
    yield from _agreement(results)
    yield from _machines(results)
    for name, build in results.builds_of_runs().items():
        commit = f"commit {build['commit'][:12]}{' with changes' if build['dirty'] else ''}"
        yield (
            f"feedstock's package: built at {commit}, Cargo's profile {build['profile']} "
            f"({build['profile_settings']}); sources {build['sources'][:16]}, "
            f"harness {build['programs']} (build {name})."
        )


def _machines(results: Results) -> Iterator[str]:
    """Which machine measured what, where there were several."""
    made: dict[str, set[str]] = {}
    for run in results.content["runs"]:
        where = f"{MODES[run['mode']]} of {run['job']}, {run['storage']}"
        made.setdefault(", Linux ".join(results.machine_of(run)), set()).add(where)
    if len(made) > 1:
        told = ". ".join(f"{machine}: {'; '.join(sorted(places))}" for machine, places in made.items())
        yield (
            "Several machines, told apart by processor and kernel, measured this; runs that are compared with each "
            "other are of one of them. "
            f"{told}. Bare parts were measured on one of them; numbers of workers as found on any of them hold for all."
        )


def _seconds(results: Results) -> str:
    """How long feedstock's rates from S3 were taken."""
    took = [
        seconds
        for peer in goals.OURS.values()
        for job in plan.JOBS
        for seconds in results.values(job, "s3", "steady", peer, "seconds")
    ]
    return f"{min(took):.1f} to {max(took):.1f} s" if took else "some seconds"


def _calibrations(results: Results) -> int:
    found = results.content["calibration"].values()
    return max(
        (
            len(rates)
            for places in found
            for one in places.values()
            for rates in one.get("tried", {}).values()
        ),
        default=1,
    )


def _agreement(results: Results) -> Iterator[str]:
    settings = results.content["settings"]
    limits: dict[str, float] = settings.get("row_limits", {})
    agreements = results.content["agreement"].values()
    compared = {job for found in agreements for job in found if "error" not in found[job]}
    rows = [job for job in sorted(compared) if job in limits]
    if rows:
        told = ", ".join(f"{limits[job]} for {job}" for job in rows)
        yield (
            "Outputs: every row of a small data set is compared with the reference's row of the same sample (PyTorch "
            "with Pillow; of speech soundfile and torchaudio). The worst row's mean absolute difference is at most "
            f"{told} (levels of 255; natural logarithms)."
        )
    if compared - limits.keys() and "crop_epochs" in settings:
        yield (
            f"Outputs with random crops: each picture {settings['crop_epochs']} times; crops' means and standard "
            "deviations, how both are distributed about their picture's, and the means of an 8 × 8 grid of crops are "
            f"tested against the reference's, each at a confidence of {settings['crop_confidence']:.2%}; of "
            f"means or deviations {settings['crop_tolerated']['pictures-train']:g} levels of 255 are tolerated, as "
            "another resampler's. Channels must be in the reference's order."
        )
    if compared:
        yield (
            "Outputs are compared from local files, unshuffled and with one worker; one that differs is looked at once "
            "more, with other random crops."
        )
        yield "Contenders whose outputs differ are shown, and never count as the best peer."
