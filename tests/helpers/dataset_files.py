"""Small files of the real formats of the papers' data sets."""

import struct

import numpy as np

from raydpzv.keys import Key

TINY_RESNET = ("model.hidden=[4, 4, 8, 16]", "model.embedding=4")
TINY_TRANSFORMER = (
    "model.hidden=[8]",
    "model.embedding=4",
    "data.tokens=12",
    "data.vocabulary=200",
)


def write_idx(path, values):
    header = struct.pack(">BBBB", 0, 0, 8, values.ndim) + struct.pack(
        f">{values.ndim}I", *values.shape
    )
    path.write_bytes(header + values.tobytes())


def write_mnist(path):
    """MNIST's four IDX files: 200 and 60 random images."""
    draws = (Key(1) / "pixels").generator()
    for part, rows in (("train", 200), ("t10k", 60)):
        write_idx(
            path / f"{part}-images-idx3-ubyte", draws.integers(0, 256, (rows, 28, 28), np.uint8)
        )
        write_idx(path / f"{part}-labels-idx1-ubyte", np.arange(rows, dtype=np.uint8) % 10)
    return path


def write_cifar10(path):
    """CIFAR-10's binary version: six files of 40 random images."""
    draws = (Key(2) / "pixels").generator()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = [
            bytes([row % 10]) + draws.integers(0, 256, 3072, np.uint8).tobytes()
            for row in range(40)
        ]
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
    """pd_speech_features.csv as it is distributed: a line above the heading, 30 patients in 3
    recordings.
    """
    draws = (Key(4) / "speech").generator().standard_normal((90, 5))
    lines = [
        ",,Baseline Features,,,,TQWT Features,",
        "id,gender,PPE,DFA,RPDE,numPulses,tqwt_kurtosisValue_dec_36,class",
        *(
            ",".join(map(str, [i // 3, i // 3 % 2, *row, int(i // 3 % 4 > 0)]))
            for i, row in enumerate(draws)
        ),
    ]
    (path / "pd_speech_features.csv").write_text("\n".join(lines) + "\n")
    return path / "pd_speech_features.csv"


def write_creditcard(path, rows=400):
    """Kaggle's creditcard.csv with its quoted heading; every twentieth is a fraud."""
    draws = (Key(4) / "payments").generator().normal(3, 2, (rows, 30))
    names = ["Time", *(f"V{i}" for i in range(1, 29)), "Amount", "Class"]
    lines = [
        ",".join([*(f"{v:.6g}" for v in row), f'"{int(i % 20 == 0)}"'])
        for i, row in enumerate(draws)
    ]
    (path / "creditcard.csv").write_text(
        "\n".join([",".join(f'"{n}"' for n in names), *lines]) + "\n"
    )
    return path


HEART_ROWS = (60, 50, 24, 30)
HEART_FILES = tuple(f"processed.{c}.data" for c in ("cleveland", "hungarian", "switzerland", "va"))


def heart_records():
    """Hospital by hospital the records' fourteen columns as numbers; NaN for a gap. Labels follow
    age and cp.
    """
    draws, found = (Key(5) / "patients").generator(), []
    for rows in HEART_ROWS:
        age, cp = draws.integers(30, 75, rows), draws.integers(1, 5, rows)
        columns = [
            age,
            draws.integers(0, 2, rows),
            cp,
            draws.integers(95, 180, rows),
            draws.integers(100, 400, rows),
            draws.integers(0, 2, rows),
            draws.integers(0, 3, rows),
            draws.integers(80, 190, rows),
            draws.integers(0, 2, rows),
            draws.integers(0, 40, rows) / 10,
            np.full(rows, np.nan),
            np.full(rows, np.nan),
            np.full(rows, np.nan),
            np.where(age + 10 * cp > 78, 1 + age % 4, 0),
        ]
        found.append(np.column_stack(columns).astype(float))
        found[-1][3, 4] = np.nan  # one record of each hospital is not complete
    return found


def write_heart_disease(path):
    """The four processed files of the UCI repository, whose gaps are "?"."""
    for name, records in zip(HEART_FILES, heart_records(), strict=True):
        lines = [",".join("?" if np.isnan(v) else f"{v:.1f}" for v in row) for row in records]
        (path / name).write_text("\n".join(lines) + "\n")
    return path


def write_heart_disease_csv(path):
    """The same as one heart_disease_uci.csv, with words in place of codes."""
    chest = ("typical angina", "atypical angina", "non-anginal", "asymptomatic")
    rest, truth = ("normal", "st-t abnormality", "lv hypertrophy"), ("FALSE", "TRUE")
    lines = [
        "id,age,sex,dataset,cp,trestbps,chol,fbs,restecg,thalch,exang,oldpeak,slope,ca,thal,num"
    ]
    for name, records in zip(
        ("Cleveland", "Hungary", "Switzerland", "VA Long Beach"), heart_records(), strict=True
    ):
        for row in records:
            age, sex, cp, bps, _, fbs, ecg, top, angina, peak = row[:10]
            chol = "" if np.isnan(row[4]) else f"{row[4]:g}"
            cells = [
                len(lines),
                f"{age:g}",
                ("Female", "Male")[int(sex)],
                name,
                chest[int(cp) - 1],
                f"{bps:g}",
                chol,
                truth[int(fbs)],
                rest[int(ecg)],
                f"{top:g}",
                truth[int(angina)],
                f"{peak:g}",
                "",
                "",
                "",
                f"{row[13]:g}",
            ]
            lines.append(",".join(map(str, cells)))
    (path / "heart_disease_uci.csv").write_text("\n".join(lines) + "\n")
    return path


def write_tcga_brca(path, rows=120):
    """brca.csv and train_test_split.csv: six regions, every fifth patient for the test."""
    draws = (Key(6) / "patients").generator()
    x, times = draws.standard_normal((rows, 39)), draws.integers(1, 3000, rows)
    heading = ",".join(["pid", *(f"f{i}" for i in range(39)), "E", "T"])
    lines = [
        ",".join([f"TCGA-{i:04d}", *(f"{v:.6g}" for v in x[i]), str(i % 3 % 2), str(times[i])])
        for i in range(rows)
    ]
    folds = [
        f"TCGA-{i:04d},{'test' if i % 5 == 4 else 'train'},{'test' if i % 5 == 4 else 'train'}_{i % 6}"
        for i in range(rows)
    ]
    (path / "brca.csv").write_text("\n".join([heading, *lines]) + "\n")
    (path / "train_test_split.csv").write_text(
        "\n".join(["pid,fold,fold2", *reversed(folds)]) + "\n"
    )
    return path
