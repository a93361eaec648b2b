"""HeartDisease: both forms of the files give the same records, divided as scikit-learn and pandas
would.
"""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from raydpzv.errors import DataError
from tests.helpers.dataset_files import (
    HEART_FILES,
    HEART_ROWS,
    heart_records,
    write_heart_disease,
    write_heart_disease_csv,
)
from tests.helpers.loading import get


def hospital(records):
    """Features and labels of a hospital's complete records: plain columns, then indicators."""
    whole = records[~np.isnan(records[:, [*range(10), 13]]).any(1)]
    plain = whole[:, [0, 3, 4, 7, 9, 1, 5, 8]]
    indicators = [
        whole[:, 2] == 2,
        whole[:, 2] == 3,
        whole[:, 2] == 4,
        whole[:, 6] == 1,
        whole[:, 6] == 2,
    ]
    return np.column_stack([plain, *indicators]), (whole[:, 13] > 0).astype(int)


@pytest.mark.parametrize("write", [write_heart_disease, write_heart_disease_csv])
def test_each_hospital_is_divided_and_scaled_by_itself(tmp_path, write):
    split = get("heart_disease", write(tmp_path))
    assert split.train.shape == (13,)
    for silo, records in enumerate(heart_records()):
        x, y = hospital(records)
        assert len(y) == HEART_ROWS[silo] - 1
        train, test, y_train, y_test = train_test_split(
            x, y, train_size=0.66, test_size=0.34, stratify=y, random_state=43
        )
        width = np.where(train.std(0) > 0, train.std(0), 1)
        for table, part, labels in ((split.train, train, y_train), (split.test, test, y_test)):
            mine = table.silos == silo
            np.testing.assert_allclose(table.x[mine], (part - train.mean(0)) / width, atol=1e-5)
            assert table.y[mine].tolist() == labels.tolist()


def test_files_that_are_missing_or_hold_something_else(tmp_path):
    write_heart_disease(tmp_path)
    file = tmp_path / HEART_FILES[1]
    good = file.read_text()
    file.write_text(good.replace("\n", ",1.0\n"))
    with pytest.raises(DataError, match=r"hungarian\.data.*cannot be read.*archive\.ics\.uci\.edu"):
        get("heart_disease", tmp_path)
    lines = good.split("\n")
    file.write_text(
        "\n".join(
            [*lines[:2], "9" + lines[2].replace(",", ",7.0,", 1).rsplit(",", 1)[0], *lines[3:]]
        )
    )
    with pytest.raises(DataError, match=r'hungarian\.data", line 3, column "sex": wanted one of'):
        get("heart_disease", tmp_path)
    file.unlink()
    with pytest.raises(
        DataError, match=r"wants processed\.hungarian\.data in .*archive\.ics\.uci\.edu"
    ):
        get("heart_disease", tmp_path)
