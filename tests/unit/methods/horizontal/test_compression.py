from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.errors import SpecError
from raydpzv.keys import Key
from raydpzv.methods.horizontal.compression import Codec, Quantised, TopK, Whole
from raydpzv.wire.messages import Slopes, pack, unpack

KEY = Key(3)
QUANTISED = Quantised(KEY)
CODECS = [Whole(), QUANTISED, TopK(0.1), TopK(0.01), TopK(1.0)]
EACH = pytest.mark.parametrize("codec", CODECS, ids=repr)


def update_of(size: int, name: str = "update") -> np.ndarray:
    return (KEY / name).generator().standard_normal(size).astype(np.float32)


@EACH
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_message_is_as_long_as_its_codec_says(codec: Codec, size: int) -> None:
    body = codec.encode(update_of(size), 4, 9)
    assert body.wire_bytes == len(body.encode()) == codec.wire_bytes(size)


@pytest.mark.parametrize(
    ("codec", "size"),
    [(Whole(), 4000), (QUANTISED, 1004), (TopK(0.1), 800), (TopK(0.05), 400), (TopK(0.0101), 88)],
    ids=repr,
)
def test_the_sizes_of_a_thousand_parameters_by_hand(codec: Codec, size: int) -> None:
    assert codec.wire_bytes(1000) == size


@EACH
def test_a_decoded_update_is_float32_and_survives_the_wire(codec: Codec) -> None:
    update = update_of(57)
    body = codec.encode(update, 4, 9)
    decoded = codec.decode(unpack(pack(body)), 57)
    assert (decoded.dtype, decoded.shape) == (np.float32, (57,))
    assert decoded.tobytes() == codec.decode(body, 57).tobytes()
    assert update.tobytes() == update_of(57).tobytes()  # encoding left it alone


@pytest.mark.parametrize("codec", [Whole(), TopK(1.0)], ids=repr)
def test_what_keeps_everything_loses_nothing(codec: Codec) -> None:
    update = update_of(57)
    assert codec.decode(codec.encode(update, 0, 1), 57).tobytes() == update.tobytes()


@EACH
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_arrives_as_not_finite(codec: Codec, value: float) -> None:
    update = update_of(57)
    update[41] = value
    assert not np.isfinite(codec.decode(codec.encode(update, 0, 1), 57)).all()


@EACH
def test_an_update_of_zeros_stays_zero(codec: Codec) -> None:
    zeros = np.zeros(57, np.float32)
    assert codec.decode(codec.encode(zeros, 0, 1), 57).tobytes() == zeros.tobytes()


@EACH
def test_another_codecs_message_is_refused(codec: Codec) -> None:
    with pytest.raises(TypeError, match="Slopes"):
        codec.decode(Slopes(update_of(3)), 3)


Q_SIZE, DRAWS = 500, 200


def nearest(update: np.ndarray) -> np.ndarray:
    step = float(np.abs(update).max()) / 127
    return np.round(update.astype(np.float64) / step) * step


def excess(update: np.ndarray, decoded_draws: list[np.ndarray]) -> float:
    """Squared error of the draws' mean over what independent unbiased rounding gives: 1 if that is
    what it is.
    """
    step = float(np.abs(update).max()) / 127
    fraction = np.mod(update.astype(np.float64) / step, 1)
    expected = step**2 * (fraction * (1 - fraction)).sum() / len(decoded_draws)
    error = np.mean([d.astype(np.float64) for d in decoded_draws], 0) - update
    return float((error**2).sum() / expected)


def draws_of(address: Callable[[int], tuple[int, int]]) -> list[np.ndarray]:
    update = update_of(Q_SIZE)
    return [QUANTISED.decode(QUANTISED.encode(update, *address(i)), Q_SIZE) for i in range(DRAWS)]


def test_quantisation_is_unbiased_and_independent_over_rounds_and_clients() -> None:
    update = update_of(Q_SIZE)
    # the ratio's own deviation is about sqrt(2 / 500) = 0.06
    assert 0.7 < excess(update, draws_of(lambda i: (2, i))) < 1.3
    assert 0.7 < excess(update, draws_of(lambda i: (i, 2))) < 1.3
    # controls: rounding to the nearest level, and the same coins every time
    assert excess(update, [nearest(update)] * DRAWS) > 50
    assert excess(update, draws_of(lambda i: (2, 2))) > 50


def test_a_quantised_entry_is_less_than_one_level_off() -> None:
    update = update_of(20_000)
    scale = float(np.abs(update).max())
    error = np.abs(QUANTISED.decode(QUANTISED.encode(update, 1, 1), update.size) - update)
    assert error.max() < scale / 127 * (1 + 1e-6)
    assert error.max() > 0.9 * scale / 127  # stochastic: to the nearest would be within a half
    assert error[np.abs(update) == scale] < 1e-6 * scale


def test_quantisation_depends_on_key_client_and_round_alone() -> None:
    update = update_of(100)
    first = QUANTISED.encode(update, 1, 2).encode()
    assert QUANTISED.encode(update, 1, 2).encode() == first
    others = [(QUANTISED, 1, 3), (QUANTISED, 2, 2), (QUANTISED, 2, 1), (Quantised(Key(4)), 1, 2)]
    assert all(
        codec.encode(update, client, round).encode() != first for codec, client, round in others
    )


@pytest.mark.parametrize("size", [1, 9, 128, 1000])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_top_k_keeps_what_numpys_argpartition_finds(size: int, share: float) -> None:
    update = update_of(size)
    body = TopK(share).encode(update, 0, 1)
    kept = body.indices.size
    assert (kept - 1) / size < share <= kept / size
    reference = np.argpartition(np.abs(update), size - kept)[size - kept :]
    assert body.indices.tolist() == sorted(reference.tolist())
    assert body.values.tobytes() == update[np.sort(reference)].tobytes()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    values=st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]), min_size=1, max_size=12),
    percent=st.integers(1, 100),
)
def test_among_equals_the_lower_place_comes_first(values: list[float], percent: int) -> None:
    body = TopK(percent / 100).encode(np.array(values, np.float32), 0, 1)
    ranked = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    assert body.indices.tolist() == sorted(ranked[: -(-percent * len(values) // 100)])


def test_a_share_counts_as_the_decimal_it_is_written_as() -> None:
    assert TopK(0.07).kept(100) == 7  # 0.07 * 100 is 7.000000000000001 in floating point
    assert all(TopK(p / 100).kept(10_000) == 100 * p for p in range(1, 101))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(SpecError, match=r"choose one in \(0, 1\]"):
        TopK(share)
