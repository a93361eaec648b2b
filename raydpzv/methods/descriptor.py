"""Descriptors: all that the program knows of a method beside its two roles, in the method's own
file.

A method is a configuration (a frozen dataclass whose docstrings become the settings page), a
client, a server and a descriptor; `raydpzv.registry.METHODS` finds it by name. Everything else in
the program (scenario files, noise and its accounts, barriers, the ledger, resume, comparisons,
reports) asks the descriptor, never which method it is.
"""

# M clients, D rows, N held-out rows, d parameters

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import numpy as np

from raydpzv.data.batches import Batches
from raydpzv.data.horizontal import Partition
from raydpzv.engine.choice import ENGINES, Engine
from raydpzv.engine.objective import Objective
from raydpzv.engine.split_model import Bottom, BottomTraining, HeadSettings, Top
from raydpzv.errors import SpecError
from raydpzv.foreign import is_foreign, resolve
from raydpzv.keys import Key
from raydpzv.methods.replica import Replica, UpdateSource
from raydpzv.methods.roles import Client, ClientGroup, Server, VerticalServer
from raydpzv.methods.schedule import Schedule
from raydpzv.privacy.integer_release import (
    ClipOver,
    IntegerNoise,
    IntegerRelease,
    RecordedIntegers,
    SystemIntegers,
)
from raydpzv.privacy.mechanisms import (
    Address,
    GradientRelease,
    Noise,
    NoNoise,
    RecordedNoise,
    RowNoise,
    SeededNoise,
    SystemNoise,
)
from raydpzv.privacy.user_release import UserNoiseParts, UserPlan
from raydpzv.wire.messages import Body, Slopes
from raydpzv.zo.update import Rule

if TYPE_CHECKING:
    from raydpzv.ledger.ledger import Ledger


class MethodConfig:
    """Base of every method's settings: frozen dataclasses with a `name`, a default for each field
    and bounds.

    The docstring of the class and the one under each field are its lines in docs/settings.md.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "use_attribute_docstrings": True,
    }

    name: str
    on_record: ClassVar[Any] = None
    """Of settings that were read off a record (`raydpzv.methods.recorded_method`): their
    descriptor.
    """


C = TypeVar("C", bound=Any)
"""A method's configuration."""


_NO_STEPS = Schedule(0.0)


@dataclass(frozen=True)
class UpdateRule:
    """The law by which a zeroth-order method's (seed, scalar) pairs move a model. Methods with one
    keep a ledger.

    rule: law of the directions, momentum and its form; lr: step size of each update, and
    perturbations: pairs per upload, P, of vertical methods (horizontal servers write both into the
    ledger themselves). secret_seeds: clients shift every direction's seed by a secret of theirs.
    step_seeds: the ledger's seeds are those of steps, of which directions follow
    (`keys.perturbation_seeds`); else each is a direction's own. pool: how many seeds there are for
    all directions, so that the model follows from one sum each (`replica.PooledReplica`); 0: no
    pool. answer: of vertical methods, the message made of an upload's P scalars; gathered: uploads
    of one client that get one answer, Q;
    average: the share of the ledger's planned updates, the last ones, whose iterates' mean is the
    model (`raydpzv.methods.model_averaging`).
    """

    rule: Rule
    lr: Schedule = _NO_STEPS
    perturbations: int = 1
    secret_seeds: bool = False
    step_seeds: bool = False
    pool: int = 0
    answer: Callable[[np.ndarray], Body] = Slopes
    gathered: int = 1
    average: float | None = None


@dataclass(frozen=True)
class NoisePlan:
    """The place of a method's noise, and the facts of its releases that an account needs.

    on: the batch mean that the server releases, each row of the embeddings a client sends, or each
    row of the gradients
    the server sends. per_upload: releases per upload, P. hidden: there is state trained on records
    without noise that later releases depend on; head: how the server trains w_0 ("sgd", "zo" or
    "frozen"), for the wording. queries: rows may be asked for again. even_shares: every client
    makes equally many uploads. calibration: "counted" or "sampled" (rows). traffic: bytes of an
    upload and of its answer for a batch of B rows of width E, where an upload is more than the
    embeddings or an answer less than a row per record. proved_heads: ways to train w_0 under which
    all that persists at the server is a function of releases; methods without privacy.mode =
    "proved" have none. clip_over: what
    its clip bounds. gathered: uploads of one client that go into one of its releases, Q. proves:
    what is released with privacy.mode = "proved": sums of slopes; or of clients that never learn
    the head's gradient alone ("head"), or rows, each noised once and repeated, against the server
    and in no other mode ("rows").
    """

    on: Literal["mean", "embedding", "gradient"]
    per_upload: int = 1
    hidden: bool = True
    head: str = "sgd"
    queries: bool = False
    even_shares: bool = False
    calibration: str = "counted"
    traffic: Callable[[int, int], tuple[int, int]] | None = None
    proved_heads: tuple[str, ...] = ()
    clip_over: ClipOver | None = None
    gathered: int = 1
    proves: Literal["slopes", "head", "rows"] = "slopes"

    @property
    def memoized(self) -> bool:
        """Whether rows are noised once and repeated."""
        return self.proves == "rows"

    @property
    def head_alone(self) -> bool:
        """Whether the head's gradient is all that is released."""
        return self.proves == "head"


@dataclass(frozen=True)
class NoiseParts:
    """The resolved [privacy] of a run, for the party that adds noise.

    on: what the plan says is noised; "" where the scenario adds no noise. clip: two-sided threshold
    (mean) or norm of a row; sigma: standard deviation; recorded: releases to give out again in
    place of new ones; continues: what the record lacks is drawn anew. integers: of privacy.mode =
    "proved", in place of clip and sigma; gradient: of the head that is trained with noise of its
    own.
    """

    key: Key
    on: str = ""
    clip: float | None = None
    sigma: float = 0.0
    seeded: bool = False
    recorded: Mapping[Address, float] | None = None
    continues: bool = False
    integers: IntegerRelease | None = None
    gradient: GradientRelease | None = None

    @property
    def unit(self) -> float:
        """What a released number is multiplied by before it is used: 1, or V / (G B) of
        integers.
        """
        return self.integers.unit if self.integers else 1.0

    def of_integers(self) -> IntegerNoise:
        """Return the source of noise on released integers."""
        if self.recorded is None:
            return SystemIntegers()
        return RecordedIntegers(self.recorded, SystemIntegers() if self.continues else None)

    def of_means(self) -> Noise:
        """Return the source of noise on released means."""
        fresh: Noise = NoNoise()
        if self.on == "mean":
            fresh = SeededNoise(self.key) if self.seeded else SystemNoise()
        if self.recorded is None:
            return fresh
        return RecordedNoise(self.recorded, fresh if self.continues else None)

    def of_rows(self, place: Literal["embedding", "gradient"]) -> RowNoise | None:
        """Return the source of noise on rows of this kind, None if they get none."""
        if self.on != place:
            return None
        return SeededNoise(self.key) if self.seeded else SystemNoise()


@dataclass(frozen=True)
class ClientParts:
    """Parts of a vertical client: its bottom model by any engine, its D training rows, the key,
    noise.

    coins: the key of batches, which is another where they are secret; updates: planned uploads of
    all clients.
    """

    client: int
    bottom: Callable[[BottomTraining], Bottom]
    rows: int
    key: Key
    noise: NoiseParts
    coins: Key
    updates: int | None = None

    def batches(self, config: Any, *, shared: bool = False) -> Batches:
        """Return the client's batches; shared: the same rows for every client."""
        whose = "server" if shared else self.client
        return Batches(config.batches, config.batch, self.rows, self.coins / "batches" / whose)


@dataclass(frozen=True)
class ServerParts:
    """Parts of a vertical server: its top model with the labels by any engine, D rows, M clients,
    width E.

    coins: the key of batches, which is another where they are secret; updates: planned uploads.
    """

    top: Callable[[HeadSettings], Top]
    rows: int
    clients: int
    width: int
    key: Key
    noise: NoiseParts
    coins: Key
    updates: int | None = None

    def batches(self, config: Any) -> Batches:
        """Return the batches of a server that names the rows."""
        return Batches(config.batches, config.batch, self.rows, self.coins / "batches" / "server")


def _none(*of: Any) -> None:
    return None


def _one(config: Any, clients: int) -> int:
    return 1


def _no(config: Any) -> bool:
    return False


def _no_contradictions(config: Any, sections: Any) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class MethodDescriptor(Generic[C]):
    """What the program knows of every method beside its two roles.

    fits: Callable[[C, int], None] = _none
    """

    config: type[C]
    rule: Callable[[C], UpdateRule] | None = None
    users: Callable[[C], UserPlan | None] = _none
    contradictions: Callable[[C, Any], Iterator[str]] = _no_contradictions
    control: bool = False

    kind: ClassVar[str]
    one_model: ClassVar[bool]
    """Whether all clients train one model; else each holds a part of it."""


@dataclass(frozen=True, kw_only=True)
class VerticalMethod(MethodDescriptor[C]):
    """All that the program knows of a vertical method beside its two roles.

    noise: where noise of [privacy] falls, None for a method that adds none. barrier: for how many
    clients' uploads the server waits before it answers. With a rule, its clients can be rebuilt
    from the ledger (they are `Rebuildable`).
    fits: raises SpecError if the settings do not fit a client's bottom model with so many layers
    before the last.
    engines: those its roles run under; one that computes with torch itself takes ("torch",).
    unreplayable: why a finished run cannot be computed again from its record, or None.
    unrecorded: noise that no record keeps, so that a run neither continues nor is computed again,
    or None.
    """

    client: Callable[[ClientParts, C], Client]
    server: Callable[[ServerParts, C], VerticalServer]
    noise: Callable[[C], NoisePlan | None] = _none
    barrier: Callable[[C, int], int] = _one
    fits: Callable[[C, int], None] = _none
    unreplayable: Callable[[C], str | None] = _none
    unrecorded: Callable[[C], str | None] = _none
    engines: tuple[Engine, ...] = ENGINES

    kind = "vertical"
    one_model = False


@dataclass(frozen=True)
class HorizontalServerParts:
    """Parts of a horizontal server: each client's number of rows [M], the run's key, the model
    before round 1.

    initial: makes the parameters, float32 [d]; replica: makes a model that follows the ledger as
    the server does;
    ledger: of methods with a rule; users: of methods that release sums over users.
    """

    rows: np.ndarray
    key: Key
    initial: Callable[[], np.ndarray]
    replica: Callable[[], Replica]
    ledger: Ledger | None = None
    users: UserNoiseParts | None = None


@dataclass(frozen=True)
class ClientGroupParts:
    """Parts of a group of horizontal clients: one objective per thread, which rows are whose, the
    run's key.

    replica, updates: of methods with a rule, the model before round 1 and where the ledger's
    updates come from. users: of methods that release sums over users, how the silos release them;
    recorded: updates that were released before the run was taken up, which the ledger has and
    nobody draws noise for again.
    """

    objectives: Sequence[Objective]
    parts: Partition
    key: Key
    replica: Replica | None = None
    updates: UpdateSource | None = None
    users: UserNoiseParts | None = None
    recorded: int = 0


@dataclass(frozen=True, kw_only=True)
class HorizontalMethod(MethodDescriptor[C]):
    """All that the program knows of a horizontal method beside its two roles.

    With a rule a ledger is kept, and models are rebuilt from it; without one the server's `state()`
    is what a
    checkpoint keeps. pulls: clients wake by themselves and pull what they missed; else there are
    rounds. cohort: how many of M clients work at once. own_models: every client keeps a model of
    its own. drifts: those models leave the ledger's, so that nobody can rebuild them. own_keys:
    every client keeps keys in its process. agent: one client, no network.
    """

    server: Callable[[HorizontalServerParts, C], Server]
    clients: Callable[[ClientGroupParts, C], ClientGroup]
    pulls: Callable[[C], bool] = _no
    cohort: Callable[[C, int], int] = _one
    own_models: Callable[[C], bool] = _no
    drifts: Callable[[C], bool] = _no
    own_keys: Callable[[C], bool] = _no
    agent: bool = False

    kind = "horizontal"
    one_model = True


Method = VerticalMethod[Any] | HorizontalMethod[Any]


def checked(name: str, descriptor: Any) -> Method:
    """Return what the registry has under a method's name. Raises SpecError, which says what is
    wrong with it.
    """
    for complaint in _complaints(name, descriptor):
        raise SpecError(f'method "{name}": {complaint}')
    return cast(Method, descriptor)


def own_method(name: str) -> Method:
    """Return the descriptor that a user's "module:attribute" names. Raises SpecError."""
    return checked(name, resolve(name, "method.name"))


def _complaints(name: str, descriptor: Any) -> Iterator[str]:
    if not isinstance(descriptor, VerticalMethod | HorizontalMethod):
        yield (
            "wanted a VerticalMethod or a HorizontalMethod (raydpzv.methods.descriptor), got "
            f"{type(descriptor).__name__}; register the method's descriptor"
        )
        return
    yield from _of_config(name, descriptor.config)
    if not descriptor.one_model:
        yield from (
            f"config: wanted a setting {needed}, which all vertical methods have; extend Batched"
            for needed in ("batch", "batches", "coins")
            if needed not in descriptor.config.__dataclass_fields__
        )
    for field in dataclasses.fields(descriptor):
        value = getattr(descriptor, field.name)
        if (
            "Callable" in str(field.type)
            and not callable(value)
            and not (field.name == "rule" and value is None)
        ):
            yield (
                f"{field.name}: wanted a function, got {value!r:.60}; see the descriptor's "
                "docstring"
            )


def _of_config(name: str, config: Any) -> Iterator[str]:
    if not (
        isinstance(config, type)
        and issubclass(config, MethodConfig)
        and dataclasses.is_dataclass(config)
    ):
        shown = config.__name__ if isinstance(config, type) else repr(config)[:60]
        yield (
            f"config: wanted a frozen dataclass that extends MethodConfig, got {shown}; decorate "
            "the class"
        )
        return
    if not config.__dataclass_params__.frozen:
        yield (
            f"config: wanted a frozen dataclass, {config.__name__} is not; write "
            "@dataclass(frozen=True)"
        )
    # python -OO keeps no docstring
    if sys.flags.optimize < 2 and (config.__doc__ or "").startswith(f"{config.__name__}("):
        yield (
            f"config: wanted a docstring, {config.__name__} has none; its first line is the "
            "method's in lists"
        )
    yield from (
        f"{config.__name__}.{field.name}: wanted a default that does not change; give it one"
        for field in dataclasses.fields(config)
        if field.default is dataclasses.MISSING
    )
    given = getattr(config, "name", None)
    if given != name and not is_foreign(name):
        yield (
            f"{config.__name__}.name: wanted the registry's name {name!r} as default, got {given!r}"
        )
    try:
        field_docstrings(config)
    except SpecError as error:
        yield str(error)


@functools.cache
def field_docstrings(config: type) -> dict[str, str]:
    """Return the docstring under each field of a class and of its bases. Raises SpecError for a
    field without one.
    """
    from pydantic import TypeAdapter  # roles run without pydantic; lists of settings do not

    found: dict[str, str] = {}
    # pydantic leaves out those of bases
    for cls in filter(dataclasses.is_dataclass, reversed(config.__mro__)):
        fields = TypeAdapter(cls).json_schema().get("properties", {})
        found |= {
            name: field["description"] for name, field in fields.items() if "description" in field
        }
    for field in dataclasses.fields(config):
        if field.name not in found:
            raise SpecError(
                f"{config.__name__}.{field.name}: wanted a docstring under the field, its line in "
                "the docs"
            )
    return found
