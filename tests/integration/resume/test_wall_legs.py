import math
import random
from collections import Counter

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import scenarios
from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.compare.run_comparison import run_planned
from raydpzv.config.toml import as_toml
from raydpzv.experiment import run_vertical
from raydpzv.experiment.diagnostics import SILENT
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder, drop_checkpoints
from raydpzv.registry import METHODS
from raydpzv.report import run_plots
from raydpzv.report.page import read_runs, write_report
from raydpzv.sim.clock import WallClock
from raydpzv.sim.wall import ClientLoop
from tests.helpers.kills import evaluating_again, kill_at
from tests.helpers.programs import Kill, killed
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after
from tests.helpers.sound_runs import sound, table

WALL = ("clock.kind=wall", "arrivals.rate=120", "record.checkpoint_updates=20", "record.flush=1000")
SMALL = ("budget.updates=150", "evaluate.every=40", "data.train_rows=150", "data.test_rows=40")
SCENARIOS = {"dpzv": "digits_dpzv"}
PLAIN = ("privacy.mode=none",)
CASES = [
    *[
        (name, () if name == "dpzv" else PLAIN)
        for name, found in METHODS.items()
        if found.kind == "vertical"
    ],
    (
        "dpzv",
        (
            "method.server=zo",
            "method.batches=poisson",
            "method.perturbations=2",
            "model.engine=torch",
        ),
    ),
    (
        "dpzv",
        ("method.lr_at=[[30, 0.001], [90, 0.0005]]", "network.latency=0.01", "clock.compute=0.005"),
    ),
    (
        "vafl",
        ("method.synchrony=t-synchronous", "method.wait_for=3", "method.momentum=0.5", *PLAIN),
    ),
    ("vafl", ("network.latency=0.02", "clock.service=0.002", *PLAIN)),
    ("sgd", ("network.latency=0.01", "method.momentum=0.5", "model.engine=torch")),
    ("czofo", ("method.upload_bits=4", "method.answer_bits=8", "method.momentum=0.5", *PLAIN)),
]


def scenario(name, *overrides):
    return scenarios.load(SCENARIOS.get(name, name), [*SMALL, *WALL, *overrides])


def go_on(folder, **options):
    """Go on to the end; what was told of the run at last is what its rows come to."""
    told = []
    experiment, opened, _ = resuming(folder)
    end = run_prepared(
        experiment, opened, **{"runner": "local", "progress": told.append, **options}
    ).summary
    if told:
        for name in ("updates", "uploads", "bytes_up", "bytes_down"):
            assert getattr(told[-1], name) == end[name], name
        assert sum(told[-1].client_uploads) == end["uploads"]
    return end


def updates_of(folder):
    """The updates in a run's ledger; none of a method without one."""
    if not (folder / "ledger" / "header.json").exists():
        return []
    with Ledger.open(folder / "ledger") as ledger:
        return list(ledger.since(0).updates())


def check_legs(folder, end, legs):
    """Each upload is served once, legs and their gaps are on record, and a replay has every bit."""
    rows = RunFolder.open(folder).rows()
    assert end["status"] == "done"
    assert rows["service"].sort_by("round").column("round").to_pylist() == list(
        range(1, end["updates"] + 1)
    )
    steps = Counter(
        zip(*(rows["service"].column(name).to_pylist() for name in ("client", "step")), strict=True)
    )
    assert set(steps.values()) == {1}
    found = rows["leg"].to_pylist()
    assert [row["leg"] for row in found] == list(range(2, legs + 1))
    assert all(row["gap"] > 0 for row in found)
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    service = rows["service"].sort_by("round").to_pylist()
    assert [trip["served"] for trip in service] == sorted(trip["served"] for trip in service)
    for leg in found:
        before = [trip["applied"] for trip in service[: leg["round"]]]
        assert all(math.isnan(at) or at <= leg["time"] for at in before), "nobody knows when it was"
        assert all(
            trip["due"] >= leg["time"] for trip in service[leg["round"] :] if trip["due"] > 0
        )
        again = service[leg["round"] - leg["recovered"] : leg["round"]]
        assert all(trip["served"] == leg["time"] for trip in again)
    every = RunFolder.open(folder).spec().evaluate.every
    assert evaluating_again(rows, every) == []
    assert replay(folder).verified


@pytest.mark.parametrize(
    ("name", "overrides"), CASES, ids=[" ".join((name, *changed)) for name, changed in CASES]
)
def test_a_run_killed_twice_continues_in_a_second_and_a_third_segment(tmp_path, name, overrides):
    spec, folder = scenario(name, *overrides), tmp_path / "run"
    kept = []
    for updates in (40, 80):
        kill_at(updates, spec, folder, checkpoints=2)
        kept.append(updates_of(folder))
        assert RunFolder.open(folder).checkpoint().round > 0
    end = go_on(folder)
    check_legs(folder, end, 3)
    whole = updates_of(folder)
    for before in kept:
        assert whole[: len(before)] == before
    assert len(whole) == (150 if name == "dpzv" else 0)


@pytest.mark.parametrize("head", ["joint", "frozen"])
def test_uploads_that_gather_in_a_release_are_made_anew(tmp_path, head):
    """What the ledger has of releases of several uploads says in which order these can have been
    served.
    """
    overrides = (
        "method.gather=4",
        "method.average=0.8",
        f"method.server={head}",
        "budget.updates=240",
    )
    spec = sound(table(tmp_path / "table.csv"), *WALL, *overrides)
    folder = tmp_path / "run"
    for updates in (70, 140):
        kill_at(updates, spec, folder, checkpoints=2)
        before = updates_of(folder)
    end = go_on(folder)
    check_legs(folder, end, 3)
    assert updates_of(folder)[: len(before)] == before
    assert end["private"] is True


def proved_epsilon(experiment, entries):
    """ε (replace one record) of releases by client and step, from noise, batches and the Gaussian
    tail alone.
    """
    clients, counts = [factory.make() for factory in experiment.clients], Counter()
    for client, step in entries:
        counts.update(clients[client]._batches.draw(step).tolist())
    mu = 2 * math.sqrt(max(counts.values())) / experiment.setting.noise_multiplier

    def beyond(epsilon):
        tail = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(
            -epsilon / mu - mu / 2
        )
        return tail - experiment.setting.delta

    return brentq(beyond, 0.0, 50.0)


def test_a_process_killed_at_random_moments_loses_no_release_and_makes_none_twice(tmp_path):
    changes = [
        "clock.kind=wall",
        "budget.updates=250",
        "arrivals.rate=60",
        "record.checkpoint=0.3",
        "method.batch=all",
    ]
    spec, folder = sound(table(tmp_path / "table.csv"), *changes), tmp_path / "run"
    file = tmp_path / "scenario.toml"
    file.write_text(as_toml(spec))
    words, before = ["run", str(file), "--out", str(folder), "--or-resume", "--quiet"], []
    for updates in (30, 90):
        killed(["-m", "raydpzv", *words], Kill(folder, after=updates + random.randrange(40)))
        found = updates_of(folder)
        assert found[: len(before)] == before
        before = found
    end = go_on(folder)
    check_legs(folder, end, 3)
    whole, rows = updates_of(folder), RunFolder.open(folder).rows()
    assert whole[: len(before)] == before
    made = [(update.party, int.from_bytes(update.step[:8], "little")) for update in whole]
    assert len(set(made)) == len(made) == end["updates"] == 250
    release = rows["release"]
    released = zip(*(release.column(name).to_pylist() for name in ("client", "step")), strict=True)
    assert set(released) == set(made)
    experiment = prepare_vertical(RunFolder.open(folder).spec())
    (stated,) = [
        claim["epsilon"]
        for claim in end["epsilon"]
        if claim["adversary"] == "client" and claim["relation"] == "replace"
    ]
    assert proved_epsilon(experiment, made) == pytest.approx(stated, rel=1e-6)
    # what would be stated if a leg began without what the ledger alone has
    forgotten = {
        place
        for leg in rows["leg"].to_pylist()
        for place in range(leg["round"] - leg["recovered"], leg["round"])
    }
    assert forgotten
    rest = [address for place, address in enumerate(made) if place not in forgotten]
    assert proved_epsilon(experiment, rest) < 0.999 * stated


def test_a_run_that_was_stopped_continues_where_it_stopped(tmp_path, monkeypatch):
    """With nothing under way there is nothing to make anew; budgets of seconds count the time of
    all legs.
    """
    spec, folder = (
        scenario("vafl", *PLAIN, "budget.updates=100000", "budget.seconds=1.2"),
        tmp_path / "run",
    )
    now = WallClock.now
    with monkeypatch.context() as patch:  # the seconds are not spent before it is looked at
        patch.setattr(WallClock, "now", lambda clock: min(now(clock), 0.9))
        first = scenarios.run(spec, folder, **stop_after(40)).summary
    assert first["status"] == "stopped"
    assert RunFolder.open(folder).checkpoint().round == first["updates"]
    with monkeypatch.context() as patch:  # 1.2 seconds of the second leg alone would never be over
        patch.setattr(WallClock, "now", lambda clock: min(now(clock), 1.21))
        end = go_on(folder)
    check_legs(folder, end, 2)
    (leg,) = RunFolder.open(folder).rows()["leg"].to_pylist()
    assert (leg["round"], leg["recovered"]) == (first["updates"], 0)
    assert leg["time"] == pytest.approx(first["simulated_seconds"], abs=0.5)
    assert end["stopped_by"] == "the budget of 1.2 seconds is spent"
    assert end["legs"] == {"count": 2, "gaps": [leg["gap"]], "recovered": 0}
    assert sum(client["share"] for client in end["presence"]) == pytest.approx(1)


def test_a_trial_of_a_search_under_the_wall_clock_continues(tmp_path):
    spec, folder = scenario("dpzv"), tmp_path / "run"
    kill_at(40, spec, folder, checkpoints=2)
    planned = Planned(PlannedLine("dpzv", None, False, spec), spec, "run")
    assert run_planned(planned, folder) == ""
    check_legs(folder, RunFolder.open(folder).summary(), 2)


def test_a_ledger_without_a_checkpoint_is_continued_with_from_its_first_update(tmp_path):
    """Every release counts, though nobody knows how long ago it was."""
    spec, folder = scenario("dpzv"), tmp_path / "run"
    kill_at(40, spec, folder, checkpoints=2)
    drop_checkpoints(folder)
    kept = len(updates_of(folder))
    end = go_on(folder)
    assert replay(folder).verified
    (leg,) = RunFolder.open(folder).rows()["leg"].to_pylist()
    assert (leg["leg"], leg["round"], leg["recovered"], leg["time"]) == (2, kept, kept, 0.0)
    assert math.isnan(leg["gap"])
    assert end["legs"] == {"count": 2, "gaps": [None], "recovered": kept}
    assert end["ledger"]["updates"] == 150
    assert end["checkpoints"]["count"] > 0


@pytest.mark.usefixtures("unrendered")
def test_reports_say_where_segments_begin_and_that_clocks_leave_the_gaps_out(tmp_path):
    spec, folder = scenario("frozen"), tmp_path / "run"
    kill_at(40, spec, folder, checkpoints=2)
    go_on(folder)
    (run,) = read_runs([folder])
    drawn = run_plots.accuracy_over_seconds([run.view])
    (begin,) = run.view.rows["leg"].column("time").to_pylist()
    (axes,) = drawn.figure.axes
    assert axes.get_xlabel() == "run clock (s), the gaps between legs left out"
    assert [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"] == [
        begin
    ]
    assert "Dotted: where the run, interrupted, continued as a new leg." in drawn.caption
    page = write_report([folder]).read_text()
    assert "gaps between legs" in page
    assert "in 2 legs" in page


def test_a_client_that_falls_silent_is_named_with_its_share(tmp_path):
    trace = tmp_path / "trace.csv"
    times = [(m, 0.01 * k) for m in range(4) for k in range(60) if m < 3 or k < 5]
    trace.write_text("client,time\n" + "".join(f"{m},{at}\n" for m, at in times))
    spec = scenario("frozen", "arrivals.kind=trace", f"arrivals.file={trace}", "budget.updates=185")
    run = scenarios.run(spec)
    summary, span = run.summary, max(run.rows("service")["served"].to_pylist())
    (said,) = [line for line in summary["warnings"] if "silent for long" in line]
    away = summary["presence"][3]
    assert f"client 3 for {away['longest_silence']:.3g} s (2.7 % of the updates are its)" in said
    assert away["share"] == pytest.approx(5 / 185)
    for other in summary["presence"][:3]:  # a machine that stands still is silence of all
        assert f"client {other['client']} " not in said or other["longest_silence"] > SILENT * span


def test_a_segment_that_was_killed_before_its_first_update_is_on_record_too(tmp_path):
    """Its number and its gap are in the checkpoint with which it begins."""
    spec, folder = scenario("dpzv", "record.checkpoint_updates=1000000"), tmp_path / "run"
    kill_at(30, spec, folder)
    kill_at(0, spec, folder, checkpoints=1)
    end = go_on(folder)
    check_legs(folder, end, 3)
    second, third = RunFolder.open(folder).rows()["leg"].to_pylist()
    assert second["round"] == second["recovered"] > 0
    assert third["time"] == second["time"]


def test_clients_continue_with_the_delays_of_the_work_that_they_have_not_done(
    tmp_path, monkeypatch
):
    made = {}

    class Watched(ClientLoop):
        def __init__(self, client, *others, **named):
            made[client] = named["start"].works
            super().__init__(client, *others, **named)

    spec, folder = scenario("vafl", *PLAIN), tmp_path / "run"
    kill_at(40, spec, folder, checkpoints=2)
    monkeypatch.setattr(run_vertical, "ClientLoop", Watched)
    served = dict(RunFolder.open(folder).checkpoint().state["run"]["served"])
    go_on(folder)
    assert made == {client: served.get(client, 0) for client in range(4)}
    assert sum(made.values()) > 0
