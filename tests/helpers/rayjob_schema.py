"""KubeRay's own description of a RayJob, reduced to the fields that the program writes: any other one fails.

`python -m tests.helpers.rayjob_schema ray.io_rayjobs.yaml > tests/helpers/rayjob_schema.json` makes it from the
resource definition of KubeRay (Apache License 2.0; helm-chart/kuberay-operator/crds/ray.io_rayjobs.yaml at v1.7.0, 1.4
MB): of version v1 it keeps names, types, limits and required fields along FIELDS, without descriptions, and admits no
further field.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml

SOURCE = (
    "ray-project/kuberay v1.7.0, ray.io_rayjobs.yaml, version v1 (Apache-2.0), reduced by rayjob_schema.py"
)
_KEPT = ("type", "enum", "minimum", "maximum", "pattern", "required", "x-kubernetes-int-or-string")
_CONTAINER = (
    "name",
    "image",
    "resources.limits",
    "resources.requests",
    "volumeMounts[].name",
    "volumeMounts[].mountPath",
    "volumeMounts[].readOnly",
)
_POD = (
    *(f"containers[].{field}" for field in _CONTAINER),
    "volumes[].name",
    "volumes[].persistentVolumeClaim.claimName",
    "volumes[].configMap.name",
)
_CLUSTER = (
    "rayVersion",
    "authOptions.mode",
    "headGroupSpec.rayStartParams",
    *(f"headGroupSpec.template.spec.{field}" for field in _POD),
    *(
        f"workerGroupSpecs[].{field}"
        for field in ("groupName", "replicas", "minReplicas", "maxReplicas", "labels", "rayStartParams")
    ),
    *(f"workerGroupSpecs[].template.spec.{field}" for field in _POD),
)
_JOB = (
    "submissionMode",
    "entrypoint",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "backoffLimit",
    "activeDeadlineSeconds",
    "suspend",
)
FIELDS = (
    "apiVersion",
    "kind",
    "metadata",
    *(f"spec.{field}" for field in _JOB),
    *(f"spec.rayClusterSpec.{field}" for field in _CLUSTER),
)


def errors(manifest: dict[str, Any]) -> list[str]:
    """Return what of a manifest the schema refuses."""
    schema = json.loads(Path(__file__).with_suffix(".json").read_text())
    found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in found]


def reduced(schema: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return a schema with these fields of it alone; KeyError for one that it has not. Without any: as it is."""
    kept = {name: schema[name] for name in _KEPT if name in schema}
    if "additionalProperties" in schema:  # a map of names to values
        return kept | {"additionalProperties": reduced(schema["additionalProperties"], [])}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], **{k: v for k, v in kept.items() if k == "pattern"}}
    if not fields:
        return kept
    below: dict[str, list[str]] = {}
    for field in fields:
        name, _, rest = field.partition(".")
        below.setdefault(name, []).extend([rest] if rest else [])
    properties = {}
    for name, inner in below.items():
        found = schema["properties"][name.removesuffix("[]")]
        properties[name.removesuffix("[]")] = (
            {"type": "array", "items": reduced(found["items"], inner)}
            if name.endswith("[]")
            else reduced(found, inner)
        )
    return kept | {"properties": properties, "additionalProperties": False}


def main() -> None:
    definition = yaml.safe_load(Path(sys.argv[1]).read_text())
    (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    schema = reduced(version["schema"]["openAPIV3Schema"], list(FIELDS))
    print(json.dumps({"$comment": SOURCE} | schema, indent=1))


if __name__ == "__main__":
    main()
