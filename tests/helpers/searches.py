"""Plans of small searches, whose trials are run without Ray."""

from raydpzv.compare.run_comparison import run_planned
from raydpzv.experiment.finalize import RunOptions
from raydpzv.search.run_tune import planned
from raydpzv.search.search_terms import SearchTerms
from raydpzv.search.tune_plan import run_path

SHORT = ("budget.updates=4", "evaluate.every=2", "data.train_rows=100", "data.test_rows=40")


def plan_of(space, *changes, scenario="digits_private", **terms):
    """Return the plan of a search; space: of the scenario, as Python has it."""
    return planned(scenario, space, [*SHORT, *changes], SearchTerms(**terms))[0]


def run(folder, trial, **how):
    """Run a trial; return why it has no result."""
    return run_planned(trial.planned(), run_path(folder, trial), RunOptions(**how))


def table(rows):
    """Return rows but for what is timed, as text: there NaN is like NaN."""
    timed = ("seconds", "throughput")
    return [str({name: row[name] for name in row if name not in timed}) for row in rows]
