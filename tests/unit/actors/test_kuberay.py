"""The manifest of a RayJob, held against KubeRay's own schema and the rules that its operator
adds.
"""

import copy
import re

import pytest

from actors import kuberay
from actors.kuberay import RayJobOptions, cluster_plan, manifest
from actors.shares import Plan, Share
from raydpzv.config.catalog import load
from raydpzv.errors import SpecError, Unplaceable
from raydpzv.experiment.prepare import prepare
from tests.helpers.rayjob_schema import errors

GIVEN = {"name": "run-0", "image": "registry.example/raydpzv:1", "claim": "runs", "ray": "2.60.0"}
SMALL = ["data.train_rows=200"]
GIB = 2**30


def made(scenario="digits_dpzv", overrides=(), *, data=True, **options):
    spec = load(scenario, [*SMALL, *overrides])
    chosen = RayJobOptions(**(GIVEN | options))
    chosen.check()
    prepared = prepare(spec) if data else None
    documents = manifest(
        cluster_plan(spec, chosen, prepared), chosen, "python -m raydpzv run x", None, prepared
    )
    check(documents[-1])
    return documents[-1]


def check(job):
    """What the schema says, and what KubeRay's operator checks beside it (validation.go of
    v1.7.0).
    """
    assert errors(job) == []
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] or not (
        spec.get("suspend") or spec["ttlSecondsAfterFinished"]
    )
    cluster = spec["rayClusterSpec"]
    version = tuple(map(int, cluster["rayVersion"].split(".")))
    assert cluster["authOptions"]["mode"] == "disabled" or version >= (2, 52, 0)
    groups = cluster["workerGroupSpecs"]
    assert len({group["groupName"] for group in groups}) == len(groups)
    for group in (cluster["headGroupSpec"], *groups):
        assert "labels" not in group["rayStartParams"]
        assert len(group["template"]["spec"]["containers"]) == 1
        for value in group.get("labels", {}).values():
            assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)


def groups(job):
    found = {}
    for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        memory = int(limits["memory"].removesuffix("Gi"))
        found[group["groupName"]] = (
            group["replicas"],
            int(limits["cpu"]),
            int(limits.get("nvidia.com/gpu", 0)),
            memory,
        )
    return found


def test_all_actors_have_room_in_one_pod():
    job = made(overrides=["model.engine=torch"])
    assert groups(job) == {
        "workers": (1, 5, 0, 5)
    }  # a server and four clients, and their memory twice
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (1, 1)
    container = group["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert int(group["rayStartParams"]["object-store-memory"]) > 400 * 2**20


@pytest.mark.parametrize(
    ("scenario", "overrides", "options", "expected"),
    [
        ("digits_dpzv", [], {"workers": 2}, (2, 3, 0)),
        ("digits_dpzv", [], {"workers": 9}, (5, 1, 0)),
        ("digits_dpzv", ["resources.placement=strict_spread"], {}, (5, 1, 0)),
        ("digits_dpzv", ["resources.client_actors=1"], {}, (1, 2, 0)),
        ("digits_dpzv", [], {"cpus": 2}, (1, 2, 0)),
        (
            "digits_dpzv",
            ["resources.client_cpus=0.5", "resources.server_cpus=3"],
            {"workers": 2},
            (2, 3, 0),
        ),
        ("digits_dpzv", ["resources.client_gpus=0.6"], {}, (1, 5, 4)),
        ("digits_dpzv", ["resources.client_gpus=0.25", "resources.server_gpus=1"], {}, (1, 5, 2)),
        ("digits_dpzv", ["resources.client_gpus=1"], {"workers": 2}, (2, 3, 2)),
        ("digits_decomfl", ["resources.hosts=3"], {}, (1, 4, 0)),
        ("digits_decomfl", ["resources.hosts=2", "resources.host_gpus=0.5"], {}, (1, 3, 1)),
        ("digits_decomfl", [], {"cpus": 4}, (1, 4, 0)),
    ],
)
def test_pods_are_as_large_as_the_plan_asks(scenario, overrides, options, expected):
    (found,) = groups(made(scenario, overrides, **options)).values()
    assert found[:3] == expected


def test_more_data_is_more_memory_and_a_larger_store(monkeypatch):
    def sizes(*overrides):
        job = made(
            "vafl", ["data.source=synthetic", "split.how=columns", "model.engine=torch", *overrides]
        )
        (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        return int(group["rayStartParams"]["object-store-memory"]), groups(job)["workers"][3]

    monkeypatch.setattr(kuberay, "_GIB", 2**20)  # or it takes a table of hundreds of MiB
    small, large = sizes(), sizes("data.rows=5000", "data.train_rows=4500", "data.columns=300")
    assert large[0] - small[0] > 4500 * 300 * 4
    assert large[1] > small[1]


def test_pods_are_as_large_as_the_fullest_of_them():
    apart = Plan(Share(1, 0, memory=GIB), (Share(1, 0, memory=8 * GIB),), ((0,),))
    job = manifest(apart, RayJobOptions(**GIVEN, workers=2), "x", None, None)[0]
    assert groups(job) == {"workers": (2, 1, 0, 2 + 2 * 8)}


def test_hosts_that_get_their_own_rows_get_held_out_rows_each():
    prepared = prepare(load("digits_users"))
    more = prepared.object_store_bytes(3) - prepared.object_store_bytes(1)
    assert more == 2 * (prepared.split.test.nbytes + prepared.parts.nbytes) > 0


def test_where_memory_is_given_the_data_need_not_be_here():
    job = made("mnist_dpzv", ["data.folder=/nowhere"], data=False, memory=12)
    assert {memory for *_, memory in groups(job).values()} == {12}
    assert (
        "object-store-memory"
        not in job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]
    )


def test_labels_that_differ_make_two_groups():
    both = [
        'resources.labels.server={zone="a"}',
        'resources.labels.clients={zone="in(b, c)", disk="!slow"}',
    ]
    job = made(overrides=both, workers=2)
    assert {name: found[:2] for name, found in groups(job).items()} == {
        "server": (1, 1),
        "clients": (2, 2),
    }
    labels = [group.get("labels") for group in job["spec"]["rayClusterSpec"]["workerGroupSpecs"]]
    assert labels == [{"zone": "a"}, {"zone": "b"}]
    same = ['resources.labels.server={zone="a"}', 'resources.labels.clients={zone="a"}']
    (group,) = made(overrides=same)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["groupName"], group["labels"]) == ("workers", {"zone": "a"})


def test_a_plan_that_such_pods_cannot_hold_is_refused():
    apart = ['resources.labels.server={zone="a"}', 'resources.labels.clients={zone="b"}']
    with pytest.raises(Unplaceable, match="change --workers, --cpus or --memory"):
        made(overrides=[*apart, "resources.placement=strict_pack"])
    with pytest.raises(Unplaceable, match="GiB of memory"):
        made(overrides=["split.how=columns", "split.clients=32", "model.engine=torch"], memory=4)
    with pytest.raises(SpecError, match=r'resources.hosts: wanted a number, got "auto"'):
        made("digits_decomfl")


def test_the_job_may_be_started_again_and_ends_its_cluster():
    spec = made(retries=5, keep=60, deadline=3600)["spec"]
    assert spec["entrypoint"] == "python -m raydpzv run x"
    told = ("submissionMode", "backoffLimit", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    assert [spec[name] for name in told] == ["K8sJobMode", 5, 60, 3600]
    assert spec["shutdownAfterJobFinishes"] is True
    assert not {"suspend", "activeDeadlineSeconds"} & set(made()["spec"])


def test_the_run_folder_is_on_the_claim_and_actors_are_not_on_the_head():
    head = made()["spec"]["rayClusterSpec"]["headGroupSpec"]
    (container,) = head["template"]["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/raydpzv"}]
    assert head["template"]["spec"]["volumes"] == [
        {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    ]
    assert head["rayStartParams"]["num-cpus"] == "0"


def test_a_queue_starts_it():
    job = made(queue="team-a")
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    assert job["spec"]["suspend"] is True
    assert made(suspend=True)["spec"]["suspend"] is True


def test_a_token_is_asked_for_unless_it_is_declined():
    def mode(job):
        return job["spec"]["rayClusterSpec"]["authOptions"]["mode"]

    assert mode(made()) == "token"
    assert mode(made(token=False, ray="2.40.0")) == "disabled"
    with pytest.raises(SpecError, match=r"wanted 2\.52 or newer"):
        made(ray="2.51.2")


@pytest.mark.parametrize("name", ["", "Run", "0-run", "run-", "run_1", "r" * 48, "run.1"])
def test_a_name_that_kuberay_refuses_is_refused(name):
    with pytest.raises(SpecError, match="--name: wanted at most 47 characters"):
        made(name=name)


@pytest.mark.parametrize("version", ["", "nightly", "2"])
def test_a_version_that_is_none_is_refused(version):
    with pytest.raises(SpecError, match="--ray-version: wanted a version"):
        made(ray=version)


def test_the_schema_refuses_what_kuberay_would_not_know():
    good = made()
    for path, value in {
        ("spec", "backofLimit"): 3,
        ("spec", "backoffLimit"): "3",
        ("spec", "rayClusterSpec", "authOptions", "mode"): "secret",
        ("spec", "rayClusterSpec", "headGroupSpec", "templates"): {},
        ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replica"): 1,
        ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "rayStartParams", "num-cpus"): 1,
    }.items():
        job = copy.deepcopy(good)
        at = job
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value
        assert errors(job), path
    job = copy.deepcopy(good)
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["groupName"]
    assert errors(job)
