import bz2
import csv
import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from raydpzv.data.held_out import limit
from raydpzv.data.reviews import token_id, words
from raydpzv.data.table import Split
from raydpzv.errors import DataError, SpecError
from tests.helpers.loading import KEY, get
from tests.helpers.programs import python_said

REVIEWS = [
    (
        2,
        "Great CD",
        'My lovely Pat has one of the "GREAT" voices, and I\'d buy it again.\\nTwice, even',
    ),
    (1, "Don't!", "It broke, twice."),
    (1, "", "..."),
    (2, "Über alles", "naïve; café \u2028 \x85 \r fine"),
]


def as_csv(reviews) -> bytes:
    from io import StringIO

    out = StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(reviews)
    return out.getvalue().encode()


def as_fasttext(reviews) -> bytes:
    return "".join(f"__label__{label} {title}: {text}\n" for label, title, text in reviews).encode()


def write(
    folder: Path, form: str, reviews, ending: str = "", pack=lambda data: data, test=None
) -> Path:
    written = as_csv if form == "csv" else as_fasttext
    for part, rows in (("train", reviews), ("test", test or reviews[:2])):
        (folder / f"{part}.{form}{ending}").write_bytes(pack(written(rows)))
    return folder


def read(folder: Path, *, tokens: int = 12, **settings) -> Split:
    return get("amazon_polarity", folder, tokens=tokens, **settings)


def test_the_csv_form(tmp_path: Path) -> None:
    split = read(write(tmp_path, "csv", REVIEWS), tokens=20)
    assert split.train.y.tolist() == [1, 0, 0, 1]
    assert split.test.y.tolist() == [1, 0]
    assert split.train.vocabulary == 30_522
    said = "great cd my lovely pat has one of the great voices and i'd buy it again twice even"
    assert split.train.x[0].tolist() == [*(token_id(w, 30_522) for w in said.split()), 0, 0]
    assert split.train.x[2].tolist() == [0] * 20, "no words: padding alone"
    assert (split.train.x[3] != 0).sum() == 5


def test_longer_reviews_are_cut_and_ids_stay_below_the_vocabulary(tmp_path: Path) -> None:
    whole = read(write(tmp_path, "csv", REVIEWS), tokens=20, vocabulary=7)
    cut = read(tmp_path, tokens=3, vocabulary=7)
    np.testing.assert_array_equal(cut.train.x, whole.train.x[:, :3])
    assert whole.train.x.max() <= 6


@pytest.mark.parametrize("form", ["csv", "ft.txt"])
@pytest.mark.parametrize(
    ("ending", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".bz2", bytes),
        ("", gzip.compress),
    ],
    ids=["plain", "gz", "bz2", "unpacked that kept its name", "packed without its name"],
)
def test_both_forms_packed_or_not_give_the_same_rows(
    tmp_path: Path, form: str, ending: str, pack
) -> None:
    (tmp_path / "plain").mkdir()
    expected = read(write(tmp_path / "plain", "csv", REVIEWS))
    split = read(write(tmp_path, form, REVIEWS, ending, pack))
    np.testing.assert_array_equal(split.train.x, expected.train.x)
    np.testing.assert_array_equal(split.test.x, expected.test.x)
    assert split.train.y.tolist() == expected.train.y.tolist()


def test_the_archives_inner_folder(tmp_path: Path) -> None:
    (tmp_path / "amazon_review_polarity_csv").mkdir()
    write(tmp_path / "amazon_review_polarity_csv", "csv", REVIEWS)
    assert read(tmp_path).train.rows == 4


def many(rows: int):
    return [(1 + i % 2, f"title{i}", f"text{i} and more") for i in range(rows)]


@pytest.mark.parametrize("train_rows", [2, 7, 39, 40, 41, None])
def test_a_limit_keeps_the_rows_that_it_would_keep_of_a_table_read_whole(
    tmp_path: Path, train_rows
) -> None:
    write(tmp_path, "ft.txt", many(40), test=many(12))
    first = read(tmp_path, train_rows=train_rows, test_rows=5)
    expected = limit(read(tmp_path), train_rows, 5, KEY / "limit")
    for part, whole in ((first.train, expected.train), (first.test, expected.test)):
        np.testing.assert_array_equal(part.x, whole.x)
        np.testing.assert_array_equal(part.y, whole.y)
    assert limit(first, train_rows, 5, KEY / "limit").train is first.train, (
        "limiting again changes nothing"
    )
    assert first.train.rows == min(train_rows or 40, 40)
    other = read(tmp_path, train_rows=7, test_rows=5)
    assert abs(np.bincount(other.train.y)[0] - 3.5) < 1, "by class"


def test_few_rows_of_a_large_file_take_little_memory(tmp_path: Path) -> None:
    write(tmp_path, "ft.txt", many(20_000), test=many(10))
    read(tmp_path, train_rows=100, test_rows=10)
    peaks = []
    for rows in (100, 20_000):
        tracemalloc.start()
        read(tmp_path, tokens=200, train_rows=rows, test_rows=10)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] < 2e6, "a byte or a few for each review, no text of it"
    assert peaks[1] > 20_000 * 200 * 4, "control: all rows do take theirs"


def test_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"wants train\.csv or train\.ft\.txt \[\.gz, \.bz2\], test.*holds nothing.*Zhang",
    ):
        read(tmp_path)
    (tmp_path / "train.csv").write_bytes(as_csv(REVIEWS))
    with pytest.raises(DataError, match=r'"amazon_polarity" wants test\.csv or test\.ft\.txt'):
        read(tmp_path)


@pytest.mark.parametrize(
    ("form", "data", "words"),
    [
        (
            "csv",
            b'"1","a","b"\n"3","a","b"\n',
            r"review 2 begins '3 a b'; wanted 1 or 2, a title and a text",
        ),
        ("csv", b'"1","a"\n', "review 1 begins '1 a'"),
        ("csv", b"", "holds no reviews"),
        ("csv", b'"1","a","\xff"\n', "utf-8"),
        ("csv", gzip.compress(as_csv(REVIEWS))[:-9], "cannot be read"),
        ("csv", bz2.compress(as_csv(REVIEWS))[:-9], "cannot be read"),
        (
            "ft.txt",
            b"__label__1 a: b\n__label__5 x\n",
            r"review 2 begins '__label__5 x'; wanted __label__1 or",
        ),
        ("ft.txt", b"great\n", "review 1 begins 'great'"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, form: str, data: bytes, words: str) -> None:
    write(tmp_path, form, REVIEWS)
    (tmp_path / f"train.{form}").write_bytes(data)
    with pytest.raises(DataError, match=rf"\A[^\n]*{words}[^\n]*get it again from [^\n]+\Z"):
        read(tmp_path)


def test_fewer_rows_than_classes(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="train_rows is 1, fewer than the 2 classes"):
        read(write(tmp_path, "csv", REVIEWS), train_rows=1)


def test_words() -> None:
    assert words("Don't BUY it--it's 2nd-rate!!") == ["don't", "buy", "it", "it's", "2nd", "rate"]
    assert words("'quoted' Straße\u2028naïve") == ["quoted", "straße", "naïve"]
    assert words(" ... ") == []


def test_ids_are_stable_spread_out_and_never_padding() -> None:
    ids = np.array([token_id(f"word{i}", 101) for i in range(20_000)])
    assert (ids.min(), ids.max()) == (1, 100)
    counts = np.bincount(ids)[1:]
    assert np.square(counts - 200).sum() / 200 < 99 + 5 * np.sqrt(2 * 99), (
        "chi-square of 100 equal cells"
    )
    assert token_id("anything", 2) == 1
    assert [token_id(word, 30_522) for word in ("great", "don't", "straße")] == [3197, 16376, 4323]


def test_ids_are_the_same_in_another_process() -> None:
    """Unlike `hash()`, which every process salts anew."""
    code = "from raydpzv.data.reviews import token_id; print(token_id('great', 30522))"
    assert int(python_said("-c", code)) == token_id("great", 30_522)
