import shlex

import raydpzv
from raydpzv.config.toml import as_tree
from raydpzv.report.run_settings import command, differences


def test_the_command_makes_a_run_with_the_same_settings() -> None:
    spec = raydpzv.load(
        "digits_decomfl", ["method.lr=0.5", "budget.bytes=1000", "budget.updates=none"]
    )
    words = shlex.split(command(as_tree(spec)))
    assert words[:3] == ["raydpzv", "run", "digits_decomfl"]
    assert as_tree(raydpzv.load(words[2], words[4::2])) == as_tree(spec)


def test_scenarios_of_your_own_and_other_methods_have_no_command() -> None:
    tree = as_tree(raydpzv.load("digits_decomfl"))
    assert command({**tree, "name": "mine"}) == ""
    assert command(as_tree(raydpzv.load("digits_decomfl", ["method.name=fedavg"]))) == ""


def test_settings_that_differ_are_those_that_are_not_the_methods_defaults() -> None:
    tree = as_tree(raydpzv.load("digits_dpzv"))
    found = {key: (here, usual) for key, here, usual in differences(tree) or ()}
    assert found["method.smoothing"] == ("0.1", "0.001")
    assert found["budget.updates"] == ("2000", "")
    assert not {"name", "title", "method.batch"} & set(found)
    assert differences({**tree, "method": {"name": "mine:METHOD"}}) is None
