"""Two raw files that differ in one record, under models of a user's own that mix or remember rare
records alone.

The check before a run sees usual records and finds nothing, so only the user can state the premise.
"""

import pytest
import torch
from torch import nn

import scenarios
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import planned_privacy
from tests.helpers.proved_modes import MODES, USER_MODES, user_spec
from tests.helpers.raw_tables import CHANGED, OWNERS, READERS, raw, write_table
from tests.helpers.two_tables import seen
from tests.integration.local.test_two_tables import checked_moves, differences, moved_by

HERE = "tests.integration.local.test_two_tables_models"
TRUSTED = "privacy.trust=model"
OWN = {
    "bottom": (f"model.bottom={HERE}:bottom", "model.options={{kind='{kind}'}}"),
    "head": (
        "model.bottom=linear",
        f"model.head={HERE}:head",
        "model.head_options={{kind='{kind}'}}",
    ),
}
USER = 0
LARGE = 20
"""No number of a usual record is so large."""


class Plain(nn.Linear):
    """Treat each record by itself."""


class Mixing(nn.Linear):
    """Turn the scores of a whole batch round for one large number in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 - 2 * (x.abs().amax() > LARGE))


class Remembering(nn.Linear):
    """Turn all scores round after the call that sees a large number."""

    turn = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x) * self.turn
        if x.abs().amax() > LARGE:
            self.turn = -1.0
        return scores


KINDS = {kind.__name__: kind for kind in (Plain, Mixing, Remembering)}


WEIGHTS = {"weight": torch.zeros(3, 6), "bias": torch.zeros(3)}


def bottom(kind, shape, embedding):
    return KINDS[kind](shape[0], embedding)


def head(kind, clients, embedding, classes):
    return KINDS[kind](clients * embedding, classes)


def whole(kind, shape, outputs):
    return KINDS[kind](shape[0], outputs)


def written(folder, *without, change=lambda table: table):
    folder.mkdir()
    return write_table(change(raw()), folder / "own.csv", "time", *without)


def vertical(path, part, kind, method, mode, *stated):
    scenario, settings = MODES[method][mode]
    # seed: the record is not among those checked
    own = ["seed=2", *(text.format(kind=kind) for text in OWN[part])]
    source = READERS["csv"]
    return scenarios.load(
        scenario, [*settings, *source.given(path), *source.vertical, *own, *stated]
    )


@pytest.mark.parametrize(("part", "method", "mode"), [
    ("bottom", "dpzv", "frozen"), ("bottom", "dpzv", "paper"), ("bottom", "zoo_vfl", "rows"), ("head", "dpzv", "joint"),
    ("head", "dpzv", "dp_sgd"),
])  # fmt: skip
def test_only_a_model_of_single_records_keeps_a_query_within_the_clip(tmp_path, part, method, mode):
    one = written(tmp_path / "one", *OWNERS)
    other = written(
        tmp_path / "other", *OWNERS, change=lambda table: table.with_row(CHANGED, x=50 * LARGE)
    )
    for kind in KINDS:
        if (kind, mode) == ("Remembering", "dp_sgd"):
            continue  # vmap refuses what remembers
        first = seen(
            vertical(one, part, kind, method, mode, TRUSTED)
        )  # usual records reveal nothing
        changed = seen(vertical(other, part, kind, method, mode, TRUSTED), first)
        if kind == "Plain":
            assert differences(first, changed, mode) == []
            assert checked_moves(first, changed, mode) > 0.1
            continue
        with pytest.raises(AssertionError):
            checked_moves(first, changed, mode)


def of_users(path, kind, method, *stated):
    own = (f"model.kind={HERE}:whole", f"model.options={{kind='{kind}'}}")
    mode, *_ = USER_MODES[method]
    return user_spec("csv", method, mode, path, *own, *stated)


@pytest.mark.parametrize("method", USER_MODES)
def test_a_model_may_mix_a_users_own_records_and_remember_none(tmp_path, method):
    one = written(tmp_path / "one")
    other = written(tmp_path / "other", change=lambda table: table.with_user(USER, x=50 * LARGE))
    for kind in KINDS:
        first = seen(of_users(one, kind, method, TRUSTED))
        changed = seen(of_users(other, kind, method, TRUSTED), first)
        if kind == "Remembering" and method != "uldp_naive":  # whose bound is that of whole silos
            with pytest.raises(AssertionError):
                moved_by(first, changed, USER, method)
            continue
        assert [name for name in first.public if first.public[name] != changed.public[name]] == []
        assert moved_by(first, changed, USER, method) > 0.1


def test_nothing_is_proved_of_records_until_the_model_is_stated_to_mix_none(tmp_path):
    path = written(tmp_path / "one", *OWNERS)
    for part in OWN:
        with pytest.raises(
            SpecError, match=r"proves nothing here: your own model .*trust = \[.model.\]"
        ):
            planned_privacy(vertical(path, part, "Plain", "dpzv", "joint"))
    plan = planned_privacy(vertical(path, "bottom", "Plain", "dpzv", "paper"))
    assert 'privacy.trust = ["model"] states that it does not' in plan.verdict().text
    assert not any(claim.holds for claim in plan.claims())


def test_nothing_is_proved_of_users_until_the_model_is_stated_to_remember_none(tmp_path):
    path = written(tmp_path / "one")
    plan = planned_privacy(of_users(path, "Plain", "uldp_avg"))
    assert 'privacy.trust = ["model"] states that it does not' in plan.verdict().text
    assert not any(claim.holds for claim in plan.claims())
    assert any(
        claim.holds
        for claim in planned_privacy(of_users(path, "Plain", "uldp_avg", TRUSTED)).claims()
    )


def test_weights_are_stated_to_be_made_without_the_records(tmp_path):
    path, weights = written(tmp_path / "one"), f"model.weights={HERE}:WEIGHTS"
    lacking = planned_privacy(of_users(path, "Plain", "uldp_avg", TRUSTED, weights))
    assert 'privacy.trust = ["model", "weights"] states that it does not' in lacking.verdict().text
    stated = of_users(path, "Plain", "uldp_avg", 'privacy.trust=["model", "weights"]', weights)
    assert any(claim.holds for claim in planned_privacy(stated).claims())


def test_only_what_a_scenario_has_is_stated(tmp_path):
    path = written(tmp_path / "one")
    with pytest.raises(SpecError, match=r'privacy.trust: "loss" goes with a loss of your own'):
        of_users(path, "Plain", "uldp_avg", 'privacy.trust=["model", "loss"]')
    with pytest.raises(SpecError, match=r'privacy.trust: "weights" goes with model.weights'):
        of_users(path, "Plain", "uldp_avg", "privacy.trust=weights")
