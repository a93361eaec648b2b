"""Microseconds of CPU per update of a vertical run beside its mathematics, piece by piece.

The run is the digits scenario under the virtual clock in this process, with roles whose mathematics
is left out: a client draws its batch and sends embeddings that are always the same, the server
answers with a scalar that is always the same, under a receipt. All else is the program's own. The
baseline is a bare loop over the same roles; every line adds one piece to the line before, and its
figure is the difference between the two:

loop        virtual clock, server loop, budget; nothing is kept
rows        messages, services and releases as rows: taken down, made into tables, written as
Parquet privacy     the account of every record's participations, and both epsilons of every release
row ledger      one (seed, scalar) pair an update, in a folder, chained, written before the answer
leaves ages        how old the cached embeddings are that an update reads: all that record.staleness
= false records staleness   a row for each of the other clients with these ages: everything recorded
progress    beyond that: a callback is told after every update where the run stands

The target is of the machine on which an update of the ordinary torch loop (`small_models.py`) took
1,180 µs at best, so that loop takes turns with the lines, and what everything recorded costs is
given as a share of it as well.

The lines take turns, so that a slow minute hits all of them. The figures are each line's least over
the turns, since on a machine shared with others the CPU time of the same work doubles for seconds;
medians stand beside them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import environment, median, options, show, spread, verdict, write
from small_models import experiment as of_digits
from small_models import torch_loop

from raydpzv.config.toml import load
from raydpzv.data.batches import Batches
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.release_ledger import with_ledger
from raydpzv.experiment.vertical import PreparedVertical, prepare_vertical
from raydpzv.keys import Key
from raydpzv.ledger.ledger import begin_ledger
from raydpzv.methods.roles import Metrics, Order, Release, Upload
from raydpzv.privacy.mechanisms import Receipt
from raydpzv.records.recorder import Recorder
from raydpzv.records.store import append_rows
from raydpzv.sim.executor import LocalExecutor
from raydpzv.sim.interfaces import Budget, PrivacyFilter
from raydpzv.sim.server_loop import ServerLoop
from raydpzv.sim.virtual import LoopHooks, Scoring, VirtualRun
from raydpzv.wire.messages import PerturbedEmbeddings, Slopes, Start

SCENARIO = Path(__file__).parents[1] / "scenarios" / "digits_dpzv.toml"
UPDATES, QUICK = 2000, 300
TARGET = 60.0
"""Microseconds per update that everything recorded may take, where an update of the torch loop
takes `LOOP`.
"""
LOOP = 1180.0


class Client:
    """A client without mathematics: a batch drawn as ever, embeddings that are always the same."""

    def __init__(self, client: int, batches: Batches, width: int) -> None:
        self._client, self._batches, self._step = client, batches, 0
        self._values = np.zeros((1, batches.size, width), np.float32)

    def process(self, order: Order) -> Upload:
        """Send the next batch."""
        ids = self._batches.draw(self._step)
        self._step += 1
        return Upload(
            self._client, self._step - 1, PerturbedEmbeddings(ids, self._values, self._values)
        )


class Server:
    """A server without mathematics: one release an upload, and, if asked for, the ages of what it
    would read.
    """

    answers = True

    def __init__(self, experiment: PreparedVertical, *, ages: bool) -> None:
        spec = experiment.spec
        self._clients, self._batch, self.updates = spec.split.clients, spec.method.batch, 0
        self._upload_bytes = self._batch * (4 + 2 * spec.model.embedding * 4)
        real: Any = experiment.server.make()
        self._top, self._ages = real.top, ages
        self._values_BE = np.zeros((self._batch, spec.model.embedding), np.float32)

    def first_orders(self) -> Sequence[Order]:
        """Tell every client to begin."""
        return [Order(m, Start(), upload_bytes=self._upload_bytes) for m in range(self._clients)]

    def receive(self, upload: Upload) -> Sequence[Order]:
        """Answer with a scalar and keep what came."""
        self.updates += 1
        ids = upload.body.ids
        cache = self._top.ages(ids, self.updates, upload.client) if self._ages else None
        self._top.put(upload.client, ids, self._values_BE, self.updates)
        receipt = Receipt("gaussian", "system", 1e-4, 0.0625, 0.03125, 64, 64, 0)
        order = Order(
            upload.client,
            Slopes(np.array([0.5], np.float32)),
            self.updates,
            upload_bytes=self._upload_bytes,
            releases=(Release(0, 0.5, receipt),),
            cache=cache,
            loss=1.0,
        )
        return [order]


class Nobody:
    """An observer that keeps nothing."""

    def emit(self, row_type: str, **values: Any) -> None:
        """Keep nothing."""

    def writer(self, row_type: str) -> Callable[[Any], None]:
        """Return what keeps nothing."""
        return lambda row: None


@dataclass(frozen=True)
class Pieces:
    """What a run does beside its roles."""

    rows: bool = False
    privacy: bool = False
    ledger: bool = False
    ages: bool = False
    staleness: bool = False
    progress: bool = False


LINES = {
    "loop": Pieces(),
    "rows": Pieces(rows=True),
    "privacy": Pieces(rows=True, privacy=True),
    "ledger": Pieces(rows=True, privacy=True, ledger=True),
    "ages": Pieces(rows=True, privacy=True, ledger=True, ages=True),
    "staleness": Pieces(rows=True, privacy=True, ledger=True, ages=True, staleness=True),
    "progress": Pieces(
        rows=True, privacy=True, ledger=True, ages=True, staleness=True, progress=True
    ),
}
"""Each line and what it does: one piece more than the line before."""


def prepared() -> PreparedVertical:
    """Return the scenario, without evaluations but the first and the last."""
    return prepare_vertical(load(SCENARIO, ("evaluate.every=1000000000",)))


def roles(experiment: PreparedVertical, *, ages: bool) -> tuple[Server, list[Client]]:
    """Return fresh roles without mathematics."""
    spec, rows = experiment.spec, len(experiment.server.y_train)
    clients = [
        Client(
            m,
            Batches(spec.method.batches, spec.method.batch, rows, Key(0) / m),
            spec.model.embedding,
        )
        for m in range(spec.split.clients)
    ]
    return Server(experiment, ages=ages), clients


def bare(experiment: PreparedVertical, updates: int) -> float:
    """Return the CPU seconds of a bare loop over the roles, client after client."""
    server, clients = roles(experiment, ages=False)
    start = time.thread_time()
    uploads = {
        order.client: clients[order.client].process(order) for order in server.first_orders()
    }
    for update in range(updates):
        for order in server.receive(uploads[update % len(clients)]):
            uploads[order.client] = clients[order.client].process(order)
    return time.thread_time() - start


def run(experiment: PreparedVertical, updates: int, pieces: Pieces) -> float:
    """Return the CPU seconds of a run of the program with these pieces."""
    server, clients = roles(experiment, ages=pieces.ages)
    plan, seen = experiment.plan(), []
    assert plan is not None
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with begin_ledger(folder / "ledger", plan.header()) as ledger:
            privacy = experiment.privacy_filter() if pieces.privacy else PrivacyFilter()
            skipped = frozenset() if pieces.staleness else frozenset({"staleness"})
            recorder = Recorder(skipped, privacy.epsilons)
            loop = ServerLoop(
                with_ledger(experiment, server, ledger) if pieces.ledger else server,
                privacy,
                recorder if pieces.rows else Nobody(),
                Budget(updates=updates),
            )
            virtual = VirtualRun(
                loop,
                LocalExecutor(clients),
                experiment.timing,
                Scoring(lambda: Metrics(0.5, 1.0, 0.1), experiment.spec.evaluate.every),
                LoopHooks(tick=lambda: seen.append(loop.status().updates))
                if pieces.progress
                else None,
            )
            start = time.thread_time()
            virtual.run()
            append_rows(folder, recorder.drain())
            return time.thread_time() - start


def measure(updates: int, repeats: int) -> dict[str, list[float]]:
    """Return microseconds per update by line, one figure a turn; "bare" is the baseline, "torch"
    the torch loop.
    """
    experiment, found = prepared(), {name: [] for name in ("torch", "bare", *LINES)}
    warm, count = updates // 20, updates // 5
    with one_thread("torch"):
        # what is compiled, imported or cached at first is not counted
        run(experiment, 100, LINES["progress"])
        for _ in range(repeats):
            found["torch"].append(1e6 * torch_loop(of_digits("dpzv", warm + count), warm, count))
            found["bare"].append(1e6 * bare(experiment, updates) / updates)
            for name, pieces in LINES.items():
                found[name].append(1e6 * run(experiment, updates, pieces) / updates)
    return found


def figures(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return one entry per line: what it adds to the line before and what it is beyond the bare
    loop.
    """
    least, entries, before = {name: min(turns) for name, turns in found.items()}, [], "bare"
    for name in LINES:
        beyond = least[name] - least["bare"]
        target = TARGET if name == "staleness" else None
        entries.append(
            {
                "line": name,
                "us_added": least[name] - least[before],
                "us_beyond_bare": beyond,
                "us_beyond_bare_median": median(
                    [now - then for now, then in zip(found[name], found["bare"], strict=True)]
                ),
                "over_bare": beyond / least["bare"],
                "spread": spread(found[name]),
                "target_us": target,
                "met": None if target is None else beyond <= target,
            }
        )
        before = name
    return entries


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    updates = QUICK if chosen.quick else UPDATES
    before = environment()
    found = measure(updates, chosen.repeats or (1 if chosen.quick else 15))
    entries = figures(found)
    show(
        f"CPU of an update beside its mathematics; the roles alone: {min(found['bare']):.1f} us",
        ["line", "adds us", "beyond the roles us", "median", "/ roles", "spread", "target"],
        [
            [
                e["line"],
                f"{e['us_added']:.1f}",
                f"{e['us_beyond_bare']:.1f}",
                f"{e['us_beyond_bare_median']:.1f}",
                f"{e['over_bare']:.1f}",
                f"{e['spread']:.0%}",
                verdict(e["us_beyond_bare"], e["target_us"], at_most=True),
            ]
            for e in entries
        ],
    )
    loop, everything = (
        min(found["torch"]),
        entries[list(LINES).index("staleness")]["us_beyond_bare"],
    )
    print(
        f"the torch loop: {loop:.0f} us an update; everything recorded is {everything / loop:.1%} "
        f"of it, the target {TARGET / LOOP:.1%} of {LOOP:.0f} us"
    )
    result = {
        "updates": updates,
        "bare_us": min(found["bare"]),
        "torch_loop_us": loop,
        "lines": entries,
    }
    write("update_overhead", result | {"environment": before}, chosen.json)


if __name__ == "__main__":
    main()
