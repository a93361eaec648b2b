import numpy as np

from raydpzv.secure.masks import Masks

N = 2**200 + 1


def pair_key(i: int, j: int) -> bytes:
    return bytes([*sorted((i, j))] * 16)


def masks(silos: int) -> list[Masks]:
    return [Masks(i, {j: pair_key(i, j) for j in range(silos) if j != i}) for i in range(silos)]


def total(
    silos: tuple[int, ...], among: tuple[int, ...], *address: int
) -> tuple[list[int], list[int]]:
    """The masks of `silos` added up, each made for a sum `among` those: modulo 2^64 and modulo
    n.
    """
    all_of, words, residues = masks(4), np.zeros(3, np.uint64), [0, 0, 0]
    for s in silos:
        words += all_of[s].words(among, 3, "sum", *address)
        residues = [
            (a + b) % N
            for a, b in zip(residues, all_of[s].residues(among, 3, N, "sum", *address), strict=True)
        ]
    return words.tolist(), residues


def test_they_cancel_among_those_who_take_part() -> None:
    for among in ((0, 1, 2, 3), (0, 2, 3), (1, 3)):
        assert total(among, among, 5, 0) == ([0] * 3, [0] * 3)


def test_they_do_not_cancel_for_one_silo_missing() -> None:
    words, residues = total((0, 1, 2), (0, 1, 2, 3), 5, 0)
    assert all(10**12 < word < 2**64 - 10**12 for word in words)
    assert all(2**150 < residue < N - 2**150 for residue in residues)


def test_every_round_attempt_purpose_and_silo_has_another_mask() -> None:
    all_of = masks(3)
    drawn = [
        silo.words((0, 1, 2), 4, purpose, round, number).tobytes()
        for silo in all_of
        for purpose in ("sum", "counts")
        for round in (1, 2)
        for number in (0, 1)
    ]
    assert len(set(drawn)) == len(drawn) == 24


def test_masks_are_uniform() -> None:
    words = masks(3)[1].words((0, 1, 2), 20_000, "sum", 1, 0)
    residues = np.array(
        [float(m % N / N) for m in masks(3)[1].residues((0, 1, 2), 20_000, N, "sum", 1, 0)]
    )
    for shares in (words / 2.0**64, residues):
        # Kolmogorov: p < 1e-2 at .0115
        assert np.abs(np.sort(shares) - np.arange(20_000) / 20_000).max() < 0.012


def test_one_alone_has_none() -> None:
    assert masks(2)[0].words((0,), 2, "sum", 1, 0).tolist() == [0, 0]
