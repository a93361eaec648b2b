"""One step of Brent's method on many functions, compiled: callers go through
`raydpzv.privacy.brent`.
"""

from __future__ import annotations

from raydpzv.privacy import brent
from raydpzv.zo.kernel_cache import compiled

_step = compiled(brent.brent_step)


@compiled
def brent_step(state, of, xtol, rtol):  # type: ignore[no-untyped-def]
    """See `raydpzv.privacy.brent.brent_step`."""
    return _step(state, of, xtol, rtol)
