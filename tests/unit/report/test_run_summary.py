from __future__ import annotations

import math
from typing import Any

import pytest

from raydpzv.privacy import claim_words
from raydpzv.report import run_summary, text
from raydpzv.report.privacy import verdict_line
from tests.helpers.report_views import printed
from tests.helpers.synthetic_run import CLAIMS, TERMS

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


def test_standing_tells_proved_from_claimed_and_from_nothing() -> None:
    assert claim_words.standing(PROVED) == "proved"
    assert claim_words.standing(PROVED | {"holds": False}) == "claimed, not proved"
    assert claim_words.standing(PROVED | {"epsilon": 10.01}) == "too large"
    assert claim_words.standing(PROVED | {"epsilon": "infinity"}) == "nothing proved"


def test_the_claim_behind_a_series_is_the_nearest_of_its_adversary() -> None:
    def behind(adversary: str, last: float) -> Any:
        return (claim_words.claim_behind(CLAIMS, adversary, last) or {}).get("epsilon")

    assert behind("client", 8.0) == 8.25
    assert behind("client", 3.0) == 3.75
    assert behind("paper", 8.0) == 1.0
    assert claim_words.claim_behind([PROVED | {"holds": False}], "client", 8.0) is None


def test_private_needs_the_summary_and_a_proved_useful_claim() -> None:
    assert claim_words.stated(summary()).private
    refused = summary(private=False, private_reason="NOT PRIVATE: seeded noise", privacy_verdict="seeded")
    assert claim_words.stated(refused).reason == "seeded noise"
    for claims in ([], None, [CLAIMS[0]], *([PROVED | {"epsilon": e}] for e in ("infinity", 10.01))):
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
    stated = summary(digest="ab" * 32, model_digest="cd" * 32, versions={"torch": "2.13"}, private=False)
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
        line.plain[s.start : s.end] for line in [verdict_line("NOT PRIVATE: ε [x]")] for s in line.spans
    ]
    assert styled == ["NOT PRIVATE"]
    assert verdict_line("NOT PRIVATE: ε [x]").plain == "NOT PRIVATE: ε [x]"
    assert not verdict_line("Proved.").spans


def test_segments_of_a_run_of_real_time_stand_with_their_gaps() -> None:
    interrupted = summary(legs={"count": 3, "gaps": [12.0, None], "recovered": 7}, simulated_seconds=60.0)
    rows = dict(run_summary.summary_rows(interrupted, "wall"))
    assert (
        rows["real time"]
        == "60 s by the run's clock, in 3 legs; the last of them took 1.5 s with its begin and end"
    )
    assert (
        rows["gaps between legs"] == "12 s, – (in no time of the run's); 7 updates were on the ledger alone"
    )
    assert rows["updates per real second"] == "205.8"
    assert "gaps between legs" not in dict(run_summary.summary_rows(summary(), "wall"))
