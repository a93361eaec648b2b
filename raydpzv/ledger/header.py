"""The header: the models that a ledger's updates move, its file, and the start of the digest
chain.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError, suggest
from raydpzv.files import read_small
from raydpzv.ledger.files import damaged

DIRECTION_SEEDS, STEP_SEEDS = 1, 2
"""Format numbers, in header.json and in the digest: a seed for each direction, or for each step.
The seeds of a step's directions follow from it (`raydpzv.keys.perturbation_seeds`). Segments and
snapshots have the same layout."""
LAWS = ("gaussian", "sphere", "rademacher", "rank_one")
OPTIMIZERS = ("sgd", "signsgd", "adam", "svrg")
_OPTIMIZER_FIELDS = ("optimizer", "beta2", "v0", "epoch")


@dataclass(frozen=True)
class Model:
    """One model that the updates move: d parameters, and their values before update 1."""

    parameters: int
    layout: str  # sha256 over the parameters' names and shapes
    initial: str  # sha256 of x_0
    # name, shape, factors of step size and smoothing radius; () if unused
    tensors: tuple[tuple[Any, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise InputError(
                f"parameters: wanted at least 1, got {self.parameters}; give the model's size"
            )
        object.__setattr__(self, "tensors", tuple(map(_tensor, self.tensors)))


def _tensor(found: Sequence[Any]) -> tuple[Any, ...]:
    """Return a parameter's entry in the one form that equal headers have."""
    name, shape, lr, smoothing = found
    return str(name), tuple(map(int, shape)), float(lr), float(smoothing)


@dataclass(frozen=True)
class Header:
    """Everything that a rebuild needs besides the entries."""

    models: Mapping[str, Model]  # "shared", or "client 0", "client 1", ...
    law: str  # of the directions: gaussian, sphere, rademacher or rank_one
    momentum: float = 0.0
    damped: bool = False  # m <- beta m + (1 - beta) g, DeComFL Eq. (8), in place of m <- beta m + g
    shifted: bool = (
        False  # directions' seeds are shifted by a secret of the clients before use, DeComFL A.3
    )
    step_seeds: bool = False  # a seed is a step's, the same in its entries; else each entry's own
    optimizer: str = "sgd"  # sgd, signsgd, adam or svrg, see `raydpzv.zo.update.Rule`
    beta2: float = 0.0  # of adam
    v0: float = 0.0  # of adam
    epoch: int = 0  # of svrg, in updates
    # seeds of which all directions are, see `raydpzv.methods.replica.PooledReplica`; 0: no pool
    pool: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise InputError('models: wanted at least one, got none; give {"shared": Model(...)}')
        if self.law not in LAWS:
            raise InputError(
                f"law: no law {self.law!r}. {suggest(self.law, LAWS)}Laws: {', '.join(LAWS)}."
            )
        if not (math.isfinite(self.momentum) and 0 <= self.momentum < 1):
            raise InputError(
                f"momentum: wanted a number in [0, 1), got {self.momentum}; 0 is plain descent"
            )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"optimizer: no optimizer {self.optimizer!r}. {suggest(self.optimizer, OPTIMIZERS)}"
                f"Optimizers: {', '.join(OPTIMIZERS)}."
            )
        # one form, so that equal headers have equal bytes
        object.__setattr__(self, "models", dict(self.models))
        object.__setattr__(self, "momentum", float(self.momentum))

    @property
    def format(self) -> int:
        """The number of this ledger's format."""
        return STEP_SEEDS if self.step_seeds else DIRECTION_SEEDS

    def start(self) -> bytes:
        """Return the first value of the digest chain: sha256 over the header and the format
        number.
        """
        return hashlib.sha256(_canonical(_content(self))).digest()

    def require(self, expect: Header, where: str) -> None:
        """Raise InputError that names the first field in which this header is not the expected
        one.
        """
        if self.format != expect.format:
            raise InputError(
                f"{where}: {_FORMATS[self.format]}, wanted {_FORMATS[expect.format]}; {_WRITER}"
            )
        mine, wanted = dict(_fields(self)), dict(_fields(expect))
        for name in dict.fromkeys((*wanted, *mine)):
            if mine.get(name) != wanted.get(name):
                raise InputError(
                    f"{where}: the ledger of another model: {name} is {mine.get(name)!r}, wanted "
                    f"{wanted.get(name)!r}; give the ledger of this model, or begin a new one"
                )


@dataclass(frozen=True)
class LogSettings:
    """Settings of the log; they are no part of the digest."""

    segment: int = 1024  # updates per segment
    fsync: bool = False  # every append survives a power loss, not only the death of the process

    def __post_init__(self) -> None:
        if self.segment < 1:
            raise InputError(f"segment: wanted at least 1 update per segment, got {self.segment}")


def encode(header: Header, settings: LogSettings) -> bytes:
    """Return the bytes of header.json, which end with the sha256 of the rest."""
    content = {**_content(header), "settings": asdict(settings)}
    return _canonical({**content, "sha256": hashlib.sha256(_canonical(content)).hexdigest()})


def decode(path: Path) -> tuple[Header, LogSettings]:
    """Read header.json; InputError for another format, DataError if a single bit of it has
    changed.
    """
    try:
        data = read_small(path)
        content = json.loads(data)
        number = content["format"]
        if number in _FORMATS or not _sealed(content):
            models = {
                name: Model(**model) for name, model in content["header"].pop("models").items()
            }
            header = Header(models, **content["header"], step_seeds=number == STEP_SEEDS)
            settings = LogSettings(**content["settings"])
            if encode(header, settings) == data:
                return header, settings
            raise ValueError("its sha256 does not fit its content")
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})", 0) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InputError) as error:
        raise damaged(path, f"is damaged ({' '.join(str(error).split())[:80]})", 0) from None
    known = " or ".join(map(str, _FORMATS))
    raise InputError(f"{path}: a ledger of format {number}, wanted {known}; {_WRITER}")


_FORMATS = {
    DIRECTION_SEEDS: "a ledger of format 1 (a seed for each direction)",
    STEP_SEEDS: "a ledger of format 2 (a seed for each step)",
}
_WRITER = "use the version that wrote it, or begin a new one"


def _content(header: Header) -> dict[str, Any]:
    """Return number and fields. Older ledgers lack what the number implies and what sgd has not,
    and keep digests.
    """
    fields = asdict(header)
    del fields["step_seeds"]
    for model in fields["models"].values():
        if not model["tensors"]:
            del model["tensors"]
    if header.optimizer == "sgd":
        for name in _OPTIMIZER_FIELDS:
            del fields[name]
    if not header.pool:
        del fields["pool"]
    return {"format": header.format, "header": fields}


def _sealed(content: dict[str, Any]) -> bool:
    """Return whether the content has its own sha256, so that an unknown format is one and not
    damage.
    """
    rest = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(_canonical(rest)).hexdigest() == content.get("sha256")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False).encode()


def _fields(header: Header) -> Iterator[tuple[str, object]]:
    for name, model in header.models.items():
        yield from ((f"models[{name!r}].{field}", value) for field, value in asdict(model).items())
    own = ("law", "momentum", "damped", "shifted", *_OPTIMIZER_FIELDS, "pool")
    yield from ((field, getattr(header, field)) for field in own)
