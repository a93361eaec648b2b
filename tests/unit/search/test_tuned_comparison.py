"""The methods of a comparison, tuned alike: their trials, and the comparison with what was chosen."""

from dataclasses import replace

import pytest

from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.config import catalog
from raydpzv.config.toml import as_tree
from raydpzv.errors import SpecError
from raydpzv.search.run_tune import planned
from raydpzv.search.search_terms import SearchTerms
from raydpzv.search.tune_plan import read_plan, search_folder
from raydpzv.search.tune_results import BestPoint, SearchResults, choice_columns
from raydpzv.search.tuned_comparison import HELD_OUT, best_comparison

COMPARISON = """
title = "DPZV against VAFL"
scenario = "digits_dpzv"
set = ["budget.updates=40", "evaluate.every=20"]
seeds = 2
epsilons = ["none", 10.0]

[[methods]]
label = "DPZV"
private = ["privacy.clip=9.0"]

[[methods]]
label = "VAFL"
set = ["method.name=vafl", "method.noise_on=gradient", "method.lr=0.5"]
private = ["privacy.clip=0.1"]
"""
SPACE = """
heads = "one of them is tuned"
seed.grid = [100, 101]
method.lr.grid = [0.01, 0.02, 0.03]

[[methods]]
label = "DPZV"
private.privacy.clip.grid = [1.0, 2.0]

[[methods]]
label = "VAFL"
private.method.server_lr.grid = [0.05]
private.privacy.clip.grid = [0.3]

[[methods]]
label = "central SGD (control)"
space.method.lr.grid = [0.1, 0.2]
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "pair.toml").write_text(COMPARISON)
    (tmp_path / "space.toml").write_text(SPACE)
    return tmp_path


def plan_of(files, changes=(), **terms):
    return planned(str(files / "pair.toml"), files / "space.toml", changes, SearchTerms(**terms))[0]


def chosen(plan, *values):
    """Return results that choose these settings, one line after the other."""
    choices = []
    for place, wanted in enumerate(values):
        trials = [t for t in plan.trials if t.line == place and t.point[1] == wanted]
        choices.append(BestPoint(tuple(trials), 0.8, float("nan"), 3, ("method.lr=0.03",)))
    return SearchResults((), tuple(choices), ())


def test_its_storage_is_that_of_its_plan(files):
    asked = str(files / "pair.toml"), files / "space.toml", (), SearchTerms()
    assert planned(*asked, "file:///x")[0].place.storage == "file:///x"
    assert planned(*asked)[0].place.storage is None


def test_every_method_has_every_combination_on_every_seed_on_rows_held_back(files):
    plan = plan_of(files)
    assert [str(line) for line in plan.lines] == [
        "DPZV",
        "DPZV at ε=10",
        "VAFL",
        "VAFL at ε=10",
        "central SGD (control)",
    ]
    tried = [sum(t.line == place for t in plan.trials) for place in range(5)]
    assert tried == [3 * 2, 3 * 2 * 2, 3 * 2, 3 * 2, 2 * 2]
    assert {t.spec.seed for t in plan.trials} == {100, 101}
    assert {t.spec.data.validation_fraction for t in plan.trials} == {0.2}
    assert (plan.metric, plan.held_out) == ("validation_accuracy", HELD_OUT)
    other = plan_of(files, held_out=["split.how=columns", "data.validation_fraction=0.1"])
    assert other.trials[0].spec.data.validation_fraction == 0.1
    with search_folder(files / "out", plan):
        pass
    assert read_plan(files / "out" / "search.toml") == plan


def test_what_is_chosen_is_what_a_comparison_of_it_runs(files):
    plan = plan_of(files, ["budget.updates=20"])
    results = chosen(
        plan,
        ("method.lr=0.03",),
        ("method.lr=0.01", "privacy.clip=2.0"),
        ("method.lr=0.02",),
        ("method.lr=0.03", "method.server_lr=0.05", "privacy.clip=0.3"),
        ("method.lr=0.2",),
    )
    text = best_comparison(plan, results, "raydpzv tune pair.toml")
    assert text.startswith("# Made by: raydpzv tune pair.toml\n# Chosen by validation_accuracy at")
    assert "median of seeds 100, 101." in text
    assert "# DPZV at ε=10: 0.800, best of 3; at the edge of its values: method.lr=0.03" in text
    assert 'private = [\n    "method.lr=0.01",\n    "privacy.clip=2.0",\n]' in text, (
        "not both clips"
    )
    (files / "best.toml").write_text(text)
    comparison = resolved(read_comparison_file(files / "best.toml"))
    assert (comparison.seeds, comparison.heads) == ((0, 1), "one of them is tuned")
    assert {line.spec.budget.updates for line in comparison.lines} == {20}
    lines = {str(line): line.spec for line in comparison.lines}
    for choice in results.choices:
        wanted = as_tree(plan.chosen_spec(choice.trial)) | {"seed": 0, "title": "", "name": ""}
        found = as_tree(lines[str(plan.lines[choice.trial.line])])
        assert found | {"title": "", "name": ""} == wanted
    heads = [column.title for column in choice_columns(plan)]
    assert heads == ["method", "aim: ε", "chosen", plan.metric, "of", "at the edge of its values"]


@pytest.mark.parametrize(
    ("space", "terms", "said"),
    [
        (
            "seed.grid = [0]\nmethod.lr.grid = [1, 2]",
            {},
            "seed: 0 is one of the comparison's seeds too",
        ),
        ("method.lr.grid = [0.1]\n", {}, "seed: 0 is one of the comparison's seeds too"),
        ("seed.grid = [9]\n", {}, "varies no setting that a method of pair has"),
        ("[[methods]]\nlabel = 'DPZW'\n", {}, 'has no method "DPZW".*Did you mean "DPZV"'),
        ("seed.grid = [9]\nmethod.server_lr.grid = [1, 2]\n", {}, "learns otherwise"),
        (SPACE, {"scheduler": "asha"}, "--scheduler asha: goes with a scenario"),
        (SPACE, {"search": "optuna"}, "--search optuna: goes with a scenario"),
        (SPACE, {"samples": 3}, "--samples: the space is a grid alone"),
        (SPACE, {"held_out": ["method.lr=1"]}, "--held-out: wanted settings of"),
    ],
)
def test_spaces_that_fit_no_comparison_are_refused(files, space, terms, said):
    (files / "space.toml").write_text(space)
    with pytest.raises(SpecError, match=said):
        plan_of(files, **terms)


def test_drawn_values_are_drawn_for_every_method_that_draws(files):
    text = SPACE.replace("method.lr.grid = [0.01, 0.02, 0.03]", "method.lr.uniform = [0.01, 0.02]")
    (files / "space.toml").write_text(text)
    plan = plan_of(files, samples=2)
    tried = [sum(t.line == place for t in plan.trials) for place in range(5)]
    assert tried == [2 * 2, 2 * 2 * 2, 2 * 2, 2 * 2, 2 * 2]
    assert replace(plan, trials=()).size == 0


@pytest.mark.parametrize("name", catalog.names(catalog.SPACES))
def test_every_space_of_the_program_fits_its_comparison(name):
    plan, _ = planned(name, catalog.space(name), [], SearchTerms())
    assert plan.comparison["name"] == name
    counts = {sum(t.line == n for t in plan.trials) for n in range(len(plan.lines))}
    assert min(counts) > 1
