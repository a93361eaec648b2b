"""Seeds and streams of some addresses, written down: a change here changes every recorded run."""

import pytest

from raydpzv.keys import Key, direction_seed, perturbation_seeds, step_seed

# key, digest(), seed64(), three 32-bit draws of its generator
ADDRESSES = [
    (
        Key(0),
        "531e584433159a8f13da2b77063d177d",
        1773224693680816015,
        [3751347129, 1707621072, 771509820],
    ),
    (
        Key(7) / "client" / 3,
        "3094068b6f6951e6d126ee6f4ce80f44",
        11402959831529516338,
        [2884649067, 220779533, 1500479660],
    ),
    (
        Key(7) / "client" / "3",
        "b7fbbd3f8081096c478bba6b91dace3d",
        8478959921937738270,
        [1522362109, 1982189679, 4175165062],
    ),
    (
        Key(-1) / "é" / 0,
        "98f628cb42339d0d476b7f7d7652dbc5",
        12020491313282019467,
        [2031294448, 1794098027, 3997404320],
    ),
]
# run seed, party, step, perturbation, direction seed
DIRECTIONS = [
    (0, 0, 0, 0, 15934371271141096241),
    (0, 0, 0, 1, 16651099181674425692),
    (0, 0, 1, 0, 10323770252612043112),
    (0, 1, 0, 0, 18322372989207383378),
    (7, (1 << 22) - 1, (1 << 32) - 1, 1023, 12976013774848682665),
]
# run seed, party, step, the step's seed, the seeds of its directions 0, 1 and 1023
STEPS = [
    (
        0,
        0,
        0,
        12506305790077392896,
        [13050648383579491186, 9161637047322072582, 9929365143471868619],
    ),
    (0, 0, 1, 2136478098136624128, [592928409096827770, 18037886551975800226, 5392734363362432605]),
    (
        0,
        1,
        0,
        5618455845074857984,
        [14770153769117079053, 13471766009505715866, 15084375640862459324],
    ),
    (
        7,
        (1 << 22) - 1,
        (1 << 32) - 1,
        17502092870998473728,
        [1435110887191406726, 13047802956360259543, 3359804274605299507],
    ),
]


@pytest.mark.parametrize(("key", "digest", "seed", "draws"), ADDRESSES)
def test_an_address_keeps_its_stream(key: Key, digest: str, seed: int, draws: list[int]) -> None:
    assert key.digest().hex() == digest
    assert key.seed64() == seed
    assert key.generator().integers(0, 1 << 32, 3).tolist() == draws


@pytest.mark.parametrize(("run", "party", "step", "perturbation", "seed"), DIRECTIONS)
def test_a_direction_keeps_its_seed(
    run: int, party: int, step: int, perturbation: int, seed: int
) -> None:
    assert direction_seed(Key(run), party, step, perturbation) == seed


@pytest.mark.parametrize(("run", "party", "step", "seed", "directions"), STEPS)
def test_a_step_keeps_its_seed_and_its_directions(
    run: int, party: int, step: int, seed: int, directions: list[int]
) -> None:
    assert step_seed(Key(run), party, step) == seed
    assert perturbation_seeds(seed, [0, 1, 1023]).tolist() == directions
