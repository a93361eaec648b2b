"""Messages of methods that send seeds and scalars in place of models.

K local steps of P perturbations each; s missed steps with n scalars. A step's one seed is 8 bytes
on the wire, of which its P directions follow (`keys.perturbation_seeds`), a scalar 4.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from raydpzv.wire.messages import Body

REQUEST_BYTES = 8
"""What a client sends to say how far it has come: the version it holds, an int64. Its name in
records: PullRequest.
"""


class CatchUp(Body):
    """What a client missed, seeds uint64 [s] and scalars float32 [n], and the seeds it is to try,
    uint64 [K].
    """

    missed_seeds: np.ndarray
    missed_scalars: np.ndarray
    seeds: np.ndarray


class PulledModel(Body):
    """The model and V vectors kept beside it (momentum: 1) in place of what a client missed,
    float32 [1 + V, d].

    seeds: that the client is to try, uint64 [K]; none, if it chooses its own.
    """

    state: np.ndarray
    seeds: np.ndarray


class Scalars(Body):
    """A client's directional derivatives, float32 [K, P]."""

    values: np.ndarray


class AgentSeeds(CatchUp):
    """What an agent that is its own server sends itself: nothing travels."""

    metered: ClassVar[bool] = False


class AgentScalars(Scalars):
    """What an agent that is its own server answers itself: nothing travels."""

    metered: ClassVar[bool] = False


class Tail(Body):
    """What a client missed, seeds uint64 [s] and scalars float32 [n]; it chooses its own seed."""

    missed_seeds: np.ndarray
    missed_scalars: np.ndarray


class SeededScalars(Body):
    """A client's own seed, uint64 [1], and its directional derivatives along its directions,
    float32 [P].
    """

    seeds: np.ndarray
    values: np.ndarray


class MissedSigns(Body):
    """What a client missed, n signs, packed 8 to a byte, uint8 [⌈n/8⌉]; every client derives the
    seeds itself.
    """

    signs: np.ndarray


class Signs(Body):
    """Signs of a client's K·P directional derivatives, packed 8 to a byte, uint8 [⌈KP/8⌉]."""

    signs: np.ndarray


class PoolSums(Body):
    """The sums along all seeds of a pool, from which a client makes the model, float32 [n]."""

    sums: np.ndarray


class PoolScalars(Body):
    """A client's directional derivatives, float32 [K, P], and the places in the pool of their
    seeds, uint16 [K, P].
    """

    places: np.ndarray
    values: np.ndarray
