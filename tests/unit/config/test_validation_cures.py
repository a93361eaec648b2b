"""No message advises what the same scenario then refuses: each cure that a complaint names is
tried.
"""

import itertools
import re
import tomllib
import typing
from collections.abc import Iterator, Sequence

import pytest

import scenarios
from raydpzv.config import validation
from raydpzv.config.catalog import FOLDER
from raydpzv.config.scenario import AnyScenario, method_fields
from raydpzv.config.toml import overridden, parse
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.registry import METHODS
from raydpzv.settings.fields import section_of

OF_NOISE = {
    "vertical": (
        "privacy.noise_multiplier=2",
        "privacy.head_clip=1",
        "privacy.head_share=0.5",
        "privacy.sigma=1",
    ),
    "horizontal": ("privacy.multiplier=2",),
}
NUMBERS = (
    "privacy.epsilon=1",
    "privacy.delta=1e-5",
    "privacy.clip=0.1",
    "budget.epsilon=1",
    "budget.seconds=9",
)
FITTED = (
    "data.missing=mean",
    "data.groups=a",
    "data.scale=standard",
    "data.split=stratified",
    "model.head=mlp",
)
ASSIGNED = re.compile(r'\b([a-z_.]+) = ("[a-z_]+"|[0-9.]+)')
NAMED = re.compile(r'(?:\b(?:use|or|of)|,) ("[a-z_]+")(?! =)')
CONDITION = re.compile(r'with (?:privacy\.)?[a-z_.]+ = "[a-z_]+"')
WHOLE = {"mode": "privacy.mode", "noise": "privacy.noise"}
"""Settings that messages about privacy name in short."""


def values(annotation: object) -> Iterator[str]:
    """Each word that a setting may be."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from (
            str(v).lower() if isinstance(v, bool) else str(v) for v in typing.get_args(annotation)
        )
    else:
        for part in typing.get_args(annotation):
            yield from values(part)


def changes(spec: AnyScenario) -> list[str]:
    """Settings of privacy and of the method, one value each, and what is fitted on the data."""
    fields = {
        f"{table}.{name}": field.annotation
        for table in ("privacy", "budget")
        if (section := section_of(type(spec).model_fields[table].annotation))
        for name, field in section.model_fields.items()
    }
    hints = typing.get_type_hints(type(spec.method), include_extras=True)
    fields |= {
        f"method.{name}": hints[name] for name in method_fields(type(spec.method)) if name != "name"
    }
    found = [f"{setting}={value}" for setting, kind in fields.items() for value in values(kind)]
    found += [f"method.name={name}" for name in METHODS if METHODS[name].kind == spec.kind]
    return [*found, *OF_NOISE[spec.kind], *NUMBERS, *FITTED]


def refusal(name: str, items: Sequence[str], without: str = "") -> str:
    """The complaint about a scenario with changes, "" if there is none; without: a setting that is
    left out.
    """
    tree = overridden(tomllib.loads((FOLDER / f"{name}.toml").read_text()), items)
    if without:
        table, _, key = without.partition(".")
        tree.get(table, {}).pop(key, None)
    try:
        parse(tree, "here")
    except SpecError as error:
        return str(error).removesuffix(" (from here)")
    return ""


def cures(complaint: str) -> list[str]:
    """What a complaint advises, as overrides; "data.groups" alone: to leave it out."""
    setting, _, rest = complaint.partition(":")
    last = rest.rpartition("; ")[2]
    advice = CONDITION.sub("", last) if "; " in rest and not last.startswith("got") else ""
    found = [f"{WHOLE.get(name, name)}={value}" for name, value in ASSIGNED.findall(advice)]
    found += [f"{setting}={value}" for value in NAMED.findall(advice)]
    left_out = (
        [setting] if re.search(r"leave it out|drop it", advice) and "," not in setting else []
    )
    return [cure for cure in (*found, *left_out) if "." in cure.partition("=")[0]]


def refused_cures(name: str) -> Iterator[str]:
    """Each complaint whose cure is refused in its turn, of all changes alone and in pairs."""
    alone = changes(parse(tomllib.loads((FOLDER / f"{name}.toml").read_text()), name))
    pairs = itertools.combinations(alone, 2)
    for items in (*((item,) for item in alone), *pairs):
        if len({item.partition("=")[0] for item in items}) < len(items) or not (
            said := refusal(name, items)
        ):
            continue
        for cure in cures(said):
            setting, is_value, _ = cure.partition("=")
            then = (
                refusal(name, [*items, cure]) if is_value else refusal(name, items, without=setting)
            )
            if then.startswith(f"{setting}:") or then == said:
                yield f"{items}: {said} -> {cure}: {then}"


@pytest.mark.parametrize(
    "name", ["digits_private", "digits_server", "digits_dpzv", "digits_users_private"]
)
def test_no_complaint_advises_what_is_refused_then(name: str) -> None:
    assert list(refused_cures(name)) == []


def test_advice_that_is_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        validation, "_noised_or_without", lambda noise: 'set mode = "paper" or leave it out'
    )
    assert any(
        'privacy.mode="paper": privacy.mode: "frozen" adds no' in found
        for found in refused_cures("frozen")
    )


def test_cures_are_read_off_a_complaint() -> None:
    assert cures(
        'data.scale: "unit" is fitted; use data.scale = "public" with data.centre and more, or '
        '"none"'
    ) == ['data.scale="public"', 'data.scale="none"']
    assert cures("budget.epsilon: has no meaning here; leave it out") == ["budget.epsilon"]
    assert cures(
        'method.server: wrong; with privacy.mode = "proved" use one of "frozen", "joint"'
    ) == [
        'method.server="frozen"',
        'method.server="joint"',
    ]


def test_a_release_of_several_uploads_is_not_sent_to_the_batches_that_outsiders_exclude() -> None:
    changes = [
        "privacy.adversary=external",
        "method.batches=poisson",
        "method.coins=system",
        "method.gather=4",
    ]
    with pytest.raises(
        SpecError, match=r"^method.gather: wanted 1 with privacy.adversary .* got 4; leave it out$"
    ):
        prepare(scenarios.load("digits_private", changes))
