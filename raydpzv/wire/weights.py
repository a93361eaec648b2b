"""Messages of methods that send whole models one way and updates of them the other.

d parameters, k of them kept, s scales.
"""

from __future__ import annotations

import numpy as np

from raydpzv.wire.messages import Body


class Weights(Body):
    """The model a client is to start from, float32 [d]; one object may go to many clients: never
    change it.
    """

    values: np.ndarray


class Update(Body):
    """What a client's local steps changed, float32 [d]."""

    values: np.ndarray


class QuantisedUpdate(Body):
    """An update as levels int8 [d] in -127..127 and the magnitude that level 127 stands for,
    float32 [s].
    """

    levels: np.ndarray
    scale: np.ndarray


class SparseUpdate(Body):
    """The entries of an update that were kept: places int32 [k], ascending, and values float32
    [k].
    """

    indices: np.ndarray
    values: np.ndarray
