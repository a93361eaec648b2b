"""Reader for Amazon Review Polarity: 3,600,000 training and 400,000 test reviews, negative or
positive.

Two forms of the same texts, each as it is or packed by gzip or bzip2:
train.csv, test.csv        class (1 negative, 2 positive), title, text; no heading; quotes doubled,
a new line written
                           as backslash and n. Zhang, Zhao, LeCun, "Character-level convolutional
                           networks for text classification" (2015)
train.ft.txt, test.ft.txt  fastText's: __label__1 or __label__2, then title, colon and text, one
review a line

A review becomes token ids, which travel as float32 like all features; with at most 2^24 of them
every id is exact. 0 is padding, and a word's id is its hash.
"""

# D rows, L tokens

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import compress, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from raydpzv.data.files import missing, one_line, unreadable
from raydpzv.data.held_out import Limits
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError

if TYPE_CHECKING:
    from raydpzv.settings.sections_data import DataSection

_WORD = re.compile(r"\w+(?:'\w+)*")
_INNER = "amazon_review_polarity_csv"
_ENDINGS = ("", ".gz", ".bz2")
_OPENERS: tuple[tuple[bytes, Callable[..., IO[str]]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
)
_LABELS = {"1": 0, "2": 1, "__label__1": 0, "__label__2": 1}

Review = tuple[int, str]
"""Class (0 negative, 1 positive) and text."""
Chooser = Callable[[np.ndarray, int, str], np.ndarray | None]


def read_folder(request: Request) -> Split:
    """Return token ids x [D, L] and y [D] (1: positive) of the training and test reviews.

    The files lie in the folder or in its sub-folder amazon_review_polarity_csv. The rows are those
    that data.train_rows and data.test_rows leave. A file is read twice, for its labels and
    then for the texts of the rows chosen, line by line: 1 byte a review of the file and 4L bytes a
    row chosen. Raises DataError.
    """
    data, folder, home = request.data, request.folder, request.home
    if (folder / _INNER).is_dir():
        folder = folder / _INNER
    found = {part: _find(folder, part) for part in ("train", "test")}
    lacking = [
        f"{part}.csv or {part}.ft.txt [.gz, .bz2]" for part, path in found.items() if path is None
    ]
    if lacking:
        raise missing('data set "amazon_polarity"', lacking, folder, home)
    limits = Limits(data.train_rows, data.test_rows, request.key / "limit", data.split)
    choosers = (limits.train, limits.test)
    return Split(
        *(
            _table(path, data, c, home)
            for path, c in zip(found.values(), choosers, strict=True)
            if path
        )
    )


def words(text: str) -> list[str]:
    """Return the words in lower case, with inner apostrophes: letters, digits and underscores of
    any script.
    """
    return _WORD.findall(text.lower())


def token_id(word: str, vocabulary: int) -> int:
    """Return the word's id in 1..vocabulary-1: the same in every process and on every machine."""
    return _hashed(word) % (vocabulary - 1) + 1


@lru_cache(maxsize=1 << 16)  # few words make up most of a text
def _hashed(word: str) -> int:
    digest = hashlib.blake2b(word.encode(), digest_size=8, person=b"raydpzv word").digest()
    return int.from_bytes(digest, "little")


def _find(folder: Path, part: str) -> Path | None:
    names = [f"{part}{form}{ending}" for form in (".csv", ".ft.txt") for ending in _ENDINGS]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _table(path: Path, data: DataSection, choose: Chooser, home: str) -> Table:
    labels_D = np.fromiter((label for label, _ in _reviews(path, home)), np.int8)
    if not labels_D.size:
        raise DataError(one_line(f'"{path}" holds no reviews: get it again from {home}'))
    kept = choose(labels_D, 2, "amazon_polarity")
    if kept is None:
        return _tokenised(_reviews(path, home), data, labels_D)
    wanted_D = np.zeros(kept[-1] + 1, np.bool_)
    wanted_D[kept] = True
    return _tokenised(compress(_reviews(path, home), wanted_D.tobytes()), data, labels_D[kept])


def _tokenised(reviews: Iterator[Review], data: DataSection, labels_D: np.ndarray) -> Table:
    x_DL = np.zeros((len(labels_D), data.tokens), np.float32)
    for row, (_, written) in zip(x_DL, reviews, strict=False):
        ids = [token_id(word, data.vocabulary) for word in islice(words(written), data.tokens)]
        row[: len(ids)] = ids
    return Table("amazon_polarity", x_DL, labels_D, 2, vocabulary=data.vocabulary)


def _reviews(path: Path, home: str) -> Iterator[Review]:
    """The file's reviews in order; DataError where one cannot be read."""
    table = path.name.startswith(("train.csv", "test.csv"))
    try:
        with _opened(path, newline="" if table else "\n") as file:
            rows = csv.reader(file) if table else (line.rstrip("\n").split(" ", 1) for line in file)
            for number, row in enumerate(rows, 1):
                if row and row != [""]:
                    yield _review(row, 3 if table else 2, number, path, home)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error, home) from error


def _review(row: list[str], columns: int, number: int, path: Path, home: str) -> Review:
    if len(row) != columns or row[0] not in _LABELS:
        form = (
            "__label__1 or __label__2 and a text" if columns == 2 else "1 or 2, a title and a text"
        )
        raise unreadable(
            path, f"review {number} begins {' '.join(row)[:40]!r}; wanted {form}", home
        )
    return _LABELS[row[0]], " ".join(row[1:]).replace("\\n", " ")


@contextmanager
def _opened(path: Path, newline: str) -> Iterator[IO[str]]:
    """Unpacked by content, not by name: some tools unpack and keep the name."""
    with path.open("rb") as raw:
        start = raw.read(3)
    opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), open)
    with opener(path, "rt", encoding="utf-8", newline=newline) as file:
        yield file
