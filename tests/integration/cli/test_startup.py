"""Commands that only look start without the libraries of those that train: what each may not
import, by name.
"""

import os
from pathlib import Path

import pytest

from tests.helpers.programs import python, python_said

TRAINING = (
    "torch",
    "sklearn",
    "numba",
    "ray",
    "matplotlib",
    "dp_accounting",
    "pyarrow",
    "pandas",
    "jinja2",
)
EVERYTHING = (*TRAINING, "numpy", "scipy")
AFTER = """
import atexit, os, sys
from raydpzv.__main__ import main
names = sys.argv[1].split(",")
sys.argv = ["raydpzv", *sys.argv[2:]]
atexit.register(lambda: print([name for name in names if name in sys.modules], file=sys.stderr))
main()
"""
"""Run a command and print, when the process ends, which of the modules named it has imported."""


@pytest.mark.parametrize(
    ("command", "forbidden"),
    [
        (("--help",), (*EVERYTHING, "pydantic")),
        (("--version",), EVERYTHING),
        (("run", "--help"), EVERYTHING),
        (("compare", "--help"), EVERYTHING),
        (("resume", "--help"), EVERYTHING),
        (("new", "--help"), EVERYTHING),
        (("tune", "--help"), EVERYTHING),
        (("list",), EVERYTHING),
        (("privacy", "digits_dpzv"), TRAINING),
        (("privacy", "digits_dpzv", "--json"), TRAINING),
        (("privacy", "vafl", "--explain"), TRAINING),
    ],
    ids=" ".join,
)
def test_a_command_imports_what_it_needs_alone(
    command: tuple[str, ...], forbidden: tuple[str, ...]
) -> None:
    ended = python("-c", AFTER, ",".join(forbidden), *command)
    assert (ended.returncode, ended.stderr) == (0, "[]\n")
    assert ended.stdout


SCENARIOS = {
    "digits_dpzv": ("budget.updates=20",),
    "digits_decomfl": ("budget.updates=2", "data.train_rows=200"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_running_and_reporting_a_compiled_scenario_load_neither_torch_nor_pandas(
    name: str, tmp_path: Path
) -> None:
    out, names = str(tmp_path / "run"), "torch,sklearn,pandas,dp_accounting,ray"
    settings = [word for setting in SCENARIOS[name] for word in ("--set", setting)]
    ended = python("-c", AFTER, f"{names},matplotlib", "run", name, *settings, "--out", out)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (0, "[]")
    ended = python("-c", AFTER, f"{names},numba", "report", out)
    assert (ended.returncode, ended.stderr) == (0, "[]\n")
    report = (tmp_path / "run" / "report.html").read_text()
    assert report.count("data-chart=") >= 2


def test_a_module_that_a_command_imports_is_named() -> None:
    """The control. What a run under torch loads is in
    tests/unit/engine/test_torch_engine_imports.py.
    """
    assert python("-c", AFTER, "typer,torch", "list").stderr == "['typer']\n"


def test_completing_a_scenario_imports_none_of_it() -> None:
    ended = python(
        "-c",
        AFTER,
        ",".join(EVERYTHING),
        _RAYDPZV_COMPLETE="complete_bash",
        COMP_WORDS="raydpzv privacy digits_d",
        COMP_CWORD="2",
    )
    assert (ended.stdout.split(), ended.stderr) == (["digits_decomfl", "digits_dpzv"], "[]\n")


def test_the_public_names_of_scenarios_are_there_and_an_unknown_one_is_an_attribute_error() -> None:
    code = (
        "import sys, scenarios\n"
        "assert 'torch' not in sys.modules\n"
        "assert all(getattr(scenarios, name) for name in scenarios.__all__)\n"
        "assert not hasattr(scenarios, 'nothing')\n"
    )
    assert python("-c", code).returncode == 0


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_while_a_command_loads_ends_the_program_in_one_line(tmp_path: Path) -> None:
    # the first module the command imports is where the interrupt falls, in a library that swallows
    # it
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'scenarios.commands.run':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                raise ImportError('a library made this of it') from None\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from raydpzv.__main__ import main\n"
        f"sys.argv = ['raydpzv', 'run', 'digits_dpzv', '--out', {str(tmp_path / 'run')!r}]\n"
        "main()\n"
    )
    ended = python("-c", code)
    assert (ended.returncode, ended.stderr) == (130, "raydpzv: interrupted\n")


def test_runs_start_without_docstrings(tmp_path: Path) -> None:
    command = ("-m", "scenarios", "run", "digits_decomfl", "--set", "budget.updates=2", "--quiet")
    python_said(*command, "--out", str(tmp_path / "run"), PYTHONOPTIMIZE="2")
    assert "done" in (tmp_path / "run" / "summary.json").read_text()
    assert python_said("-m", "scenarios", "list", PYTHONOPTIMIZE="2") == python_said(
        "-m", "scenarios", "list"
    )
