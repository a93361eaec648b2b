from __future__ import annotations

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.wire.messages import Body, pack, unpack
from raydpzv.wire.weights import QuantisedUpdate, SparseUpdate, Update, Weights

D, K = 11, 3


def floats(*shape: int) -> np.ndarray:
    return Key(0).generator().standard_normal(shape).astype(np.float32)


LEVELS = np.arange(-5, 6, dtype=np.int8)
PLACES = np.array([0, 4, 10], np.int32)
# an example of every body, and its bytes on the wire by hand
BODIES: list[tuple[Body, int]] = [
    (Weights(floats(D)), 4 * D),
    (Update(floats(D)), 4 * D),
    (QuantisedUpdate(LEVELS, floats(1)), D + 4),
    (QuantisedUpdate(LEVELS, floats(2)), D + 8),
    (SparseUpdate(PLACES, floats(K)), 8 * K),
]
SIZED = pytest.mark.parametrize(("body", "size"), BODIES, ids=lambda v: type(v).__name__)


@SIZED
def test_a_body_is_exactly_as_long_as_promised(body: Body, size: int) -> None:
    assert body.metered
    assert body.wire_bytes == len(body.encode()) == size


@SIZED
def test_a_packed_body_comes_back_the_same(body: Body, size: int) -> None:
    back = unpack(pack(body))
    assert type(back) is type(body)
    for name, array in vars(body).items():
        again = getattr(back, name)
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert again.tobytes() == array.tobytes()


def test_the_arrays_go_where_their_names_say() -> None:
    quantised, sparse = BODIES[2][0], BODIES[4][0]
    assert isinstance(quantised, QuantisedUpdate)
    assert isinstance(sparse, SparseUpdate)
    assert (quantised.levels.dtype, quantised.scale.dtype) == (np.int8, np.float32)
    assert (sparse.indices.dtype, sparse.values.dtype) == (np.int32, np.float32)
