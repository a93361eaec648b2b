"""Whatever the shapes, a body is as long as it says and comes back the same."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.keys import Key
from raydpzv.wire.messages import GradientAndRows, PerturbedEmbeddings, Slopes, pack, unpack

SIZES = st.integers(0, 6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(p=SIZES, b=SIZES, e=SIZES, seed=st.integers(0, 100))
def test_bodies_of_any_shape(p: int, b: int, e: int, seed: int) -> None:
    generator = Key(seed).generator()
    ids = generator.integers(0, 2**31, b).astype(np.int32)
    plus, minus = generator.standard_normal((2, p, b, e)).astype(np.float32)
    upload = PerturbedEmbeddings(ids, plus, minus)
    assert upload.wire_bytes == len(upload.encode()) == 4 * b + 2 * p * b * e * 4
    back = unpack(pack(upload))
    assert isinstance(back, PerturbedEmbeddings)
    assert np.array_equal(back.ids, ids)
    assert np.array_equal(back.plus, plus)
    assert np.array_equal(back.minus, minus)
    slopes = Slopes(generator.standard_normal(p).astype(np.float32))
    assert slopes.wire_bytes == len(slopes.encode()) == 4 * p
    reply = GradientAndRows(generator.standard_normal((b, e)).astype(np.float32), ids)
    assert reply.wire_bytes == len(reply.encode()) == 4 * b * e + 4 * b
