import ast
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raydpzv.seed_file.seed_format import decode_seed_file, encode_seed_file
from raydpzv.seed_file.seed_replay import read_seed_file, rebuilt
from raydpzv.seed_file.tensor_file import RawTensor, write_tensors
from tests.golden.test_golden_seed_files import FOLDER
from tests.helpers.seed_samples import base_tensors, header, sample, summed, vectors, with_header
from tests.helpers.shapes import statements

ROOT = Path(__file__).parents[3]
NUMPY, SCRIPT = ROOT / "examples" / "read_seeds.py", ROOT / "examples" / "read_seeds.js"
NODE = shutil.which("node")
READERS = [
    "numpy",
    pytest.param(
        "javascript", marks=pytest.mark.skipif(NODE is None, reason="node is not installed")
    ),
]


def read(
    reader: str, file: Path, folder: Path, base: dict[str, RawTensor] | None = None
) -> subprocess.CompletedProcess[str]:
    """Let a reader write a file's models into a folder. base: first weights of its own, {} for no
    file of them.
    """
    write_tensors(folder / "base.safetensors", base_tensors() if base is None else base)
    program = [sys.executable, str(NUMPY)] if reader == "numpy" else [str(NODE), str(SCRIPT)]
    command = [*program, str(file), *(["base.safetensors"] if base != {} else [])]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def model(reader: str, folder: Path) -> bytes:
    """The bytes of the model that a reader wrote."""
    if reader == "numpy":
        found: np.ndarray = np.load(folder / "shared.npy")
        assert found.dtype == np.float32
        return found.tobytes()
    return (folder / "shared.f32").read_bytes()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", vectors())
def test_a_reader_gives_the_bits_of_raydpzv(reader, name, tmp_path):
    path = FOLDER / f"{name}.seeds"
    file = read_seed_file(path)
    done = read(reader, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert model(reader, tmp_path) == rebuilt(file, file.models[0], base_tensors()).tobytes()


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_finds_damage_and_refuses_other_laws_and_rules(reader, tmp_path):
    data, wrong = encode_seed_file(sample()), tmp_path / "wrong.seeds"
    about = header(data)
    other = {**about, "models": [{**about["models"][0], "result": "00" * 32}]}
    base = {**about, "models": [{**about["models"][0], "initial": "00" * 32}]}
    cases = {
        data[:-1]: "seed file",
        data[:40] + bytes([data[40] ^ 1]) + data[41:]: "seed file",
        data[:5] + b"\2" + data[6:]: "seed file",
        summed(data[:5] + b"\2" + data[6:-32]): "seed file",
        with_header(data, about | {"law": "torch_normal"}): "torch_normal",
        with_header(data, about | {"rule": {"name": "adam"}}): "adam",
        with_header(data, other): "shared has other bits",
        with_header(data, base): "other first weights",
    }
    for content, says in cases.items():
        wrong.write_bytes(content)
        done = read(reader, wrong, tmp_path)
        assert done.returncode == 1, says
        assert says in done.stderr
    assert not list(tmp_path.glob("shared*"))


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_names_missing_first_weights(reader, tmp_path):
    file = FOLDER / "weights.seeds"
    for base, says in (
        ({}, "give the public weights"),
        ({"other": RawTensor.of(np.zeros(2, np.float32))}, "has no tensor"),
    ):
        done = read(reader, file, tmp_path, base)
        assert done.returncode == 1
        assert says in done.stderr


def test_readers_are_short_and_use_nothing_of_raydpzv():
    assert statements(NUMPY.read_text()) <= 100
    assert len(SCRIPT.read_text().splitlines()) <= 150
    imported = {
        alias.name
        for node in ast.walk(ast.parse(NUMPY.read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported == {"hashlib", "io", "json", "sys", "zlib", "numpy"}
    assert "raydpzv" not in SCRIPT.read_text()


def test_vectors_hold_every_kind_that_readers_know():
    files = [decode_seed_file((FOLDER / f"{name}.seeds").read_bytes()) for name in vectors()]
    assert {file.law for file in files} == {"gaussian", "sphere", "rademacher", "rank_one"}
    models = [file.models[0] for file in files]
    assert {model.form for model in models} == {"float32", "float16", "sign"}
    assert {t.start for m in models for t in m.tensors} == {
        "stored",
        "constant",
        "uniform",
        "weights",
    }
    assert max(model.size for model in models) > 32_768  # more than a tile of signs
