"""What a server hands to its driver: rows in their order, each checkpoint after its rows."""

import threading

import pytest

from actors.server_actor import PieceQueue
from raydpzv.records.checkpoint import Checkpoint
from tests.helpers.numbered_rows import evaluations, numbers


def drained(queue: PieceQueue, rest: int | None = None) -> list[tuple[list[int], int | None]]:
    """Return the numbers of rows and the round of the checkpoint of each piece; rest: the number of
    a later row.
    """
    pieces = queue.drain(None if rest is None else lambda: evaluations(rest))
    return [(numbers(rows["evaluation"]), found.round if found else None) for rows, found in pieces]


def test_later_rows_stay_until_the_checkpoint_before_them_is_taken() -> None:
    queue = PieceQueue(waits=False)
    queue.hold(evaluations(1))
    assert drained(queue, rest=2) == [], "the checkpoint is being taken"
    assert queue.write_checkpoint(Checkpoint(7, {}, None)) == 0
    queue.settle()
    assert drained(queue, rest=2) == [([1], 7), ([2], None)]
    assert drained(queue) == []


def test_a_checkpoint_that_breaks_off_loses_no_rows() -> None:
    queue = PieceQueue(waits=False)
    queue.hold(evaluations(1))
    queue.close()
    assert drained(queue, rest=2) == [([1], None), ([2], None)]


@pytest.mark.parametrize("waits", [False, True])
def test_a_run_waits_until_the_driver_has_written_its_checkpoint(*, waits: bool) -> None:
    queue, settled = PieceQueue(waits=waits), threading.Event()

    def keep() -> None:
        queue.hold(evaluations(1))
        queue.write_checkpoint(Checkpoint(7, {}, None))
        queue.settle()
        settled.set()

    thread = threading.Thread(target=keep)
    thread.start()
    if waits:
        queue.next_piece(20.0)
        assert drained(queue) == [([1], 7)]
        assert not settled.is_set()
        queue.written()
    thread.join(20.0)
    assert settled.is_set()
