"""What a search writes down of how it was asked for."""

from __future__ import annotations

from dataclasses import fields

from typer.main import get_command

from scenarios.cli import app
from scenarios.search_command import SearchOptions


def test_each_option_is_written_as_the_command_line_has_it() -> None:
    asked = SearchOptions(
        7, "loss", "asha", 5, 2.5, 3, actors=True, search="optuna", interval=4, quantile=0.5
    )
    words = list(asked.words())
    known = {name for option in get_command(app).commands["tune"].params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert len([word for word in words if word.startswith("--")]) == len(fields(SearchOptions))
    assert words[words.index("--epsilon") + 1] == "2.5"
    assert words[words.index("--actors") + 1] == "--search", "a flag has no value"
    assert not list(SearchOptions(None, None, "none", None, None, 0).words())
