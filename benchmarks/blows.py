"""What benchmarks that strike processes share: how many blows, from which on, and what comes of
them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from common import options, write

QUICK_KILLS = 4


class Blow(Protocol):
    """What is done (`act`) to which process (`end`)."""

    @property
    def act(self) -> str:
        """How it is struck."""
        ...

    @property
    def end(self) -> str:
        """Whose process it is."""
        ...


class Outcome(Protocol):
    """How a run that was struck ended, and what of that is wrong."""

    @property
    def blow(self) -> Blow:
        """What was done."""
        ...

    @property
    def ended(self) -> str:
        """In which of the ways that are known."""
        ...

    @property
    def wrong(self) -> Sequence[str]:
        """In a line each."""
        ...


def chosen_blows(description: str, kills: int, cases: Sequence[str] = ()) -> argparse.Namespace:
    """Read the command line; kills: blows where none are asked for; cases: of which one may be
    asked for alone.
    """
    parser = options(description)
    if cases:
        parser.add_argument("--case", choices=cases, help="strike this one alone")
    parser.add_argument("--kills", type=int, metavar="N", help=f"blows, {kills} unless told")
    parser.add_argument(
        "--begin", type=int, default=0, metavar="N", help="leave the first N blows out"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    chosen = parser.parse_args()
    chosen.kills = chosen.kills or (QUICK_KILLS if chosen.quick else kills)
    return chosen


def conclude(
    name: str,
    chosen: argparse.Namespace,
    outcomes: Sequence[Outcome],
    rows: Sequence[Sequence[str]],
    figures: Mapping[str, Any],
) -> None:
    """Write what came of blows; rows: one for each. Raises SystemExit if anything is wrong."""
    counts = Counter((o.blow.act, o.blow.end, o.ended) for o in outcomes)
    wrong = [f"{row}: {w}" for row, o in zip(rows, outcomes, strict=True) for w in o.wrong]
    found = {
        "kills": chosen.kills,
        "seed": chosen.seed,
        "outcomes": [
            {"act": a, "end": e, "ended": r, "runs": n} for (a, e, r), n in sorted(counts.items())
        ],
        "wrong": wrong,
    }
    write(name, found | figures, chosen.json)
    if wrong:
        raise SystemExit(f"{len(wrong)} things are wrong")
