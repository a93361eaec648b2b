import json

from tests.helpers.commands import call, changed

WINE = (
    "data.source=wine",
    "split.how=columns",
    "method.batch=32",
    "budget.updates=300",
    "privacy.noise=seeded",
)


def test_a_run_that_reached_its_budget_and_diverged_fails(tmp_path):
    folder = tmp_path / "run"
    large = changed(
        *WINE, "method.lr=0.05", "model.engine=compiled"
    )  # bits that are the same on any machine
    result = call("run", "digits_dpzv", *large, "--quiet", "--out", folder)
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert line.startswith("raydpzv: the run diverged: the test loss went from ")
    assert str(folder) in line
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["failure"]) == ("done", "diverged")
    assert "FALLEN: " in result.stdout
    assert "test accuracy" in result.stdout


def test_a_run_that_divergence_broke_off_shows_its_summary_too(tmp_path):
    folder = tmp_path / "run"
    wild = changed("method.lr=1e9", "budget.updates=300")
    result = call("run", "vafl", *wild, "--json", "--quiet", "--out", folder)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["failure"] == "diverged"
    (line,) = [line for line in result.stderr.splitlines() if line.strip()]
    assert "error.log" in line
