"""What a wait costs on this machine now, as a measure for the waits of a run at the same time."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def overslept() -> Iterator[list[float]]:
    """Collect, while the block runs, by how many seconds plain sleeps of 10 ms are too long: with
    nothing else to do fractions of a millisecond, on a machine with more work than cores what its
    scheduler takes.
    """
    found: list[float] = []
    over = threading.Event()

    def nap() -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            found.append(time.monotonic() - began - 0.01)

    napping = threading.Thread(target=nap, daemon=True)
    napping.start()
    try:
        yield found
    finally:
        over.set()
        napping.join()
