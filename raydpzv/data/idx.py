"""Readers for the IDX files of MNIST and its drop-in replacements, compressed by gzip or not.

An IDX file is big-endian: two zero bytes, a type code (8: unsigned byte), the number of dimensions, one
32-bit length a dimension, then the values in row-major order. Source: "The MNIST database", LeCun, Cortes,
Burges.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from raydpzv.data.files import missing, read_bytes, unreadable
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError

CLASSES = 10
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_UNSIGNED_BYTE = 8


def read_folder(name: str, folder: Path, home: str) -> Split:
    """Return the official training and test rows: x [D, 1, H, W] in 0..1, ten classes.

    Each of the four files may end in .gz, and may have a dot in place of its second hyphen. Raises DataError.
    """
    found = {wanted: _find(folder, wanted) for wanted in _FILES}
    lacking = [f"{wanted}[.gz]" for wanted, path in found.items() if path is None]
    if lacking:
        raise missing(f'data set "{name}"', lacking, folder, home)
    train_x, train_y, test_x, test_y = (
        read_idx(path, 3 if "images" in wanted else 1, home) for wanted, path in found.items() if path
    )
    return Split(_table(name, train_x, train_y), _table(name, test_x, test_y))


def read_idx(path: Path, dimensions: int, home: str) -> np.ndarray:
    """Return an IDX file's uint8 array; DataError unless type, dimensions and length fit its header."""
    data = _decompressed(path, home)
    head = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if data[:4] != magic or len(data) < head:
        raise unreadable(
            path,
            f"it begins with {data[:4].hex() or 'nothing'}, an IDX header of {head} bytes with {magic.hex()}",
            home,
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", dimensions, offset=4))
    promised = math.prod(shape)
    if len(data) - head != promised:
        raise unreadable(
            path,
            f"its header promises {shape}, that is {promised} bytes, and {len(data) - head} follow",
            home,
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def _find(folder: Path, wanted: str) -> Path | None:
    dotted = wanted.replace("-idx", ".idx")
    names = (wanted, f"{wanted}.gz", dotted, f"{dotted}.gz")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _decompressed(path: Path, home: str) -> bytes:
    data = read_bytes(path, home)
    if not data.startswith(b"\x1f\x8b"):  # by content: some tools unpack and keep the name
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise unreadable(path, f"its gzip data is damaged or cut off ({error})", home) from error


def _table(name: str, images_DHW: np.ndarray, labels_D: np.ndarray) -> Table:
    if len(images_DHW) != len(labels_D):
        raise DataError(
            f'data set "{name}" has a file of {len(images_DHW)} images and one of {len(labels_D)} labels: '
            "take both from the same release"
        )
    return Table(name, images_DHW[:, None].astype(np.float32) / np.float32(255), labels_D, CLASSES)
