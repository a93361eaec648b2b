"""CPU seconds of private weights: Uldp-FL's Protocol 1 as printed, and this program's protocol.

Every user has records in every silo. Both open the same sum, which is checked; both use the same
arithmetic (gmpy2), masks and owner's encryption. Key generation is left out. `full exponent` is
what one power of full size takes in the
same run: seconds are to be read beside it (36 ms for 3072 bits where the targets were set).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import protocol_one
from common import environment, median, options, show, verdict, write

from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.secure.arithmetic import powmod
from raydpzv.secure.attempts import Attempt
from raydpzv.secure.paillier import new_key
from raydpzv.secure.private_server import PrivateServer
from raydpzv.secure.private_silo import PrivateSilo
from raydpzv.secure.set_up import SetUp
from raydpzv.secure.weighting import Weighting
from raydpzv.wire.secure_sums import PackedSum

CAP, SIGMA, TYPICAL_EXPONENT = 8, 5.0, 0.036


@dataclass(frozen=True)
class Case:
    """Sizes; printed: whether Protocol 1 is run too; ratio: printed over ours, at least; silo:
    seconds, at most.
    """

    users: int
    silos: int
    values: int
    bits: int
    sampling: bool
    printed: bool = False
    ratio: float | None = None
    silo: float | None = None

    @property
    def name(self) -> str:
        """What the table says."""
        sampled = ", sampling" if self.sampling else ""
        return (
            f"{self.users} users, {self.silos} silos, {self.values} values, {self.bits} "
            f"bits{sampled}"
        )


CASES = (
    Case(10, 3, 8, 3072, False, printed=True, ratio=30),
    Case(10, 3, 8, 3072, True, printed=True, ratio=10),
    Case(20, 5, 16, 3072, False, silo=0.12),
    Case(20, 5, 16, 3072, True, silo=0.2),
    Case(100, 5, 16, 3072, False),
    Case(100, 5, 16, 3072, True),
    Case(100, 5, 650, 2048, False),
)
QUICK = (Case(3, 2, 2, 512, False, printed=True), Case(3, 2, 2, 512, True, printed=True))


@dataclass
class Times:
    """CPU seconds of the server and of each silo."""

    server: float = 0.0
    silos: dict[int, float] = field(default_factory=dict)

    def of(self, party: int | None, work: Callable[[], Any]) -> Any:
        """Do a party's work (None: the server's), take its time and return what came of it."""
        start = time.process_time()
        found = work()
        spent = time.process_time() - start
        if party is None:
            self.server += spent
        else:
            self.silos[party] = self.silos.get(party, 0.0) + spent
        return found

    @property
    def silo(self) -> float:
        """The median silo's."""
        return median(list(self.silos.values()))

    @property
    def everybody(self) -> float:
        """All parties' together."""
        return self.server + sum(self.silos.values())


@dataclass(frozen=True)
class Turn:
    """One run of a case: the set-up, our round, the printed one's."""

    set_up: Times
    ours: Times
    printed: Times | None
    upload_bytes: int


def take_turn(case: Case, number: int) -> Turn:
    """Run a case once. Raises RunError if the two protocols do not open the same sum."""
    generator = (Key(5) / case.name / number).generator()
    weighting = Weighting(case.silos, case.users, CAP, case.bits, 16, case.values, SIGMA)
    counts = generator.integers(1, CAP, (case.silos, case.users), endpoint=True)
    coins = generator.random(case.users) < 0.5 if case.sampling else np.ones(case.users, bool)
    limit = weighting.limit // 8
    values = generator.integers(-limit, limit, (case.silos, case.users, case.values))
    scale = SIGMA * weighting.sensitivity / np.sqrt(case.silos)
    noise = np.rint(scale * generator.standard_normal((case.silos, case.values))).astype(np.int64)

    server = PrivateServer(weighting, sampling=case.sampling)
    silos = [PrivateSilo(s, weighting, counts[s]) for s in range(case.silos)]
    times, set_up = Times(), SetUp(server.phases)
    messages = times.of(None, set_up.begin)
    while messages is not None:
        answers = [
            times.of(s, lambda s=s, m=m: silos[s].receive(m)) for s, m in enumerate(messages)
        ]
        messages = times.of(None, lambda answers=answers: set_up.receive(answers))

    ours, attempt = Times(), Attempt(1, 0, tuple(range(case.silos)))
    sampled = ours.of(None, lambda: server.sampled(coins)) if case.sampling else None
    sums: list[PackedSum] = [
        ours.of(s, lambda s=s: silos[s].upload([values[s]], noise[s], attempt, sampled=sampled))
        for s in attempt.silos
    ]
    found = ours.of(None, lambda: server.total(sums))
    printed = _printed(case, counts, coins, values, noise, found) if case.printed else None
    return Turn(times, ours, printed, sums[0].wire_bytes)


def _printed(
    case: Case,
    counts: np.ndarray,
    coins: np.ndarray,
    values: np.ndarray,
    noise: np.ndarray,
    ours: np.ndarray,
) -> Times:
    """Protocol 1's round on the same values, and whether its sum is ours but for the dithers."""
    n_max = (
        protocol_one.N_MAX if case.bits >= 3072 else CAP * case.silos
    )  # lcm(1..2000) alone has 2,885 bits
    server, silos = protocol_one.set_up(counts, case.bits, n_max)
    times, everybody = Times(), range(case.silos)
    weights = times.of(None, lambda: server.encrypted(coins))
    uploads = [
        times.of(
            s,
            lambda s=s: silos[s].upload(
                weights, values[s].astype(float), noise[s].astype(float), everybody, 1
            ),
        )
        for s in everybody
    ]
    found = times.of(None, lambda: server.total(uploads))
    if not np.abs(found - ours).max() < case.silos:
        raise RunError(
            f"{case.name}: the two protocols open different sums, and their pace compares nothing"
        )
    return times


def full_exponent(bits: int) -> float:
    """Return the CPU seconds of one power of full size, the smallest of five."""
    public, taken = new_key(bits).public, []
    for turn in range(5):
        base = public.zero()
        start = time.process_time()
        powmod(base, public.modulus - turn, public.square)
        taken.append(time.process_time() - start)
    return min(taken)


def figures(case: Case, turns: list[Turn], exponent: float) -> dict[str, Any]:
    """Return a case's medians and targets."""
    silo = median([turn.ours.silo for turn in turns])
    found: dict[str, Any] = {
        "case": case.name,
        "set_up_silo": median([turn.set_up.silo for turn in turns]),
        "set_up_server": median([turn.set_up.server for turn in turns]),
        "silo": silo,
        "server": median([turn.ours.server for turn in turns]),
        "silo_in_full_exponents": silo / exponent,
        "full_exponent": exponent,
        "upload_bytes": turns[0].upload_bytes,
        "silo_target": case.silo,
        "ratio_target": case.ratio,
        "printed_silo": None,
        "printed_server": None,
        "ratio": None,
    }
    printed = [(turn.printed, turn.ours) for turn in turns if turn.printed is not None]
    if printed:
        found["printed_silo"] = median([theirs.silo for theirs, _ in printed])
        found["printed_server"] = median([theirs.server for theirs, _ in printed])
        found["ratio"] = median([theirs.everybody / ours.everybody for theirs, ours in printed])
    return found


def print_figures(found: list[dict[str, Any]]) -> None:
    """Print the table."""
    rows = []
    for f in found:
        ratio = "" if f["ratio"] is None else f"{f['ratio']:.0f}"
        targets = [
            "" if f["ratio"] is None else verdict(f["ratio"], f["ratio_target"]),
            verdict(f["silo"], f["silo_target"], at_most=True),
        ]
        printed = (
            "" if f["ratio"] is None else f"{f['printed_silo']:.2f} / {f['printed_server']:.2f}"
        )
        rows.append(
            [
                f["case"],
                f"{f['set_up_silo']:.2f} / {f['set_up_server']:.2f}",
                f"{f['silo']:.3f} / {f['server']:.3f}",
                f"{f['silo_in_full_exponents']:.1f}",
                printed,
                ratio,
                " ".join(filter(None, targets)),
            ]
        )
    columns = [
        "CPU s, silo / server",
        "set-up",
        "round",
        "in full exponents",
        "printed",
        "printed / ours",
        "target",
    ]
    show("Private weights", columns, rows)


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    cases, before = QUICK if chosen.quick else CASES, environment()
    found = []
    for case in cases:
        exponent = full_exponent(case.bits)
        turns = []
        for number in range(chosen.repeats or (1 if chosen.quick else 3)):
            turns.append(take_turn(case, number))
            print(
                f"{case.name}: silo {turns[-1].ours.silo:.3f} CPU s a round",
                file=sys.stderr,
                flush=True,
            )
        found.append(figures(case, turns, exponent))
    print_figures(found)
    write(
        "private_weighting",
        {
            "figures": found,
            "full_exponent_where_targets_were_set": TYPICAL_EXPONENT,
            "environment": before,
            "environment_after": environment(),
        },
        chosen.json,
    )


if __name__ == "__main__":
    main()
