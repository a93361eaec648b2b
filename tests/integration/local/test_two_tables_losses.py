"""Two raw files that differ in one record, under losses that no bound of cross-entropy holds for,
from file to query.

Labels are numbers, and a record's may be as large as it likes: only clips bound what it moves.
"""

import csv

import numpy as np
import pytest
import torch

import scenarios
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.models.losses import check_loss
from raydpzv.registry import LOSSES as LOSS_NAMES
from tests.helpers.proved_modes import BY_CLIENT, MODES, USER_MODES, USERS
from tests.helpers.raw_tables import CHANGED, NUMBERS, ROWS, raw
from tests.helpers.two_tables import seen
from tests.integration.local.test_two_tables import (
    checked_moves,
    differences,
    moved_by,
    owner_of_changed,
)

HERE = "tests.integration.local.test_two_tables_losses"
TRUSTED = "privacy.trust=loss"
LOSSES = {
    "squared_error": ("model.loss=squared_error",),
    "multi_label": ("model.loss=multi_label",),
    "own": (f"model.loss={HERE}:absolute", "model.targets=numbers", TRUSTED),
}
VERTICAL = [
    pytest.param(loss, method, mode, id=f"{loss}-{method}-{mode}")
    for method, modes in MODES.items()
    for mode in modes
    if mode != "discriminant"  # refused: it tells classes apart
    for loss in LOSSES
    if loss == "squared_error" or mode in ("frozen", "dp_sgd")
]


def absolute(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Have no second derivative, and a first one that jumps."""
    return (scores - y).abs().sum(1)


def turned(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Let one large label turn all records' losses round: no function of each record alone."""
    return absolute(scores, y) * (1 - 2 * (y.abs().amax() > 100))


def written(folder, loss, change=""):
    """Write a file in which the record that is changed has other labels, features, or both."""
    x, labels = raw().x.copy(), np.stack([raw().x[:, 0] > 0, raw().x[:, 1] > 0], 1).astype(float)
    if loss != "multi_label":
        labels = raw().x[:, :2] * 3
    if change in ("label", "all"):
        labels[CHANGED] = 1 - labels[CHANGED] if loss == "multi_label" else [1e6, -1e6]
    if change in ("features", "all"):
        x[CHANGED] *= -50
    folder.mkdir()
    with open(folder / "t.csv", "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*(f"x{i}" for i in range(NUMBERS)), "t0", "t1"])
        rows.writerows([*map(float, x[i]), *map(float, labels[i])] for i in range(ROWS))
    return folder / "t.csv"


def given(path, loss):
    data = f"data={{source='csv', file='{path}', target=['t0', 't1'], scale='none', split='plain'}}"
    return [data, *LOSSES[loss]]


def vertical(path, loss, method, mode):
    scenario, settings = MODES[method][mode]
    return scenarios.load(
        scenario, [*settings, *given(path, loss), "split.how=columns", "model.embedding=2"]
    )


@pytest.mark.parametrize(("loss", "method", "mode"), VERTICAL)
def test_a_label_of_any_size_moves_its_own_query_within_the_clip(tmp_path, loss, method, mode):
    spec = vertical(written(tmp_path / "one", loss), loss, method, mode)
    assert not planned_privacy(spec).missing_premises()
    first, moved = seen(spec), 0.0
    assert differences(first, seen(spec, first), mode) == []
    for change in ("features",) if mode in BY_CLIENT else ("label", "all"):
        other = seen(vertical(written(tmp_path / change, loss, change), loss, method, mode), first)
        assert differences(first, other, mode) == [], change
        moved = max(moved, checked_moves(first, other, mode))
    assert moved > 0.1


def test_control_a_loss_that_mixes_records_moves_further(tmp_path, monkeypatch):
    monkeypatch.setitem(
        LOSSES, "turned", (f"model.loss={HERE}:turned", "model.targets=numbers", TRUSTED)
    )
    spec = vertical(written(tmp_path / "one", "turned"), "turned", "dpzv", "frozen")
    first = seen(spec)
    other = seen(
        vertical(written(tmp_path / "label", "turned", "label"), "turned", "dpzv", "frozen"), first
    )
    with pytest.raises(AssertionError):
        checked_moves(first, other, "frozen")


@pytest.mark.parametrize("loss", ["squared_error", "own"])
@pytest.mark.parametrize("method", USER_MODES)
def test_a_users_label_of_any_size_moves_sums_as_stated(tmp_path, loss, method):
    mode = next(iter(USER_MODES[method].values()))

    def spec(path):
        settings = [*USERS, *given(path, loss), "users={count=8}", *mode]
        return scenarios.load("digits_users", [f"method={{name='{method}'}}", *settings])

    one = spec(written(tmp_path / "one", loss))
    assert not planned_privacy(one).missing_premises()
    first = seen(one)
    other = seen(spec(written(tmp_path / "label", loss, "label")), first)
    assert [name for name in first.public if first.public[name] != other.public[name]] == []
    assert moved_by(first, other, owner_of_changed(first), method) > 0.01


def test_an_own_loss_proves_nothing_until_its_targets_are_stated(tmp_path):
    path = written(tmp_path / "one", "own")
    scenario, settings = MODES["dpzv"]["frozen"]
    settings = [*settings, *given(path, "own"), "split.how=columns", "model.embedding=2"]
    with pytest.raises(
        SpecError, match=r"model.targets: whether labels are classes or numbers is read off"
    ):
        scenarios.load(scenario, [s for s in settings if not s.startswith("model.targets")])
    plan = planned_privacy(scenarios.load(scenario, settings))
    assert any(
        "your own loss gives each record a value of its own" in clause for clause in plan.caveats()
    )


def of_users(path, loss, *more):
    mode = next(iter(USER_MODES["uldp_avg"].values()))
    settings = [*USERS, *given(path, loss), "users={count=8}", *mode, *more]
    return scenarios.load("digits_users", ["method={name='uldp_avg'}", *settings])


def test_a_loss_that_mixes_records_for_large_labels_alone_is_not_proved(tmp_path, monkeypatch):
    monkeypatch.setitem(LOSSES, "turned", (f"model.loss={HERE}:turned", "model.targets=numbers"))
    path = written(tmp_path / "one", "turned")
    found = LOSS_NAMES[f"{HERE}:turned"]
    check_loss(found, torch.tensor(raw().x[:, :2] * 3), 2, 256)  # small labels reveal nothing
    verdicts = {}
    for loss, more in (("turned", ()), ("turned", (TRUSTED,)), ("squared_error", ())):
        plan = planned_privacy(of_users(path, loss, *more))
        verdicts[loss, bool(more)] = plan.verdict().text
        stated = any("as you state, that your own loss" in clause for clause in plan.caveats())
        assert stated == bool(more)
    assert "not proved" in verdicts["turned", False]
    assert 'privacy.trust = ["loss"]' in verdicts["turned", False]
    for proved in (verdicts["turned", True], verdicts["squared_error", False]):
        assert "not proved" not in proved
    with pytest.raises(SpecError, match=r"proves nothing here: your own loss .*trust = \[.loss.\]"):
        planned_privacy(vertical(path, "turned", "dpzv", "frozen"))
    for refused in (of_users, lambda *given: vertical(*given, "dpzv", "frozen")):
        monkeypatch.setitem(LOSSES, "usual", ("model.loss=squared_error", TRUSTED))
        with pytest.raises(SpecError, match=r"privacy.trust: .loss. goes with a loss of your own"):
            refused(path, "usual")


def test_classes_are_told_apart_by_no_other_loss(tmp_path):
    scenario, settings = MODES["frozen"]["discriminant"]
    path = written(tmp_path / "one", "squared_error")
    with pytest.raises(
        SpecError, match=r'model.loss: wanted "cross_entropy" with method.server = "discriminant"'
    ):
        scenarios.load(scenario, [*settings, *given(path, "squared_error"), "split.how=columns"])
