import typing
from collections.abc import Iterator
from typing import Any

import pytest

import raydpzv
from raydpzv.config.scenario import SCENARIOS
from raydpzv.config.toml import as_tree, overridden
from raydpzv.errors import SpecError
from raydpzv.registry import METHODS
from raydpzv.settings.fields import section_of


def settings(kind: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted names of all settings of a scenario but its method's, and what they take."""
    for name, field in kind.model_fields.items():
        if name == "method":
            continue
        yield ".".join([*before, name]), field.annotation
        if section := section_of(field.annotation):
            yield from settings(section, (*before, name))


def every() -> Iterator[tuple[str, str, Any]]:
    for name, method in METHODS.items():
        for key, annotation in settings(SCENARIOS[method.kind]):
            yield name, key, annotation
        for key, annotation in typing.get_type_hints(method.config).items():
            yield name, f"method.{key}", annotation


def test_every_optional_setting_can_be_unset_and_no_other() -> None:
    found = {True: 0, False: 0}
    for name, key, annotation in every():
        if key in ("method.name", "privacy.mode", "data.source"):
            continue
        *tables, last = key.split(".")
        tree: dict[str, Any] = {"method": {"name": name}}
        table = tree
        for part in tables:
            table = table.setdefault(part, {})
        table[last] = 1
        there: Any = overridden(tree, [f"{key}=none"])
        for part in tables:
            there = there[part]
        optional = type(None) in typing.get_args(annotation)
        assert (last not in there) is optional, (name, key)
        found[optional] += 1
    assert min(found.values()) > 100


def test_any_two_of_epsilon_noise_and_updates_can_be_given() -> None:
    noised = raydpzv.load(
        "digits_private", ["privacy.epsilon=none", "privacy.noise_multiplier=100"]
    )
    assert (noised.privacy.epsilon, noised.privacy.noise_multiplier) == (None, 100)
    longest = raydpzv.load(
        "digits_private", ["budget.updates=none", "privacy.noise_multiplier=300"]
    )
    assert (longest.privacy.epsilon, longest.budget.updates) == (1.0, None)


def test_the_last_word_counts_and_a_value_named_none_stays() -> None:
    again = raydpzv.load("digits_private", ["privacy.epsilon=none", "privacy.epsilon=2"])
    assert again.privacy.epsilon == 2
    assert raydpzv.load("digits_private", ["privacy.mode=none"]).privacy.mode == "none"
    given = as_tree(raydpzv.load("digits_dpzv"))
    assert overridden(given, ['data.file="none"'])["data"]["file"] == "none", "quoted it is a text"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("seed", "seed"),
        ("method.lr", r"method\.lr: wanted a valid number, got 'none' .* may not$"),
        ("privacy.delta.x", "privacy.delta"),
    ],
)
def test_what_must_be_there_is_not_unset_and_the_refusal_says_so(key: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        raydpzv.load("digits_private", [f"{key}=none"])
