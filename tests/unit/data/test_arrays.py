from pathlib import Path

import numpy as np
import pytest

from raydpzv.errors import DataError
from tests.helpers.loading import get, refusal


def views(rows: int = 12, dtype: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(rows * 3 * 2 * 4).reshape(rows, 3, 2, 1, 4) % 256
    return x.astype(dtype), np.arange(rows) % 3


def save(path: Path, **arrays: np.ndarray) -> Path:
    with path.open("wb") as out:
        np.savez(out, **arrays)
    return path


def test_views_with_a_test_set_of_their_own(tmp_path):
    x, y = views()
    split = get(
        "multiview", file=save(tmp_path / "v", x=x[:8], y=y[:8] * 0, x_test=x[8:], y_test=y[8:])
    )
    np.testing.assert_array_equal(split.train.x, x[:8])
    np.testing.assert_array_equal(split.test.x, x[8:])
    assert split.train.classes == 3, "classes are counted over both"


def test_views_without_a_test_set_are_divided(tmp_path):
    x, y = views()
    split = get("multiview", file=save(tmp_path / "v", x=x, y=y))
    assert (split.train.rows, split.test.rows) == (9, 3)
    assert sorted(split.test.y) == [0, 1, 2]


def test_one_records_value_does_not_rescale_the_others(tmp_path):
    """256 in one record makes NumPy keep the whole array as int16, .5 as float64."""
    x, y = views(dtype=np.uint8)
    kept = get("multiview", file=save(tmp_path / "v", x=x, y=y, x_test=x, y_test=y)).train.x
    np.testing.assert_array_equal(kept, x)
    for kind, value in ((np.int16, 256), (np.float64, 0.5)):
        changed = x.astype(kind)
        changed[3].flat[0] = value
        found = get(
            "multiview", file=save(tmp_path / "w", x=changed, y=y, x_test=x, y_test=y)
        ).train.x
        np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(kept, 3, 0))


def test_archives_that_do_not_fit(tmp_path):
    x, y = views()
    cases = [
        ({"x": x}, ["lacks the arrays y; it has x"]),
        ({"x": x, "y": y, "x_test": x}, ["lacks the arrays y_test"]),
        ({"X": x, "y": y}, ["lacks the arrays x; it has X, y"]),
        ({"x": x.reshape(12, -1), "y": y}, ["array x ", r"\(12, 24\)", "one axis more"]),
        ({"x": x, "y": y[:, None]}, ["array y ", r"\(12, 1\)"]),
        ({"x": x, "y": y / 2}, ["array y ", "float64"]),
        ({"x": x, "y": y, "x_test": x[:, :2], "y_test": y}, ["same shape"]),
        ({"x": x, "y": y[:5]}, ["12 rows of features and 5 labels"]),
        ({"x": np.array([{}] * 12, dtype=object), "y": y}, ["cannot be read", "allow_pickle"]),
    ]
    for arrays, words in cases:
        with refusal(DataError, *words):
            get("multiview", file=save(tmp_path / "v", **arrays))


def test_a_damaged_archive_is_refused(tmp_path):
    x, y = views()
    file = save(tmp_path / "v", x=x, y=y)
    data = bytearray(file.read_bytes())
    data[300] ^= 0xFF
    file.write_bytes(data)
    with refusal(DataError, "cannot be read", "CRC"):
        get("multiview", file=file)


def test_a_label_outside_the_list_counts_as_the_other_however_large(tmp_path):
    x, y = views()
    file = save(tmp_path / "v", x=x, y=np.where(np.arange(12) == 3, 99, y), x_test=x, y_test=y)
    found = get("multiview", file=file, classes=(0, 1, 2), other=2).train
    np.testing.assert_array_equal(found.y, np.where(np.arange(12) == 3, 2, y))
    with refusal(DataError, "label 99", "more than there are rows"):
        get("multiview", file=file)


def test_an_archive_of_ids(tmp_path):
    x = np.arange(36, dtype=np.uint16).reshape(12, 3)
    y = np.arange(12) % 3
    split = get("tokens", file=save(tmp_path / "ids.npz", x=x, y=y), vocabulary=36)
    assert (split.train.rows, split.test.rows, split.train.classes) == (9, 3, 3)
    assert split.train.vocabulary == split.test.vocabulary == 36
    both = save(tmp_path / "ids.npz", x=x[:8], y=y[:8], x_test=x[8:], y_test=y[8:])
    split = get("tokens", file=both, vocabulary=36)
    np.testing.assert_array_equal(split.train.x, x[:8])
    np.testing.assert_array_equal(split.test.x, x[8:])
    with pytest.raises(
        DataError, match=r"token id 35, wanted whole numbers in 0\.\.34: raise data\.vocabulary"
    ):
        get("tokens", file=both, vocabulary=35)
    with pytest.raises(DataError, match=r"array x .*\(12, 3, 1\): token ids want \[D, L\]"):
        get("tokens", file=save(tmp_path / "ids.npz", x=x[..., None], y=y))
