"""What has the same bits on every x86-64 processor has them as on an old one."""

import json
from pathlib import Path
from typing import Any

import pytest

import scenarios
from tests.helpers.commands import call
from tests.helpers.processors import environment, levels
from tests.helpers.programs import python, python_said

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not levels(), reason="levels of x86-64 processors"),
]

ACROSS = ("tests/golden", "tests/property/test_property_replay.py")
"""The quick part of `make test-cpus`."""
REPLAYS = """
import sys
from tests.helpers.commands import call

for path in sys.argv[1:]:
    done = call("replay", path)
    assert done.exit_code == 0, done.output
"""
KERNELS = """
import hashlib, json
import numpy as np
import torch
from raydpzv.engine.compiled import CompiledBottom, CompiledTop
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_bottom, dense_head, dense_whole
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.split_model import BottomTraining, HeadSettings, TopRows
from raydpzv.keys import Key
from raydpzv.wire.messages import PerturbedEmbeddings
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Rule, Step, Steps

key, found = Key(3), hashlib.sha256()
draw = key.generator()
x = draw.standard_normal((90, 13)).astype(np.float32)
bottom = CompiledBottom(dense_bottom("mlp", (13,), (19, 7), 3), x, x, BottomTraining(Rule("sphere", 0.9)), key)
top = CompiledTop(
    dense_head("mlp", 3, 3, (17,), 10), HeadSettings("sgd", 0.1, 0.9), key,
    TopRows(draw.integers(0, 10, 90), np.zeros(1, int), 3, 3),
)
for step in range(6):
    ids = draw.choice(90, 37, replace=False).astype(np.int32)
    plus, minus = bottom.embed_along(ids, [step, step + 50], (0.1, -0.1))
    served = top.two_point(step % 3, PerturbedEmbeddings(ids, plus, minus), step + 1, smoothing=0.1, clip=2.0)
    bottom.descend(Steps.of(Step([step, step + 50], served.sums, 0.01)))
    found.update(plus.tobytes() + minus.tobytes() + repr((served.sums, served.nonfinite, served.loss)).encode())
    found.update(served.cache.tobytes())
network = dense_whole("mlp", (13,), (19, 7), 10)
whole = CompiledObjective(network, KeptRows(torch.tensor(x), torch.from_numpy(draw.integers(0, 10, 90))))
at, seen = torch.tensor(network.initial(key)), hashlib.sha256()
descent = whole.descent(at, 0.1, 0.9)
for step in range(6):
    batches = [draw.choice(90, rows, replace=False) for rows in (37, 5)]
    along = [Direction(step + p, whole.size, ("gaussian", "sphere", "rademacher")[step % 3]) for p in (0, 9)]
    loss, gradient = whole.gradient(at, batches[0])
    slopes = whole.slopes(at, along, batches[1])
    descent.step([gradient])
    seen.update(repr((loss, slopes[0])).encode() + slopes[1].tobytes())
    for values in (whole.losses(at, along, 0.1, batches), gradient, at.numpy()):
        seen.update(values.tobytes())
score = whole.evaluate(at, torch.tensor(x), torch.zeros(90, dtype=int))
seen.update(f"Metrics(accuracy={score.accuracy!r}, loss={score.loss!r}, top_share={score.top_share!r})".encode())
print(json.dumps([found.hexdigest(), bottom.sha256(), top.sha256(), seen.hexdigest()]))
"""


def test_the_bits_do_not_hang_on_the_processor(tmp_path: Path) -> None:
    """What the code for this processor and that for an old one compute, each under other threads
    for libraries.
    """
    old = environment(levels()[0]) | {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert said(**old, OMP_NUM_THREADS="1") == RECORDED
    assert said(OMP_NUM_THREADS="2") == RECORDED


# to compile all kernels for the old processor takes minutes, and the test above is about them
OLD = {k: v for k, v in environment(levels()[0]).items() if k[:5] != "NUMBA"} if levels() else {}


@pytest.mark.timeout(900)
def test_promises_across_machines_hold_as_on_an_old_processor() -> None:
    command = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *ACROSS)
    done = python(*command, timeout=800, **OLD)
    assert done.returncode == 0, done.stdout


def test_an_old_processor_replays_runs_and_a_seed_file_of_this_one(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("digits_dpzv", "digits_decomfl", "run.seeds")]
    for folder in paths[:2]:
        spec = scenarios.load(Path(folder).name, ["model.engine=compiled", "budget.updates=15"])
        scenarios.run(spec, folder)
    assert call("publish", paths[1], "--compact", "--out", paths[2]).exit_code == 0
    python_said("-c", REPLAYS, *paths, **OLD)


def said(**environment: str) -> Any:
    """Return what the script prints as JSON."""
    return json.loads(python_said("-c", KERNELS, **environment).splitlines()[-1])


RECORDED = [
    "dfb4cf79af9d7df082db30f91247a47bc89d08e9c1f1ea09afd47dc33aa155c2",
    "a55ff27e32e29de4f16ad657807d64f31b30d3410e1d82386c2b4713a4023a0e",
    "189b74841372c0f8eda53ad87da5c3171705fd060def33fe0510eed1a19010b1",
    "165d8f7713464757cd2ac2b1670666da22171a5878ee136e8ced7ca66dab3cfd",
]
"""Of any machine: what the kernels gave when they were written."""
