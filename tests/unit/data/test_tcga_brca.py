"""TcgaBrca: every patient where its fold says, whatever the order of either file."""

import numpy as np
import pytest

from raydpzv.errors import DataError
from tests.helpers.dataset_files import write_tcga_brca
from tests.helpers.loading import get


def test_patients_are_where_their_fold_says(tmp_path):
    split = get("tcga_brca", write_tcga_brca(tmp_path))
    raw = [line.split(",") for line in (tmp_path / "brca.csv").read_text().split()[1:]]
    for table, own in (
        (split.train, [i for i in range(120) if i % 5 < 4]),
        (split.test, range(4, 120, 5)),
    ):
        assert table.silos.tolist() == [i % 6 for i in own]
        np.testing.assert_allclose(
            table.x, [[float(v) for v in raw[i][1:40]] for i in own], rtol=1e-5
        )
        assert table.targets.tolist() == [[float(raw[i][41]), float(raw[i][40])] for i in own]


def test_a_patient_in_no_fold_other_columns_and_files_that_are_missing(tmp_path):
    write_tcga_brca(tmp_path)
    file, folds = tmp_path / "brca.csv", tmp_path / "train_test_split.csv"
    good, said = file.read_text(), folds.read_text()
    file.write_text(good.replace("TCGA-0002", "TCGA-9999"))
    with pytest.raises(
        DataError, match=r'brca\.csv", line 4, column "pid": wanted a pid .*"TCGA-9999".*FLamby'
    ):
        get("tcga_brca", tmp_path)
    file.write_text(
        good.replace(",f7,", ",T2,", 1).replace("f8,", "pid2,", 1).replace("f38,", "", 1)
    )
    with pytest.raises(DataError, match=r"brca\.csv.*FLamby"):
        get("tcga_brca", tmp_path)
    *before, last = good.rstrip().splitlines()
    negative = ",".join([*last.split(",")[:-1], "-3"])
    file.write_text("\n".join([*before, negative]))
    with pytest.raises(
        DataError, match=r'line 121, column "T": wanted a number of days that is 0 or more'
    ):
        get("tcga_brca", tmp_path)
    file.write_text(good)
    folds.write_text(said.replace("train_0", "train_9", 1))
    with pytest.raises(
        DataError, match=r'train_test_split\.csv", line \d+, column "fold2": wanted one of train_0'
    ):
        get("tcga_brca", tmp_path)
    folds.unlink()
    with pytest.raises(DataError, match=r"wants train_test_split\.csv .*github\.com/owkin/FLamby"):
        get("tcga_brca", tmp_path)
