"""What the header of a seed file may say: one schema, for files that a stranger wrote and signed.

Nothing else reads a header. A file that passes has the types and ranges that a rebuild relies on.
"""

from __future__ import annotations

import json
import zlib
from typing import Annotated, Any, Literal, NoReturn

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    FailFast,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from raydpzv.errors import DataError, plain, suggest

LAWS = ("gaussian", "sphere", "rademacher", "rank_one", "torch_normal")
"""Laws of directions that this version rebuilds."""
OPTIMIZERS = ("sgd", "signsgd", "adam", "svrg")
OPTIONS = ("momentum", "damped", "beta2", "v0", "epoch")
"""Numbers of a rule that a file may have; those it lacks are 0."""
_OF_RULE = {"name", *OPTIONS}
MOST_PARAMETERS = 10**11
MOST_DRAWN = 1 << 28
"""First weights of a file that neither it nor the reader's weights hold: a few bytes ask for them.
"""
_LONGEST, _SHORT, _GROWTH = 1 << 26, 1 << 23, 8
"""Bytes of a header's text at most; and bytes that any header may have, with so many more for each
byte that it is compressed to.
"""
_VALUES = 1 << 20
"""Values that any header may have, with one more for each byte that it is compressed to: a value
takes up to 80 bytes of memory.
"""


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("wanted a name without control characters")
    return name


_ABSENT: Any = None
"""The value of a key that is left out; null is refused."""


def _flag(value: object) -> float:
    if value not in (0, 1):
        raise ValueError("wanted 0 or 1")
    return float(value == 1)


_Name = Annotated[
    str,
    Field(strict=True, min_length=1, max_length=1000),
    AfterValidator(_printable),
]
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Above0 = Annotated[_Number, Field(gt=0)]
_Below1 = Annotated[_Number, Field(ge=0, lt=1)]
_Count = Annotated[int, Field(strict=True, ge=1, le=2**32)]
_From0 = Annotated[int, Field(strict=True, ge=0, le=MOST_PARAMETERS)]
_Shape = Annotated[tuple[_From0, ...], Field(max_length=64)]
_Digest = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{64}$")]
_Word = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{1,16}$")]
_Key = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{1,32}$")]
_Tensor = Annotated[
    Annotated[tuple[_Name, _Shape, Literal["stored"]], Tag("stored")]
    | Annotated[tuple[_Name, _Shape, Literal["constant"], _Number], Tag("constant")]
    | Annotated[tuple[_Name, _Shape, Literal["uniform"], _Number, _Key], Tag("uniform")]
    | Annotated[tuple[_Name, _Shape, Literal["weights"], _Name], Tag("weights")],
    Discriminator(lambda entry: entry[2] if isinstance(entry, list) and len(entry) > 2 else None),
]


class RuleHeader(BaseModel, extra="forbid"):
    """How pairs move a model; an option that is left out is 0."""

    name: Literal["sgd", "signsgd", "adam", "svrg"]
    momentum: _Below1 = 0.0
    damped: Annotated[Any, AfterValidator(_flag)] = 0.0
    beta2: _Below1 = 0.0
    v0: _Above0 = Field(default=0.0)
    epoch: Annotated[_Number, Field(ge=1, le=2**32, multiple_of=1)] = Field(default=0.0)

    @model_validator(mode="after")
    def _complete(self) -> RuleHeader:
        """Refuse a rule that would divide by an option that the file lacks."""
        for name, option in (("adam", "v0"), ("svrg", "epoch")):
            if self.name == name and not getattr(self, option):
                raise ValueError(f"{name} needs {option}")
        return self


class ModelHeader(BaseModel, extra="forbid"):
    """One model: where its tensors start, and where its seeds and scalars are.

    A key that is left out is None; null is no value.
    """

    name: _Name
    tensors: Annotated[list[_Tensor], Field(min_length=1), FailFast()]
    factors: Annotated[list[tuple[_Above0, _Above0]], FailFast()] = Field(default=_ABSENT)
    initial: _Digest
    result: _Digest
    average: _From0 = Field(default=_ABSENT)
    phases: Annotated[list[tuple[_Count, _Count, _Count, _Number]], FailFast()]
    root: tuple[_Word, _Word, _Word] = Field(default=_ABSENT)
    scalars: Literal["float32", "float16", "sign"]
    size: _Above0 = Field(default=_ABSENT)


class SeedHeader(BaseModel, extra="forbid"):
    """The whole header."""

    law: Literal["gaussian", "sphere", "rademacher", "rank_one", "torch_normal"]
    seeds: Literal["steps", "directions"]
    rule: RuleHeader
    frozen: _Digest = ""
    models: Annotated[list[ModelHeader], Field(min_length=1), FailFast()]


def read_header(packed: bytes, path: object) -> SeedHeader:
    """Return what a compressed header says. Raises DataError for a law or a rule of another
    version, ValueError for everything else that the schema does not take.
    """
    try:
        about = json.loads(_inflated(packed), parse_constant=_no_number, object_pairs_hook=_object)
        _require_known(about, path)
        return SeedHeader.model_validate(about)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{plain('.'.join(map(str, first['loc'])))}: {first['msg']}") from None
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None


def _inflated(packed: bytes) -> bytes:
    """Return a header as text. Raises ValueError for one that would fill the memory."""
    stream = zlib.decompressobj()
    text = stream.decompress(packed, min(_LONGEST, _SHORT + _GROWTH * len(packed)))
    if not stream.eof or stream.unused_data:
        raise ValueError("its header is no whole zlib stream, or too long")
    if sum(map(text.count, (b",", b":", b"[", b"{"))) > _VALUES + len(packed):
        raise ValueError("its header has too many values")
    return text


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table. Raises ValueError for a key that it has twice, which readers would take
    differently, or for more keys than the schema has.
    """
    table = dict(pairs)
    if len(table) < len(pairs) or len(table) > len(ModelHeader.model_fields):
        raise ValueError("a table has a key twice, or too many keys")
    return table


def _require_known(about: Any, path: object) -> None:
    """Raise DataError for a law or a rule of another version."""
    law, rule = (about.get(key) if isinstance(about, dict) else None for key in ("law", "rule"))
    if law not in LAWS:
        law = plain(str(law))[:200]
        raise DataError(
            f'{path}: its directions are of the law "{law}", which this version does not know. '
            f"{suggest(law, LAWS)}Laws: {', '.join(LAWS)}"
        )
    if isinstance(rule, dict) and (rule.get("name") not in OPTIMIZERS or rule.keys() - _OF_RULE):
        words = plain(
            ", ".join(str(word) for word in (rule.get("name"), *(rule.keys() - {"name"})))
        )
        raise DataError(f'{path}: has the rule "{words:.200}", which this version does not know')
