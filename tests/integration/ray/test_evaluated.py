import threading
import time
from contextlib import suppress

import pytest
import ray

import scenarios
from actors import actor_process
from actors.actor_process import end
from actors.machines import Machine
from actors.placement import plan_run
from actors.runner import run_on_ray
from actors.shares import Place
from actors.vertical.actor_set import create
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local

pytestmark = pytest.mark.ray

SMALL = {
    "digits_dpzv": ("split.clients=2", "resources.client_actors=1", "privacy.noise=seeded"),
    "digits_decomfl": ("resources.hosts=1",),
}
SHORT = ("budget.updates=20", "evaluate.every=4", "data.train_rows=200")


def heard(run, name):
    """Run until the evaluation after 8 updates; return what was heard, and the summary."""
    found, stop = [], threading.Event()

    def evaluated(status, metrics):
        found.append((status.updates, metrics.accuracy, metrics.loss))
        if status.updates == 8:
            stop.set()

    spec = scenarios.load(name, [*SHORT, *SMALL[name]])
    return found, run(prepare(spec), RunOptions(stop=stop, evaluated=evaluated)).summary


@pytest.mark.parametrize("name", SMALL)
def test_a_run_on_actors_waits_at_evaluations_as_one_in_this_process(ray_session, name):
    here, summary = heard(run_local, name)
    there, made = heard(run_on_ray, name)
    assert there == here
    assert [updates for updates, _, _ in here][-1] == 8
    assert (made["updates"], made["digest"], made["status"]) == (8, summary["digest"], "stopped")


def ends(actor):
    """Wait until an actor has ended; what was removed on its way still answers a while."""
    with suppress(ray.exceptions.RayActorError):
        while ray.get(actor.node.remote()):
            time.sleep(0.1)


def test_all_actors_are_in_the_group_of_the_place_after_the_drivers_bundle(
    ray_session, monkeypatch
):
    monkeypatch.setattr(actor_process, "_kept", None)  # else they are another run's processes
    prepared = prepare(scenarios.load("digits_dpzv", [*SHORT, *SMALL["digits_dpzv"]]))
    planned = plan_run(prepared.spec, [Machine({"CPU": 1.0})])
    group = ray.util.placement_group([{"CPU": 0.001}, *planned.bundles()])
    assert group.wait(60)
    actor_set = create(prepared, Place(planned, group, driver=True))
    ray.get(actor_set.made)
    try:
        ray.util.remove_placement_group(group)  # which ends what is in it
        for actor in (actor_set.server, *actor_set.actors):
            ends(actor)
    finally:
        end(actor_set.all)
