"""Work measured in CPU seconds of this process, and only ever against other work of the same run:
neither a slow machine nor a busy one moves the ratio.
"""

import time
from collections.abc import Callable, Iterable

import pyarrow as pa


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time that the work takes, all threads together."""
    began = time.process_time()
    work()
    return time.process_time() - began


def row_loop_seconds(tables: Iterable[pa.Table]) -> float:
    """CPU time of the least that a Python loop over the tables' rows does: it makes an object of
    each row.
    """
    return cpu_seconds(
        lambda: [
            None for table in tables for batch in table.to_batches(50_000) if batch.to_pylist()
        ]
    )
