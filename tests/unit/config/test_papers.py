"""The scenarios page: held against the files, and no difference without a reason."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raydpzv.config import catalog
from raydpzv.config.papers import Paper, papers, rows, scenarios_page
from raydpzv.errors import SpecError
from scenarios.cli import app

PAGE = Path(__file__).parents[3] / "docs" / "scenarios.md"


def verdicts(*settings, words=(), name="digits_dpzv"):
    paper = Paper(title="A paper", scenarios=(name,), settings=settings, words=words)
    return {row.name.strip("`"): row.verdict for row in rows(paper, name, catalog.load(name))}


def printed(key, value, **more):
    return {"key": key, "value": value, "where": "Table 1", **more}


def test_the_page_is_up_to_date():
    shown = CliRunner().invoke(app, ["list", "--papers"])
    assert (shown.exit_code, shown.stdout) == (0, PAGE.read_text()), (
        "raydpzv list --papers > docs/scenarios.md"
    )


def test_what_a_file_sets_has_a_row_and_what_the_paper_names_too():
    found = verdicts(
        printed("method.perturbations", 1), printed("method.batch", 64, says="64 rows")
    )
    tree = tomllib.loads((catalog.FOLDER / "digits_dpzv.toml").read_text())
    written = {f"{t}.{k}" for t, table in tree.items() if isinstance(table, dict) for k in table}
    assert set(found) == written | {"seed", "method.perturbations"}
    silent = {key for key, verdict in found.items() if verdict == "paper silent"}
    assert silent == set(found) - {"method.perturbations", "method.batch"}
    assert (found["method.perturbations"], found["method.batch"]) == ("equal", "equal as read")


def test_a_difference_stands_with_its_reason():
    found = verdicts(
        printed("privacy.clip", 10.0, why="half"),
        words=[{"about": "model", "says": "the best", "where": "Section 7", "why": "the last"}],
    )
    assert found["privacy.clip"] == "**differs**: half"
    assert found["model"] == "**differs**: the last"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [printed("privacy.clip", 10.0)],
            r"privacy.clip is `2.0`, the paper's is `10.0` \(Table 1\), without a word",
        ),
        (
            [printed("privacy.sigma", 10.0)],
            r"privacy.sigma is left out, the paper's is `10.0`.*without a word",
        ),
        ([printed("privacy.clip", 2.0, why="half")], "a `why` says it differs; drop that"),
        ([printed("privacy.clop", 2.0)], "privacy.clop is no setting of digits_dpzv"),
        ([printed("method.local_steps", 1)], "method.local_steps is no setting"),
        ([printed("privacy.clip", 2.0), printed("privacy.clip", 2.0)], "is there twice"),
    ],
)
def test_a_difference_without_a_reason_and_a_line_that_speaks_of_nothing_are_refused(
    settings, message
):
    with pytest.raises(SpecError, match=message):
        verdicts(*settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('title = "X"\nscenarios = ["digits_dpvz"]', "digits_dpvz"),
        (
            'title = "X"\nscenarios = ["vafl"]\n[[settings]]\nkey = "seed"\nvalue = 0\nwhere = '
            '"1"\nscenarios = ["sgd"]',
            '"sgd" is none of this paper',
        ),
        (
            'title = "X"\nscenarios = ["vafl"]\n[[settings]]\nkey = "seed"\nvalue = 0',
            "where: Field required",
        ),
        (
            'title = "X"\nscenarios = ["vafl"]\n[[words]]\nabout = "a"\nsays = "b"\nwhere = "c"',
            "why: Field required",
        ),
    ],
)
def test_a_file_that_names_nothing_known_is_refused(tmp_path, monkeypatch, content, message):
    (tmp_path / "x.toml").write_text(content)
    monkeypatch.setattr("raydpzv.config.papers.FOLDER", tmp_path)
    with pytest.raises(SpecError, match=message):
        papers()
    shown = CliRunner().invoke(app, ["list", "--papers"])
    assert shown.exit_code == 2, "the command says so too"


def test_a_scenario_that_calls_itself_a_papers_is_held_against_it():
    repeated = {name for paper in papers() for name in paper.scenarios}
    claim = re.compile("paper's|papers'|its setting")
    claimed = {entry.name for entry in catalog.entries() if claim.search(entry.title)}
    assert claimed
    assert claimed <= repeated
    assert scenarios_page().count("\n## ") == len(repeated)


@pytest.mark.parametrize("name", ["mnist_vafl", "fashion_vafl", "cifar10_vafl", "parkinson_vafl"])
def test_the_delay_of_worker_m_is_a_poisson_count_of_mean_2m(name):
    """VAFL, Section G.2: Poisson(2m) scaled by 1 / 2M, and a second in the mean for the last of M
    workers.
    """
    spec = catalog.load(name)
    means, quantum = np.array(spec.clock.compute), spec.clock.compute_quantum
    workers = np.arange(1, spec.split.clients + 1)
    assert means / quantum == pytest.approx(2 * workers, rel=1e-5)
    assert means[-1] == 1.0
