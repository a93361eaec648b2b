import threading

import numpy as np
import pytest
import torch

from raydpzv.errors import InputError
from raydpzv.zo import apply_seeds as module
from raydpzv.zo import device, kernels, philox
from raydpzv.zo.apply_seeds import Base, replay
from raydpzv.zo.directions import Direction
from raydpzv.zo.update import Descent, Rule, Step

BASES: tuple[Base, ...] = ("gaussian", "rademacher")
SEEDS, COEFFICIENTS = [5, 0, (1 << 64) - 1, 5, 77], [0.3, -1.7, 1e-3, 2.5, -0.0]
SIZE = 40_000


def start() -> np.ndarray:
    return np.linspace(-1, 1, SIZE, dtype=np.float32)


def defined(law: Base, first: int = 0) -> np.ndarray:
    """One seed after the other, by the definition."""
    x, make = start(), philox.normals if law == "gaussian" else philox.signs
    for seed, coefficient in zip(SEEDS, COEFFICIENTS, strict=True):
        x = x - np.float32(coefficient) * make(seed, first, first + SIZE)
    return x


@pytest.mark.parametrize("law", BASES)
@pytest.mark.parametrize("first", [0, 1, 1024, 32768, 100_001])
def test_one_pass_is_one_seed_after_the_other(law: Base, first: int) -> None:
    x = start()
    replay(x, SEEDS, COEFFICIENTS, start=first, law=law)
    assert np.array_equal(x, defined(law, first))
    assert not np.array_equal(x, defined(law, first + 1)), "control: a shifted direction"


@pytest.mark.parametrize("law", BASES)
def test_the_order_of_the_seeds_is_kept(law: Base) -> None:
    x = start()
    replay(x, SEEDS[::-1], COEFFICIENTS[::-1], law=law)
    assert np.allclose(x, defined(law), atol=1e-5)
    assert not np.array_equal(x, defined(law)), "control: another order rounds differently"


@pytest.mark.parametrize("law", BASES)
def test_arrays_tensors_and_slices_get_the_same_bits(law: Base) -> None:
    tensor = torch.from_numpy(start())
    replay(tensor, np.array(SEEDS, np.uint64), np.array(COEFFICIENTS), law=law)
    sliced = start()
    for first, last in ((0, 3), (3, 1024), (1024, 33_000), (33_000, SIZE)):
        replay(sliced[first:last], SEEDS, COEFFICIENTS, start=first, law=law)
    assert np.array_equal(tensor.numpy(), defined(law))
    assert np.array_equal(sliced, defined(law))


@pytest.mark.parametrize("law", BASES)
def test_threads_share_the_work_and_move_no_bits(
    law: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"gaussian": "subtract_directions", "rademacher": "subtract_signs"}[law]
    compiled, both, met = getattr(kernels, name), threading.Barrier(2), set[int]()
    sizes = []

    def watched(x: np.ndarray, *rest: object) -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            both.wait(60)  # fails unless two threads are at work at the same time
        sizes.append(x.size)
        compiled(x, *rest)

    monkeypatch.setattr(kernels, name, watched)
    x = start()
    replay(x, SEEDS, COEFFICIENTS, start=100, law=law, threads=2)
    assert np.array_equal(x, defined(law, 100))
    assert (len(met), sum(sizes)) == (2, SIZE)


@pytest.mark.parametrize(
    ("size", "start", "unit", "pieces", "cuts"),
    [
        (100, 0, 32, 8, [0, 32, 64, 96, 100]),
        (100, 10, 32, 2, [0, 54, 100]),
        (5, 0, 32, 8, [0, 5]),
        (0, 7, 32, 8, [0, 0]),
    ],
)
def test_pieces_are_whole_units_of_the_direction(
    size: int, start: int, unit: int, pieces: int, cuts: list[int]
) -> None:
    assert module._cuts(size, start, unit, pieces) == cuts


def test_an_error_in_a_thread_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = threading.Event()

    def fail(*arguments: object) -> None:
        if threading.current_thread() is threading.main_thread():
            assert failing.wait(60)
            return
        failing.set()
        raise MemoryError("in a thread")

    monkeypatch.setattr(kernels, "subtract_directions", fail)
    with pytest.raises(MemoryError, match="in a thread"):
        replay(start(), SEEDS, COEFFICIENTS, threads=2)


def test_the_sphere_is_the_gaussian_with_the_factor_in_the_coefficient() -> None:
    x, expected = start(), torch.from_numpy(start())
    u = Direction(8, SIZE, "sphere")
    replay(x, [8], [0.25 * u.norm_factor])
    u.add_to(expected, -0.25)
    assert np.array_equal(x, expected.numpy())


@pytest.mark.parametrize("law", BASES)
def test_what_is_made_on_the_cpu_for_another_device_has_the_same_bits(
    law: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_COPY", 3000)
    x, out = torch.from_numpy(start()), torch.full((SIZE,), 9.0)
    arguments = np.array(SEEDS, np.uint64), np.array(COEFFICIENTS, np.float32), 77, law
    device.subtract(out, x, *arguments)
    assert np.array_equal(x.numpy(), start())
    assert np.array_equal(out.numpy(), defined(law, 77))
    device.subtract(x, x, *arguments)
    assert torch.equal(x, out)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("law", BASES)
def test_a_cuda_device_gives_the_bits_of_the_cpu(law: Base) -> None:
    x = torch.linspace(-1, 1, 100_000_000)
    there = x.cuda()
    replay(there, SEEDS, COEFFICIENTS, start=12_345, law=law)
    replay(x, SEEDS, COEFFICIENTS, start=12_345, law=law, threads=2)
    assert torch.equal(there.cpu(), x)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_and_queries_on_a_cuda_device_have_the_bits_of_the_cpu(momentum: float) -> None:
    x, rule = torch.linspace(-1, 1, 20_000_001), Rule("sphere", momentum)
    found = []
    for at in (x.clone(), x.cuda()):
        descent = Descent(at, rule)
        descent.apply([Step([seed], [0.3], 0.01) for seed in (7, 1 << 31, (1 << 64) - 1)])
        sides = [torch.empty_like(at) for _ in range(2)]
        descent.direction(5).add_both_ways(at, 1e-3, *sides)
        found.append([v.cpu() for v in (at, *descent.kept, *sides)])
    assert all(torch.equal(here, there) for here, there in zip(*found, strict=True))
    assert not torch.equal(*found[1][-2:]), "control: the two sides differ"


@pytest.mark.parametrize(
    ("x", "seeds", "coefficients", "options", "said"),
    [
        (np.zeros(4), [1], [1.0], {}, "float32"),
        (np.zeros((2, 2), np.float32), [1], [1.0], {}, "vectors"),
        (np.zeros(8, np.float32)[::2], [1], [1.0], {}, "contiguous"),
        (torch.zeros(8)[::2], [1], [1.0], {}, "contiguous"),
        (np.zeros(4, np.float32), [1, 2], [1.0], {}, "one per seed"),
        (np.zeros(4, np.float32), [-1], [1.0], {}, "whole numbers"),
        (np.zeros(4, np.float32), [1 << 64], [1.0], {}, "whole numbers"),
        (np.zeros(4, np.float32), [1.5], [1.0], {}, "whole numbers"),
        (np.zeros(4, np.float32), [1], [1.0], {"law": "sphere"}, "norm_factor"),
        (np.zeros(4, np.float32), [1], [1.0], {"law": "gausian"}, 'Did you mean "gaussian"'),
        (np.zeros(4, np.float32), [1], [1.0], {"start": -1}, "start"),
        (np.zeros(4, np.float32), [1], [1.0], {"threads": 0}, "threads"),
    ],
)
def test_what_does_not_fit_is_refused_untouched(
    x: np.ndarray | torch.Tensor,
    seeds: list[int],
    coefficients: list[float],
    options: dict,
    said: str,
) -> None:
    with pytest.raises(InputError, match=said):
        replay(x, seeds, coefficients, **options)
    assert not x.any()


def test_nothing_to_do_changes_nothing() -> None:
    x = start()
    replay(x, [], [])
    replay(x[:0], [1], [1.0], threads=2)
    assert np.array_equal(x, start())
