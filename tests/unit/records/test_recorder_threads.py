"""A recorder that is drained while rows come in loses none and has each once."""

from __future__ import annotations

import threading

from raydpzv.records.recorder import Recorder


def test_rows_that_come_in_during_drains_are_there_once_and_in_order():
    recorder, found = Recorder(), []
    threads, each = 3, 4000

    def write(thread):
        record = recorder.writer("fault")
        for i in range(each):
            record((float(i), f"thread {thread}", "kind", f"{i}"))

    workers = [threading.Thread(target=write, args=(t,)) for t in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        found += recorder.drain()["fault"].to_pylist()
    found += recorder.drain()["fault"].to_pylist()
    for thread in range(threads):
        mine = [row for row in found if row["party"] == f"thread {thread}"]
        assert [row["message"] for row in mine] == [f"{i}" for i in range(each)]
        assert [row["time"] for row in mine] == [float(i) for i in range(each)]
    assert len(found) == threads * each
