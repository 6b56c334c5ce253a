"""Trains speech to text with CTC and Ray Train on Common Voice in S3, with checkpoints in S3.

    python common_voice_ctc.py                                   # small: synthesised speech, twice, and compares
    python common_voice_ctc.py --data s3://corpus/cv-corpus-17.0/de --split train \\
        --checkpoints s3://runs/german --name ctc-1 --trainers 8 --gpu --epochs 10 --width 512 --layers 4
    python common_voice_ctc.py … --workers ray --max-workers 16  # a fleet on other nodes decodes the audio clips

Workers may fail. The small run makes 96 audio clips and puts them into a local S3 server if ``--s3-server`` names
one, else into plain folders. It trains once without a fault, then again with a worker killed by SIGKILL in the middle
of an epoch, and checks that both runs have the same losses, step by step. A run under a ``--name`` that was used
before resumes from its last checkpoint.

Credentials and region come from the environment, both for feedstock and for the checkpoints:
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, and ``AWS_ENDPOINT_URL`` for stores other than
Amazon's. On a cluster, every node needs them. ``RAY_ADDRESS`` selects a cluster; otherwise the script starts Ray on
this machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch import nn

import feedstock as fs
from feedstock.ray import WORKER_RESOURCE, DataConfig, Fleet

# Token 0 is CTC's blank; characters that are not listed are written as a space.
VOCABULARY = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyzäöüß'"]


class SpeechToText(nn.Module):
    """Two strided convolutions (40 ms per step), LSTMs, and a distribution over characters at each step."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2),
            nn.GELU(),
        )
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, len(VOCABULARY))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Maps f32 [rows, frames, 80] to log-probabilities [rows, ⌈⌈frames / 2⌉ / 2⌉, characters]."""
        steps = self.front(features.transpose(1, 2)).transpose(1, 2)
        return self.out(self.lstm(steps)[0]).log_softmax(-1)


def ctc_loss(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Returns the mean over the batch's valid rows, each divided by its number of characters."""
    log_probs = model(batch["audio"])
    frames, characters, valid = batch["audio_length"], batch["tokens_length"], batch["valid"]
    losses = nn.functional.ctc_loss(
        log_probs.transpose(0, 1),
        batch["tokens"],
        ((frames + 1) // 2 + 1) // 2,
        characters,
        reduction="none",
        zero_infinity=True,  # a sentence with more characters than steps cannot be written
    )
    return (losses / characters.clamp(min=1))[valid].sum() / valid.sum().clamp(min=1)


def pipeline(uri: str, split: str, seed: int, global_batch_size: int, threads: int | None) -> fs.Pipeline:
    """Returns log-mel features and characters. Batches hold audio clips of similar length, and global batches
    are the same for any world size."""
    return (
        fs.Dataset(uri, split=split)
        .filter("duration < 20")
        .map("audio", fs.decode_audio(), fs.resample(16_000), fs.log_mel(80), fs.spec_augment())
        .map("sentence", fs.tokenize_chars(VOCABULARY, unknown=1, lowercase=True), output="tokens")
        .shuffle(seed=seed)
        .bucket_by("duration")
        .batch(global_batch_size=global_batch_size, tail="pad")
        .on_error("skip")  # Common Voice has audio clips that no decoder can read
        .options(threads=threads)
    )


def train(config: dict[str, Any]) -> list[float]:
    """Runs in each worker; returns the loss of every step, including those before a resume."""
    torch.manual_seed(config["seed"])
    rank, loader = ray.train.get_context().get_world_rank(), ray.train.get_dataset_shard("train")
    model = prepare_model(SpeechToText(config["width"], config["layers"]))
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    losses: list[float] = []

    checkpoint = (
        ray.train.get_checkpoint()
    )  # the last one that Ray has registered; a folder in S3 may still be incomplete
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), map_location=get_device(), weights_only=True)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        losses = saved["losses"]

    while loader.epoch < config["epochs"]:
        # On this worker's device: page-locked slots are copied to a GPU while the model computes.
        for batch in loader.iter_torch_batches():
            if checkpoint is None and [rank, len(losses)] == config["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = ctc_loss(model, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

            mean = loss.detach()
            if dist.is_initialized():
                dist.all_reduce(mean, dist.ReduceOp.SUM)
                mean /= dist.get_world_size()
            losses.append(mean.item())
            if len(losses) % config["checkpoint_every"] == 0:
                state = {
                    "model": plain.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),
                    "losses": losses,
                }
                report(state, rank)
    return losses


def report(state: dict[str, Any], rank: int) -> None:
    """Passes rank 0's state to Ray, which writes it to the run's storage and registers it. All ranks must
    call it."""
    metrics = {"step": len(state["losses"]), "loss": state["losses"][-1]}
    if rank != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, Path(folder, "state.pt"))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


def fit(data: fs.Pipeline, options: argparse.Namespace, name: str, kill: list[int] | None) -> list[float]:
    """Executes one run. ``kill`` is the (rank, step) of a worker to kill."""
    filesystem, path = checkpoint_storage(options.checkpoints)
    trainer = TorchTrainer(
        train,
        train_loop_config={
            "seed": options.seed,
            "width": options.width,
            "layers": options.layers,
            "lr": options.lr,
            "epochs": options.epochs,
            "checkpoint_every": options.checkpoint_every,
            "kill": kill,
        },
        scaling_config=ray.train.ScalingConfig(num_workers=options.trainers, use_gpu=options.gpu),
        run_config=ray.train.RunConfig(
            name=name,
            storage_filesystem=filesystem,
            storage_path=path,
            failure_config=ray.train.FailureConfig(max_failures=options.max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
        ),
        datasets={"train": data},
        dataset_config=DataConfig(workers=options.workers),
    )
    losses: list[float] = trainer.fit().return_value
    print(f"{name}: {len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
    return losses


def fleet(data: fs.Pipeline, options: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Starts workers on the cluster's nodes for ingest, if --workers requests them."""
    if options.workers != "ray":
        return contextlib.nullcontext()
    return Fleet(
        data,
        min_workers=1,
        max_workers=options.max_workers,
        cpus_per_worker=options.cpus_per_worker,
        resources={WORKER_RESOURCE: 1} if options.ingest_nodes else None,
    )


def checkpoint_storage(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Returns the location of checkpoints in Ray's form: a file system and a path on it."""
    if not uri.startswith("s3://"):
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(uri)
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    scheme, _, host = endpoint.rpartition("://")
    s3 = pyarrow.fs.S3FileSystem(
        region=os.environ.get("AWS_REGION", "us-east-1"),
        endpoint_override=host or None,
        scheme=scheme or "https",
    )
    return s3, uri.removeprefix("s3://").rstrip("/")


@contextlib.contextmanager
def small_corpus(options: argparse.Namespace) -> Iterator[None]:
    """Makes synthesised speech, in an S3 server if there is one; sets ``options.data`` and
    ``options.checkpoints``."""
    with tempfile.TemporaryDirectory(prefix="feedstock-ctc-") as folder, contextlib.ExitStack() as stack:
        clips = Path(folder, "clips")
        synth = [sys.executable, "-m", "feedstock", "synth", "common-voice", str(clips)]
        subprocess.run(
            [*synth, "--samples", "96", "--seed", "1", "--layout", "mozilla", "--quiet"], check=True
        )
        options.data, options.checkpoints = str(clips), str(Path(folder, "runs"))
        if options.s3_server:
            stack.enter_context(s3_server(options.s3_server, Path(folder, "buckets")))
            s3, _ = checkpoint_storage("s3://corpus")
            pyarrow.fs.copy_files(str(clips), "corpus/cv", destination_filesystem=s3, use_threads=False)
            options.data, options.checkpoints = "s3://corpus/cv", "s3://runs/ctc"
        yield


@contextlib.contextmanager
def s3_server(program: str, root: Path) -> Iterator[None]:
    """Runs this repository's S3 server for tests (``cargo build -p feedstock-testkit``), and sets the
    environment for it."""
    for bucket in ("corpus", "runs"):
        (root / bucket).mkdir(parents=True)
    server = subprocess.Popen([program, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        os.environ.update(
            AWS_ENDPOINT_URL=server.stdout.readline().strip(),
            AWS_REGION="us-east-1",
            AWS_ACCESS_KEY_ID="feedstock-test-access",
            AWS_SECRET_ACCESS_KEY="feedstock-test-SECRET-4f7a",
        )
        yield
    finally:
        server.kill()
        server.wait()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--data", help="a Common Voice data set in any layout; default: synthesised speech")
    add("--split", default="train")
    add("--checkpoints", help="s3://bucket/prefix, or a folder that all nodes share; required with --data")
    add("--name", default="ctc", help="name of the run; a run with this name resumes")
    add("--trainers", type=int, default=2, help="ranks")
    add("--gpu", action="store_true", help="one GPU for each rank")
    add("--workers", help="'ray' decodes in a fleet that this job starts; default: in the ranks")
    add("--max-workers", type=int, default=8, help="size limit of the fleet, which grows while ranks wait")
    add("--cpus-per-worker", type=int, default=1)
    add(
        "--ingest-nodes",
        action="store_true",
        help=f"place workers only on nodes with the resource {WORKER_RESOURCE}",
    )
    add("--epochs", type=int, default=2)
    add("--global-batch-size", type=int, default=16)
    add("--width", type=int, default=64)
    add("--layers", type=int, default=1)
    add("--lr", type=float, default=2e-3)
    add("--seed", type=int, default=7)
    add("--threads", type=int, help="feedstock's CPU threads per rank; default: all that it may use")
    add("--checkpoint-every", type=int, default=2, help="steps between checkpoints")
    add("--max-failures", type=int, default=3)
    add("--s3-server", help="path of feedstock-test-s3, for the small run")
    add("--json", type=Path, help="file to write each run's losses to")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    small = not options.data
    if not small and not options.checkpoints:
        sys.exit("--data needs --checkpoints: set it to a folder or s3:// prefix for the run's checkpoints")
    with small_corpus(options) if small else contextlib.nullcontext():
        if not os.environ.get("RAY_ADDRESS"):
            # A rank reserves one CPU; machines with fewer CPUs can still run this.
            cpus = max(options.trainers + 1, os.cpu_count() or 1)
            ray.init(num_cpus=cpus, object_store_memory=100 * 2**20, include_dashboard=False)
        data = pipeline(options.data, options.split, options.seed, options.global_batch_size, options.threads)
        print(f"{options.data}: {len(data.dataset)} audio clips; checkpoints in {options.checkpoints}")
        with fleet(data, options):
            runs = {options.name: fit(data, options, options.name, None)}
            if small:
                # Before the last step, so that the checkpoint to resume from is in the middle of the last epoch.
                step, name = len(runs[options.name]) - 1, options.name + "-killed"
                runs[name] = fit(data, options, name, [options.trainers - 1, step])
        if options.json:
            options.json.write_text(json.dumps(runs))
        ray.shutdown()
    if small:
        unbroken, killed = runs.values()
        if killed != unbroken:
            sys.exit(f"the losses differ:\n{unbroken}\n{killed}")
        print(
            f"a worker was killed before step {step}; all {len(killed)} losses equal those of the other run"
        )


if __name__ == "__main__":
    main()
