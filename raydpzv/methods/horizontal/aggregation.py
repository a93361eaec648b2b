"""Aggregation of the silos' sums over users: in the open, masked, or by weights that nobody learns.

The roles of masked sums and of private weights are in `raydpzv.secure`, imported where they are
made: sums in the open need none of its libraries. A round is as many attempts as it takes until
nobody fails in one.
"""

# S silos, U users, D numbers of a release, A silos that take part

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from raydpzv.data.users import UserParts
from raydpzv.errors import RunError, SpecError
from raydpzv.methods.descriptor import MethodConfig
from raydpzv.methods.horizontal.dropout import Absences, of_absences, telling
from raydpzv.methods.horizontal.rounds import RoundServer
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.user_release import Integers, UserNoiseParts, UserPlan
from raydpzv.secure.attempts import Attempt
from raydpzv.settings.bounds import Bounds, Count
from raydpzv.wire.messages import Body
from raydpzv.wire.secure_sums import (
    SET_UP,
    DroppedOut,
    KeysLost,
    LateUpload,
    MaskedSum,
    PackedSum,
    SampledCatchUp,
    SampledModel,
    SampledWeights,
    UserSum,
)
from raydpzv.wire.seeds import CatchUp
from raydpzv.wire.weights import Weights

if TYPE_CHECKING:
    from raydpzv.secure.masked import MaskedSilo
    from raydpzv.secure.private_silo import PrivateSilo
    from raydpzv.secure.set_up import AgreeingSilo, SetUp
    from raydpzv.secure.weighting import Weighting
    from raydpzv.settings.sections_horizontal import HorizontalSections

B = TypeVar("B", bound=Body)
R = TypeVar("R", bound="AgreeingSilo")

_MOST = 10
"""Set-ups for one round, at most."""


@dataclass(frozen=True)
class ReleasedOnGrid(MethodConfig):
    """Settings of methods that release whole numbers of a grid."""

    value_bits: Annotated[int, Bounds(ge=4, le=20)] = 16
    """Bits b of the grid: a clipped vector is a whole-numbered one of norm at most 2^b - 1."""


@dataclass(frozen=True)
class SumsOverUsers(Absences, ReleasedOnGrid):
    """Settings of methods whose silos send sums over users."""

    weights: Literal["uniform", "records"] = "records"
    """Weight of a user in a silo: 1/S, or its share of the user's records, which anyone who weighs
    must know.
    """
    count_cap: Count | None = None
    """Records of a user in a silo that count for its weight, at most; left out: all."""
    sampling: Annotated[float, Bounds(gt=0, le=1)] = 1.0
    """Probability q with which each user takes part in a round, by a coin that all silos share."""
    aggregation: Literal["plain", "masked", "private_weights"] = "plain"
    """The server sees every silo's sum; their total alone; or that with weights by records that
    nobody learns.
    """
    key_bits: Literal[2048, 3072] = 3072
    """Bits of the key under which private weights are encrypted."""

    @property
    def plan(self) -> UserPlan:
        """The releases about users, for the account."""
        return UserPlan(
            "sum",
            weights=self.weights,
            sampling=self.sampling,
            aggregation=self.aggregation,
            fewest=self.fewest,
            late=self.dropout > 0 and self.late_uploads > 0,
            bits=self.value_bits,
        )


@dataclass(frozen=True)
class Aggregation:
    """The server's side: the sum of a round's bodies, in units of the grid; what is agreed on
    before the first round, if anything is; and the encrypted weights of a round's sample, where
    silos must not see who is in it.

    absences: whether silos may stay away, so that orders name who takes part; least: A, at the
    least.
    """

    total: Callable[[Sequence[Body]], npt.NDArray[np.int64] | npt.NDArray[np.float64]]
    set_up: SetUp | None = None
    sampled: Callable[[int], SampledWeights] | None = None
    absences: bool = False
    least: int = 1


def added(bodies: Sequence[Body]) -> Integers:
    """Return the sum of the silos' sums in the open, int64 [D]."""
    return cast(Integers, np.sum([body.values for body in all_of(UserSum, bodies)], axis=0))


def in_the_open(*, absences: bool = False) -> Aggregation:
    """Return what adds sums that anybody may see."""
    return Aggregation(added, absences=absences)


def aggregation_of(
    config: SumsOverUsers, noise: UserNoiseParts, silos: int, size: int
) -> Aggregation:
    """Return the server's side; size: D. Raises SpecError for settings under which sums do not
    fit.
    """
    if config.aggregation == "masked":
        from raydpzv.secure.masked import MaskedServer
        from raydpzv.secure.set_up import SetUp
        from raydpzv.secure.weighting import check_masked_range

        check_masked_range(noise.users, silos, config.value_bits, noise.release.multiplier)
        masked = MaskedServer(silos)
        return Aggregation(
            lambda bodies: masked.total(all_of(MaskedSum, bodies)),
            SetUp(masked.phases),
            absences=config.absences,
            least=config.least_silos,
        )
    if config.aggregation == "private_weights":
        from raydpzv.secure.private_server import PrivateServer
        from raydpzv.secure.set_up import SetUp

        sampling = config.sampling < 1
        private = PrivateServer(weighting_of(config, noise, silos, size), sampling=sampling)
        return Aggregation(
            lambda bodies: private.total(all_of(PackedSum, bodies)),
            SetUp(private.phases),
            (lambda round: private.sampled(users_drawn(noise, config.sampling, round)))
            if sampling
            else None,
            config.absences,
            config.least_silos,
        )
    return in_the_open(absences=config.absences)


def weighting_of(config: SumsOverUsers, noise: UserNoiseParts, silos: int, size: int) -> Weighting:
    """Return the sizes of private weights. Raises SpecError without a cap."""
    from raydpzv.secure.weighting import Weighting

    found = Weighting(
        silos,
        noise.users,
        config.count_cap or 1,
        config.key_bits,
        config.value_bits,
        size,
        noise.release.multiplier,
        noise.key.digest(),
    )
    if config.count_cap is None:
        raise SpecError(
            'method.count_cap: wanted with method.aggregation = "private_weights", whose Λ = '
            "lcm(1..cap × "
            f"{silos} silos) must fit a key of {config.key_bits} bits; the largest that fits is "
            f"{found.largest_cap()}"
        )
    return found


def users_drawn(noise: UserNoiseParts, rate: float, round: int) -> npt.NDArray[np.bool_]:
    """Return which users take part in a round, bool [U], each by a coin of its own of this rate."""
    if rate == 1:
        return np.ones(noise.users, bool)
    return cast(
        np.ndarray,
        (noise.coin("users of a round") / round).generator().random(noise.users) < rate,
    )


def of_aggregation(config: SumsOverUsers, sections: HorizontalSections) -> Iterator[str]:
    """Complain of settings that do not go with the aggregation."""
    if config.aggregation == "private_weights" and config.weights == "uniform":
        yield (
            'method.weights: wanted "records" with method.aggregation = "private_weights", got '
            '"uniform" (weights of 1/S are known to all; "masked" hides the silos\' sums)'
        )
    if config.aggregation != "plain" and sections.split.clients < 2:
        yield (
            f'split.clients: wanted at least 2 with method.aggregation = "{config.aggregation}", '
            "got "
            f"{sections.split.clients} (the sum over one silo is that silo's own)"
        )
    yield from of_absences(config, sections.split.clients, config.aggregation)


def all_of(kind: type[B], bodies: Sequence[Body]) -> list[B]:
    """Return the bodies of a round, which are of one kind. Raises TypeError if one is not."""
    for body in bodies:
        if not isinstance(body, kind):
            raise TypeError(
                f"a server of users' sums cannot serve {type(body).__name__}, it wants "
                f"{kind.__name__}"
            )
    return [body for body in bodies if isinstance(body, kind)]


class AgreeingRounds(RoundServer):
    """Rounds before which silos and server agree on keys; once more when a silo has lost its own,
    and the round anew.

    Who takes part in an attempt at a round is fixed before it. If a silo fails in it, another
    follows without it, while what it had to send may still come. A subclass sets `aggregation`, and
    passes a round's orders through `_hidden`.
    """

    aggregation: Aggregation
    _agreed = False
    _begun = 0  # set-ups until the last round was closed
    _attempt: Attempt | None = None  # at the round that is open

    def first_orders(self) -> Sequence[Order]:
        """Return the orders of the next round, or of what comes before it."""
        set_up, round = self.aggregation.set_up, self._round + 1
        if set_up is not None and not self._agreed:
            self._cohort = list(range(self._cohorts.clients))
            return self._asked(set_up.begin())
        return self._tried(
            self._attempt or Attempt(round, 0, tuple(self._cohorts.draw(round).tolist()))
        )

    def _tried(self, attempt: Attempt, late: Sequence[int] = ()) -> list[Order]:
        """The orders of an attempt; late: silos that failed in the one before it, and may still
        send what they had.
        """
        self._attempt = attempt
        self._cohort = sorted({*attempt.silos, *late})
        orders = self._orders(attempt.round, list(attempt.silos))
        return orders + [
            Order(silo, LateUpload(), attempt.round, start_immediately=True) for silo in late
        ]

    def _hidden(self, orders: Sequence[Order], round: int) -> list[Order]:
        """The orders of a round as the aggregation wants them."""
        aggregation = self.aggregation
        bodies = {id(order.body): order.body for order in orders}
        if aggregation.sampled:
            sent = aggregation.sampled(round)
            bodies = {at: _with_sample(body, sent) for at, body in bodies.items()}
        if aggregation.absences:
            assert self._attempt is not None
            bodies = {at: telling(body, self._attempt) for at, body in bodies.items()}
        told = [order._replace(body=bodies[id(order.body)]) for order in orders]
        # a silo that has lost its keys, or drops out, answers with nothing, whatever size was
        # promised
        return (
            told
            if aggregation.set_up is None
            else [order._replace(upload_bytes=None) for order in told]
        )

    def _complete(self, uploads: Sequence[Upload]) -> Sequence[Order]:
        bodies, set_up = [upload.body for upload in uploads], self.aggregation.set_up
        if set_up is not None:
            if not self._agreed:
                messages = set_up.receive(bodies)
                self._agreed = messages is None
                return self.first_orders() if messages is None else self._asked(messages)
            if any(isinstance(body, KeysLost) for body in bodies):
                self._agreed = False
                return self.first_orders()
            self._begun = set_up.begun
        attempt = self._attempt
        assert attempt is not None
        # others' are of the one before
        current = [upload for upload in uploads if upload.client in attempt.silos]
        if failed := [upload.client for upload in current if isinstance(upload.body, DroppedOut)]:
            again = attempt.again(failed, self.aggregation.least)
            return self._tried(again, [silo for silo in failed if silo not in again.silos])
        self._attempt = None
        return super()._complete(current)

    def _asked(self, messages: Sequence[Body]) -> list[Order]:
        set_up = self.aggregation.set_up
        if set_up is not None and set_up.begun - self._begun > _MOST:
            raise RunError(
                f"round {self._round + 1} wants keys that last, but silos lost theirs in {_MOST} "
                "set-ups in a row: see what ends their processes, or where else their work is done"
            )
        return [
            Order(silo, body, self._round + 1, start_immediately=True)
            for silo, body in zip(self._cohort, messages, strict=True)
        ]


class SecureSilos(Generic[R]):
    """The silos' sides in one process, each made when it is first needed; size: D, always the
    same.
    """

    def __init__(self, config: SumsOverUsers, noise: UserNoiseParts, parts: UserParts) -> None:
        self._config, self._noise, self._parts = config, noise, parts
        self._roles: dict[int, R] = {}
        self._unsent: dict[int, Upload] = {}

    def answer(self, order: Order, size: int) -> Upload | None:
        """Return the answer to a message beside the rounds: of the set-up, or for a late upload;
        None for any other.
        """
        silo, body = order.client, order.body
        if isinstance(body, LateUpload):
            return self._unsent.pop(silo, None) or Upload(silo, order.round - 1, DroppedOut())
        if not isinstance(body, SET_UP):
            return None
        return Upload(silo, order.round - 1, self.role(silo, size).receive(body))

    def sent(self, made: Upload) -> Upload:
        """Return what comes of an upload: itself, or nothing where the silo fails; then it may come
        late.
        """
        attempt, config, key = made.attempt, self._config, self._noise.key
        assert attempt is not None
        self._unsent.pop(made.client, None)
        if isinstance(made.body, KeysLost):
            return made._replace(releases=(), attempt=None)  # a silo without keys releases nothing
        if not config.fails(made.client, attempt, key):
            return made
        if config.sends_late(made.client, attempt, key):
            self._unsent[made.client] = made
        return Upload(made.client, made.step, DroppedOut())

    def role(self, silo: int, size: int) -> R:
        """Return a silo's side."""
        if silo not in self._roles:
            self._roles[silo] = self._made(silo, size)
        return self._roles[silo]

    def _made(self, silo: int, size: int) -> R:
        raise NotImplementedError


class MaskedSilos(SecureSilos["MaskedSilo"]):
    """Silos that mask their sums."""

    def upload(self, made: Upload, attempt: Attempt) -> Upload:
        """Return an upload whose sum is masked; made: with the noised sum in the open."""
        (body,) = all_of(UserSum, [made.body])
        return made._replace(
            body=self.role(made.client, len(body.values)).upload(body.values, attempt)
        )

    def _made(self, silo: int, size: int) -> MaskedSilo:
        from raydpzv.secure.masked import MaskedSilo

        return MaskedSilo(silo, self._noise.key.digest())


class PrivateSilos(SecureSilos["PrivateSilo"]):
    """Silos that weigh their users by counts that they alone know."""

    def upload(
        self,
        silo: int,
        attempt: Attempt,
        size: int,
        integers: Iterable[tuple[Integers, int]],
        sampled: SampledWeights | None,
    ) -> Upload:
        """Return a silo's weighted, noised sum.

        integers: of all its users in blocks, int64 [m, D], each with how many of its vectors were
        not finite. Who takes part the server alone knows.
        """
        nonfinite = 0

        def blocks() -> Iterator[Integers]:
            nonlocal nonfinite
            for block, bad in integers:
                nonfinite += bad
                yield block

        address, pairs, beyond = (
            (silo, attempt.round, attempt.number),
            len(self._parts.pairs(silo)),
            math.sqrt(size),
        )
        parties, noise = len(attempt.silos), self._noise
        share, receipt = noise.share(
            size, parties, address, pairs=pairs, nonfinite=0, beyond=beyond
        )
        dither = noise.random_bytes("dither", address)
        body = self.role(silo, size).upload(
            blocks(), share, attempt, sampled=sampled, dither=dither
        )
        releases = (Release(0, math.nan, receipt._replace(nonfinite=nonfinite)),) if receipt else ()
        return Upload(silo, attempt.round - 1, body, releases=releases)

    def _made(self, silo: int, size: int) -> PrivateSilo:
        from raydpzv.secure.private_silo import PrivateSilo

        pairs = self._parts.pairs(silo)
        counts_U = np.zeros(self._parts.users, np.int64)
        counts_U[pairs.users] = pairs.counts
        weighting = weighting_of(self._config, self._noise, self._parts.clients, size)
        return PrivateSilo(silo, weighting, counts_U)


def sample_of(order: Order) -> SampledWeights | None:
    """Return the encrypted weights of the round's sample, if an order has them."""
    body = order.body
    return (
        SampledWeights(body.weights, body.coins)
        if isinstance(body, SampledModel | SampledCatchUp)
        else None
    )


def _with_sample(body: Body, sent: SampledWeights) -> Body:
    if isinstance(body, CatchUp):
        return SampledCatchUp(
            body.missed_seeds, body.missed_scalars, body.seeds, sent.weights, sent.coins
        )
    assert isinstance(body, Weights)
    return SampledModel(body.values, sent.weights, sent.coins)
