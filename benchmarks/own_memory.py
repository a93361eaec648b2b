"""Peak memory of a user's language model in training, over the bytes of its parameters.

The model has the shape of MiniLM-L6: 30,522 token embeddings of width 384 and six blocks, 22.7
million parameters, of which the embedding has 52 %.

| case     | what is measured                                                            |
|----------|-----------------------------------------------------------------------------|
| dpzv     | one client: its model, the perturbed layer, updates                          |
| decomfl  | a whole run in one process: server, host, evaluations                        |
| mezo     | the same of one agent                                                       |
| base     | eight DPZV clients that train a head each on one frozen copy of the model    |

Each case has a process of its own, which has run a small model before. The figure is the high-water
mark of resident memory from the second update on, less what was resident before the model was
built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import environment, options, show, verdict, write
from fresh_process import in_fresh_process
from peaks import Resident, predictable_malloc
from torch import nn

import raydpzv
from raydpzv.data.batches import Batches
from raydpzv.engine.split_model import BottomTraining
from raydpzv.engine.torch_engine import TorchBottom
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import run_local
from raydpzv.keys import Key
from raydpzv.methods.roles import Order
from raydpzv.methods.schedule import Schedule
from raydpzv.methods.vertical.dpzv import DpzvClient, ZerothOrder
from raydpzv.models.flat import FlatModel
from raydpzv.sim.interfaces import Status
from raydpzv.wire.messages import Slopes, Start
from raydpzv.zo.update import Rule

TARGETS = {"dpzv": 1.15, "decomfl": 1.15, "mezo": 1.15, "base": 1.3}
_STEPS, _ROWS, _TOKENS = 3, 64, 16


@dataclass(frozen=True)
class Size:
    """Token ids, width, and blocks of the model."""

    words: int = 30522
    width: int = 384
    blocks: int = 6


class Block(nn.Module):
    """Attention and a feed-forward network, each added to its input and normalised."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T, W] -> [B, T, W]."""
        query, key, value = (
            head(x).unflatten(-1, (-1, 32)).transpose(1, 2) for head in self.heads[:3]
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = self.first(x + self.heads[3](mixed.transpose(1, 2).flatten(2)))
        return self.second(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Reviewer(nn.Module):
    """Token ids to two scores, through embeddings, blocks and the mean over tokens."""

    def __init__(self, size: Size, *, frozen: bool = False) -> None:
        super().__init__()
        self.base = nn.Sequential(
            nn.Embedding(size.words, size.width), *(Block(size.width) for _ in range(size.blocks))
        )
        self.base.requires_grad_(not frozen)
        self.head = nn.Linear(size.width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, T] -> [B, 2]."""
        return self.head(self.base(x).mean(1))


def _rows(size: Size) -> tuple[np.ndarray, np.ndarray]:
    draw = (Key(0) / "rows").generator()
    return draw.integers(0, size.words, (_ROWS, _TOKENS)), draw.integers(0, 2, _ROWS)


def _clients(size: Size, meter: Resident, many: int, *, frozen: bool) -> int:
    """Return the peak bytes of DPZV's steps with some clients, after the first step."""
    key, x = Key(0), torch.from_numpy(_rows(size)[0])
    clients = []
    for m in range(many):
        model = FlatModel(lambda: Reviewer(size, frozen=frozen), key / "client" / m)
        settings = ZerothOrder(1e-3, Schedule(1e-6), 0.0)
        bottom = TorchBottom(model, x, x, BottomTraining(Rule(settings.law, 0.0)))
        batches = Batches("shuffle", 4, _ROWS, key / "batches" / m)
        clients.append(DpzvClient(m, bottom, batches, settings, key))
        clients[-1].process(Order(0, Start()))
    meter.now()
    meter.reset()
    for _ in range(_STEPS):
        for client in clients:
            client.process(Order(0, Slopes(np.array([0.5], np.float32))))
    return meter.peak()


def run_peak(size: Size, meter: Resident, method: str, **settings: Any) -> int:
    """Return the peak bytes of a horizontal method's updates after the first."""
    clients, peaks = 1 if method == "mezo" else 4, [0]

    def second(status: Status) -> None:
        if status.updates == 1:
            meter.now()
            meter.reset()
        elif status.updates and len(peaks) < _STEPS:
            # the last update is followed by copies of the final model
            peaks.append(meter.peak())

    scenario = raydpzv.horizontal(
        lambda: Reviewer(size),
        _rows(size),
        clients=clients,
        method=method,
        updates=1 + _STEPS,
        batch=4,
        **({} if method == "mezo" else {"local_steps": 1}),
        classes=[0, 1],
        **settings,
    )
    run_local(prepare(scenario), RunOptions(progress=second, until=1 + _STEPS))
    return peaks[-1]


def measure(case: str, size: Size) -> int:
    """Return the peak bytes of a case; the process must be fresh."""
    torch.set_num_threads(1)
    predictable_malloc()
    meter = Resident()
    for each in (Size(words=40, width=32, blocks=1), size):
        before = meter.now()
        if case in ("decomfl", "mezo"):
            peak = run_peak(each, meter, case)
        else:
            peak = _clients(each, meter, 8 if case == "base" else 1, frozen=case == "base")
    return peak - before


def report(size: Size) -> dict[str, Any]:
    """Measure every case, print the table and return the figures."""
    with torch.device("meta"):
        whole = 4 * sum(p.numel() for p in Reviewer(size).parameters())
    found = {case: in_fresh_process(measure, case, size) for case in TARGETS}
    rows = [
        [
            case,
            f"{peak / 1e6:.1f}",
            f"{peak / whole:.2f}",
            verdict(peak / whole, TARGETS[case], at_most=True),
        ]
        for case, peak in found.items()
    ]
    title = f"Peak memory in training over {whole / 4e6:.1f} M parameters = {whole / 1e6:.1f} MB"
    show(title, ["case", "peak MB", "/ parameters", "target"], rows)
    over = {case: peak / whole for case, peak in found.items()}
    return {
        "parameter_bytes": whole,
        "over_parameters": over,
        "targets": TARGETS,
        "environment": environment(),
    }


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    size = Size(words=400, width=64, blocks=2) if chosen.quick else Size()
    write("own_memory", report(size), chosen.json)


if __name__ == "__main__":
    main()
