"""Reader for objects seen from several sides, such as ModelNet40's twelve views: one NumPy archive (.npz)."""

from __future__ import annotations

from pathlib import Path

from raydpzv.data.files import one_line
from raydpzv.data.npz import numbered, read_arrays
from raydpzv.data.public_list import PublicList
from raydpzv.data.table import Split, Table


def read_npz(file: Path, labels: PublicList | None = None, strangers: tuple[int, ...] = ()) -> Table | Split:
    """Return the arrays x [D, V, ...] and y [D] of an archive; labels, strangers: of `raydpzv.data.npz.numbered`.

    x_test and y_test are test rows if they are there. Values stay as they are whatever the arrays' type, which is a
    property of the file: one record would rescale all others by it. Raises DataError.
    """
    arrays = read_arrays(file, range(3, 65), "views want [D, V, ...], one axis more than a flat table")
    name = one_line(file.name)
    y, classes = numbered(arrays, labels, strangers, name)
    train = Table(name, arrays["x"], y["y"], classes)
    if "x_test" not in arrays:
        return train
    return Split(train, Table(name, arrays["x_test"], y["y_test"], classes))
