import math
import tomllib

import pytest

import scenarios
from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.search.space import MOST_TRIALS, Dimension, drawn, read_space_file


@pytest.fixture(scope="module")
def spec():
    return scenarios.load("digits_dpzv")


@pytest.fixture
def read(spec, tmp_path):
    def make(text, fixed=()):
        (tmp_path / "space.toml").write_text(text)
        return read_space_file(tmp_path / "space.toml", spec).of_scenario(spec, fixed)

    return make


def test_all_kinds_by_dotted_names_tables_and_quoted_keys(read):
    space = read(
        'method.lr.loguniform = [1e-3, 1e-1]\n"method.momentum" = { uniform = [0, 0.9] }\n'
        'method.server.choice = ["sgd", "zo"]\n[method.perturbations]\nrandint = [1, '
        "4]\n[seed]\ngrid = [3, 4]\n"
    )
    assert {d.setting: (d.kind, d.values) for d in space} == {
        "method.lr": ("loguniform", (1e-3, 1e-1)),
        "method.momentum": ("uniform", (0.0, 0.9)),
        "method.server": ("choice", ("sgd", "zo")),
        "method.perturbations": ("randint", (1, 4)),
        "seed": ("grid", (3, 4)),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "wanted at least one setting"),
        ("method.lrr.choice = [1]", r'method.lrr: unknown setting .* Did you mean "method.lr"'),
        ("metod.lr.choice = [1]", r'Did you mean "method.lr"'),
        ("title.choice = ['a']", "title: unknown setting"),
        ("method.lr.choice = []", r"method.lr.choice: wanted a list of values"),
        ("method.lr.choice = 3", r"method.lr.choice: wanted a list of values"),
        ("method.lr.loguniform = [0, 1]", "0 has no logarithm"),
        ("method.lr.loguniform = [-1.0, 1]", "above 0"),
        ("method.lr.uniform = [1, 0]", "smaller end first"),
        ("method.lr.uniform = [1, 1]", "smaller end first"),
        ("method.lr.uniform = [1]", "wanted two numbers"),
        ("method.lr.uniform = ['a', 'b']", "wanted two numbers"),
        ("method.lr.uniform = [false, true]", "wanted two numbers"),
        ("method.lr.uniform = [0, inf]", "finite"),
        ("method.perturbations.randint = [1, 2.5]", "two whole numbers"),
        ("method.lr.choices = [1, 2]", r'wanted one of .* Did you mean "choice"'),
        ("method.lr = 3", "wanted one of choice"),
        ("method.lr.choice = [1]\nmethod.lr.grid = [2]", "one way to vary it"),
        ("method.lr.choice = [{a = 1}]", "numbers, texts or lists"),
        ("method.lr", "not a TOML file"),
        ("[[methods]]\nlabel = 'DPZV'\nspace.method.lr.grid = [1]", "are those of a comparison"),
        ("[[methods]]\nlable = 'DPZV'", r"wanted \[\[methods\]\] with a label"),
        ("methods = 3", r"wanted \[\[methods\]\] with a label"),
        ('held_out = ["method.lr=1"]', r"held_out in space.toml: wanted settings of \[data\]"),
        ('soonest = "fast"', "soonest: wanted a number"),
        ("heads = 3", "heads: wanted a sentence"),
        (
            "method.lr.choice = [0.01, 1, 0.01]",
            r"method.lr.choice: wanted different .* got 0.01 and 0.01; drop",
        ),
        (
            "seed.grid = [1, 1.0]",
            r"seed.grid: wanted different values in space.toml, got 1 and 1.0",
        ),
        ('method.server.choice = ["zo", "zo"]', r'got "zo" and "zo"'),
        ("method.lr.choice = [[1, 2], [1, 2]]", r"got \[1, 2\] and \[1, 2\]"),
        (
            "seed.grid = [1]\nmethod.lr.choice = [1,\n\n",
            r"space.toml: .*\(at line 2, the end of the document\)",
        ),
        ("seed.grid = [1]\nmethod.lr.choice = [1 2]", r"space.toml: .*\(at line 2, column 23\)"),
    ],
)
def test_bad_files_are_refused_by_name(read, text, said):
    with pytest.raises(SpecError, match=said):
        read(text)


def test_true_and_one_are_different_values(read):
    assert read("method.lr.choice = [true, 1]")[0].values == (True, 1)


def test_what_is_fixed_cannot_be_varied(read):
    with pytest.raises(SpecError, match=r"method.lr: is fixed by --set"):
        read("method.lr.choice = [1]", ["method.lr=0.1"])


def test_settings_of_every_method_that_is_named_are_known(read):
    text = (
        'method.smoothing.choice = [0.1]\nmethod.name.choice = ["dpzv", '
        '"fedavg"]\nmethod.local_steps.choice = [1]'
    )
    assert len(read(text)) == 3
    with pytest.raises(SpecError, match="local_steps: unknown"):
        read("method.local_steps.choice = [1]")


def test_draws_lie_in_their_ranges_and_follow_from_the_seed_alone():
    space = (
        Dimension("a", "loguniform", (1e-4, 1.0)),
        Dimension("b", "uniform", (2.0, 3.0)),
        Dimension("c", "randint", (1, 3)),
        Dimension("d", "choice", ("x", "y")),
    )
    points = drawn(space, 400, 0)
    found = [tomllib.loads("\n".join(p)) for p in points]
    assert points == drawn(space, 400, 0) != drawn(space, 400, 1)
    assert all(1e-4 <= f["a"] <= 1 and 2 <= f["b"] <= 3 for f in found)
    assert {f["c"] for f in found} == {1, 2, 3}
    assert {f["d"] for f in found} == {"x", "y"}
    # a quarter of the draws in each decade: 100 +- 4 standard deviations; drawn evenly, 99 % are in
    # the last
    for decade in range(-4, 0):
        assert 65 < sum(decade <= math.log10(f["a"]) < decade + 1 for f in found) < 135
    # other settings do not move a draw, and the number of draws does not either
    assert [p[0] for p in drawn(space[:1], 5, 0)] == [p[0] for p in points[:5]]


def test_every_draw_is_tried_at_every_point_of_the_grid():
    space = (Dimension("lr", "uniform", (0.0, 1.0)), Dimension("seed", "grid", (0, 1, 2)))
    points = drawn(space, 2, 0)
    assert [p[1] for p in points] == ["seed=0", "seed=1", "seed=2"] * 2
    assert len({p[0] for p in points[:3]}) == 1
    assert points[0][0] != points[3][0]


def test_equal_points_are_tried_once_and_there_are_not_too_many():
    assert drawn((Dimension("a", "choice", (1,)),), 5, 0) == [("a=1",)]
    with pytest.raises(SpecError, match="all alike"):
        drawn((Dimension("a", "grid", (1, 2)),), 2, 0)
    with pytest.raises(SpecError, match="at most"):
        drawn((Dimension("a", "grid", tuple(range(MOST_TRIALS + 1))),), 1, 0)


def test_a_rounded_draw_stays_inside_its_range():
    narrow = Dimension("a", "uniform", (1.00000012, 1.00000013))
    assert 1.00000012 <= narrow.draw(Key(0)) <= 1.00000013


COMPARED = """
held_out = ["data.validation_fraction=0.3"]
soonest = 0.8
seed.grid = [100]
method.lr.grid = [1, 2]
method.batch.grid = [8, 16]
privacy.clip.grid = [1.0]

[[methods]]
label = "own"
space.method.lr.grid = [3]
private.privacy.clip.grid = [2.0]

[[methods]]
label = "own"
epsilons = [4.0]
space.method.lr.grid = [4]
"""


def test_a_method_has_its_own_values_in_place_of_those_for_all(spec, tmp_path):
    (tmp_path / "space.toml").write_text(COMPARED)
    space = read_space_file(tmp_path / "space.toml", spec)
    assert (space.held_out, space.soonest) == (("data.validation_fraction=0.3",), 0.8)

    def values(label, epsilon, of=spec):
        return {d.setting: d.values for d in space.of_method(label, epsilon, of)}

    common = {"seed": (100,), "method.lr": (1, 2), "method.batch": (8, 16)}
    assert values("any", None) == common, "without noise nothing of it"
    assert values("any", 1.0) == common | {"privacy.clip": (1.0,)}
    assert values("own", None) == common | {"method.lr": (3,)}
    assert values("own", 1.0) == common | {"method.lr": (3,), "privacy.clip": (2.0,)}
    assert values("own", 4.0)["method.lr"] == (4,)
    control = scenarios.load("digits_dpzv", ["method.name=sgd", "privacy.mode=none"])
    assert values("any", None, control) == {}, "a control varies only where it is named"
    assert values("own", None, control)["method.lr"] == (3,)
    weights = scenarios.load("digits_decomfl", ["method.name=fedavg"])
    assert "method.batch" in values("any", None, weights)
    averaged = scenarios.load("digits_decomfl")
    assert "method.momentum" not in values("any", None, averaged)


def test_methods_of_a_comparison_vary_in_method_and_privacy_alone(spec):
    space = read_space_file(
        {"seed": {"grid": [9]}, "methods": [{"label": "a", "space": {"budget.updates.grid": [1]}}]},
        spec,
    )
    with pytest.raises(SpecError, match=r"budget.updates: methods of a comparison differ"):
        space.of_method("a", None, spec)
