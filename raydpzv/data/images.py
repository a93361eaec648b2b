"""Readers for published pictures: IDX files (MNIST and its replacements) and CIFAR-10's binary
version.

An IDX file is big-endian: two zero bytes, a type code (8: unsigned byte), the number of dimensions,
one 32-bit length a dimension, then the values in row-major order. It may be compressed by gzip.
Source: "The MNIST database", LeCun, Cortes, Burges. A record of CIFAR-10 is 3073 bytes: the label,
then 1024 red, 1024 green and 1024 blue pixels in row-major order. Source: "The CIFAR-10 dataset",
Krizhevsky, Nair, Hinton.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from raydpzv.data.files import missing, read_bytes, unreadable
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError

CLASSES = 10
_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_UNSIGNED_BYTE = 8
_CIFAR_RECORD = 1 + 3 * 32 * 32
_CIFAR_FOLDER = "cifar-10-batches-bin"
_CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_TEST = ("test_batch.bin",)


def read_idx_folder(request: Request) -> Split:
    """Return the official training and test rows: x [D, 1, H, W] in 0..1, ten classes.

    Each of the four files may end in .gz, and may have a dot in place of its second hyphen. Raises
    DataError.
    """
    name, home = request.data.source, request.home
    found = {wanted: _find(request.folder, wanted) for wanted in _IDX_FILES}
    lacking = [f"{wanted}[.gz]" for wanted, path in found.items() if path is None]
    if lacking:
        raise missing(f'data set "{name}"', lacking, request.folder, home)
    train_x, train_y, test_x, test_y = (
        _read_idx(path, 3 if "images" in wanted else 1, home)
        for wanted, path in found.items()
        if path
    )
    return Split(_idx_table(name, train_x, train_y), _idx_table(name, test_x, test_y))


def _read_idx(path: Path, dimensions: int, home: str) -> np.ndarray:
    """Return an IDX file's uint8 array; DataError unless type, dimensions and length fit its
    header.
    """
    data = _decompressed(path, home)
    head = 4 + 4 * dimensions
    magic = bytes((0, 0, _UNSIGNED_BYTE, dimensions))
    if data[:4] != magic or len(data) < head:
        raise unreadable(
            path,
            f"it begins with {data[:4].hex() or 'nothing'}, an IDX header of {head} bytes with "
            f"{magic.hex()}",
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


def read_cifar10(request: Request) -> Split:
    """Return the official training and test rows: x [D, 3, 32, 32] in 0..1, ten classes.

    The files lie in the folder or in its sub-folder cifar-10-batches-bin. Raises DataError.
    """
    folder, home = request.folder, request.home
    if (folder / _CIFAR_FOLDER).is_dir():
        folder = folder / _CIFAR_FOLDER
    lacking = [name for name in (*_CIFAR_TRAIN, *_CIFAR_TEST) if not (folder / name).is_file()]
    if lacking:
        raise missing('data set "cifar10" (binary version)', lacking, folder, home)
    return Split(_cifar_table(folder, _CIFAR_TRAIN, home), _cifar_table(folder, _CIFAR_TEST, home))


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


def _idx_table(name: str, images_DHW: np.ndarray, labels_D: np.ndarray) -> Table:
    if len(images_DHW) != len(labels_D):
        raise DataError(
            f'data set "{name}" has a file of {len(images_DHW)} images and one of {len(labels_D)} '
            "labels: "
            "take both from the same release"
        )
    return Table(name, images_DHW[:, None].astype(np.float32) / np.float32(255), labels_D, CLASSES)


def _cifar_table(folder: Path, names: tuple[str, ...], home: str) -> Table:
    records = np.concatenate([_cifar_records(folder / name, home) for name in names])
    pixels = records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32)
    pixels /= 255
    return Table("cifar10", pixels, records[:, 0], CLASSES)


def _cifar_records(path: Path, home: str) -> np.ndarray:
    data = read_bytes(path, home)
    if not data or len(data) % _CIFAR_RECORD:
        raise unreadable(
            path, f"its {len(data)} bytes are not whole records of {_CIFAR_RECORD}", home
        )
    return np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_RECORD)
