"""A job under AdaptDL on one machine: replicas with its environment variables and its checkpoint directory. Like its
scheduler, tests stop them by SIGTERM and start another number of them. Every sample that enters a step is recorded.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

PATIENCE_S = 900.0  # as in torch_ranks: only failing tests wait this long
TERMINATED = 143  # AdaptDL's exit code after a checkpoint that a signal requested


# Measurements given to AdaptDL, so that its choice is known: the largest allowed batch, by accumulation.
SLOW_NETWORK = (0.01, 0.001, 1.0, 0.0, 1.0, 0.0, 1.1)
MUCH_NOISE = (1e-6, 1.0)


@dataclass(frozen=True)
class Job:
    data: str
    folder: str
    epochs: int = 2
    batch_size: int = 12
    """Rows per step over all replicas."""
    max_batch_size: int = 0
    """The maximum for autoscaling; 0 for none."""
    by: str = "data"
    """What ends an epoch: "data" or "progress"."""
    stop_after: int | None = None
    """Batches after which replica 0 gets SIGTERM."""
    kill_after: int | None = None
    """Batches after which the last replica kills itself (SIGKILL)."""
    evaluate: bool = False
    """Whether a second loader runs in each epoch."""
    stop_in_evaluation: bool = False


class Nursery:
    """Starts replicas as forks of one process that has imported AdaptDL (5 s of CPU each otherwise)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "programs.adaptive_adaptdl"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the same feedstock as here
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def launch(self, job: Job, replicas: int, restarts: int) -> list[int]:
        """Runs the job in `replicas` processes, and returns their exit codes, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asdict(job), replicas, restarts]) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def serve() -> None:
    """Runs the nursery's process, which reads one job per line."""
    import adaptdl.torch  # noqa: F401
    import torch._dynamo  # noqa: F401

    for line in sys.stdin:
        fields, replicas, restarts = json.loads(line)
        print(json.dumps(_fork(Job(**fields), replicas, restarts)), flush=True)


def _fork(job: Job, replicas: int, restarts: int) -> list[int]:
    folder = Path(job.folder)
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "ADAPTDL_CHECKPOINT_PATH": str(folder / "checkpoints"),
        "ADAPTDL_JOB_ID": "test",
        "ADAPTDL_MASTER_ADDR": "127.0.0.1",
        "ADAPTDL_MASTER_PORT": str(port),
        "ADAPTDL_NUM_REPLICAS": str(replicas),
        "ADAPTDL_NUM_NODES": "1",
        "ADAPTDL_NUM_RESTARTS": str(restarts),
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    children = []
    for rank in range(replicas):
        child = os.fork()
        if child == 0:
            _replica(job, {**environment, "ADAPTDL_REPLICA_RANK": str(rank)})
        children.append(child)
    codes: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(codes) < replicas:
        for child in set(children) - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
                if codes[child] not in (0, TERMINATED):
                    deadline = min(deadline, time.monotonic() + 10.0)  # the others wait for it in vain
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return [codes[child] for child in children]


def printed(folder: Path) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(folder.glob("output-*")))


def _replica(job: Job, environment: dict[str, str]) -> NoReturn:
    os.environ.update(environment)
    name = f"output-{environment['ADAPTDL_NUM_RESTARTS']}-{environment['ADAPTDL_REPLICA_RANK']}"
    output = os.open(Path(job.folder, name), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        train(job)
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(job: Job) -> None:
    import adaptdl.env
    import adaptdl.reducer
    import adaptdl.torch
    import torch
    from adaptdl.goodput import GoodputFunction
    from adaptdl.torch import data
    from torch import nn

    import feedstock as fs
    from feedstock.adaptdl import AdaptDLLoader

    from .adaptive_train import Model
    from .torch_records import Records

    # Its replicas look for replica 0 every 5 s, which is too long for a test.
    adaptdl.reducer.time = SimpleNamespace(sleep=lambda _: time.sleep(0.5))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    adaptdl.torch.init_process_group("gloo")
    rank, restarts = adaptdl.env.replica_rank(), adaptdl.env.num_restarts()
    folder = Path(job.folder)
    pictures = (
        fs.Dataset(job.data).map("image", fs.decode_image(), fs.random_resized_crop(16)).options(threads=1)
    )
    loader = AdaptDLLoader(
        pictures.shuffle(seed=7).batch(1, tail="pad"),
        job.batch_size,
        epochs=job.by,  # type: ignore[arg-type]
        sync_steps=4,
    )
    if job.max_batch_size:
        # The upper bound must be at least the batch size over all replicas: AdaptDL's rule.
        loader.autoscale_batch_size(job.max_batch_size, (1, job.batch_size), gradient_accumulation=True)
    evaluation = AdaptDLLoader(pictures.batch(1, tail="pad"), 40) if job.evaluate else None
    network = Model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    model = adaptdl.torch.AdaptiveDataParallel(network, optimizer)
    totals = adaptdl.torch.Accumulator()
    records = Records(folder / "records", restarts, rank)
    evaluated = Records(folder / "evaluated", restarts, rank)
    batches, sizes = 0, []
    result: dict[str, Any] = {"evaluated": {}}
    for epoch in adaptdl.torch.remaining_epochs_until(job.epochs):
        for batch in loader:
            batches += 1
            valid = batch["valid"]
            records.write(loader.loader.epoch, batches, batch)
            if job.stop_after == batches and rank == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            if job.kill_after == batches and rank == adaptdl.env.num_replicas() - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"] % 10, reduction="none")
            optimizer.zero_grad()
            (loss * valid).mean().backward()
            optimizer.step()
            totals["rows"] += int(valid.sum())
            sizes.append((len(valid), loader.accumulation_steps))
            if job.max_batch_size and batches == 6:
                data.get_goodput_fn = lambda: GoodputFunction(SLOW_NETWORK, MUCH_NOISE, job.batch_size)
        if evaluation is not None:
            for number, batch in enumerate(evaluation):
                evaluated.write(epoch, number, batch)
                totals["evaluated"] += int(batch["valid"].sum())
                if job.stop_in_evaluation and rank == 0 and number == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
        with totals.synchronized():
            result["evaluated"][epoch] = totals.get("evaluated", 0)
            totals["evaluated"] = 0
            result["rows"] = totals["rows"]
    result |= {"sizes": sizes, "passes": loader.loader.epoch}
    (folder / f"done-{rank}").write_text(json.dumps(result))


if __name__ == "__main__":
    serve()
