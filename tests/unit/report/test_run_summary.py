import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydpzv.privacy import claim_words
from raydpzv.records import traffic
from raydpzv.records.store import append_rows
from raydpzv.report import run_summary, run_tables, text
from raydpzv.report.page import write_report
from raydpzv.report.privacy import verdict_line
from raydpzv.report.run_tables import RunView
from tests.helpers.report_views import Page, names, printed
from tests.helpers.synthetic_horizontal import prepared
from tests.helpers.synthetic_run import CLAIMS, TERMS, build_run

PROVED = TERMS | {"adversary": "client", "epsilon": 8.25, "accountant": "PLD", "holds": True}


def summary(**changes: Any) -> dict[str, Any]:
    stated = {
        "scenario": "[red]s", "method": "dpzv", "seed": 3, "status": "stopped", "stopped_by": "bytes",
        "loss": None, "accuracy": 0.875, "best_accuracy": math.nan, "updates": 12345,
        "bytes_up": 3 * 2**20, "bytes_down": 1000, "seconds": 1.5, "simulated_seconds": 3725.0,
        "epsilon": CLAIMS, "private": True,
        "staleness": {"mean": 4.5, "max": 1200, "clients": []},
    }  # fmt: skip
    return stated | changes


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.nan, "–"),
        ("infinity", "∞"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (8.25, "8.25"),
        (1e-5, "1e-05"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (0.123456, "0.1235"),
        (1e15, "1e+15"),
    ],
)
def test_numbers(value: Any, shown: str) -> None:
    assert text.number(value) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**20, "3.00 MiB"),
        (5 * 2**70, "5242880.00 PiB"),
    ],
)
def test_sizes(count: int | None, shown: str) -> None:
    assert text.size(count) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (math.nan, "–"), (1.5, "1.5 s"), (119.0, "119 s"), (3725.0, "3,725 s (1:02:05)")],
)
def test_durations(value: float | None, shown: str) -> None:
    assert text.seconds(value) == shown


def test_a_claim_is_never_printed_without_its_terms() -> None:
    for claim in CLAIMS:
        line = claim_words.claim_text(claim)
        for part in (
            "ε = ",
            "δ = 1e-05",
            "paper's" if claim["adversary"] == "paper" else claim["adversary"],
            claim["mechanism"],
            "replace",
            claim["accountant"],
            "sensitivity" if claim["sensitivity"] else "∞",
        ):
            assert part in line or (part == "replace" and claim["relation"] == "add_remove")
        assert claim_words.standing(claim) in line


@pytest.mark.parametrize(
    ("change", "standing"),
    [
        ({}, "proved"),
        ({"holds": False}, "claimed, not proved"),
        ({"epsilon": 10.01}, "no useful ε"),
        ({"epsilon": "infinity"}, "nothing proved"),
    ],
)
def test_standing_tells_proved_from_claimed_and_from_nothing(
    change: dict[str, Any], standing: str
) -> None:
    assert claim_words.standing(PROVED | change) == standing


def test_the_claim_behind_a_series_is_the_nearest_of_its_adversary() -> None:
    def behind(adversary: str, last: float) -> Any:
        return (claim_words.claim_behind(CLAIMS, adversary, last) or {}).get("epsilon")

    for adversary, last, epsilon in (
        ("client", 8.0, 8.25),
        ("client", 3.0, 3.75),
        ("paper", 8.0, 1.0),
    ):
        assert behind(adversary, last) == epsilon
    assert claim_words.claim_behind([PROVED | {"holds": False}], "client", 8.0) is None


def test_private_needs_the_summary_and_a_proved_useful_claim() -> None:
    assert claim_words.stated(summary()).private
    refused = summary(
        private=False, private_reason="NOT PRIVATE: seeded noise", privacy_verdict="seeded"
    )
    assert claim_words.stated(refused).reason == "seeded noise"
    for claims in (
        [],
        None,
        [CLAIMS[0]],
        *([PROVED | {"epsilon": e}] for e in ("infinity", 10.01)),
    ):
        assert not claim_words.stated(summary(epsilon=claims)).private
    for missing in (False, None, ""):
        assert not claim_words.stated(summary(private=missing)).private


def test_what_no_epsilon_covers_is_withheld_of_a_large_one_too() -> None:
    assert claim_words.withheld(summary(private=False, proved=True))
    assert claim_words.withheld(summary()), "of before"
    assert not claim_words.withheld(summary(private=False))


def test_summary_rows_say_the_numbers() -> None:
    rows = dict(run_summary.summary_rows(summary()))
    assert rows["status"] == "stopped (bytes)"
    assert rows["test accuracy"] == "87.50 %"
    assert rows["test loss"] == "–"
    assert "test accuracy of the best model" not in rows  # nothing chose one
    chosen = summary(best_accuracy=0.8, best_update=40, validation_accuracy=0.9)
    best = dict(run_summary.summary_rows(chosen))["test accuracy of the best model"]
    assert "area under the ROC curve" not in rows
    areas = dict(run_summary.summary_rows(summary(roc_auc=0.98765, pr_auc=0.5)))
    assert areas["area under the ROC curve"] == "0.9877"
    assert areas["average precision (PR curve)"] == "0.5"
    assert best == "80.00 %, chosen by validation (90.00 %) after update 40"
    assert rows["bytes up"] == "3.00 MiB"
    assert rows["staleness"] == "mean 4.5, max 1,200 rounds"
    assert not any("ε" in value or "PRIVATE" in value for value in rows.values())


def test_a_score_stands_beside_what_it_is_judged_by() -> None:
    def first(**changed: object) -> tuple[str, str]:
        return run_summary.key_figures(summary(**changed))[0]

    two = first(accuracy=0.875, largest_class_share=0.6, roc_auc=0.9314)
    assert two == ("test accuracy", "87.50 % (largest class 60.00 %, ROC AUC 0.9314)")
    several = first(accuracy=0.875, largest_class_share=0.1, roc_auc=None)
    assert several == ("test accuracy", "87.50 % (largest class 10.00 %)")
    numbers = first(accuracy=None, largest_class_share=None, measures={"rmse": 2.5, "r2": 0.75})
    assert numbers == ("test rmse", "2.5 (R² 0.75)")
    assert first(accuracy=0.5, largest_class_share=None)[1] == "50.00 %"


def test_the_key_figures_say_what_is_promised() -> None:
    def said(*claims: Any) -> str:
        return dict(run_summary.key_figures(summary(epsilon=claims)))["ε"]

    nothing = PROVED | {"mechanism": "none", "epsilon": "infinity", "holds": False}
    assert said(PROVED, nothing) == "8.25, against all clients together"
    assert said(PROVED | {"epsilon": 10.1}, nothing) == "no useful ε is proved"
    for claims in ((), (nothing,)):
        assert said(*claims) == "nothing is promised, because no noise is added"


def test_a_run_at_work_has_simulated_seconds_alone() -> None:
    def said(seconds: float) -> str:
        return dict(run_summary.key_figures(summary(seconds=seconds)))["time"]

    assert said(1.5) == "1.5 s real, 3,725 s (1:02:05) simulated"
    assert said(math.nan) == "3,725 s (1:02:05) simulated"


def test_what_was_compiled_is_said_of_runs_that_compiled() -> None:
    kernels = {"compiled": 6, "seconds": 12.5}
    assert dict(run_summary.summary_rows({"kernels": kernels}))["kernels"] == "6 compiled in 12.5 s"
    assert "kernels" not in dict(run_summary.summary_rows({}))


def test_an_empty_summary_still_makes_rows() -> None:
    rows = dict(run_summary.summary_rows({}))
    assert rows["updates"] == rows["bytes up"] == rows["method"] == "–"


def test_summary_table_prints_markup_as_text() -> None:
    out = printed(run_summary.summary_table(summary()))
    assert "[red]s" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_console_shortens_digests_and_leaves_versions_to_the_page() -> None:
    stated = summary(
        digest="ab" * 32, model_digest="cd" * 32, versions={"torch": "2.13"}, private=False
    )
    rows = dict(run_summary.summary_rows(stated))
    assert (rows["digest of rows"], rows["versions"]) == ("ab" * 32, "torch 2.13")
    out = printed(run_summary.summary_table(stated))
    assert "ab" * 8 in out
    assert "cd" * 8 in out
    assert "ab" * 9 not in out
    assert "2.13" not in out


def test_the_digest_of_a_private_runs_rows_is_not_on_the_console() -> None:
    out = printed(run_summary.summary_table(summary(digest="ab" * 32, model_digest="cd" * 32)))
    assert "ab" * 8 not in out
    assert "cd" * 8 in out


def test_not_private_stands_out() -> None:
    styled = [
        line.plain[s.start : s.end]
        for line in [verdict_line("NOT PRIVATE: ε [x]")]
        for s in line.spans
    ]
    assert styled == ["NOT PRIVATE"]
    assert verdict_line("NOT PRIVATE: ε [x]").plain == "NOT PRIVATE: ε [x]"
    assert not verdict_line("Proved.").spans


def test_segments_of_a_run_of_real_time_stand_with_their_gaps() -> None:
    interrupted = summary(
        legs={"count": 3, "gaps": [12.0, None], "recovered": 7}, simulated_seconds=60.0
    )
    rows = dict(run_summary.summary_rows(interrupted, "wall"))
    assert (
        rows["real time"]
        == "60 s by the run's clock, in 3 legs; the last of them took 1.5 s with its begin and end"
    )
    assert (
        rows["gaps between legs"]
        == "12 s, – (in no time of the run's); 7 updates were on the ledger alone"
    )
    assert rows["updates per real second"] == "205.8"
    assert "gaps between legs" not in dict(run_summary.summary_rows(summary(), "wall"))


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
    assert (
        rows(prepared(updates=1500, lag=3, pause=0.1))["updates"] == "1,500 updates, one per upload"
    )
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
    expected = {
        "lag": f"mean {lag.mean():.4g}, max {lag.max()} updates",
        "late": "12.50 % of the activations",
        "model pulled": "25.00 % of the activations",
        "updates per simulated second": "2",
        "simulated time": "30 s",
    }
    assert {name: said[name] for name in expected} == expected


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
        "bytes up per client": (
            f"median {text.size(int(np.median(up[took_part])))}, most {text.size(int(up.max()))}"
        ),
        "bytes down per client": (
            f"median {text.size(int(np.median(down[took_part])))}, most "
            f"{text.size(int(down.max()))}"
        ),
    }
    assert run_summary.participant_rows(run.rows["message"].slice(0, 0)) == []
    assert run_tables.client_rows(run, {}) == []


def test_what_a_target_took_is_said_where_a_run_reached_it() -> None:
    one, other = (
        prepared("one"),
        prepared("other", method="fedavg", weights=9640, updates=20, pause=1.0),
    )
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
    return write_report(runs, where / "all")


def test_a_mixed_report_has_each_kinds_pictures_and_words(mixed: Path) -> None:
    assert names(mixed.parent) == {
        "accuracy_over_bytes", "accuracy_over_seconds", "accuracy_over_updates",
        "epsilon_over_updates", "lag_histogram", "loss_over_updates", "staleness_by_client", "timeline",
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
        "accuracy_over_bytes", "accuracy_over_seconds", "accuracy_over_updates", "lag_histogram",
        "loss_over_updates", "timeline",
    }  # fmt: skip


@pytest.mark.usefixtures("unrendered")
def test_targets_nobody_reached_are_not_shown(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / n, prepared(updates=u), f"lr = {u}\n") for n, u in (("a", 20), ("b", 30))
    ]
    words = Page(
        write_report(runs, tmp_path / "out", targets=[0.95]).read_text(encoding="utf-8")
    ).words
    assert "What it took" not in words
    assert "decomfl, lr=20" in words
