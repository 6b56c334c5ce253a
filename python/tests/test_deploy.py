"""Checks the files in deploy/ with the schemas and programs that read them: Kubernetes, KubeRay, cert-manager,
`ray up`, EC2, and the feedstock command. The helm chart, Slurm and EKS have separate tests: test_deploy_*.py.

| files | checked with |
|---|---|
| objects of Kubernetes, every pod template | Kubernetes' JSON schemas, old and new (kubernetes-validate) |
| RayCluster, RayJob; Certificate, Issuer | their CRDs, as crates.io publishes them (`manifests.published`) |
| cluster.yaml | Ray's schema and checks; its instances: EC2's RunInstances as botocore describes it |
| the number of nodes that a fleet starts | Ray's autoscaler, given the manifests and the fleet's demand |
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
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
    pod_templates,
)

WORKER = DEPLOY / "kubernetes" / "worker.yaml"
RAY_CLUSTER = DEPLOY / "kuberay" / "raycluster.yaml"
RAY_JOB = DEPLOY / "kuberay" / "rayjob-common-voice.yaml"
RAY_UP = DEPLOY / "ray" / "cluster.yaml"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"

OBJECTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in sorted([*DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("kuberay/*.yaml")])
    for document in documents(path)
]


def one(path: Path, kind: str) -> Object:
    (found,) = [document for document in documents(path) if document["kind"] == kind]
    return found


# ---- schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", OBJECTS)
def test_the_published_schemas_take_every_object(document: Object, version: str) -> None:
    check(document, version)


def test_the_objects_are_those_that_are_meant() -> None:
    kinds = Counter((param.values[0]["apiVersion"], param.values[0]["kind"]) for param in OBJECTS)
    assert kinds == {
        ("v1", "ServiceAccount"): 2,
        ("v1", "Service"): 1,
        ("apps/v1", "Deployment"): 1,
        ("policy/v1", "PodDisruptionBudget"): 1,
        ("v1", "Secret"): 1,
        ("cert-manager.io/v1", "Issuer"): 2,
        ("cert-manager.io/v1", "Certificate"): 3,
        ("ray.io/v1", "RayCluster"): 1,
        ("ray.io/v1", "RayJob"): 1,
    }
    assert [len(pod_templates(one(*at))) for at in [(WORKER, "Deployment"), (RAY_CLUSTER, "RayCluster")]] == [
        1,
        3,
    ]
    assert len(pod_templates(one(RAY_JOB, "RayJob"))) == 3


BROKEN = [
    (WORKER, "Deployment", "spec.template.spec.terminationGracePeriodSecond", 90),
    (WORKER, "Deployment", "spec.template.spec.containers.0.readinessProbe.periodSeconds", "10"),
    (WORKER, "Deployment", "spec.selector", None),
    (WORKER, "PodDisruptionBudget", "spec.maxUnavailables", 1),
    (RAY_CLUSTER, "RayCluster", "spec.enableInTreeAutoscaler", True),
    (RAY_CLUSTER, "RayCluster", "spec.enableInTreeAutoscaling", "true"),
    (RAY_CLUSTER, "RayCluster", "spec.autoscalerOptions.version", "v3"),
    (RAY_CLUSTER, "RayCluster", "spec.workerGroupSpecs.0.maxReplicas", None),
    (RAY_CLUSTER, "RayCluster", "spec.workerGroupSpecs.0.rayStartParams.num-cpus", 8),
    (RAY_CLUSTER, "RayCluster", "spec.workerGroupSpecs.1.template.spec.containers.0.port", 8080),
    (RAY_CLUSTER, "RayCluster", "metadata.label", {}),
    (RAY_JOB, "RayJob", "spec.shutDownAfterJobFinishes", True),
    (RAY_JOB, "RayJob", "spec.rayClusterSpec.headGroupSpec", None),
    (RAY_JOB, "RayJob", "spec.rayClusterSpec.headGroupSpec.template.spec.containers.0.name", None),
]


@pytest.mark.parametrize(("path", "kind", "place", "value"), BROKEN, ids=[broken[2] for broken in BROKEN])
def test_the_published_schemas_refuse_what_is_wrong(path: Path, kind: str, place: str, value: object) -> None:
    document = copy.deepcopy(one(path, kind))
    *way, last = place.split(".")
    node: Any = document
    for step in way:
        node = node[int(step)] if isinstance(node, list) else node[step]
    if value is None:
        del node[last]
    else:
        node[last] = value
    with pytest.raises(jsonschema.ValidationError):
        check(document, VERSIONS[-1])


# ---- the workers' Deployment


def worker() -> tuple[Object, Object, dict[str, str], list[dict[str, str]]]:
    """Returns the Deployment's pod and container, the worker's flags, and those of its probes."""
    pod = one(WORKER, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = [container[probe]["exec"]["command"] for probe in ("readinessProbe", "livenessProbe")]
    assert container["command"] == ["feedstock", "worker"]
    assert all(probe[:2] == ["feedstock", "worker"] for probe in probes)
    return pod, container, flags(container["args"]), [flags(probe) for probe in probes]


def test_every_flag_is_one_that_the_worker_knows() -> None:
    _, _, serving, probes = worker()
    for used in [serving, *probes]:
        check_worker_flags(used)


def test_a_worker_may_drain_before_it_is_killed() -> None:
    pod, _, serving, _ = worker()
    assert pod["terminationGracePeriodSeconds"] > int(serving["drain-timeout"])


def test_ports_and_names_are_one() -> None:
    _, container, serving, probes = worker()
    service, deployment = one(WORKER, "Service"), one(WORKER, "Deployment")
    (port,), (outer,) = container["ports"], service["spec"]["ports"]
    assert serving["listen"] == f"0.0.0.0:{port['containerPort']}"
    assert outer["port"] == port["containerPort"]
    assert outer["targetPort"] == port["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert {probe["health"] for probe in probes} == {f"127.0.0.1:{port['containerPort']}"}

    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
    address = f"dns:{name}:{port['containerPort']}"
    for page in (WORKER, ROOT / "docs" / "deploy.md"):
        assert set(re.findall(r"dns:[\w.-]+:\d+", page.read_text())) == {address}, page
    assert {probe["server-name"] for probe in probes} == {name}
    (certificate,) = [c for c in certificates() if c["secretName"] == "feedstock-worker-tls"]
    assert name in certificate["dnsNames"]
    assert {"server auth", "client auth"} <= set(certificate["usages"])

    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in [
        service["spec"]["selector"],
        deployment["spec"]["selector"]["matchLabels"],
        one(WORKER, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(spread["labelSelector"]["matchLabels"] for spread in worker()[0]["topologySpreadConstraints"]),
    ]:
        assert selector.items() <= labels.items()
    assert {param.values[0]["metadata"]["namespace"] for param in OBJECTS} == {
        service["metadata"]["namespace"]
    }


def certificates() -> list[Object]:
    return [p.values[0]["spec"] for p in OBJECTS if p.values[0]["kind"] == "Certificate"]


def secrets() -> dict[str, set[str]]:
    """Returns the Secrets that deploy/ makes, with their keys."""
    made = {c["secretName"]: {"tls.crt", "tls.key", "ca.crt"} for c in certificates()}
    plain = [p.values[0] for p in OBJECTS if p.values[0]["kind"] == "Secret"]
    return made | {secret["metadata"]["name"]: set(secret["stringData"]) for secret in plain}


@pytest.mark.parametrize("document", OBJECTS)
def test_what_is_referred_to_is_there(document: Object) -> None:
    accounts = {p.values[0]["metadata"]["name"] for p in OBJECTS if p.values[0]["kind"] == "ServiceAccount"}
    issuers = {p.values[0]["metadata"]["name"] for p in OBJECTS if p.values[0]["kind"] == "Issuer"}
    for node in below(document):
        if isinstance(name := node.get("secretName"), str):
            assert name in secrets()
        if "secret" in node:
            assert {item["key"] for item in node["secret"].get("items", [])} <= secrets()[
                node["secret"]["name"]
            ]
        if "issuerRef" in node:
            assert node["issuerRef"]["name"] in issuers
        if "serviceAccountName" in node:
            assert node["serviceAccountName"] in accounts
    for template in pod_templates(document):
        volumes = {volume["name"] for volume in template["spec"].get("volumes", [])}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_every_file_that_a_flag_names_is_mounted() -> None:
    pod, container, serving, probes = worker()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    files = {
        f"{mounts[volume['name']]}/{item['path']}"
        for volume in pod["volumes"]
        if "projected" in volume
        for source in volume["projected"]["sources"]
        for item in source["secret"]["items"]
    }
    named = {value for used in [serving, *probes] for value in used.values() if value.startswith("/")}
    assert named == files
    assert len(files) == 4
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["FEEDSTOCK_CACHE"] == mounts["cache"]  # the root file system is read-only


def test_a_worker_stays_within_its_resources() -> None:
    pod, container, serving, _ = worker()
    resources = container["resources"]
    assert int(serving["threads"]) == int(resources["requests"]["cpu"])
    limit = int(resources["limits"]["memory"].removesuffix("Gi")) * 2**30
    assert limit == int(resources["requests"]["memory"].removesuffix("Gi")) * 2**30
    assert (
        int(serving["memory-bytes"]) == limit * 3 // 4 - int(serving["threads"]) * 64 * 2**20
    )  # docs/deploy.md
    on_disk = sum(
        int(v["emptyDir"]["sizeLimit"].removesuffix("Gi")) for v in pod["volumes"] if "emptyDir" in v
    )
    assert on_disk <= int(resources["limits"]["ephemeral-storage"].removesuffix("Gi"))


# ---- Ray


def cluster_spec(path: Path, kind: str) -> Object:
    spec = one(path, kind)["spec"]
    return spec["rayClusterSpec"] if kind == "RayJob" else spec


def groups(path: Path, kind: str) -> dict[str, Object]:
    return {group["groupName"]: group for group in cluster_spec(path, kind)["workerGroupSpecs"]}


def autoscaling_config(path: Path) -> Object:
    """Returns the configuration that Ray's autoscaler makes from a manifest, with Ray's code and checks."""
    pytest.importorskip("ray")
    if path == RAY_UP:
        from ray.autoscaler._private.util import prepare_config, validate_config

        (cluster,) = documents(path)
        prepared = prepare_config(cluster)
        validate_config(prepared)
        return prepared
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    kind = "RayCluster" if path == RAY_CLUSTER else "RayJob"
    metadata = {"name": "feedstock", "namespace": "feedstock"}
    return _derive_autoscaling_config_from_ray_cr({"metadata": metadata, "spec": cluster_spec(path, kind)})


def launched(config: Object, demands: list[dict[str, float]]) -> dict[str, int]:
    """Returns the nodes that Ray's autoscaler adds to the head for actors with these demands."""
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil

    class OfMemory(AutoscalingConfig):
        def update_configs(self, configs: Object, skip_content_hash: bool) -> None:
            self._configs = configs  # prepared and validated; no files of keys to hash

    read = OfMemory(config, skip_content_hash=True)
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=read.get_node_type_configs(),
        max_num_nodes=read.get_max_num_nodes(),
        resource_requests=ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(d) for d in demands]),
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert not reply.infeasible_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch}


RAY = [pytest.param(path, id=path.stem) for path in (RAY_CLUSTER, RAY_JOB, RAY_UP)]


def test_ray_up_takes_the_cluster_file() -> None:
    pytest.importorskip("ray")
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = autoscaling_config(RAY_UP)
    types = prepared["available_node_types"]
    assert prepared["max_workers"] == sum(node["max_workers"] for node in types.values())
    assert "deploy/ray/wheels" in prepared["file_mounts"].values()

    (cluster,) = documents(RAY_UP)
    cluster["available_node_types"]["ingest"]["min_worker"] = 0
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepare_config(cluster))


def test_ec2_takes_the_instances() -> None:
    service = ServiceModel(Loader().load_service_model("ec2", "service-2"))
    shape, types = service.operation_model("RunInstances").input_shape, service.shape_for("InstanceType").enum
    for name, node in documents(RAY_UP)[0]["available_node_types"].items():
        assert node["node_config"]["InstanceType"] in types
        asked = node["node_config"] | {"MinCount": 1, "MaxCount": 1}  # as Ray adds them
        report = ParamValidator().validate(asked, shape)
        assert not report.has_errors(), f"{name}: {report.generate_report()}"
    wrong = {"InstancType": "m7i.xlarge", "MinCount": 1, "MaxCount": 1}
    assert "InstancType" in ParamValidator().validate(wrong, shape).generate_report()


@pytest.mark.parametrize("path", RAY)
def test_the_resource_is_the_one_that_the_fleet_asks_for(path: Path) -> None:
    pytest.importorskip("ray")
    from feedstock.ray.fleet import WORKER_RESOURCE

    holders = {
        name: node["resources"][WORKER_RESOURCE]
        for name, node in autoscaling_config(path)["available_node_types"].items()
        if WORKER_RESOURCE in node["resources"]
    }
    assert holders == {"ingest": 1}  # one worker per node, which has all its CPUs


@pytest.mark.parametrize("path", RAY)
def test_a_fleet_brings_up_ingest_nodes_and_ranks_bring_up_trainers(path: Path) -> None:
    pytest.importorskip("ray")
    from feedstock.ray.fleet import WORKER_RESOURCE

    config = autoscaling_config(path)
    types = config["available_node_types"]
    head, trainers = config["head_node_type"], "trainer" if path == RAY_UP else "trainers"
    ingest = types["ingest"]["resources"]
    assert types[head]["resources"]["CPU"] == 0
    idle = {name: node["min_workers"] for name, node in types.items() if node["min_workers"]}
    assert "ingest" not in idle
    assert launched(config, []) == idle

    worker = {WORKER_RESOURCE: 1.0, "CPU": float(ingest["CPU"])}
    for count in (1, 5, types["ingest"]["max_workers"]):
        assert launched(config, [worker] * count) == idle | {"ingest": count}
    rank = {"CPU": 1.0, "GPU": 1.0}
    ranks = types[trainers]["max_workers"] * types[trainers]["resources"]["GPU"]
    assert launched(config, [rank] * ranks) == idle | {trainers: types[trainers]["max_workers"]}


@pytest.mark.parametrize(("path", "kind"), [(RAY_CLUSTER, "RayCluster"), (RAY_JOB, "RayJob")])
def test_ray_believes_in_the_cpus_that_kubernetes_gives(path: Path, kind: str) -> None:
    for name, group in groups(path, kind).items():
        (container,) = group["template"]["spec"]["containers"]
        assert group["rayStartParams"]["num-cpus"] == container["resources"]["requests"]["cpu"], name
        gpus = container["resources"]["limits"].get("nvidia.com/gpu")
        assert group["rayStartParams"].get("num-gpus") == gpus, name
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_job_runs_the_example_with_options_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    python, script, *options = shlex.split(one(RAY_JOB, "RayJob")["spec"]["entrypoint"])
    (copied,) = re.findall(r"^COPY (examples/\S+) (\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert python == "python"
    program = ROOT / copied[0] / Path(script).relative_to(copied[1])

    spec = importlib.util.spec_from_file_location("common_voice_ctc_of_the_job", program)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.setattr(sys, "argv", [script, *options])
    try:
        parsed = example.arguments()
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
    assert parsed.data
    assert parsed.runs
    assert parsed.name
    assert parsed.gpu
    assert "ray" in vars(parsed).values()  # its batches come from a fleet


def test_a_node_of_a_fleet_may_drain_before_it_is_killed() -> None:
    pytest.importorskip("ray")
    from feedstock.ray.fleet import Fleet

    seconds = inspect.signature(Fleet).parameters["drain_seconds"].default
    for path, kind in ((RAY_CLUSTER, "RayCluster"), (RAY_JOB, "RayJob")):
        pod = groups(path, kind)["ingest"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > seconds


def test_the_job_ends_its_cluster() -> None:
    spec = one(RAY_JOB, "RayJob")["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0


# ---- images and versions


def images() -> Mapping[str, set[Path]]:
    found: dict[str, set[Path]] = {}
    for path in [*DEPLOY.glob("kubernetes/*.yaml"), *DEPLOY.glob("kuberay/*.yaml")]:
        for document in documents(path):
            for template in pod_templates(document):
                for container in template["spec"]["containers"]:
                    found.setdefault(container["image"], set()).add(path)
    return found


def test_the_images_are_those_that_the_dockerfile_builds() -> None:
    text = DOCKERFILE.read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    assert len(stages) == len(re.findall(r"^FROM ", text, re.MULTILINE))
    assert set(re.findall(r"from=(\w+)", text)) <= set(stages)
    commands = text + RAY_UP.read_text() + (ROOT / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"--target (\w+)", commands)) == set(stages) - {"build"}
    built = dict(re.findall(r"--target (\w+) -t (\S+)", text))
    assert images() == {built["worker"]: {WORKER}, built["ray"]: {RAY_CLUSTER, RAY_JOB}}
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert {image.rpartition(":")[2] for image in built.values()} == {version[1]}


def test_versions_are_those_that_the_tests_run_with() -> None:
    ray = pytest.importorskip("ray")
    dockerfile, wanted = DOCKERFILE.read_text(), (ROOT / "python" / "requirements-test.txt").read_text()
    for text in (dockerfile, RAY_UP.read_text()):
        assert re.findall(r"'ray\[default,train\]==([\d.]+)'", text) == [ray.__version__]
        assert [f"torch=={pin}" for pin in re.findall(r"'torch==([\d.]+)'", text)] == re.findall(
            r"torch==\S+", wanted
        )[:1]
    assert [
        cluster_spec(p, k)["rayVersion"] for p, k in ((RAY_CLUSTER, "RayCluster"), (RAY_JOB, "RayJob"))
    ] == [ray.__version__] * 2
    rust = re.search(r'^rust-version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert rust is not None
    assert f"FROM rust:{rust[1]}-" in dockerfile
    (maturin,) = re.findall(
        r'requires = \["(maturin.+?)"\]', (ROOT / "python" / "pyproject.toml").read_text()
    )
    assert f"'{maturin}'" in dockerfile


def test_the_page_names_files_that_exist() -> None:
    pages = (ROOT / "docs").glob("deploy*.md")
    texts = [
        *pages,
        *(path for path in DEPLOY.rglob("*") if path.suffix in {".yaml", ".sbatch", ".sh"}),
        DOCKERFILE,
    ]
    named = {name for path in texts for name in re.findall(r"\b(?:deploy|docs)/[\w./-]*\w", path.read_text())}
    assert len(named) > 8
    made = {"deploy/ray/wheels"}  # by the command next to it
    assert not {name for name in named - made if not (ROOT / name).exists()}
