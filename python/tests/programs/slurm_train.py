"""deploy/slurm/train.py with a slow first start, and a record of every sample that enters one."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

TRAIN = Path(__file__).parents[3] / "deploy" / "slurm" / "train.py"
#: The first start stays in the middle of its first epoch until it is requeued.
FAST_STEPS, SLOW_STEP_S = 6, 1.0


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slurm_train_of_deploy", TRAIN)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def main() -> None:
    import torch

    torch.set_num_threads(1)
    program = module()
    attempt, rank = os.environ.get("SLURM_RESTART_COUNT", "0"), os.environ["RANK"]
    folder = Path(os.environ["RECORDS"])
    steps = itertools.count()
    with open(folder / f"attempt{attempt}-rank{rank}.jsonl", "a") as records:

        def record(epoch: int, batch: dict[str, Any]) -> None:
            line = {"attempt": int(attempt), "epoch": epoch, "ids": batch["sample_ids"].tolist()}
            records.write(json.dumps(line) + "\n")
            records.flush()
            if attempt == "0" and next(steps) >= FAST_STEPS:
                time.sleep(SLOW_STEP_S)

        is_complete = program.train(program.arguments(), record)
    if is_complete and rank == "0":
        workers = program.workers()
        status = [json.loads(workers.status(at)) for at in os.environ["FEEDSTOCK_WORKERS"].split(",")]
        (folder / "made.json").write_text(json.dumps([each["samples"] for each in status]))


if __name__ == "__main__":
    main()
