"""Small files of the real formats of the papers' data sets."""

from __future__ import annotations

import struct

import numpy as np

from raydpzv.keys import Key

TINY_RESNET = ("model.hidden=[4, 4, 8, 16]", "model.embedding=4")
TINY_TRANSFORMER = ("model.hidden=[8]", "model.embedding=4", "data.tokens=12", "data.vocabulary=200")


def write_idx(path, values):
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())


def write_mnist(path):
    """MNIST's four IDX files: 200 and 60 random images."""
    draws = (Key(1) / "pixels").generator()
    for part, rows in (("train", 200), ("t10k", 60)):
        write_idx(path / f"{part}-images-idx3-ubyte", draws.integers(0, 256, (rows, 28, 28), np.uint8))
        write_idx(path / f"{part}-labels-idx1-ubyte", np.arange(rows, dtype=np.uint8) % 10)
    return path


def write_cifar10(path):
    """CIFAR-10's binary version: six files of 40 random images."""
    draws = (Key(2) / "pixels").generator()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = [bytes([row % 10]) + draws.integers(0, 256, 3072, np.uint8).tobytes() for row in range(40)]
        (path / name).write_bytes(b"".join(rows))
    return path


def write_views(path, size=8):
    """Objects in 12 views, with the test rows of their own that ModelNet40 has."""
    draws = (Key(3) / "views").generator()
    arrays = {
        f"{name}{part}": values
        for part, rows in (("", 40), ("_test", 12))
        for name, values in (
            ("x", draws.integers(0, 256, (rows, 12, 1, size, size), np.uint8)),
            ("y", np.arange(rows) % 4),
        )
    }
    np.savez(path / "modelnet40.npz", **arrays)
    return path / "modelnet40.npz"


def write_reviews(path, form):
    """Amazon Review Polarity in one of its two forms; words tell the class."""
    for part, rows in (("train", 80), ("test", 20)):
        texts = [
            (1 + i % 2, f"number {i}", ("awful ", "lovely ")[i % 2] * (1 + i % 5) + "thing")
            for i in range(rows)
        ]
        csv_lines = [f'"{label}","{title}","{text}"' for label, title, text in texts]
        ft_lines = [f"__label__{label} {title}: {text}" for label, title, text in texts]
        lines = csv_lines if form == "csv" else ft_lines
        (path / f"{part}.{form}").write_text("\n".join(lines) + "\n")
    return path


def write_speech(path):
    """pd_speech_features.csv as it is distributed: a line above the heading, 30 patients in 3 recordings."""
    draws = (Key(4) / "speech").generator().standard_normal((90, 5))
    lines = [
        ",,Baseline Features,,,,TQWT Features,",
        "id,gender,PPE,DFA,RPDE,numPulses,tqwt_kurtosisValue_dec_36,class",
        *(",".join(map(str, [i // 3, i // 3 % 2, *row, int(i // 3 % 4 > 0)])) for i, row in enumerate(draws)),
    ]
    (path / "pd_speech_features.csv").write_text("\n".join(lines) + "\n")
    return path / "pd_speech_features.csv"
