"""What the comparisons show, with reproducible noise. Thresholds are the project's promises."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.compare.folder import opened, unfinished
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import one_by_one
from raydpzv.config import catalog
from raydpzv.report.comparison_table import table

CHOSEN = (
    "DPZV, SGD head",
    "VAFL, embedding noise (counted)",
    "VAFL, gradient noise (counted)",
    "VAFL, gradient noise (sampled)",
)


def compared(name, root, wanted, *overrides):
    """Run the chosen lines of a comparison; return the lines of its table by label."""
    file = read_comparison_file(catalog.COMPARISONS / f"{name}.toml").model_copy(update={"seeds": 3})
    whole = resolved(file, overrides)
    chosen = tuple(line for line in whole.lines if wanted(line))
    comparison = dataclasses.replace(whole, lines=chosen)
    with opened(root, comparison):
        one_by_one(
            unfinished(root, comparison),
            root,
            progress=lambda standing: None,
            ended=lambda planned, reason: None,
            stop=threading.Event(),
        )
    found = collect(comparison, root)
    return {row["label"]: row for row in table(found.runs, found.curves, comparison.targets).to_pylist()}


@pytest.mark.slow
def test_at_epsilon_1_embedding_noise_leaves_next_to_nothing_and_the_fair_baseline_is_close(tmp_path):
    lines = compared(
        "digits_field",
        tmp_path / "field",
        lambda line: line.epsilon == 1.0 and line.label in CHOSEN,
        "privacy.noise=seeded",
        "evaluate.every=2000",
        "record.staleness=false",
    )
    dpzv, drowned = lines["DPZV, SGD head"], lines["VAFL, embedding noise (counted)"]
    assert drowned["accuracy_median"] < 0.35
    assert dpzv["accuracy_median"] - drowned["accuracy_median"] >= 0.4
    assert drowned["failures"] == drowned["runs"] == 3
    assert "constant prediction" in drowned["why"]
    fair = lines["VAFL, gradient noise (sampled)"]["accuracy_median"]
    assert fair >= 0.80
    assert abs(dpzv["accuracy_median"] - fair) < 0.1
    assert lines["VAFL, gradient noise (counted)"]["accuracy_median"] >= 0.70


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at_least"), [("straggler_times", 4.0), ("delay_times", 1.1)])
def test_asynchronous_reaches_its_target_in_less_time_than_synchronous(name, at_least, tmp_path):
    lines = compared(
        name,
        tmp_path / name,
        lambda line: line.label in ("asynchronous", "synchronous"),
        "budget.updates=600",
        "record.staleness=false",
    )
    quick, slow = lines["asynchronous"], lines["synchronous"]
    assert quick["reached_0.9"] == slow["reached_0.9"] == 3
    assert slow["slower_0.9"] >= at_least
    assert slow["seconds_0.9_median"] / quick["seconds_0.9_median"] == pytest.approx(slow["slower_0.9"])


@pytest.mark.slow
def test_with_equal_rates_the_advantage_of_asynchrony_shrinks(tmp_path):
    lines = compared(
        "straggler_times",
        tmp_path / "even",
        lambda line: line.label in ("asynchronous", "synchronous"),
        "budget.updates=600",
        "record.staleness=false",
        "arrivals.rate=1.0",
    )
    assert lines["synchronous"]["slower_0.9"] < 4.0
