"""The benchmarks as modules: imported from their folder, and run to their end in this process with
small constants.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a benchmark, or what benchmarks share."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def figures(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *arguments: str, **constants: Any
) -> dict[str, Any]:
    """Run a benchmark with other constants than its own; return the figures that it writes."""
    benchmark, path = module(name, monkeypatch), tmp_path / f"{name}.json"
    for constant, value in constants.items():
        monkeypatch.setattr(benchmark, constant, value)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *arguments, "--json", str(path)])
    benchmark.main()
    found: dict[str, Any] = json.loads(path.read_text())
    return found
