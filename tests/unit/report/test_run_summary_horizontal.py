from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydpzv.records import traffic
from raydpzv.records.store import append_rows
from raydpzv.report import run_summary, run_tables, text
from raydpzv.report.page import write_report
from raydpzv.report.run_tables import RunView
from tests.helpers.report_views import Page, names, printed
from tests.helpers.synthetic_horizontal import prepared
from tests.helpers.synthetic_run import build_run


def folder(path: Path, run: RunView, settings: str = "") -> Path:
    """Write a view's run to a folder."""
    path.mkdir()
    append_rows(path, run.rows)
    (path / "scenario.toml").write_text(f'[method]\nname = "{run.summary["method"]}"\n{settings}')
    (path / "environment.json").write_text("{}")
    (path / "summary.json").write_text(json.dumps(run.summary))
    return path


def rows(run: RunView, **changes: Any) -> dict[str, str]:
    return dict(run_summary.summary_rows(run.summary | changes))


def test_rounds_and_single_uploads_are_told_apart() -> None:
    assert rows(prepared())["updates"] == "60 rounds (180 uploads)"
    assert rows(prepared(updates=1500, lag=3, pause=0.1))["updates"] == "1,500 updates, one per upload"
    assert rows(prepared(), uploads=None)["updates"] == "60"
    assert rows(prepared(), updates=0, uploads=0)["updates"] == "0"


def test_an_agent_catches_up_with_nobody() -> None:
    said = rows(prepared(method="mezo", clients=1, cohort=1))
    assert said["updates"] == "60"
    assert said["ledger"].startswith("60 updates")
    assert not {"lag", "missed updates", "pairs received"} & set(said)


def test_rounds_have_no_lag_and_say_what_was_caught_up() -> None:
    run = prepared()
    said, missed = rows(run), run.rows["sync"].column("missed").to_numpy()
    assert said["lag"] == "0: every upload was made at the newest model"
    assert "late" not in said
    assert said["missed updates"] == f"mean {missed.mean():.4g}, max {missed.max()} per activation"
    assert said["pairs received"] == f"mean {5 * missed.mean():.4g} per activation"
    assert "model pulled" not in said
    assert not any("rounds" in value for name, value in said.items() if name != "updates")


def test_asynchronous_updates_have_lag_lateness_and_pulls() -> None:
    run = prepared(lag=5, pause=0.5)
    stale = run.summary["staleness"] | {"pulled_share": 0.25, "late_share": 0.125}
    said, lag = rows(run, staleness=stale), run.rows["sync"].column("lag").to_numpy()
    assert said["lag"] == f"mean {lag.mean():.4g}, max {lag.max()} updates"
    assert said["late"] == "12.50 % of the activations"
    assert said["model pulled"] == "25.00 % of the activations"
    assert said["updates per simulated second"] == "2"
    assert said["simulated time"] == "30 s"


def test_a_clock_that_stands_still_has_no_throughput() -> None:
    said = rows(prepared())
    assert said["simulated time"] == "0 s (no delays simulated)"
    assert "updates per simulated second" not in said


def test_the_ledger_and_the_drift_are_shown_where_they_are() -> None:
    said = rows(prepared(), drift={"largest": 5.96e-7, "share": 0.5})
    assert said["ledger"] == "60 updates, 300 pairs, 2.00 KiB on disk"
    assert said["digest of ledger"] == "c6" * 32
    assert said["drift"] == "largest 5.96e-07, up to 50.00 % of a client's parameters"
    out = printed(run_summary.summary_table(prepared().summary))
    assert "c6" * 8 in out
    assert "c6" * 9 not in out
    weights = rows(prepared(method="fedavg", weights=400))
    assert not {"lag", "missed updates", "ledger", "drift", "staleness"} & set(weights)


def test_clients_are_summed_up_not_listed() -> None:
    run = prepared(clients=900)
    up, down = traffic.bytes_by_client(run.rows["message"])
    took_part = np.unique(run.rows["service"].column("client").to_numpy())
    assert dict(run_summary.participant_rows(run.rows["message"])) == {
        "clients that took part": str(len(took_part)),
        "bytes up per client": f"median {text.size(int(np.median(up[took_part])))}, most {text.size(int(up.max()))}",
        "bytes down per client": f"median {text.size(int(np.median(down[took_part])))}, most "
        f"{text.size(int(down.max()))}",
    }
    assert run_summary.participant_rows(run.rows["message"].slice(0, 0)) == []
    assert run_tables.client_rows(run, {}) == []


def test_what_a_target_took_is_said_where_a_run_reached_it() -> None:
    one, other = prepared("one"), prepared("other", method="fedavg", weights=9640, updates=20, pause=1.0)
    weak = other.rows["evaluation"].filter(np.array([True, False]))
    other = RunView("other", other.summary, other.rows | {"evaluation": weak})
    found = run_tables.target_grid([one, other], [0.4, 0.85, 0.99]).rows
    reached = traffic.to_target(one.rows["evaluation"], one.rows["message"], 0.85)
    assert [row[:3] for row in found] == [
        ("one", "40 %", "30"),
        ("other", "40 %", "10"),
        ("one", "85 %", "60"),
        ("other", "85 %", "not reached"),
    ]
    assert found[1][3:] == ("10 s", text.size(30 * 9640), text.size(30 * 9640))
    assert found[2][4:] == (text.size(int(reached.up)), text.size(int(reached.down)))
    assert found[3][3:] == (text.NONE,) * 3


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("mixed")
    runs = [
        build_run(where / "vertical", rounds=60),
        folder(where / "rounds", prepared(), "asynchronous = false\n"),
        folder(where / "alone", prepared(lag=4, pause=0.1), "asynchronous = true\n"),
        folder(where / "weights", prepared(method="fedavg", weights=9640)),
    ]
    return write_report(runs, where / "all", operator=True)


def test_a_mixed_report_has_each_kinds_pictures_and_words(mixed: Path) -> None:
    assert names(mixed.parent) == {
        "accuracy_over_bytes", "accuracy_over_seconds", "accuracy_over_updates", "bytes_per_update",
        "epsilon_over_updates", "lag_histogram", "loss_over_updates", "missed_over_updates", "staleness_by_client",
        "timeline",
    }  # fmt: skip
    words = Page(mixed.read_text(encoding="utf-8")).words
    for part in (
        "decomfl, asynchronous=false",
        "decomfl, asynchronous=true",
        "in server rounds (vertical runs)",
        "every upload was made at the newest model",
        "60 updates, 300 pairs",
        "mean delay",
        "What it took to reach a test accuracy",
        "not reached",
    ):
        assert part in words
    assert "No cached embeddings" not in words


@pytest.mark.usefixtures("unrendered")
def test_a_lone_run_says_everything_once(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", prepared(lag=4, pause=0.1))
    words = Page(write_report([run]).read_text(encoding="utf-8")).words
    for once in ("missed updates", "digest of ledger", "bytes up per client"):
        assert words.count(once) == 1
    assert "What it took" not in words
    assert names(run) == {
        "accuracy_over_bytes", "accuracy_over_seconds", "accuracy_over_updates", "bytes_per_update", "lag_histogram",
        "loss_over_updates", "missed_over_updates", "timeline",
    }  # fmt: skip


@pytest.mark.usefixtures("unrendered")
def test_targets_nobody_reached_are_not_shown(tmp_path: Path) -> None:
    runs = [folder(tmp_path / n, prepared(updates=u), f"lr = {u}\n") for n, u in (("a", 20), ("b", 30))]
    words = Page(write_report(runs, tmp_path / "out", targets=[0.95]).read_text(encoding="utf-8")).words
    assert "What it took" not in words
    assert "decomfl, lr=20" in words
