"""CPU seconds of a round of FedAvg: in an ordinary torch loop, and by this program.

100 clients, 10 of them sampled per round, 5 local steps, batches of 32; images of noise of MNIST's
shape. One thread.

bare loop   torch's own layers (ReLU before nn.MaxPool2d), cross_entropy, backward and
torch.optim.SGD; weights copied
            to every client and averaged; nothing recorded
raydpzv     `run_local` with its rows on disk
Flower      with --flower-python: its simulation (`flower_rounds.py`), in a Python of its own that
has flwr[simulation]
            and torch; the same network and rows, CPU seconds of all its processes
pfl         with --pfl-python: pfl-research (`pfl_rounds.py`), likewise

The first two ways take turns in one process, the others in processes of their own, and a ratio is
the median over the turns; the first rounds of a run are
left out. Ratios are of CPU time, which says more on a machine shared with others. Checked first: on
the same batches both end with the same model, up to rounding.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, verdict, write
from federations import Case, federation_with
from published import as_published
from rounds import Rounds
from torch import nn
from torch.nn.functional import cross_entropy

from raydpzv.data.horizontal import batch_rows
from raydpzv.errors import RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.initial_model import MODEL
from raydpzv.experiment.runner import run_local
from raydpzv.keys import Key
from raydpzv.methods.horizontal.fedavg import FedavgConfig
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.zo.vectors import as_array

CASES = (Case("cnn_mnist", 0), Case("mlp", 0))
QUICK = (Case("cnn_mnist", 0, clients=8, cohort=2, rows=160, batch=4),)
TARGETS = {"cnn_mnist": 1.05, "mlp": 1.05}
"""Model to CPU seconds of a round over the bare loop's, at most."""
OF_PEERS = {"pfl": 1.0}
"""Peer to CPU seconds of a round over its, at most."""
PEERS = {"Flower": "flower_rounds", "pfl": "pfl_rounds"}
"""Peer to the module that has `main`, which its Python runs."""
STEPS, LR = 5, 0.05
WARM, ROUNDS = 2, {"cnn_mnist": 4, "mlp": 30}
_CLOSE = 1e-4
_KEY = Key(0)
Batch = Callable[[int, int, int], torch.Tensor]
"""Client, round and step to row ids, int64 [B]."""


@dataclass(frozen=True)
class Turn:
    """CPU seconds per round of each way; peers: of those that were asked for."""

    bare: float
    ours: float
    peers: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """Ours over the bare loop's."""
        return self.ours / self.bare


class BareLoop:
    """FedAvg as one would write it for the purpose; the network as torch has it, on the same
    start.
    """

    def __init__(self, prepared: PreparedHorizontal, batch: Batch) -> None:
        train, method = prepared.split.train, prepared.spec.method
        assert isinstance(method, FedavgConfig)
        self._method, self._batch = method, batch
        self._cohorts = Cohorts(prepared.parts.clients, method.cohort, _KEY)
        self._network = as_published(prepared.plan.model().module)  # type: ignore[arg-type]
        self._x, self._y = torch.from_numpy(train.x), torch.from_numpy(train.y)
        self._model = [p.detach().clone() for p in self._network.parameters()]
        self._sgd = torch.optim.SGD(self._network.parameters(), lr=method.lr)

    def round(self, number: int) -> None:
        """Do round 1, 2, ..."""
        total = [torch.zeros_like(p) for p in self._model]
        for client in self._cohorts.draw(number).tolist():
            trained = self._train(client, number)
            torch._foreach_add_(total, trained)
        self._model = [t / self._method.cohort for t in total]

    def parameters(self) -> np.ndarray:
        """Return the model, float32 [d]."""
        return nn.utils.parameters_to_vector(self._model).numpy()

    def _train(self, client: int, number: int) -> list[torch.Tensor]:
        with torch.no_grad():
            for p, start in zip(self._network.parameters(), self._model, strict=True):
                p.copy_(start)
        for step in range(self._method.local_steps):
            ids = self._batch(client, number, step)
            self._sgd.zero_grad()
            cross_entropy(self._network(self._x[ids]), self._y[ids]).backward()
            self._sgd.step()
        return [p.detach() for p in self._network.parameters()]


def prepared_of(case: Case, rounds: int) -> PreparedHorizontal:
    """Return a run of so many rounds."""
    return federation_with(
        FedavgConfig(cohort=case.cohort, batch=case.batch, local_steps=STEPS, lr=LR), case, rounds
    )


def check_models(case: Case) -> None:
    """Raise RunError unless both ways end with the same model after two rounds on the same
    batches.
    """
    prepared = prepared_of(case, 2)

    def same(client: int, number: int, step: int) -> torch.Tensor:
        rows = batch_rows(prepared.parts, _KEY, client, number, step, case.batch)
        return torch.from_numpy(rows.astype(np.int64))

    bare = BareLoop(prepared, same)
    for number in (1, 2):
        bare.round(number)
    gap = np.abs(run_local(prepared).models[MODEL] - bare.parameters()).max()
    moved = np.abs(as_array(prepared.plan.initial()) - bare.parameters()).max()
    if not gap <= _CLOSE * moved:
        raise RunError(
            f"{case.model}: after two rounds on the same batches the models differ by {gap}, "
            f"having moved by {moved}: the two do not train alike, and their pace compares nothing"
        )


def take_turn(case: Case, pythons: Mapping[str, Path]) -> Turn:
    """Time every way once; pythons: peer to the Python that has it."""
    peers = {peer: _peer(case, PEERS[peer], python) for peer, python in pythons.items()}
    return Turn(_bare(case), _ours(case), peers)


def _bare(case: Case) -> float:
    prepared, generator = prepared_of(case, 1), torch.Generator().manual_seed(0)
    rows = [torch.from_numpy(prepared.parts.rows(m).astype(np.int64)) for m in range(case.clients)]

    def drawn(client: int, number: int, step: int) -> torch.Tensor:
        held = rows[client]
        return held[torch.randperm(len(held), generator=generator)[: case.batch]]

    loop, start = BareLoop(prepared, drawn), 0.0
    for number in range(1, WARM + ROUNDS[case.model] + 1):
        loop.round(number)
        start = time.process_time() if number == WARM else start
    return (time.process_time() - start) / ROUNDS[case.model]


def _ours(case: Case) -> float:
    rounds = Rounds()
    with TemporaryDirectory() as folder:
        run_local(
            prepared_of(case, WARM + ROUNDS[case.model]),
            RunOptions(Path(folder) / "run", progress=rounds),
        )
    return rounds.pace(WARM).cpu


def _peer(case: Case, module: str, python: Path) -> float:
    prepared = prepared_of(case, 1)
    train, parts = prepared.split.train, prepared.parts
    whose = np.empty(len(train.y), np.int64)
    for client in range(case.clients):
        whose[parts.rows(client)] = client
    given = {"cohort": case.cohort, "batch": case.batch, "steps": STEPS, "lr": LR}
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "case.json").write_text(
            json.dumps(given | {"warm": WARM, "rounds": ROUNDS[case.model]})
        )
        torch.save(as_published(prepared.plan.model().module), folder / "network.pt")  # type: ignore[arg-type]
        np.savez(folder / "rows.npz", x=train.x, y=train.y, whose=whose)
        place = {
            "CASE": name,
            "PYTHONPATH": str(Path(__file__).parent),
            "FLWR_TELEMETRY_ENABLED": "0",
        }
        done = subprocess.run(
            [python, "-c", f"import {module}; {module}.main()"],
            env={**os.environ, **place, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise RunError(
            f"{python} with {module}.py ended with {done.returncode}: {done.stderr[-400:]}"
        )
    return float(json.loads(done.stdout.splitlines()[-1])["cpu_seconds"])


def figures(turns: dict[Case, list[Turn]]) -> list[dict[str, Any]]:
    """Return one entry per case: medians of both ways and of their ratio, and the target."""
    found = []
    for case, taken in turns.items():
        ratio, target = median([turn.ratio for turn in taken]), TARGETS.get(case.model)
        found.append(
            {
                "model": case.model,
                "bare_cpu_seconds": median([turn.bare for turn in taken]),
                "cpu_seconds": median([turn.ours for turn in taken]),
                "over_bare": ratio,
                "peers": {peer: _against(peer, taken) for peer in taken[0].peers},
                "spread": spread([turn.ratio for turn in taken]),
                "target": target,
                "met": None if target is None else ratio <= target,
            }
        )
    return found


def _against(peer: str, taken: list[Turn]) -> dict[str, Any]:
    over, target = median([turn.ours / turn.peers[peer] for turn in taken]), OF_PEERS.get(peer)
    return {
        "cpu_seconds": median([turn.peers[peer] for turn in taken]),
        "over": over,
        "target": target,
        "met": None if target is None else over <= target,
    }


def print_figures(found: list[dict[str, Any]]) -> None:
    """Print the table."""
    rows = [
        [
            f["model"],
            f"{1000 * f['bare_cpu_seconds']:.1f}",
            f"{1000 * f['cpu_seconds']:.1f}",
            f"{f['over_bare']:.2f}",
            f"{f['spread']:.0%}",
            verdict(f["over_bare"], f["target"], at_most=True),
        ]
        for f in found
    ]
    columns = [
        "model",
        "bare loop, CPU ms",
        "raydpzv, CPU ms",
        "raydpzv / bare",
        "spread",
        "target",
    ]
    show("A FedAvg round", columns, rows)
    against = [
        [
            f["model"],
            peer,
            f"{1000 * p['cpu_seconds']:.1f}",
            f"{p['over']:.2f}",
            verdict(p["over"], p["target"], at_most=True),
        ]
        for f in found
        for peer, p in f["peers"].items()
    ]
    if against:
        show(
            "Against other programs",
            ["model", "program", "CPU ms", "raydpzv / it", "target"],
            against,
        )


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--flower-python", type=Path, metavar="PATH", help="a Python that has flwr[simulation]"
    )
    parser.add_argument("--pfl-python", type=Path, metavar="PATH", help="a Python that has pfl")
    chosen = parser.parse_args()
    given = {"Flower": chosen.flower_python, "pfl": chosen.pfl_python}
    pythons = {peer: python for peer, python in given.items() if python}
    torch.set_num_threads(1)
    cases, before = QUICK if chosen.quick else CASES, environment()
    turns: dict[Case, list[Turn]] = {case: [] for case in cases}
    for case in cases:
        check_models(case)
    for _ in range(chosen.repeats or (1 if chosen.quick else 5)):
        for case, taken in turns.items():
            taken.append(take_turn(case, pythons))
            print(
                f"{case.model}: {taken[-1].ratio:.2f} x the bare loop", file=sys.stderr, flush=True
            )
    found = figures(turns)
    print_figures(found)
    write(
        "fedavg_round",
        {"figures": found, "environment": before, "environment_after": environment()},
        chosen.json,
    )


if __name__ == "__main__":
    main()
