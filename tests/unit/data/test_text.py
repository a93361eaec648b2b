"""Texts: words and their hashes, archives of token ids, the generated set, and what happens to ids on their way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from raydpzv.data.builtin import Mixture
from raydpzv.data.sources import SOURCES, load
from raydpzv.data.table import Table, limit, scale
from raydpzv.data.text import Text, synthetic_reviews, token_id, words
from raydpzv.data.vertical import partition
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key

KEY = Key(3)


def test_words() -> None:
    assert words("Don't BUY it--it's 2nd-rate!!") == ["don't", "buy", "it", "it's", "2nd", "rate"]
    assert words("'quoted' Straße\u2028naïve") == ["quoted", "straße", "naïve"]
    assert words(" ... ") == []


def test_ids_are_stable_spread_out_and_never_padding() -> None:
    ids = np.array([token_id(f"word{i}", 101) for i in range(20_000)])
    assert (ids.min(), ids.max()) == (1, 100)
    counts = np.bincount(ids)[1:]
    assert np.square(counts - 200).sum() / 200 < 99 + 5 * np.sqrt(2 * 99), "chi-square of 100 equal cells"
    assert token_id("anything", 2) == 1
    assert [token_id(word, 30_522) for word in ("great", "don't", "straße")] == [3197, 16376, 4323]


def test_ids_are_the_same_in_another_process() -> None:
    """Unlike `hash()`, which every process salts anew."""
    code = "from raydpzv.data.text import token_id; print(token_id('great', 30522))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert int(found.stdout) == token_id("great", 30_522)


@pytest.mark.parametrize(("tokens", "vocabulary"), [(0, 9), (5, 1), (5, 2**24 + 1)])
def test_forms_that_cannot_be(tokens: int, vocabulary: int) -> None:
    with pytest.raises(SpecError, match="choose"):
        Text(tokens, vocabulary)


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path / "ids.npz", **arrays)
    return path / "ids.npz"


def test_an_archive_of_ids(tmp_path: Path) -> None:
    x = np.arange(36, dtype=np.uint16).reshape(12, 3)
    y = np.arange(12) % 3
    text = Text(vocabulary=36)
    split = load("tokens", file=save(tmp_path, x=x, y=y), test_fraction=0.25, key=KEY, text=text)
    assert (split.train.rows, split.test.rows, split.train.classes) == (9, 3, 3)
    assert split.train.vocabulary == split.test.vocabulary == 36
    both = save(tmp_path, x=x[:8], y=y[:8], x_test=x[8:], y_test=y[8:])
    split = load("tokens", file=both, test_fraction=0.25, key=KEY, text=text)
    np.testing.assert_array_equal(split.train.x, x[:8])
    np.testing.assert_array_equal(split.test.x, x[8:])
    with pytest.raises(
        DataError, match=r"token id 35, wanted whole numbers in 0\.\.34: raise data\.vocabulary"
    ):
        load("tokens", file=both, test_fraction=0.25, key=KEY, text=Text(vocabulary=35))
    with pytest.raises(DataError, match=r"array x .*\(12, 3, 1\): token ids want \[D, L\]"):
        load("tokens", file=save(tmp_path, x=x[..., None], y=y), test_fraction=0.25, key=KEY)


@pytest.mark.parametrize("wrong", [-1.0, 1.5, 9.0])
def test_what_is_no_id_is_refused(wrong: float) -> None:
    x = np.ones((2000, 4))
    x[1500, 2] = wrong
    y = np.arange(2000) % 2
    Table("fine", x, y, 2)
    with pytest.raises(DataError, match=f"token id {wrong:g}, wanted"):
        Table("ids", x, y, 2, vocabulary=9)


def test_no_scaling_touches_ids_and_rows_keep_their_vocabulary() -> None:
    largest = 2**24 - 1
    split = load(
        "synthetic_reviews",
        test_fraction=0.25,
        key=KEY,
        mixture=Mixture(rows=80, classes=2),
        text=Text(6, largest + 1),
    )
    for how in ("standard", "unit", "none"):
        assert scale(split, how) is split
    with pytest.raises(SpecError, match="unknown"):
        scale(split, "log")
    fewer = limit(split, 10, 10, KEY)
    assert fewer.train.vocabulary == largest + 1
    top = Table("top", np.full((2, 1), largest), np.array([0, 1]), 2, vocabulary=largest + 1)
    assert top.x.astype(np.int64).tolist() == [[largest], [largest]], "exact in float32"


def test_spans_of_tokens() -> None:
    parts = partition((12,), "tokens", 3)
    x = np.arange(24).reshape(2, 12)
    assert [part.describe() for part in parts] == ["tokens 0..3", "tokens 4..7", "tokens 8..11"]
    np.testing.assert_array_equal(parts[1].select(x), [[4, 5, 6, 7], [16, 17, 18, 19]])
    assert {part.shape for part in parts} == {(4,)}
    assert partition((3,), "tokens", 3)[2].describe() == "token 2"
    with pytest.raises(
        SpecError, match="5 clients cannot have equal spans of 12 tokens: make it a multiple of 5"
    ):
        partition((12,), "tokens", 5)
    with pytest.raises(SpecError, match="24 clients cannot have equal spans"):
        partition((12,), "tokens", 24)
    with pytest.raises(SpecError, match='"tokens" wants texts'):
        partition((24, 3), "tokens", 3)


def counts(table: Table, vocabulary: int) -> np.ndarray:
    return np.stack([np.bincount(row, minlength=vocabulary)[1:] for row in table.x.astype(np.int64)])


def test_generated_reviews_are_learned_by_a_bag_of_words_and_say_nothing_without_their_words() -> None:
    mixture, text = Mixture(rows=1200, classes=2), Text(24, 200)
    table = synthetic_reviews(mixture, text, Key(1))
    assert table.x.shape == (1200, 24)
    assert np.array_equal(table.x, synthetic_reviews(mixture, text, Key(1)).x)
    assert not np.array_equal(table.x, synthetic_reviews(mixture, text, Key(2)).x)
    bag = counts(table, 200)
    telling, rest = bag[:, :16], bag[:, 16:]
    scores = [
        LogisticRegression(C=0.3, max_iter=500).fit(x[:800], table.y[:800]).score(x[800:], table.y[800:])
        for x in (bag, telling, rest)
    ]
    assert scores[0] > 0.85
    assert scores[1] > 0.9
    assert scores[2] < 0.58


def test_generated_reviews_are_padded_at_their_end() -> None:
    table = synthetic_reviews(Mixture(rows=500, classes=3), Text(10, 99), Key(1))
    lengths = (table.x != 0).sum(1)
    assert set(lengths.tolist()) == {5, 6, 7, 8, 9, 10}
    assert all((row[:n] != 0).all() for row, n in zip(table.x, lengths, strict=True))
    assert table.x.max() == 98
    assert np.bincount(table.y).tolist() == [167, 167, 166]
    with pytest.raises(SpecError, match=r"vocabulary is 25: generated reviews of 3 classes want at least 26"):
        synthetic_reviews(Mixture(rows=500, classes=3), Text(10, 25), Key(1))


def test_which_sources_are_token_ids() -> None:
    assert {name for name, source in SOURCES.items() if source.tokens} == {
        "amazon_polarity",
        "tokens",
        "synthetic_reviews",
    }
