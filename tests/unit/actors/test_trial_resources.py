import pytest

import scenarios
from actors.machines import Machine
from actors.shares import RESOLUTION, Plan, Share
from actors.trial_resources import TrialNeeds, trial_with_actors, whole_trials
from raydpzv.errors import Unplaceable

FOUR = ("split.clients=4",)
"""Four clients, an actor each."""


def test_one_machine_must_have_all_shares_of_a_whole_trial(small):
    needs = whole_trials(
        [small(), small("resources.client_gpus=0.1", "resources.server_gpus=0.1")], None
    )
    assert needs == TrialNeeds(Share(1.0, 0.5))
    needs.check([Machine({"CPU": 2.0}), Machine({"CPU": 4.0, "GPU": 1.0})])
    with pytest.raises(
        Unplaceable,
        match=(
            r"asks 1 CPU and 0.5 GPU on one machine, .* 2 CPU and 0 GPU; 0 CPU and 1 GPU; lower"
            r" the GPU"
        ),
    ):
        needs.check([Machine({"CPU": 2.0}), Machine({"GPU": 1.0})])


def test_actors_and_the_watching_process_share_the_cluster(small):
    needs = trial_with_actors(small(*FOUR), [Machine({"CPU": 2.0})])
    bundles = needs.bundles()
    assert len(bundles) == 1 + 1 + 4
    assert bundles[0] == {"CPU": RESOLUTION}
    assert sum(bundle["CPU"] for bundle in bundles) == pytest.approx(2, abs=6 * RESOLUTION)
    assert sum(bundle["CPU"] for bundle in bundles) <= 2
    assert needs.strategy == "PACK"
    needs.check([Machine({"CPU": 1.0})] * 2)
    place = needs.place("group")
    assert [place.bundle(actor) for actor in range(5)] == [1, 2, 3, 4, 5]


def test_hosts_of_rounds_are_planned_alike():
    spec = scenarios.load("digits_decomfl", ["resources.hosts=2"])
    needs = trial_with_actors(spec, [Machine({"CPU": 2.0})])
    assert len(needs.bundles()) == 1 + 1 + 2


def test_under_the_wall_clock_all_must_be_on_one_machine(small):
    spec = small(*FOUR, "clock.kind=wall", "resources.client_cpus=0.5", "resources.server_cpus=0.5")
    needs = trial_with_actors(spec, [Machine({"CPU": 4.0})])
    assert needs.strategy == "STRICT_PACK"
    needs.check([Machine({"CPU": 2.6})])
    with pytest.raises(
        Unplaceable, match=r"a trial asks 2\.5001 CPU and 0 GPU on one machine, .* 2 CPU"
    ):
        needs.check([Machine({"CPU": 2.0})] * 2)
    spread = trial_with_actors(small(*FOUR, "resources.client_cpus=0.5"), [Machine({"CPU": 4.0})])
    spread.check([Machine({"CPU": 1.0})] * 4)


def test_more_than_the_cluster_has_is_refused_with_the_arithmetic(small):
    with pytest.raises(
        Unplaceable, match=r"5 actors ask 4.* CPU in all .* the cluster has 1\.9999; lower"
    ):
        trial_with_actors(small(*FOUR, "resources.client_cpus=1"), [Machine({"CPU": 2.0})])
    asks_whole = trial_with_actors(small(*FOUR, "resources.server_cpus=1"), [Machine({"CPU": 6.0})])
    with pytest.raises(
        Unplaceable, match=r"an actor of a trial asks 1 CPU and 0 GPU on one machine"
    ):
        asks_whole.check([Machine({"CPU": 0.8})] * 8)


def test_memory_that_no_machine_has_is_reported():
    actors = Plan(
        Share(1.0, 0.0, 2**30), (Share(1.0, 0.0, 2**31),), ((0,),), placement="strict_pack"
    )
    needs = TrialNeeds(Share(RESOLUTION, 0.0), actors)
    needs.check([Machine({"CPU": 4.0, "memory": 3.0 * 2**30})])
    with pytest.raises(
        Unplaceable,
        match=(
            r"0 GPU and 3\.00 GiB of memory on one machine, .* 0 GPU and 2\.50 GiB of memory; lower"
        ),
    ):
        needs.check([Machine({"CPU": 4.0, "memory": 2.5 * 2**30})])


def test_labels_of_trials_with_actors_are_refused(small):
    with pytest.raises(Unplaceable, match=r"resources\.labels: trials with actors of their own"):
        trial_with_actors(small('resources.labels.server={zone = "a"}'), [Machine({"CPU": 2.0})])


def test_a_machine_each_counts_the_process_that_watches(small):
    five = [Machine({"CPU": 1.0})] * 5
    needs = trial_with_actors(small(*FOUR, "resources.placement=strict_spread"), five)
    with pytest.raises(
        Unplaceable, match="a machine for each of 6 processes of a trial, the cluster has 5"
    ):
        needs.check(five)
    needs.check([Machine({"CPU": 1.0})] * 6)


def test_capacity_counts_the_whole_trials_that_fit():
    one = TrialNeeds(Share(1.0, 0.0))
    assert (
        one.capacity([Machine({"CPU": 2.0}), Machine({"CPU": 1.5, "GPU": 1.0}), Machine({})]) == 3
    )
    third = TrialNeeds(Share(1.0, 0.1))
    assert third.capacity([Machine({"CPU": 64.0, "GPU": 1.0}), Machine({"CPU": 8.0})]) == 10
    fractions_span_no_devices = TrialNeeds(Share(1.0, 0.6))
    assert fractions_span_no_devices.capacity([Machine({"CPU": 64.0, "GPU": 3.0})]) == 3
    assert TrialNeeds(Share(1.0, 2.0)).capacity([Machine({"CPU": 64.0, "GPU": 5.0})]) == 2
    assert one.capacity([Machine({"CPU": 0.5})]) == 1, (
        "a trial that does not fit is refused elsewhere"
    )
