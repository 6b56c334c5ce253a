"""Renders the chart of workers with Helm, and checks the objects as those of deploy/kubernetes are checked.

With its default values, the chart makes the objects of deploy/kubernetes/worker.yaml.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import threading
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import kubetools
import pytest
import yaml
from manifests import (
    DEPLOY,
    ROOT,
    VERSIONS,
    Object,
    below,
    check,
    check_worker_flags,
    documents,
    flags,
    parsed,
    pod_templates,
)

CHART = DEPLOY / "helm" / "feedstock-workers"
KUBERNETES = DEPLOY / "kubernetes"

EVERYTHING = {
    "autoscaling": {"enabled": True},
    "catalog": {"place": "folder", "claim": "catalogs", "subPath": "feedstock", "check": "list"},
    "drain": {"timeoutSeconds": 45, "preStopSeconds": 5},
    "memory": {"limit": "4096Mi", "decoderBytes": 1 << 20},
    "networkPolicy": {
        "enabled": True,
        "egress": [
            {"to": [{"ipBlock": {"cidr": "169.254.170.23/32"}}], "ports": [{"protocol": "TCP", "port": 80}]}
        ],
    },
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "tls": {"certManager": {"enabled": True}},
    "nodeSelector": {"feedstock.example.com/role": "ingest"},
    "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "low",
    "image": {"pullPolicy": "Always", "pullSecrets": ["registry"]},
    "podAnnotations": {"note": "1"},
    "podLabels": {"team": "speech"},
    "serviceAccount": {
        "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/worker"}
    },
    "extraArgs": ["--no-hedge"],
}
VARIANTS: dict[str, Object] = {
    "default": {},
    "everything": EVERYTHING,
    "bare": {
        "catalog": {"place": "cache"},
        "disruptionBudget": {"enabled": False},
        "env": [],
        "serviceAccount": {"create": False},
        "topologySpread": [],
    },
}


def run_helm(values: Object, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(kubetools.program("helm")), *arguments, "--values=-", "--namespace=feedstock"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=60)


@cache
def _rendered(values: str, release: str) -> str:
    done = run_helm(json.loads(values), "template", release, str(CHART))
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(values: Object, release: str = "feedstock-workers") -> list[Object]:
    return parsed(_rendered(json.dumps(values), release))


def one(objects: list[Object], kind: str) -> Object:
    (found,) = [document for document in objects if document["kind"] == kind]
    return found


def without_labels_of_helm(document: Object) -> Object:
    """Returns a copy without the labels that every chart sets, which plain manifests do not have."""
    copied = copy.deepcopy(document)
    own = {
        "app.kubernetes.io/instance",
        "app.kubernetes.io/version",
        "app.kubernetes.io/managed-by",
        "helm.sh/chart",
    }
    for node in below(copied):
        for key in ("labels", "matchLabels", "selector"):
            if isinstance(node.get(key), dict):
                node[key] = {k: v for k, v in node[key].items() if k not in own}
    return copied


def test_the_default_values_make_the_plain_manifests() -> None:
    plain = {d["kind"]: d for d in documents(KUBERNETES / "worker.yaml")}
    charted = {
        d["kind"]: without_labels_of_helm(d)
        for d in rendered({"serviceAccount": {"name": "feedstock-worker"}})
    }
    assert charted.keys() == plain.keys()
    for kind, document in charted.items():
        for made in (document, plain[kind]):  # one of both may label an object that the other does not
            made["metadata"].pop("labels", None)
        assert document == plain[kind], kind


def test_the_certificates_are_those_of_the_plain_manifests() -> None:
    values = {"tls": {"certManager": {"enabled": True}}}
    charted = [d for d in rendered(values) if d["apiVersion"].startswith("cert-manager")]
    plain = documents(KUBERNETES / "certificates.yaml")
    # The names of the objects follow the release's; what is in them must be the same.
    renamed = {"feedstock-workers": "feedstock-worker"}
    for word in ("root", "ca", "rank"):
        renamed[f"feedstock-workers-{word}"] = f"feedstock-{word}"
    for document in charted:
        for node in below(document):
            for key in ("name", "secretName"):
                if node.get(key) in renamed:
                    node[key] = renamed[node[key]]
        document["metadata"].pop("labels")
    assert sorted(charted, key=str) == sorted(plain, key=str)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_published_schemas_take_every_object(variant: str, version: str) -> None:
    for document in rendered(VARIANTS[variant], "w"):
        check(document, version)


def test_every_object_that_is_meant_is_made() -> None:
    kinds = [d["kind"] for d in rendered(EVERYTHING)]
    assert sorted(set(kinds)) == [
        "Certificate",
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "Issuer",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PodMonitor",
        "Service",
        "ServiceAccount",
    ]
    assert [d["kind"] for d in rendered(VARIANTS["bare"])] == ["Service", "Deployment"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_objects_refer_to_each_other(variant: str) -> None:
    objects = rendered(VARIANTS[variant], "other")
    deployment = one(objects, "Deployment")
    template = deployment["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    containers = {container["name"]: container for container in pod["containers"]}

    name = f"{one(objects, 'Service')['metadata']['name']}.feedstock.svc.cluster.local"
    for container in containers.values():
        commands = [container["command"] + container.get("args", [])]
        commands += [
            container[probe]["exec"]["command"]
            for probe in ("readinessProbe", "livenessProbe")
            if probe in container
        ]
        for command in commands:
            if command[0] == "feedstock":
                check_worker_flags(flags(command))
            assert flags(command).get("server-name", name) == name
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts <= volumes
    assert {m["name"] for c in containers.values() for m in c["volumeMounts"]} == {
        v["name"] for v in pod["volumes"]
    }

    selectors = [node["matchLabels"] for d in objects for node in below(d) if "matchLabels" in node]
    selectors = [s for s in selectors if "app.kubernetes.io/name" in s]
    selectors.append(one(objects, "Service")["spec"]["selector"])
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert selector["app.kubernetes.io/instance"] == "other"  # another release's pods are not selected
    assert {d["metadata"]["namespace"] for d in objects} == {"feedstock"}

    ports = {port["name"] for container in containers.values() for port in container["ports"]}
    for document in objects:
        match document["kind"]:
            case "HorizontalPodAutoscaler":
                target = document["spec"]["scaleTargetRef"]
                assert target["name"] == deployment["metadata"]["name"]
                assert document["spec"]["metrics"][0]["containerResource"]["container"] in containers
            case "PodMonitor":
                assert {e["port"] for e in document["spec"]["podMetricsEndpoints"]} <= ports
            case "NetworkPolicy":
                assert {p["port"] for rule in document["spec"]["ingress"] for p in rule["ports"]} <= ports
            case "ConfigMap":
                (volume,) = [v for v in pod["volumes"] if "configMap" in v]
                assert volume["configMap"]["name"] == document["metadata"]["name"]
            case "Certificate":
                if document["spec"]["secretName"] == "feedstock-worker-tls":
                    assert name in document["spec"]["dnsNames"]
    assert pod_templates(deployment) == [template]


def test_an_autoscaler_sets_the_number_of_pods() -> None:
    """A Deployment with `replicas` would undo the autoscaler's number at each upgrade."""
    assert "replicas" not in one(rendered({"autoscaling": {"enabled": True}}), "Deployment")["spec"]
    assert one(rendered({"replicas": 7}), "Deployment")["spec"]["replicas"] == 7


def test_the_grace_period_holds_the_hook_and_the_drain() -> None:
    pod = one(rendered(EVERYTHING), "Deployment")["spec"]["template"]["spec"]
    worker = pod["containers"][0]
    assert worker["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
    assert flags(worker["args"])["drain-timeout"] == "45"
    assert pod["terminationGracePeriodSeconds"] == 5 + 45 + 30


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 6 * 2**30 - 4 * 64 * 2**20),
        ({"threads": 8, "memory": {"limit": "16Gi"}}, 12 * 2**30 - 8 * 64 * 2**20),
        ({"memory": {"limit": "4096Mi", "decoderBytes": 2**20}}, 3 * 2**30 - 4 * 2**20),
        ({"memory": {"budgetBytes": 2**30}}, 2**30),
    ],
)
def test_the_memory_budget_fits_the_limit(values: Object, expected: int) -> None:
    (worker,) = one(rendered(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert int(flags(worker["args"])["memory-bytes"]) == expected
    assert worker["resources"]["requests"]["cpu"] == flags(worker["args"])["threads"]


@pytest.mark.parametrize(
    ("values", "expected"), [({}, None), ({"capacity": 0}, None), ({"capacity": 8}, "8")]
)
def test_capacity_is_passed_if_it_is_set(values: Object, expected: str | None) -> None:
    (worker,) = one(rendered(values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert flags(worker["args"]).get("capacity") == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": "four"}, "/replicas"),
        ({"replica": 4}, "'replica' not allowed"),
        ({"drain": {"timeout": 9}}, "'timeout' not allowed"),
        ({"catalog": {"place": "folder"}}, "catalog.claim"),
        ({"catalog": {"place": "bucket"}}, "/catalog/place"),
        ({"memory": {"limit": "8G"}}, "/memory/limit"),
        ({"capacity": 4097}, "/capacity"),
        ({"capacity": 1.5}, "/capacity"),
        ({"threads": 95}, "less than 128 MiB"),
        ({"memory": {"budgetBytes": 9 * 2**30}}, "more than memory.limit"),
        ({"autoscaling": {"enabled": True, "minReplicas": 17}}, "maxReplicas"),
        ({"allow": []}, "/allow"),
        ({"tokenSecret": ""}, "/tokenSecret"),
    ],
)
def test_wrong_values_are_refused(values: Object, message: str) -> None:
    done = run_helm(values, "template", "w", str(CHART))
    assert done.returncode != 0
    assert message in done.stderr


def test_the_values_of_the_page_are_valid() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    (values,) = re.findall(r"^```yaml\n# my-values.yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    kinds = [d["kind"] for d in rendered(yaml.safe_load(values))]
    assert {"HorizontalPodAutoscaler", "PodMonitor", "Certificate"} <= set(kinds)


def test_helm_finds_nothing_to_improve() -> None:
    done = run_helm(EVERYTHING, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_and_images_are_those_of_the_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert {chart["version"], chart["appVersion"]} == {version[1]}
    oldest = re.fullmatch(r">=([\d.]+)\.0-0", chart["kubeVersion"])
    assert oldest is not None
    assert oldest[1] == VERSIONS[0]


# ---- the worker's status for Prometheus


@pytest.fixture
def metrics() -> ModuleType:
    import importlib.util

    spec = importlib.util.spec_from_file_location("metrics_of_the_chart", CHART / "files" / "metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_prometheus_gets_the_status_of_a_worker(imagenet: Path, metrics: ModuleType) -> None:
    from served import worker

    import feedstock as fs

    token = "0123456789abcdef"
    serving = worker(imagenet, token=token)
    address = serving.address
    server = metrics.server(address, 0, token=token)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        before = scraped(url)
        pipeline = fs.Dataset(str(imagenet)).map("image", fs.decode_image(), fs.resize(8), fs.center_crop(8))
        with pipeline.batch(50).loader(workers=fs.Workers([address], token=token)) as loader:
            samples = sum(len(batch["label"]) for batch in loader)
        after = scraped(url)
        serving.stop()
        with pytest.raises(urllib.error.HTTPError) as stopped:
            scraped(url)
        assert stopped.value.code == 503
    finally:
        server.shutdown()
        server.server_close()
    assert before["feedstock_worker_samples_total"] == 0
    assert after["feedstock_worker_samples_total"] >= samples == 200
    assert after["feedstock_worker_busy_seconds_total"] > 0
    assert after["feedstock_worker_threads"] == 1
    assert after["feedstock_worker_capacity"] == 1
    assert after["feedstock_worker_draining"] == 0


def scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers.get_content_type() == "text/plain"
        lines = answer.read().decode().splitlines()
    values: dict[str, Any] = dict(line.split(" ") for line in lines if not line.startswith("#"))
    assert len(values) == len(lines) // 3  # each with HELP and TYPE
    return {name: float(value) for name, value in values.items()}
