import threading

import pytest

import scenarios
from actors.reservation import reserved
from actors.shares import Plan, Share
from raydpzv.errors import StoppedEarly, Unplaceable
from raydpzv.experiment.finalize import RunOptions

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]


@pytest.mark.parametrize("placement", ["pack", "spread", "strict_pack"])
def test_ray_is_told_how_actors_are_to_lie(placement):
    from ray.util import placement_group_table

    plan = Plan(Share(0.5, 0.0), (Share(0.5, 0.0),), ((0,),), placement)
    with reserved(plan, RunOptions()) as place:
        assert placement_group_table(place.group)["strategy"] == placement.upper()


def test_actors_that_want_a_machine_each_are_refused_on_one_machine(small, tmp_path):
    alone = small("resources.placement=strict_spread", "resources.client_actors=2")
    with pytest.raises(
        Unplaceable, match="a machine for each of 3 actors, the cluster has 1; set resources"
    ):
        scenarios.run(alone, tmp_path / "run", runner="ray")
    assert not (tmp_path / "run").exists()


def test_the_placement_timeout_tells_what_is_missing_and_ends_with_the_arithmetic(small, tmp_path):
    asked, told = "4 actors ask 2 GPU in all (server 0, clients 2), the cluster has 0", []
    greedy = small("resources.client_gpus=0.5", "resources.placement_timeout=1")
    with pytest.raises(
        Unplaceable,
        match=r"lower client_gpus, .* \(waited 1 s; or raise resources.placement_timeout\)",
    ):
        scenarios.run(
            greedy, tmp_path / "run", runner="ray", progress=lambda at: told.append(at.stage)
        )
    assert set(told[1:]) == {f"2 GPU, up to 1 s: {asked}"}
    assert not (tmp_path / "run").exists()


def test_a_run_that_waits_for_a_cluster_to_grow_can_be_stopped(small):
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedEarly, match="waited for resources"):
        scenarios.run(
            small("resources.client_gpus=0.5", "resources.placement_timeout=900"),
            runner="ray",
            stop=stop,
        )


def test_labels_that_no_machine_carries_are_refused(small):
    labelled = small('resources.labels.clients={zone = "b"}')
    with pytest.raises(
        Unplaceable, match="zone = b for clients, which no machine carries; labels there are none;"
    ):
        scenarios.run(labelled, runner="ray")
