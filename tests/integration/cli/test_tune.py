import json

import pytest

from raydpzv.compare.file import read_comparison_file, resolved
from tests.helpers.commands import call as raydpzv

GRID = """
title = "VAFL's step size"
scenario = "vafl"
set = ["evaluate.every=20"]
seeds = [7]
report_seeds = [0]

[[methods]]
label = "VAFL"
grid = { "method.lr" = [1e-9, 0.1] }

[[methods]]
label = "central"
set = ["method.name=sgd"]
grid = { "method.lr" = [0.05] }
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A grid, run by the command line."""
    folder = tmp_path_factory.mktemp("tune")
    (folder / "grid.toml").write_text(GRID)
    where = ("--out", folder / "out", "--to", folder / "made.toml")
    words = (
        "tune",
        folder / "grid.toml",
        "--set",
        "budget.updates=40",
        "--runner",
        "local",
        *where,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = raydpzv("tune", "grid.toml", *words[2:], "--quiet")
    assert done.exit_code == 0, done.output
    return done, folder, words


def test_the_better_step_size_is_written_as_a_comparison(tuned):
    done, folder, _ = tuned
    assert "lr=0.1" in done.stdout
    assert (
        "Chosen by the accuracy at the end on 20 % of the training rows, held back\n" in done.stdout
    )
    comparison = resolved(read_comparison_file(folder / "made.toml"))
    assert [line.spec.method.lr for line in comparison.lines if line.label == "VAFL"] == [0.1]
    assert comparison.seeds == (0,)
    assert {line.spec.budget.updates for line in comparison.lines} == {40}
    runs = sorted(path.name for path in (folder / "out" / "runs").iterdir())
    assert runs == [
        "00-vafl-lr-1e-09-seed7",
        "01-vafl-lr-0-1-seed7",
        "02-central-lr-0-05-seed7",
        "03-frozen-clients-control-seed7",
    ]


def test_resume_names_the_command_that_chooses_from_a_grid_in_any_folder(tuned):
    _, folder, _ = tuned
    done = raydpzv("resume", folder / "out")
    asked = f"raydpzv tune {folder / 'grid.toml'} --set budget.updates=40 --out {folder / 'out'}"
    assert done.exit_code
    assert asked in " ".join(done.output.split())


def test_the_same_again_makes_no_run_and_says_the_same_in_json(tuned):
    _, folder, words = tuned
    before = {
        path: path.stat().st_mtime_ns
        for path in (folder / "out" / "runs").rglob("*")
        if path.is_file()
    }
    done = raydpzv(*words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [(c["label"], c["chosen"], c["combinations"]) for c in found["choices"]] == [
        ("VAFL", ["method.lr=0.1"], 2), ("central", ["method.lr=0.05"], 1),
    ]  # fmt: skip
    assert found["choices"][0]["edges"] == ["method.lr=0.1"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits_feild",), 'Did you mean "digits_field"'),
        (("nowhere.toml",), "cannot read the grid file"),
        (
            ("digits_dpzv",),
            "is a scenario; search its settings with: raydpzv search digits_dpzv --space FILE",
        ),
        (("digits_field", "--to", "no/such/folder/x.toml"), "there is no such folder"),
        (("digits_field", "--to", __file__), "was not made by raydpzv tune"),
    ],
)
def test_wrong_input_is_said_and_nothing_is_written(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = raydpzv("tune", *words)
    assert done.exit_code == 2
    assert said in done.output
    assert not list(tmp_path.iterdir())
