"""Files of named tensors, against the safetensors library both ways, and files that are cut or
lie.
"""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raydpzv.errors import DataError, InputError
from raydpzv.seed_file.tensor_file import RawTensor, frozen_sha256, read_tensors, write_tensors
from tests.helpers.loading import refusal

GIVEN = {
    "w": torch.arange(6.0).view(2, 3) / 7,
    "half": torch.tensor([0.1, -2.0], dtype=torch.float16),
    "brain": torch.tensor([0.1, -2.0], dtype=torch.bfloat16),
    "ids": torch.tensor([1, 2, 3]),
}


@pytest.fixture
def file(tmp_path):
    save_file(GIVEN, tmp_path / "given.safetensors", {"format": "pt"})
    return tmp_path / "given.safetensors"


def test_what_the_library_writes_is_read(file):
    found = read_tensors(file)
    assert found.keys() == GIVEN.keys()
    for name in ("w", "half", "brain"):
        values = found[name].values
        assert values.dtype == np.float32
        assert np.array_equal(values, GIVEN[name].float().numpy())
    assert found["ids"].values is None


def test_the_library_reads_what_is_written(file, tmp_path):
    write_tensors(tmp_path / "deep" / "again.safetensors", read_tensors(file))
    again = load_file(tmp_path / "deep" / "again.safetensors")
    assert all(
        torch.equal(again[name], value) and again[name].dtype == value.dtype
        for name, value in GIVEN.items()
    )
    other = tmp_path / "other.safetensors"
    write_tensors(other, read_tensors(file))
    assert other.read_bytes() == (tmp_path / "deep" / "again.safetensors").read_bytes()


def test_a_checkpoint_of_torch_is_read(tmp_path):
    torch.save(GIVEN, tmp_path / "given.pt")
    found = read_tensors(tmp_path / "given.pt")
    assert np.array_equal(found["w"].values, GIVEN["w"].numpy())
    assert "ids" not in found


def test_cut_files_are_refused_in_one_line(file, tmp_path):
    data, wrong = file.read_bytes(), tmp_path / "wrong.safetensors"
    for length in (0, 4, 20, len(data) - 1):
        wrong.write_bytes(data[:length])
        with refusal(DataError, "is no whole safetensors file"):
            read_tensors(wrong)
    with pytest.raises(DataError, match="cannot be read"):
        read_tensors(tmp_path / "none.safetensors")


@pytest.mark.parametrize(
    "about",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 9999]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-4, 4]},
        {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": "F32"},
        7,
    ],
)
def test_headers_that_lie_are_refused(about, tmp_path):
    text = json.dumps({"a": about}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(DataError, match="is no whole safetensors file"):
        read_tensors(tmp_path / "a.safetensors")


def test_a_folder_is_no_place_for_a_file(tmp_path):
    with pytest.raises(InputError, match="cannot write the weights"):
        write_tensors(tmp_path, {"a": RawTensor.of(np.zeros(1, np.float32))})


def test_frozen_weights_have_one_digest_in_any_order_and_format(file, tmp_path):
    tensors = read_tensors(file)
    digest = frozen_sha256(tensors, {"w"})
    assert len(digest) == 32
    assert frozen_sha256(dict(reversed(tensors.items())), {"w"}) == digest
    torch.save(GIVEN, tmp_path / "given.pt")
    assert frozen_sha256(read_tensors(tmp_path / "given.pt"), {"w"}) == digest
    assert frozen_sha256(tensors, {"half"}) != digest
    assert frozen_sha256({"w": tensors["w"], "ids": tensors["ids"]}, {"w"}) == b""


def test_the_digest_of_frozen_weights_is_the_one_that_the_page_specifies():
    """By sorted name: `name [shape]`, a line feed, float32 values. Integers and trained ones are
    left out.
    """
    tensors = {
        "b.weight": RawTensor.of(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "a": RawTensor("F16", (1,), np.array([0.5], "<f2").tobytes()),
        "scale": RawTensor.of(np.array(3, np.float32)),
        "ids": RawTensor("I64", (1,), bytes(8)),
        "trained": RawTensor.of(np.ones(2, np.float32)),
    }
    many = [f"a{letter}" for letter in "zyxwvutsrqponmlkjihgfedcba"]
    tensors |= {name: RawTensor.of(np.zeros(1, np.float32)) for name in many}
    text = b"a [1]\n" + np.array([0.5], "<f4").tobytes()
    text += b"".join(f"{name} [1]\n".encode() + bytes(4) for name in sorted(many))
    text += b"b.weight [2, 3]\n" + np.arange(6, dtype="<f4").tobytes()
    text += b"scale []\n" + np.array([3], "<f4").tobytes()
    assert frozen_sha256(tensors, {"trained"}) == hashlib.sha256(text).digest()
    other = tensors | {"ids": RawTensor("I64", (1,), bytes([1] * 8))}
    assert frozen_sha256(other, {"trained"}) == frozen_sha256(tensors, {"trained"})
