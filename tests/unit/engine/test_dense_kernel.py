"""exp and log against mpmath, and the same bits whatever processor the kernels are compiled for."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp, mpf

from raydpzv.engine import dense_kernel
from raydpzv.keys import Key

mp.prec = 200
EPSILON = 2.0**-52
PROCESSORS = {"generic": (), "haswell": ("avx2",), "skylake-avx512": ("avx512f", "avx512bw", "avx512vl")}
"""Names that LLVM compiles for (SSE2, AVX2, AVX-512), and what the machine must have to run that."""
KERNELS = """
import hashlib, json
import numpy as np
import torch
from raydpzv.engine.compiled import CompiledBottom, CompiledTop
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_bottom, dense_head, dense_whole
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.split_model import BottomTraining, HeadSettings
from raydpzv.keys import Key
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Rule, Step

key, found = Key(3), hashlib.sha256()
draw = key.generator()
x = draw.standard_normal((90, 13)).astype(np.float32)
bottom = CompiledBottom(dense_bottom("mlp", (13,), (19, 7), 3), x, x, BottomTraining(Rule("sphere", 0.9)), key)
top = CompiledTop(
    dense_head("mlp", 3, 3, (17,), 10), HeadSettings("sgd", 0.1, 0.9), key, draw.integers(0, 10, 90), [0],
    clients=3, width=3,
)
for step in range(6):
    ids = draw.choice(90, 37, replace=False).astype(np.int32)
    plus, minus = bottom.embed_along(ids, [step, step + 50], (0.1, -0.1))
    served = top.two_point(step % 3, ids, plus, minus, step + 1, smoothing=0.1, clip=2.0)
    bottom.descend([Step([step, step + 50], served.sums, 0.01)])
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
    for values in (whole.losses(at, along, 0.1, batches), gradient.numpy(), at.numpy()):
        seen.update(values.tobytes())
seen.update(repr(whole.evaluate(at, torch.tensor(x), torch.zeros(90, dtype=int))).encode())
print(json.dumps([found.hexdigest(), bottom.sha256(), top.sha256(), seen.hexdigest()]))
"""


def features() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    return set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


def drawn(low: float, high: float, count: int) -> list[float]:
    return (Key(1) / "points").generator().uniform(low, high, count).tolist()


def test_exp_is_within_two_units_of_the_last_place() -> None:
    points = [*drawn(-708, 709, 3000), *drawn(-1, 1, 1000), 0.0, -0.0, 1e-300, -1e-300, -708.0, 709.0]
    # where k changes, the remainder is largest
    edges = [(n + 0.5) * math.log(2) for n in range(-1000, 1000, 7)]
    for x in [*points, *(np.nextafter(e, s) for e in edges for s in (-1e9, 1e9))]:
        true = mp.exp(mpf(x))
        assert abs((mpf(dense_kernel.exp(x)) - true) / true) <= 2 * EPSILON, x


def test_log_is_within_two_units_of_the_last_place() -> None:
    near_one = [1 + n * EPSILON for n in (1, 2, 3, 1000, 10**9)] + [
        1 - n * EPSILON / 2 for n in (1, 3, 10**9)
    ]
    points = [math.exp(x) for x in drawn(-708, 709, 3000)] + drawn(0.5, 2.0, 2000) + near_one
    for x in [*points, 5e-324, 2.0**-1022, sys.float_info.max, math.sqrt(0.5), math.sqrt(2)]:
        true = mp.log(mpf(x))
        assert abs((mpf(dense_kernel.log(x)) - true) / true) <= 2 * EPSILON, x
    assert dense_kernel.log(1.0) == 0.0


def test_edges() -> None:
    exp, log = dense_kernel.exp, dense_kernel.log
    assert [exp(0.0), exp(-0.0), exp(5e-324), exp(-5e-324)] == [1.0] * 4
    assert [exp(-math.inf), exp(-1e300), exp(-709.0)] == [0.0] * 3
    assert [exp(math.inf), exp(1e300), exp(710.0)] == [math.inf] * 3
    assert [log(0.0), log(-0.0), log(math.inf)] == [-math.inf, -math.inf, math.inf]
    assert all(math.isnan(x) for x in (exp(math.nan), log(math.nan), log(-1.0), log(-math.inf)))


def test_both_never_decrease() -> None:
    for name, low, high in (("exp", -10.0, 10.0), ("log", 0.1, 10.0)):
        function = getattr(dense_kernel, name)
        values = [function(x) for x in np.linspace(low, high, 20_001).astype(np.float32).astype(float)]
        assert values == sorted(values)
    tiny = [dense_kernel.exp(np.float64(x)) for x in np.float32([-1e-45, 0.0, 1e-45, 1e-38])]
    assert tiny == sorted(tiny)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86-64 processors")
def test_the_bits_do_not_hang_on_the_processor(tmp_path: Path) -> None:
    """What the code for this processor and that for SSE2 compute, and each under other threads for libraries.

    RAYDPZV_EVERY_PROCESSOR=1: that for AVX2 and AVX-512 as well, where the machine can run it.
    """
    able = [name for name, needed in PROCESSORS.items() if set(needed) <= features()]
    for threads, name in enumerate(able if os.environ.get("RAYDPZV_EVERY_PROCESSOR") else able[:1], 1):
        compiled_for = {
            "NUMBA_CPU_NAME": name,
            "NUMBA_CPU_FEATURES": "",
            "NUMBA_CACHE_DIR": str(tmp_path / name),
        }
        assert computed({**compiled_for, "OMP_NUM_THREADS": str(threads)}) == RECORDED, name
    assert computed({"OMP_NUM_THREADS": "2"}) == RECORDED


def computed(environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", KERNELS],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    digests: list[str] = json.loads(done.stdout.splitlines()[-1])
    return digests


RECORDED = [
    "dfb4cf79af9d7df082db30f91247a47bc89d08e9c1f1ea09afd47dc33aa155c2",
    "a55ff27e32e29de4f16ad657807d64f31b30d3410e1d82386c2b4713a4023a0e",
    "189b74841372c0f8eda53ad87da5c3171705fd060def33fe0510eed1a19010b1",
    "165d8f7713464757cd2ac2b1670666da22171a5878ee136e8ced7ca66dab3cfd",
]
"""Of any machine: what the kernels gave when they were written."""
