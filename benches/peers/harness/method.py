"""Describes in sentences how a benchmark was made, for the page; everything comes from the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contenders.protocol import REALISTIC, RETRY_AFTER_S, S3, SHUFFLE_SAMPLES

from harness import goals, plan
from harness.stored import Results

JOBS = {
    "pictures-train": (
        "JPEG → random_resized_crop 224 (bilinear, antialiased) → horizontal flip (p = 0.5)",
        "u8 [224, 224, 3]",
    ),
    "pictures-eval": ("JPEG → resize 256 (shorter side) → center_crop 224", "u8 [224, 224, 3]"),
    "pictures-f32": ("as pictures-train → normalised → channels first", "f32 [3, 224, 224]"),
    "speech": (
        "MP3, 48 kHz mono → 16 kHz → 80-bin log-mel (25 ms windows every 10 ms) → padded to the batch's longest",
        "f32 [frames, 80]",
    ),
}

# Names of the measurements of runs.
MODES = {"steady": "rates", "steps": "waiting with steps", "stall": "memory", "resume": "resuming"}

# Names of storages in sentences.
STORAGES = {"local": "local files", S3: "S3", REALISTIC: "S3, realistic"}

# Reasons why goals are missed: a part of the goals' names, and the reason.
REASONS = (
    (
        "with its defaults",
        "by default feedstock shuffles in windows of 512 MiB and has a budget of 1 GiB, which training machines "
        "can spare. Data as small as these stay in memory completely. `options(budget_bytes=…)` and "
        "`shuffle(window=…)` limit it, as in the rows without “defaults”.",
    ),
)

COLUMNS = """\
- tensors: the type of batches. **feedstock ×**: feedstock's rate with the same type of tensors over this rate.
- CPU-s per 1000: CPU seconds of all its processes for 1,000 samples. cores: number of busy cores. Both are measured
  with the rate.
- first batch: time from `exec` to the first batch. peak MiB: peak memory of the run (PSS). mapped files: additional
  pages of mapped files.
- processes, threads: maximum number at a time. workers: as calibrated (processes, or threads if it has them).
- server CPU-s per run: CPU seconds of the S3 server, on the same cores.
- rounds: number of rounds that have the figure. outputs: distance from the reference's, and its limit; see below.
- bare: the part alone, without storage and batches, on one core (`cargo bench -p feedstock-ops`), times the number of
  cores. It is a codec (libjpeg-turbo, which peers also use; symphonia, where peers have mpg123 or FFmpeg) or
  feedstock's own chain, which does not decode parts outside a crop. Its images are 48 others of the same size; its
  audio clips are the same.
"""


def limits(results: Results) -> Iterator[str]:
    """Yields the limits of these figures."""
    missing = [
        f"{job} from {STORAGES[storage]}"
        for job in plan.JOBS
        for storage in plan.reported_storages(results)
        if not results.values(job, storage, "steady", goals.OURS["numpy"], "rate")
    ]
    if missing:
        yield f"Not measured: {', '.join(missing)}."
    cores = results.content["machine"]["cores"]
    yield (
        f"The machine has {cores} cores and is a virtual machine that shares its host. Consumers take batches "
        "and compute nothing: only the loader is measured. There is no GPU; torch is the CUDA build that `pip "
        "install torch` installs."
    )
    yield (
        "The data are synthetic (`feedstock synth`): JPEGs of about 400×350 px, 4:2:0, quality 95, with six "
        "bits per pixel and none of them large, and audio clips of synthetic voices. There are few of them, so "
        "local files are in the page cache: disks are not measured."
    )
    separately = (
        "Loaders that request every sample separately (PyTorch's DataLoader on files, DALI, SPDL, Grain)"
    )
    if REALISTIC in plan.reported_storages(results):
        yield (
            "The S3 server runs on the same machine: requests cost CPU time there. From s3 they have almost no "
            "latency, from s3-realistic that of a real store, which the server waits for without CPU time. "
            f"{separately} pay most for requests, and need more simultaneous requests where answers come late."
        )
    else:
        yield (
            "The S3 server runs on the same machine: requests cost CPU time there and have almost no latency. "
            f"{separately} pay most for requests; with real latency they would need more simultaneous requests."
        )
    yield (
        "feedstock's own shards hold the same images, recoded without loss: with restart markers and optimal "
        "Huffman tables, in fewer files. `feedstock, files as they are` reads the files that peers read. An "
        "earlier run built its catalog of the data's files, which is the default; the first run over new data "
        "takes longer to its first batch."
    )
    yield (
        "feedstock decodes 48 kHz MP3s at half that rate if the job needs 16 kHz. None of the Python decoders "
        "of peers offers that; the outputs agree within the limit below."
    )
    if any(peer in results.content["peers"] for peer in goals.DECODED_AHEAD):
        yield (
            "Every job begins with decoding. FFCV's documentation recommends storing pixels if memory holds all "
            "of them; they have about four times the bytes here. `FFCV, pixels decoded ahead` shows the gain, "
            "and never counts as the best peer."
        )
    yield (
        "Peers that read files get them from S3 with boto3, one request per file, which is our choice: AWS's own "
        "connector for PyTorch was not measured."
    )
    yield (
        "The measured batches are not checked to contain every sample once: outputs are compared in separate "
        "runs, and resumed runs by their samples."
    )
    yield (
        "Shuffling differs: feedstock, WebDataset, and HF datasets from S3 shuffle in buffers of "
        f"{SHUFFLE_SAMPLES} samples, as do DALI, and Lhotse from S3. MosaicML Streaming and LitData shuffle in "
        "blocks of their formats. DataLoaders, FFCV, tf.data, Grain and SPDL shuffle a whole epoch. Ray Data "
        "shuffles files; Daft does not shuffle."
    )


def sentences(results: Results) -> Iterator[str]:
    """Yields what was done; everything comes from the results."""
    content = results.content
    runs: list[dict[str, Any]] = content["runs"]
    modes = {(run["mode"], run["storage"]) for run in runs if "error" not in run}
    rates = [storage for mode, storage in sorted(modes) if mode == "steady"]
    settings = content["settings"]
    yield (
        "Contenders read the same images and audio clips, made by `feedstock synth`"
        + (
            "; native formats were written from the same JPEG and MP3 bytes (feedstock's are recoded, see above)"
            if content["prepared"]
            else ""
        )
        + "."
    )
    yield (
        "Each run is a separate process in a separate environment, restricted to the same "
        f"{content['machine']['cores']} cores. A round runs every contender once, in a random order (seed "
        f"{settings['order_seed']}). Figures are medians, ± half of the range of the rounds."
    )
    yield (
        "Rates and CPU seconds are judged against all peers. First batch, memory and resume include torch's "
        "import. They and the column “feedstock ×” are compared with peers that deliver the same type: torch "
        "tensors or arrays. If a peer lacks a round, and one of its rounds is as good as the best peer's "
        "median, the goal is not judged."
    )
    if rates:
        yield (
            f"A rate is measured over {settings['measured_batches']} batches that the consumer takes in the "
            f"middle of the first epoch, after {settings['warm_up_batches']} batches of warm-up and before the "
            "epoch's last ones. Full queues and idle workers therefore do not count. From local files, a fast "
            "contender repeats the measurement, into its next epochs, as often as one begins within "
            f"{settings['least_s']:g} s."
        )
    if S3 in rates:
        yield (
            "The same applies to S3. Peers that fetch far ahead, or keep a cache on disk (MosaicML Streaming, "
            "LitData), have part of the measured data on the local disk by then, which counts in their favour. "
            f"No measurement is repeated there: those of feedstock take {_seconds(results)} per run. The server "
            "runs on the same cores. Its CPU time is not the contender's; it is listed separately, for the "
            f"whole run{f' (Cargo profile {told})' if (told := settings.get('s3_server')) else ''}."
        )
    if REALISTIC in rates:
        yield from _realistic(results)
    shares = [run["fetched_share"] for run in runs if "fetched_share" in run]
    if shares:
        yield (
            "While its rates were measured, feedstock read from storage at least "
            f"{min(shares):.0%} of the bytes of the samples that it delivered then; below "
            f"{settings['min_fetched_share']:.0%} no goal is judged."
        )
    if rates:
        scopes = " or ".join(sorted({run["scope"] for run in runs if "scope" in run}))
        yield (
            "CPU time is that of all the contender's processes and threads"
            f"{f' (its {scopes})' if scopes else ''}, while the rate was measured."
        )
        yield (
            "The first batch is timed from `exec`. It includes the interpreter, imports and opening the data; "
            "for Ray Data also the start of a cluster, for FFCV the compilation of its pipeline."
        )
    yield (
        "Memory is proportional (PSS), summed over processes: anonymous pages and shared memory. Pages of "
        "mapped files are listed separately and not judged: they are the kernel's page cache."
    )
    if any(mode == "stall" for mode, _ in modes):
        yield (
            "At rest: a loader that has been opened, before its first batch is requested. feedstock has not "
            "imported torch by then; most peers with torch tensors have. This figure is not judged."
        )
        yield (
            f"Memory running and stalled: the consumer took {settings['stall_steps']} batches as fast as they "
            f"came, then paused for {settings['stall_s']:g} s, in which loaders fill their queues. The figures "
            "are the peak until the pause, and the peak in its second half. Goals of memory are judged only by "
            "these runs, which read PSS 20 times as often as runs for a rate. feedstock has the same settings "
            "as for its rates; a separate row shows its memory with its defaults."
        )
    if any(mode == "resume" for mode, _ in modes):
        yield "Resuming is timed from `exec` to the batch that the saving run took next; its samples are compared."
    if any(mode in ("stall", "resume") for mode, _ in modes):
        yield "Memory and resuming are measured on local files, with pictures-train and speech."
    if content["calibration"]:
        yield (
            f"The number of workers (or threads) is the best one in short runs ({_calibrations(results)} of each "
            f"number), per storage, on {plan.CALIBRATED_ON} for all images and on speech. “Versions and "
            "configurations” lists the numbers that were tried."
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
    """Yields which machine measured what, if there were several."""
    made: dict[str, set[str]] = {}
    for run in results.content["runs"]:
        where = f"{MODES[run['mode']]} of {run['job']}, {run['storage']}"
        made.setdefault(", Linux ".join(results.machine_of(run)), set()).add(where)
    if len(made) > 1:
        told = ". ".join(f"{machine}: {'; '.join(sorted(places))}" for machine, places in made.items())
        yield (
            "Several machines, distinguished by processor and kernel, measured this; runs that are compared "
            f"with each other are of one of them. {told}. Bare parts were measured on one of them; the numbers "
            "of workers of any of them apply to all."
        )


def _seconds(results: Results) -> str:
    """Returns how long feedstock's rates from S3 were measured."""
    took = [
        seconds
        for peer in goals.OURS.values()
        for job in plan.JOBS
        for seconds in results.values(job, S3, "steady", peer, "seconds")
    ]
    return f"{min(took):.1f} to {max(took):.1f} s" if took else "some seconds"


def _realistic(results: Results) -> Iterator[str]:
    """Yields what the storage ``s3-realistic`` is, and how it was measured."""
    settings = results.content["settings"]
    options = " ".join(settings.get("s3_realistic", []))
    yield (
        f"S3, realistic (`s3-realistic`) is the same server with `{options}`, which draws the fate of every request; "
        "rates are measured as from s3. The first byte comes after a log-normal time with a median of 27 ms (σ 0.62: "
        "75 ms at 95 %, 114 ms at 99 %). One request in "
        "10⁴ takes 0.5 to 2 s, one in 10⁵ takes 10 s, and one in 10⁴ is never answered. A connection has 85 MB/s "
        "(σ 0.25); 1 % of the bodies come at a tenth of that. All requests share a limit of 5,500 per second, above "
        "which the answer is 503. Neither latency nor rates take CPU time."
    )
    yield (
        "The profile's percentiles of the first byte are published measurements of Amazon S3 from the same region. "
        "The rate of a connection and the limit of requests are those of [Amazon S3's documentation]"
        "(https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html) (85–90 MB/s for each "
        "request, 5,500 GETs per second and prefix). The shares of late, lost and slow answers are assumptions."
    )
    most = max(plan.LATE_NUMBERS)
    yield (
        f"From S3, realistic, up to {most} workers per core are tried (at most {plan.MOST_LATE_WORKERS}), until a "
        f"larger number delivers less than {plan.PAST_BEST:.0%} of the best rate. boto3, s3fs, Daft and curl repeat a "
        f"request without an answer after {RETRY_AFTER_S} s, as [Amazon recommends for small objects]"
        "(https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance-design-patterns.html); their "
        "defaults are longer (boto3's is 60 s). Other settings for this storage are listed with each contender below. "
        "One server serves all runs of a part, so the late and lost answers meet other requests in every run."
    )
    if any(run["mode"] == "steps" for run in results.content["runs"]):
        step_s = settings["step_s"]
        sizes: dict[str, int] = settings["batch_sizes"]
        jobs = ", ".join(
            f"{job} ({sizes[job]} samples a batch, so at most {sizes[job] / step_s:,.0f}/s)"
            for job in plan.STEP_JOBS
        )
        yield (
            f"Waiting with steps: the consumer sleeps {step_s * 1000:.0f} ms after each batch, as a trainer computes "
            "on an accelerator. The share of waiting is the time from its request for a batch to the batch, over "
            f"the same batches as for rates, with the same workers. Jobs: {jobs}."
        )


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
            "Outputs: every row of a small data set is compared with the reference's row of the same sample "
            "(PyTorch with Pillow; for speech, soundfile and torchaudio). The worst row's mean absolute "
            f"difference is at most {told} (levels of 255; natural logarithms)."
        )
    if compared - limits.keys() and "crop_epochs" in settings:
        yield (
            f"Outputs with random crops: each image is cropped {settings['crop_epochs']} times. The crops' means "
            "and standard deviations, the distributions of both about their image's, and the means of an 8 × 8 "
            "grid are tested against the reference's, each at a confidence of "
            f"{settings['crop_confidence']:.2%}. For means and deviations, "
            f"{settings['crop_tolerated']['pictures-train']:g} levels of 255 are tolerated, as caused by another "
            "resampler. Channels must be in the reference's order."
        )
    if compared:
        yield (
            "Outputs are compared from local files, unshuffled and with one worker. If they differ, they are "
            "compared once more with other random crops."
        )
        yield "Contenders whose outputs differ are shown, and never count as the best peer."
