"""Words of error messages."""

import shlex
from pathlib import Path

import pytest

from raydpzv.errors import command, suggest


def test_a_similar_name_is_suggested_and_no_other():
    assert suggest("incom", ["age", "income"]) == 'Did you mean "income"? '
    assert suggest("label", ["age", "debt"]) == ""


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("resume", Path("runs/one")), "raydpzv resume runs/one"),
        (("resume", Path("my runs/$(id)")), "raydpzv resume 'my runs/$(id)'"),
        (("run", Path("a;b"), "--out", "FOLDER"), "raydpzv run 'a;b' --out FOLDER"),
        (("resume", Path("-x")), "raydpzv resume ./-x"),
        (("tune", "it's", "--set", "a=[1, 2]"), "raydpzv tune 'it'\"'\"'s' --set 'a=[1, 2]'"),
    ],
)
def test_a_hint_is_quoted_for_the_shell(words, line):
    assert command(*words) == line
    assert shlex.split(line)[1:] == [str(word).replace("-x", "./-x") for word in words]
