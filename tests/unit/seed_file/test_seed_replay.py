"""Models of seed files against steps by hand, and files whose models cannot be what they say."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.keys import SERVER_PARTY, perturbation_seeds, step_seeds, step_words
from raydpzv.seed_file.first_weights import initial_vector
from raydpzv.seed_file.seed_format import SeededModel, SeedTensor, StepPhase, encode_seed_file
from raydpzv.seed_file.seed_replay import read_seed_file, rebuilt, replay_seed_file
from raydpzv.zo.directions import Direction
from tests.helpers.seed_samples import KEY, ONE_STEP, TWO_PHASES, grouped, sample


def steps_by_hand(file, model: SeededModel, phases):
    """Each step's directions, float64 [P, d], its scalars and its step size."""
    at, step = 0, 0
    for phase in phases:
        for _ in range(phase.updates * phase.steps):
            (seed,) = step_seeds(step_words(KEY), SERVER_PARTY, np.array([step], np.uint64))
            seeds = perturbation_seeds(seed, np.arange(phase.perturbations))
            u = [Direction(int(s), model.size, file.law).values().astype(np.float64) for s in seeds]
            yield np.array(u), model.scalars[at : at + len(u)].astype(np.float64), phase.lr
            at, step = at + len(u), step + 1


@pytest.mark.parametrize("law", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_model_is_what_its_steps_make(law, momentum):
    file = sample(law, **({"momentum": momentum} if momentum else {}))
    (model,) = file.models
    x = initial_vector(model, None).astype(np.float64)
    v = np.zeros_like(x)
    for u, scalars, lr in steps_by_hand(file, model, TWO_PHASES):
        v = momentum * v + scalars @ u / len(u)
        x -= lr * v
    assert np.allclose(rebuilt(file, model), x, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["signsgd", "adam", "svrg"])
def test_other_rules_are_held_and_move_otherwise(optimizer, tmp_path):
    rule = {"adam": {"momentum": 0.9, "beta2": 0.99, "v0": 0.01}, "svrg": {"epoch": 2.0}}.get(
        optimizer, {}
    )
    file = sample(optimizer=optimizer, **rule)
    (tmp_path / "run.seeds").write_bytes(encode_seed_file(file))
    (_, x) = replay_seed_file(tmp_path / "run.seeds")["shared"]
    assert x.tobytes() != rebuilt(sample(), sample().models[0]).tobytes()
    assert read_seed_file(tmp_path / "run.seeds").optimizer == optimizer


def test_factors_of_groups_change_their_tensors_alone():
    file = sample(given=grouped())
    plain = replace(
        file.models[0],
        tensors=tuple(replace(t, lr=1.0, smoothing=1.0) for t in file.models[0].tensors),
    )
    x, y = rebuilt(file, file.models[0]), rebuilt(file, plain)
    place = 0
    for tensor in file.models[0].tensors:
        part = slice(place, place + tensor.size)
        assert np.array_equal(x[part], y[part]) == ((tensor.lr, tensor.smoothing) == (1, 1)), (
            tensor.name
        )
        place += tensor.size


def test_the_mean_of_the_last_iterates_is_the_result():
    file = sample(average=3, phases=ONE_STEP)
    (model,) = file.models
    iterates = []
    for last in range(1, 8):
        some = (
            StepPhase(min(last, 5), 1, 2, 0.1),
            *([StepPhase(last - 5, 1, 1, 0.3)] if last > 5 else []),
        )
        count = sum(p.updates * p.perturbations for p in some)
        cut = replace(model, phases=some, scalars=model.scalars[:count], average=None)
        iterates.append(rebuilt(file, cut).astype(np.float64))
    assert rebuilt(file, model).tobytes() == (sum(iterates[3:]) / 4).astype(np.float32).tobytes()
    beyond = replace(model, average=7)
    assert rebuilt(file, beyond).tobytes() == iterates[-1].astype(np.float32).tobytes()


def test_a_model_without_steps_is_its_first_weights():
    file = sample()
    model = replace(file.models[0], phases=(), scalars=np.zeros(0, np.float32))
    assert rebuilt(file, model).tobytes() == initial_vector(model, None).tobytes()


def test_a_model_with_other_bits_is_not_returned(tmp_path):
    file = sample()
    scalars = file.models[0].scalars.copy()
    scalars[0] *= 2
    wrong = replace(file, models=(replace(file.models[0], scalars=scalars),))
    (tmp_path / "run.seeds").write_bytes(encode_seed_file(wrong))
    with pytest.raises(
        ReplayMismatch, match=r"shared has the sha256 .* after its updates, the file says"
    ):
        replay_seed_file(tmp_path / "run.seeds")


def test_models_are_asked_for_by_name(tmp_path):
    one = sample().models[0]
    file = replace(sample(), models=(replace(one, name="client 0"), replace(one, name="client 1")))
    (tmp_path / "run.seeds").write_bytes(encode_seed_file(file))
    assert list(replay_seed_file(tmp_path / "run.seeds", names=["client 1"])) == ["client 1"]
    with pytest.raises(InputError, match="holds no model of client 2; it has client 0, client 1"):
        replay_seed_file(tmp_path / "run.seeds", names=["client 2"])
    with pytest.raises(DataError, match="cannot be read"):
        read_seed_file(tmp_path)


def test_first_weights_of_gigabytes_are_not_made_before_their_digest_fits(tmp_path):
    """A constant of 2^27 numbers takes 512 MiB; its digest takes none of it."""
    model = replace(sample().models[0], tensors=(SeedTensor("w", (1 << 13, 1 << 14), "constant"),))
    (tmp_path / "run.seeds").write_bytes(encode_seed_file(replace(sample(), models=(model,))))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="other first weights: sha256"):
            replay_seed_file(tmp_path / "run.seeds")
        assert tracemalloc.get_traced_memory()[1] < 1 << 26
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "change",
    [{"of_steps": True, "derived": False}, {"derived": True, "of_steps": False}, {"momentum": 0.9}],
)
def test_torchs_law_takes_plain_steps_with_stored_seeds_alone(change):
    file = sample(**({"of_steps": False, "derived": False} | change))
    with pytest.raises(InputError, match="torch_normal: wanted"):
        rebuilt(replace(file, law="torch_normal"), file.models[0])
