"""Small raw files of every reader, and files that differ from them by one legal change of one
record.
"""

# D records, F numbers of each

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from raydpzv.keys import Key
from tests.helpers import dataset_files

ROWS, NUMBERS, CLASSES, USERS, SILOS = 60, 4, 3, 8, 3
CHANGED = 3
"""The record that a change is made to."""
ALONE = 5
"""The one record of its user."""
LABELS, CITIES = ("ill", "well", "other"), ("Oslo", "Rome", "other")
STRANGE = "!hiv"
"""A label and a category that no other record has; it is sorted before all others."""


@dataclass(frozen=True)
class Raw:
    """Records before they are written. x: float [D, F]; labels, cities, users, silos, times:
    [D].
    """

    x: np.ndarray
    labels: list[str]
    cities: list[str]
    users: np.ndarray
    silos: np.ndarray
    times: np.ndarray

    def with_row(self, row: int, **cells: object) -> Raw:
        """Return the same with other cells in one row."""
        found = {}
        for name, value in cells.items():
            column = getattr(self, name).copy()
            column[row] = value
            found[name] = column
        return replace(self, **found)

    def with_user(self, user: int, **cells: object) -> Raw:
        """Return the same with other cells in all rows of a user."""
        found = self
        for row in np.flatnonzero(self.users == user).tolist():
            found = found.with_row(row, **cells)
        return found


def held_out() -> np.ndarray:
    """Return the rows that a plain split of the scenarios' seed tests on, which no account
    charges.
    """
    order = (Key(0) / "data" / "split" / "plain split").generator().permutation(ROWS)
    return order[: ROWS // 5]


def raw() -> Raw:
    """User 0 has several training records in every silo, the last one a single record, both none
    held out.
    """
    draws = (Key(8) / "raw").generator()
    users = draws.permutation(np.arange(ROWS) % (USERS - 1))
    users[held_out()] = np.maximum(users[held_out()], 1)
    users[ALONE] = USERS - 1
    return Raw(
        draws.standard_normal((ROWS, NUMBERS)),
        [LABELS[row % 2] for row in range(ROWS)],
        [CITIES[row % 2] for row in draws.permutation(ROWS)],
        users,
        draws.permutation(np.arange(ROWS) % SILOS),
        draws.exponential(1.0, ROWS),
    )


Change = Callable[[Raw], Raw]
CHANGES: dict[str, Change] = {
    "value": lambda r: r.with_row(CHANGED, x=-50 * r.x[CHANGED]),
    "label": lambda r: r.with_row(
        CHANGED, labels=LABELS[(LABELS.index(r.labels[CHANGED]) + 1) % 2]
    ),
    "new label": lambda r: r.with_row(CHANGED, labels=STRANGE),
    "category": lambda r: r.with_row(
        CHANGED, cities=CITIES[(CITIES.index(r.cities[CHANGED]) + 1) % 2]
    ),
    "new category": lambda r: r.with_row(CHANGED, cities=STRANGE),
    "missing cell": lambda r: r.with_row(CHANGED, x=np.nan),
}
"""What one record may have otherwise."""


def in_two_minds(found: Raw) -> Raw:
    """Return the records with those of user 0 in silo 0 against all of its others."""
    for row in np.flatnonzero(found.users == 0).tolist():
        found = found.with_row(
            row, x=1e3 if found.silos[row] == 0 else -1e3, labels=LABELS[0], cities=CITIES[0]
        )
    return found


USER_CHANGES: dict[str, tuple[int, Change]] = {
    "values": (0, lambda r: r.with_user(0, x=1e3, labels=LABELS[0], cities=CITIES[1], times=9.0)),
    "new labels": (0, lambda r: r.with_user(0, labels=STRANGE)),
    "new categories": (0, lambda r: r.with_user(0, cities=STRANGE)),
    "one record": (0, lambda r: r.with_row(int(np.flatnonzero(r.users == 0)[0]), x=-1e3)),
    "one silo": (0, lambda r: r.with_user(0, silos=1, x=1e3)),
    "two minds": (0, lambda r: in_two_minds(r)),
    "only record": (
        USERS - 1,
        lambda r: r.with_row(ALONE, x=1e3, labels=STRANGE, silos=(r.silos[ALONE] + 1) % SILOS),
    ),
}
"""What one user may have otherwise, and which user it is."""


@dataclass(frozen=True)
class Reader:
    """How a reader's files are written, by `write(folder, change)`.

    settings: of a scenario that reads them, "{file}" for the path that `write` returns; vertical:
    those that a vertical scenario needs beside them; refused: changes that the reader refuses, and
    what it says; absent: changes that its files cannot have, and why.
    """

    write: Callable[[Path, str], Path]
    settings: tuple[str, ...]
    vertical: tuple[str, ...] = ("split.how=columns", "model.embedding=3")
    users: tuple[str, ...] = ("users={count=8}",)
    refused: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    def given(self, path: Path) -> list[str]:
        return [text.replace("{file}", str(path)) for text in self.settings]

    def changes(self) -> list[str]:
        """What a file of this reader may have otherwise and still be read."""
        return [name for name in CHANGES if name not in {**self.refused, **self.absent}]


def columns_of(found: Raw) -> dict[str, list[object]]:
    numbers = {
        f"x{i}": [None if np.isnan(v) else v for v in found.x[:, i].tolist()]
        for i in range(NUMBERS)
    }
    return numbers | {
        "city": list(found.cities),
        "label": list(found.labels),
        "patient": [f"p{u}" for u in found.users.tolist()],
        "hospital": [f"h{s}" for s in found.silos.tolist()],
        "time": found.times.tolist(),
    }


OWNERS = ("patient", "hospital")


def write_table(found: Raw, path: Path, *without: str) -> Path:
    """Write CSV, or Parquet by the suffix, without some columns."""
    columns = {name: cells for name, cells in columns_of(found).items() if name not in without}
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows(
            ["" if cell is None else cell for cell in row]
            for row in zip(*columns.values(), strict=True)
        )
    return path


def write_archive(found: Raw, path: Path, *, tokens: bool) -> Path:
    """Write x and y: two views of half the numbers each, or token ids."""
    y = np.array([9 if label == STRANGE else LABELS.index(label) for label in found.labels])
    views = found.x.reshape(ROWS, 2, NUMBERS // 2)
    x = np.clip(np.abs(found.x * 8).astype(int) + 1, 0, 31) if tokens else views
    np.savez(path, x=x, y=y)
    return path


def of_raw(name: str, *without: str) -> Callable[[Path, str], Path]:
    def write(folder: Path, change: str) -> Path:
        found = changed(change)
        if name.endswith(".npz"):
            return write_archive(found, folder / name, tokens=name.startswith("tokens"))
        return write_table(found, folder / name, *without)

    return write


def changed(change: str) -> Raw:
    """Return the records with a change to one of them or to a user's; "": none."""
    return {"": lambda r: r, **CHANGES, **{name: made for name, (_, made) in USER_CHANGES.items()}}[
        change
    ](raw())


def write_survival(folder: Path, change: str) -> Path:
    found = changed(change)
    events = [
        "1" if label == LABELS[0] else "0" if label == LABELS[1] else label
        for label in found.labels
    ]
    return write_table(replace(found, labels=events), folder / "own.csv", *OWNERS)


def edited(path: Path, edit: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)


def write_mnist(folder: Path, change: str) -> Path:
    dataset_files.write_mnist(folder)
    size, labels = 28 * 28, {"label": 7, "new label": 77}
    if change == "value":
        start = 16 + CHANGED * size
        edited(
            folder / "train-images-idx3-ubyte",
            lambda b: b.__setitem__(slice(start, start + size), b"\xff" * size),
        )
    elif change:
        edited(
            folder / "train-labels-idx1-ubyte", lambda b: b.__setitem__(8 + CHANGED, labels[change])
        )
    return folder


def write_cifar10(folder: Path, change: str) -> Path:
    dataset_files.write_cifar10(folder)
    start, labels = CHANGED * 3073, {"label": 7, "new label": 77}
    if change == "value":
        edited(
            folder / "data_batch_1.bin",
            lambda b: b.__setitem__(slice(start + 1, start + 3073), b"\xff" * 3072),
        )
    elif change:
        edited(folder / "data_batch_1.bin", lambda b: b.__setitem__(start, labels[change]))
    return folder


def write_reviews(folder: Path, change: str) -> Path:
    dataset_files.write_reviews(folder, "csv")
    lines = (folder / "train.csv").read_text().splitlines()
    label, title, text = next(csv.reader([lines[CHANGED]]))
    new = {
        "": (label, text),
        "value": (label, "never heard of it"),
        "label": ("21".index(label) + 1, text),
    }
    label, text = new.get(change, ("7", text))
    lines[CHANGED] = f'"{label}","{title}","{text}"'
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return folder


def cells_of(path: Path, row: int, cells: dict[str, str], delimiter: str = ",") -> None:
    """Change cells of one line of a file with a heading."""
    with path.open(newline="") as file:
        lines = list(csv.reader(file, delimiter=delimiter))
    for name, cell in cells.items():
        lines[row + 1][lines[0].index(name)] = cell
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(lines)


def write_tcga_brca(folder: Path, change: str) -> Path:
    dataset_files.write_tcga_brca(folder)
    value = {f"f{i}": "7.5" for i in range(39)} | {"T": "2999"}
    cells = {
        "": {},
        "value": value,
        "label": {"E": "1", "T": "1"},
        "new label": {"E": "2"},
        "missing cell": {"f3": ""},
    }[change]
    cells_of(folder / "brca.csv", CHANGED, cells)
    return folder


LISTS = (
    'data.classes=["ill", "well", "other"]',
    'data.categories={city = ["Oslo", "Rome", "other"]}',
)
OTHER = 'data.other="other"'
OWNED = ('users={how="column", silos="column", columns=["patient", "hospital"]}',)
AS_READ = ("data.scale=none", "data.split=plain")
"""Of ids, which nothing scales."""
PLAIN = ("data.scale=public", "data.centre=0.0", "data.spread=2.0", "data.split=plain")
_TEXTS = (
    "split.how=tokens",
    "model.bottom=transformer",
    "model.hidden=[8]",
    "model.initial=random",
)
_NO_CATEGORIES = {"category": "has none", "new category": "has none"}
_FULL = _NO_CATEGORIES | {"missing cell": "every cell of the format is filled"}
_GAP = {"missing cell": "without a value"}
CONSTANTS = 'data.missing={x0=1.0, x1=0, x2=-3, x3=0.5, city="other"}'

READERS = {
    "csv": Reader(
        of_raw("own.csv", "time", *OWNERS),
        (
            "data.source=csv",
            "data.file={file}",
            "data.target=label",
            *LISTS,
            OTHER,
            *PLAIN,
            CONSTANTS,
        ),
    ),
    "parquet": Reader(
        of_raw("own.parquet", "time", *OWNERS),
        ("data.source=parquet", "data.file={file}", "data.target=label", *LISTS, OTHER, *PLAIN),
        refused=_GAP,
    ),
    "multiview": Reader(
        of_raw("views.npz"),
        (
            "data.source=multiview",
            "data.file={file}",
            "data.classes=[0, 1, 2]",
            "data.other=2",
            *PLAIN,
        ),
        ("split.how=views", "model.embedding=3"),
        refused={"missing cell": "has nan"},
        absent=_NO_CATEGORIES,
    ),
    "tokens": Reader(
        of_raw("tokens.npz"),
        (
            "data.source=tokens",
            "data.file={file}",
            "data.classes=[0, 1, 2]",
            "data.other=2",
            *AS_READ,
        ),
        (*_TEXTS, "model.embedding=3", "data.vocabulary=32"),
        absent=_FULL,
    ),
    "survival": Reader(
        write_survival,
        (
            "data.source=survival",
            "data.file={file}",
            "data.target=label",
            "data.time=time",
            LISTS[1],
            OTHER,
            *PLAIN,
        ),
        users=("users={count=8, least=2}",),
        refused={"new label": "says whether times are events", **_GAP},
    ),
    "mnist": Reader(
        write_mnist,
        (
            "data.source=mnist",
            "data.folder={file}",
            "data.train_rows=60",
            "data.test_rows=20",
            *PLAIN,
        ),
        ("split.how=rows", "model.embedding=10"),
        refused={"new label": "label 77"},
        absent=_FULL,
    ),
    "cifar10": Reader(
        write_cifar10,
        (
            "data.source=cifar10",
            "data.folder={file}",
            "data.train_rows=60",
            "data.test_rows=20",
            *PLAIN,
        ),
        ("split.how=rows", "model.embedding=10"),
        refused={"new label": "label"},
        absent=_FULL,
    ),
    "amazon_polarity": Reader(
        write_reviews,
        ("data.source=amazon_polarity", "data.folder={file}", *AS_READ),
        (*_TEXTS, "model.embedding=2", "data.tokens=8", "data.vocabulary=32"),
        refused={"new label": "review 4 begins"},
        absent=_FULL,
    ),
    "tcga_brca": Reader(
        write_tcga_brca,
        ("data.source=tcga_brca", "data.folder={file}", *PLAIN),
        users=('users={count=8, silos="main", least=2}', "split.clients=6"),
        refused={"new label": "one of 0, 1", "missing cell": "a number"},
        absent=_NO_CATEGORIES,
    ),
}
"""Readers of raw files, by source."""
BUILT_IN = "its rows come with the program, or from the seed, and no file is read"
FITTED = "one record moves others in its reader, which the claims say"
NOT_READ = {
    **dict.fromkeys(("digits", "breast_cancer", "wine", "mnist5k"), BUILT_IN),
    **dict.fromkeys(
        ("synthetic", "synthetic_clients", "synthetic_series", "synthetic_reviews"), BUILT_IN
    ),
    "synthetic_survival": BUILT_IN,
    "fashion_mnist": "the reader of mnist",
    "creditcard": FITTED,
    "heart_disease": FITTED,
    "mimic3": "a file for each record, read by that file alone (tests/unit/data/test_mimic3.py)",
}
"""Sources without a line of their own, and why."""
OWNERS_OF = {
    "csv": replace(READERS["csv"], write=of_raw("own.csv", "time"), users=OWNED),
    "parquet": replace(READERS["parquet"], write=of_raw("own.parquet", "time"), users=OWNED),
}
"""Readers of columns that say whose a record is and where it lies."""
