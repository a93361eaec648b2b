"""Draws of a fixed key in place of the operating system's, for statistical tests of runs that
refuse seeded noise.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.privacy import integer_release, mechanisms

_DRAWN = integer_release.release_integers


@contextmanager
def keyed_noise(scale: float = 1.0) -> Iterator[None]:
    """Let every source of system noise draw from one key; integers get `scale` times the noise that
    receipts state.
    """
    generator = (Key(17) / "keyed noise").generator()

    def integers(
        sums_P: np.ndarray, how: integer_release.IntegerRelease, **rest: Any
    ) -> tuple[np.ndarray, mechanisms.Receipt]:
        drawn = replace(how, multiplier=how.multiplier * scale)
        released_P, receipt = _DRAWN(sums_P, drawn, source=generator.bytes, **rest)
        return released_P, receipt._replace(source="system", sigma=how.scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_release, "release_integers", integers)
        patch.setattr(mechanisms, "_system_uniform", lambda count: generator.uniform(size=count))
        patch.setattr(random, "_urandom", generator.bytes)
        yield
