"""Trials of Ray Tune, and of Trainer's search, that share one fleet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import feedstock as fs

pytest.importorskip("torch")
pytest.importorskip("ray.tune")

import ray
import ray.tune
import torch
from programs import pages
from programs.ray_cluster import PATIENCE_S, RayCluster
from test_ray_fleet import QUICK, serving, until, workers_by_name

from feedstock.ray import WORKER_RESOURCE, Fleet, FleetHandle

PAGE = Path(__file__).parents[2] / "docs" / "python" / "tune.md"
EPOCHS = 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    cluster.add_node(**{WORKER_RESOURCE: 1})
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def pipeline(imagenet: Path) -> fs.Pipeline:
    pictures = fs.Dataset(imagenet).map("image", fs.decode_image(), fs.random_resized_crop(16))
    return pictures.shuffle(seed=7, window=64).batch(8).options(threads=1, slots=2)


@pytest.fixture
def fleet(cluster: RayCluster, pipeline: fs.Pipeline) -> Iterator[Fleet]:
    """Returns a fleet of one worker, without help from this machine, so that all rows come from it."""
    options: dict[str, Any] = {"cpus_per_worker": 0.1, "resources": {WORKER_RESOURCE: 1}, "_timing": QUICK}
    with Fleet(pipeline, 1, local="never", **options) as fleet:
        fleet.wait(timeout=PATIENCE_S)
        yield fleet
    until("no worker", lambda: not workers_by_name())


@ray.remote(num_cpus=0)
class Meeting:
    """Counts the trials that have come to a step."""

    def __init__(self) -> None:
        self.arrived: dict[int, set[str]] = {}

    def at(self, step: int, trial: str) -> int:
        self.arrived.setdefault(step, set()).add(trial)
        return len(self.arrived[step])


def train(config: dict[str, Any], fleet: FleetHandle, meeting: Any) -> None:
    """Reports the samples of each epoch. Trials wait for each other at every step."""
    trial = ray.tune.get_context().get_trial_id()
    with fleet.loader(output="numpy") as loader:
        for epoch in range(EPOCHS):
            ids = []
            for step, batch in enumerate(loader):
                ids += batch["sample_ids"].tolist()
                until("the other trial", lambda: ray.get(meeting.at.remote(100 * epoch + step, trial)) == 2)  # noqa: B023
            ray.tune.report({"ids": ids, "exact": loader.ledger()["exact"], "epoch": epoch})


def test_two_trials_at_a_time_share_what_a_worker_decodes(fleet: Fleet, tmp_path: Path) -> None:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.cloudpickle.register_pickle_by_value(sys.modules["test_ray_fleet"])
    results = ray.tune.Tuner(
        ray.tune.with_resources(
            ray.tune.with_parameters(train, fleet=fleet, meeting=Meeting.remote()), {"cpu": 0.5}
        ),
        param_space={"lr": ray.tune.grid_search([0.1, 0.2])},
        tune_config=ray.tune.TuneConfig(max_concurrent_trials=2),
        run_config=ray.tune.RunConfig(name="run", storage_path=str(tmp_path / "storage"), verbose=0),
    ).fit()
    assert len(results) == 2
    assert not results.errors
    last = [result.metrics for result in results]
    for metrics in last:
        assert sorted(metrics["ids"]) == list(range(200))
        assert (metrics["exact"], metrics["epoch"]) == (True, EPOCHS - 1)
    assert last[0]["ids"] == last[1]["ids"], "one seed, one order"

    def all_were_counted() -> bool:
        (worker,) = serving(fleet)
        made = worker["samples"]
        return made >= 2 * EPOCHS * 200 and worker["shared_samples"] > EPOCHS * 200 / 2

    until("the worker's counts", all_were_counted)


def make_model() -> torch.nn.Module:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 1000)

        def forward(self, image: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.net(image.float().mean((1, 2)) / 255)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Model()


def test_the_page(
    cluster: RayCluster, imagenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    replacements = {
        "s3://corpus/imagenet/train": str(imagenet),
        "(224)": "(16)",
        "batch(64)": "batch(20)",
        "size=64": "size=20",
        "max_workers=16, cpus_per_worker=8": f"cpus_per_worker=0.1, resources={{'{WORKER_RESOURCE}': 1}}",
        "num_train_epochs=2),": "num_train_epochs=2, use_cpu=True, report_to=[], disable_tqdm=True),",
        'mode="min", max_concurrent_trials=2),': 'mode="min", max_concurrent_trials=2),'
        f" run_config=tune.RunConfig(storage_path='{tmp_path}/tune', verbose=0),",
        "max_concurrent_trials=2,\n    )": "max_concurrent_trials=2, verbose=0,"
        f" storage_path='{tmp_path}/search')",
    }
    namespace: dict[str, Any] = {"__name__": "__main__", "make_model": make_model}
    pages.run_block(PAGE, 0, replacements, namespace)
    until("no worker", lambda: not workers_by_name())
    namespace["evaluation"] = namespace["pipeline"].batch(20, tail="pad")
    pages.run_block(PAGE, 1, replacements, namespace)
    assert [result.metrics["exact"] for result in namespace["results"]] == [True, True]
    assert namespace["best"].hyperparameters["learning_rate"] in (1e-3, 1e-2)
    assert namespace["best"].objective > 0
