"""Horizontal runs: stopped, killed, damaged, continued and rebuilt, always to the bits of the uninterrupted run."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.errors import DataError, InputError, ReplayMismatch, SpecError
from raydpzv.experiment import rebuild as rebuilding
from raydpzv.experiment.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from raydpzv.experiment.closing import Run
from raydpzv.experiment.federation import prepare_federation
from raydpzv.experiment.folder import RunFolder
from raydpzv.experiment.plan import MODEL, ModelPlan
from raydpzv.experiment.rebuild import rebuild, resuming_federation
from raydpzv.experiment.spec_horizontal import HORIZONTAL_METHODS, HorizontalSpec
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.store import digest

SMALL = (
    "data.train_rows=150",
    "data.test_rows=60",
    "model.hidden=[6]",
    "split.clients=12",
    "method.cohort=4",
    "method.batch=8",
    "budget.updates=24",
    "evaluate.every=5",
)
OFTEN = "record.flush=1e-9"
"""A checkpoint after every round."""
MESSY = (
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "clock.service=0.03",
    "clock.service_law=exponential",
    "network.latency=0.05",
    "network.up=50000",
)
DECOMFL = (*MESSY, "method.perturbations=3", "method.local_steps=2", "method.momentum=0.5")
ASYNC = ("method.asynchronous=true", "method.perturbations=3", "clock.compute=0.3")
METHODS: dict[str, tuple[str, ...]] = {
    "decomfl": DECOMFL,
    "per_client": (*DECOMFL, "method.replicas=per_client"),
    "pulling": (
        *DECOMFL,
        "method.server_model=true",
        "method.pull_after=2",
        "method.perturbations=20",
        "model.hidden=[1]",
    ),
    "schedules": (*DECOMFL, "method.lr_at=[[9, 0.01]]", "method.perturbations_at=[[7, 5], [15, 1]]"),
    "secret": (*DECOMFL, "method.private_seed_shift=true"),
    "mezo": ("split.clients=1",),
    "fedavg": (*MESSY, "method.momentum=0.5", "method.local_steps=3", "method.weights=rows"),
    "fedcom": MESSY,
    "topk": MESSY,
    "fedzo": (*MESSY, "method.perturbations=3", "method.local_steps=2"),
    "asynchronous": ASYNC,
}
SEEDED = ("decomfl", "per_client", "pulling", "schedules", "secret", "mezo", "asynchronous")


def small(kind: str, *overrides: str) -> HorizontalSpec:
    """A scenario of 24 updates; methods other than DeComFL take the place of the file's [method] section."""
    name = kind if kind in ("mezo", "fedavg", "fedcom", "topk", "fedzo") else "decomfl"
    wanted = [*SMALL, *METHODS[kind], *overrides]
    if name == "mezo":
        wanted = [w for w in wanted if not w.startswith("method.cohort")]
    base = scenarios.load("digits_decomfl", [])
    assert isinstance(base, HorizontalSpec)
    blank = base.model_copy(
        update={"method": type(base.method)() if name == "decomfl" else HORIZONTAL_METHODS[name]()}
    )
    spec = scenarios.override(blank, wanted)
    assert isinstance(spec, HorizontalSpec)
    return spec


def stop_after(updates: int) -> tuple[threading.Event, Callable[[Any], None]]:
    stop = threading.Event()
    return stop, lambda status: stop.set() if status.updates >= updates else None


def stopped(spec: HorizontalSpec, folder: Path, updates: int = 9) -> None:
    stop, progress = stop_after(updates)
    summary = scenarios.run(spec, folder, stop=stop, progress=progress).summary
    assert (summary["status"], summary["updates"]) == ("stopped", updates)


def resume(folder: Path, **options: Any) -> Run:
    federation, opened, _ = resuming_federation(folder)
    return scenarios.run_prepared(federation, opened, runner="local", **options)


def same(run: Run, whole: Run) -> None:
    for name in ("digest", "model_digest", "updates", "bytes_up", "bytes_down"):
        assert run.summary[name] == whole.summary[name], name
    assert run.summary["status"] == "done"
    if "ledger" in whole.summary:
        assert run.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def contents(folder: Path) -> dict[str, bytes]:
    kept = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".lock" not in p.name]
    return {str(p.relative_to(folder)): p.read_bytes() for p in kept}


# --- going on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS)
def test_a_stopped_run_goes_on_to_the_bits_of_an_uninterrupted_one(tmp_path: Path, kind: str) -> None:
    spec = small(kind, OFTEN)
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run", 9)
    stop, progress = stop_after(17)
    middle = resume(tmp_path / "run", stop=stop, progress=progress).summary
    assert (middle["status"], middle["updates"]) == ("stopped", 17)
    seen: list[int] = []
    end = resume(tmp_path / "run", progress=lambda status: seen.append(status.updates))
    same(end, whole)
    assert seen[0] >= (1 if kind == "asynchronous" else 16)
    assert digest(RunFolder.open(tmp_path / "run").rows()) == whole.summary["digest"]
    with pytest.raises(InputError, match="complete"):
        resuming_federation(tmp_path / "run")
    if kind in SEEDED:
        again = rebuild(tmp_path / "run")
        assert (again.verified, again.updates) == (True, 24)
        assert again.models[MODEL].tobytes() == whole.models[MODEL].tobytes()


@pytest.mark.parametrize("kind", ["decomfl", "pulling", "fedavg", "fedzo", "asynchronous"])
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, kind: str) -> None:
    """What a kill leaves is what the disk has at that moment: at some services, and after the very last one."""
    spec = small(kind, OFTEN)
    moments = {1, 38, 95} if kind != "asynchronous" else {1, 7, 24}
    count = 0

    def copy(status: Any) -> None:
        nonlocal count
        count += 1
        # the last ticks come after the end: a kill before the summary was written
        if count in moments or (status.stop_reason and not (tmp_path / "last").exists()):
            shutil.copytree(tmp_path / "run", tmp_path / ("last" if status.stop_reason else f"copy{count}"))

    whole = scenarios.run(spec, tmp_path / "run", progress=copy)
    copies = [p for p in tmp_path.iterdir() if p.name != "run"]
    assert len(copies) >= 3
    assert (tmp_path / "last").exists()
    for folder in copies:
        assert not (folder / "summary.json").exists()
        same(resume(folder), whole)


def test_a_run_killed_within_a_write_of_its_ledger_goes_on(tmp_path: Path) -> None:
    spec = small("decomfl", "record.flush=3600")
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run", 9)
    (tmp_path / "run" / "summary.json").unlink()
    segment = max((tmp_path / "run" / "ledger").glob("*.arrow*"), key=lambda p: p.stat().st_size)
    segment.write_bytes(segment.read_bytes()[:-37])
    same(resume(tmp_path / "run"), whole)


def test_what_a_checkpoint_leaves_out_would_be_missed(tmp_path: Path) -> None:
    """The control: the counts of pieces of work address the exponential delays of those that follow."""
    spec = small("decomfl", OFTEN)
    whole = scenarios.run(spec)
    stopped(spec, tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.npz"
    found = read_checkpoint(path)
    assert found is not None
    checkpoint, counted = found
    state = dict(checkpoint.state) | {"works": [[client, n + 1] for client, n in checkpoint.state["works"]]}
    write_checkpoint(path, Checkpoint(checkpoint.round, state, checkpoint.weights), counted)
    end = resume(tmp_path / "run")
    assert end.summary["digest"] != whole.summary["digest"]
    assert end.summary["model_digest"] == whole.summary["model_digest"]


@pytest.mark.parametrize("kind", ["decomfl", "fedavg", "fedzo"])
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
    for number, override in enumerate(((), ("method.server_model=true",), ("method.replicas=per_client",))):
        other = scenarios.run(small(kind, *override), tmp_path / str(number)).summary
        for name in ("digest", "model_digest"):
            assert other[name] == whole.summary[name]


# --- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("decomfl", ("updates = 24", "updates = 99")),
        ("decomfl", ("local_steps = 2", "local_steps = 3")),
        ("fedavg", ("train_rows = 150", "train_rows = 140")),
    ],
)
def test_a_changed_scenario_is_refused(tmp_path: Path, kind: str, edit: tuple[str, str]) -> None:
    stopped(small(kind, OFTEN), tmp_path / "run")
    path = tmp_path / "run" / "scenario.toml"
    assert edit[0] in path.read_text()
    path.write_text(path.read_text().replace(*edit))
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=r"scenario\.toml changed") as error:
        resuming_federation(tmp_path / "run")
    one_line(error.value)
    assert contents(tmp_path / "run") == before


def test_changed_data_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(400)))
    data = ("data.source=csv", f"data.file={table}", "data.target=label")
    stopped(small("decomfl", OFTEN, *data), tmp_path / "run")
    table.write_text(table.read_text().replace("3,3,", "3,4,", 1))
    with pytest.raises(InputError, match="the data changed"):
        resuming_federation(tmp_path / "run")


@pytest.mark.parametrize("kind", ["decomfl", "fedavg"])
def test_a_damaged_checkpoint_is_refused_by_name_or_does_no_harm(tmp_path: Path, kind: str) -> None:
    stopped(small(kind, OFTEN, "model.hidden=[1]"), tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.npz"
    data = path.read_bytes()
    good = read_checkpoint(path)
    assert good is not None
    refused = 0
    places = list(range(0, len(data), 7)) + list(range(len(data) - 200, len(data)))
    for place in places:
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x21]) + data[place + 1 :])
        try:
            found = read_checkpoint(path)
        except DataError as error:
            refused += one_line(error).startswith(f"{path}: cannot be read")
            continue
        assert found is not None
        assert (found[0].round, found[0].state, found[1]) == (good[0].round, good[0].state, good[1])
        if good[0].weights is not None:
            assert found[0].weights is not None
            assert found[0].weights.tobytes() == good[0].weights.tobytes()
    assert refused > len(places) / 2
    for size in (0, 1, 100, len(data) - 1):
        path.write_bytes(data[:size])
        before = contents(tmp_path / "run")
        with pytest.raises(DataError, match=r"checkpoint\.npz: cannot be read") as error:
            resuming_federation(tmp_path / "run")
        one_line(error.value)
        assert contents(tmp_path / "run") == before


def damage(folder: Path, how: str) -> None:
    """Harm the ledger of a run in one of several ways."""
    segment = max((folder / "ledger").glob("*.arrow*"), key=lambda p: p.stat().st_size)
    data = segment.read_bytes()
    if how == "flip":
        segment.write_bytes(
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
        )
    elif how == "cut":
        segment.write_bytes(data[: len(data) // 2])
    elif how == "gone":
        shutil.rmtree(folder / "ledger")
    elif how == "header":
        (folder / "ledger" / "header.json").write_text("{")


@pytest.mark.parametrize("how", ["flip", "cut", "gone", "header"])
def test_a_damaged_ledger_is_refused_by_name_and_nothing_is_touched(tmp_path: Path, how: str) -> None:
    """Cut off: what is there is whole, but the checkpoint counts on more."""
    stopped(small("decomfl", OFTEN), tmp_path / "run")
    damage(tmp_path / "run", how)
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match=str(tmp_path / "run" / "ledger")) as error:
        resuming_federation(tmp_path / "run")
    one_line(error.value)
    assert contents(tmp_path / "run") == before
    if how != "cut":
        with pytest.raises(InputError) as error:
            rebuild(tmp_path / "run")
        one_line(error.value)


def test_a_run_that_adds_back_cannot_go_on_since_its_clients_are_gone(tmp_path: Path) -> None:
    spec = small(
        "decomfl", OFTEN, "method.momentum=0", "method.replicas=per_client", "method.revert=add_back"
    )
    stopped(spec, tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match="add_back"):
        resuming_federation(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    drift = json.loads((tmp_path / "run" / "summary.json").read_text())["drift"]
    assert 0 < drift["largest"] < 1e-4
    restore = scenarios.run(small("per_client")).summary["drift"]
    assert restore == {"largest": 0.0, "share": 0.0}


def test_adding_back_without_rounds_is_refused() -> None:
    spec = small("asynchronous")
    changed = {"revert": "add_back", "replicas": "per_client"}
    spec = spec.model_copy(update={"method": spec.method.model_copy(update=changed)})
    with pytest.raises(SpecError, match="add_back") as error:
        prepare_federation(spec)
    one_line(error.value)


def test_a_wall_clock_run_is_not_resumed_but_rebuilt(tmp_path: Path) -> None:
    spec = small(
        "asynchronous", "clock.kind=wall", "arrivals.rate=40", "clock.compute=0.001", "resources.hosts=2"
    )
    run = scenarios.run(spec, tmp_path / "run")
    assert run.summary["updates"] == 24
    with pytest.raises(InputError, match="a wall-clock run cannot be continued"):
        resuming_federation(tmp_path / "run")
    again = rebuild(tmp_path / "run")
    assert again.verified is True
    assert again.models[MODEL].tobytes() == run.models[MODEL].tobytes()


@pytest.mark.parametrize("out", [True, False])
def test_a_wall_clock_run_past_the_first_trimming_ends_well(tmp_path: Path, out: bool) -> None:
    """Who evaluates lags behind all clients: with or without a folder it must still find its way."""
    rest = ("budget.updates=150", "evaluate.every=1000", "split.clients=2", "resources.hosts=2")
    spec = small("asynchronous", "clock.kind=wall", "arrivals.rate=400", "clock.compute=0", *rest)
    run = scenarios.run(spec, tmp_path / "run" if out else None)
    assert run.summary["updates"] == 150
    assert run.summary["status"] == "done"


# --- rebuilding ------------------------------------------------------------------------------------------------


def by_hand(folder: Path, version: int) -> np.ndarray:
    """The model after some updates, from the start and without snapshots."""
    opened = RunFolder.open(folder)
    spec = opened.spec()
    assert isinstance(spec, HorizontalSpec)
    plan = ModelPlan.of(spec, opened.environment())
    replica = plan.replica()
    with Ledger.open(folder / "ledger") as ledger:
        for round in range(1, version + 1):
            replica.go_to(round, ledger)
    return replica.state()[0]


@pytest.mark.parametrize("kind", ["decomfl", "asynchronous", "secret"])
def test_any_version_is_rebuilt_with_snapshots_on_the_way_or_without(tmp_path: Path, kind: str) -> None:
    plain = scenarios.run(small(kind), tmp_path / "plain")
    scenarios.run(small(kind, "record.snapshots=5"), tmp_path / "kept")
    with Ledger.open(tmp_path / "kept" / "ledger") as ledger:
        kept = [(ledger.kept(MODEL, until) or (None,))[0] for until in (4, 5, 9, 24)]
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
    true = rebuilding._replayed
    monkeypatch.setattr(rebuilding, "_replayed", lambda *given: np.nextafter(true(*given), np.float32(9)))
    with pytest.raises(ReplayMismatch, match="after update 24") as error:
        rebuild(tmp_path / "run")
    one_line(error.value)
    rebuild(tmp_path / "run", 23)


def test_who_does_not_know_the_secret_rebuilds_another_model(tmp_path: Path) -> None:
    run = scenarios.run(small("secret"), tmp_path / "run")
    spec = RunFolder.open(tmp_path / "run").spec()
    assert isinstance(spec, HorizontalSpec)
    plan = ModelPlan.of(spec, RunFolder.open(tmp_path / "run").environment())
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
        ModelPlan.of(small("fedavg"), facts)


# --- bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["decomfl", "pulling", "schedules", "mezo", "asynchronous"])
def test_bytes_of_a_run_follow_from_who_took_part(kind: str) -> None:
    """From the cohorts (or wakes) alone: 12 B per missed pair, 8 B per new seed, 4 B per scalar, or the model."""
    spec = small(kind)
    run, federation = scenarios.run(spec), prepare_federation(spec)
    given = federation.plan.settings()
    state = 4 * federation.plan.initial().numel() * (2 if given.rule.momentum else 1)
    pull_after = getattr(spec.method, "pull_after", None)
    rows = run.rows("sync").to_pylist()
    down, up, at = 0, 0, dict[int, int]()
    for row in rows:
        client, read, pairs = row["client"], row["read"], given.pairs(row["round"])
        missed = range(at.get(client, 0) + 1, read + 1)
        lacks = 12 * sum(given.pairs(r) for r in missed)
        pulls = pull_after is not None and len(missed) > pull_after and state < lacks
        assert row["pulled"] == pulls
        assert row["missed"] == len(missed)
        down += (state if pulls else lacks) + (0 if kind == "asynchronous" else 8 * pairs)
        up += (12 if kind == "asynchronous" else 4) * pairs
        at[client] = read
    messages: Sequence[dict[str, Any]] = run.rows("message").to_pylist()
    served = {(r["client"], r["read"] + 1) for r in rows}
    counted = sum(
        m["bytes"] for m in messages if m["direction"] == "down" and (m["client"], m["round"]) in served
    )
    if kind == "mezo":
        assert run.summary["bytes_up"] == run.summary["bytes_down"] == 0
        return
    assert counted == down
    assert run.summary["bytes_up"] == up == sum(m["bytes"] for m in messages if m["direction"] == "up")
    assert run.summary["bytes_down"] == sum(m["bytes"] for m in messages if m["direction"] == "down")
    assert (kind == "pulling") == any(r["pulled"] for r in rows)
