"""What held-out embeddings tell a server that wants to know one record's features at one client."""

# F features, K gradients, N held-out rows

from dataclasses import replace

import numpy as np
import torch

from raydpzv.keys import Key
from raydpzv.methods.roles import Order, Upload
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.base import SplitClient
from raydpzv.methods.vertical.dpzv import ZerothOrder
from raydpzv.methods.vertical.row_release import RowPrivacy
from raydpzv.methods.vertical.vafl import FirstOrder, VaflClient
from raydpzv.methods.vertical.zoo_vfl import ZooVflClient
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.privacy.mechanisms import SeededNoise
from raydpzv.wire.messages import Body, Gradient, LossDifference, Start
from raydpzv.zo.update import Rule
from tests.helpers.vertical_parties import BATCH, KEY, WIDTH, Data, batches, make_bottom, make_data

DATA, CLIP, SIGMA, TRIALS = make_data(), 0.1, 1000.0, 80
RECORD = int(batches(0).draw(0)[0])  # of the first batch
GENERATOR = (Key(5) / "features").generator()


def neighbour() -> Data:
    """The data with other features of one record at client 0."""
    x = DATA.x.clone()
    x[0, RECORD] = torch.from_numpy(GENERATOR.standard_normal(x.shape[2]).astype(np.float32))
    return replace(DATA, x=x)


def vafl_client(data: Data, trial: int) -> VaflClient:
    privacy = RowPrivacy(CLIP, SIGMA, SeededNoise(Key(trial)))
    return VaflClient(
        0, make_bottom(data, 0, descent=FirstOrder(0.1), clip=CLIP), batches(0), privacy
    )


def zoo_client(data: Data, trial: int) -> ZooVflClient:
    privacy = RowPrivacy(CLIP, SIGMA, SeededNoise(Key(trial)))
    settings = ZerothOrder(1e-3, Schedule(0.1))
    bottom = make_bottom(data, 0, rule=Rule(settings.law, settings.momentum), clip=CLIP)
    return ZooVflClient(0, bottom, batches(0), settings, KEY, privacy)


def held_out(client: SplitClient, answers: list[Body]) -> tuple[list[Upload], np.ndarray]:
    """Return a client's uploads and, after these answers, its held-out embeddings [N, E]."""
    uploads = [client.process(Order(0, body)) for body in (Start(), *answers)]
    return uploads, client.evaluate().body.values


def answers_of(trial: int) -> list[Body]:
    generator = (Key(trial) / "answers").generator()
    return [
        Gradient(generator.standard_normal((BATCH, WIDTH)).astype(np.float32)) for _ in range(3)
    ]


def test_those_of_backpropagation_tell_the_record_and_the_noised_rows_do_not() -> None:
    """It knows what it answered, trains both candidates on that, and takes the one whose embeddings
    came.
    """
    printed = epsilon_of(
        2 * CLIP * np.sqrt(4 * BATCH) / SIGMA, 1e-5
    )  # by the range of all rows sent
    assert printed < 0.01
    known = by_noised_rows = 0
    for trial in range(TRIALS):
        secret = (Key(trial) / "secret").seed64() % 2
        candidates, answers = (DATA, neighbour()), answers_of(trial)
        uploads, came_NE = held_out(vafl_client(candidates[secret], trial), answers)
        misses = [
            np.abs(held_out(vafl_client(c, TRIALS), answers)[1] - came_NE).sum() for c in candidates
        ]
        known += (misses[1] < misses[0]) == secret
        clean = [make_bottom(c, 0, clip=CLIP).embed(uploads[0].body.ids) for c in candidates]
        distances = [np.square(uploads[0].body.values - rows).sum() for rows in clean]
        by_noised_rows += (distances[1] < distances[0]) == secret
    assert known == TRIALS
    assert 25 <= by_noised_rows <= 55


def test_those_of_zoo_vfl_are_a_function_of_the_servers_answers() -> None:
    answers: list[Body] = [LossDifference(np.array([d], np.float32)) for d in (0.3, -0.2, 0.5)]
    found = [held_out(zoo_client(data, 1), answers)[1] for data in (DATA, neighbour())]
    assert np.array_equal(*found)
    moved = held_out(
        zoo_client(DATA, 1), [*answers[:2], LossDifference(np.array([0.4], np.float32))]
    )[1]
    assert not np.array_equal(found[0], moved), "control: the last answer moves them"
