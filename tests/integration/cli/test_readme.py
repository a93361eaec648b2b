"""The README's example with data of one's own, pasted: clients that train reach far more than frozen ones."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scenarios.cli import app

README = (Path(__file__).parents[3] / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_the_example_with_own_data_trains_clients(tmp_path, monkeypatch):
    (block,) = (b for b in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "runs/table.csv" in b)
    monkeypatch.chdir(tmp_path)
    program = re.search(r"python -c '\n(.*?)' > runs/table.csv", block, re.DOTALL)
    command = block[block.index("raydpzv compare") :].replace("\\\n", " ")
    (tmp_path / "runs").mkdir()
    with contextlib.redirect_stdout(io.StringIO()) as written:
        exec(program[1], {})
    (tmp_path / "runs" / "table.csv").write_text(written.getvalue())
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(app, [*words, "--runner", "local", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    reached = {line["label"]: line["accuracy_median"] for line in json.loads(done.stdout)["lines"]}
    assert reached["vafl"] > reached["frozen clients (control)"] + 0.3
