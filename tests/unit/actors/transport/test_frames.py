import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport import frames
from raydpzv.errors import InputError, Lost, RunError, TransportError
from raydpzv.methods.roles import Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.sim.interfaces import Activation
from raydpzv.sim.wall import Answer
from raydpzv.wire.messages import Embeddings, Slopes

NUMBERS = st.floats(allow_nan=True)


def same(a, b):
    """Equal, NaN to NaN too."""
    return repr(a) == repr(b)


@given(
    st.integers(0, 2**31 - 1), st.integers(0, 2**40), NUMBERS, NUMBERS, st.booleans(), st.booleans(),
    st.lists(st.tuples(st.integers(0, 9), NUMBERS, st.none() | st.integers(0, 99)), max_size=3),
)  # fmt: skip
def test_an_upload_arrives_as_it_was_sent(client, step, number, applied, late, is_query, drawn):
    receipt = Receipt("gaussian rows", "system", 0.1, 2.0, 1.0, 64, 60, 0)
    releases = tuple(
        Release(p, v, receipt, s, np.arange(p) if p % 2 else None) for p, v, s in drawn
    )
    sent = Upload(client, step, Slopes(np.ones(2, np.float32)), number, releases, is_query)
    how = Activation(number, applied, late, number)
    frame = b"".join(frames.exchange(sent, how, applied))
    found = frames.read_request(memoryview(frame))
    assert found.upload is not None
    assert same((found.how, found.seconds, found.upload), (how, applied, sent))
    assert same(frames.load_upload(frames.dump_upload(sent)), sent)
    for size in range(len(frame)):
        with pytest.raises(TransportError):
            frames.read_request(memoryview(frame[:size]))


@given(
    st.booleans(),
    st.integers(0, 99),
    st.integers(0, 2**40),
    st.none() | st.integers(0, 2**40),
    st.integers(0, 2**40),
)
def test_an_answer_arrives_as_it_was_sent(over, client, round, promised, version):
    order = Order(
        client,
        Slopes(np.ones(2, np.float32)),
        round,
        True,
        False,
        promised,
        version=version,
        asks=over,
    )
    for answer in (Answer(order, over), Answer(None, over)):
        assert same(frames.read_answer(memoryview(b"".join(frames.answered(answer)))), answer)


def test_a_servers_error_arrives_as_it_was_raised():
    for raised in (Lost("the ledger is gone", "the ledger"), InputError("wanted one, got two")):
        with pytest.raises(type(raised), match=str(raised)) as caught:
            frames.read_answer(memoryview(b"".join(frames.failed(raised))))
        assert getattr(caught.value, "actor", "") == getattr(raised, "actor", "")


@given(st.binary(max_size=100))
def test_other_bytes_are_the_named_error_or_what_they_say(data):
    for read in (frames.read_request, frames.read_answer, frames.read_done):
        try:
            read(memoryview(data))
        except RunError:  # TransportError, or the error that the bytes say the server raised
            continue


@pytest.mark.parametrize("rows", [0, 1, 20_000])
def test_a_promised_size_leaves_room_for_receipts_of_all_rows(rows):
    """The least body a row can have, an embedding of one number, beside the longest row number in
    its receipt.
    """
    ids = np.arange(2**31 - 1 - rows, 2**31 - 1, dtype=np.int32)
    body = Embeddings(ids, np.ones((rows, 1), np.float32))
    receipt = Receipt("gaussian rows", "system", 0.1, 2.0, 1.0, rows, rows, 0)
    sent = Upload(2**31 - 1, 2**40, body, 0.1, (Release(0, math.nan, receipt, 2**40, ids),))
    size = sum(map(len, frames.exchange(sent, Activation(1.0, 1.25, True, 1.5), 0.1)))
    assert body.wire_bytes < size <= frames.most_bytes([body.wire_bytes, 0])
    assert rows < 2 or size > frames.OVERHEAD + body.wire_bytes, (
        "control: the body's own bytes would not do"
    )
