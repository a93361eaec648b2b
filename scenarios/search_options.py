"""What the command line says of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from raydpzv.search.space import Dimension

DRAWS = 10
"""Draws where something in the space is random and no number is given."""


@dataclass(frozen=True)
class SearchOptions:
    """What the command line says of a search; None: left to the scenario or the space."""

    samples: int | None
    metric: str | None
    scheduler: str
    grace: int | None
    epsilon: float | None
    draw_seed: int
    actors: bool = False
    search: str = "random"
    interval: int | None = None
    quantile: float | None = None

    def draws(self, space: Sequence[Dimension]) -> int:
        """Return how many draws a search makes that does not learn, at each point of its grid."""
        return self.samples or (DRAWS if any(d.kind != "grid" for d in space) else 1)

    def words(self) -> Iterator[str]:
        """Yield the words of the command line that ask for this, but for those that nobody has to say."""
        usual = SearchOptions(None, None, "none", None, None, 0)
        for field in fields(self):
            value = getattr(self, field.name)
            if value != getattr(usual, field.name):
                yield f"--{field.name.replace('_', '-')}"
                if value is not True:
                    yield str(value)
