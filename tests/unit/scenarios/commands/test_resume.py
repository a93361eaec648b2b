from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import scenarios
from raydpzv.errors import RunError
from raydpzv.experiment.runner import usual_runner
from raydpzv.zo import kernels
from scenarios.cli import app
from scenarios.progress import COMPILING


@pytest.mark.parametrize(
    ("clock", "began", "goes_on"),
    [
        ("wall", "ray", "ray"),
        ("wall", "local", "local"),
        ("wall", None, "local"),
        ("wall", "another program's", "local"),
        ("virtual", "ray", "local"),
    ],
)
def test_real_times_come_of_the_runner_that_made_them_and_virtual_ones_of_any(
    clock, began, goes_on
):
    spec = scenarios.load("vafl", [f"clock.kind={clock}"])
    folder = SimpleNamespace(environment=lambda: {"runner": began} if began else {})
    assert usual_runner(spec, folder) == goes_on


@pytest.mark.parametrize("quiet", [False, True])
def test_a_first_run_says_that_it_compiles(quiet, monkeypatch, tmp_path):
    def first_calls(*given, **named):
        kernels._compiling()
        kernels._compiling()
        raise RunError("nothing is trained here")

    monkeypatch.setattr("scenarios.commands.run.start", first_calls)
    words = ["run", "digits_dpzv", "--out", str(tmp_path / "run"), *(["--quiet"] if quiet else [])]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 1
    assert ended.stderr.count(COMPILING) == (not quiet)
