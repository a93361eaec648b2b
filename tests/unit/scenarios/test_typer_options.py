import importlib
import inspect
from typing import get_type_hints

import pytest
from typer.main import get_command

from scenarios.cli import COMMANDS, app


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_function_that_takes_its_dataclass(name):
    function = getattr(importlib.import_module(f"scenarios.commands.{name}"), f"{name}_command")
    assert get_type_hints(function)["options"] is COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_and_option_has_a_help_of_one_sentence(name):
    command = get_command(app).commands[name]
    helps = {
        parameter.name: parameter.help for parameter in command.params if parameter.name != "help"
    }
    assert all(helps.values()), helps
    assert command.help == inspect.cleandoc(COMMANDS[name].__doc__)
    # a list of choices may follow a sentence: "May be repeated."
    assert all(text.count(". ") <= 1 for text in helps.values()), helps


def test_the_old_spelling_of_a_search_works_with_a_note(capsys):
    with pytest.raises(SystemExit) as ended:
        app(["tune", "digits_dpzv", "--space", "nowhere.toml"])
    assert ended.value.code == 2
    note, error = capsys.readouterr().err.splitlines()
    assert (
        note == "raydpzv: note: `tune SCENARIO --space FILE` is `search SCENARIO --space FILE` now"
    )
    assert "cannot read the space file" in error
