import io
import math
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console

import scenarios
from raydpzv.compare.plan import Comparison, PlannedLine
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.release import UNACCOUNTED, PrivacyLoss
from raydpzv.records.callbacks import Fault
from raydpzv.report.text import duration
from raydpzv.sim.interfaces import Status
from scenarios import display, progress
from scenarios.comparison_progress import comparison_progress
from scenarios.progress import epsilon_terms, forecast, live_progress, progress_line, view


def shown(status, *overrides, scenario="digits_dpzv", terminal=True):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
    with live_progress(scenarios.load(scenario, overrides), console) as progress:
        progress.status(status)
    return stream.getvalue()


def test_progress_shows_updates_accuracy_bytes_staleness_and_both_epsilons_with_their_terms():
    status = Status(
        updates=500,
        uploads=500,
        time=9.0,
        bytes_up=2**20,
        bytes_down=2**10,
        late=50,
        accuracy=0.75,
        privacy=PrivacyLoss(mu_of(0.4, 1e-3), mu_of(12345.6, 1e-3), 1e-3),
        staleness=3.25,
    )
    text = shown(status)
    for part in (
        "500/2000 updates",
        "accuracy 0.750",
        "up 1.00 MiB",
        "down 1.00 KiB",
        "staleness 3.2 rounds",
        "late 10 %",
    ):
        assert part in text
    for part in (
        "δ=0.001",
        "replace one record",
        "Gaussian mechanism",
        "0.4 claimed by the paper, not proved",
    ):
        assert part in text
    assert "> 10 against the clients: no useful ε" in text


def test_an_actor_that_was_made_again_is_a_line_of_its_own():
    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=100, color_system=None)
        with live_progress(scenarios.load("digits_dpzv"), console) as progress:
            progress.fault(Fault(1.0, "server", "Lost", "gone; all actors are made again (1 of 3)"))
            progress.fault(Fault(1.0, "run", "RunError", "what ends the run"))
        assert "server: gone; all actors are made again (1 of 3)" in stream.getvalue()
        assert "what ends the run" not in stream.getvalue()


def test_a_run_without_noise_shows_no_epsilon():
    text = shown(Status(updates=5, accuracy=0.5), 'privacy={mode="none"}')
    assert "ε" not in text
    assert "∞" in shown(Status(updates=5, privacy=PrivacyLoss(math.inf, math.inf)))


def test_budgets_other_than_updates_have_their_own_unit():
    status = Status(updates=5, time=3.0, bytes_up=100, bytes_down=20)
    paper = 'privacy={mode="none"}'
    assert "3/60 seconds" in shown(status, paper, "budget={seconds=60}")
    assert "120/1000 bytes" in shown(status, paper, "budget={bytes=1000}")


def test_horizontal_runs_count_rounds_or_updates_and_lag_only_where_there_is_lag():
    status = Status(
        updates=20, uploads=200, late=50, bytes_up=2**10, bytes_down=2**20, staleness=19.0
    )
    rounds = shown(status, scenario="digits_decomfl")
    assert "20/300 rounds" in rounds
    assert "up 1.00 KiB  down 1.00 MiB" in rounds
    assert not any(word in rounds for word in ("staleness", "lag", "late"))
    alone = shown(status, "method.asynchronous=true", scenario="digits_decomfl")
    assert "20/300 updates" in alone
    assert "lag 19 updates  late 25 %" in alone
    agent = shown(status, "method.name=mezo", "split.clients=1", scenario="digits_decomfl")
    assert "20/300 updates" in agent


def test_a_proved_run_shows_the_proved_epsilon_alone_with_the_delta_it_has_by_itself():
    status = Status(updates=5, privacy=PrivacyLoss(math.nan, mu_of(0.7, 1e-5), 1e-5))
    text = shown(status, "privacy.relation=add_remove", scenario="digits_private")
    assert "add or remove one record, δ=1e-05" in text
    assert "0.7 proved against the clients" in text
    assert "paper" not in text


# What is printed while a run is at work, on a terminal and off one.


class Heard(io.StringIO):
    """A stream that tells when something has been written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, words: str) -> int:
        count = super().write(words)
        if "\n" in words:
            self.written.set()
        return count


def console(stream, *, terminal=False):
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None)


def test_the_live_view_judges_each_epsilon_as_a_privacy_table_does():
    users = seen(
        STATUS._replace(privacy=LARGE._replace(external=mu_of(2, 1e-5))),
        scenarios.load("digits_users"),
    )
    assert (
        "2 proved against anyone who sees the models; > 10 against one silo: no useful ε"
        in " ".join(users.split())
    )
    nothing = seen(
        STATUS._replace(privacy=PrivacyLoss(math.nan, math.inf, 1e-3)),
        scenarios.load("digits_dpzv"),
    )
    assert "∞ against the clients: nothing proved" in nothing


def seen(status, spec):
    """The live view as text."""
    stream = io.StringIO()
    for part in view(status, spec):
        console(stream).print(part)
    return stream.getvalue()


STATUS = Status(
    updates=500, uploads=500, time=100.0, bytes_up=2**20, bytes_down=2**10, accuracy=0.75, loss=0.625,
    staleness=3.25, late=50, client_uploads=(100, 150, 200, 50), client_staleness=(1.0, 2.0, 3.0, 44.5),
)  # fmt: skip


def test_a_line_says_where_the_run_stands_and_what_is_left():
    line = progress_line(
        STATUS, scenarios.load("digits_dpzv", ['privacy={mode="none"}']), 30.0, 20.0
    )
    assert (
        line == "500/2,000 updates, accuracy 0.750, loss 0.625, up 1.00 MiB, down 1.00 KiB, 30 s"
        " elapsed, "
        "about 1 min 00 s left"
    )


def test_what_is_left_is_foretold_by_the_updates_of_this_segment_alone():
    spec, status = scenarios.load("digits_dpzv", ['privacy={mode="none"}']), Status(updates=1500)
    assert "about 50 s left" in progress_line(status, spec, 500.0, 10.0, 1400.0)
    for before in (1500.0, math.nan):  # which has made none
        assert "left" not in progress_line(status, spec, 500.0, 10.0, before)


@pytest.mark.parametrize(("begins", "first"), [(0, 1), (400, 401)])
def test_the_time_before_a_first_update_foretells_nothing(monkeypatch, begins, first):
    """Kernels compile, and a resumed run has updates from before: neither is this leg's pace."""
    now, said = [0.0], []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(display, "repeated", lambda interval, act: nullcontext(said.append(act)))
    stream, spec = io.StringIO(), scenarios.load("digits_dpzv", ["budget.updates=600"])
    with live_progress(spec, console(stream)) as shown:
        for at, status in (
            (5.0, Status(stage="the evaluation of the initial model")),
            (20.0, Status(updates=begins)),
            (25.0, Status(updates=begins)),
            (30.0, Status(updates=first)),
        ):
            now[0] = at
            shown.status(status)
            said[0]()
        assert "left" not in stream.getvalue()
        now[0] = 32.0
        shown.status(Status(updates=first + 20))
        said[0]()
    assert f"about {duration((600 - first - 20) * 0.1)} left" in stream.getvalue()


PROVED = PrivacyLoss(math.nan, mu_of(0.7, 1e-5), 1e-5)
CLAIMED = PrivacyLoss(mu_of(0.4, 1e-3), mu_of(123_456.7, 1e-3), 1e-3)
OF_USERS = PrivacyLoss(math.nan, mu_of(3, 1e-5), 1e-5, mu_of(2, 1e-5), mu_of(7, 1e-5))
AT_10 = PrivacyLoss(math.nan, mu_of(10 * (1 + 1e-7), 1e-5), 1e-5)
LARGE = PrivacyLoss(math.nan, mu_of(11, 1e-5), 1e-5, mu_of(11, 1e-5), mu_of(700, 1e-5))


def test_the_terms_of_an_epsilon_are_a_line_before_those_that_state_it(monkeypatch):
    said = []
    monkeypatch.setattr(display, "repeated", lambda interval, act: nullcontext(said.append(act)))
    stream, spec = io.StringIO(), scenarios.load("digits_dpzv")
    with live_progress(spec, console(stream)) as shown:
        for status in (
            Status(),
            STATUS,
            STATUS._replace(privacy=CLAIMED),
            STATUS._replace(privacy=CLAIMED),
        ):
            shown.status(status)
            said[0]()
    lines = stream.getvalue().splitlines()
    terms = (
        "ε: Gaussian mechanism, replace one record, δ=0.001, GDP; against the clients; claimed by "
        "the paper"
    )
    assert [line.startswith("ε: ") for line in lines] == [False, False, True, False, False]
    assert lines[2] == f"{terms}, not proved"
    assert all("ε > 10 (no useful ε), ε 0.4 (claimed)" in line for line in lines[3:])


@pytest.mark.parametrize(
    ("scenario", "privacy", "stated"),
    [
        ("digits_dpzv", CLAIMED, "ε > 10 (no useful ε), ε 0.4 (claimed)"),
        (
            "digits_dpzv",
            PrivacyLoss(mu_of(0.4, 1e-3), math.inf, 1e-3),
            "ε ∞ (nothing proved), ε 0.4 (claimed)",
        ),
        ("digits_private", PROVED, "accuracy 0.750, loss 0.625, ε 0.7 (proved)"),
        ("digits_private", AT_10, "accuracy 0.750, loss 0.625, ε 10 (proved)"),
        ("digits_users", OF_USERS, "ε 2 (outsiders), 3 (silo), 7 (server)"),
        (
            "digits_users",
            LARGE,
            "ε > 10 (outsiders), > 10 (silo), > 10 (server), > 10: no useful ε",
        ),
        ("digits_decomfl", UNACCOUNTED, "accuracy 0.750, loss 0.625"),
    ],
)
def test_no_line_is_longer_than_120_characters(scenario, privacy, stated):
    spec, long = scenarios.load(scenario), scenarios.load(scenario, ["budget.updates=100_000_000"])
    late = STATUS._replace(updates=12_345_678, bytes_up=2**40, bytes_down=10**14, privacy=privacy)
    for status, of, elapsed in (
        (STATUS._replace(privacy=privacy), spec, 30.0),
        (late, long, 359_999.0),
    ):
        line = progress_line(status, of, elapsed, elapsed)
        assert len(line) <= 120
        assert len(epsilon_terms(status, of)) <= 120
    assert stated in progress_line(STATUS._replace(privacy=privacy), spec, 30.0, 20.0)
    # what is left out of a long line is the least important
    assert line.startswith("12,345,678/100,000,000 ")
    assert "accuracy 0.750" in line
    assert "up " not in line


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("budget={updates=500}", "arrivals.rate=2.5"), "takes about 50 s at the scenario's rates"),
        (("budget={updates=500}", "arrivals.rate=[1, 1, 1, 2]"), "about 1 min 40 s"),
        (
            ("budget={updates=500}", "arrivals.rate=100", "clock.compute=0.4"),
            "about 50 s",
        ),  # busy meanwhile
        (("budget={updates=500, seconds=7}",), "about 7 s"),
        (("budget={seconds=7}", "arrivals={kind='immediate'}"), "about 7 s"),
        (("budget={updates=500}", "arrivals={kind='immediate'}"), ""),
        (("budget={bytes=500}",), ""),
        (("clock.kind=virtual",), ""),
    ],
)
def test_a_run_under_the_wall_clock_says_beforehand_how_long_it_takes(changes, said):
    line = forecast(
        scenarios.load("digits_dpzv", ['privacy={mode="none"}', "clock.kind=wall", *changes])
    )
    assert (said in line) if said else line == ""


def test_off_a_terminal_the_start_says_what_it_waits_for_and_lines_follow():
    stream, spec = Heard(), scenarios.load("digits_dpzv")
    with live_progress(spec, console(stream), interval=0.01) as progress:
        assert stream.written.wait(30)
        assert "waiting for the data to load" in stream.getvalue()
        progress.status(Status(stage="5 actors to come up"))
        assert "waiting for 5 actors to come up" in stream.getvalue()
        progress.status(STATUS)
        stream.written.clear()
        assert stream.written.wait(30)
    assert all(line.strip() for line in stream.getvalue().splitlines())
    assert "500/2,000 updates" in stream.getvalue()


def test_the_same_wait_is_said_after_twice_the_time_again(monkeypatch):
    now, lines = [0.0], []
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(display, "repeated", lambda interval, act: nullcontext(lines.append(act)))
    stream = io.StringIO()
    with live_progress(scenarios.load("digits_dpzv"), console(stream)) as shown:
        now[0] = 3.0
        shown.status(Status(stage="the evaluation of the initial model"))
        for now[0] in range(10, 101, 10):
            lines[0]()
        shown.status(Status(stage="the clients"))
    waits = [line.split(": ") for line in stream.getvalue().splitlines()]
    seconds = ["3 s", "10 s", "20 s", "40 s", "1 min 20 s", "1 min 40 s"]
    assert [when.removeprefix("starting, ") for when, _ in waits] == seconds
    assert len({what for _, what in waits}) == 2


def test_nothing_is_printed_before_the_interval_is_over_nor_if_that_is_wanted():
    spec = scenarios.load("digits_dpzv")
    for quiet, interval, terminal in (
        (False, 1e6, False),
        (True, 0.001, False),
        (True, 0.001, True),
    ):
        stream = Heard()
        with live_progress(
            spec, console(stream, terminal=terminal), quiet=quiet, interval=interval
        ) as progress:
            progress.status(STATUS)
            if quiet:
                progress.status(Status(stage="warm-up"))
        assert stream.getvalue() == ""


def test_the_live_view_has_loss_and_every_client_s_uploads_rates_and_staleness():
    said = seen(STATUS, scenarios.load("digits_dpzv", ["arrivals.rate=[2, 2, 2, 0.5]"]))
    assert "accuracy 0.750  loss 0.625" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["client", "uploads", "rate", "asked", "achieved", "staleness"] in rows
    assert ["0", "100", "2", "1", "1.0"] in rows
    assert ["3", "50", "0.5", "0.5", "44.5"] in rows


def test_of_many_clients_the_live_view_has_the_stalest():
    spec = scenarios.load("digits_dpzv", ["split.clients=8"]).model_copy(deep=True)
    ages = tuple(float(m) for m in range(12))
    wide = spec.model_copy(update={"split": spec.split.model_copy(update={"clients": 12})})
    said = seen(Status(updates=1, client_uploads=(1,) * 12, client_staleness=ages), wide)
    assert "the 8 stalest of 12 clients" in said
    shown = [line.split()[0] for line in said.splitlines() if line.strip()[:1].isdigit()]
    assert shown == [str(m) for m in range(4, 12)]


def test_a_horizontal_view_sums_its_clients_up():
    status = Status(updates=20, uploads=200, time=50.0, participants=87)
    said = seen(status, scenarios.load("digits_decomfl"))
    assert "87 of 100 clients took part, 200 uploads, 4 per second of the run's clock" in said
    assert "client " not in said


def test_the_start_of_a_live_view_says_what_it_waits_for():
    stream = io.StringIO()
    with live_progress(scenarios.load("digits_dpzv"), console(stream, terminal=True)) as progress:
        progress.status(Status(stage="Ray to start"))
    assert "starting: waiting for the data to load" in stream.getvalue()
    assert "starting: waiting for Ray to start" in stream.getvalue()


def test_a_comparison_off_a_terminal_says_what_is_at_work():
    spec = scenarios.load("digits_dpzv")
    comparison = Comparison("c", "", (0,), (), (PlannedLine("dpzv", None, False, spec),))
    (planned,) = comparison.runs()
    stream = Heard()
    with comparison_progress(
        comparison, [planned], console(stream), threading.Event(), interval=0.01
    ) as watch:
        watch.progress({planned.folder: Status(stage="the data to load")})
        stream.written.clear()
        assert stream.written.wait(30)
        watch.progress({planned.folder: STATUS})
        stream.written.clear()
        assert stream.written.wait(30)
        watch.ended(planned, "")
        watch.progress({})
        stream.written.clear()
        assert stream.written.wait(30)
    assert "0/1 runs over; dpzv, seed 0: waiting for the data to load" in stream.getvalue()
    assert "1/1 runs over\n" in stream.getvalue()
    quiet = Heard()
    with comparison_progress(
        comparison, [planned], console(quiet), threading.Event(), quiet=True, interval=0.001
    ) as watch:
        watch.progress({planned.folder: STATUS})
        watch.ended(planned, "")
    assert quiet.getvalue() == ""
