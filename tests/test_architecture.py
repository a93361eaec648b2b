"""The layers hold, and the core starts light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_files():
    return [
        p for room in ("raydpzv", "actors", "scenarios", "benchmarks") for p in (ROOT / room).rglob("*.py")
    ]


def run_python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_contracts():
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    assert "5 kept, 0 broken" in run_python(code)


def test_the_core_runs_where_ray_pydantic_and_the_accountant_are_not_installed():
    """The GPU machines' benchmarks import these rooms; a run without them must not need what they do not use."""
    run_python(
        "import sys\n"
        "for name in ('ray', 'pydantic', 'dp_accounting', 'matplotlib', 'typer', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "import raydpzv.methods.vertical.dpzv, raydpzv.sim.virtual, raydpzv.records.recorder, raydpzv.data.sources\n"
    )


def test_loading_a_scenario_imports_neither_ray_nor_the_accountant_nor_torch_compiler():
    code = (
        "import sys, scenarios\n"
        "from raydpzv.experiment.vertical import prepare\n"
        "prepare(scenarios.load('digits_dpzv'))\n"
        "print([m for m in ('ray', 'dp_accounting', 'matplotlib', 'torch._dynamo') if m in sys.modules])"
    )
    assert run_python(code).strip() == "[]"


def test_files_stay_small_and_say_what_they_are():
    for path in python_files():
        text = path.read_text()
        assert len(text.splitlines()) <= 300, path
        assert ast.get_docstring(ast.parse(text)), path


def test_nothing_unfinished_is_left():
    words = [a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"))]
    for path in python_files():
        assert not any(word in path.read_text() for word in words), path
