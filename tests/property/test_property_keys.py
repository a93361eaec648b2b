"""Different addresses give different streams; direction seeds cannot collide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.errors import InputError
from raydpzv.keys import (
    PARTY_BITS,
    PERTURBATION_BITS,
    STEP_BITS,
    DirectionSeeds,
    Key,
    direction_seed,
    perturbation_seeds,
    step_seed,
)

MASK = (1 << 64) - 1
PARTS = st.one_of(
    st.text(max_size=3), st.integers(-20, 20), st.integers(), st.sampled_from(["1", "-1", "s", "i"])
)
PATHS = st.lists(PARTS, max_size=4).map(tuple)
TRIPLES = st.tuples(
    st.integers(0, 2**PARTY_BITS - 1),
    st.integers(0, 2**STEP_BITS - 1),
    st.integers(0, 2**PERTURBATION_BITS - 1),
)
quick = settings(max_examples=300, deadline=None, derandomize=True)


@quick
@given(seed=st.integers(), other=st.integers(), a=PATHS, b=PATHS)
def test_different_addresses_have_different_streams(
    seed: int, other: int, a: tuple, b: tuple
) -> None:
    one, two = Key(seed, a), Key(other, b)
    assert (one.digest() == two.digest()) == (one == two)
    assert (one.seed64() == two.seed64()) == (one == two)


@quick
@given(path=PATHS, data=st.data())
def test_where_a_path_is_cut_matters(path: tuple, data: st.DataObject) -> None:
    """Joining two neighbouring parts, or turning a number into its digits, is another address."""
    path = ("x", *path, "y")
    i = data.draw(st.integers(0, len(path) - 2))
    for between in ("", "s", "i"):  # as a digest marks text and numbers
        joined = (*path[:i], f"{path[i]}{between}{path[i + 1]}", *path[i + 2 :])
        assert Key(1, path).digest() != Key(1, joined).digest()
    for j, part in enumerate(path):
        if isinstance(part, int):
            assert Key(1, path).digest() != Key(1, (*path[:j], str(part), *path[j + 1 :])).digest()


def step_of(seed: int, key: Key) -> tuple[int, int]:
    """The inverse of `step_seed`, on words of 54 bits: that it exists is the proof of no
    collisions.
    """
    words = (key / "step").digest(16)
    before, after = (int.from_bytes(words[i : i + 8], "little") >> 10 for i in (0, 8))
    ones = (1 << 54) - 1
    x = unxorshift(seed >> 10 ^ after, 31)
    x = unxorshift(x * pow(0x94D049BB133111EB, -1, 1 << 54) & ones, 27)
    x = unxorshift(x * pow(0xBF58476D1CE4E5B9, -1, 1 << 54) & ones, 30)
    packed = ((x - 0x9E3779B97F4A7C15) & ones) ^ before
    return packed >> 32, packed & 0xFFFFFFFF


def numbered(direction: int) -> tuple[int, int]:
    """The inverse of `perturbation_seeds`: the step's seed and the direction's number."""
    x = unxorshift(direction, 31)
    x = unxorshift(x * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK, 27)
    x = unxorshift(x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK, 30)
    x = (x - 0x9E3779B97F4A7C15) & MASK
    return x & ~0x3FF, x & 0x3FF


@quick
@given(run=st.integers(0, 1000), triple=TRIPLES)
def test_a_direction_tells_its_step_and_number(run: int, triple: tuple[int, int, int]) -> None:
    party, step, number = triple
    seed = step_seed(Key(run), party, step)
    (direction,) = perturbation_seeds(seed, [number]).tolist()
    assert numbered(direction) == (seed, number)
    assert step_of(seed, Key(run)) == (party, step)
    assert seed != step_seed(Key(run + 1), party, step)


def unxorshift(x: int, shift: int) -> int:
    y = x
    for _ in range(64 // shift + 1):
        y = x ^ (y >> shift)
    return y


def triple_of(seed: int, key: Key) -> tuple[int, int, int]:
    """The inverse of `direction_seed`, step by step backwards: that it exists is the proof of no
    collisions.
    """
    words = (key / "direction").digest(16)
    before, after = int.from_bytes(words[:8], "little"), int.from_bytes(words[8:], "little")
    x = unxorshift(seed ^ after, 31)
    x = unxorshift(x * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK, 27)
    x = unxorshift(x * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK, 30)
    packed = ((x - 0x9E3779B97F4A7C15) & MASK) ^ before
    return packed >> 42, packed >> 10 & 0xFFFFFFFF, packed & 0x3FF


@quick
@given(run=st.integers(0, 1000), triple=TRIPLES)
def test_a_direction_seed_can_be_inverted(run: int, triple: tuple[int, int, int]) -> None:
    assert triple_of(direction_seed(Key(run), *triple), Key(run)) == triple


@quick
@given(run=st.integers(0, 1000), triple=TRIPLES)
def test_another_run_has_another_seed(run: int, triple: tuple[int, int, int]) -> None:
    assert direction_seed(Key(run), *triple) != direction_seed(Key(run + 1), *triple)


@settings(quick, max_examples=50)
@given(run=st.integers(0, 1000), triple=TRIPLES, perturbations=st.sampled_from([1, 2, 7]))
def test_seeds_of_many_steps_are_those_of_one(
    run: int, triple: tuple[int, int, int], perturbations: int
) -> None:
    party, step, _ = triple
    seeds = DirectionSeeds(Key(run), perturbations)
    for one in (step, max(step - 1, 0), step ^ 64, step):
        wanted = [direction_seed(Key(run), party, one, p) for p in range(perturbations)]
        assert seeds.of(party, one).tolist() == wanted


@pytest.mark.parametrize("address", [(1 << 22, 0), (0, 1 << 32), (-1, 0), (0, -1)])
def test_there_are_no_seeds_outside_a_runs_addresses(address: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="no direction seed"):
        DirectionSeeds(Key(0), 1).of(*address)
    with pytest.raises(InputError, match="perturbation 1024 is outside"):
        DirectionSeeds(Key(0), 1025).of(0, 0)
