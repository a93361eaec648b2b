from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from raydpzv.experiment.local_session import one_thread
from tests.helpers.benchmarks import figures, module


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch):
    with one_thread("torch"), torch.random.fork_rng():
        torch.set_rng_state(torch.Generator().manual_seed(1).get_state())
        yield module("model_sizes", monkeypatch)


@pytest.mark.parametrize("method", ["dpzv", "vafl"])
def test_the_tuned_loop_learns(sizes, method: str) -> None:
    parties = sizes.TunedParties(sizes.experiment(sizes.Case(method, (16,)), "auto"))
    ids, losses = np.arange(400), []
    for _ in islice(parties.updates(), 300):
        with torch.no_grad():
            losses.append(float(parties.losses(ids, 0, parties.table[ids, 0]).mean()))
    assert np.mean(losses[-20:]) < 0.93 * np.mean(losses[:20])


@pytest.mark.parametrize("method", ["decomfl", "mezo"])
def test_a_federations_steps_descend(sizes, method: str) -> None:
    federation = sizes.Federation(sizes.experiment(sizes.Case(method, (8,)), "auto"))
    before = federation.flat.clone()
    federation.forwards()
    assert torch.equal(federation.flat, before)
    rows = [np.concatenate(federation.rows)]
    first = float(federation.losses(rows))
    for step in (federation.ordinary, federation.tuned):
        for _ in range(100):
            step()
    assert float(federation.losses(rows)) < first


def test_the_encoder_scores_records_on_their_own(sizes) -> None:
    encoder = sizes.Encoder()
    x = torch.randn(3, 32, 64)
    assert torch.allclose(encoder(x)[1], encoder(x[1:2])[0], atol=1e-6)


def test_the_benchmark_finishes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the benchmark sets it
    small = {"HIDDEN": ((3,),), "WHOLE": ((3,),), "SECONDS": {True: 1e-4}}
    written = figures("model_sizes", monkeypatch, tmp_path, "--quick", **small)["figures"]
    assert {method: [f["parameters"] for f in found] for method, found in written.items()} == {
        "dpzv": [655],
        "vafl": [655],
        "decomfl": [2395],
        "mezo": [2395],
    }
    assert all(
        us > 0 for found in written.values() for turns in found[0]["us"].values() for us in turns
    )


def test_what_threads_gain_is_measured_of_vertical_methods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the benchmark sets it
    small = {"HIDDEN": ((3,),), "SECONDS": {True: 1e-4}}
    written = figures("model_sizes", monkeypatch, tmp_path, "--quick", "--threads", "2", **small)[
        "figures"
    ]
    assert {method: found[0]["us"].keys() for method, found in written.items()} == {
        "dpzv": {"1", "2"},
        "vafl": {"1", "2"},
    }
