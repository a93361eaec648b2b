from __future__ import annotations

import io
import math

from rich.console import Console

import scenarios
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.release import PrivacyLoss
from raydpzv.records.callbacks import Fault
from raydpzv.sim.interfaces import Status
from scenarios.progress import live_progress


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
        "late 10%",
    ):
        assert part in text
    for part in (
        "δ=0.001",
        "replace one record",
        "Gaussian mechanism",
        "0.4 claimed by the paper, not proved",
    ):
        assert part in text
    assert "1.235e+04 proved against the clients" in text


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
    status = Status(updates=20, uploads=200, late=50, bytes_up=2**10, bytes_down=2**20, staleness=19.0)
    rounds = shown(status, scenario="digits_decomfl")
    assert "20/300 rounds" in rounds
    assert "up 1.00 KiB  down 1.00 MiB" in rounds
    assert not any(word in rounds for word in ("staleness", "lag", "late"))
    alone = shown(status, "method.asynchronous=true", scenario="digits_decomfl")
    assert "20/300 updates" in alone
    assert "lag 19 updates  late 25%" in alone
    agent = shown(status, "method.name=mezo", "split.clients=1", scenario="digits_decomfl")
    assert "20/300 updates" in agent


def test_a_proved_run_shows_the_proved_epsilon_alone_with_the_delta_it_has_by_itself():
    status = Status(updates=5, privacy=PrivacyLoss(math.nan, mu_of(0.7, 1e-5), 1e-5))
    text = shown(status, "privacy.relation=add_remove", scenario="digits_private")
    assert "add or remove one record, δ=1e-05" in text
    assert "0.7 proved against the clients" in text
    assert "paper" not in text
