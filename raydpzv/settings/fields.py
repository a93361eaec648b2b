"""The kinds of values a setting can have."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, overload

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from raydpzv.errors import suggest
from raydpzv.files import check_same
from raydpzv.foreign import is_foreign
from raydpzv.registry import Registry
from raydpzv.settings.bounds import LEAST, MOST, Width
from raydpzv.settings.party_names import NAME as PARTY

Widths = Annotated[tuple[Width, ...], Field(strict=False)]


@dataclass(frozen=True, eq=False)  # a registry has no hash, which optional settings need
class Named:
    """A setting that names an entry of a registry."""

    registry: Registry

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Accept the registry's names alone."""
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def _known(self, name: str) -> str:
        if name not in self.registry:
            hint = suggest(name, self.registry)
            raise ValueError(
                f'unknown {self.registry.kind} "{name}". {hint}Choose {", ".join(self.registry)}'
            )
        return name


class Section(BaseModel):
    """A table of a scenario: unknown keys are refused, values are not converted, nothing changes
    later.

    What checks values is made when the first ones come: an actor gets a scenario that has been
    checked. Docstrings under fields are read for a list of settings alone (`raydpzv.docstrings`):
    pydantic would read all sources.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the table that a field holds, also one that may be left out; None for a field that is
    a value.
    """
    kinds = (annotation, *typing.get_args(annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def settings_of(section: type[BaseModel], table: str) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a table and of the tables in it: its dotted name and its annotation."""
    for name, field in section.model_fields.items():
        if inner := section_of(field.annotation):
            yield from settings_of(inner, f"{table}.{name}")
        else:
            yield f"{table}.{name}", field.annotation


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST


def _positive(value: Any) -> Any:
    return _checked(value, f"above 0 ({LEAST:g} to {MOST:g})", lambda v: LEAST <= v <= MOST)


def _not_negative(value: Any) -> Any:
    return _checked(value, f"0 or above (up to {MOST:g})", lambda v: 0 <= v <= MOST)


def _share(value: Any) -> Any:
    return (
        value
        if value == "auto"
        else _checked(value, '0 or above, or "auto"', lambda v: 0 <= v <= MOST)
    )


def _column_positive(value: Any) -> Any:
    return _checked(
        value, f"above 0 ({LEAST:g} to {MOST:g})", lambda v: LEAST <= v <= MOST, "column"
    )


def _column(value: Any) -> Any:
    return _checked(value, f"of size {MOST:g} at most", lambda v: True, "column")


def _checked(value: Any, wanted: str, holds: Any, per: str = "client") -> Any:
    """Accept a number, or a list with one number per client, or whatever it is per; of columns also
    a table by name.
    """
    if per == "column" and isinstance(value, Mapping):
        if not value or not all(_is_number(v) and holds(v) for v in value.values()):
            raise ValueError(f"wanted one number {wanted} for each column that the table names")
        return {name: float(number) for name, number in value.items()}
    many = isinstance(value, list | tuple)
    values = list(value) if many else [value]
    if not values or not all(_is_number(v) and holds(v) for v in values):
        raise ValueError(f"wanted one number {wanted}, or a list with one per {per}")
    return tuple(float(v) for v in values) if many else float(value)


def _widths(value: Any) -> Any:
    """Accept a width, or a list of them."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not values or not all(type(v) is int and 1 <= v <= 10**6 for v in values):
        raise ValueError("wanted a whole number from 1 to 1000000, or a list of such")
    return tuple(values) if isinstance(value, list | tuple) else value


WidthOrWidths = Annotated[int | tuple[int, ...], BeforeValidator(_widths)]
PerClientPositive = Annotated[float | tuple[float, ...], BeforeValidator(_positive)]
PerClientNotNegative = Annotated[float | tuple[float, ...], BeforeValidator(_not_negative)]
PerColumn = Annotated[float | tuple[float, ...] | dict[str, float], BeforeValidator(_column)]
PerColumnPositive = Annotated[
    float | tuple[float, ...] | dict[str, float], BeforeValidator(_column_positive)
]
PerClientShare = Annotated[float | str | tuple[float, ...], BeforeValidator(_share)]


def _options(value: Any) -> Any:
    """Accept a table of values as TOML has them."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError("wanted a table of parameters, such as {width = 32}")
    return dict(value)


Options = Annotated[dict[str, Any], BeforeValidator(_options)]
"""Arguments of a user's own class or function."""


def with_folder(
    options: Mapping[str, Any] | None, folder: str | None, files: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the arguments of a user's own model, `model.folder` among them.

    files: digests that files have on the machine which sent the scenario. Raises DataError for
    others in the folder.
    """
    for path, digest in files.items():
        if folder is not None and Path(path).parent == Path(folder):
            check_same(Path(path), digest)
    return {**(options or {}), **({} if folder is None else {"folder": folder})}


def _own(value: Any) -> Any:
    if not is_foreign(value):
        raise ValueError('wanted a function of your own, "module:attribute"')
    return value


Own = Annotated[str, BeforeValidator(_own)]
"""A user's own function."""


def _words(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Trusted = Annotated[
    tuple[Literal["model", "loss", "method", "weights"], ...],
    Field(strict=False),
    BeforeValidator(_words),
]
"""What a user states of own code; one word or several."""


Confirmed = Annotated[
    tuple[
        Literal["classes", "categories", "centre", "spread", "missing", "smoothing", "clip", "ids"],
        ...,
    ],
    Field(strict=False),
    BeforeValidator(_words),
]
"""What a user confirms as public though it was read off the data; one word or several."""


def _party_weights(value: Any) -> Any:
    """Accept a table by party, or a list with one entry for each client."""
    if isinstance(value, list | tuple):
        value = {str(client): each for client, each in enumerate(value) if each is not None}
    if not isinstance(value, Mapping) or not all(
        isinstance(each, str) for each in (*value, *value.values())
    ):
        raise ValueError('wanted a table of files by party, such as {bank = "bank.safetensors"}')
    return dict(value)


def _whole(value: Any) -> Any:
    """Accept true, false, or a list of parties by name or number."""
    if isinstance(value, list | tuple) and value and all(type(v) in (str, int) for v in value):
        return tuple(map(str, value))
    if not isinstance(value, bool):
        raise ValueError('wanted true, false, or a list of parties such as ["shop"]')
    return value


Whole = Annotated[bool | tuple[str, ...], BeforeValidator(_whole)]
"""Of whose rows something holds."""


def _one_weights(value: Any) -> Any:
    """Accept one file, or the name of a user's own."""
    if not isinstance(value, str):
        raise ValueError(
            "wanted one file (.safetensors, .pt) or one state_dict of tensors for all clients"
        )
    return value


OneWeights = Annotated[str, BeforeValidator(_one_weights)]
"""A file of weights, or the name of a user's own."""

PartyWeights = Annotated[dict[str, str], BeforeValidator(_party_weights)]
"""Files of weights, or names of a user's own, by party."""

Label = str | int | bool
"""A class or a category, as TOML has it."""


def _listed(value: Any) -> tuple[Label, ...]:
    """Accept a list of distinct texts, whole numbers or booleans, two or more of one kind."""
    values = tuple(value) if isinstance(value, list | tuple) else ()
    kinds = {type(v) for v in values}
    if (
        len(values) < 2
        or len(kinds) > 1
        or not kinds <= {str, int, bool}
        or len(set(values)) < len(values)
    ):
        raise ValueError(
            "wanted a list of two or more labels, each once: all texts, all whole numbers or all "
            "true and false"
        )
    return values


def _classes(value: Any) -> Any:
    """Accept how many classes there are, or which."""
    if isinstance(value, list | tuple):
        return _listed(value)
    if type(value) is not int or value < 2:
        raise ValueError(
            'wanted a whole number from 2, or a list of labels such as ["ill", "well"]'
        )
    return value


def _categories(value: Any) -> Any:
    """Accept a list of columns, or a table that lists each column's values."""
    if isinstance(value, Mapping) and value:
        return {column: _listed(values) for column, values in value.items()}
    if isinstance(value, list | tuple) and all(isinstance(column, str) for column in value):
        return tuple(value)
    raise ValueError(
        'wanted a list of columns such as ["city"], or a table of their values such as {city = '
        '["Oslo", "Rome"]}'
    )


def _missing(value: Any) -> Any:
    """Accept a word, or a table with a constant for each column."""
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return {column: _constant(constant) for column, constant in value.items()}
    if value not in ("refuse", "mean"):
        raise ValueError(
            'wanted "refuse", "mean", or a table of public constants by column, such as {age = 40, '
            'region = "other"}'
        )
    return value


def _constant(value: Any) -> Any:
    value = value.isoformat() if isinstance(value, date) else value
    if not _is_number(value) and type(value) not in (str, bool):
        raise ValueError("wanted a number, a text, true or false for each column")
    return value


def _dates(value: Any) -> Any:
    """Accept a table with a day for each column, as a text or a date of TOML."""
    try:
        days = {name: "-".join(str(day).split(".")[::-1]) for name, day in value.items()}
        days = {name: date.fromisoformat(day).isoformat() for name, day in days.items()}
    except (AttributeError, ValueError):
        days = {}
    if not days:
        raise ValueError('wanted a day for each column, such as {joined = "2020-01-01"}')
    return days


def _separator(value: Any) -> Any:
    if not isinstance(value, str) or len(value) != 1 or value in '"\r\n':
        raise ValueError(r'wanted one character, such as ";" or "\t"')
    return value


def _label(value: Any) -> Any:
    if type(value) not in (str, int, bool):
        raise ValueError("wanted a text, a whole number, true or false")
    return value


def _target(value: Any) -> Any:
    """Accept a column, or a list of columns."""
    listed = tuple(value) if isinstance(value, list | tuple) else (value,)
    if (
        not listed
        or not all(isinstance(column, str) for column in listed)
        or len(set(listed)) < len(listed)
    ):
        raise ValueError(
            'wanted a column, or a list of columns, each once, such as ["rain", "wind"]'
        )
    return value if isinstance(value, str) else listed


Target = Annotated[str | tuple[str, ...], BeforeValidator(_target)]
Classes = Annotated[int | tuple[Label, ...], BeforeValidator(_classes)]
Categories = Annotated[tuple[str, ...] | dict[str, tuple[Label, ...]], BeforeValidator(_categories)]
OneLabel = Annotated[Label, BeforeValidator(_label)]
Missing = Annotated[str | dict[str, Label | float], BeforeValidator(_missing)]
Dates = Annotated[dict[str, str], BeforeValidator(_dates)]
Separator = Annotated[str, BeforeValidator(_separator)]


_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_NAME = re.compile(rf"(?:{_LABEL}/)?{_LABEL}")
_SELECTED = re.compile(rf"!?(?:{_LABEL}|in\({_LABEL}(?:, ?{_LABEL})*\))")


def _selectors(value: Any, who: Sequence[str]) -> Any:
    """Accept a table for each of `who` may have one: labels of machines, and which values of each
    will do.
    """
    if not isinstance(value, Mapping) or not value or not set(value) <= set(who):
        raise ValueError(f"wanted a table with labels for {' or '.join(who)}")
    for labels in value.values():
        if (
            not isinstance(labels, Mapping)
            or not labels
            or not all(map(_is_selector, labels.items()))
        ):
            raise ValueError(
                'wanted labels and their values, such as {zone = "a"}, "!a", "in(a, b)" or "!in(a, '
                'b)", of letters and '
                "digits with - _ . between them (63 at most)"
            )
    return value


def _is_selector(label: tuple[Any, Any]) -> bool:
    name, wanted = label
    return isinstance(wanted, str) and bool(
        _LABEL_NAME.fullmatch(name) and _SELECTED.fullmatch(wanted)
    )


Selectors = dict[str, dict[str, str]]
VerticalSelectors = Annotated[
    Selectors, BeforeValidator(lambda v: _selectors(v, ("server", "clients")))
]
HorizontalSelectors = Annotated[
    Selectors, BeforeValidator(lambda v: _selectors(v, ("server", "hosts")))
]


def _number_or_name(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("wanted a column's number or its name")
    return value


Column = Annotated[int | str, BeforeValidator(_number_or_name)]
Columns = Annotated[tuple[Column, ...], Field(strict=False)]


def _party_name(value: Any) -> Any:
    if not isinstance(value, str) or not PARTY.fullmatch(value):
        raise ValueError(
            "wanted names that begin with a letter, of letters, digits, blanks and - _ . (40 at "
            "most)"
        )
    return value


PartyName = Annotated[str, BeforeValidator(_party_name)]
"""What a party is called."""


def _parties(value: Any) -> Any:
    """Accept two or more parties, each with a name and columns that no other party has."""
    if not isinstance(value, Mapping) or len(value) < 2:
        raise ValueError(
            'wanted at least 2 parties, such as {bank = ["income", "age"], shop = ["visits"]}'
        )
    owners: dict[Any, str] = {}
    for party, columns in value.items():
        _party_name(party)
        if not isinstance(columns, list | tuple) or not columns:
            raise ValueError(
                f'wanted a list of columns for "{party}"; name at least one, or leave the party out'
            )
        for column in columns:
            if (first := owners.setdefault(_number_or_name(column), party)) is not party or (
                columns.count(column) > 1
            ):
                raise ValueError(
                    f'wanted each column in one party, and once; "{column}" is in "{first}" and '
                    f'"{party}"'
                )
    return value


Parties = Annotated[dict[str, Columns], BeforeValidator(_parties)]
"""Columns by party."""


def per_client(value: float | tuple[float, ...], clients: int) -> Sequence[float]:
    """Return one number per client; one that all share is kept once."""
    return list(value) if isinstance(value, tuple) else Repeated(float(value), clients)


@dataclass(frozen=True)
class Repeated(Sequence[float]):
    """One number, `times` times over, in the memory of one: there may be millions of clients."""

    value: float
    times: int

    def __len__(self) -> int:
        return self.times

    @overload
    def __getitem__(self, place: int) -> float: ...

    @overload
    def __getitem__(self, place: slice) -> Repeated: ...

    def __getitem__(self, place: int | slice) -> float | Repeated:
        """Return the number, or the numbers of a slice; IndexError outside."""
        if (
            place.__class__ is int and 0 <= place < self.times
        ):  # several times in every update of a run
            return self.value
        found = range(self.times)[place]
        return Repeated(self.value, len(found)) if isinstance(found, range) else self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return all of them for numpy, which would ask for one after the other."""
        return np.full(self.times, self.value, dtype)
