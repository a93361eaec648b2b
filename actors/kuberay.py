"""A run as a RayJob of Kubernetes (KubeRay): pods from the plan of its actors, an entry point that
may begin again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.cluster import OBJECT_STORE
from actors.machines import Machine
from actors.memory_needs import with_run_memory
from actors.placement import plan_run
from actors.placement_errors import lack
from actors.shares import Plan, Selector
from raydpzv.config.scenario import HorizontalScenario, VerticalScenario
from raydpzv.errors import SpecError, Unplaceable
from raydpzv.experiment.prepare import Prepared

RUNS = "/raydpzv"
"""Where the claim is mounted in the head's pod."""
POD = "/tmp/raydpzv"
"""Where a run's folder is in the head's pod if it is uploaded to a storage."""
SCENARIO = "/etc/raydpzv/scenario.toml"
"""Where a scenario of the user's own is in the head's pod."""
LONGEST_NAME = 47
"""Characters of a RayJob's name, from which KubeRay makes others."""
TOKEN_SINCE = (2, 52)
"""The first Ray to which KubeRay gives a token."""
_GIB = 2**30
_RAY = 2 * _GIB
"""Memory of a pod for Ray's own processes (1.7 GB seen with the dashboard, 0.7 GB without)."""
_DRIVER = 2 * _GIB
"""Memory of the head's pod for the process that drives the run, beside the data."""
_MANY = 10**4
"""CPUs of a cluster that gives each actor what it would like."""
_HEAD_CPUS = 2
"""CPUs of the head's pod: Ray's own services, and the process that drives the run."""
_SAFE_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class PodOptions:
    """The pods of a cluster that is made for a run.

    image: with Ray and this program; ray: Ray's version in it. workers: pods that share the actors;
    cpus: of all of them, for shares that are "auto" (None: one each). memory: GiB of each pod
    (None: from the plan; where it is given, the data need not be here, and Ray sizes the object
    store).
    """

    image: str
    ray: str
    workers: int = 1
    cpus: int | None = None
    memory: int | None = None


@dataclass(frozen=True, kw_only=True)
class RayJobOptions(PodOptions):
    """What a manifest needs that no scenario says: pods, and the job that runs on them.

    name: of the job and of its run folder; claim: a persistent volume claim, which outlives pods
    (None: the run is in a storage). retries: how often a job that failed is started again; keep:
    seconds that its cluster stays after the end;
    deadline: seconds that an attempt may take; queue: of Kueue.
    """

    name: str
    claim: str | None = None
    retries: int = 3
    keep: int = 600
    deadline: int | None = None
    token: bool = True
    suspend: bool = False
    queue: str | None = None

    def check(self) -> None:
        """Raise SpecError for what KubeRay would refuse."""
        if len(self.name) > LONGEST_NAME or not _SAFE_NAME.fullmatch(self.name):
            raise SpecError(
                f"--name: wanted at most {LONGEST_NAME} characters of a-z, 0-9 and -, a letter "
                f"first, got {self.name!r}"
            )
        version = tuple(int(part) for part in re.findall(r"\d+", self.ray)[:2])
        if len(version) < 2:
            raise SpecError(f"--ray-version: wanted a version as 2.60.0, got {self.ray!r}")
        if self.token and version < TOKEN_SINCE:
            raise SpecError(
                f"--ray-version: wanted {'.'.join(map(str, TOKEN_SINCE))} or newer, to which "
                f"KubeRay gives a token, got {self.ray}; update Ray in the image, or give "
                "--no-token"
            )


@dataclass(frozen=True)
class _Group:
    """Pods that are alike: how many, what each has, and its labels."""

    name: str
    pods: int
    cpus: int
    gpus: int
    memory: int
    labels: Mapping[str, str]

    def machine(self) -> Machine:
        return Machine(
            {"CPU": float(self.cpus), "GPU": float(self.gpus), "memory": float(self.memory)},
            self.labels,
        )


def cluster_plan(
    spec: VerticalScenario | HorizontalScenario, options: RayJobOptions, prepared: Prepared | None
) -> Plan:
    """Return the plan of a run's actors on a cluster that is made for them. Raises SpecError,
    Unplaceable.

    prepared: the run with its data, whose memory the plan then has.
    """
    gpus = _MANY if "auto" not in spec.gpu_shares else 0
    total = {"CPU": float(options.cpus or _MANY), "GPU": float(gpus), "memory": math.inf}
    if spec.hosts_auto and options.cpus is None:
        raise SpecError(
            'resources.hosts: wanted a number, got "auto", which is one per CPU of a cluster that '
            "is not there yet; "
            "give --set resources.hosts=N, or --cpus N"
        )
    resources = spec.resources
    anywhere = plan_run(
        spec, [Machine(total)], lambda plan: replace(plan, placement="pack", labels={})
    )
    found = replace(anywhere, placement=resources.placement, labels=resources.labels or {})
    return with_run_memory(found, prepared) if prepared else found


def manifest(
    wanted: Plan,
    options: RayJobOptions,
    entrypoint: str,
    scenario: str | None,
    prepared: Prepared | None,
) -> list[dict[str, Any]]:
    """Return the documents of a manifest: the RayJob and, before it, the map that holds a scenario
    of the user's own.

    entrypoint: the command of the run; scenario: the text of the scenario's file, where it is none
    of the program's. Raises Unplaceable if pods of this kind cannot hold the plan.
    """
    store = OBJECT_STORE + prepared.object_store_bytes(len(wanted.actors)) if prepared else None
    groups = _groups(wanted, options, store)
    machines = [group.machine() for group in groups for _ in range(group.pods)]
    if missing := lack(wanted, machines):
        raise Unplaceable(f"{missing}; or change --workers, --cpus or --memory")
    start = {"object-store-memory": str(store)} if store else {}
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []
    if options.claim is not None:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": options.claim}})
        mounts.append({"name": "runs", "mountPath": RUNS})
    config = f"{options.name}-scenario"
    if scenario is not None:
        volumes.append({"name": "scenario", "configMap": {"name": config}})
        mounts.append(
            {"name": "scenario", "mountPath": SCENARIO.rpartition("/")[0], "readOnly": True}
        )
    needed = _RAY + _DRIVER + 2 * store if store else (options.memory or 0) * _GIB
    head = _container("ray-head", options.image, _HEAD_CPUS, 0, _rounded(needed))
    head |= {"volumeMounts": mounts} if mounts else {}
    spec: dict[str, Any] = {
        "submissionMode": "K8sJobMode",
        "entrypoint": entrypoint,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": options.keep,
        "backoffLimit": options.retries,
        **({"activeDeadlineSeconds": options.deadline} if options.deadline is not None else {}),
        **({"suspend": True} if options.suspend or options.queue else {}),
        "rayClusterSpec": {
            "rayVersion": options.ray,
            "authOptions": {"mode": "token" if options.token else "disabled"},
            "headGroupSpec": {
                # no actor but the ledger's goes there, which asks for nothing
                "rayStartParams": {"num-cpus": "0", **start},
                "template": {
                    "spec": {"containers": [head], **({"volumes": volumes} if volumes else {})}
                },
            },
            "workerGroupSpecs": [_worker_group(group, options.image, start) for group in groups],
        },
    }
    labels = {"labels": {"kueue.x-k8s.io/queue-name": options.queue}} if options.queue else {}
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": options.name, **labels},
        "spec": spec,
    }
    if scenario is None:
        return [job]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": config},
            "data": {SCENARIO.rpartition("/")[2]: scenario},
        },
        job,
    ]


def _groups(wanted: Plan, options: RayJobOptions, store: int | None) -> list[_Group]:
    """Return the groups of worker pods: one, or the server's and the others' where labels keep them
    apart.
    """
    server, members = wanted.selectors()
    bundles = wanted.bundles()
    if dict(server) == dict(members) or len(bundles) == 1:
        return [_group("workers", bundles, server, wanted, options, store)]
    return [
        _group("server", bundles[:1], server, wanted, options, store),
        _group(f"{wanted.member}s", bundles[1:], members, wanted, options, store),
    ]


def _group(
    name: str,
    bundles: Sequence[Mapping[str, float]],
    selector: Selector,
    wanted: Plan,
    options: RayJobOptions,
    store: int | None,
) -> _Group:
    """Return pods of one size, as large as the fullest of them: actors in turn, the largest
    first.
    """
    pods = (
        len(bundles) if wanted.placement == "strict_spread" else min(options.workers, len(bundles))
    )
    held: list[list[Mapping[str, float]]] = [[] for _ in range(pods)]
    for bundle in sorted(bundles, key=_weight, reverse=True):
        min(
            held, key=lambda pod: [sum(values) for values in zip(*map(_weight, pod), strict=True)]
        ).append(bundle)
    asked = max(sum(bundle.get("memory", 0.0) for bundle in pod) for pod in held)
    # as much again as what processes take at the least: models, activations, tables of embeddings
    memory = (
        options.memory * _GIB if options.memory else _rounded(_RAY + (store or 0) + 2 * int(asked))
    )
    return _Group(
        name,
        pods,
        max(1, *(math.ceil(sum(bundle.get("CPU", 0.0) for bundle in pod) - 1e-9) for pod in held)),
        max(_devices([bundle.get("GPU", 0.0) for bundle in pod]) for pod in held),
        memory,
        _labels(selector),
    )


def _weight(bundle: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(bundle.get(kind, 0.0) for kind in ("GPU", "CPU", "memory"))


def _devices(shares: Sequence[float]) -> int:
    """Return how many devices hold these shares: a fraction is on one device."""
    free: list[float] = []
    for share in sorted(shares, reverse=True):
        if share >= 1:
            free += [0.0] * math.ceil(share)
        elif share > 0:
            at = next((n for n, room in enumerate(free) if room + 1e-9 >= share), None)
            if at is None:
                free.append(1.0 - share)
            else:
                free[at] -= share
    return len(free)


def _labels(selector: Selector) -> dict[str, str]:
    """Return labels that a selector takes: of "in(a, b)" the first; "!a" takes a machine
    without.
    """
    found = {}
    for label, values in selector.items():
        if not values.startswith("!"):
            words = re.findall(r"[^!(), ]+", values)
            found[label] = words[1] if "(" in values else words[0]
    return found


def _worker_group(group: _Group, image: str, start: Mapping[str, str]) -> dict[str, Any]:
    container = _container("ray-worker", image, group.cpus, group.gpus, group.memory)
    return {
        "groupName": group.name,
        "replicas": group.pods,
        "minReplicas": group.pods,
        "maxReplicas": group.pods,
        **({"labels": dict(group.labels)} if group.labels else {}),
        "rayStartParams": dict(start),
        "template": {"spec": {"containers": [container]}},
    }


def _container(name: str, image: str, cpus: int, gpus: int, memory: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": f"{memory // _GIB}Gi"} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    # each a mapping of its own: YAML would write the second as a reference to the first
    return {
        "name": name,
        "image": image,
        "resources": {"limits": dict(amounts), "requests": dict(amounts)},
    }


def _rounded(size: int) -> int:
    return math.ceil(size / _GIB) * _GIB
