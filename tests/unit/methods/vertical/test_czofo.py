"""VFL-CZOFO's estimates against derivatives and closed forms, whole updates against numpy, with
controls.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional

import scenarios
from raydpzv.engine.split_model import TopRows
from raydpzv.engine.torch_engine import TorchTop, row_gradients, unit_rows
from raydpzv.errors import Diverged
from raydpzv.experiment.prepare import prepare
from raydpzv.keys import Key, direction_seed
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.vertical.czofo import (
    CzofoConfig,
    CzofoServer,
    SharedDirections,
    compress,
    compressed_bytes,
    decompress,
)
from raydpzv.methods.vertical.vafl import FirstOrder
from raydpzv.wire.messages import CompressedEmbeddings, Embeddings, Slopes
from raydpzv.zo.philox import normals
from tests.helpers.baseline_parties import czofo_server, vafl_clients
from tests.helpers.vertical_parties import (
    BATCH,
    CLASSES,
    CLIENTS,
    KEY,
    SIZES,
    WIDTH,
    in_double,
    make_data,
    make_head,
    top,
    wakes,
)

DATA = make_data()
ROWS = 64
"""A batch of the papers, at which the figures of the estimate's error hold."""


def true_row_gradients(inputs: torch.Tensor, labels: torch.Tensor, client: int) -> np.ndarray:
    """Each row's own loss by its embedding, in float64."""
    head = in_double(top, make_head("sgd").model.flat)
    live = inputs.double().requires_grad_()
    functional.cross_entropy(head(live.flatten(1)), labels, reduction="sum").backward()
    return live.grad[:, client].numpy()


def estimate(count: int, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = (KEY / "estimate").generator()
    inputs = torch.from_numpy(generator.standard_normal((BATCH, CLIENTS, WIDTH)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(0, 3, BATCH))
    draws = generator.standard_normal((count, BATCH, WIDTH))
    draws /= np.linalg.norm(draws, axis=2, keepdims=True)
    directions = torch.from_numpy(draws.astype(np.float32))
    found = row_gradients(make_head("sgd"), inputs, labels, 1, directions, 1e-2)
    return factor * found.numpy(), true_row_gradients(inputs, labels, 1)


def test_the_estimate_by_rows_converges_to_the_embedding_gradient_as_n_grows() -> None:
    errors = []
    for count in (50, 5000):
        found, true = estimate(count)
        errors.append(float(np.linalg.norm(found - true) / np.linalg.norm(true)))
    assert errors[1] < 0.05
    assert 4 < errors[0] / errors[1] < 30  # about √100


@pytest.mark.parametrize("factor", [1 / WIDTH, 0.9, 1.1])
def test_control_by_rows_another_factor_than_e_fails(factor: float) -> None:
    found, true = estimate(5000, factor)
    assert np.linalg.norm(found - true) / np.linalg.norm(true) > 0.05


def test_a_server_by_rows_sends_the_mean_losss_estimate_and_steps_its_head_after_it() -> None:
    server = czofo_server(DATA, variant="per_row", perturbations=20_000)
    clients = vafl_clients(DATA, FirstOrder(0.1))
    head = make_head("sgd")
    for m in wakes(4):
        upload = clients[m].work()
        before = in_double(top, torch.from_numpy(server.parameters()))
        (order,) = server.receive(upload)
        inputs = server.top.table.get(upload.ids).double().requires_grad_()
        functional.cross_entropy(before(inputs.flatten(1)), DATA.y[upload.ids]).backward()
        true = inputs.grad[:, m].numpy()
        # 0.04 of the gradient is the estimate's own deviation at n = 20,000
        assert np.linalg.norm(order.body.values - true) < 0.05 * np.linalg.norm(true)
        assert upload.body.wire_bytes == order.upload_bytes == BATCH * (4 + 4 * WIDTH)
        assert order.body.wire_bytes == BATCH * 4 * WIDTH
        head.train(server.top.table.get(upload.ids), DATA.y[upload.ids])
        assert server.parameters() == pytest.approx(head.model.flat.numpy(), abs=1e-6)


def test_directions_by_rows_are_unit_vectors_of_the_address() -> None:
    draws = unit_rows(7, BATCH, WIDTH, KEY / 1 / 3)
    assert draws.shape == (7, BATCH, WIDTH)
    assert draws.norm(dim=2).numpy() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(draws, unit_rows(7, BATCH, WIDTH, KEY / 1 / 3))
    assert not torch.equal(draws, unit_rows(7, BATCH, WIDTH, KEY / 2 / 3))


def shared(**settings: object) -> tuple[CzofoConfig, SharedDirections]:
    config = CzofoConfig(**settings)
    return config, SharedDirections(config, KEY)


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_shared_directions_follow_from_client_and_step_alone(law: str) -> None:
    config, directions = shared(directions=law, perturbations=7)
    draws = directions.draw(1, 3, BATCH, WIDTH)
    assert np.array_equal(draws, SharedDirections(config, KEY).draw(1, 3, BATCH, WIDTH))
    for client, step in ((2, 3), (1, 4)):
        assert not np.array_equal(draws, directions.draw(client, step, BATCH, WIDTH))
    plain = normals(direction_seed(KEY, 1, 3), 0, 7 * BATCH * WIDTH).reshape(7, BATCH, WIDTH)
    if law == "uniform":
        plain = plain / np.linalg.norm(plain.astype(np.float64), axis=2, keepdims=True)
    assert draws == pytest.approx(plain, abs=1e-6)


GRADIENT = (KEY / "gradient").generator().standard_normal((ROWS, WIDTH))


def of_a_linear_loss(law: str, count: int, steps: int, rows: int = ROWS) -> np.ndarray:
    """Estimates [steps, B, E] of the gradient G of ℓ(h) = <G, h>, whose differences are λ <G, v>
    for every λ.
    """
    config, directions = shared(directions=law, perturbations=count, smoothing=0.3)
    true, found = GRADIENT[:rows], []
    for step in range(steps):
        draws = directions.draw(0, step, rows, WIDTH)
        differences = config.smoothing * (draws * true).sum((1, 2), dtype=np.float64)
        found.append(directions.gradient(differences, 0, step, rows, WIDTH))
    return np.array(found, np.float64)


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_the_estimate_is_unbiased_with_this_factor_and_no_other(law: str) -> None:
    mean, true = of_a_linear_loss(law, 1024, 40, rows=4).mean(0), GRADIENT[:4]
    # 40,960 directions leave √(BE / 40,960) = .014 of the gradient
    assert np.linalg.norm(mean - true) < 0.03 * np.linalg.norm(true)
    for factor in (
        1 / WIDTH,
        WIDTH,
        4,
        0.9,
    ):  # without E; with it twice; the dimension of all rows; near it
        assert np.linalg.norm(factor * mean - true) > 0.03 * np.linalg.norm(true)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "beside"), [("uniform", -1), ("normal", 1)])
def test_the_estimates_mean_square_error_is_the_closed_form(law: str, beside: int) -> None:
    """(BE ∓ 1) / n of the gradient's square: E‖E<G,v>v‖² = E·B‖G‖² for unit rows, (BE + 2)‖G‖² for
    normal v.
    """
    for count, rows in ((5, ROWS), (5, 4), (20, ROWS)):
        errors = of_a_linear_loss(law, count, 2000 if rows == 4 else 400, rows) - GRADIENT[:rows]
        square = (errors**2).sum((1, 2)).mean() / (GRADIENT[:rows] ** 2).sum()
        assert square == pytest.approx((rows * WIDTH + beside) / count, rel=0.12)


def relative_errors(steps: int, **settings: object) -> float:
    """Mean relative error of what a client gets, at an untrained head, over so many uploads of 64
    rows.
    """
    config, directions = shared(**settings)
    generator = (KEY / "batch").generator()
    labels = generator.integers(0, CLASSES, ROWS)
    inputs = generator.standard_normal((ROWS, CLIENTS, WIDTH)).astype(np.float32)
    found_top = TorchTop(make_head("frozen"), TopRows(labels, labels, CLIENTS, WIDTH))
    server = CzofoServer(found_top, replace(SIZES, batch=ROWS), config, KEY)
    ids = np.arange(ROWS, dtype=np.int32)
    for m in range(CLIENTS):
        found_top.put(m, ids, inputs[:, m], 1)
    true = true_row_gradients(torch.from_numpy(inputs), torch.from_numpy(labels), 1) / ROWS
    errors = []
    for step in range(steps):
        (order,) = server.receive(Upload(1, step, Embeddings(ids, inputs[:, 1])))
        values = order.body.values
        if config.answers_differences:
            assert order.body.wire_bytes == 4 * config.perturbations
            values = directions.gradient(values, 1, step, ROWS, WIDTH)
        errors.append(np.linalg.norm(values - true) / np.linalg.norm(true))
    return float(np.mean(errors))


@pytest.mark.slow
def test_the_published_estimate_is_4_8_gradients_off() -> None:
    """B = 64, E = 2, n = 5: √((BE - 1) / n) = 5.04 is the root of the mean square, E[χ_5] / √5 =
    .95 of it the mean.
    """
    found = relative_errors(400)
    assert found == pytest.approx(4.8, abs=0.3)
    assert relative_errors(100, perturbations=20) < 2.8, "control: half of it at four times n"


def test_the_estimate_by_rows_is_less_than_half_a_gradient_off() -> None:
    """E = 2, n = 5, whatever the batch: √((E - 1) / n) = .447."""
    assert relative_errors(60, variant="per_row") == pytest.approx(0.44, abs=0.03)
    assert relative_errors(20, variant="per_row", perturbations=20) < 0.25, "control"


def test_along_coordinates_a_small_radius_gives_the_gradient() -> None:
    assert relative_errors(1, directions="coordinate", smoothing=1e-2) < 1e-3
    assert relative_errors(1, directions="coordinate", smoothing=0.5) > 0.1, "control: over kinks"


SMALL = (
    "data.train_rows=40",
    "data.test_rows=20",
    "split.clients=2",
    "model.hidden=[6]",
    "model.head_hidden=5",
    "method.batch=8",
    "method.smoothing=0.05",
    "method.lr=0.05",
    "method.momentum=0.5",
)


class Layers:
    """Linear, ReLU, linear in float64, from flat parameters; its momentum."""

    def __init__(self, flat: np.ndarray, inputs: int, hidden: int, outputs: int) -> None:
        self.flat, self.velocity = flat.astype(np.float64), np.zeros(flat.size)
        self.shapes = ((hidden, inputs), (hidden,), (outputs, hidden), (outputs,))

    def parts(self) -> list[np.ndarray]:
        places = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [p.reshape(s) for p, s in zip(np.split(self.flat, places), self.shapes, strict=True)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        w, b, v, c = self.parts()
        return np.maximum(x @ w.T + b, 0) @ v.T + c

    def step(self, x: np.ndarray, gradient: np.ndarray, lr: float, momentum: float) -> None:
        """Backpropagate the gradient of the outputs."""
        w, b, v, _ = self.parts()
        inner = x @ w.T + b
        hidden, back = np.maximum(inner, 0), (gradient @ v) * (inner > 0)
        found = (back.T @ x, back.sum(0), gradient.T @ hidden, gradient.sum(0))
        self.velocity = momentum * self.velocity + np.concatenate([f.ravel() for f in found])
        self.flat = self.flat - lr * self.velocity


def mean_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(
        np.mean([np.log(np.exp(s).sum()) - s[y] for s, y in zip(scores, labels, strict=True)])
    )


@pytest.mark.parametrize("engine", ["torch", "compiled"])
def test_whole_updates_as_published_are_those_of_numpy(engine: str) -> None:
    """Upload, n differences under one head, head's step, gradient by the client, its step: six
    updates in float64.
    """
    spec = scenarios.load("czofo", [*SMALL, f"model.engine={engine}"])
    experiment = prepare(spec)
    clients, server = [factory.make() for factory in experiment.clients], experiment.server.make()
    method, rows, width = spec.method, 8, spec.model.embedding
    x = [factory.x_train.reshape(40, -1).astype(np.float64) for factory in experiment.clients]
    y = experiment.server.y_train
    bottoms = [Layers(clients[m].parameters(), x[m].shape[1], 6, width) for m in range(2)]
    head, table = Layers(server.parameters(), 2 * width, 5, 10), np.zeros((40, 2, width))
    for step, m in ((0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)):
        upload = clients[m].work()
        ids = upload.ids
        (order,) = server.receive(upload)
        assert order.body.wire_bytes == 4 * 5
        clients[m].apply(order)

        table[ids, m] = bottoms[m](x[m][ids])
        here = table[ids]
        seed = direction_seed(Key(spec.seed) / "embedding directions", m, step)
        draws = normals(seed, 0, 5 * rows * width).reshape(5, rows, width).astype(np.float64)
        gradient = np.zeros((rows, width))
        for k in range(5):
            ahead = here.copy()
            for i in range(rows):
                draws[k, i] /= np.sqrt((draws[k, i] ** 2).sum())
                ahead[i, m] += method.smoothing * draws[k, i]
            difference = mean_loss(head(ahead.reshape(rows, -1)), y[ids]) - mean_loss(
                head(here.reshape(rows, -1)), y[ids]
            )
            assert order.body.values[k] == pytest.approx(difference, abs=2e-6)
            gradient += width / method.smoothing * difference * draws[k] / 5
        scores = head(here.reshape(rows, -1))
        soft = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        soft[np.arange(rows), y[ids]] -= 1
        head.step(here.reshape(rows, -1), soft / rows, method.server_lr, method.server_momentum)
        bottoms[m].step(x[m][ids], gradient, method.lr, method.momentum)
        assert server.parameters() == pytest.approx(head.flat, abs=2e-5)
        off = np.abs(clients[m].parameters() - bottoms[m].flat).max()
        assert off < 1e-4
        assert np.abs(method.lr * bottoms[m].velocity).max() > 100 * off, (
            "control: without the step"
        )


def test_compressed_messages_say_the_same_up_to_their_levels() -> None:
    settings = {"upload_bits": 16, "answer_bits": 16, "perturbations": 3, "smoothing": 0.1}
    server, plain = (
        czofo_server(DATA, **settings),
        czofo_server(DATA, perturbations=3, smoothing=0.1),
    )
    ids = np.arange(BATCH, dtype=np.int32)
    values = (KEY / "values").generator().standard_normal((BATCH, WIDTH)).astype(np.float32)
    (order,) = server.receive(Upload(0, 0, CompressedEmbeddings(ids, *compress(values, 16))))
    (wanted,) = plain.receive(Upload(0, 0, Embeddings(ids, values)))
    assert server.top.table.get(ids)[:, 0].numpy() == pytest.approx(values, abs=1e-4)
    assert order.upload_bytes == 4 * BATCH + 2 * BATCH * WIDTH + 8
    assert order.body.wire_bytes == 2 * 3 + 8
    assert order.body.limits.tolist() == pytest.approx(
        [wanted.body.values.min(), wanted.body.values.max()], abs=1e-4
    )


def test_what_cannot_be_served_is_refused() -> None:
    server = czofo_server(DATA, upload_bits=4)
    ids, values = np.arange(BATCH, dtype=np.int32), np.ones((BATCH, WIDTH), np.float32)
    for body in (Slopes(np.zeros(1, np.float32)), Embeddings(ids, values)):
        with pytest.raises(TypeError, match=f"4-bit uploads cannot serve {type(body).__name__}"):
            server.receive(Upload(0, 0, body))
    for settings, said in (({}, "a loss difference"), ({"variant": "per_row"}, "a gradient")):
        with pytest.raises(Diverged, match=f"{said} must be finite, but one for client 0, step 0"):
            czofo_server(DATA, **settings).receive(Upload(0, 0, Embeddings(ids, np.inf * values)))
    with pytest.raises(Diverged, match="a loss difference"):
        server.receive(Upload(0, 0, CompressedEmbeddings(ids, *compress(np.inf * values, 4))))


def test_an_order_without_an_answer_changes_nothing() -> None:
    spec = scenarios.load("czofo", [*SMALL])
    experiment = prepare(spec)
    client = experiment.clients[0].make()
    client.work()
    before = client.sha256()
    client.apply(experiment.server.make().first_orders()[0])
    client.apply(Order(0, Slopes(np.ones(1, np.float32))))
    assert client.sha256() == before


# Uniform scale compression against levels made one number at a time with Python's integers.

VALUES = (Key(3) / "values").generator().standard_normal((7, 3)).astype(np.float32)


def by_hand(values: np.ndarray, bits: int) -> bytes:
    """Exact nearest levels, written bit by bit, each number's lowest bit first."""
    exact = [Fraction(float(v)) for v in values.ravel()]
    low, span, top = min(exact), max(exact) - min(exact), 2**bits - 1
    levels = [round((v - low) / span * top) for v in exact]
    stream = sum(level << (bits * place) for place, level in enumerate(levels))
    return stream.to_bytes(-(-len(levels) * bits // 8), "little")


@pytest.mark.parametrize("bits", range(1, 17))
def test_numbers_travel_as_their_nearest_levels(bits: int) -> None:
    packed, limits = compress(VALUES, bits)
    assert packed.tobytes() == by_hand(VALUES, bits)
    assert limits.tolist() == [VALUES.min(), VALUES.max()]
    assert packed.nbytes + limits.nbytes == compressed_bytes(VALUES.size, bits)
    found = decompress(packed, limits, bits, VALUES.shape)
    step = (VALUES.max() - VALUES.min()) / (2**bits - 1)
    error = np.abs(found - VALUES).max()
    assert error <= step * 0.5001
    assert error > step * 0.3, "control: a level's width is not smaller than it must be"
    assert (found.min(), found.max()) == pytest.approx((VALUES.min(), VALUES.max()), abs=1e-6)


def test_bytes_of_compressed_numbers_by_hand() -> None:
    assert [compressed_bytes(5, bits) for bits in (None, 1, 2, 4, 8, 16)] == [20, 9, 10, 11, 13, 18]
    assert [compressed_bytes(128, bits) for bits in (None, 2, 8)] == [512, 40, 136]


def test_what_has_no_scale() -> None:
    same = np.full(4, -2.5, np.float32)
    assert np.array_equal(decompress(*compress(same, 3), 3, (4,)), same)
    empty = compress(VALUES[:0], 3)
    assert compressed_bytes(0, 3) == sum(part.nbytes for part in empty)
    assert decompress(*empty, 3, (0, 3)).shape == (0, 3)
    largest = np.array([-3e38, 0.0, 3e38], np.float32)
    assert decompress(*compress(largest, 16), 16, (3,)) == pytest.approx(largest, abs=1e34)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_does_not_become_finite(bad: float) -> None:
    values = np.array([1.0, bad, 2.0], np.float32)
    assert np.isnan(decompress(*compress(values, 8), 8, (3,))).all()


def test_levels_of_another_count_are_refused() -> None:
    packed, limits = compress(VALUES, 4)
    with pytest.raises(ValueError, match="wanted 40 levels of 4 bits, got 11 bytes"):
        decompress(packed, limits, 4, (40,))
