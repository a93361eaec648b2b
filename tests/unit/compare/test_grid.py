import itertools

import pytest

from raydpzv.compare.file import read_comparison_file, resolved
from raydpzv.compare.grid import choose, chosen_file, grid_comparison, points, read_grid
from raydpzv.config import catalog
from raydpzv.errors import RunError, SpecError

GRID = """
scenario = "digits_dpzv"
seeds = [100, 101, 102]
report_seeds = 2
epsilons = ["none", 1.0]

[grid]
"method.lr" = [1e-3, 3e-3, 1e-2]
"method.smoothing" = [0.1, 0.01]

[[methods]]
label = "DPZV"
private_grid = { "privacy.clip" = [1.0, 2.0] }

[[methods]]
label = "VAFL"
set = ["method.name=vafl"]
private = ["privacy.clip=0.1"]
grid = { "method.lr" = [0.1] }
"""


def grid_file(tmp_path, text=GRID, **changes):
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "alike.toml"
    path.write_text(text)
    return read_grid(path)


def tables(file, accuracy, seconds=lambda point, seed: 1.0):
    """Rows of a comparison's runs and curves: accuracy(point, seed) is the last validation
    accuracy, None: it broke off; seconds: when a run reached it.
    """
    runs, curves = [], []
    for point, seed in itertools.product(points(file), (100, 101, 102)):
        value = accuracy(point, seed)
        who = {"label": point.label, "epsilon": point.epsilon, "seed": seed}
        runs.append(
            who
            | {
                "run": "r",
                "outcome": "ok",
                "reason": "",
                "status": "failed" if value is None else "done",
            }
        )
        last = (
            0.999 if value is None else value
        )  # what it had before it broke off counts for nothing
        times = (0.0, seconds(point, seed), 9.0)
        for update, (time, now) in enumerate(zip(times, (0.0, last, last), strict=True)):
            seen = {"update": update, "time": time, "validation_accuracy": now, "accuracy": 1 - now}
            curves.append(who | seen)
    return runs, curves


def test_every_combination_of_what_a_method_has_is_a_line(tmp_path):
    found = points(grid_file(tmp_path))
    assert [(p.method, p.epsilon, p.values) for p in found] == [
        ("DPZV", None, (f"method.lr={lr}", f"method.smoothing={s}"))
        for lr in (0.001, 0.003, 0.01) for s in (0.1, 0.01)
    ] + [
        ("DPZV", 1.0, (f"method.lr={lr}", f"method.smoothing={s}", f"privacy.clip={c}"))
        for lr in (0.001, 0.003, 0.01) for s in (0.1, 0.01) for c in (1.0, 2.0)
    ] + [("VAFL", None, ("method.lr=0.1",)), ("VAFL", 1.0, ("method.lr=0.1",))]  # fmt: skip


def test_runs_are_on_their_own_seeds_and_hold_rows_back(tmp_path):
    file = grid_file(tmp_path)
    assert file.criterion() == "the accuracy at the end on 20 % of the training rows, held back"
    comparison = grid_comparison(file)
    assert comparison.seeds == (100, 101, 102)
    assert {line.spec.data.validation_fraction for line in comparison.lines} == {0.2}
    last = next(
        line for line in comparison.lines if line.label == "DPZV, lr=0.01 smoothing=0.01 clip=2.0"
    )
    assert (last.spec.method.lr, last.spec.method.smoothing, last.spec.privacy.clip) == (
        0.01,
        0.01,
        2.0,
    )
    assert last.spec.privacy.epsilon == 1.0


def test_the_highest_median_is_chosen_and_a_run_that_broke_off_counts_as_zero(tmp_path):
    def accuracy(point, seed):
        if point.method == "VAFL":
            return 0.5
        if "method.lr=0.01" in point.values:
            return (
                0.99 if seed == 100 else None
            )  # a mean that leaves failures out would take this one
        good = "method.lr=0.003" in point.values and "method.smoothing=0.1" in point.values
        return 0.8 if good else 0.7

    chosen = choose(file := grid_file(tmp_path), *tables(file, accuracy))
    assert [(c.point.method, c.point.epsilon, c.accuracy, c.points) for c in chosen] == [
        ("DPZV", None, 0.8, 6), ("DPZV", 1.0, 0.8, 12), ("VAFL", None, 0.5, 1), ("VAFL", 1.0, 0.5, 1),
    ]  # fmt: skip
    assert chosen[0].point.values == ("method.lr=0.003", "method.smoothing=0.1")
    assert chosen[1].point.values[2] == "privacy.clip=1.0"  # of equals the first
    assert chosen[0].edges == ("method.smoothing=0.1",)
    assert chosen[2].edges == ()  # there was nothing to choose from


def test_what_is_chosen_is_a_comparison_on_the_reported_seeds(tmp_path):
    file = grid_file(tmp_path)
    text = chosen_file(
        file, choose(file, *tables(file, lambda p, s: float("lr=0.003" in p.label))), "x"
    )
    path = tmp_path / "made.toml"
    path.write_text(text)
    found = resolved(read_comparison_file(path))
    assert found.seeds == (0, 1)
    assert not any(line.spec.data.validation_fraction for line in found.lines)
    dpzv = [line.spec for line in found.lines if line.label == "DPZV"]
    assert [spec.method.lr for spec in dpzv] == [0.003, 0.003]
    assert dpzv[1].privacy.clip == 1.0
    vafl = [(line.epsilon, line.spec.method.lr) for line in found.lines if line.label == "VAFL"]
    assert vafl == [(None, 0.1), (1.0, 0.1)]
    assert "# DPZV at ε=1: 1.000, best of 12; at the edge of its grid: method.smoothing=0.1" in text


def test_nothing_is_chosen_from_half_a_grid(tmp_path):
    file = grid_file(tmp_path)
    runs, curves = tables(file, lambda p, s: 0.5)
    for outcome in ("not run", "failed"):
        with pytest.raises(RunError, match=r"runs/r has no result \(out of memory\)"):
            choose(
                file,
                [row | {"outcome": outcome, "reason": "out of memory"} for row in runs],
                curves,
            )


def test_the_end_is_the_last_update_where_no_time_passes(tmp_path):
    file = grid_file(tmp_path)
    runs, curves = tables(file, lambda p, s: 0.5)
    for row in curves:  # high in between and low at the end for the first step size
        if "lr=0.001" in row["label"]:
            row["validation_accuracy"] = {0: 0.1, 1: 0.9, 2: 0.2}[row["update"]]
        row["time"] = 0.0
    assert [c.accuracy for c in choose(file, runs, curves)[:2]] == [0.5, 0.5]


def test_heads_that_a_grid_makes_differ_want_a_word(tmp_path):
    text = GRID.replace('"method.smoothing" = [0.1, 0.01]', '"method.server_lr" = [0.1, 0.01]')
    with pytest.raises(SpecError, match="learns otherwise"):
        grid_comparison(grid_file(tmp_path, text))
    grid_comparison(grid_file(tmp_path, f'heads = "each tuned"\n{text}'))


def test_what_is_soonest_at_a_target_is_chosen_where_that_is_asked(tmp_path):
    file = grid_file(tmp_path, **{"[grid]": "soonest = 0.7\n[grid]"})

    def slow_and_good(p, s):
        return 0.9 if "lr=0.01 " in p.label else 0.7 if "lr=0.003 " in p.label else 0.5

    seconds = lambda p, s: 5.0 if "lr=0.01 " in p.label else 2.0  # noqa: E731
    chosen = choose(file, *tables(file, slow_and_good, seconds))
    assert [(c.point.values[0], c.accuracy, c.seconds) for c in chosen[:2]] == [
        ("method.lr=0.003", 0.7, 2.0)
    ] * 2
    assert chosen[2].seconds == float("inf")
    assert "0.700, 2 s to the target, best of 6" in chosen_file(file, chosen, "c")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("report_seeds = 2", "report_seeds = [3, 101]", "101 is among report_seeds"),
        ("[grid]", "[gird]", "unknown setting"),
        ("[1e-3, 3e-3, 1e-2]", "[]", "grid"),
        ("report_seeds = 2", "validation_fraction = 1.0", "validation_fraction"),
        ("[0.1]", "[0.1, -1.0]", "lr"),
        ("[1e-3, 3e-3, 1e-2]", str([i / 1e4 for i in range(1, 2000)]), "at most 5,000"),
    ],
)
def test_a_wrong_grid_is_refused(tmp_path, old, new, said):
    with pytest.raises(SpecError, match=said):
        grid_comparison(grid_file(tmp_path, **{old: new}))


@pytest.mark.parametrize("name", catalog.names(catalog.GRIDS))
def test_a_made_comparison_holds_values_of_its_grid_alone(name):
    file = read_grid(catalog.grid(name))
    path = catalog.comparison(name)
    if path is None:
        return  # made where the files of its data are
    made = {(e.label, e.epsilons): {*e.set, *e.private} for e in read_comparison_file(path).methods}
    offered = {}
    for point in points(file):
        epsilons = ("none" if point.epsilon is None else point.epsilon,)
        offered.setdefault((point.method, epsilons), []).append({*point.values})
    assert made.keys() == offered.keys()
    for who, values in made.items():
        assert sum(point <= values for point in offered[who]) == 1, who


def test_a_choice_on_other_rows_is_made_by_the_accuracy_on_them(tmp_path):
    held_out = 'held_out = ["data.test_rows=100"]\n[grid]'
    file = grid_file(tmp_path, **{"[grid]": held_out})
    specs = [line.spec for line in grid_comparison(file).lines]
    assert {(spec.data.test_rows, spec.data.validation_fraction) for spec in specs} == {(100, None)}
    runs, curves = tables(file, lambda p, s: 1.0 if "lr=0.003" in p.label else 0.3)
    best = [c.point.values[0] for c in choose(file, runs, curves)[:2]]
    assert best == ["method.lr=0.001"] * 2, (
        "by accuracy, which these tables make the opposite of validation's"
    )
    text = chosen_file(file, choose(file, runs, curves), "x")
    assert "# Chosen by the accuracy at the end on the rows that data.test_rows=100" in text
    assert "held_out =" not in text
    assert "test_rows" not in text.split("\n", 2)[2]


def test_held_out_takes_settings_of_the_rows_alone(tmp_path):
    with pytest.raises(
        SpecError, match=r"held_out: wanted settings of \[data\] and \[split\], got method.lr=1"
    ):
        grid_file(tmp_path, **{"[grid]": 'held_out = ["method.lr=1"]\n[grid]'})
