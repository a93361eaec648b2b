"""Reader for CIFAR-10's binary version.

A record is 3073 bytes: the label, then 1024 red, 1024 green and 1024 blue pixels in row-major order. Source:
"The CIFAR-10 dataset", Krizhevsky, Nair, Hinton.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from raydpzv.data.files import missing, read_bytes, unreadable
from raydpzv.data.table import Split, Table

CLASSES = 10
RECORD = 1 + 3 * 32 * 32
_INNER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_TEST = ("test_batch.bin",)


def read_folder(folder: Path, home: str) -> Split:
    """Return the official training and test rows: x [D, 3, 32, 32] in 0..1, ten classes.

    The files lie in `folder` or in its sub-folder cifar-10-batches-bin. Raises DataError.
    """
    if (folder / _INNER).is_dir():
        folder = folder / _INNER
    lacking = [name for name in (*_TRAIN, *_TEST) if not (folder / name).is_file()]
    if lacking:
        raise missing('data set "cifar10" (binary version)', lacking, folder, home)
    return Split(_table(folder, _TRAIN, home), _table(folder, _TEST, home))


def _table(folder: Path, names: tuple[str, ...], home: str) -> Table:
    records = np.concatenate([_records(folder / name, home) for name in names])
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32)
    pixels /= 255
    return Table("cifar10", pixels, records[:, 0], CLASSES)


def _records(path: Path, home: str) -> np.ndarray:
    data = read_bytes(path, home)
    if not data or len(data) % RECORD:
        raise unreadable(path, f"its {len(data)} bytes are not whole records of {RECORD}", home)
    return np.frombuffer(data, np.uint8).reshape(-1, RECORD)
