import numpy as np
import pytest
import torch
from scipy import stats

from raydpzv.engine.split_model import BottomTraining
from raydpzv.engine.torch_engine import TorchBottom
from raydpzv.methods.vertical.row_release import EmbeddingRelease, RowPrivacy
from raydpzv.methods.vertical.vafl import FirstOrder
from raydpzv.models.bottoms import mlp
from raydpzv.models.flat import FlatModel
from raydpzv.privacy.mechanisms import SeededNoise
from tests.helpers import vertical_parties as toy
from tests.helpers.baseline_parties import vafl_clients, vafl_server

DATA = toy.make_data()
NOISE = SeededNoise(toy.KEY)


def test_without_clip_and_noise_the_embedding_is_sent_as_it_is() -> None:
    values = toy.make_bottom(DATA, 0).embed(np.arange(5, dtype=np.int32))
    sent, releases = EmbeddingRelease(RowPrivacy()).release(values, (0, 0, 0))
    assert releases == ()
    assert np.array_equal(sent, toy.bottom_model(0).module(DATA.x[0][:5]).detach().numpy())


def test_a_clipped_embedding_is_learned_through_its_clip() -> None:
    """Numerical derivative of Σ v·clip(h(w)) along one parameter direction, in float64."""
    sender = toy.make_bottom(DATA, 0, clip=0.2)
    model = sender.model
    model.module.double()
    x, weights = DATA.x[0].double(), torch.linspace(-1, 1, 2 * len(DATA.x[0])).view(-1, 2).double()
    values = sender._embedding(x)
    assert values.norm(dim=1).max() <= 0.2 * (1 + 1e-12)
    assert (model.module(x).norm(dim=1) > 0.2).any()
    parameters = list(model.module.parameters())
    gradients = torch.autograd.grad((values * weights).sum(), parameters)
    along = [torch.ones_like(p) for p in parameters]

    def at(amount: float) -> float:
        with torch.no_grad():
            for p, a in zip(parameters, along, strict=True):
                p += amount * a
            found = float((sender._embedding(x) * weights).sum())
            for p, a in zip(parameters, along, strict=True):
                p -= amount * a
        return found

    numerical = (at(1e-6) - at(-1e-6)) / 2e-6
    analytic = float(sum((g * a).sum() for g, a in zip(gradients, along, strict=True)))
    assert analytic == pytest.approx(numerical, rel=1e-5)


def test_a_zero_embedding_has_a_gradient() -> None:
    sender = toy.make_bottom(DATA, 0, clip=1.0)
    zero = torch.zeros(2, toy.WIDTH, requires_grad=True)
    (gradient,) = torch.autograd.grad(sender._clipped(zero).sum(), zero)
    assert torch.equal(gradient, torch.ones(2, toy.WIDTH))


def test_inner_layers_get_noise_of_its_law_before_their_activation() -> None:
    """One layer of ones in front of the identity: what comes out beyond the mean is √3 c times a
    uniform draw.
    """
    model = FlatModel(lambda: mlp((1,), (1,), 1), toy.KEY / "flat")
    model.flat.copy_(torch.tensor([0.0, 5.0, 1.0, 0.0]))  # w_1 = 0, b_1 = 5, w_2 = 1, b_2 = 0
    noise = EmbeddingRelease(RowPrivacy(noise=NOISE, sigma=0.0, layers=(0.4,))).layer_noise(
        (0, 1, 0)
    )
    rows = np.arange(5000)
    sender = TorchBottom(model, torch.zeros(5000, 1), torch.zeros(1, 1), BottomTraining())
    found = (sender.embed(rows, noise).ravel() - 5.0) / 0.4
    reach = np.sqrt(3)
    assert stats.kstest(found, stats.uniform(-reach, 2 * reach).cdf).pvalue > 1e-3
    assert stats.kstest(found * 0.9, stats.uniform(-reach, 2 * reach).cdf).pvalue < 1e-4
    assert found.std() == pytest.approx(1.0, abs=0.03)
    gaussian = RowPrivacy(noise=NOISE, sigma=0.0, layers=(0.4,), law="gaussian")
    normal = (
        sender.embed(rows, EmbeddingRelease(gaussian).layer_noise((0, 1, 0))).ravel() - 5.0
    ) / 0.4
    assert stats.kstest(normal, stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(found, stats.norm.cdf).pvalue < 1e-4, (
        "control: the uniform law is not taken for it"
    )
    assert sender.embed(rows) == pytest.approx(5.0)
    # before the activation: a ReLU cuts what the noise brings below 0
    model.flat[1] = 0.0
    assert float(sender.embed(rows, noise).min()) == 0.0


def test_evaluation_is_clipped_and_free_of_noise() -> None:
    privacy = RowPrivacy(clip=0.1, sigma=5.0, noise=NOISE, layers=(3.0,))
    (client, *_) = vafl_clients(DATA, FirstOrder(0.1), privacy)
    first, second = client.evaluate(), client.evaluate()
    assert np.array_equal(first.body.values, second.body.values)
    assert np.linalg.norm(first.body.values, axis=1).max() <= 0.1 + 1e-6


def test_an_upload_carries_the_receipt_and_its_noise_is_not_backpropagated() -> None:
    quiet = vafl_clients(DATA, FirstOrder(0.1), RowPrivacy(clip=0.5))[0]
    noisy = vafl_clients(DATA, FirstOrder(0.1), RowPrivacy(clip=0.5, sigma=2.0, noise=NOISE))[0]
    plain, upload = quiet.work(), noisy.work()
    assert plain.releases == ()
    (release,) = upload.releases
    assert (release.receipt.sigma, release.receipt.sensitivity_replace) == (2.0, 1.0)
    assert np.isnan(release.value)
    assert upload.body.wire_bytes == plain.body.wire_bytes
    expected = plain.body.values + 2.0 * NOISE.normal(toy.BATCH * toy.WIDTH, (0, 0, 0)).reshape(
        toy.BATCH, toy.WIDTH
    )
    assert upload.body.values == pytest.approx(expected, abs=1e-6)
    (order,) = vafl_server(DATA).receive(plain)
    for client in (quiet, noisy):
        client.apply(order)
    assert np.array_equal(quiet.parameters(), noisy.parameters())


def test_noise_on_the_gradient_is_on_each_rows_own_clipped_gradient() -> None:
    privacy = RowPrivacy(clip=0.03, sigma=0.3, noise=NOISE)
    plain, noisy = vafl_server(DATA), vafl_server(DATA, privacy=privacy)
    clients = vafl_clients(DATA, FirstOrder(1e-9))
    cut = 0
    for m in toy.wakes(12):
        upload = clients[m].work()
        (exact,), (sent,) = plain.receive(upload), noisy.receive(upload)
        own = exact.body.values * toy.BATCH
        norms = np.linalg.norm(own, axis=1, keepdims=True)
        cut += int((norms > 0.03).sum())
        draws = NOISE.normal(toy.BATCH * toy.WIDTH, (m, upload.step, 0)).reshape(
            toy.BATCH, toy.WIDTH
        )
        expected = (own * np.minimum(1, 0.03 / np.maximum(norms, 1e-9)) + 0.3 * draws) / toy.BATCH
        assert sent.body.values == pytest.approx(expected, abs=1e-6)
        (release,) = sent.releases
        assert np.array_equal(release.ids, toy.batches(m).draw(upload.step))
        assert release.step == upload.step
        assert release.receipt.sensitivity_replace == 0.06
        assert exact.releases == ()
        assert sent.body.wire_bytes == exact.body.wire_bytes
    assert 5 < cut < 12 * toy.BATCH
