"""Models of horizontal runs, of now and back in time, from the initial key and the ledger."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.experiment.initial_model import MODEL, ModelPlan
from raydpzv.experiment.rebuild import rebuild
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.replica import Replica
from raydpzv.records.run_folder import RunFolder
from tests.helpers.kills import kill_at
from tests.helpers.small_horizontal import one_line, small


def by_hand(folder: Path, version: int) -> np.ndarray:
    """The model after some updates, from the start and without snapshots."""
    opened = RunFolder.open(folder)
    spec = opened.spec()
    assert isinstance(spec, HorizontalScenario)
    plan = ModelPlan.of(spec, opened.environment(), {})
    replica = plan.replica()
    with Ledger.open(folder / "ledger") as ledger:
        for round in range(1, version + 1):
            replica.go_to(round, ledger)
    return replica.state()[0]


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous", "secret", "adam", "svrg"])
def test_any_version_is_rebuilt_with_snapshots_on_the_way_or_without(tmp_path: Path, kind: str) -> None:
    plain = scenarios.run(small(kind), tmp_path / "plain")
    scenarios.run(small(kind, "record.snapshots=5"), tmp_path / "kept")
    with Ledger.open(tmp_path / "kept" / "ledger") as ledger:
        kept = [(ledger.load_snapshot(MODEL, until) or (None,))[0] for until in (4, 5, 9, 24)]
    assert kept == [None, 5, 5, 20]
    for at in (0, 1, 5, 12, 20, 24):
        models = [rebuild(tmp_path / name, at).models[MODEL].tobytes() for name in ("plain", "kept")]
        assert models[0] == models[1] == by_hand(tmp_path / "plain", at).tobytes()
    assert rebuild(tmp_path / "plain", 12).verified is None
    last = rebuild(tmp_path / "kept")
    assert (last.verified, last.updates) == (True, 24)
    assert last.models[MODEL].tobytes() == plain.models[MODEL].tobytes()
    assert rebuild(tmp_path / "plain").digest == plain.summary["ledger"]["digest"]
    shutil.rmtree(tmp_path / "plain" / "rows" / "model")
    assert rebuild(tmp_path / "plain").verified is None


def test_snapshots_are_really_used_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios.run(small("decomfl", "record.snapshots=5"), tmp_path / "run")
    asked: list[tuple[int, int | None]] = []
    since = Ledger.since
    monkeypatch.setattr(Ledger, "since", lambda self, a, b=None: asked.append((a, b)) or since(self, a, b))
    rebuild(tmp_path / "run", 17)
    assert asked == [(15, 17)]
    path = next((tmp_path / "run" / "ledger" / "snapshots" / MODEL).glob("*15.npz"))
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with pytest.raises(DataError, match=path.name) as error:
        rebuild(tmp_path / "run", 17)
    one_line(error.value)
    rebuild(tmp_path / "run", 14)


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous", "pulling"])
def test_a_clients_model_is_the_one_it_read_last(tmp_path: Path, kind: str) -> None:
    run = scenarios.run(small(kind), tmp_path / "run")
    rows = run.rows("sync").to_pylist()
    for client in range(0, 12, 3):
        for at in (0, 6, 24):
            read = max((r["read"] for r in rows if r["client"] == client and r["round"] <= at), default=0)
            found = rebuild(tmp_path / "run", at, client)
            assert found.updates == read
            assert found.models[f"client {client}"].tobytes() == by_hand(tmp_path / "run", read).tobytes()
    if kind == "decomfl":
        # who took part in the last round has reverted to the model before it
        cohort = [r["client"] for r in rows if r["round"] == 24]
        assert {rebuild(tmp_path / "run", None, client).updates for client in cohort} == {23}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((25, None), "--at: wanted 0..24"),
        ((-1, None), "--at"),
        ((None, 12), "--client: wanted 0..11"),
        ((3, -1), "--client"),
    ],
)
def test_what_is_not_on_record_is_refused(tmp_path: Path, arguments: Any, said: str) -> None:
    scenarios.run(small("decomfl"), tmp_path / "run")
    with pytest.raises(InputError, match=said) as error:
        rebuild(tmp_path / "run", *arguments)
    one_line(error.value)


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous"])
def test_a_clients_model_is_known_of_a_killed_run_as_far_as_its_rows_go(tmp_path: Path, kind: str) -> None:
    spec = small(kind, "record.checkpoint_updates=5")
    scenarios.run(spec, tmp_path / "whole")
    kill_at(13, spec, tmp_path / "killed")
    held = set()
    for at in (0, 3, 7, 10):
        for client in range(spec.split.clients):
            whole, killed = (rebuild(tmp_path / name, at, client) for name in ("whole", "killed"))
            assert killed.updates == whole.updates
            name = f"client {client}"
            assert killed.models[name].tobytes() == whole.models[name].tobytes()
            held.add(killed.updates)
    assert len(held) > 1, "they did not all stand at the beginning"
    with pytest.raises(
        InputError, match="wanted --at 10 or less for one client's model, got 13: the rows of"
    ) as error:
        rebuild(tmp_path / "killed", None, 0)
    one_line(error.value)
    assert rebuild(tmp_path / "killed").updates == 13
    for name in ("sync", "service"):  # as a kill leaves them that came when one of them was written
        (part,) = (tmp_path / "whole" / "rows" / name).iterdir()
        table = pq.read_table(part)
        pq.write_table(table.filter(pc.less_equal(table["round"], 20)), part)
        with pytest.raises(InputError, match="wanted --at 20 or less"):
            rebuild(tmp_path / "whole", 24, 0)
        pq.write_table(table, part)
    assert max(rebuild(tmp_path / "whole", 24, client).updates for client in range(12)) > 0
    shutil.rmtree(tmp_path / "whole" / "rows")  # `publish` leaves them out
    with pytest.raises(InputError, match="wanted --at 0 or less"):
        rebuild(tmp_path / "whole", 7, 0)


def test_a_ledger_of_another_model_is_refused(tmp_path: Path) -> None:
    scenarios.run(small("decomfl"), tmp_path / "run")
    for number, override in enumerate(
        ("model.hidden=[5]", "seed=1", "method.momentum=0.4", "method.direction=rademacher")
    ):
        other = tmp_path / str(number)
        scenarios.run(small("decomfl", override), other)
        shutil.rmtree(other / "ledger")
        shutil.copytree(tmp_path / "run" / "ledger", other / "ledger")
        with pytest.raises(InputError, match="ledger") as error:
            rebuild(other)
        one_line(error.value)


def test_another_result_than_the_recorded_one_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios.run(small("decomfl"), tmp_path / "run")
    true = Replica.state
    monkeypatch.setattr(Replica, "state", lambda self: np.nextafter(true(self), np.float32(9)))
    with pytest.raises(ReplayMismatch, match="after update 24") as error:
        rebuild(tmp_path / "run")
    one_line(error.value)
    rebuild(tmp_path / "run", 23)


def test_who_does_not_know_the_secret_rebuilds_another_model(tmp_path: Path) -> None:
    run = scenarios.run(small("secret"), tmp_path / "run")
    spec = RunFolder.open(tmp_path / "run").spec()
    assert isinstance(spec, HorizontalScenario)
    plan = ModelPlan.of(spec, RunFolder.open(tmp_path / "run").environment(), {})
    server = plan.replica(follows_secret=False)
    seeds = np.arange(9, dtype=np.uint64)
    assert np.array_equal(server.seeds(seeds), seeds)
    assert not np.any(plan.replica().seeds(seeds) == seeds)
    with Ledger.open(tmp_path / "run" / "ledger") as ledger:
        server.go_to(24, ledger)
    gap = np.abs(server.state()[0] - run.models[MODEL])
    assert np.mean(gap > 1e-4) > 0.9
    assert scenarios.run(small("decomfl")).models[MODEL].tobytes() != run.models[MODEL].tobytes()


def test_a_run_that_sends_weights_has_nothing_to_rebuild(tmp_path: Path) -> None:
    scenarios.run(small("fedavg"), tmp_path / "run")
    with pytest.raises(InputError, match="no ledger"):
        rebuild(tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    facts = {k: v for k, v in folder.environment().items() if k != "input_shape"}
    with pytest.raises(DataError, match="input_shape"):
        ModelPlan.of(small("fedavg"), facts, {})
