"""The Triton kernels without a GPU: run by Triton's interpreter, and compiled for one to look at
the instructions.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from raydpzv import zo
from raydpzv.zo import device, philox
from tests.helpers.programs import Forked, said

ROOT = Path(__file__).parents[3]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

INTERPRETED = """
import numpy as np, torch
from raydpzv.zo import device, triton_kernel
law, start, size, count = {case!r}
x = torch.linspace(-1, 1, size)
seeds = np.array([5, 0, 2**64 - 1, 2**32, 99], np.uint64)[:count]
scales = np.array([0.3, -1.7, 1e-3, 2.5, -0.7], np.float32)[:count]
found, expected = torch.full((size,), 9.0), torch.full((size,), 8.0)
triton_kernel.subtract(found, x, seeds, scales, start, law)
device.made_on_cpu(expected, x, seeds, scales, start, law)
assert torch.equal(x, torch.linspace(-1, 1, size)), "the source was changed"
assert np.array_equal(found.numpy().view(np.uint32), expected.numpy().view(np.uint32))
device.made_on_cpu(expected, x, seeds, scales, start + 1, law)
assert size == 0 or count == 0 or not torch.equal(found, expected), "control: a shifted direction"
triton_kernel.subtract(x, x, seeds, scales, start, law)
assert torch.equal(x, found), "in place"
if law == "rademacher" and count == 5:
    zeros = [torch.full((300,), -0.0) for _ in range(2)]
    for subtract, x in zip((triton_kernel.subtract, device.made_on_cpu), zeros):
        subtract(x, x, seeds[2:4], np.zeros(2, np.float32), 0, law)
    assert zeros[0].signbit().any() and torch.equal(*(x.signbit() for x in zeros)), "the seeds that are not there"
"""

ONE_SEED = """
import numpy as np, torch
from raydpzv.zo import kernels, triton_kernel
triton_kernel._CHUNK, size, seed = 2048, 5000, np.uint64({seed})
x = torch.linspace(-1, 1, size)
found, expected = torch.empty(2, size), torch.empty(2, size)
triton_kernel.add_both_ways(*found, x, seed, float(np.float32(0.7)))
kernels.add_both_ways(*expected.numpy(), x.numpy(), seed, np.float32(0.7))
assert torch.equal(found, expected)
assert triton_kernel.squared_norm("cpu", seed, size) == kernels.squared_norm(seed, size)
assert triton_kernel.squared_norm("cpu", seed, size) != kernels.squared_norm(seed, size - 1), "control"
amounts = np.array([0.9, -0.37, 1e-3], np.float32)
there, expected = torch.stack([x, x + 2]), torch.stack([x, x + 2]).numpy()
triton_kernel.descend(*there, seed, tuple(amounts.tolist()))
expected[1] *= amounts[0]
kernels.subtract_directions(expected[1], np.array([seed]), amounts[1:2], 0)
kernels.add_scaled(expected[0], expected[1], -amounts[2])
assert np.array_equal(there.numpy(), expected)
"""

COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from raydpzv.zo import triton_kernel
types = dict(out="*fp32", x="*fp32", keys="*i32", coefficients="*fp32", count="i32", size="i32", start="i64")
types["LANES"] = "constexpr"
types |= dict(other="*fp32", v="*fp32", z="*fp32", sums="*fp64", k0="i32", k1="i32", tiles="i32")
types |= dict.fromkeys(("c", "momentum", "lr"), "fp32")
single = dict(BOTH=True, LANES=256, SUMS=32)
for kernel in (triton_kernel._one, triton_kernel._steps, triton_kernel._add_squares):
    known = {name: single[name] for name in kernel.arg_names if name in single}
    own = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    source, target = ASTSource(kernel, own, known), GPUTarget("cuda", 90, 32)
    ptx = compile(source, target=target, options=triton_kernel.EXACT).asm["ptx"]
    print(kernel.__name__, False, ptx.count("fma."), ptx.count("sqrt.rn.f32"))
for kernel, lanes in ((triton_kernel._normals, 256), (triton_kernel._signs, 128)):
    types = {name: types[name] for name in kernel.arg_names if name in types}
    # Triton compiles a 1 among the arguments as a constant
    constants = dict(LANES=lanes, count=1, start=1)
    ones = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    assert "fma." not in compile(ones, target=GPUTarget("cuda", 90, 32), options=triton_kernel.EXACT).asm["ptx"]
    source = ASTSource(kernel, types, {"LANES": lanes})
    for options in (triton_kernel.EXACT, triton_kernel.EXACT | {"enable_fp_fusion": True}):
        ptx = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        print(kernel.__name__, options["enable_fp_fusion"], ptx.count("fma."), ptx.count("sqrt.rn.f32"))
"""


def run(code: str, folder: Path, **environment: str) -> str:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # Triton reads the source of what it compiles
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_triton
@pytest.mark.parametrize(
    "case",
    [
        ("gaussian", 0, 1500, 1),
        ("gaussian", 1019, 1030, 3),
        ("gaussian", (1 << 42) - 500, 900, 2),
        ("gaussian", 3, 40, 0),
        ("rademacher", 32768 * 3 - 300, 700, 5),
        pytest.param(("rademacher", (1 << 47) - 40_000, 50_000, 3), marks=pytest.mark.slow),
        pytest.param(("rademacher", 0, 32_768, 4), marks=pytest.mark.slow),
    ],
)
def test_interpreted_kernels_give_the_bits_of_the_cpu(
    case: tuple[str, int, int, int], tmp_path: Path
) -> None:
    run(INTERPRETED.replace("{case!r}", repr(case)), tmp_path, TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("seed", [0, 2**31 + 5, 2**64 - 1])
def test_interpreted_kernels_of_one_seed_give_the_bits_of_the_cpu(
    seed: int, tmp_path: Path
) -> None:
    run(ONE_SEED.replace("{seed}", str(seed)), tmp_path, TRITON_INTERPRET="1")


@needs_triton
def test_compiled_kernels_have_no_fused_multiply_add(tmp_path: Path) -> None:
    found = {
        tuple(line.split()[:2]): line.split()[2:] for line in run(COMPILED, tmp_path).splitlines()
    }
    assert found["_normals", "False"] == ["0", "4"]
    assert found["_signs", "False"] == found["_add_squares", "False"] == ["0", "0"]
    assert found["_one", "False"] == found["_steps", "False"] == ["0", "4"]
    assert int(found["_normals", "True"][0]) > 20, "control: with fusion they appear"


def test_a_cuda_tensor_goes_to_triton_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    made = ModuleType("raydpzv.zo.triton_kernel")
    made.subtract = lambda *arguments: calls.append("triton")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "raydpzv.zo.triton_kernel", made)
    monkeypatch.setattr(zo, "triton_kernel", made, raising=False)
    monkeypatch.setattr(device, "made_on_cpu", lambda *arguments: calls.append("cpu"))
    for is_cuda, has_triton in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(device, "has_triton", lambda has=has_triton: has)
        x = SimpleNamespace(is_cuda=is_cuda)
        device.subtract(x, x, np.zeros(1, np.uint64), np.ones(1, np.float32), 0, "gaussian")  # type: ignore[arg-type]
    assert calls == ["triton", "cpu", "cpu"]


def test_the_core_starts_without_triton() -> None:
    code = "import sys, raydpzv.zo.update; assert 'raydpzv.zo.triton_kernel' not in sys.modules"
    said(Forked(["-c", code]))


def test_the_kernels_constants_are_the_definitions() -> None:
    """A second opinion that needs no Triton: every constant of the definition stands in the
    kernels' source.
    """
    text = (ROOT / "raydpzv" / "zo" / "triton_kernel.py").read_text()
    numbers = {np.float32(v) for v in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)}
    for value in (*philox.LOG, *philox.SIN, *philox.COS, philox.MINUS_2_LN2):
        assert value in numbers
    for word in (
        philox.MULTIPLIER_0,
        philox.MULTIPLIER_1,
        philox.WEYL_0,
        philox.WEYL_1,
        philox.SQRT_HALF_BITS,
    ):
        assert f"0x{word:X}" in text
