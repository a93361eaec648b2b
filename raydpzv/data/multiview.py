"""Reader for objects seen from several sides, such as ModelNet40's twelve views: one NumPy archive (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from raydpzv.data.files import no_file, one_line
from raydpzv.data.table import Split, Table, stratified_split
from raydpzv.errors import DataError
from raydpzv.keys import Key

_NAMES = ("x", "y", "x_test", "y_test")


def read_npz(file: Path, test_fraction: float, key: Key) -> Split:
    """Return the arrays x [D, V, ...] and y [D] (0..classes-1) of an archive.

    With x_test and y_test these are the test rows, else a stratified share is drawn. uint8 values are taken
    for pixels and divided by 255. Raises DataError.
    """
    arrays = _arrays(file)
    name = one_line(file.name)
    _check(name, arrays)
    classes = 1 + max(int(labels.max()) for array, labels in arrays.items() if array.startswith("y"))
    train = Table(name, _unit_pixels(arrays["x"]), arrays["y"], classes)
    if "x_test" not in arrays:
        return stratified_split(train, test_fraction, key)
    return Split(train, Table(name, _unit_pixels(arrays["x_test"]), arrays["y_test"], classes))


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


def _check(name: str, arrays: dict[str, np.ndarray]) -> None:
    wanted = _NAMES if "x_test" in arrays or "y_test" in arrays else _NAMES[:2]
    lacking = [array for array in wanted if array not in arrays]
    if lacking:
        raise DataError(
            f'"{name}" lacks the arrays {", ".join(lacking)}; it has {", ".join(arrays) or "none"}: save x '
            "and y, and either both or none of x_test and y_test"
        )
    for array in wanted[::2]:
        if arrays[array].ndim < 3:
            raise DataError(
                f'array {array} of "{name}" has the shape {arrays[array].shape}: views want [D, V, ...], one '
                "axis more than a flat table"
            )
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


def _unit_pixels(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x
