"""privacy.mode = "proved" with what it cannot prove: each refused, with what was wanted and what to
do.
"""

import dataclasses
import hashlib
import re

import pytest
import tomli_w

import scenarios
from raydpzv.config.paths import unlocated
from raydpzv.config.scenario import VerticalScenario
from raydpzv.config.toml import as_tree, scenario_sha256
from raydpzv.config.validation import check
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.experiment.privacy_setting import privacy_setting
from raydpzv.experiment.vertical import prepare_vertical
from tests.helpers.loading import refusal

ROWS = 1437
POISSON = ("method.batches=poisson", "method.batch=64")
OUTSIDER = ("privacy.adversary=external", *POISSON, "method.coins=system")
Z = "privacy.noise_multiplier=200"


def load(*overrides: str) -> VerticalScenario:
    spec = scenarios.load("digits_private", list(overrides))
    assert isinstance(spec, VerticalScenario)
    return spec


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["method.server=sgd"], ['"frozen", "joint", "dp_sgd"', '"sgd" trains the head on labels']),
        (["method.server=zo"], ['"frozen", "joint", "dp_sgd"', '"zo" trains']),
        (["data.scale=standard"], ['data.scale = "public"', "data.centre", "fitted"]),
        (["data.scale=unit"], ['data.scale = "public"', "fitted"]),
        (["data.split=stratified"], ['data.split = "plain"', "looks at all labels"]),
        (["privacy.noise=seeded"], ["privacy.noise", "proves nothing"]),
        (["privacy.sigma=0.1"], ["privacy.sigma", "privacy.noise_multiplier"]),
        (["model.head=mlp"], ["nobody trains", 'model.head = "sum"', '"joint"']),
        (["model.head=linear"], ["nobody trains", '"joint"']),
        (["privacy.head_share=0.5"], ["privacy.head_share", '"dp_sgd"']),
        (["privacy.head_clip=0.5"], ["privacy.head_clip", '"dp_sgd"']),
        (["privacy.head_share=1.0"], ["head_share"]),
        (["method.server=dp_sgd"], ["privacy.head_clip", "wanted"]),
        ([Z], ["any two of", "privacy.epsilon, privacy.noise_multiplier, budget.updates"]),
        (["privacy.mode=none", "privacy.mode=proved"], ["any two of", "got budget.updates"]),
        (["privacy.adversary=external"], ['"poisson"', '"shuffle"']),
        (["privacy.adversary=external", *POISSON], ['method.coins = "system"', "guessed"]),
        ([*OUTSIDER, "budget.seconds=5"], ["number of updates", "budget.seconds"]),
        ([*OUTSIDER, "budget.epsilon=5"], ["number of updates", "budget.epsilon"]),
        ([*OUTSIDER, "network.up=1e6"], ["how large batches are", "leave out network.up"]),
        (
            [*OUTSIDER, "clock.kind=wall"],
            ["how large batches are", 'leave out clock.kind = "wall"'],
        ),
        (["budget.adversary=paper"], ["budget.adversary", '"client"', '"paper"']),
        (["method.name=vafl"], ["vafl", 'mode = "paper"']),
        (["data.missing=mean"], ["data.missing", "one record moves others"]),
        (
            ["privacy.mode=paper", "privacy.delta=1e-5", "privacy.relation=labels"],
            ["privacy.relation", '"proved"'],
        ),
        (
            ["privacy.mode=paper", "privacy.delta=1e-5", "method.server=joint"],
            ['"joint"', '"proved"'],
        ),
        (
            ["privacy.mode=paper", "privacy.delta=1e-5", "method.gather=2"],
            ["method.gather", '"proved"'],
        ),
        (
            ["privacy.mode=paper", "privacy.delta=1e-5", "method.clip_over=vector"],
            ["clip_over", '"proved"'],
        ),
        (
            ["privacy.mode=paper", "privacy.delta=1e-5", "method.average=0.5"],
            ["method.average", '"proved"'],
        ),
        (["method.average=0.003"], ["method.average", "0.003 of 400 releases is 1", "at least 2"]),
        (
            ["method.average=0.5", "budget.updates=3", "method.gather=3"],
            ["0.5 of 1 releases", "at least 2"],
        ),
        (["method.average=0"], ["method.average", "0"]),
        (["method.average=1.01"], ["method.average", "1"]),
        (["method.name=vafl", "method.average=0.5"], ["average"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "",
)
def test_settings_that_contradict_the_mode_are_refused(
    overrides: list[str], words: list[str]
) -> None:
    with refusal(SpecError, *map(re.escape, words)):
        load(*overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["privacy.delta=1e-3"], ["1/D = 0.000695", "privacy.permit_large_delta = true"]),
        (["method.gather=3", "method.batch=359"], ["method.gather", "divisor", "1, 2, 4"]),
        (["method.gather=2", *POISSON], ["method.gather", '"shuffle"', "poisson"]),
        (["budget.epsilon=0.001"], ["budget.epsilon", "it alone is ε=", "0.001"]),
        (["method.batch=1438"], ["method.batch", "at most 1437"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and "=" in value[0] else "",
)
def test_what_hangs_on_the_number_of_rows_is_refused_before_anything_runs(
    overrides: list[str], words: list[str]
) -> None:
    with refusal(SpecError, *map(re.escape, words)):
        prepare_vertical(load(*overrides))


def test_a_sum_head_wants_the_width_of_the_classes() -> None:
    with pytest.raises(SpecError, match=r"model.embedding: wanted 10, .* got 9"):
        prepare_vertical(load("model.embedding=9"))


def test_any_two_of_epsilon_noise_and_updates_give_the_third() -> None:
    noise = privacy_setting(load(), ROWS)
    z = noise.integers.multiplier
    free = ["privacy.mode=none", "privacy.mode=proved", f"privacy.noise_multiplier={z!r}"]
    epsilon = privacy_setting(load(*free), ROWS)
    assert epsilon.updates == noise.updates == 400
    spec = load()
    without = spec.budget.model_copy(update={"updates": None, "seconds": 1e9})
    privacy = spec.privacy.model_copy(update={"noise_multiplier": z})
    updates = privacy_setting(spec.model_copy(update={"budget": without, "privacy": privacy}), ROWS)
    assert updates.updates == 400


def test_a_share_of_updates_that_nobody_planned_is_refused() -> None:
    spec = load()
    method = dataclasses.replace(spec.method, average=0.5)
    budget = spec.budget.model_copy(update={"updates": None})
    privacy = spec.privacy.model_copy(update={"noise_multiplier": 200.0})
    with pytest.raises(
        SpecError, match=r"method.average: wanted with budget.updates, .* privacy.epsilon"
    ):
        check(
            spec.model_copy(update={"method": method, "budget": budget, "privacy": privacy}),
            "a test",
        )


def test_without_noise_the_modes_own_settings_go_with_it() -> None:
    assert load("privacy.relation=labels", "privacy.mode=none").privacy.relation is None


def test_permitted_a_large_delta_is_taken_and_left_out_it_is_a_tenth_of_one_over_rows() -> None:
    permitted = privacy_setting(load("privacy.delta=1e-3", "privacy.permit_large_delta=true"), ROWS)
    assert permitted.claims.delta == 1e-3
    usual = privacy_setting(load(), ROWS)
    assert usual.claims.delta == 1 / (10 * ROWS)


@pytest.mark.parametrize("relation", ["replace", "add_remove", "labels"])
def test_a_relation_halves_the_noise_or_does_not(relation: str) -> None:
    found, usual = (
        privacy_setting(load(*o), ROWS).integers for o in ([f"privacy.relation={relation}"], [])
    )
    ratio = {"replace": 1.0, "labels": 1.0, "add_remove": 0.5}[relation]
    assert found.multiplier == pytest.approx(ratio * usual.multiplier, rel=1e-12)


@pytest.mark.parametrize("timed", ["network.up=1e6", "network.down=1e6", "clock.kind=wall"])
def test_an_order_that_tells_batch_sizes_hides_nobody_from_outsiders(timed):
    given = ("server=frozen", "batches=poisson", "coins=system")
    spec = (
        "data.scale=none",
        "data.split=plain",
        "model.head=sum",
        *(f"method.{setting}" for setting in given),
    )

    def rows(*changes):
        found = planned_privacy(scenarios.load("digits_dpzv", [*spec, *changes])).claims()
        return {c.adversary: c for c in found if c.relation == "replace"}

    assert rows()["external"].epsilon < rows()["client"].epsilon / 10, "control"
    exposed = rows(timed)
    assert exposed["external"].epsilon == exposed["client"].epsilon
    assert timed.partition("=")[0] in exposed["external"].note


def test_digests_keep_the_word_that_the_mode_began_with() -> None:
    tree = unlocated(as_tree(load()))
    tree["privacy"]["mode"] = "sound"
    digest = hashlib.sha256(tomli_w.dumps(tree).encode()).hexdigest()
    assert scenario_sha256(load()) == digest
    with pytest.raises(SpecError, match=r"privacy.mode: wanted .* or 'proved', got 'sound'"):
        load("privacy.mode=sound")
