import numpy as np
import pytest
import torch

from raydpzv.keys import Key, direction_seed
from raydpzv.zo.directions import LAWS, Direction, Law
from raydpzv.zo.philox import normals


@pytest.mark.parametrize("size", [1, 7, 1024, 5000])
def test_a_sphere_direction_has_norm_root_d_over_all_parameters(size: int) -> None:
    for seed in range(20):
        u = Direction(seed, size, "sphere").values().astype(np.float64)
        assert np.isclose(np.linalg.norm(u), np.sqrt(size), rtol=1e-6)
    parts = [
        np.linalg.norm(Direction(3, 5000, "sphere").values(a, b))
        for a, b in ((0, 2000), (2000, 5000))
    ]
    assert np.isclose(np.hypot(*parts), np.sqrt(5000), rtol=1e-6)
    assert not np.isclose(parts[0], np.sqrt(2000), rtol=1e-4), (
        "normalised over each layer by itself"
    )


def test_control_a_gaussian_direction_is_not_normalised() -> None:
    norms = [np.linalg.norm(Direction(seed, 100).values()) for seed in range(20)]
    assert np.std(norms) > 0.3


def test_the_sphere_is_the_gaussian_times_one_factor() -> None:
    z, u = normals(9, 0, 3000), Direction(9, 3000, "sphere").values()
    factor = np.sqrt(3000 / np.sum(z.astype(np.float64) ** 2))
    assert np.allclose(u, z * factor, rtol=1e-6, atol=0)
    assert np.array_equal(Direction(9, 3000).values(), z)


def misses_the_identity(u_ND: np.ndarray) -> bool:
    """Whether the mean of u uᵀ is more than 5 standard errors from I somewhere (an entry's variance
    is <= 2).
    """
    n, d = u_ND.shape
    return bool(np.abs(u_ND.T @ u_ND / n - np.eye(d)).max() > 5 * np.sqrt(2 / n))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_second_moment_is_the_identity(law: Law) -> None:
    count, size = 15_000, 6
    seeds = [direction_seed(Key(1), 0, step) for step in range(count)]
    u = np.stack([Direction(seed, size, law).values() for seed in seeds]).astype(np.float64)
    assert not misses_the_identity(u)
    assert np.abs(u.mean(0)).max() < 5 / np.sqrt(count)
    assert misses_the_identity(u * 1.05)
    assert misses_the_identity(u / np.sqrt(size)), "the unit sphere"
    assert misses_the_identity(u + 0.2 * np.roll(u, 1, axis=1)), "correlated elements"


@pytest.mark.parametrize("law", LAWS)
def test_adding_writes_where_it_is_told(law: Law) -> None:
    direction = Direction(4, 2000, law)
    x = torch.linspace(-1, 1, 500)
    before, out = x.clone(), torch.empty(500)
    direction.add_to(x, 0.25, start=1200, out=out)
    assert torch.equal(x, before)
    expected = x.double() + 0.25 * torch.from_numpy(direction.values(1200, 1700)).double()
    assert torch.allclose(out.double(), expected, rtol=0, atol=1e-6)
    direction.add_to(x, 0.25, start=1200)
    assert torch.equal(x, out)
