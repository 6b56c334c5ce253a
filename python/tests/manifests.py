"""Reads manifests, and checks them with the schemas of Kubernetes and of the operators."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate import utils as kubernetes

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

Object = dict[str, Any]


class StrictLoader(yaml.SafeLoader):
    """Reads like kubectl: a duplicate key is an error, instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = [key for key, count in Counter(keys).items() if count > 1]
        assert not twice, f"{twice} twice {node.start_mark}"
        return super().construct_mapping(node, deep)


def parsed(text: str) -> list[Object]:
    return [document for document in yaml.load_all(text, Loader=StrictLoader) if document is not None]


def documents(path: Path) -> list[Object]:
    return parsed(path.read_text())


def below(value: Any) -> Iterator[Object]:
    """Yields every mapping in a document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from below(inner)


def pod_templates(document: Object) -> list[Object]:
    return [
        node["template"]
        for node in below(document)
        if "containers" in node.get("template", {}).get("spec", {})
    ]


# Rust types that a generator wrote from the published CRDs. They have every field's name and type, whether it is
# required, and closed sets of words. Bounds, patterns and rules between fields are lost. None of the registries that
# this project builds from has the CRDs themselves. The crates have 150 KB each, are under 0BSD, and stay in cargo's
# cache.
CRATES = {
    "ray.io/v1": ("kcr_ray_io", "3.20260602.235623"),  # KubeRay 1.6
    "cert-manager.io/v1": ("kcr_cert_manager_io", "3.20260606.152110"),
    "monitoring.coreos.com/v1": ("kcr_monitoring_coreos_com", "3.20260613.160609"),  # Prometheus Operator
}


def published(api: str) -> Path:
    """Returns the unpacked source of an API's crate. `cargo info` fetches and checks it, without building anything."""
    name, version = CRATES[api]
    registry = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"), "registry", "src")
    if not (found := list(registry.glob(f"*/{name}-{version}"))):
        cargo = shutil.which("cargo") or str(Path.home() / ".cargo" / "bin" / "cargo")
        done = subprocess.run(
            [cargo, "info", "--quiet", f"{name}@{version}"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=300,
        )
        found = list(registry.glob(f"*/{name}-{version}"))
        assert found, f"cargo info {name}@{version} did not fetch it: {done.stderr}"
    return found[0] / "src" / "v1"


BLOCK = re.compile(r"^pub (struct|enum) (\w+) \{\n(.*?)^\}$", re.MULTILINE | re.DOTALL)
RENAME = re.compile(r'^\s*#\[serde\((?:.*, )?rename = "([^"]*)"\)\]$')
FIELD = re.compile(r"^\s*pub (?:r#)?(\w+): (.+),$")
VARIANT = re.compile(r"^\s*(\w+),$")
IGNORED = re.compile(r"^\s*(///.*|#\[.*\]|)$")
PLAIN = {
    "String": {"type": "string"},
    "bool": {"type": "boolean"},
    "i32": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "i64": {"type": "integer"},
    "f64": {"type": "number"},
    "IntOrString": {"type": ["integer", "string"]},
    "serde_json::Value": {},
    "Condition": {"type": "object"},
}


def type_schema(rust: str) -> Object:
    if rust in PLAIN:
        return PLAIN[rust]
    if inner := re.fullmatch(r"(\w+)<(.+)>", rust):
        of = {"Option": inner[2], "Vec": inner[2], "BTreeMap": inner[2].removeprefix("String, ")}[inner[1]]
        if inner[1] == "Option":
            return type_schema(of)
        return (
            {"type": "array", "items": type_schema(of)}
            if inner[1] == "Vec"
            else {"type": "object", "additionalProperties": type_schema(of)}
        )
    assert re.fullmatch(r"\w+", rust), rust
    return {"$ref": f"#/$defs/{rust}"}


@cache
def custom_resource(api: str, kind: str) -> jsonschema.Draft202012Validator:
    """Returns the JSON schema of a custom resource. A line that cannot be parsed is an error, since it might be a field
    that would stay unchecked."""
    definitions: Object = {}
    for block, name, body in BLOCK.findall((published(api) / f"{kind.lower()}s.rs").read_text()):
        properties: Object = {}
        required, words, renamed = [], [], None
        for line in body.splitlines():
            if rename := RENAME.match(line):
                renamed = rename[1]
            elif block == "struct" and (field := FIELD.match(line)):
                key, renamed = renamed or field[1], None
                properties[key] = type_schema(field[2])
                if not field[2].startswith("Option<"):
                    required.append(key)
            elif block == "enum" and (variant := VARIANT.match(line)):
                words.append(variant[1] if renamed is None else renamed)
                renamed = None
            else:
                assert IGNORED.match(line), f"{name}: {line}"
        definitions[name] = (
            {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
            if block == "struct"
            else {"enum": words}
        )
    assert f"{kind}Spec" in definitions
    schema = {
        "type": "object",
        "properties": {
            "apiVersion": {"const": api},
            "kind": {"const": kind},
            "metadata": {"type": "object"},  # see `check`
            "spec": {"$ref": f"#/$defs/{kind}Spec"},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "$defs": definitions,
    }
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check(document: Object, version: str) -> None:
    """Raises an error if an object is wrong for Kubernetes `version`."""
    if document["apiVersion"] in CRATES:
        custom_resource(document["apiVersion"], document["kind"]).validate(document)
        metadata = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": document["metadata"]}
        kubernetes.validate(metadata, version, strict=True)
    else:
        kubernetes.validate(document, version, strict=True)
    for template in pod_templates(document):
        kubernetes.validate(
            {"apiVersion": "v1", "kind": "PodTemplate", "template": template}, version, strict=True
        )


VERSIONS = ["1.27", kubernetes.latest_version()]  # before 1.27, disruption budgets have fewer fields


# ---- the feedstock command


def flags(command: list[str]) -> dict[str, str]:
    """Returns flags of the form --name=value or --name, which all manifests use."""
    found = [argument.removeprefix("--").partition("=") for argument in command if argument.startswith("-")]
    return {name: value for name, _, value in found}


@cache
def _worker_help() -> str:
    command = [sys.executable, "-m", "feedstock", "worker", "--help"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def check_worker_flags(used: dict[str, str]) -> None:
    """Raises an error if `feedstock worker` does not have one of the flags, or takes it otherwise."""
    options = re.findall(r"^\s+(?:-\w, )?--([\w-]+)([ =\[]+<)?", _worker_help(), re.MULTILINE)
    assert used
    assert {(name, bool(value)) for name, value in used.items()} <= {(name, bool(v)) for name, v in options}
