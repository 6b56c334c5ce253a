"""The cluster that survives the loss of its head: kubectl renders it, and the published schemas take it."""

from __future__ import annotations

import json
import subprocess
from functools import cache

import kubetools
import pytest
from manifests import DEPLOY, VERSIONS, Object, check, documents, parsed

FOLDER = DEPLOY / "kuberay" / "lost-head"


@cache
def rendered() -> list[Object]:
    command = [kubetools.program("kubectl"), "kustomize", "--load-restrictor", "LoadRestrictionsNone", FOLDER]
    return parsed(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cluster() -> Object:
    (found,) = [document for document in rendered() if document["kind"] == "RayCluster"]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_published_schemas_take_every_object(version: str) -> None:
    for document in rendered():
        check(document, version)


def test_the_head_keeps_its_state_elsewhere() -> None:
    address = cluster()["spec"]["gcsFaultToleranceOptions"]["redisAddress"]
    host, port = address.rsplit(":", 1)
    assert host
    assert port.isdigit()


def test_one_node_stays_for_the_driver_and_runs_nothing_else() -> None:
    (plain,) = [d for d in documents(DEPLOY / "kuberay" / "raycluster.yaml") if d["kind"] == "RayCluster"]
    *others, drivers = cluster()["spec"]["workerGroupSpecs"]
    assert others == plain["spec"]["workerGroupSpecs"]
    assert (drivers["groupName"], drivers["minReplicas"], drivers["maxReplicas"]) == ("drivers", 1, 1)
    start = drivers["rayStartParams"]
    assert start["num-cpus"] == "0"
    resources = json.loads(json.loads(start["resources"]))
    (wanted,) = [
        line for line in (FOLDER / "kustomization.yaml").read_text().splitlines() if "ray job submit" in line
    ]
    assert f"--entrypoint-resources '{json.dumps(resources)}'" in wanted
