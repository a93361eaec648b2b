import json
from dataclasses import asdict

import pytest

import scenarios
from raydpzv.config.toml import as_tree, parse
from raydpzv.errors import DataError, NotRecomputable, SpecError
from raydpzv.methods.recorded_method import METHOD, _facts, method_on_record, own_method
from raydpzv.registry import METHODS
from tests.helpers.small_horizontal import SEEDED, small

NAME = "nobodys:METHOD"
CASES = {name: small(name) for name in SEEDED} | {
    name: scenarios.load("digits_dpzv", [f"method.name={name}"]) for name in ("dpzv", "czofo")
}
GROUPS = ["method.groups={'0.*' = {lr = 2.0, smoothing = 0.5}}"]


def recorded(spec):
    """A scenario as the record of a user's own method has it: facts as JSON, settings as TOML."""
    facts = json.loads(json.dumps(_facts(spec.descriptor, spec.method, rule=True)))
    tree = as_tree(spec)
    tree["method"]["name"] = NAME
    return parse(tree, "the record", method_on_record(tree["method"], facts)), facts


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_method_moves_models_as_the_method_does(case):
    spec = CASES[case]
    found, _ = recorded(spec)
    assert found.kind == spec.kind
    rule, wanted = (
        method.descriptor.rule(method.method) if method.descriptor.rule else None
        for method in (found, spec)
    )
    assert (rule is None) == (wanted is None)
    if rule:
        same = (
            "rule",
            "perturbations",
            "secret_seeds",
            "step_seeds",
            "pool",
            "gathered",
            "average",
        )
        assert {name: getattr(rule, name) for name in same} == {
            name: getattr(wanted, name) for name in same
        }
    if spec.one_model:
        for flag in ("drifts", "pulls"):
            ask = getattr(spec.descriptor, flag)
            assert getattr(found.descriptor, flag)(found.method) == ask(spec.method)
        assert found.descriptor.agent == spec.descriptor.agent
    tree = as_tree(found)
    tree["method"]["name"] = spec.method.name
    assert tree == as_tree(spec)


def test_groups_of_parameters_are_on_record():
    spec = small("decomfl", *GROUPS)
    found, facts = recorded(spec)
    assert facts["rule"]["groups"] == [["0.*", {"lr": 2.0, "smoothing": 0.5}]]
    ((pattern, group),) = found.descriptor.rule(found.method).rule.groups
    assert (pattern, asdict(group)) == ("0.*", {"lr": 2.0, "smoothing": 0.5})


def test_a_recorded_method_has_no_roles():
    found, _ = recorded(CASES["decomfl"])
    for role in (found.descriptor.server, found.descriptor.clients):
        with pytest.raises(NotRecomputable, match="is code of its user"):
            role(None, found.method)
    with pytest.raises(SpecError, match="cannot be imported"):
        METHODS[NAME]


@pytest.mark.parametrize(
    "change",
    [
        {"horizontal": None, "rule": 3},
        {"rule": {}},
        {"rule": None},
        {"drifts": ...},
    ],
)
def test_damaged_facts_of_a_method_are_named(change):
    _, facts = recorded(CASES["decomfl"])
    facts |= change
    facts = {name: value for name, value in facts.items() if value is not ...}
    with pytest.raises(DataError, match=r"^environment.json: is damaged: .*own_method"):
        method_on_record({"name": NAME}, facts)


@pytest.mark.parametrize("name", ["_private", "__class__", "a b", "a.b", ""])
def test_settings_that_no_method_has_are_damage(name):
    _, facts = recorded(CASES["decomfl"])
    with pytest.raises(DataError, match="the setting"):
        method_on_record({"name": NAME, name: 1}, facts)


def test_only_a_users_own_method_is_on_record():
    assert own_method(CASES["decomfl"]) == {}
    found, _ = recorded(CASES["decomfl"])
    assert own_method(found) == {
        METHOD: {"horizontal": True, "agent": False, "drifts": False, "pulls": False}
    }
