"""The papers' scenarios, run from small files of the real formats."""

from __future__ import annotations

import struct

import numpy as np
import pytest

import scenarios
from raydpzv.keys import Key

FEW = ("budget.updates=20", "evaluate.every=10", "method.batch=16", "privacy.noise=seeded")


def write_idx(path, values):
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())


@pytest.fixture
def mnist(tmp_path):
    draws = (Key(1) / "pixels").generator()
    for part, rows in (("train", 200), ("t10k", 60)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", draws.integers(0, 256, (rows, 28, 28), np.uint8))
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", np.arange(rows, dtype=np.uint8) % 10)
    return tmp_path


@pytest.fixture
def cifar10(tmp_path):
    draws = (Key(2) / "pixels").generator()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = [bytes([row % 10]) + draws.integers(0, 256, 3072, np.uint8).tobytes() for row in range(40)]
        (tmp_path / name).write_bytes(b"".join(rows))
    return tmp_path


def test_mnist_with_seven_clients(mnist):
    run = scenarios.run(scenarios.load("mnist_dpzv", [f"data.folder={mnist}", *FEW]))
    assert run.summary["updates"] == 20
    assert run.summary["bytes_up"] == 20 * 16 * (4 + 2 * 64 * 4)
    assert len([name for name in run.models if name.startswith("client")]) == 7


def test_cifar10_with_four_clients(cifar10):
    run = scenarios.run(scenarios.load("cifar10_dpzv", [f"data.folder={cifar10}", *FEW]))
    assert run.summary["updates"] == 20
    assert len({values.size for name, values in run.models.items() if name != "server"}) == 1


def test_views_of_objects(tmp_path):
    draws = (Key(3) / "views").generator()
    np.savez(
        tmp_path / "views.npz",
        x=draws.standard_normal((80, 12, 1, 8, 8)).astype(np.float32),
        y=np.arange(80) % 4,
    )
    overrides = ["data.source=multiview", f"data.file={tmp_path / 'views.npz'}", "split.how=views"]
    overrides += ["split.clients=4", "model.bottom=cnn", "model.hidden=[4]", *FEW]
    run = scenarios.run(scenarios.load("digits_dpzv", overrides))
    assert run.summary["updates"] == 20


FEW_VAFL = ("budget.updates=14", "evaluate.every=7", "method.batch=16")


@pytest.mark.parametrize("name", ["mnist_vafl", "fashion_vafl"])
def test_vafl_on_images_by_rows(mnist, name):
    run = scenarios.run(scenarios.load(name, [f"data.folder={mnist}", *FEW_VAFL]))
    assert (run.summary["bytes_up"], run.summary["bytes_down"]) == (14 * 16 * 44, 14 * 16 * 40)
    assert run.models["client 0"].size == 4 * 28 * 10 + 10


def test_vafl_on_patches(cifar10):
    run = scenarios.run(scenarios.load("cifar10_vafl", [f"data.folder={cifar10}", *FEW_VAFL]))
    assert run.summary["updates"] == 14
    assert run.models["client 7"].size == 3 * 16 * 8 * 10 + 10


def test_vafl_on_a_table_of_ones_own(tmp_path):
    draws = (Key(4) / "speech").generator().standard_normal((90, 7))
    lines = ["id,a,b,c,d,e,f,class", *(",".join(map(str, [*row, i % 2])) for i, row in enumerate(draws))]
    (tmp_path / "speech.csv").write_text("\n".join(lines) + "\n")
    spec = scenarios.load("parkinson_vafl", [f"data.file={tmp_path / 'speech.csv'}", *FEW_VAFL[:2]])
    assert scenarios.run(spec).summary["updates"] == 14


def test_vafl_on_views_with_the_papers_noise(tmp_path):
    draws = (Key(3) / "views").generator()
    x = draws.standard_normal((40, 12, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "views.npz", x=x, y=np.arange(40) % 4)
    noise = ["privacy.mode=paper", "privacy.sigma=1.0", "method.layer_noise=[0.0577, 0.0577, 0.00577]"]
    spec = scenarios.load("multiview_vafl", [f"data.file={tmp_path / 'views.npz'}", *FEW_VAFL, *noise])
    run = scenarios.run(spec)
    assert run.summary["bytes_down"] == 14 * 16 * 512 * 4
    assert run.rows("release").num_rows == 14


def test_vafl_on_time_series_with_noise_on_every_layer():
    noise = ["privacy.mode=paper", "privacy.sigma=0.01", "method.layer_noise=[0.01]", "data.rows=80"]
    run = scenarios.run(scenarios.load("lstm_vafl", [*FEW_VAFL, *noise]))
    assert run.summary["updates"] == 14
