"""The runner's contract: local or on Ray, by sockets or calls, vertical or horizontal, virtual or
wall clock.

Under the virtual clock a run on Ray has the bits of a run in one process, whole, stopped and
resumed, or after a kill. Under the wall clock every update is served once, and a replay of the
record has every bit.
"""

from __future__ import annotations

import dataclasses
import re
import time
from pathlib import Path

import pytest

import raydpzv
import scenarios
from actors.remote import get
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.parties import ClientFactory
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.rebuild import rebuild, replay
from raydpzv.experiment.resuming import continued
from raydpzv.keys import Key
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.store import digest
from raydpzv.registry import METHODS
from tests.helpers.gate import Gate, StopAtGate
from tests.helpers.runs import run_prepared
from tests.helpers.small_users import small
from tests.helpers.struck import StruckClient, strikes
from tests.helpers.struck_hosts import Gated, StruckServerOfHosts, as_kind, mortal

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

ACTORS, HOSTS = "resources.client_actors=2", "resources.hosts=2"
ROWS = (
    "data.train_rows=150",
    "data.test_rows=40",
    "privacy.noise=seeded",
    "record.checkpoint=1000",
)
DPZV = ("digits_dpzv", (*ROWS, "budget.updates=120", "evaluate.every=40"))
DELAYS = (
    "clock.compute=0.2",
    "clock.compute_law=exponential",
    "clock.service=0.02",
    "network.latency=0.05",
    "network.up=50000",
    "arrivals.rate=[1.0, 2.0, 0.5, 1.5]",
)
VAFL = (
    "vafl",
    ("budget.updates=60", "evaluate.every=30", "network.latency=0.05", "record.checkpoint=1000"),
)
NOISE = (
    "privacy.mode=paper",
    "privacy.epsilon=1.0",
    "privacy.delta=1e-5",
    "privacy.clip=1.0",
    "privacy.noise=seeded",
)
CZOFO = ("method.name=czofo", "method.upload_bits=4", "method.answer_bits=8", *NOISE)
ROUNDS = 12
DECOMFL = ("digits_decomfl", (f"budget.updates={ROUNDS}", "evaluate.every=6"))
# models above 16,384 parameters take one product for all directions
PRODUCTS = ("method.direction=rank_one", 'method.groups={"1.*" = {lr = 2.0, smoothing = 0.5}}')
PULLS = ("method.asynchronous=true", "arrivals.rate=0.5", "budget.updates=40", "clock.compute=0.3",
         "clock.compute_law=exponential", "network.latency=0.05", "network.up=5000")  # fmt: skip


def spec_of(case, *more):
    """The scenario of a case; a callable makes its own."""
    return case(*more) if callable(case) else scenarios.load(case[0], [*case[1], *more])


def changed(case, *more):
    return case[0], (*case[1], *more)


def fedavg(*more):
    spec = scenarios.load("digits_decomfl", ["budget.updates=6", "network.up=100000", *more])
    return spec.model_copy(update={"method": METHODS["fedavg"].config()})


class Delayed:
    """A client's role whose work takes a random real time."""

    def __init__(self, role, client):
        self._role, self._draws, self._calls = role, Key(99) / client, 0

    def process(self, order):
        self._calls += 1
        time.sleep(float((self._draws / self._calls).generator().uniform(0, 0.02)))
        return self._role.process(order)

    def __getattr__(self, name):
        return getattr(self._role, name)


class AtGate:
    """A client's role that waits at a gate, under both clocks."""

    def __init__(self, role, gate):
        self._role, self._gate, self._calls = role, gate, 0

    def process(self, order):
        self._calls += 1
        self._gate.passed(self._calls)
        return self._role.process(order)

    def work(self):
        self._calls += 1
        self._gate.passed(self._calls)
        return self._role.work()

    def __getattr__(self, name):
        return getattr(self._role, name)


@dataclasses.dataclass(frozen=True)
class DelayedClient(ClientFactory):
    def make(self, device="cpu"):
        return Delayed(ClientFactory.make(self, device), self.client)


@dataclasses.dataclass(frozen=True)
class GatedClient(ClientFactory):
    gate: Gate | None = None

    def make(self, device="cpu"):
        return AtGate(ClientFactory.make(self, device), self.gate)


def with_clients(prepared, kind, **more):
    clients = tuple(kind(**vars(client), **more) for client in prepared.clients)
    return dataclasses.replace(prepared, clients=clients)


def assert_same(found, whole, *, but_faults=False):
    fault = whole.rows("fault") if but_faults else found.rows("fault")
    assert digest({**found.tables, "fault": fault}) == whole.summary["digest"]
    for name in ("model_digest", "drift", "bytes_up", "bytes_down", "vector_length", "staleness"):
        assert found.summary.get(name) == whole.summary.get(name), name
    ledgers = [run.summary.get("ledger", {}).get("digest") for run in (found, whole)]
    assert ledgers[0] == ledgers[1]


VIRTUAL = {
    "vertical, delays": (changed(DPZV, *DELAYS), ()),
    "vertical, in the server's process": (changed(DPZV, *DELAYS), ("resources.client_actors=0",)),
    "vertical, queries": (changed(VAFL, "method.max_delay=8"), (ACTORS,)),
    "vertical, requests": (changed(VAFL, "method.query_first=true"), (ACTORS,)),
    "vertical, compressed": (changed(VAFL, *CZOFO), ("resources.client_actors=1",)),
    "horizontal, rounds": (DECOMFL, ("resources.hosts=3",)),
    "horizontal, clients that pull": (changed(DECOMFL, *PULLS), (HOSTS,)),
    "horizontal, bits, 4 hosts": (
        changed(DECOMFL, "method.name=feedsign"),
        ("resources.hosts=4",),
    ),
    "horizontal, a pool of seeds": (
        changed(DECOMFL, "method.name=fedkseed", "method.pool=64"),
        (HOSTS,),
    ),
    "horizontal, normalised steps, 1 host": (
        changed(DECOMFL, "method.name=fzoo"),
        ("resources.hosts=1",),
    ),
    "horizontal, weights": (fedavg, (HOSTS,)),
    "horizontal, products": (
        changed(DECOMFL, *PRODUCTS, "method.perturbations=4", "model.hidden=[300]"),
        (HOSTS,),
    ),
    "vertical, products": (changed(DPZV, *PRODUCTS, "model.hidden=[1200]"), (ACTORS,)),
}


@pytest.mark.parametrize("row", VIRTUAL)
def test_a_run_has_the_bits_of_one_process(row):
    case, placed = VIRTUAL[row]
    prepared = prepare(spec_of(case, *placed))
    if "delays" in row:
        prepared = with_clients(prepared, DelayedClient)
    found = run_prepared(prepared, runner="ray")
    assert_same(found, scenarios.run(spec_of(case)))
    assert found.summary["updates"] > 5
    if row == "horizontal, rounds":
        facts = found.summary["ray"]
        # one message to each host a round; one range for each but in round 1, and at most one for
        # each evaluation
        assert (facts["hosts"], facts["host_calls"]) == (3, 3 * ROUNDS)
        assert 0 <= facts["ledger_reads"] - 3 * (ROUNDS - 1) <= 3


STOPPED = {
    "vertical": (changed(DPZV, *DELAYS, "budget.updates=200"), (ACTORS,)),
    "vertical, torch": (
        changed(VAFL, "budget.updates=200", "model.engine=torch"),
        ("resources.client_actors=1",),
    ),
    "horizontal": (changed(DECOMFL, "budget.updates=90", "record.snapshots=60"), (HOSTS,)),
}


@pytest.mark.parametrize("row", STOPPED)
def test_a_stopped_run_resumes_on_the_other_runner_to_the_same_bits(row, tmp_path):
    case, placed = STOPPED[row]
    prepared, folder = prepare(spec_of(case, *placed)), tmp_path / "run"
    on_ray = StopAtGate(Gate(tmp_path / "open", at=30), after=15)
    if isinstance(prepared, PreparedHorizontal):
        prepared = as_kind(Gated, prepared, gate=on_ray.gate)
    else:
        prepared = with_clients(prepared, GatedClient, gate=on_ray.gate)
    first = run_prepared(prepared, folder, runner="ray", stop=on_ray.stop, progress=on_ray).summary
    assert first["status"] == "stopped"
    whole = scenarios.run(spec_of(case))
    assert 15 < first["updates"] < whole.summary["updates"]
    if row.startswith("vertical"):  # rounds beyond the last checkpoint are made again
        assert RunFolder.open(folder).checkpoint().round == first["updates"]
    here = StopAtGate(on_ray.gate, after=first["updates"] + 15)
    experiment, opened, _ = continued(folder)
    second = run_prepared(experiment, opened, stop=here.stop, progress=here).summary
    assert second["status"] == "stopped"
    assert first["updates"] < second["updates"] < whole.summary["updates"]
    experiment, opened, _ = continued(folder)
    assert_same(run_prepared(experiment, opened, runner="ray"), whole)
    assert opened.read_ledger is None, "an actor has it"
    if isinstance(prepared, PreparedHorizontal):
        assert rebuild(folder).verified


KILLED = {
    "vertical": (changed(DPZV, *DELAYS, "method.perturbations=2"), (ACTORS,), 2),
    "horizontal": (DECOMFL, (HOSTS,), 1),
    "horizontal, clients that pull": (changed(DECOMFL, *PULLS), (HOSTS,), 1),
}


@pytest.mark.parametrize("row", KILLED)
def test_killed_clients_leave_no_trace_but_a_fault_row_each(row, tmp_path):
    """With two losses of an actor of two clients, one is computing and the other has its work
    behind it.
    """
    case, placed, losses = KILLED[row]
    prepared, folder = prepare(spec_of(case, *placed)), tmp_path / "run"
    if isinstance(prepared, PreparedHorizontal):
        killed = mortal(prepared, tmp_path)
    else:
        marks = tuple(str(tmp_path / f"mark {n}") for n in range(losses))
        for mark in marks:
            Path(mark).touch()
        clients = list(prepared.clients)
        clients[2] = StruckClient(**vars(clients[2]), calls=7, marks=marks)
        killed = dataclasses.replace(prepared, clients=tuple(clients))
    found, whole = run_prepared(killed, folder, runner="ray"), scenarios.run(spec_of(case))
    but_faults = tuple(name for name in SCHEMAS if name != "fault")
    assert digest(found.tables, but_faults) == digest(whole.tables, but_faults)
    for name in ("model_digest", "bytes_up", "bytes_down"):
        assert found.summary[name] == whole.summary[name], name
    assert found.summary["ledger"]["digest"] == whole.summary["ledger"]["digest"]
    faults = found.rows("fault").to_pylist()
    assert len(faults) == losses
    if isinstance(prepared, PreparedHorizontal):
        assert faults[0]["kind"] == "host lost"
        assert "replaced (1 of 3)" in faults[0]["message"]
        return
    assert {(row["party"], row["kind"]) for row in faults} == {("client actor 0", "Lost")}
    pairs = [
        [int(n) for n in re.findall(r"client [02] from (\d+)", row["message"])] for row in faults
    ]
    assert all(len(of_clients) == 2 for of_clients in pairs)
    assert losses < 2 or all(0 < a < b for a, b in zip(*pairs, strict=True))
    assert replay(folder).verified


LIVE = ("clock.kind=wall", "arrivals.rate=40", "network.latency=0.0")
LIVE_HOSTS = (
    "clock.kind=wall",
    "arrivals.rate=40",
    "clock.compute=0.002",
    "method.batch=8",
    "model.hidden=[6]",
    "data.train_rows=150",
    "data.test_rows=40",
    "split.clients=12",
    "evaluate.every=60",
    "budget.updates=240",
    "record.checkpoint_updates=20",
    HOSTS,
)
WALL = {
    "vertical, scalars": (changed(DPZV, *LIVE), (ACTORS,)),
    "vertical, noise by the clients": (changed(VAFL, *LIVE, *NOISE), (ACTORS,)),
    "vertical, queries": (changed(VAFL, *LIVE, "method.max_delay=8"), (ACTORS,)),
    "vertical, requests": (
        changed(VAFL, *LIVE, "method.query_first=true"),
        (ACTORS,),
    ),
    "vertical, a barrier": (
        changed(VAFL, *LIVE, "method.synchrony=t-synchronous", "method.wait_for=2"),
        ("resources.client_actors=1",),
    ),
    "horizontal": (("decomfl_async", LIVE_HOSTS), ()),
}


@pytest.mark.parametrize("row", WALL)
def test_a_live_run_serves_each_update_once_and_replays(row, tmp_path):
    case, placed = WALL[row]
    spec = spec_of(case, *placed)
    run = scenarios.run(spec, tmp_path / "run", runner="ray")
    check_live(run, tmp_path / "run", spec.budget.updates, verify=verified_by(row))
    if "noise" in row:
        releases = run.rows("release").to_pylist()
        assert len(releases) >= 60
        assert {release["mechanism"] for release in releases} == {"gaussian rows"}
    if "queries" in row:
        staleness = run.rows("staleness").to_pylist()
        assert max(read["age_max"] for read in staleness) <= 8
        assert sum(read["missing"] for read in staleness) == 0
    if "requests" in row:
        kinds = [message["kind"] for message in run.rows("message").to_pylist()]
        assert kinds.count("Embeddings") == 60
        assert 56 <= kinds.count("Gradient") <= kinds.count("GradientRequest")
    if "scalars" in row:
        assert {m["bytes"] for m in run.rows("message").to_pylist() if m["kind"] == "Slopes"} == {4}


@dataclasses.dataclass(frozen=True)
class SlowlyScoredHosts(PreparedHorizontal):
    """A prepared one whose evaluations take longer than updates."""

    def client_group(self, updates=None, device="cpu"):
        return SlowlyScored(PreparedHorizontal.client_group(self, updates, device))


@dataclasses.dataclass(frozen=True)
class SlowlyScoredClient(ClientFactory):
    def make(self, device="cpu"):
        return SlowlyScored(ClientFactory.make(self, device))


class SlowlyScored:
    """A role that takes as long as hundreds of updates for an evaluation."""

    def __init__(self, role):
        self._role = role

    def evaluate(self, *version):
        time.sleep(0.3)
        return self._role.evaluate(*version)

    def __getattr__(self, name):
        return getattr(self._role, name)


@pytest.mark.parametrize("runner", ["local", "ray"])
@pytest.mark.parametrize("row", ["vertical, scalars", "horizontal"])
def test_nothing_is_served_before_a_live_run_is_first_evaluated(row, runner, monkeypatch):
    monkeypatch.setattr("actors.driver.HEAD_START", 0.0)
    monkeypatch.setattr("raydpzv.experiment.local_session.HEAD_START", 0.0)
    case, placed = WALL[row]
    more = ("arrivals.rate=500", "clock.compute=0.0", "budget.updates=30", "evaluate.every=30")
    prepared = prepare(spec_of(case, *(placed if runner == "ray" else ()), *more))
    if row.startswith("horizontal"):
        prepared = as_kind(SlowlyScoredHosts, prepared)
    else:
        prepared = with_clients(prepared, SlowlyScoredClient)
    run = run_prepared(prepared, runner=runner)
    first = run.rows("evaluation").to_pylist()[0]
    assert (first["round"], first["time"]) == (0, 0.0)
    assert min(row["due"] for row in run.rows("service").to_pylist()) < 0.1, (
        "the clock starts after it"
    )


def verified_by(row):
    if row.startswith("horizontal"):
        return rebuild
    return (
        None if "queries" in row or "requests" in row else replay
    )  # they depend on messages' times


def check_live(run, folder, updates, segments=1, verify=replay):
    """Each update is on record once, warm-ups are not, and the record verifies (None: nobody can
    recompute it).
    """
    assert (run.summary["status"], run.summary["updates"]) == ("done", updates)
    services = run.rows("service").to_pylist()
    assert sorted(row["round"] for row in services) == list(range(1, updates + 1))
    assert [row["leg"] for row in run.rows("leg").to_pylist()] == list(range(2, segments + 1))
    assert all(row["gap"] > 0 for row in run.rows("leg").to_pylist())
    assert all(row["due"] >= 0 for row in services)
    for leg in run.rows("leg").to_pylist():
        later = [row for row in services if row["round"] > leg["round"]]
        assert min(row["served"] for row in later) > leg["time"]
    evaluated = run.rows("evaluation").column("round").to_pylist()
    assert (evaluated[0], evaluated[-1]) == (0, updates)
    if verify is not rebuild:
        check_steps(services)
    if "ledger" in run.summary and verify is replay:
        assert run.summary["ledger"]["updates"] == run.rows("release").num_rows == updates
    assert verify is None or verify(folder).verified


def check_steps(services):
    for m in {row["client"] for row in services}:
        steps = [row["step"] for row in services if row["client"] == m]
        assert steps == list(range(len(steps)))


LIVE_LONG = ("budget.updates=240", "evaluate.every=60", "record.checkpoint_updates=20")
LOST_SERVERS = {
    "vertical": (changed(DPZV, *LIVE, *LIVE_LONG), (ACTORS,)),
    "horizontal, users": (
        lambda *more: small("asynchronous", "clock.kind=wall", "arrivals.rate=40", "clock.compute=0.002",
                            "network.latency=0", *LIVE_LONG, *more),
        (HOSTS,),
    ),
}  # fmt: skip


class Listening(raydpzv.Callback):
    """Keeps the updates and the segments of the rows that it gets."""

    def __init__(self):
        self.rounds, self.segments = set(), []

    def rows(self, rows):
        self.rounds |= set(rows["service"].column("round").to_pylist())
        self.segments += rows["leg"].to_pylist()


@pytest.mark.parametrize("row", LOST_SERVERS)
def test_a_live_run_that_loses_its_server_continues_in_a_new_segment(row, tmp_path):
    """From a checkpoint of its own time; a callback gets every row of the new segment."""
    case, placed = LOST_SERVERS[row]
    spec, folder, watch = spec_of(case, *placed), tmp_path / "run", Listening()
    # the first checkpoint is of the run's beginning: clients wait for another one before it is
    # evaluated again
    gate = Gate(folder / "checkpoint.before.state", at=14)
    if row.startswith("horizontal"):
        mark = tmp_path / "mark"
        mark.touch()
        struck = as_kind(StruckServerOfHosts, prepare(spec), mark=str(mark), calls=120, gate=gate)
    else:
        struck = strikes(tmp_path, server={"calls": 120})(spec, "server")
        struck = with_clients(struck, GatedClient, gate=gate)
    run = run_prepared(struck, folder, runner="ray", callbacks=[watch])
    check_live(run, folder, spec.budget.updates, 2, verified_by(row))
    (fault,) = run.rows("fault").to_pylist()
    assert (fault["party"], fault["kind"]) == ("server", "Lost")
    assert re.search(r"continues from its checkpoint after update [1-9]", fault["message"])
    assert watch.rounds >= set(range(1, spec.budget.updates + 1))
    assert watch.segments == run.rows("leg").to_pylist()


def test_a_live_run_that_the_user_stops_resumes_in_a_new_segment(tmp_path):
    spec, folder = spec_of(changed(DPZV, *LIVE, *LIVE_LONG), ACTORS), tmp_path / "run"
    look = StopAtGate(Gate(tmp_path / "open", at=14), after=40)  # of each of four clients
    gated = with_clients(prepare(spec), GatedClient, gate=look.gate)
    first = run_prepared(gated, folder, runner="ray", stop=look.stop, progress=look).summary
    assert first["status"] == "stopped"
    assert 40 < first["updates"] < 240
    assert RunFolder.open(folder).checkpoint().round == first["updates"]
    experiment, opened, _ = continued(folder)
    check_live(run_prepared(experiment, opened, runner="ray"), folder, 240, 2)


def test_machines_that_differ_talk_over_tcp(tmp_path, monkeypatch):
    def opened(server, actors, timeout, peers):
        address = server.open_transport.remote("127.0.0.1", b"k" * 32, peers)
        return get(address, timeout, "the server to listen")

    monkeypatch.setattr("actors.vertical.driver.open_transport", opened)
    spec = spec_of(changed(DPZV, *LIVE), ACTORS)
    check_live(scenarios.run(spec, tmp_path / "run", runner="ray"), tmp_path / "run", 120)
