"""The driver of a job that test_ray_lost_head.py runs: a fleet, and two ranks that train on its batches."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import ray
import torch

import feedstock as fs
from feedstock.ray import WORKER_RESOURCE, DataConfig, Fleet

from .ray_cluster import fit
from .ray_loops import ddp


def main(address: str, node: str, data: str, folder: str) -> None:
    """Trains 4 epochs of 10 steps, writes what the fleet reports, and at the end the result."""
    ray.init(address, _node_ip_address=node, log_to_driver=False)
    images = fs.Dataset(data).map("image", fs.decode_image(), fs.random_resized_crop(16))
    pipeline = images.shuffle(seed=7, window=64).batch(global_batch_size=20).options(threads=1, slots=2)
    resources = {WORKER_RESOURCE: 1}
    with Fleet(pipeline, 2, cpus_per_worker=0.1, resources=resources, local="never") as fleet:
        fleet.wait(2)
        ended = threading.Event()
        reporter = threading.Thread(target=report, args=(fleet, Path(folder, "fleet.json"), ended))
        reporter.start()
        try:
            config = DataConfig(workers="ray")
            result = fit(ddp, pipeline, Path(folder), data_config=config, epochs=4, every=3)
        finally:
            ended.set()
            reporter.join()  # a call after the end of Ray would start another Ray
    Path(folder, "result.json").write_text(json.dumps(result.return_value))


def report(fleet: Fleet, path: Path, ended: threading.Event) -> None:
    """Writes the fleet's status every 0.2 s until ``ended`` is set."""
    while not ended.wait(0.2):
        try:
            new = path.with_suffix(".new")
            new.write_text(json.dumps(fleet.status()))
            new.rename(path)
        except ray.exceptions.RayError as error:
            print(error, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
