"""Creditcard: divided, standardised and thinned, recomputed from the file by another way."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from raydpzv.errors import DataError
from raydpzv.keys import Key
from tests.helpers.dataset_files import write_creditcard
from tests.helpers.loading import get


def read(folder, seed=3):
    return get("creditcard", folder, key=Key(seed))


def test_a_tenth_of_the_others_is_kept_and_scaling_is_by_all_training_rows(tmp_path):
    split = read(write_creditcard(tmp_path))
    assert (split.test.rows, int(split.test.y.sum())) == (60, 3)  # 15 % of 400, of 20 frauds
    assert (int(split.train.y.sum()), split.train.rows) == (17, 17 + 32)  # a tenth of 323
    raw = np.loadtxt(tmp_path / "creditcard.csv", delimiter=",", skiprows=1, converters=number)
    seed = (Key(3) / "split" / "stratified split").seed64() % 2**32
    train, test = train_test_split(raw, test_size=0.15, stratify=raw[:, 30], random_state=seed)
    centre, width = train[:, :30].mean(0), train[:, :30].std(0)
    np.testing.assert_allclose(split.test.x, (test[:, :30] - centre) / width, atol=1e-5)
    known = (train[:, :30] - centre) / width
    nearest = [np.abs(known - row).sum(1).argmin() for row in split.train.x]
    assert len(set(nearest)) == split.train.rows
    np.testing.assert_allclose(split.train.x, known[nearest], atol=1e-5)
    assert np.array_equal(split.train.y, train[nearest, 30])


def number(cell):
    return float(cell.strip('"'))


def test_a_number_that_is_none_and_a_class_that_is_none(tmp_path):
    file = write_creditcard(tmp_path) / "creditcard.csv"
    good = file.read_text()
    lines = good.split("\n")
    file.write_text("\n".join([*lines[:5], lines[5].replace(",", ",x", 1), *lines[6:]]))
    with pytest.raises(DataError, match=r'creditcard\.csv", line 6, column "V1": .*kaggle\.com'):
        read(tmp_path)
    file.write_text(good.replace('"1"', '"3"'))
    with pytest.raises(DataError, match='line 2, column "Class": wanted one of 0, 1, got "3"'):
        read(tmp_path)
    file.write_text(good.replace('"V7"', '"W7"'))
    with pytest.raises(DataError, match="no column V7"):
        read(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match=r"wants creditcard\.csv in .*kaggle\.com"):
        read(tmp_path)
