"""The kinds of numbers a setting can be, as annotations that need no validation library to be
imported.

Methods' configurations are plain dataclasses annotated with these; pydantic reads the bounds where
a scenario is validated (`raydpzv.config.toml`), and anyone who builds a configuration by hand needs
no pydantic at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

LEAST, MOST = 1e-9, 1e12
"""Bounds of every positive number: wide enough for any use, narrow enough that squares neither
vanish nor overflow.
"""


@dataclass(frozen=True)
class Bounds:
    """Limits of a number; None does not bind."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Add the limits to the schema of a number; infinity and NaN are no numbers here."""
        limits = {name: value for name, value in vars(self).items() if value is not None}
        finite = {"allow_inf_nan": False} if source is float else {}
        return {**handler(source), **limits, **finite}


Positive = Annotated[float, Bounds(gt=0, ge=LEAST, le=MOST)]
NotNegative = Annotated[float, Bounds(ge=0, le=MOST)]
Count = Annotated[int, Bounds(ge=1, le=10**15)]
Width = Annotated[int, Bounds(ge=1, le=10**6)]
Fraction = Annotated[float, Bounds(gt=0, lt=1)]
Share = Annotated[float, Bounds(gt=0, le=1)]
FractionOrNone = Annotated[float, Bounds(ge=0, lt=1)]
Momentum = Annotated[float, Bounds(ge=0, lt=1)]
Perturbations = Annotated[int, Bounds(ge=1, le=1024)]
Bits = Annotated[int, Bounds(ge=1, le=16)]
