"""One's own arrays: x and y, and perhaps x_test and y_test, in one NumPy archive (.npz)."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Container, Iterable
from pathlib import Path

import numpy as np

from raydpzv.data.files import no_file, one_line
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError

_NAMES = ("x", "y", "x_test", "y_test")
_STRANGER = "!a label that no other row has"
_TRUTH = {"true": True, "false": False}
_BOOLEANS = {"1": "true", "0": "false"}
_NEITHER = "\0true or false"
"""A boolean to a list of texts: no text of the list."""


def read_views(request: Request) -> Table | Split:
    """Return objects seen from several sides, such as ModelNet40's twelve views: x [D, V, ...] and
    y [D].

    Values stay as they are whatever the arrays' type, which is a property of the file: one record
    would rescale all others by it. Raises DataError.
    """
    return _tables(request, range(3, 65), "views want [D, V, ...], one axis more than a flat table")


def read_tokens(request: Request) -> Table | Split:
    """Return token ids x [D, L] and y [D], as some tokenizer made them (0: padding).

    L is the file's. Raises DataError, also for ids outside 0..V-1.
    """
    form = "token ids want [D, L], one row of ids a text"
    return _tables(request, (2,), form, request.data.vocabulary)


def _tables(
    request: Request, axes: Container[int], form: str, vocabulary: int | None = None
) -> Table | Split:
    """Return an archive's rows; x_test and y_test are test rows if they are there.

    axes: how many axes x may have; form: the same in words, for the message.
    """
    arrays, name = _arrays(request.file), one_line(request.file.name)
    _check(name, arrays, axes, form)
    y, classes = numbered_labels(arrays, request, name)
    train = Table(name, arrays["x"], y["y"], classes, vocabulary=vocabulary)
    if "x_test" not in arrays:
        return train
    return Split(train, Table(name, arrays["x_test"], y["y_test"], classes, vocabulary=vocabulary))


def numbered_labels(
    arrays: dict[str, np.ndarray], request: Request, name: str
) -> tuple[dict[str, np.ndarray], int]:
    """Return the labels of both parts by their array's name, int [D] each, and how many classes
    there are.

    Labels of a public list are numbered by their place in it, each by itself. Without a list they
    are numbers already, and there is one class more than the largest. Raises DataError.
    """
    known = request.labels
    labels = {part: array for part, array in arrays.items() if part in _NAMES[1::2]}
    if request.strangers:
        labels["y"] = labels["y"].astype(object)
        labels["y"][list(request.strangers)] = _stranger(labels.values(), listed=known is not None)
    if known is None:
        labels = {part: found.astype(np.int64) for part, found in labels.items()}
        for part, found in labels.items():
            if found.max() >= len(labels["y"]):
                raise DataError(
                    f'array {part} of "{name}" has the label {found.max()}, more than there are '
                    "rows: number the "
                    "classes 0, 1, 2, ... without gaps, or list them in data.classes"
                )
        return labels, 1 + max(int(found.max()) for found in labels.values())
    placed = {}
    for part, found in labels.items():
        number: dict[tuple[type, object], int] = {}
        place = [number.setdefault((type(each), each), len(number)) for each in found.tolist()]
        texts = (as_written(each, type(known.values[0])) for _, each in number)
        placed[part] = np.array(known.places(texts))[place]
        if (outside := np.flatnonzero(placed[part] < 0)).size:
            raise known.refusal(found[outside[0]], int(outside[0]), f'array {part} of "{name}"')
    return placed, len(known)


def _stranger(labels: Iterable[np.ndarray], *, listed: bool) -> object:
    """Return a label that no record has, and of another type where a list says what labels are."""
    return _STRANGER if listed else 1 + max(int(found.max()) for found in labels)


def as_written(label: object, kind: type) -> str:
    """Return a label as a file would write it for a public list of values of a kind.

    It depends on the label alone. An array of booleans that gets a number, or a text, makes 1 of
    true, or "True": so these are one label to a list of numbers or of booleans.
    """
    if kind is str:
        return _NEITHER if isinstance(label, bool) else str(label)
    if isinstance(label, str):
        label = _TRUTH.get(label.strip().lower(), label)
    if kind is bool:
        return _BOOLEANS.get(str(label).strip(), str(label))
    return str(int(label)) if isinstance(label, bool) else str(label)


def _arrays(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise no_file(file)
    if not zipfile.is_zipfile(file):
        raise DataError(
            one_line(
                f'"{file}" is not an .npz archive: write it with numpy.savez(file, x=..., y=...)'
            )
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
            f'"{name}" lacks the arrays {", ".join(lacking)}; it has '
            f"{', '.join(arrays) or 'none'}: save x "
            "and y, and either both or none of x_test and y_test"
        )
    for array in wanted[::2]:
        if arrays[array].ndim not in axes:
            raise DataError(
                f'array {array} of "{name}" has the shape {arrays[array].shape}: {form}'
            )
    for array in wanted[1::2]:
        if (
            arrays[array].ndim != 1
            or arrays[array].dtype.kind not in "iu"
            or not arrays[array].size
        ):
            raise DataError(
                f'array {array} of "{name}" is {arrays[array].dtype} of shape '
                f"{arrays[array].shape}: save "
                "one whole number a row, counted from 0"
            )
