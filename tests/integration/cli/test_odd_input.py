"""Many inputs that nobody means: each ends with status 0 or 2 and one line, without a traceback or
a hang.

What `tests/helpers/odd_input.py` makes is given to the command line in this process. More of it, or
other:

RAYDPZV_ODD_INPUT_SEED=7 RAYDPZV_ODD_INPUT_COUNT=20000 python -m pytest
tests/integration/cli/test_odd_input.py
"""

import functools
import os
import random
import shutil
from pathlib import Path
from typing import NoReturn

import pytest
import typer.main
from typer.testing import CliRunner

from raydpzv.compare.plan import Comparison
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import Prepared
from raydpzv.registry import RUNNERS
from scenarios.cli import app
from scenarios.command_options import Execution
from scenarios.commands import compare
from tests.helpers.faults import fault
from tests.helpers.odd_input import TINY, Inputs
from tests.helpers.report_views import without_pixels

SEED = int(os.environ.get("RAYDPZV_ODD_INPUT_SEED", "1"))
COUNT = int(os.environ.get("RAYDPZV_ODD_INPUT_COUNT", "150"))


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of finished runs, one of a run that was killed, and one of a comparison."""
    folder = tmp_path_factory.mktemp("valid")
    found = {
        name: folder / name
        for name in ("digits_dpzv", "frozen", "digits_decomfl", "killed", "comparison")
    }
    for name in ("digits_dpzv", "frozen", "digits_decomfl"):
        assert (
            CliRunner().invoke(app, ["run", name, *TINY, "--out", str(found[name])]).exit_code == 0
        )
    shutil.copytree(found["frozen"], found["killed"])
    for name in ("summary.json", "models.npz"):
        (found["killed"] / name).unlink()
    asked = ["compare", "frozen", "vafl", "--seeds", "1", *TINY, "--runner", "local"]
    asked += ["--out", str(found["comparison"])]
    with pytest.MonkeyPatch.context() as patch:
        without_pixels(patch)
        result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    return found


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, unrendered: None) -> None:
    """Stop where the input has been judged: runs and comparisons are prepared and not made,
    pictures not drawn.
    """

    def prepared_alone(experiment: Prepared, options: RunOptions, *_: object) -> NoReturn:
        experiment.fingerprint(b"")
        raise SystemExit(0)

    def planned_alone(
        comparison: Comparison, folder: Path, how: Execution, **options: object
    ) -> None:
        comparison.as_toml()

    # building the commands anew for each input is half of the time
    monkeypatch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command))
    monkeypatch.setitem(
        RUNNERS._checked, "local", prepared_alone
    )  # which the runs of `valid` have looked up
    monkeypatch.setattr(compare, "carry_out", planned_alone)


@pytest.mark.usefixtures("quick")
def test_odd_input_ends_with_one_line_and_status_2(valid, tmp_path):
    found = []
    for number in range(COUNT):
        draw = random.Random(f"{SEED}/{number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        case = Inputs(draw, valid, folder).make()
        if wrong := fault(case.arguments):
            short = [a if len(a) < 200 else f"{a[:100]}..." for a in case.arguments]
            found.append(f"{number}: {short}\n{case.file}\n{wrong}")
        if not wrong:
            shutil.rmtree(folder)
    assert not found, f"{len(found)} of {COUNT}:\n" + "\n\n".join(found)
