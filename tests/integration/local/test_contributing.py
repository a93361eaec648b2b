import importlib
import re
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

import raydpzv.methods.horizontal
import scenarios
from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved
from raydpzv.config.settings_reference import settings_page
from raydpzv.experiment.resuming import continued
from raydpzv.registry import METHODS
from scenarios.cli import app
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
SMALL = (
    "method.name=fedprox",
    "data.train_rows=100",
    "data.test_rows=30",
    "method.lr=0.1",
    "budget.updates=6",
)


def block(path):
    """The code that the page shows for a file."""
    blocks = re.findall(r"^ *```python\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = [b for b in map(textwrap.dedent, blocks) if b.startswith(f"# {path}\n")]
    assert len(found) == 1, f"CONTRIBUTING.md shows {path} {len(found)} times"
    return found[0].partition("\n")[2]


@pytest.fixture(scope="module")
def fedprox(tmp_path_factory):
    """The page's file and its line of the registry, as if they were in the tree."""
    folder = tmp_path_factory.mktemp("methods")
    (folder / "fedprox.py").write_text(block("raydpzv/methods/horizontal/fedprox.py"))
    raydpzv.methods.horizontal.__path__.append(str(folder))
    name, target = re.fullmatch(
        r'"(\w+)": "([\w.]+:\w+)",\n', block("raydpzv/registry.py")
    ).groups()
    if name in METHODS:  # somebody followed the page in this tree
        yield METHODS[name]
        return
    METHODS.add(name, target)
    yield METHODS[name]
    METHODS.remove(name)
    raydpzv.methods.horizontal.__path__.remove(str(folder))
    del sys.modules["raydpzv.methods.horizontal.fedprox"]


def test_its_tests_pass(fedprox, tmp_path):
    path = tmp_path / "shown_fedprox.py"
    path.write_text(block("tests/unit/methods/horizontal/test_fedprox.py"))
    spec = importlib.util.spec_from_file_location("shown_fedprox", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tests = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_it_runs_resumes_and_is_not_private(fedprox, tmp_path):
    spec = scenarios.load("digits_decomfl", list(SMALL))
    whole = scenarios.run(spec).summary
    scenarios.run(spec, tmp_path / "run", **stop_after(3))
    prepared, folder, _ = continued(tmp_path / "run")
    last = run_prepared(prepared, folder).summary
    assert (last["status"], last["digest"]) == ("done", whole["digest"])
    assert last["private_reason"].startswith("NOT PRIVATE")


def test_every_list_and_page_has_it(fedprox):
    assert "fedprox" in CliRunner().invoke(app, ["list"]).stdout
    assert "## [method] name = 'fedprox'" in settings_page()
    assert "| `proximal` | `0.1` |" in settings_page()
    assert raydpzv.methods()["fedprox"].startswith("FedProx: FedAvg whose clients")
    entry = MethodEntry(label="FedProx", set=("method.name=fedprox",))
    file = ComparisonFile(
        name="one", scenario="digits_decomfl", epsilons=("none",), methods=(entry,)
    )
    assert resolved(file).lines[0].spec.method.name == "fedprox"
