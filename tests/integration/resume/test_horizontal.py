import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.config import toml
from raydpzv.config.scenario import HorizontalScenario
from raydpzv.errors import DataError, InputError, ReplayMismatch
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.initial_model import MODEL, ModelPlan
from raydpzv.experiment.rebuild import rebuild
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.horizontal.decomfl import decomfl_settings
from raydpzv.methods.horizontal.mezo import mezo_settings
from raydpzv.methods.replica import Replica
from raydpzv.records.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint, write_checkpoint
from raydpzv.records.run_folder import RunFolder
from tests.helpers.kills import kill_at
from tests.helpers.loading import refusal
from tests.helpers.small_horizontal import OFTEN, SMALL, resume, same, small, stopped


@pytest.mark.parametrize("kind", ["decomfl", "pulling", "fedavg", "fedzo", "asynchronous"])
def test_a_killed_run_continues_to_the_same_bits(tmp_path: Path, kind: str) -> None:
    """What a kill leaves is what the disk has at that moment: at some services, and after the very
    last one.
    """
    spec = small(kind, OFTEN)
    moments = {1, 38, 95} if kind != "asynchronous" else {1, 7, 24}
    count = 0

    def copy(status: Any) -> None:
        nonlocal count
        count += 1
        # the last ticks come after the end: a kill before the summary was written
        if count in moments or (status.stop_reason and not (tmp_path / "last").exists()):
            shutil.copytree(
                tmp_path / "run", tmp_path / ("last" if status.stop_reason else f"copy{count}")
            )

    whole = scenarios.run(spec, tmp_path / "run", progress=copy)
    copies = [p for p in tmp_path.iterdir() if p.name != "run"]
    assert len(copies) >= 3
    assert (tmp_path / "last").exists()
    for folder in copies:
        assert not (folder / "summary.json").exists()
        same(resume(folder), whole)


def test_a_run_killed_within_a_write_of_its_ledger_continues(tmp_path: Path) -> None:
    spec = small("decomfl", "record.flush=3600")
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run", 9)
    (tmp_path / "run" / "summary.json").unlink()
    segment = max((tmp_path / "run" / "ledger").glob("*.arrow*"), key=lambda p: p.stat().st_size)
    segment.write_bytes(segment.read_bytes()[:-37])
    same(resume(tmp_path / "run"), whole)


def test_what_a_checkpoint_leaves_out_would_be_missed(tmp_path: Path) -> None:
    """The control: the counts of pieces of work address the exponential delays of those that
    follow.
    """
    spec = small("decomfl", OFTEN)
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.state"
    found = read_checkpoint(path, RunFolder(path.parent).identity)
    checkpoint = found.checkpoint
    state = dict(checkpoint.state) | {
        "works": [[client, n + 1] for client, n in checkpoint.state["works"]]
    }
    write_checkpoint(
        path,
        Checkpoint(checkpoint.round, state, checkpoint.weights),
        found.extents,
        found.log,
        found.run,
    )
    end = resume(tmp_path / "run")
    assert end.summary["digest"] != whole.summary["digest"]
    assert end.summary["model_digest"] == whole.summary["model_digest"]


def test_a_stop_waits_for_the_round_and_leaves_a_checkpoint_of_it(tmp_path: Path) -> None:
    stop = threading.Event()
    asked = lambda status: stop.set() if status.uploads >= 6 else None  # noqa: E731  (in the midst of round 2)
    found = scenarios.run(small("decomfl"), tmp_path / "run", stop=stop, progress=asked)
    assert (found.summary["updates"], found.summary["uploads"]) == (2, 8)
    kept = read_checkpoint(tmp_path / "run" / CHECKPOINT, RunFolder(tmp_path / "run").identity)
    assert kept.checkpoint.round == 2


def test_a_budget_of_bytes_ends_a_run_with_the_round_that_passes_it() -> None:
    found = scenarios.run(toml.override(small("decomfl"), ["budget={}", "budget.bytes=1"]))
    assert (found.summary["updates"], found.summary["uploads"]) == (1, 4)


@pytest.mark.parametrize("kind", ["decomfl", "fedavg", "fedzo", "generated"])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_move_no_bits(kind: str, threads: int) -> None:
    one = scenarios.run(small(kind))
    several = scenarios.run(small(kind, f"resources.threads={threads}"))
    assert several.summary["digest"] == one.summary["digest"]
    assert several.models[MODEL].tobytes() == one.models[MODEL].tobytes()


@pytest.mark.parametrize("kind", ["decomfl", "pulling", "asynchronous"])
def test_neither_a_folder_nor_a_servers_model_nor_the_clients_kind_moves_bits(
    tmp_path: Path, kind: str
) -> None:
    whole = scenarios.run(small(kind))
    for number, override in enumerate(
        ((), ("method.server_model=true",), ("method.replicas=per_client",))
    ):
        other = scenarios.run(small(kind, *override), tmp_path / str(number)).summary
        for name in ("digest", "model_digest"):
            assert other[name] == whole.summary[name]


@pytest.mark.parametrize(
    "kind", ["decomfl", "pulling", "schedules", "mezo", "asynchronous", "svrg"]
)
def test_bytes_of_a_run_follow_from_who_took_part(kind: str) -> None:
    """From the cohorts (or wakes) alone: 8 B per seed of a step, missed or new, 4 B per scalar, or
    the model.

    A client that has to say first how far it has come sends 8 B more for each answer.
    """
    spec = small(kind)
    run, prepared = scenarios.run(spec), prepare_horizontal(spec)
    settings = mezo_settings if kind == "mezo" else decomfl_settings
    given = settings(spec.method, Key(spec.seed))
    state = 4 * len(prepared.plan.initial()) * (2 if given.rule.momentum else 1)
    pull_after = getattr(spec.method, "pull_after", None)
    rows = run.rows("sync").to_pylist()
    down, up, at = 0, 0, dict[int, int]()
    for row in rows:
        client, read, pairs = row["client"], row["read"], given.pairs(row["round"])
        missed = range(at.get(client, 0) + 1, read + 1)
        lacks = sum(8 * given.local_steps + 4 * given.pairs(r) for r in missed)
        pulls = pull_after is not None and len(missed) > pull_after and state < lacks
        assert row["pulled"] == pulls
        assert row["missed"] == len(missed)
        down += (state if pulls else lacks) + (
            0 if kind == "asynchronous" else 8 * given.local_steps
        )
        up += 4 * pairs + (8 if kind == "asynchronous" else 0)
        at[client] = read
    messages: Sequence[dict[str, Any]] = run.rows("message").to_pylist()
    served = {(r["client"], r["read"] + 1) for r in rows}
    counted = sum(
        m["bytes"]
        for m in messages
        if m["direction"] == "down" and (m["client"], m["round"]) in served
    )
    if kind == "mezo":
        assert run.summary["bytes_up"] == run.summary["bytes_down"] == 0
        return
    assert counted == down
    answers = sum(m["direction"] == "down" for m in messages)
    up += 8 * answers if kind in ("asynchronous", "svrg") else 0
    assert (
        run.summary["bytes_up"] == up == sum(m["bytes"] for m in messages if m["direction"] == "up")
    )
    assert run.summary["bytes_down"] == sum(
        m["bytes"] for m in messages if m["direction"] == "down"
    )
    assert (kind == "pulling") == any(r["pulled"] for r in rows)


def test_what_a_method_takes_over_is_said_with_every_result_and_after_a_resumption(
    tmp_path: Path,
) -> None:
    changes = ["method.name=fedavg", *(s for s in SMALL if "updates" not in s), "budget.updates=4"]
    spec = scenarios.load("digits_decomfl", changes)
    assert "takes over" in spec.note
    assert "momentum" not in spec.note  # the scenario's is FedAvg's own
    stopped(spec, tmp_path / "run", 2)
    assert resume(tmp_path / "run").summary["warnings"][0] == spec.note
    assert spec.note not in scenarios.run(spec.noted("")).summary["warnings"]


@pytest.mark.parametrize("kind", ["decomfl", "pulling", "asynchronous"])
def test_no_acknowledged_update_leaves_the_ledger_when_a_resumed_run_is_killed_again(
    tmp_path: Path, kind: str
) -> None:
    """Killed before there was a checkpoint of what the ledger has: it is compared with what is made
    again.
    """
    spec, folder = small(kind, "record.flush=1000"), tmp_path / "run"
    whole = scenarios.run(spec)
    kill_at(11, spec, folder)
    with Ledger.open(folder / "ledger") as ledger:
        held = ledger.digest
        assert ledger.version == 11
    kill_at(4, spec, folder)
    with Ledger.open(folder / "ledger") as ledger:
        assert (ledger.version, ledger.digest) == (11, held)
    end = resume(folder)
    same(end, whole)
    assert end.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]


def test_an_acknowledged_update_that_comes_out_otherwise_is_found(tmp_path: Path) -> None:
    """The control: the ledger of another seed's run of the same model."""
    spec, folder = small("decomfl", "record.flush=1000"), tmp_path / "run"
    kill_at(6, spec, folder)
    with Ledger.open(folder / "ledger") as ledger:
        kept, header = ledger.since(0), ledger.header
    shutil.rmtree(folder / "ledger")
    with Ledger.create(folder / "ledger", header) as other:
        for update in kept.updates():
            changed = np.frombuffer(update.scalar, np.float32) + np.float32(update.round == 5)
            other.enter(update._replace(scalar=changed.tobytes()))
    with pytest.raises(ReplayMismatch, match="update 5: its scalar is not what the ledger has"):
        resume(folder)


# Models of horizontal runs, of now and back in time, from the initial key and the ledger.


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
def test_any_version_is_rebuilt_with_snapshots_on_the_way_or_without(
    tmp_path: Path, kind: str
) -> None:
    plain = scenarios.run(small(kind), tmp_path / "plain")
    scenarios.run(small(kind, "record.snapshots=5"), tmp_path / "kept")
    with Ledger.open(tmp_path / "kept" / "ledger") as ledger:
        kept = [(ledger.load_snapshot(MODEL, until) or (None,))[0] for until in (4, 5, 9, 24)]
    assert kept == [None, 5, 5, 20]
    for at in (0, 1, 5, 12, 20, 24):
        models = [
            rebuild(tmp_path / name, at).models[MODEL].tobytes() for name in ("plain", "kept")
        ]
        assert models[0] == models[1] == by_hand(tmp_path / "plain", at).tobytes()
    assert rebuild(tmp_path / "plain", 12).verified is None
    last = rebuild(tmp_path / "kept")
    assert (last.verified, last.updates) == (True, 24)
    assert last.models[MODEL].tobytes() == plain.models[MODEL].tobytes()
    assert rebuild(tmp_path / "plain").digest == plain.summary["ledger"]["digest"]
    shutil.rmtree(tmp_path / "plain" / "rows" / "model")
    assert rebuild(tmp_path / "plain").verified is None


def test_snapshots_are_really_used_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios.run(small("decomfl", "record.snapshots=5"), tmp_path / "run")
    asked: list[tuple[int, int | None]] = []
    since = Ledger.since
    monkeypatch.setattr(
        Ledger, "since", lambda self, a, b=None: asked.append((a, b)) or since(self, a, b)
    )
    rebuild(tmp_path / "run", 17)
    assert asked == [(15, 17)]
    path = next((tmp_path / "run" / "ledger" / "snapshots" / MODEL).glob("*15.npz"))
    data = path.read_bytes()
    path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    with refusal(DataError, path.name):
        rebuild(tmp_path / "run", 17)
    rebuild(tmp_path / "run", 14)


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous", "pulling"])
def test_a_clients_model_is_the_one_it_read_last(tmp_path: Path, kind: str) -> None:
    run = scenarios.run(small(kind), tmp_path / "run")
    rows = run.rows("sync").to_pylist()
    for client in range(0, 12, 3):
        for at in (0, 6, 24):
            read = max(
                (r["read"] for r in rows if r["client"] == client and r["round"] <= at), default=0
            )
            found = rebuild(tmp_path / "run", at, client)
            assert found.updates == read
            assert (
                found.models[f"client {client}"].tobytes()
                == by_hand(tmp_path / "run", read).tobytes()
            )
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
    with refusal(InputError, said):
        rebuild(tmp_path / "run", *arguments)


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous"])
def test_a_clients_model_is_known_of_a_killed_run_as_far_as_its_rows_go(
    tmp_path: Path, kind: str
) -> None:
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
    with refusal(InputError, "wanted --at 10 or less for one client's model, got 13: the rows of"):
        rebuild(tmp_path / "killed", None, 0)
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
        with refusal(InputError, "ledger"):
            rebuild(other)


def test_another_result_than_the_recorded_one_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios.run(small("decomfl"), tmp_path / "run")
    true = Replica.state
    monkeypatch.setattr(Replica, "state", lambda self: np.nextafter(true(self), np.float32(9)))
    with refusal(ReplayMismatch, "after update 24"):
        rebuild(tmp_path / "run")
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
