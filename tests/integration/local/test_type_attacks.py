"""Attacks on a printed ε by the type of one cell: guesses of it from published models, and labels.

Each attack wins always where a type is read off the values, which is the control.
"""

import numpy as np
import pytest

import raydpzv
from raydpzv.experiment.prepare import prepare
from raydpzv.keys import Key
from tests.helpers.keyed_noise import keyed_noise
from tests.helpers.types_from_values import read_types_from_values

ROWS, RUNS, KNOWN = 400, 16, 6
WHOLE = (Key(3) / "whole numbers").generator().integers(0, 9, (ROWS, 4))
ILL = WHOLE[:, 0] + WHOLE[:, 2] > 8


def private(rows, labels, **more):
    """Return a scenario whose ε = 1 is proved, of one's own rows."""
    views = {"bank": [row[:2] for row in rows], "shop": [row[2:] for row in rows]}
    settings = {
        "updates": 20,
        "embedding": 2,
        "batch": "all",
        "head": "sum",
        "server": "frozen",
        "lr": 0.5,
        "perturbations": 8,
        "data": {"split": "plain", "scale": "public", "centre": 4.0, "spread": 2.0},
        "privacy": {"mode": "proved", "epsilon": 1.0, "clip": 0.1},
        "classes": [False, True],
    }
    return raydpzv.vertical("linear", views, labels, **settings | more)


def rows_with(cell):
    """Return rows as lists of whole numbers, with one cell of one record."""
    rows = WHOLE.tolist()
    rows[7][1] = cell
    return rows


def published(scenario, runs):
    """Return the models of so many runs with fresh noise, [runs, d]."""
    found = [raydpzv.run(scenario) for _ in range(runs)]
    assert all(run.epsilon["epsilon"] == pytest.approx(1.0) for run in found)
    return np.array([np.concatenate(list(run.models.values())) for run in found])


def right_guesses(first, second):
    """Return how many of the other models are told apart by the mean of those that are known."""
    means = first[:KNOWN].mean(0), second[:KNOWN].mean(0)
    right = 0
    for own, models in enumerate((first[KNOWN:], second[KNOWN:])):
        apart = [np.linalg.norm(models - mean, axis=1) for mean in means]
        right += int((apart[own] < apart[1 - own]).sum())
    return right


@pytest.mark.parametrize("read_off", [False, True], ids=["declared", "read off the values"])
def test_a_cell_of_another_type_is_guessed_from_published_models(monkeypatch, read_off):
    if read_off:
        read_types_from_values(monkeypatch)
    with keyed_noise():
        models = [published(private(rows_with(cell), ILL), RUNS) for cell in (3, 3.5)]
    right, of = right_guesses(*models), 2 * (RUNS - KNOWN)
    if read_off:
        assert right == of
    else:
        assert 0.25 * of <= right <= 0.75 * of, "ε = 1 permits 56 %"


@pytest.mark.parametrize("classes", [[False, True], [0, 1]])
@pytest.mark.parametrize("odd", ["well", 1, "True", 0])
def test_one_label_of_another_type_moves_no_other_label(classes, odd):
    labels, other = ILL.tolist(), ILL.tolist()
    other[7] = odd
    more = {"classes": classes, "data__other": classes[0]}
    one, two = (prepare(private(WHOLE.tolist(), y, **more)) for y in (labels, other))
    (row,) = np.flatnonzero(one.numbers == 7)
    moved = one.server.y_train != two.server.y_train
    assert not np.delete(moved, row).any()
    assert len(set(one.server.y_train.tolist())) == 2
    assert moved[row] == ((str(odd) in ("1", "True")) != labels[7])
