"""The files in examples/ run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.programs import Forked, said

EXAMPLES = Path(__file__).parents[3] / "examples"
LEAST = {"own_model": 0.8, "two_parties": 0.7, "own_method": 0.8, "two_parties_numbers": 0.7}
"""Test accuracy, or r2, that each example reaches with room; a constant prediction reaches 0.1, or 0."""


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(LEAST)


@pytest.mark.parametrize("example", LEAST)
def test_an_example_learns(example, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    printed = said(Forked([str(EXAMPLES / f"{example}.py")]))
    score = re.search(r"(accuracy|r2) (\d\.\d+)", printed)
    assert score, printed
    assert float(score[2]) > LEAST[example]
