"""The generator's bits, written down: a change here changes every recorded run."""

import hashlib

import numpy as np
import pytest

from raydpzv.zo import numba_kernel, philox
from raydpzv.zo.directions import Direction

COUNT = 10_000
# seed, sha256 of the first 10,000 normals (little-endian float32), elements 0, 256, 512, 768 and
# 1024, Σ z²
GOLDEN = [
    (
        0,
        "e6b23dff1ad08b9e6040d038a74ec707e794a536a96835cc4f0b98a2579842e7",
        ("-0x1.42d892p+0", "-0x1.fcdafap-2", "0x1.05052ep-2", "-0x1.7b506ep-1", "-0x1.2833dap-1"),
        "0x1.3e93c7948b9f6p+13",
    ),
    (
        0x0123456789ABCDEF,
        "c3be86b38923ed9c366515ad9f23ecc4225fc239507530b16dc844d437089194",
        ("-0x1.38c304p-1", "-0x1.10d1e8p-1", "-0x1.34d20ep-3", "0x1.1e8d52p+1", "-0x1.3629ep-1"),
        "0x1.3b71bc88a8ef4p+13",
    ),
    (
        (1 << 64) - 1,
        "97c1b36c060a3df909ec6fec809cdaefe9db6fa2c1680bcb930e2aa064128ba9",
        ("-0x1.397ef8p+0", "0x1.4f193ep-2", "0x1.c6dfd4p-1", "0x1.99a024p-2", "0x1.ba3de4p-2"),
        "0x1.3f5da6beb948ap+13",
    ),
]
# seed, sha256 of the first 100,000 signs (little-endian float32), their sum
GOLDEN_SIGNS = [
    (0, "b16b09d58f5a43c8f63924cb558c32f34432e2cc5609d12813aafbaca95a6e97", 594),
    (0x0123456789ABCDEF, "ebf291071bb9b4392173db9b14ab2d37fe08d719676f1c1c61ae4fd6dbd9c5dc", -184),
    ((1 << 64) - 1, "0c92fc8e44ce7467718f5277309c7dbae34257a16a85f3dfb35637ff1b54993c", 18),
]


@pytest.mark.parametrize(("seed", "digest", "some", "squares"), GOLDEN)
def test_ten_thousand_normals_of_a_seed(
    seed: int, digest: str, some: tuple[str, ...], squares: str
) -> None:
    defined, compiled = philox.normals(seed, 0, COUNT), Direction(seed, COUNT).values()
    for z in (defined, compiled):
        assert [float(v) for v in z[[0, 256, 512, 768, 1024]]] == [float.fromhex(v) for v in some]
        assert hashlib.sha256(z.astype("<f4").tobytes()).hexdigest() == digest
    assert numba_kernel.squared_norm(np.uint64(seed), COUNT) == float.fromhex(squares)


@pytest.mark.parametrize(("seed", "digest", "total"), GOLDEN_SIGNS)
def test_a_hundred_thousand_signs_of_a_seed(seed: int, digest: str, total: int) -> None:
    for signs in (philox.signs(seed, 0, 100_000), Direction(seed, 100_000, "rademacher").values()):
        assert signs.sum() == total
        assert hashlib.sha256(signs.astype("<f4").tobytes()).hexdigest() == digest
