import json
import re

import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.helpers.commands import call as raydpzv
from tests.helpers.commands import complaint, stdout_of
from tests.helpers.report_views import without_pixels

SHORT = ("--set", "budget.updates=40", "--set", "evaluate.every=20", "--runner", "local")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A comparison made by the command line."""
    folder = tmp_path_factory.mktemp("cli") / "small"
    words = ("digits_dpzv", "vafl", "--seeds", 2, "--targets", "0.15,0.99", *SHORT, "--out", folder)
    with pytest.MonkeyPatch.context() as patch:
        without_pixels(patch)
        done = raydpzv("compare", *words)
    assert done.exit_code == 0, done.output
    return done, folder


def test_one_table_with_every_method_and_the_controls(compared):
    done, folder = compared
    for label in (
        "digits_dpzv, without noise",
        "vafl",
        "frozen clients (control)",
        "central SGD (control)",
    ):
        assert label in done.stdout
        assert label in (folder / "comparison.html").read_text()
    table = pyarrow.parquet.read_table(folder / "table.parquet")
    assert table.column("runs").to_pylist() == [2] * 4
    assert pyarrow.csv.read_csv(folder / "table.csv").num_rows == 4
    for name in ("runs", "curves", "claims"):
        assert (folder / "rows" / f"{name}.csv").is_file()
        assert (folder / "rows" / f"{name}.parquet").is_file()
    pictures = {path.stem for path in (folder / "plots").glob("*.png")}
    assert {"accuracy_over_updates", "accuracy_over_bytes", "accuracy_over_seconds"} <= pictures


@pytest.mark.usefixtures("unrendered")
def test_json_is_the_table_alone(compared, monkeypatch):
    monkeypatch.setattr(
        "raydpzv.compare.compare_methods.RUN_POOLS", {"ray": lambda *given: None}
    )  # not used
    found = json.loads(stdout_of(raydpzv("resume", compared[1], "--json", "--runner", "ray")))
    assert [line["label"] for line in found["lines"]][:2] == ["digits_dpzv, without noise", "vafl"]
    assert found["lines"][0]["reached_0.99"] == 0


@pytest.mark.usefixtures("unrendered")
def test_the_same_again_has_nothing_to_do_and_another_is_refused(compared):
    _, folder = compared
    again = ("compare", "digits_dpzv", "vafl", "--targets", "0.15,0.99", *SHORT, "--out", folder)
    done = raydpzv(*again, "--seeds", 2)
    assert done.exit_code == 0
    assert "8 of 8 runs are there already" in done.stderr
    other = raydpzv(*again, "--seeds", 2, "--set", "method.batch=16")
    assert other.exit_code == 2
    assert "another comparison" in other.stderr


@pytest.mark.usefixtures("unrendered")
def test_a_report_of_a_comparison_is_its_page(compared):
    _, folder = compared
    (folder / "comparison.html").unlink()
    assert stdout_of(raydpzv("report", folder)).strip() == str(folder / "comparison.html")
    links = re.findall(r'<a href="(runs/[^"]+)"', (folder / "comparison.html").read_text())
    assert len(links) == 2 * 8  # from its line, and from the list of runs
    assert all((folder / link).is_file() for link in links)


@pytest.mark.usefixtures("unrendered")
def test_the_table_of_a_paper_is_printed_alone_and_written(compared):
    _, folder = compared
    again = (
        "compare",
        "digits_dpzv",
        "vafl",
        "--targets",
        "0.15,0.99",
        *SHORT,
        "--seeds",
        2,
        "--out",
        folder,
    )
    stdout = stdout_of(raydpzv(*again, "--latex"))
    assert stdout == (folder / "table.tex").read_text()
    assert "\\begin{tabular}" in stdout
    assert "choose one of --latex and --json" in raydpzv(*again, "--latex", "--json").stderr


@pytest.mark.usefixtures("unrendered")
def test_a_comparison_without_any_result_fails(tmp_path):
    done = raydpzv(
        "compare", "vafl", "--seeds", 1, "--set", "method.lr=1e9", *SHORT, "--out", tmp_path / "out"
    )
    assert done.exit_code == 1
    assert "no method has a result" in done.stderr


@pytest.mark.usefixtures("unrendered")
def test_failures_are_named_and_counted(tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        'scenario = "vafl"\nseeds = 1\n[[methods]]\nlabel = "wild"\nset = ["method.lr=1e9"]\n'
        '[[methods]]\nlabel = "tame"\n'
    )
    assert "diverged" in stdout_of(raydpzv("compare", mine, *SHORT, "--out", tmp_path / "out"))
    table = pyarrow.parquet.read_table(tmp_path / "out" / "table.parquet").to_pylist()
    assert [(line["label"], line["failures"]) for line in table][:2] == [("wild", 1), ("tame", 0)]
    assert table[0]["accuracy_median"] < 0.2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits_feild",), 'Did you mean "digits_field"'),
        (("digits_field", "vafl"), "is a comparison with methods of its own"),
        (("digits_field", "--methods", "vafl"), "leave out further scenarios and --methods"),
        (("vafl", "vafl"), "is there twice"),
        (("vafl", "--seeds", "many"), "--seeds: wanted how many"),
        (("vafl", "--seeds", "0"), "--seeds: wanted how many"),
        (("vafl", "--epsilons", "1,nine"), "--epsilons: wanted numbers above 0"),
        (("vafl", "--targets", "90"), "targets: wanted test accuracies"),
        (("vafl", "--epsilons", "1"), "privacy.clip: wanted"),
        (("vafl", "--methods", "vafll"), 'Did you mean "vafl"'),
        (("vafl", "--runner", "rya"), "--runner: wanted"),
        (
            (
                "vafl",
                "--runner",
                "local",
                "--set",
                "data.source=mnist",
                "--set",
                "data.folder=nowhere",
            ),
            "nowhere",
        ),
        (("vafl", "--runner", "local", "--address", "auto"), "goes with --runner ray"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(words, said, tmp_path):
    assert re.search(said, complaint(raydpzv("compare", *words, "--out", tmp_path / "x")))
    assert not (tmp_path / "x").exists()


def test_a_comparison_is_no_scenario():
    assert "raydpzv compare digits_field" in complaint(raydpzv("run", "digits_field"))


def test_the_list_has_the_comparisons():
    done = raydpzv("list")
    assert "Comparisons" in done.stdout
    assert "digits_field" in done.stdout
