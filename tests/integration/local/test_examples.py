import json
import re
from pathlib import Path

import pytest

from tests.helpers.programs import Forked, said

EXAMPLES = Path(__file__).parents[3] / "examples"
LEAST = {"own_model": 0.8, "two_parties": 0.7, "own_method": 0.8, "two_parties_numbers": 0.7}
"""Test accuracy, or r2, that each example reaches with room; a constant prediction reaches 0.1, or
0.
"""


def test_every_example_is_tested():
    readers = {"read_seeds", "mezo_seeds"}  # test_seed_readers.py, test_seed_conversion.py
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LEAST) | readers


@pytest.mark.parametrize("example", LEAST)
def test_an_example_learns(example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed = said(Forked([str(EXAMPLES / f"{example}.py")]))
    score = re.search(r"(accuracy|r2) (\d\.\d+)", printed)
    assert score, printed
    assert float(score[2]) > LEAST[example]


NOTEBOOK = EXAMPLES / "notebook.ipynb"


def masked(outputs: object) -> str:
    """Return outputs without numbers and digests, which another machine may have otherwise."""
    text = json.dumps(outputs, ensure_ascii=False)
    return re.sub(r"\d[\d.,]*(e-\d+)?", "#", re.sub(r"-[0-9a-f]{8}\b", "-#", text))


def test_the_notebook_runs_and_shows_what_it_shows(monkeypatch, tmp_path):
    """The cells run without IPython, which the test environment has not."""
    monkeypatch.chdir(tmp_path)
    recorded = [cell.get("outputs", []) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    found = json.loads(said(Forked(["-m", "tests.helpers.notebooks", str(NOTEBOOK)])))
    assert masked(found) == masked(recorded)
    accuracies = re.findall(r"<td>accuracy</td><td>(0\.\d+)</td>", json.dumps(found))
    assert [float(accuracy) > 0.4 for accuracy in accuracies] == [True]
    assert NOTEBOOK.stat().st_size < 20_000
    assert masked(["0.25", "a-0123abcd"]) == masked(["3e-5", "a-ffffffff"]) != masked(["x"]), (
        "control"
    )
