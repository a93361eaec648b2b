"""Which runs wait until their checkpoint is written, and that they are then told so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import actors.driver
import scenarios
from actors.horizontal import driver as module
from actors.horizontal.server_actor import HorizontalServerActor
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.experiment.finalize import RowWriter, RunOptions
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.records.callbacks import Callbacks
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.operator_file import OperatorSecrets
from raydpzv.records.run_folder import RunFolder
from raydpzv.sim.interfaces import unheard
from tests.helpers.numbered_rows import evaluations
from tests.helpers.server_calls import ServerCalls

SMALL = ("data.train_rows=150", "data.test_rows=60", "split.clients=3", "users.count=12")
PRIVATE = (
    "privacy={}",
    "privacy.mode=user",
    "privacy.multiplier=2.0",
    "privacy.delta=1e-3",
    "privacy.clip=0.1",
)
WAITS = {
    "rounds of sums": ("digits_users", PRIVATE, True),
    "rounds without noise": ("digits_users", ("privacy={}", "privacy.mode=none", "privacy.clip=0.1"), False),
    "rounds of scalars, which the ledger has": ("digits_users_zo", PRIVATE, False),
    "silos that wake by themselves": ("digits_users_async", PRIVATE, False),
    "real time": ("digits_users_async", (*PRIVATE, "clock.kind=wall", "arrivals.rate=200"), False),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    operator = OperatorSecrets(bytes(16), None)
    with RunFolder.create(tmp_path / "run", scenarios.load("frozen"), {}, operator) as folder:
        yield folder


@pytest.mark.parametrize("kind", WAITS)
def test_a_private_round_waits_until_its_checkpoint_is_written(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """One that noise of the system's hides and that no record brings back; and server and driver agree on it."""
    monkeypatch.setattr(actors.driver, "get", lambda reference, timeout, what: reference)
    name, changed, waits = WAITS[kind]
    spec = scenarios.load(name, [*SMALL, *changed])
    assert isinstance(spec, HorizontalScenario)
    prepared, server = prepare_horizontal(spec), ServerCalls(next_piece="a call")
    nobody: Any = None
    hooks = actors.driver.RunHooks(
        *(RowWriter(folder, 1e9, Callbacks()), nobody, Callbacks(), RunOptions().stop, unheard, True, nobody)
    )
    pool: Any = None
    found = module._Driver(prepared, module._ActorSet(server, None, pool), hooks)
    assert found._awaited() == (["a call"] if waits else [])
    found._write([(evaluations(0), None)])
    assert not server.asked("written")
    found._write([(evaluations(1), Checkpoint(1, {}, None)), (evaluations(2), None)])
    assert server.asked("written") == ([[]] if waits else [])
    written = folder.checkpoint()
    assert written is not None
    assert written.round == 1, "before the server goes on"
    monkeypatch.setattr("actors.horizontal.server_actor.claim_device", lambda share: "cpu")
    assert HorizontalServerActor(prepared)._holds == waits or spec.clock.kind == "wall"
