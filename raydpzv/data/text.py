"""Texts as rows of token ids: words and their hashes, one's own ids from an archive, and a generated set.

Ids travel as float32 like all features; with at most 2^24 of them every id is exact. 0 is padding.
"""

# D rows, L tokens, V vocabulary

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from raydpzv.data.builtin import Mixture, check_cells
from raydpzv.data.files import one_line
from raydpzv.data.npz import numbered, read_arrays
from raydpzv.data.public_list import PublicList
from raydpzv.data.table import MOST_TOKENS, Split, Table
from raydpzv.errors import SpecError
from raydpzv.keys import Key

_WORD = re.compile(r"\w+(?:'\w+)*")
_TELLING_WORDS = 8
"""Words of each class in the generated set."""


@dataclass(frozen=True)
class Text:
    """The form of texts: L `tokens` a row, longer ones cut and shorter ones padded, ids below `vocabulary` (V).

    The default vocabulary is as large as BERT's. SpecError for sizes that cannot be.
    """

    tokens: int = 192
    vocabulary: int = 30_522

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise SpecError(f"texts of {self.tokens} tokens say nothing: choose at least 1")
        if not 2 <= self.vocabulary <= MOST_TOKENS:
            raise SpecError(
                f"a vocabulary of {self.vocabulary} is out of range: choose 2 (padding and one word) to {MOST_TOKENS}"
            )


def words(text: str) -> list[str]:
    """Return the words in lower case, with inner apostrophes: letters, digits and underscores of any script."""
    return _WORD.findall(text.lower())


def token_id(word: str, vocabulary: int) -> int:
    """Return the word's id in 1..vocabulary-1: the same in every process and on every machine."""
    return _hashed(word) % (vocabulary - 1) + 1


def read_npz(
    file: Path, text: Text, labels: PublicList | None = None, strangers: tuple[int, ...] = ()
) -> Table | Split:
    """Return the token ids x [D, L] and labels y [D] of an archive, as some tokenizer made them (0: padding).

    x_test and y_test are test rows if they are there. L is the file's. labels, strangers: of
    `raydpzv.data.npz.numbered`. Raises DataError, also for ids outside 0..V-1.
    """
    arrays = read_arrays(file, (2,), "token ids want [D, L], one row of ids a text")
    name = one_line(file.name)
    y, classes = numbered(arrays, labels, strangers, name)
    train = Table(name, arrays["x"], y["y"], classes, vocabulary=text.vocabulary)
    if "x_test" not in arrays:
        return train
    test = Table(name, arrays["x_test"], y["y_test"], classes, vocabulary=text.vocabulary)
    return Split(train, test)


def synthetic_reviews(mixture: Mixture, text: Text, key: Key) -> Table:
    """Return x [D, L] of L/2 to L words a text: 15 % tell its class, 10 % tell a random class, the rest nothing.

    The words 1..8 tell class 0, the next eight class 1, and so on; order says nothing, a bag of words learns it. Needs
    `rows` and `classes` of the mixture. Raises SpecError for a vocabulary without room.
    """
    telling = mixture.classes * _TELLING_WORDS
    if text.vocabulary < telling + 2:
        raise SpecError(
            f"data.vocabulary is {text.vocabulary}: generated reviews of {mixture.classes} classes want at least "
            f"{telling + 2}"
        )
    check_cells(mixture.rows, text.tokens)
    here, shape = key / "synthetic reviews", (mixture.rows, text.tokens)
    y = (here / "labels").generator().permutation(np.arange(mixture.rows) % mixture.classes)
    draws = (here / "words").generator()
    own = 1 + y[:, None] * _TELLING_WORDS + draws.integers(_TELLING_WORDS, size=shape)
    any_class = 1 + draws.integers(telling, size=shape)
    plain = draws.integers(telling + 1, text.vocabulary, size=shape)
    kind = draws.random(shape)
    x = np.where(kind < 0.15, own, np.where(kind < 0.25, any_class, plain))
    lengths = (
        (here / "lengths").generator().integers(-(-text.tokens // 2), text.tokens + 1, size=mixture.rows)
    )
    x[np.arange(text.tokens) >= lengths[:, None]] = 0
    return Table("synthetic_reviews", x, y, mixture.classes, vocabulary=text.vocabulary)


@lru_cache(maxsize=1 << 16)
def _hashed(word: str) -> int:
    """Kept for the words in use: few words make up most of a text."""
    return int.from_bytes(
        hashlib.blake2b(word.encode(), digest_size=8, person=b"raydpzv word").digest(), "little"
    )
