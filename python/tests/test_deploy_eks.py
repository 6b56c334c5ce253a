"""Checks deploy/eks: the node groups as EKS describes them, templates with cfn-lint, and what kubectl and Helm render.

| files | checked with |
|---|---|
| cluster.yaml | EKS's CreateNodegroup and EC2's types as botocore describes them. No registry has eksctl's schema |
| access.yaml, catalogs.yaml | cfn-lint, with CloudFormation's resource schemas |
| kustomization.yaml, deploy/kuberay | kubectl renders them; schemas of Kubernetes and of the operators |
| values-workers.yaml | Helm renders the chart with it; the same schemas |
| board.json | each query by a parser of PromQL; each metric is one that feedstock publishes |

The values of other projects' charts (values-*.yaml) are not checked here: no registry has these charts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubetools
import promql_parser
import pytest
import yaml
from botocore.loaders import Loader
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from manifests import DEPLOY, ROOT, VERSIONS, Object, check, documents, flags, parsed, pod_templates

EKS = DEPLOY / "eks"
CLUSTER = documents(EKS / "cluster.yaml")[0]
GROUPS: dict[str, Object] = {group["name"]: group for group in CLUSTER["managedNodeGroups"]}

#: CPUs, GiB and GPUs of the instance types, by their size and family.
SIZES = {
    "m7i.xlarge": (4, 16, 0),
    **{f"{family}.4xlarge": (16, 32, 0) for family in ("c7i", "c7a", "c6i", "c6a")},
    "m7i.4xlarge": (16, 64, 0),
    "g6.8xlarge": (32, 128, 1),
    "g5.8xlarge": (32, 128, 1),
}


@cache
def kustomized() -> list[Object]:
    command = [kubetools.program("kubectl"), "kustomize", "--load-restrictor", "LoadRestrictionsNone", EKS]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


@cache
def workers() -> list[Object]:
    chart, values = DEPLOY / "helm" / "feedstock-workers", EKS / "values-workers.yaml"
    command = [kubetools.program("helm"), "template", "feedstock-workers", chart, "--namespace=feedstock"]
    command += [f"--values={values}"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def everything() -> list[Object]:
    return [*kustomized(), *workers(), *documents(EKS / "catalog-job.yaml")]


def pods() -> Iterator[tuple[str, Object]]:
    """Yields every pod's template, with the kind of its object."""
    for document in everything():
        for template in pod_templates(document):
            yield document["kind"], template["spec"]


def cpus(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


def gibibytes(quantity: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(Mi|Gi)", quantity).groups()  # type: ignore[union-attr]
    return float(number) / (1024 if unit == "Mi" else 1)


def group_of(pod: Object) -> Object:
    """Returns the node group that a pod's selector names."""
    selector = pod["nodeSelector"].items()
    (group,) = [group for group in GROUPS.values() if selector <= group["labels"].items()]
    return group


# ---- eksctl


def test_eks_takes_the_node_groups() -> None:
    eks = ServiceModel(Loader().load_service_model("eks", "service-2"))
    ec2 = ServiceModel(Loader().load_service_model("ec2", "service-2"))
    types = ec2.shape_for("InstanceType").enum
    effects = dict(
        zip(("NoSchedule", "NoExecute", "PreferNoSchedule"), eks.shape_for("TaintEffect").enum, strict=True)
    )
    known = {"name", "spot", "instanceTypes", "availabilityZones", "minSize", "maxSize", "desiredCapacity"}
    known |= {"volumeSize", "privateNetworking", "propagateASGTags", "labels", "taints"}
    for name, group in GROUPS.items():
        assert set(group) <= known, name
        assert set(group["instanceTypes"]) <= set(types), name
        assert set(group["instanceTypes"]) <= set(SIZES), name
        asked = {
            "clusterName": CLUSTER["metadata"]["name"],
            "nodegroupName": name,
            "subnets": ["subnet-0"],
            "nodeRole": "arn:aws:iam::111122223333:role/node",
            "instanceTypes": group["instanceTypes"],
            "diskSize": group["volumeSize"],
            "scalingConfig": {key: group[key] for key in ("minSize", "maxSize")}
            | {"desiredSize": group["desiredCapacity"]},
            "labels": group["labels"],
            "taints": [taint | {"effect": effects[taint["effect"]]} for taint in group.get("taints", [])],
            "capacityType": "SPOT" if group.get("spot") else "ON_DEMAND",
        }
        report = ParamValidator().validate(asked, eks.operation_model("CreateNodegroup").input_shape)
        assert not report.has_errors(), f"{name}: {report.generate_report()}"
        assert group["minSize"] <= group["desiredCapacity"] <= group["maxSize"]
        assert set(group.get("availabilityZones", [])) <= set(CLUSTER["availabilityZones"])
        # From zero nodes, the autoscaler knows a group's labels and taints only by tags.
        assert group["minSize"] > 0 or group["propagateASGTags"] is True


def test_only_the_head_needs_nodes_that_stay() -> None:
    assert {name for name, group in GROUPS.items() if not group.get("spot")} == {"system"}
    assert {name for name, group in GROUPS.items() if group["minSize"] > 0} == {"system"}


def test_pods_have_the_identities_that_the_manifests_name() -> None:
    associations = {a["serviceAccountName"]: a for a in CLUSTER["iam"]["podIdentityAssociations"]}
    accounts = {d["metadata"]["name"] for d in everything() if d["kind"] == "ServiceAccount"}
    ours = {name for name, association in associations.items() if association["namespace"] == "feedstock"}
    assert ours == accounts
    autoscaler = yaml.safe_load((EKS / "values-autoscaler.yaml").read_text())
    assert set(associations) - ours == {autoscaler["rbac"]["serviceAccount"]["name"]}
    assert autoscaler["autoDiscovery"]["clusterName"] == CLUSTER["metadata"]["name"]
    assert autoscaler["awsRegion"] == CLUSTER["metadata"]["region"]
    policies = {
        resource["Properties"]["ManagedPolicyName"]
        for resource in template("access.yaml")["Resources"].values()
        if resource["Type"] == "AWS::IAM::ManagedPolicy"
    }
    used = {arn for a in associations.values() for arn in a.get("permissionPolicyARNs", [])}
    assert {arn.rpartition("/")[2] for arn in used} == policies


# ---- CloudFormation


class Tags(yaml.SafeLoader):
    """Reads CloudFormation's short forms, such as !Ref, as their arguments."""


def _argument(loader: yaml.SafeLoader, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_mapping(node, deep=True)


Tags.add_multi_constructor("!", _argument)


def template(name: str) -> Object:
    return yaml.load((EKS / name).read_text(), Loader=Tags)


def test_cfn_lint_finds_nothing(tmp_path: Path) -> None:
    """One run checks both templates and a broken copy, since cfn-lint needs seconds to start."""
    text = (EKS / "access.yaml").read_text()
    (tmp_path / "broken.yaml").write_text(
        text.replace("BucketName:", "BucketNam:").replace(
            "DaysAfterInitiation: 2", "DaysAfterInitiation: soon"
        )
    )
    files = [EKS / "access.yaml", EKS / "catalogs.yaml", tmp_path / "broken.yaml"]
    command = [sys.executable, "-c", "from cfnlint.runner import main; main()", "--format", "json"]
    command += ["--regions", CLUSTER["metadata"]["region"], "--"]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, timeout=120)
    found = {(Path(match["Filename"]).name, match["Rule"]["Id"]) for match in json.loads(done.stdout)}
    assert found == {("broken.yaml", "E3002"), ("broken.yaml", "E3012")}, done.stdout


def test_no_policy_allows_more_than_its_use() -> None:
    allowed: dict[str, set[str]] = {}
    for name, resource in template("access.yaml")["Resources"].items():
        if resource["Type"] != "AWS::IAM::ManagedPolicy":
            continue
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
            assert statement["Effect"] == "Allow"
            assert statement["Resource"] != "*"
            actions = statement["Action"]
            allowed.setdefault(name, set()).update([actions] if isinstance(actions, str) else actions)
    assert allowed["Read"] == {"s3:ListBucket", "s3:GetObject"}
    assert not {action for actions in allowed.values() for action in actions if "*" in action}


# ---- what runs in the cluster


def test_the_published_schemas_take_every_object() -> None:
    objects = everything()
    kinds = {
        "RayCluster",
        "PersistentVolume",
        "PersistentVolumeClaim",
        "PodMonitor",
        "ConfigMap",
        "Job",
        "Deployment",
    }
    assert kinds <= {document["kind"] for document in objects}
    for document in objects:
        check(document, VERSIONS[-1])


def test_every_pod_fits_a_node_of_its_group() -> None:
    counted = 0
    for kind, pod in pods():
        group = group_of(pod)
        tolerated = [
            (t["key"], t["operator"], t.get("value"), t["effect"]) for t in pod.get("tolerations", [])
        ]
        for taint in group.get("taints", []):
            exactly = (taint["key"], "Equal", taint["value"], taint["effect"])
            assert exactly in tolerated or (taint["key"], "Exists", None, taint["effect"]) in tolerated, kind
        requests = [container["resources"]["requests"] for container in pod["containers"]]
        if pod["containers"][0]["name"] == "ray-head":
            requests.append({"cpu": "500m", "memory": "1Gi"})  # KubeRay adds the autoscaler
        for instance in group["instanceTypes"]:
            node_cpus, node_gib, gpus = SIZES[instance]
            # EKS keeps some 0.1 CPU at these sizes, and 255 MiB + 11 MiB for each of up to 234 pods + 100 MiB. Daemon
            # sets of this cluster request 0.25 CPU and 0.25 GiB.
            assert sum(cpus(r["cpu"]) for r in requests) <= node_cpus - 0.35, f"{kind} on {instance}"
            assert sum(gibibytes(r["memory"]) for r in requests) <= node_gib * 0.97 - 3.1, (
                f"{kind} on {instance}"
            )
            assert sum(int(r.get("nvidia.com/gpu", 0)) for r in requests) <= gpus, f"{kind} on {instance}"
        counted += 1
    assert counted == 3 + 1 + 1  # Ray's head and groups, the workers, the catalog's job


def test_groups_of_ray_have_the_nodes_that_they_may_ask_for() -> None:
    (cluster,) = [document for document in kustomized() if document["kind"] == "RayCluster"]
    for group in cluster["spec"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        assert group["maxReplicas"] <= group_of(pod)["maxSize"], group["groupName"]
        assert group["rayStartParams"]["num-cpus"] == pod["containers"][0]["resources"]["requests"]["cpu"]
    (autoscaler,) = [document for document in workers() if document["kind"] == "HorizontalPodAutoscaler"]
    assert autoscaler["spec"]["maxReplicas"] <= GROUPS["ingest"]["maxSize"]


def test_only_the_job_can_write_catalogs() -> None:
    claims = {d["metadata"]["name"]: d for d in kustomized() if d["kind"] == "PersistentVolumeClaim"}
    volumes = {d["metadata"]["name"]: d for d in kustomized() if d["kind"] == "PersistentVolume"}
    for name, claim in claims.items():
        volume = volumes[claim["spec"]["volumeName"]]
        assert volume["spec"]["claimRef"] == {"namespace": "feedstock", "name": name}
        assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"]
        handle = volume["spec"]["csi"]["volumeHandle"]
        assert re.fullmatch(r"fs-[0-9a-f]{17}::fsap-[0-9a-f]{17}", handle)
    assert len({volume["spec"]["csi"]["volumeHandle"] for volume in volumes.values()}) == 1
    mounted = 0
    for kind, pod in pods():
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" not in volume:
                continue
            used = volume["persistentVolumeClaim"]
            (mount,) = [
                m for c in pod["containers"] for m in c["volumeMounts"] if m["name"] == volume["name"]
            ]
            is_writer = claims[used["claimName"]]["spec"]["accessModes"] == ["ReadWriteMany"]
            assert is_writer == (kind == "Job")
            is_read_only = used.get("readOnly", False) and mount.get("readOnly", False)
            assert is_read_only != is_writer, kind
            mounted += 1
    assert mounted == 5
    # Ray's workers have no option for catalogs: they look in the cache's folder.
    (cluster,) = [document for document in kustomized() if document["kind"] == "RayCluster"]
    for found in pod_templates(cluster):
        container = found["spec"]["containers"][0]
        cached = {variable["name"]: variable["value"] for variable in container["env"]}["FEEDSTOCK_CACHE"]
        assert f"{cached}/catalogs" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_job_runs_a_command_that_exists() -> None:
    (job,) = [document for document in documents(EKS / "catalog-job.yaml") if document["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, "-m", "feedstock", "catalog", "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, timeout=60)
    known = set(re.findall(r"^\s+(?:-\w, )?--([\w-]+)[ =\[]+<", helped.stdout, re.MULTILINE))
    assert container["command"] == ["feedstock", "catalog"]
    assert set(flags(container["args"])) <= known
    assert flags(container["args"])["region"] == CLUSTER["metadata"]["region"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert flags(container["args"])["catalog-dir"] in mounts
    built = re.findall(r"--target worker -t (\S+)", (DEPLOY / "docker" / "Dockerfile").read_text())
    assert [container["image"]] == built


# ---- Grafana


def published_metrics() -> set[str]:
    fleet = (ROOT / "python" / "package" / "feedstock" / "ray" / "fleet" / "metrics.py").read_text()
    names = {f"ray_feedstock_fleet_{name}" for name in re.findall(r'= gauge\("(\w+)"', fleet)}
    assert len(names) == 5
    chart: Object = {}
    source = (DEPLOY / "helm" / "feedstock-workers" / "files" / "metrics.py").read_text()
    status, texts = (
        re.search(r"^METRICS = \(.*?^\)$", source, re.MULTILINE | re.DOTALL),
        re.search(r"^def text\(.*?(?=^def )", source, re.MULTILINE | re.DOTALL),
    )
    assert status is not None
    assert texts is not None
    exec(f"from typing import Any\n{status[0]}\n{texts[0]}", chart)
    made = chart["text"]({field: 0 for field, _, _ in chart["METRICS"]})
    return names | {line.split(" ")[0] for line in made.splitlines() if not line.startswith("#")}


def test_the_board_asks_for_metrics_that_are_published() -> None:
    board = json.loads((EKS / "board.json").read_text())
    published, asked = published_metrics(), set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            promql_parser.parse(target["expr"])
            asked |= set(re.findall(r"\b(?:ray_)?feedstock_\w+", target["expr"]))
    assert asked <= published
    assert len(asked) > 10
    with pytest.raises(ValueError, match="unexpected|invalid|expected|unclosed"):
        promql_parser.parse("sum by (pod) (rate(feedstock_worker_samples_total[2m])")


def test_panels_do_not_overlap() -> None:
    board = json.loads((EKS / "board.json").read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
