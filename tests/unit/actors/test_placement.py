from dataclasses import replace
from itertools import product

import pytest

import scenarios
from actors.machines import Machine
from actors.packing import packed
from actors.placement import Share, plan_run, whole_run_gpus
from raydpzv.errors import Unplaceable


def test_auto_shares_are_equal_and_fit(small):
    found = plan_run(small(), [Machine({"CPU": 2.0})])
    assert found.server == Share(0.4, 0.0)
    assert found.actors == (Share(0.4, 0.0),) * 4
    assert found.clients == ((0,), (1,), (2,), (3,))
    assert len(found.bundles()) == 5
    assert plan_run(small(), [Machine({"CPU": 64.0})]).server.cpus == 1.0


@pytest.mark.parametrize(("gpus", "share"), [(0, 0.0), (1, 0.2), (2, 0.3333), (5, 1.0), (8, 1.0)])
def test_auto_gpu_shares_fit_on_whole_devices(small, gpus, share):
    spec = small('resources.client_gpus="auto"', 'resources.server_gpus="auto"')
    found = plan_run(spec, [Machine({"CPU": 8.0, "GPU": float(gpus)})])
    assert [s.gpus for s in (found.server, *found.actors)] == pytest.approx([share] * 5)
    if share:
        per_device = int(1 / found.server.gpus + 1e-6)
        assert per_device * gpus >= 5


def test_clients_share_actors_and_lists_add_up(small):
    found = plan_run(
        small("resources.client_actors=2", "resources.client_gpus=[0.1, 0.2, 0.3, 0.4]"),
        [Machine({"CPU": 2, "GPU": 1})],
    )
    assert found.clients == ((0, 2), (1, 3))
    assert [s.gpus for s in found.actors] == [pytest.approx(0.4), pytest.approx(0.6)]
    assert plan_run(small("resources.client_actors=9"), [Machine({"CPU": 2})]).clients == (
        (0,),
        (1,),
        (2,),
        (3,),
    )
    assert plan_run(small("resources.client_actors=0"), [Machine({"CPU": 2})]).actors == ()


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("resources.client_gpus=1.5", "1.5 GPUs asked; above 1 a share must be a whole number"),
        ("resources.server_gpus=0.00001", "below Ray's resolution"),
        ("resources.server_cpus=0.00001", "below Ray's resolution"),
        ("resources.client_gpus=0.6", "4 actors ask 2.4 GPU in all .*, the cluster has 1"),
        ("resources.server_cpus=3", "CPU in all .server 3, .*, the cluster has 2"),
    ],
)
def test_impossible_shares_are_refused(small, override, said):
    with pytest.raises(Unplaceable, match=said):
        plan_run(small(override), [Machine({"CPU": 2.0, "GPU": 1.0})])


@pytest.mark.parametrize(
    ("overrides", "gpus", "together"),
    [
        ((), 0, 0.0),
        (("resources.client_gpus=0.1", "resources.server_gpus=0.2"), 1, 0.6),
        (("resources.client_gpus=0.5",), 2, 2.0),
        (("resources.client_gpus=0.5", "resources.client_actors=1"), 2, 0.5),
        (("resources.client_gpus=[0.1, 0.2, 0.3, 0.9]",), 2, 2.0),  # 1.5, which no process can have
        (("resources.client_gpus=0.3333",), 2, 2.0),
        (("resources.client_gpus=0.25",), 2, 1.0),
        (("resources.client_gpus=1", "resources.server_gpus=2"), 8, 6.0),
        (('resources.client_gpus="auto"', 'resources.server_gpus="auto"'), 0, 0.0),
        (('resources.client_gpus="auto"', 'resources.server_gpus="auto"'), 8, 1.0),
    ],
)
def test_a_run_in_one_process_has_the_gpus_of_all_its_actors(small, overrides, gpus, together):
    total = [Machine({"CPU": 2.0, "GPU": float(gpus)})]
    assert whole_run_gpus(small(*overrides), total) == together
    if '"auto"' not in "".join(overrides):
        found = plan_run(small(*overrides), [Machine({"CPU": 8.0, "GPU": 8.0})])
        reserved = sum(bundle.get("GPU", 0.0) for bundle in found.bundles())
        assert reserved <= together + 1e-9 < reserved + 1


def test_a_run_in_one_process_has_the_gpus_of_its_hosts():
    def of(*overrides):
        return whole_run_gpus(
            scenarios.load("digits_decomfl", overrides), [Machine({"CPU": 8.0, "GPU": 2.0})]
        )

    assert of() == 0.0
    assert of("resources.host_gpus=0.5", "resources.hosts=3") == 2.0
    assert of("resources.host_gpus=0.5") == 0.5  # it is one host


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("digits_dpzv", ["resources.client_gpus=1.5"]),
        ("digits_dpzv", ["resources.server_gpus=0.00001"]),
        ("digits_dpzv", ["resources.client_gpus=0.6"]),
        ("digits_dpzv", ["resources.server_gpus=3"]),
        ("digits_decomfl", ["resources.host_gpus=0.75", "resources.hosts=3"]),
    ],
)
def test_a_run_in_one_process_is_refused_as_one_on_actors_is(name, overrides):
    total = [Machine({"CPU": 8.0, "GPU": 2.0})]
    said = []
    for share_out in (plan_run, whole_run_gpus):
        with pytest.raises(Unplaceable) as refused:
            share_out(scenarios.load(name, overrides), total)
        said.append(str(refused.value))
    assert said[0] == said[1]


def test_only_impossible_shares_are_refused_for_an_unknown_cluster(small):
    assert whole_run_gpus(small("resources.client_gpus=0.6"), None) == 3.0
    with pytest.raises(Unplaceable, match="above 1 a share must be a whole number"):
        whole_run_gpus(small("resources.client_gpus=1.5"), None)


def rounds(*overrides):
    return scenarios.load("digits_decomfl", list(overrides))


def test_hosts_are_as_many_as_fit():
    assert plan_run(rounds(), [Machine({"CPU": 4.0})]).actors == (Share(0.8, 0.0),) * 4
    with pytest.raises(
        Unplaceable, match=r"1\.5 GPUs asked; above 1 a share must be a whole number"
    ):
        plan_run(
            rounds("resources.host_gpus=1.5", "resources.hosts=1"),
            [Machine({"CPU": 4.0, "GPU": 4.0})],
        )
    for overrides, machine, hosts in (
        ((), {"CPU": 64.0}, 10),  # the cohort
        (("method.asynchronous=true",), {"CPU": 64.0}, 64),
        (("resources.hosts=50",), {"CPU": 64.0}, 10),
        (("resources.host_cpus=2",), {"CPU": 8.0}, 3),  # the server needs some
        (("resources.host_cpus=2", "resources.server_cpus=1"), {"CPU": 8.0}, 3),
        (("resources.host_gpus=0.3",), {"CPU": 8.0, "GPU": 2.0}, 6),
    ):
        assert len(plan_run(rounds(*overrides), [Machine(machine)]).actors) == hosts
    assert plan_run(rounds("resources.host_cpus=2"), [Machine({"CPU": 8.5})]).server == Share(
        0.5, 0.0
    )
    with pytest.raises(
        Unplaceable,
        match=r"ask 5 CPU in all \(server 1, hosts 4\), the cluster has 2; lower server_c",
    ):
        plan_run(
            rounds("resources.host_cpus=2", "resources.server_cpus=1", "resources.hosts=2"),
            [Machine({"CPU": 2.0})],
        )


NAMES = ("digits_private", "digits_dpzv", "vafl", "digits_decomfl", "decomfl_100k", "decomfl_async")
SHAPES = [*product((2, 3, 4), (2, 4, 8, 16)), *product((8,), (2, 4, 8))]
"""Clusters of equal machines: how many, and the CPUs of each."""


@pytest.fixture(scope="module")
def specs():
    return [scenarios.load(name) for name in NAMES]


@pytest.mark.parametrize("apart", [False, True], ids=["head works", "head has no CPU"])
@pytest.mark.parametrize(("count", "cpus"), SHAPES)
def test_defaults_fit_on_equal_machines(specs, count, cpus, apart):
    memory = {"memory": 4.0 * 2**30}
    like = {"CPU": float(cpus), **memory}
    cluster = [Machine(like, home=not n and not apart) for n in range(count)]
    cluster += [Machine(memory, home=True)] * apart
    for spec in specs:
        found = plan_run(spec, cluster)
        packing = packed(found, cluster)
        assert packing.missing == 0
        assert cluster[packing.places[0]].home != apart
        assert found.server.cpus >= 0.5, "a server with less would be the slowest part"
        if spec.kind == "horizontal":
            cohort = spec.descriptor.cohort(spec.method, spec.split.clients)
            assert len(found.actors) == min(count * cpus, cohort)


def test_hosts_with_a_gpu_share_are_on_machines_with_gpus():
    mixed = [
        Machine({"CPU": 8.0}),
        Machine({"CPU": 2.0, "GPU": 1.0}),
        Machine({"CPU": 4.0, "GPU": 2.0}),
    ]
    found = plan_run(rounds("resources.host_gpus=0.4"), mixed)
    assert len(found.actors) == 6, "two on each GPU, never a fraction on two"
    assert packed(found, mixed).missing == 0
    spec = scenarios.load("digits_dpzv", ['resources.client_gpus="auto"'])
    clients = plan_run(spec, mixed)
    assert [share.gpus for share in clients.actors] == [0.5] * 4
    assert packed(clients, mixed).missing == 0


def test_memory_leaves_fewer_hosts():
    def with_memory(plan):
        heavy = tuple(replace(share, memory=2**30) for share in plan.actors)
        return replace(plan, actors=heavy)

    small = [Machine({"CPU": 4.0, "memory": 2.5 * 2**30})] * 2
    assert len(plan_run(rounds(), small, with_memory).actors) == 4
