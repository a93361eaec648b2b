from contextlib import nullcontext

import pytest

import scenarios
from actors.horizontal import driver
from actors.machines import Machine
from actors.memory_needs import with_run_memory
from actors.placement import plan_run
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare

CLUSTER = [Machine({"CPU": 8.0, "memory": 2.0**36})]


@pytest.fixture(scope="module")
def planned(small):
    """Return a vertical scenario's columns' sizes, and its plan with memory."""

    def make(*overrides):
        spec = small(*overrides)
        prepared = prepare(spec)
        sizes = [c.x_train.size * 4 + c.x_held_out.size * 4 for c in prepared.clients]
        return sizes, with_run_memory(plan_run(spec, CLUSTER), prepared)

    return make


def test_a_clients_actor_has_room_for_its_process_and_a_copy_of_its_columns(planned):
    sizes, each = planned()
    (own,) = {share.memory - size for share, size in zip(each.actors, sizes, strict=True)}
    assert 64 * 2**20 < own < 256 * 2**20
    _, two = planned("resources.client_actors=2")
    assert [share.memory - own for share in two.actors] == [
        sizes[0] + sizes[2],
        sizes[1] + sizes[3],
    ]
    _, none = planned("resources.client_actors=0")
    assert none.server.memory - each.server.memory == sum(sizes)
    assert none.bundles()[0]["memory"] == none.server.memory


def test_torch_takes_more_than_compiled_kernels(planned):
    (_, compiled), (_, torch) = (planned(f"model.engine={name}") for name in ("compiled", "torch"))
    for there, more in zip(
        (compiled.server, *compiled.actors), (torch.server, *torch.actors), strict=True
    ):
        assert more.memory > there.memory + 100 * 2**20


def hosts(engine):
    """Return a prepared horizontal scenario, and its plan with memory."""
    prepared = prepare(scenarios.load("digits_decomfl", [f"model.engine={engine}"]))
    return prepared, with_run_memory(plan_run(prepared.spec, CLUSTER), prepared)


def test_hosts_and_their_server_carry_memory_and_more_where_they_load_torch():
    compiled, torch = (hosts(engine)[1].bundles() for engine in ("compiled", "torch"))
    assert len(compiled) == len(torch) > 2
    for there, more in zip(compiled, torch, strict=True):
        assert more["memory"] > there["memory"] + 100 * 2**20 > 150 * 2**20


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_a_horizontal_run_asks_for_the_memory_of_its_engine(engine, monkeypatch):
    class Asked(Exception):
        pass

    def reserved(plan, options):
        raise Asked(plan.bundles())

    monkeypatch.setattr("actors.reservation.reserved", reserved)
    monkeypatch.setattr("actors.driver.connected", lambda *address, **how: nullcontext())
    monkeypatch.setattr("actors.driver.cluster_machines", lambda: CLUSTER)
    prepared, planned = hosts(engine)
    with pytest.raises(Asked) as asked:
        driver.run_horizontal(prepared, RunOptions())
    assert asked.value.args[0] == planned.bundles()
