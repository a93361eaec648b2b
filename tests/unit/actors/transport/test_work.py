import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transport import frames, work
from actors.transport.sockets import MOST
from actors.transport.work import known_tail
from raydpzv.errors import Diverged, Lost, RunError, TransportError
from raydpzv.methods.roles import Metrics, Order, Release, Sync, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.secure.attempts import Attempt
from raydpzv.wire.messages import pack
from raydpzv.wire.seeds import CatchUp, Scalars

NUMBERS = st.floats(allow_nan=True)
SIZES = st.integers(0, 5)


def catch_up(pairs, seeds):
    return CatchUp(
        np.arange(pairs, dtype=np.uint64),
        np.ones(pairs, np.float32),
        np.arange(seeds, dtype=np.uint64),
    )


def without_pairs(body):
    return CatchUp(body.missed_seeds[:0], body.missed_scalars[:0], body.seeds)


def scalars(count):
    return Scalars(np.arange(count, dtype=np.float32).reshape(1, count))


def frame(parts):
    return memoryview(bytearray(b"".join(parts)))


def plain(message):
    """An order or upload with its body as bytes, to compare; NaN equal to NaN."""
    return repr(message._replace(body=pack(message.body)))


@given(
    st.lists(
        st.tuples(st.integers(0, 99), SIZES, SIZES, st.none() | st.integers(0, 2**40)), max_size=4
    ),
    st.booleans(),
)
def test_orders_arrive_as_they_were_sent_or_without_history(drawn, lean):
    shared = catch_up(3, 1)
    orders = [
        Order(
            client, body, 7, sync=None if missed is None else Sync(missed, 1, 2, bool(missed % 2))
        )
        for client, pairs, seeds, missed in drawn
        for body in (catch_up(pairs, seeds), shared)
    ]
    found = work.read_task(frame(work.work(orders, lean=lean)))
    wanted = [order._replace(start_immediately=True) for order in orders]
    if lean:
        wanted = [order._replace(body=without_pairs(order.body), sync=None) for order in wanted]
    assert [plain(order) for order in found.orders] == [plain(order) for order in wanted]
    assert found.probe == ""


def test_a_body_that_clients_share_travels_and_is_read_once():
    body = catch_up(1000, 1)
    many = work.work([Order(client, body) for client in range(50)], lean=False)
    one = work.work([Order(0, body)], lean=False)
    assert sum(map(len, many)) < sum(map(len, one)) + 50 * 64
    orders = work.read_task(frame(many)).orders
    assert len({id(order.body) for order in orders}) == 1
    assert orders[0].body.missed_seeds.flags.aligned


@given(
    st.lists(
        st.tuples(
            st.integers(0, 99),
            SIZES,
            NUMBERS,
            st.booleans(),
            st.none() | st.builds(Attempt, SIZES, SIZES, st.lists(SIZES, max_size=3).map(tuple)),
            st.floats(0, 10) | st.just(math.nan),
        ),
        max_size=4,
    )
)
def test_uploads_arrive_as_they_were_sent(drawn):
    receipt = Receipt("gaussian rows", "system", 0.1, 2.0, 1.0, 64, 60, 0)
    sent = [
        Upload(
            client,
            3,
            scalars(count),
            loss,
            (Release(0, loss, receipt, 3),) if released else (),
            attempt=attempt,
            cpu=cpu,
        )
        for client, count, loss, released, attempt, cpu in drawn
    ]
    found = work.read_uploads(frame(work.uploads(sent)))
    assert [plain(upload) for upload in found] == [plain(upload) for upload in sent]
    assert all(upload.body.values.flags.aligned for upload in found)


def test_results_of_probes_arrive_as_they_were_sent():
    scored = Metrics(0.5, math.inf, 0.1, None, 0.25, validation=Metrics(1 / 3, 2.5, 0.125))
    state = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert work.read_probed("evaluate", frame(work.probed("evaluate", scored))) == scored
    assert work.read_probed("drift", frame(work.probed("drift", (1 / 3, 0.0)))) == (1 / 3, 0.0)
    found = work.read_probed("state", frame(work.probed("state", state)))
    assert found.dtype == np.float32
    assert np.array_equal(found, state)
    for name in work.PROBES:
        asked = work.read_task(frame(work.probe(name, 12)))
        assert (asked.probe, asked.version, asked.orders) == (name, 12, ())


def test_an_order_without_its_history_keeps_its_size_on_the_wire():
    order = Order(3, catch_up(4, 1), 9)
    (found,) = work.read_task(frame(work.tail(order))).orders
    assert repr(found) == repr(known_tail(3, 9, 56))
    assert found.body.wire_bytes == order.body.wire_bytes == 56


def test_an_error_takes_the_place_of_a_result():
    raised = frame(frames.failed(Diverged("not finite")))
    with pytest.raises(Diverged, match="not finite"):
        work.read_task(raised)
    for found in (work.read_uploads(raised), work.read_probed("state", raised)):
        assert isinstance(found, Diverged)


def test_an_actor_that_a_host_lost_is_named_at_the_other_end():
    found = work.read_probed(
        "drift", frame(frames.failed(Lost("the ledger actor was lost", "0a0b")))
    )
    assert isinstance(found, Lost)
    assert (str(found), found.actor) == ("the ledger actor was lost", "0a0b")


def test_a_frame_that_is_cut_off_is_the_named_error():
    state = work.probed("state", np.ones((1, 3), np.float32))
    whole = {
        work.read_task: work.work(
            [Order(1, catch_up(2, 1), 1), Order(2, catch_up(1, 1), 1)], lean=False
        ),
        work.read_uploads: work.uploads([Upload(1, 0, scalars(2)), Upload(2, 0, scalars(1))]),
        lambda data: work.read_probed("state", data): state,
    }
    for read, parts in whole.items():
        sent = frame(parts)
        read(sent)
        for size in range(len(sent)):
            with pytest.raises(TransportError):
                read(sent[:size])


@given(st.binary(max_size=100), st.sampled_from([16, 17, 18, 19, 0, 1, 2]))
def test_other_bytes_are_the_named_error_or_what_they_say(data, kind):
    reads = (
        work.read_task, work.read_uploads, *(lambda f, n=name: work.read_probed(n, f) for name in work.PROBES)
    )  # fmt: skip
    for read in reads:
        try:
            read(memoryview(bytes((kind,)) + data))
        except RunError:  # TransportError, or what the bytes say that the server raised
            continue


def test_the_longest_frame_follows_from_the_orders():
    promised = [Order(client, catch_up(0, 1), upload_bytes=100) for client in range(3)]
    uploads = [Upload(order.client, 0, scalars(25)) for order in promised]
    assert sum(map(len, work.uploads(uploads))) < work.most_bytes(promised) < MOST
    assert work.most_bytes([*promised, Order(3, catch_up(0, 1))]) == MOST
