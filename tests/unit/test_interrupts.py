import os
import signal
import threading

import pytest

from raydpzv.interrupts import interruptible

LINE = "stopped; continue with raydpzv.resume('runs/films')"


def interrupted(times: int, stop: threading.Event | None, reached: list[bool]) -> None:
    with interruptible(stop, LINE):
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        reached.append(True)


def test_the_first_one_lets_the_block_end_and_then_ends_the_cell(capsys):
    stop, reached = threading.Event(), []
    with pytest.raises(KeyboardInterrupt, match=r"continue with raydpzv\.resume"):
        interrupted(1, stop, reached)
    assert reached
    assert stop.is_set()
    assert "stopping after the update in progress" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("times", "own"), [(2, True), (1, False)])
def test_a_second_one_or_one_that_others_handle_interrupts_at_once(times, own):
    reached = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(times, threading.Event() if own else None, reached)
    assert not reached


def test_a_programs_own_handler_is_kept():
    stop, reached = threading.Event(), []
    before = signal.signal(signal.SIGINT, lambda number, frame: reached.append("program"))
    try:
        interrupted(1, stop, reached)
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached == ["program", True]
    assert not stop.is_set()


def test_a_stop_that_somebody_else_asked_for_is_no_interruption():
    stop = threading.Event()
    with interruptible(stop, LINE):
        stop.set()
