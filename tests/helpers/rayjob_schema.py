"""The fields of KubeRay's RayJob (ray.io/v1) that the cluster page uses, by name, type and which must
be there.

As KubeRay's API reference of v1.7.0 and Kubernetes' of Pod describe them; any other field fails
here, a misspelt one among them.
"""

# ruff: noqa: N815 - Kubernetes' names

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

_NUMBER = r"\d+(\.\d+)?"
Quantity = (
    Annotated[str, StringConstraints(pattern=rf"^{_NUMBER}(m|[kMGT]i?)?$")]
    | Annotated[int, Field(ge=0)]
)
"""An amount as Kubernetes writes it: 2, "500m", "5Gi"."""


def _has_containers(spec: Any) -> Any:
    assert spec.containers, "a pod without a container"
    return spec


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Resources(_Fields):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class _Mount(_Fields):
    name: str
    mountPath: str


class _Container(_Fields):
    name: str
    image: str
    resources: _Resources
    volumeMounts: list[_Mount] = []


class _Claim(_Fields):
    claimName: str


class _Volume(_Fields):
    name: str
    persistentVolumeClaim: _Claim | None = None


class _Pod(_Fields):
    containers: list[_Container]
    volumes: list[_Volume] = []


class _Template(_Fields):
    spec: Annotated[_Pod, AfterValidator(_has_containers)]


class _Head(_Fields):
    rayStartParams: dict[str, str] = {}
    template: _Template


class _Workers(_Head):
    groupName: str
    replicas: int = 0
    minReplicas: int
    maxReplicas: int


class _Authentication(_Fields):
    mode: Literal["disabled", "token"]


class _Cluster(_Fields):
    rayVersion: str
    authOptions: _Authentication | None = None
    headGroupSpec: _Head
    workerGroupSpecs: list[_Workers] = []


class _Spec(_Fields):
    entrypoint: str
    shutdownAfterJobFinishes: bool = False
    ttlSecondsAfterFinished: int = 0
    backoffLimit: int = 0
    rayClusterSpec: _Cluster


class _RayJob(_Fields):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: dict[str, Any]
    spec: _Spec


def errors(manifest: dict[str, Any]) -> list[str]:
    """Return what of a manifest is no RayJob."""
    try:
        _RayJob.model_validate(manifest)
    except ValidationError as found:
        return [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found.errors()]
    return []
