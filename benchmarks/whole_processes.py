"""Peak memory of whole processes that train by DeComFL: `raydpzv run`, the authors' program, and
its loop alone.

All read the same generated pictures from MNIST's files, in two sizes; 100 clients, 10 in a round
with 10 perturbations, a batch of 32. `--theirs FOLDER` is a copy of github.com/ZidongLiu/DeComFL,
`--theirs-python PYTHON` has what it needs. The loop (`published`) needs torch and numpy, and as
little of this program as it imports. Peaks are of resident memory.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from common import environment, median, options, show, verdict, write

from raydpzv.keys import Key

SIZES = {"60,000 and 10,000 rows": (60_000, 10_000), "4,000 and 1,000 rows": (4000, 1000)}
TARGET = 1.0
"""Peak of `raydpzv run` over that of the authors' program, at most."""
_SHAPE, _CLASSES = (28, 28), 10
_ROUNDS = 20
_THEIRS = (
    "decomfl_main.py",
    "--dataset=mnist",
    "--no-cuda",
    "--num-clients=100",
    "--num-sample-clients=10",
    "--train-batch-size=32",
    "--num-pert=10",
    "--momentum=0.5",
    "--lr=1e-3",
    "--iterations=3",
    "--eval-iterations=0",
)
_LOOP = "import sys, whole_processes; whole_processes.loop(sys.argv[1])"


def pictures(folder: Path, train: int, test: int) -> None:
    """Write random pictures and labels as MNIST's four files."""
    folder.mkdir(parents=True)
    generator = (Key(0) / "pictures").generator()
    for name, rows in (("train", train), ("t10k", test)):
        for what, shape in (("images-idx3", (rows, *_SHAPE)), ("labels-idx1", (rows,))):
            values = generator.integers(0, 256 if len(shape) > 1 else _CLASSES, shape, np.uint8)
            head = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
            (folder / f"{name}-{what}-ubyte").write_bytes(head + values.tobytes())


def loop(folder: str) -> None:
    """Do rounds as published on MNIST's files, and nothing else."""
    import torch
    from published import Constants, Published, as_published

    from raydpzv.data.horizontal import split_rows
    from raydpzv.methods.horizontal.rounds import Cohorts
    from raydpzv.models.whole import cnn_mnist
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection

    key, clients = Key(0), 100
    raw = {
        name: np.fromfile(Path(folder) / f"train-{name}-ubyte", np.uint8)
        for name in ("images-idx3", "labels-idx1")
    }
    x = (
        torch.from_numpy(raw["images-idx3"][16:].reshape(-1, 1, *_SHAPE))
        .float()
        .div_(255)
        .sub_(0.1307)
        .div_(0.3081)
    )
    y = torch.from_numpy(raw["labels-idx1"][8:].astype(np.int64))
    del raw
    parts = split_rows(y.numpy(), HorizontalSplitSection(how="iid", clients=clients), key / "parts")
    network = as_published(cnn_mnist((1, *_SHAPE), (), _CLASSES))  # type: ignore[arg-type]
    found = Published(
        network, x, y, parts, Cohorts(clients, 10, key), Constants(10, 1e-3, 1e-3, 32), key
    )
    for number in range(1, _ROUNDS + 1):
        found.round(number)


def peak(command: list[str], folder: Path, **given: str) -> float:
    """Return the peak of a process's resident memory in MB; SystemExit if it fails."""
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **given}, stdout=subprocess.DEVNULL, stderr=said
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            raise SystemExit(said.read().decode()[-2000:])
    return used.ru_maxrss * 1024 / 1e6


def measure(
    home: Path, rows: tuple[int, int], theirs: Path | None, python: str, turn: int
) -> dict[str, float]:
    """Return the peak of every program on pictures in so many rows, MB."""
    here, root = Path(__file__).parent, Path(__file__).parents[1]
    data = home / "data" / "MNIST" / "raw"  # where torchvision looks for them
    if not data.exists():
        pictures(data, *rows)
    changes = (f"data.folder={data}", f"budget.updates={_ROUNDS}", "evaluate.every=10")
    ours = [
        "-m",
        "raydpzv",
        "run",
        "mnist_decomfl",
        *(part for change in changes for part in ("--set", change)),
    ]
    found = {
        "raydpzv": peak(
            [sys.executable, *ours, "--quiet", "--out", str(home / str(turn))],
            home,
            PYTHONPATH=str(root),
        ),
        "loop": peak(
            [sys.executable, "-c", _LOOP, str(data)], home, PYTHONPATH=f"{root}{os.pathsep}{here}"
        ),
    }
    if theirs is not None:
        first, *others = _THEIRS
        found["authors"] = peak([python, str(theirs / first), *others], home, PYTHONPATH="")
    return found


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--theirs", type=Path, metavar="FOLDER", help="a copy of the authors' program"
    )
    parser.add_argument(
        "--theirs-python", default=sys.executable, metavar="PYTHON", help="what runs it"
    )
    chosen = parser.parse_args()
    before, figures, rows = environment(), {}, []
    for name, size in SIZES.items():
        with tempfile.TemporaryDirectory() as home:
            turns = [
                measure(
                    Path(home),
                    (400, 100) if chosen.quick else size,
                    chosen.theirs,
                    chosen.theirs_python,
                    turn,
                )
                for turn in range(1 if chosen.quick else chosen.repeats or 3)
            ]
        figures[name] = turns
        peaks = {program: median([turn[program] for turn in turns]) for program in turns[0]}
        ratio = peaks["raydpzv"] / peaks["authors"] if "authors" in peaks else math.nan
        target = TARGET if "authors" in peaks else None
        cells = [f"{taken:.0f}" for taken in peaks.values()]
        rows.append([name, *cells, f"{ratio:.2f}", verdict(ratio, target, at_most=True)])
    programs = [
        "raydpzv run, MB",
        "their loop alone, MB",
        *(["authors' program, MB"] if chosen.theirs else []),
    ]
    columns = ["pictures", *programs, "ratio", "target"]
    show("Peak memory of whole processes", columns, rows)
    write("whole_processes", {"figures": figures, "environment": before}, chosen.json)


if __name__ == "__main__":
    main()
