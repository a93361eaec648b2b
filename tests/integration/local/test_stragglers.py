import numpy as np
import pytest

import scenarios
from raydpzv.config.timing import round_trips, stands_still
from raydpzv.config.toml import parse
from raydpzv.errors import SpecError
from raydpzv.experiment.privacy_setting import expected_shares
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.vertical import prepare_vertical
from tests.helpers.loading import refusal

SHORT = ("evaluate.every=40", "method.batch=32")
SYNCHRONOUS = ("method.synchrony=synchronous",)
PAIRS = ("method.synchrony=t-synchronous", "method.wait_for=2")
SLOW = ("arrivals.rate=[1,1,1,0.1]",)
NOISE = ("privacy.mode=paper", "privacy.epsilon=10.0", "privacy.delta=1e-5", "privacy.clip=1.0")
DELAYED = (
    "arrivals.kind=immediate",
    "clock.compute=[0.25,0.5,0.75,1.0]",
    "clock.compute_law=poisson",
    "clock.compute_quantum=0.125",
)


def run(name, *overrides, **options):
    return scenarios.run(scenarios.load(name, ["budget.updates=80", *SHORT, *overrides]), **options)


def shares(spec):
    return expected_shares(spec, spec.descriptor.noise(spec.method))


@pytest.mark.parametrize("name", ["vafl", "sgd"])
def test_a_synchronous_model_does_not_hang_on_who_comes_last(name):
    extra = SYNCHRONOUS if name == "vafl" else ()
    ways = (SLOW, ("arrivals.rate=[0.1,3,1,2]",), (*DELAYED, "network.latency=[0.3,0.1,0.0,0.2]"))
    runs = [run(name, *extra, *way) for way in ways]
    orders = {
        tuple(found.rows("service").sort_by("round").column("client").to_pylist()) for found in runs
    }
    assert len(orders) == len(ways)
    assert len({found.summary["model_digest"] for found in runs}) == 1


def test_a_synchronous_run_wakes_by_the_clocks_and_waits_for_the_slowest():
    """A round cannot end before the slow client's next epoch: at regular epochs 10 s apart, one
    round takes 10 s.
    """
    constant = ("arrivals.kind=constant", *SLOW)
    for name, extra in (("vafl", SYNCHRONOUS), ("sgd", ())):
        found = run(name, *extra, *constant)
        assert found.summary["simulated_seconds"] == pytest.approx(200.0)
        served = found.rows("service").sort_by("round").column("served").to_numpy().reshape(20, 4)
        assert served[:, -1] == pytest.approx(10.0 * np.arange(1, 21))
    assert run("vafl", *constant).summary["simulated_seconds"] < 40


def test_lateness_at_a_barrier_is_no_finding_and_lateness_of_a_saturated_client_is():
    for name, extra in (("vafl", SYNCHRONOUS), ("vafl", PAIRS), ("sgd", ())):
        found = run(name, *extra, *SLOW)
        assert np.mean(found.rows("service").column("late").to_numpy()) > 0.1
        assert not any("rates" in warning for warning in found.summary["warnings"])
    busy = run("vafl", "clock.compute=3.0", "clock.compute_law=constant")
    assert any("could not keep their rates" in warning for warning in busy.summary["warnings"])


def test_clients_that_are_late_and_keep_their_rates_are_told_from_those_that_fall_behind():
    """Client 3 takes three times as long for an activation as its epochs are apart, the others four
    tenths as long.
    """
    compute = ("clock.compute=[0.4,0.4,0.4,3.0]", "clock.compute_law=constant")
    found = run("vafl", *compute, "arrivals.rate=1.0", "budget.updates=300")
    warned = [
        w
        for w in found.summary["warnings"]
        if w.startswith("epochs fell into running round trips (")
    ]
    slow, late = sorted(warned, key=len)
    assert "(client 3 " in slow
    assert slow.endswith("% of its activations): these clients could not keep their rates")
    assert "(client 0 " in late
    assert "client 3" not in late
    assert (
        "% of their activations): these clients kept their rates, but began so often later" in late
    )
    uploads = np.bincount(found.rows("service").column("client").to_numpy(), minlength=4)
    achieved = uploads / found.summary["simulated_seconds"]
    assert achieved[:3] == pytest.approx(1.0, abs=0.25)
    assert achieved[3] == pytest.approx(1 / 3, abs=0.03)


def test_immediate_clients_are_never_late_and_a_run_replays(tmp_path):
    for number, extra in enumerate(((), PAIRS, SYNCHRONOUS)):
        found = run("vafl", *DELAYED, *extra, out=tmp_path / str(number))
        assert not np.any(found.rows("service").column("late").to_numpy())
        assert found.summary["simulated_seconds"] > 0
        assert replay(tmp_path / str(number)).verified


def test_immediate_under_the_wall_clock():
    wall = ("clock.kind=wall", "arrivals.kind=immediate", "clock.compute=[0.005,0.005,0.005,0.2]")
    found = run("vafl", *wall)
    assert found.summary["updates"] == 80
    counts = np.bincount(found.rows("service").column("client").to_numpy(), minlength=4)
    assert counts[3] < counts[:3].min()
    assert not np.any(found.rows("service").column("late").to_numpy())
    # queries reach a client that is never idle with the answer to its upload
    asked = run("vafl", *wall, "clock.compute=0.01", "method.max_delay=20", "budget.updates=24")
    assert asked.summary["updates"] == 24
    assert any(m["kind"] == "FreshEmbeddings" for m in asked.rows("message").to_pylist())
    assert max(row["age_max"] for row in asked.rows("staleness").to_pylist()) <= 20


@pytest.mark.parametrize("name", ["vafl", "zoo_vfl"])
def test_planned_shares_of_immediate_clients_are_those_that_a_run_makes(name):
    links = (
        "network.latency=[0.1,0.0,0.05,0.0]",
        "network.up=2000",
        "network.down=[1e4,1e4,1e3,1e4]",
    )
    extra = (*DELAYED, *links, "budget.updates=800", "evaluate.every=800")
    found = run(name, *extra)
    counts = np.bincount(found.rows("service").column("client").to_numpy(), minlength=4) / 800
    planned = shares(scenarios.load(name, [*SHORT, *extra]))
    assert sum(planned) == pytest.approx(1.0)
    assert counts == pytest.approx(planned, abs=0.03)
    # controls: even shares, and those of compute alone
    assert np.abs(counts - 0.25).max() > 0.04
    assert np.abs(counts - np.array([12, 6, 4, 3]) / 25).max() > 0.04


@pytest.mark.parametrize(
    "extra", [("method.wait_for=2", "method.synchrony=t-synchronous"), ("clock.service=0.3",)]
)
def test_waiting_leaves_the_largest_planned_share_an_upper_end(extra):
    found = run("vafl", *DELAYED, *extra, "budget.updates=600")
    counts = np.bincount(found.rows("service").column("client").to_numpy(), minlength=4) / 600
    assert counts.max() < max(shares(scenarios.load("vafl", [*SHORT, *DELAYED, *extra]))) + 0.02


def test_shares_are_even_where_no_delay_or_the_barrier_says_so():
    def of(*overrides):
        return shares(scenarios.load("vafl", [*SHORT, "arrivals.kind=immediate", *overrides]))

    assert of() == (0.25,) * 4
    assert of("clock.compute=[1,2,3,4]", *SYNCHRONOUS) == (0.25,) * 4
    assert of("clock.compute=[0,2,0,4]") == (0.5, 0.0, 0.5, 0.0)
    assert of("clock.compute=[1,3,3,3]") == pytest.approx((0.5, 1 / 6, 1 / 6, 1 / 6))
    assert shares(scenarios.load("vafl", SLOW)) == pytest.approx((1 / 3.1,) * 3 + (0.1 / 3.1,))


def test_noise_is_planned_for_the_quickest_clients_part():
    """The quickest client makes 12 of 25 updates, not a quarter: more releases of its rows, more
    noise.
    """
    plan = ("budget.updates=2500", *NOISE)
    slow = prepare_vertical(scenarios.load("vafl", [*SHORT, *plan, *DELAYED])).setting
    even = prepare_vertical(
        scenarios.load("vafl", [*SHORT, *plan, "arrivals.kind=immediate"])
    ).setting
    assert slow.expected_uploads == 1200
    assert even.expected_uploads == 625
    assert slow.sigma > 1.3 * even.sigma


def test_round_trips_barriers_and_time_that_stands_still():
    spec = scenarios.load(
        "vafl", ["clock.compute=[1,2,3,4]", "clock.service=0.5", "network.latency=0.25"]
    )
    assert round_trips(spec, 100, 10) == [2.0, 3.0, 4.0, 5.0]
    spec = scenarios.load("vafl", ["network.up=100", "network.down=[10,20,10,10]"])
    assert round_trips(spec, 100, 10) == [2.0, 1.5, 2.0, 2.0]
    assert [scenarios.load("vafl", [*way]).barrier for way in ((), PAIRS, SYNCHRONOUS)] == [1, 2, 4]
    assert scenarios.load("sgd").barrier == 4
    assert scenarios.load("frozen").barrier == 1
    assert not stands_still(scenarios.load("vafl"))


SECONDS = {"updates": None, "seconds": 5.0}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"clock": {"compute_law": "poisson", "compute": 1.0}},
            r"clock\.compute_quantum: goes with",
        ),
        ({"clock": {"compute_quantum": 0.1}}, r"clock\.compute_quantum: goes with"),
        (
            {"clock": {"compute_law": "exponential", "compute_quantum": 0.1}},
            r"clock\.compute_quantum: goes with",
        ),
        (
            {"clock": {"compute_law": "poisson", "compute": [1e9] * 4, "compute_quantum": 1e-6}},
            r"clock\.compute_quantum: wanted at least 0\.001",
        ),
        ({"arrivals": {"kind": "immediate", "rate": 2.0}}, r"arrivals\.rate: has no meaning"),
        ({"arrivals": {"kind": "immediate", "rate": [1.0] * 4}}, r"arrivals\.rate: has no meaning"),
        ({"arrivals": {"kind": "immediate"}, "budget": SECONDS}, r"budget\.updates: .*never ends"),
        (
            {
                "arrivals": {"kind": "immediate"},
                "clock": {"compute": [0.0, 1.0, 1.0, 1.0]},
                "budget": SECONDS,
            },
            r"budget\.updates: .*never ends",
        ),
        (
            {
                "method": {"name": "vafl", "synchrony": "t-synchronous", "wait_for": 2},
                "arrivals": {"kind": "immediate"},
                "clock": {"compute": [0.0, 1.0, 0.0, 1.0]},
                "budget": SECONDS,
            },
            r"budget\.updates: .*never ends",
        ),
    ],
)
def test_a_contradiction_is_named_in_one_line(tables, said):
    tree = {"method": {"name": "vafl"}, **tables, "budget": tables.get("budget", {"updates": 10})}
    tree["budget"] = {name: value for name, value in tree["budget"].items() if value is not None}
    with refusal(SpecError, said):
        parse(tree, "x.toml")


@pytest.mark.parametrize(
    ("method", "clock", "network"),
    [
        ({}, {"service": 0.5}, {}),
        ({}, {}, {"down": 1e3}),
        ({"synchrony": "synchronous"}, {"compute": [0, 0, 0, 1]}, {}),
        ({"synchrony": "t-synchronous", "wait_for": 2}, {"compute": [0, 1, 1, 1]}, {}),
        ({}, {"compute": 0.5, "compute_law": "poisson", "compute_quantum": 2.0}, {}),
    ],
)
def test_a_budget_of_seconds_ends_where_time_passes(method, clock, network):
    tree = {
        "method": {"name": "vafl", "batch": 8, **method},
        "arrivals": {"kind": "immediate"},
        "clock": clock,
        "network": network,
        "budget": {"seconds": 3.0},
    }
    assert "budget of 3 seconds" in scenarios.run(parse(tree, "x.toml")).summary["stopped_by"]


def test_horizontal_clients_are_not_immediate():
    for name in ("digits_decomfl", "decomfl_async"):
        with pytest.raises(SpecError, match=r'arrivals\.kind: "immediate" is for vertical methods'):
            scenarios.load(name, ["arrivals.kind=immediate"])


@pytest.mark.parametrize(
    ("name", "slowest"), [("vafl_stragglers", 1 / 31), ("vafl_delays", 3 / 25)]
)
def test_the_scenarios_have_the_slow_client_that_they_promise(name, slowest):
    found = scenarios.run(scenarios.load(name, ["budget.updates=500", "evaluate.every=500"]))
    clients = found.rows("service").column("client").to_numpy()
    assert np.mean(clients == 3) == pytest.approx(slowest, abs=0.03)
    assert found.summary["warnings"] == []


@pytest.mark.parametrize("synchrony", ["asynchronous", "synchronous"])
def test_an_evaluation_is_of_the_time_when_its_update_was_done(synchrony):
    slow = ("clock.service=1.0", "clock.compute=0.01", "arrivals.kind=immediate")
    given = ("budget.updates=12", "evaluate.every=4", f"method.synchrony={synchrony}")
    found = scenarios.run(scenarios.load("vafl", [*slow, *given]))
    served = {row["round"]: row["served"] for row in found.rows("service").to_pylist()}
    times = {row["round"]: row["time"] for row in found.rows("evaluation").to_pylist()}
    assert {round: times[round] for round in (4, 8)} == {round: served[round] for round in (4, 8)}
    assert times[0] == 0
    assert times[12] >= served[12]


ENDING = "client,time\n" + "".join(
    f"{m},{0.02 * i}\n" for m, last in enumerate((200, 2, 200, 200)) for i in range(1, last + 1)
)


@pytest.mark.parametrize(
    ("settings", "stopped"),
    [
        (("method.max_delay=2", "budget.updates=40"), "40 updates done"),
        (
            ("method.synchrony=t-synchronous", "method.wait_for=4", "budget.updates=40"),
            "no client wakes",
        ),
        (("method.synchrony=synchronous", "budget.updates=40"), "no client wakes"),
    ],
)
def test_a_trace_that_ends_leaves_nobody_waiting_under_the_wall_clock(settings, stopped, tmp_path):
    (tmp_path / "trace.csv").write_text(ENDING)
    trace = (
        "arrivals.kind=trace",
        f"arrivals.file={tmp_path / 'trace.csv'}",
        "resources.timeout=20",
    )
    spec = scenarios.load("vafl", ["clock.kind=wall", *trace, *settings])
    summary = scenarios.run(spec).summary
    assert summary["status"] == "done"
    assert stopped in summary["stopped_by"]
