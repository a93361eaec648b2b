from dataclasses import fields

import numpy as np
import pytest

from raydpzv.keys import Key
from raydpzv.wire import messages, secure_sums, seeds, weights
from raydpzv.wire.messages import Body, pack, unpack

P, B, E, N, K = 3, 5, 4, 7, 2
W, S = 16, 3  # bytes of a residue, silos


def floats(*shape: int) -> np.ndarray:
    return Key(0).generator().standard_normal(shape).astype(np.float32)


def residues(*shape: int) -> np.ndarray:
    return Key(1).generator().integers(0, 256, shape).astype(np.uint8)


SEEDS = np.arange(K * P, dtype=np.uint64).reshape(K, P) + np.uint64(2**63)
IDS = np.arange(B, dtype=np.int32)[::-1].copy()
LONG = IDS.astype(np.int64)
# an example of every body, and its bytes on the wire by hand
BODIES: list[tuple[Body, int]] = [
    (messages.Start(), 0),
    (messages.Acknowledged(), 0),
    (messages.Evaluate(), 0),
    (messages.TestEmbeddings(floats(N, E)), 0),
    (messages.SaveState(), 0),
    (messages.ClientState(IDS.astype(np.int64), floats(2, E)), 0),
    (
        messages.ClientModels(
            IDS, LONG, floats(B, 1, E), np.full(B, K * P, np.int64), floats(B * K * P)
        ),
        0,
    ),
    (
        messages.LedgerHistory(
            LONG, LONG, IDS, LONG, LONG, IDS, LONG.view(np.uint64), floats(B), floats(B)
        ),
        0,
    ),
    (messages.Embeddings(IDS, floats(B, E)), 4 * B + 4 * B * E),
    (messages.EmbeddingsAndMore(IDS, floats(B, E), IDS[:K], floats(K, E)), 4 * (B + K) * (1 + E)),
    (
        messages.PerturbedEmbeddings(IDS, floats(P, B, E), floats(P, B, E) + 1),
        4 * B + 2 * P * B * E * 4,
    ),
    (messages.Slopes(floats(P)), 4 * P),
    (messages.Query(IDS), 4 * B),
    (messages.GradientRequest(np.array([3])), 8),
    (messages.FreshEmbeddings(IDS, floats(B, E)), 4 * B + 4 * B * E),
    (messages.EmbeddingPair(IDS, floats(B, E), floats(B, E) + 1), 4 * B + 2 * 4 * B * E),
    (messages.Gradient(floats(B, E)), 4 * B * E),
    (messages.LossDifference(floats(1)), 4),
    (messages.LossDifferences(floats(P)), 4 * P),
    (messages.CompressedEmbeddings(IDS, np.arange(B, dtype=np.uint8), floats(2)), 4 * B + B + 8),
    (messages.CompressedAnswer(np.arange(B, dtype=np.uint8), floats(2)), B + 8),
    (messages.Rows(IDS), 4 * B),
    (messages.GradientAndRows(floats(B, E), IDS), 4 * B * E + 4 * B),
    (seeds.CatchUp(SEEDS[:, 0], floats(K * P), SEEDS[:, 1]), 8 * K + 4 * K * P + 8 * K),
    (seeds.PulledModel(floats(2, N), SEEDS[:, 0]), 4 * 2 * N + 8 * K),
    (seeds.Scalars(floats(K, P)), 4 * K * P),
    (seeds.AgentSeeds(SEEDS[:, 0], floats(K * P), SEEDS[:, 1]), 0),
    (seeds.AgentScalars(floats(K, P)), 0),
    (seeds.Tail(SEEDS[:, 0], floats(K * P)), 8 * K + 4 * K * P),
    (seeds.SeededScalars(SEEDS[0, :1], floats(P)), 8 + 4 * P),
    (seeds.MissedSigns(np.arange(B, dtype=np.uint8)), B),
    (seeds.Signs(np.arange(K, dtype=np.uint8)), K),
    (seeds.PoolSums(floats(N)), 4 * N),
    (seeds.PoolScalars(np.zeros((K, P), np.uint16), floats(K, P)), 6 * K * P),
    (weights.Weights(floats(N)), 4 * N),
    (weights.Update(floats(N)), 4 * N),
    (weights.QuantisedUpdate(np.zeros(N, np.int8), floats(1)), N + 4),
    (weights.SparseUpdate(np.arange(E, dtype=np.int32), floats(E)), 8 * E),
    (secure_sums.UserSum(np.arange(K)), 8 * K),
    (secure_sums.Modulus(residues(W)), W),
    (secure_sums.AgreementKey(residues(32)), 32),
    (secure_sums.AgreementKeys(residues(S, 32)), 32 * S),
    (secure_sums.SealedSeeds(residues(S - 1, 60)), 60 * (S - 1)),
    (secure_sums.SealedSeed(residues(60)), 60),
    (secure_sums.BlindedCounts(residues(N, W)), W * N),
    (secure_sums.EncryptedInverses(residues(N, 2 * W)), 2 * W * N),
    (secure_sums.ShiftedWeights(residues(N, 2 * W)), 2 * W * N),
    (secure_sums.EncryptedWeights(residues(N, 2 * W)), 2 * W * N),
    (secure_sums.SampledWeights(residues(N, 2 * W), residues(N, 2 * W)), 4 * W * N),
    (
        secure_sums.SampledModel(floats(N), residues(N, 2 * W), residues(N, 2 * W)),
        4 * N + 4 * W * N,
    ),
    (
        secure_sums.SampledCatchUp(
            SEEDS[0], floats(P), SEEDS[1], residues(N, 2 * W), residues(N, 2 * W)
        ),
        8 * P + 4 * P + 8 * P + 4 * W * N,
    ),
    (secure_sums.AttemptModel(floats(N), IDS[:1], IDS[:S]), 4 * N + 4 + 4 * S),
    (
        secure_sums.AttemptCatchUp(SEEDS[0], floats(P), SEEDS[1], IDS[:1], IDS[:S]),
        8 * P + 4 * P + 8 * P + 4 + 4 * S,
    ),
    (
        secure_sums.SampledAttemptModel(
            floats(N), residues(N, 2 * W), residues(N, 2 * W), IDS[:1], IDS[:S]
        ),
        4 * N + 4 * W * N + 4 + 4 * S,
    ),
    (
        secure_sums.SampledAttemptCatchUp(
            SEEDS[0], floats(P), SEEDS[1], residues(N, 2 * W), residues(N, 2 * W), IDS[:1], IDS[:S]
        ),
        8 * P + 4 * P + 8 * P + 4 * W * N + 4 + 4 * S,
    ),
    (secure_sums.DroppedOut(), 0),
    (secure_sums.LateUpload(), 0),
    (secure_sums.MaskedSum(SEEDS[0]), 8 * P),
    (secure_sums.PackedSum(residues(K, 2 * W)), 2 * W * K),
    (secure_sums.KeysLost(), 0),
]
SIZED = pytest.mark.parametrize(("body", "size"), BODIES, ids=lambda v: type(v).__name__)


def test_every_body_class_has_an_example_here() -> None:
    ours = {n for n, cls in messages._BODIES.items() if cls.__module__.startswith("raydpzv.wire")}
    assert {type(body).__name__ for body, _ in BODIES} == ours


@SIZED
def test_a_body_is_exactly_as_long_as_promised(body: Body, size: int) -> None:
    assert body.wire_bytes == size
    assert len(body.encode()) == size or not body.metered


def test_only_evaluation_what_an_agent_tells_itself_and_the_simulators_own_are_free_of_charge() -> (
    None
):
    unmetered = {type(body) for body, _ in BODIES if not body.metered}
    of_evaluation = {messages.Evaluate, messages.TestEmbeddings}
    of_checkpoints = {
        messages.SaveState,
        messages.ClientState,
        messages.ClientModels,
        messages.LedgerHistory,
    }
    others = {seeds.AgentSeeds, seeds.AgentScalars, secure_sums.LateUpload}
    assert unmetered == of_evaluation | of_checkpoints | others


def assert_same(a: Body, b: Body) -> None:
    assert type(a) is type(b)
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        assert x.dtype == y.dtype
        assert x.shape == y.shape
        assert x.tobytes() == y.tobytes()


@SIZED
def test_a_packed_body_comes_back_the_same(body: Body, size: int) -> None:
    name, layout, data = pack(body)
    assert isinstance(data, bytes)
    assert data == body.encode()
    assert_same(unpack((name, layout, data)), body)


def test_a_body_comes_back_the_same_from_arrays_that_are_not_contiguous() -> None:
    body = messages.Embeddings(IDS[::2], floats(E, 3).T)
    assert len(body.encode()) == body.wire_bytes == 3 * 4 + 3 * E * 4
    assert_same(unpack(pack(body)), body)


def test_an_empty_poisson_batch_travels() -> None:
    none = np.zeros(0, np.int32)
    empty = np.zeros((P, 0, E), np.float32)
    body = messages.PerturbedEmbeddings(none, empty, empty)
    assert body.wire_bytes == len(body.encode()) == 0
    assert_same(unpack(pack(body)), body)


def test_nan_and_infinity_travel() -> None:
    body = messages.Slopes(np.array([np.nan, np.inf, -0.0], np.float32))
    assert_same(unpack(pack(body)), body)
