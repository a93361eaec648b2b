from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from raydpzv.errors import TransportError
from raydpzv.wire import seeds, weights  # noqa: F401  (their bodies too)
from raydpzv.wire.frames import decode_body, encode_body
from raydpzv.wire.messages import _BODIES, Embeddings, pack

TYPES = st.sampled_from([np.float32, np.float64, np.int8, np.int32, np.int64, np.uint64])
ARRAYS = TYPES.flatmap(
    lambda dtype: st_numpy.arrays(
        dtype, st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    )
)
OURS = [
    _BODIES[name]
    for name in sorted(_BODIES)
    if _BODIES[name].__module__.startswith("raydpzv.wire.")
]
"""Those of the methods: other tests of the same process define bodies of their own."""
BODIES = st.sampled_from(OURS).flatmap(lambda body: st.builds(body, *[ARRAYS] * len(fields(body))))


@given(BODIES)
def test_every_body_comes_back_to_the_bit_and_costs_what_it_promised(body):
    found = decode_body(memoryview(encode_body(body)))
    assert pack(found) == pack(body)
    assert found.wire_bytes == body.wire_bytes
    assert not any(array.flags.writeable for array in found.arrays())
    assert encode_body(body).endswith(body.encode())


@given(BODIES, st.data())
def test_bytes_that_are_cut_off_or_too_many_are_refused(body, data):
    whole = encode_body(body)
    place = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:place], whole + b"\0"):
        with pytest.raises(TransportError, match="wanted a message's bytes"):
            decode_body(memoryview(wrong))


@given(st.binary(max_size=200))
def test_other_bytes_are_a_body_or_the_named_error(data):
    try:
        body = decode_body(memoryview(data))
    except TransportError:
        return
    assert type(body).__name__ in _BODIES


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"<f4", b"|O8", "do not travel"),
        ((2).to_bytes(8, "little"), (2**62).to_bytes(8, "little"), "wanted a message's bytes"),
    ],
    ids=["objects", "a shape that no memory holds"],
)
def test_a_type_or_shape_that_cannot_be_is_refused(old, new, words):
    body = Embeddings(np.zeros(1, np.int32), np.zeros((1, 2), np.float32))
    with pytest.raises(TransportError, match=words):
        decode_body(memoryview(encode_body(body).replace(old, new)))
