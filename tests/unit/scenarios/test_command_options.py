from dataclasses import fields

from typer.main import get_command

from scenarios.cli import app
from scenarios.command_options import SearchOptions


def test_each_option_is_written_as_the_command_line_has_it() -> None:
    asked = SearchOptions(
        samples=7,
        search="optuna",
        metric="loss",
        scheduler="asha",
        grace=5,
        interval=4,
        quantile=0.5,
        epsilon=2.5,
        held_out=["data.validation_fraction=0.2", "split.clients=3"],
        soonest=0.9,
        draw_seed=3,
        actors=True,
    )
    words = list(asked.words())
    known = {name for option in get_command(app).commands["tune"].params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known
    assert len([word for word in words if word.startswith("--")]) == len(fields(SearchOptions)) + 1
    assert words[words.index("--epsilon") + 1] == "2.5"
    after = words[words.index("--actors") + 1 :]
    assert all(word.startswith("--") for word in after[:1]), "a flag has no value"
    assert not list(SearchOptions().words())
