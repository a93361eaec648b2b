"""Runs that name code, as somebody else would send them: what they hold can be changed, and the
record's digest with it.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import tomli_w

from raydpzv.config.toml import tree_sha256
from raydpzv.config.tree import read_toml
from tests.helpers.commands import call
from tests.helpers.programs import Forked, said

MODULE = "victims"
"""A module of the reader's own project: each import and each call leaves a line in a file."""
SOURCE = '''
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from raydpzv.methods.horizontal.decomfl import DECOMFL, DecomflConfig

def note(what):
    with Path(__file__).with_name("canary").open("a") as file:
        file.write(what + "\\n")

note("imported")

def rows():
    note("rows")
    x = np.random.default_rng(0).standard_normal((60, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)

class Net(nn.Sequential):
    def __init__(self, shape, outputs: int, spoken: str = "Net"):
        note(spoken)
        super().__init__(nn.Linear(shape[0], 3), nn.Tanh(), nn.Linear(3, outputs))

def part(shape, embedding: int, spoken: str = "part"):
    note(spoken)
    return nn.Linear(shape[0], embedding)

def loss(scores, y):
    note("loss")
    return nn.functional.cross_entropy(scores, y, reduction="none")

def metrics(scores, y):
    note("metrics")
    return {"near": float((scores.argmax(1) == y).mean())}

def weights():
    note("weights")
    return Net((4,), 2).state_dict()

@dataclass(frozen=True)
class Config(DecomflConfig):
    """A method of the user's own."""

    name: str = "mine"
    """The method."""

METHOD = replace(DECOMFL, config=Config)
'''
_DATA = {"source": f"{MODULE}:rows", "scale": "none", "classes": [0, 1], "test_fraction": 0.2}
_SHORT = {"budget": {"updates": 3}, "evaluate": {"every": 1}}
SCENARIOS = {
    "horizontal": {
        "data": _DATA,
        "split": {"how": "iid", "clients": 3},
        "model": {"kind": f"{MODULE}:Net", "loss": f"{MODULE}:loss", "targets": "classes"},
        "method": {"name": "decomfl", "cohort": 2, "batch": 4},
        **_SHORT,
        "evaluate": {"every": 1, "metrics": f"{MODULE}:metrics"},
    },
    "vertical": {
        "data": {**_DATA, "split": "plain"},
        "split": {"how": "columns", "clients": 2},
        "model": {"bottom": f"{MODULE}:part", "embedding": 2, "head": "sum"},
        "method": {"name": "dpzv", "batch": "all", "server": "frozen"},
        "privacy": {
            "mode": "proved", "epsilon": 1.0, "clip": 0.1, "trust": ["model"], "adversary": "client",
        },
        **_SHORT,
    },
    "method": {
        "data": {"source": "digits", "train_rows": 60, "test_rows": 30},
        "split": {"how": "iid", "clients": 3},
        "model": {"kind": "mlp", "hidden": [3]},
        "method": {"name": f"{MODULE}:METHOD", "cohort": 2, "batch": 4},
        **_SHORT,
    },
}  # fmt: skip
_SPACE = "method.lr.choice = [0.01, 0.02]\n"


def project(folder: Path) -> Path:
    """Write the reader's project: its module, and the scenarios."""
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(SOURCE)
    for name, tree in SCENARIOS.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps(tree))
    (folder / "space.toml").write_text(_SPACE)
    return folder


def make(project: Path, name: str) -> Path:
    """Make a run, a comparison or a search below the project, which is the working folder."""
    if name == "search":
        by_itself("tune", "method.toml", "--space", "space.toml", "--out", "made-search")
    else:
        comparison = ["compare", "method.toml", "--seeds", 1, "--jobs", 1, "--runner", "local"]
        words = comparison if name == "comparison" else ["run", f"{name}.toml"]
        made = call(*words, "--out", f"made-{name}", "--quiet")
        # after three updates all classes may be predicted as one, which a comparison calls failed
        assert made.exit_code == 0 or "comparison: " in made.output, made.output
    forget()
    (project / "canary").unlink()
    return project / f"made-{name}"


def by_itself(*words: object) -> None:
    """Run a command in a process of its own, whose Ray finds the modules of the working folder."""
    said(Forked(["-m", "raydpzv", *map(str, words), "--quiet"]))


def forget() -> None:
    """Leave the module to be imported again."""
    sys.modules.pop(MODULE, None)
    sys.path[:] = [place for place in sys.path if not (Path(place) / f"{MODULE}.py").exists()]


def sent(made: Path, to: Path) -> Path:
    """Copy a folder as somebody else sends it: without the marks of who made it."""
    shutil.copytree(made, to, symlinks=True)
    for path in to.rglob("*.mark"):
        path.unlink()
    return to


def rewrite(folder: Path, change, plan: str = "scenario.toml") -> None:
    """Change a scenario's tree, and the digest on record with it."""
    tree = read_toml((folder / plan).read_text())
    change(tree)
    (folder / plan).write_text(tomli_w.dumps(tree))
    if plan == "scenario.toml":
        rejson(folder / "environment.json", scenario_sha256=tree_sha256(tree))


def rejson(path: Path, **values) -> None:
    """Change a JSON file's values; None deletes one."""
    found = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not None}))


def contents(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return what a folder holds, with modes and times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(folder))] = (stat.st_mode, stat.st_mtime_ns, data)
    return found


def trap(folder: Path, name: str, target: Path) -> None:
    """Put a symbolic link in the place of something in a folder."""
    path = folder / name
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, path)
