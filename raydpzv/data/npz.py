"""One's own arrays: x and y, and perhaps x_test and y_test, in one NumPy archive (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Container
from pathlib import Path

import numpy as np

from raydpzv.data.files import no_file, one_line
from raydpzv.errors import DataError

_NAMES = ("x", "y", "x_test", "y_test")


def read_arrays(file: Path, axes: Container[int], form: str) -> dict[str, np.ndarray]:
    """Return the archive's arrays x [D, ...] and y [D], and both or none of x_test and y_test.

    axes: how many axes x may have; form: the same in words, for the message. Raises DataError.
    """
    arrays = _arrays(file)
    _check(one_line(file.name), arrays, axes, form)
    return arrays


def count_classes(arrays: dict[str, np.ndarray]) -> int:
    """Return one more than the largest label of both parts."""
    return 1 + max(int(labels.max()) for name, labels in arrays.items() if name in _NAMES[1::2])


def _arrays(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise no_file(file)
    if not zipfile.is_zipfile(file):
        raise DataError(
            one_line(f'"{file}" is not an .npz archive: write it with numpy.savez(file, x=..., y=...)')
        )
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            one_line(f'"{file}" cannot be read: {error}: save plain number arrays again')
        ) from error


def _check(name: str, arrays: dict[str, np.ndarray], axes: Container[int], form: str) -> None:
    wanted = _NAMES if "x_test" in arrays or "y_test" in arrays else _NAMES[:2]
    lacking = [array for array in wanted if array not in arrays]
    if lacking:
        raise DataError(
            f'"{name}" lacks the arrays {", ".join(lacking)}; it has {", ".join(arrays) or "none"}: save x '
            "and y, and either both or none of x_test and y_test"
        )
    for array in wanted[::2]:
        if arrays[array].ndim not in axes:
            raise DataError(f'array {array} of "{name}" has the shape {arrays[array].shape}: {form}')
    for array in wanted[1::2]:
        if arrays[array].ndim != 1 or arrays[array].dtype.kind not in "iu" or not arrays[array].size:
            raise DataError(
                f'array {array} of "{name}" is {arrays[array].dtype} of shape {arrays[array].shape}: save '
                "one whole number a row, counted from 0"
            )
        if arrays[array].max() >= len(arrays["y"]):
            raise DataError(
                f'array {array} of "{name}" has the label {arrays[array].max()}, more than there are rows: number '
                "the classes 0, 1, 2, ... without gaps"
            )
