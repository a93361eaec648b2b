import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.errors import DataError, InputError
from raydpzv.keys import Key


class Prefix(nn.Module):
    """Counts the batches that it is called on."""

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.calls: list[int] = []
        nn.init.constant_(self.layer.weight, 0.5)
        nn.init.constant_(self.layer.bias, bias)

    def forward(self, x):
        CALLS.append((tuple(x.shape), self.training, torch.is_grad_enabled()))
        return self.layer(x).relu()


CALLS: list[object] = []
X = Key(0).generator().normal(size=(10, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _calls():
    CALLS.clear()


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir())


def test_features_are_those_of_the_module(tmp_path):
    module = Prefix()
    found = raydpzv.features(module, X, batch=4, folder=tmp_path)
    assert np.allclose(found, np.maximum(X.sum(1, keepdims=True) * [0.5, 0.5], 0), atol=1e-6)
    assert found.dtype == np.float32
    assert isinstance(found, np.memmap)
    assert not found.flags.writeable
    assert set(CALLS[2:]) == {((4, 3), False, False)}, "always as many records, in evaluation"
    assert module.training


def test_a_second_call_reads_the_file(tmp_path):
    first = raydpzv.features(Prefix(), X, batch=4, folder=tmp_path)
    CALLS.clear()
    second = raydpzv.features(Prefix(), torch.tensor(X), batch=4, folder=tmp_path)
    assert CALLS == []
    assert np.array_equal(first, second)
    assert files(tmp_path) == [".json", ".lock", ".npy"]


@pytest.mark.parametrize("other", ["weights", "rows", "batch"])
def test_another_module_or_record_is_computed_anew(tmp_path, other):
    first = raydpzv.features(Prefix(), X, batch=4, folder=tmp_path)
    CALLS.clear()
    module = Prefix(1.0) if other == "weights" else Prefix()
    second = raydpzv.features(
        module, X + (other == "rows"), batch=5 if other == "batch" else 4, folder=tmp_path
    )
    assert CALLS
    assert np.allclose(first, second) == (other == "batch")


def test_a_changed_file_is_computed_again(tmp_path):
    first = np.array(raydpzv.features(Prefix(), X, folder=tmp_path))
    calls = len(CALLS)
    (path,) = tmp_path.glob("*.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))
    assert np.array_equal(raydpzv.features(Prefix(), X, folder=tmp_path), first)
    assert len(CALLS) == 2 * calls


def test_the_record_names_digests_and_no_rows(tmp_path):
    raydpzv.features(Prefix(), X, folder=tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert set(json.loads(path.read_text())) == {"module", "records", "batch", "torch", "sha256"}


def test_the_default_folder_is_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    raydpzv.features(Prefix(), X)
    assert files(tmp_path / "raydpzv" / "features") == [".json", ".lock", ".npy"]


def test_whole_numbers_stay_whole(tmp_path):
    ids = np.array([[1, 2], [2, 0]], np.int32)
    module = nn.Embedding(3, 2)
    found = raydpzv.features(module, ids, folder=tmp_path)
    assert np.array_equal(found, module(torch.tensor(ids)).detach().numpy())


def test_progress_is_told_while_it_takes_long(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("raydpzv.feature_cache._SAID_EVERY", 0.0)
    told: list[tuple[int, int]] = []
    raydpzv.features(
        Prefix(),
        X,
        batch=4,
        folder=tmp_path,
        progress=lambda done, all_, _: told.append((done, all_)),
    )
    assert told == [(4, 10), (8, 10)]
    raydpzv.features(Prefix(), X, batch=5, folder=tmp_path)
    assert "features: 5 of 10 records, about 0 s left" in capsys.readouterr().err


class Failing(nn.Module):
    """Fails in the named way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x):
        if self.way == "raises":
            raise ValueError("no such layer")
        if self.way == "pooled":
            return x.mean(0, keepdim=True)
        return x / 0 if self.way == "infinite" else (x, x)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (
            "raises",
            r"fails on records 0 to 9, \[64, 3\] of torch.float32 \(ValueError: no such layer\)",
        ),
        ("pooled", r"wanted a tensor \[64, ...\] of 64 records, got \(1, 3\)"),
        ("pair", "got tuple"),
        ("infinite", "record 0 has features that are not finite"),
    ],
)
def test_a_module_that_fails_is_refused_and_leaves_no_file(tmp_path, way, text):
    with pytest.raises(InputError, match=text):
        raydpzv.features(Failing(way), X, folder=tmp_path)
    assert files(tmp_path) == [".lock"]


class Mixing(nn.Module):
    """Mixes records in the named way, after a layer that does not."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.first = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=way == "stored")
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        if self.way in ("batch", "stored"):
            x = self.norm(x)
        if self.way == "neighbour":
            x = x + x.roll(1, 0)
        if self.way == "random":
            x = nn.functional.dropout(x, 0.5, training=True)
        return self.last(x)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        (
            "batch",
            r'depend on the other records of its batch, first in its layer "norm" \(BatchNorm1d\)',
        ),
        (
            "neighbour",
            r'depend on the other records of its batch, first in its layer "last" \(Linear\)',
        ),
        ("random", "two calls on the same records differ"),
    ],
)
@pytest.mark.parametrize("batch", [3, 64])
def test_features_that_depend_on_other_records_are_refused_by_their_layer(
    tmp_path, way, text, batch
):
    with pytest.raises(InputError, match=text):
        raydpzv.features(Mixing(way), X, batch=batch, folder=tmp_path)
    assert files(tmp_path) == [".lock"]


@pytest.mark.parametrize("way", ["stored", "none"])
@pytest.mark.parametrize("rows", [1, 10])
def test_features_of_a_record_alone_pass_the_check(tmp_path, way, rows):
    found = raydpzv.features(Mixing(way), X[:rows], folder=tmp_path)
    assert found.shape == (rows, 2)


class Pooled(nn.Module):
    """Adds the mean of a batch of token ids, so that equal records hide that it mixes them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 2)

    def forward(self, ids):
        h = self.words(ids)
        return h + h.mean(0, keepdim=True)


@pytest.mark.parametrize("batch", [2, 4])
@pytest.mark.parametrize("others", [[[3, 1, 2]], []], ids=["another at the end", "all equal"])
def test_equal_records_do_not_hide_a_layer_that_mixes(tmp_path, batch, others):
    ids = np.array([*[[1, 2, 3]] * 6, *others])
    with pytest.raises(InputError, match="depend on the other records of its batch"):
        raydpzv.features(Pooled(), ids, batch=batch, folder=tmp_path)
    assert raydpzv.features(nn.Embedding(9, 2), ids, batch=batch, folder=tmp_path).shape == (
        len(ids),
        3,
        2,
    )


@pytest.mark.parametrize(("wrong", "row"), [(9, 0), (-1, 0), (9, 5)])
def test_an_id_beyond_the_embedding_is_named_with_its_layer(tmp_path, wrong, row):
    ids = np.arange(18).reshape(6, 3) % 9
    ids[row, 1] = wrong
    complaint = (
        rf"features: records have the token id {wrong}, wanted whole numbers in 0\.\.8 \(layer"
        r" \"words\"\)"
    )
    with pytest.raises(InputError, match=complaint):
        raydpzv.features(
            nn.Sequential(OrderedDict(words=nn.Embedding(9, 2))), ids, batch=2, folder=tmp_path
        )


def test_an_interrupted_computation_leaves_no_file(tmp_path):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    class Interrupted(Prefix):
        def forward(self, x):
            return stop() if len(CALLS) == 2 else super().forward(x)

    with pytest.raises(KeyboardInterrupt):
        raydpzv.features(Interrupted(), X, batch=4, folder=tmp_path)
    assert files(tmp_path) == [".lock"]


@pytest.mark.parametrize(
    ("module", "x", "batch", "kind", "said"),
    [
        (Prefix, X, 64, InputError, r"wanted an nn\.Module, got type"),
        (Prefix(), X, 0, InputError, "batch wants a whole number of at least 1, got 0"),
        (
            Prefix(),
            X[:0],
            64,
            DataError,
            r"x has the shape \(0, 3\): wanted at least one record",
        ),
        (
            Prefix(),
            np.array([["a"]]),
            64,
            DataError,
            r'x holds "a" in row 0 .*, column 0, which is no number',
        ),
    ],
)
def test_wrong_input_is_refused(tmp_path, module, x, batch, kind, said):
    with pytest.raises(kind, match=said):
        raydpzv.features(module, x, batch=batch, folder=tmp_path)


def test_a_folder_without_room_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*give a folder with room"):
        raydpzv.features(Prefix(), X, folder=tmp_path / "file")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 3})())
    with pytest.raises(InputError, match="10 records need 0 MiB"):
        raydpzv.features(Prefix(), X, folder=tmp_path)
