"""CPU time of an update by the size of the model: this program with everything recorded, and loops
in torch.

ordinary    modules, autograd and torch.optim, parameters joined and split at every use
(`small_loops.TorchParties`) tuned       the same mathematics on flat parameters, with one direction
an update and every buffer kept auto        `run_local` into a run folder, with the engine that the
program chooses compiled, torch    the same with that engine (--engines)

Vertical: four clients, batches of 64, 784 columns, embeddings of 16, a head of 64 hidden units;
DPZV with its clip and noise, VAFL without. Horizontal: DeComFL with four clients and five
directions, MeZO with one, batches of 32; `forwards` is the time of their forward passes alone.
`--shapes` takes convolutions, a transformer and ResNet-18 in place of dense layers.

`--threads N` takes the wall clock in place of CPU time, with one thread for the clients and with N.
`--cuda` takes it too, with models of 0.8 to 124 million parameters and their loops on the GPU.

A figure is CPU time on one thread after the first updates. It is without checkpoints, which take at
most a fortieth of
a long run: a turn is too short for one. The ways take turns. A ratio is the median over the turns
of a loop's time by the program's in the same turn.
"""

from __future__ import annotations

import copy
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, verdict, write
from rounds import Pace, update_pace
from small_loops import TorchParties
from torch import nn
from torch.nn import functional

import raydpzv
import scenarios
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.local_session import one_thread
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.vertical import PreparedVertical

METHODS = ("dpzv", "vafl", "decomfl", "mezo")
VERTICAL = ("dpzv", "vafl")
LARGE = ((4096, 8192), (8192, 8192, 6144))
"""Hidden widths of the largest models: about 36 and 120 million parameters."""
HIDDEN = (
    (3,),
    (16,),
    (64,),
    (128,),
    (256,),
    (512,),
    (1024,),
    (2048,),
    (4096,),
    (2048, 2048),
    (2048, 4096),
    *LARGE,
)
"""Hidden widths of a dense bottom: 655 parameters and more, 8,857,616 before the largest."""
WHOLE = ((3,), (16,), (64,), (256,), (1024,), (1024, 1024), (2048, 4096), (4096, 4096), *LARGE)
"""Hidden widths of a dense whole model: 2,395 parameters and more, 20,037,642 before the
largest.
"""
STEP_DOWN = 1.3
"""How many times as large a ratio may be at a size as at the next one."""
OVER_FORWARDS = 1.15
GAIN = 1.2
"""How many times as fast updates are at least with two threads, by the clock on the wall."""
SECONDS = {False: 0.3, True: 0.01}
"""Quick or not, to about how long a turn is."""
ROWS = 2000
PRIVATE = {"mode": "paper", "epsilon": 1.0, "delta": 1e-3, "clip": 2.0}
SHAPES = ("cnn_mnist", "cnn_cifar", "transformer", "resnet18")


@dataclass(frozen=True)
class Case:
    """A model of one size: its name in tables, hidden widths, and the shape if it is not of dense
    layers.

    cuda: it is computed on a GPU.
    """

    method: str
    hidden: tuple[int, ...]
    shape: str = ""
    cuda: bool = False

    @property
    def name(self) -> str:
        """Return the case as tables have it."""
        return self.shape or "-".join(map(str, self.hidden))


@cache
def experiment(case: Case, engine: str) -> Any:
    """Return a case's scenario with its data; updates are without an end, `run` stops it."""
    private = () if case.method == "dpzv" else ("privacy.mode=none",)
    common = (
        "budget.updates=1000000",
        "evaluate.every=100000000",
        "record.checkpoint_updates=1000000",
        f"model.engine={engine}",
    )
    if case.shape:
        found = _shaped(case, engine)
    else:
        data = (
            "data.source=synthetic",
            f"data.rows={2 * ROWS}",
            "data.columns=784",
            "data.classes=10",
        )
        hidden = f"model.hidden={list(case.hidden)}"
        if case.method in VERTICAL:
            own = ("split.how=columns", "model.embedding=16", "model.head_hidden=64", *private)
            own += ("resources.client_gpus=0.1",) if case.cuda else ()
            overrides = [f"method.name={case.method}", hidden, *data, *own, *common]
            found = scenarios.load("digits_dpzv", overrides)
        else:
            clients = 1 if case.method == "mezo" else 4
            count = "1" if clients == 1 else "5"
            own = (f"split.clients={clients}", f"method.perturbations={count}", "method.lr=1e-4")
            cohort = () if clients == 1 else ("method.cohort=4",)
            cohort += ("resources.host_gpus=1",) if case.cuda else ()
            overrides = [f"method.name={case.method}", hidden, *data, *own, *cohort, *common]
            found = scenarios.load("digits_decomfl", overrides)
    return prepare(found)


def _shaped(case: Case, engine: str) -> Any:
    """Return a scenario of two parties with halves of pictures, or with texts."""
    random = np.random.Generator(np.random.Philox(3))
    classes = random.integers(0, 10, ROWS)
    made: dict[str, Callable[[], np.ndarray]] = {
        "cnn_mnist": lambda: random.standard_normal((ROWS, 1, 14, 28), np.float32),
        "cnn_cifar": lambda: random.standard_normal((ROWS, 3, 16, 32), np.float32),
        "resnet18": lambda: random.standard_normal((ROWS, 3, 16, 32), np.float32),
        "transformer": lambda: random.standard_normal((ROWS, 32, 64), np.float32),
    }
    bottoms: dict[str, Any] = {"cnn_mnist": "cnn", "cnn_cifar": "cnn", "resnet18": "resnet18"}
    settings: dict[str, Any] = (
        {"privacy": {"mode": "none"}} if case.method == "vafl" else {"privacy": PRIVATE}
    )
    return raydpzv.vertical(
        bottoms.get(case.shape, Encoder),
        [made[case.shape](), made[case.shape]()],
        classes,
        classes=list(range(10)),
        method=case.method,
        model={
            "hidden": list(case.hidden) or [1],
            "embedding": 16,
            "head_hidden": 64,
            "engine": engine,
        },
        batch=16 if case.shape == "resnet18" else 64,
        updates=1_000_000,
        evaluate={"every": 100_000_000},
        record={"checkpoint_updates": 1_000_000},
        **({"resources": {"client_gpus": 0.1}} if case.cuda else {}),
        **settings,
    )


class Encoder(nn.Module):
    """Two layers of a transformer, the mean over the steps, one linear layer: [B, 32, 64] -> [B,
    16].
    """

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.mixing = nn.ModuleList(nn.Linear(64, 192) for _ in range(2))
        self.joined = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(64, 256) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(256, 64) for _ in range(2))
        self.out = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        batch, steps, width = x.shape
        for layer in range(2):
            mixed = self.mixing[layer](self.norms[2 * layer](x)).view(
                batch, steps, 3, 4, width // 4
            )
            query, key, value = mixed.permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(query, key, value)
            x = x + self.joined[layer](attended.transpose(1, 2).reshape(batch, steps, width))
            inner = self.wide[layer](self.norms[2 * layer + 1](x))
            x = x + self.narrow[layer](functional.gelu(inner))
        return self.out(x.mean(1))


def flattened(module: nn.Module) -> torch.Tensor:
    """Return the parameters as one vector, which the module's parameters view from now on."""
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    point_at(module, flat)
    return flat


def point_at(module: nn.Module, flat: torch.Tensor) -> None:
    """Let the module's parameters view a flat vector."""
    start = 0
    for p in module.parameters():
        p.data = flat[start : start + p.numel()].view(p.shape)
        start += p.numel()


class TunedParties(TorchParties):
    """The same updates on flat parameters: one direction each, every buffer kept, both signs in one
    head call.
    """

    def __init__(self, experiment: PreparedVertical) -> None:
        super().__init__(experiment)
        self.flats, self.of_flats = [flattened(b) for b in self.bottoms], flattened(self.head)
        self.probe = copy.deepcopy(self.bottoms[0])
        self.moved, self.u = torch.empty_like(self.flats[0]), torch.empty_like(self.flats[0])
        point_at(self.probe, self.moved)
        self.head_velocity = torch.zeros_like(self.of_flats)

    def head_gradient(
        self, ids: np.ndarray, inputs: torch.Tensor, *wanted: torch.Tensor
    ) -> Sequence[torch.Tensor]:
        """Step the head; return the loss's gradients by what is wanted."""
        with torch.enable_grad():
            loss = functional.cross_entropy(self.head(inputs.flatten(1)), self.labels[ids])
            parameters = list(self.head.parameters())
            found = torch.autograd.grad(loss, [*parameters, *wanted])
        gradient = torch.cat([g.reshape(-1) for g in found[: len(parameters)]])
        self.head_velocity.mul_(self.method.server_momentum).add_(gradient)
        self.of_flats.add_(self.head_velocity, alpha=-self.method.server_lr)
        return found[len(parameters) :]

    @torch.no_grad()
    def step_dpzv(self, client: int, ids: np.ndarray) -> None:
        """One update of DPZV."""
        x, radius, flat = self.tensors[client][ids], self.method.smoothing, self.flats[client]
        scale = math.sqrt(len(flat)) / float(self.u.normal_().norm())
        sides = []
        for sign in (1, -1):
            torch.add(flat, self.u, alpha=sign * radius * scale, out=self.moved)
            sides.append(self.probe(x))
        cached = self.table[ids]
        inputs = cached.repeat(2, 1, 1)
        inputs[:, client] = torch.cat(sides)
        scores, labels = self.head(inputs.flatten(1)), self.labels[ids]
        losses = functional.cross_entropy(scores, labels.repeat(2), reduction="none").view(2, -1)
        limit = self.noise.clip or math.inf
        slopes = ((losses[0] - losses[1]) / (2 * radius)).clamp(-limit, limit)
        scalar = float(slopes.mean()) + self.noise.sigma * float(torch.randn(()))
        cached[:, client] = (sides[0] + sides[1]) / 2
        self.table[ids, client] = cached[:, client]
        self.head_gradient(ids, cached)
        self.velocity[client].mul_(self.method.momentum).add_(self.u, alpha=scalar * scale)
        flat.add_(self.velocity[client], alpha=-self.method.lr)

    def step_vafl(self, client: int, ids: np.ndarray) -> None:
        """One update of VAFL."""
        embedded = self.bottoms[client](self.tensors[client][ids])
        self.table[ids, client] = embedded.detach()
        inputs = self.table[ids].requires_grad_()
        (gradient,) = self.head_gradient(ids, inputs, inputs)
        parameters = list(self.bottoms[client].parameters())
        gradients = torch.autograd.grad(embedded, parameters, gradient[:, client])
        along = self.velocity[client].mul_(self.method.momentum)
        along.add_(torch.cat([g.reshape(-1) for g in gradients]))
        self.flats[client].add_(along, alpha=-self.method.lr)


class Federation:
    """DeComFL or MeZO in torch: each client's losses at x and along every direction, and the
    step.
    """

    def __init__(self, experiment: PreparedHorizontal) -> None:
        spec, train = experiment.spec, experiment.split.train
        self.method, self.central = spec.method, spec.method.name == "mezo"
        self.device = experiment.local_device
        self.x, self.y = (
            torch.tensor(train.x).to(self.device),
            torch.tensor(train.y).to(self.device),
        )
        self.module = experiment.plan.module().to(self.device)
        self.rows = [experiment.parts.rows(m) for m in range(spec.split.clients)]
        self.random = np.random.Generator(np.random.Philox(1))
        self.flat = flattened(self.module)

    def batches(self) -> list[np.ndarray]:
        """Return every client's batch."""
        return [self.random.choice(rows, self.method.batch, replace=False) for rows in self.rows]

    @torch.no_grad()
    def losses(self, batches: Sequence[np.ndarray]) -> torch.Tensor:
        """Return every client's mean loss at the module's parameters."""
        return torch.stack(
            [functional.cross_entropy(self.module(self.x[ids]), self.y[ids]) for ids in batches]
        )

    def forwards(self) -> None:
        """Make the forward passes of a step and nothing else."""
        batches, count = self.batches(), self.method.perturbations
        for _ in range(2 * count if self.central else 1 + count):
            self.losses(batches)

    def ordinary(self) -> None:
        """Take a step as it is written: parameters in place from a seed, as MeZO's program does."""
        batches, radius, count = self.batches(), self.method.smoothing, self.method.perturbations
        base, found = None if self.central else self.losses(batches), []
        seeds = self.random.integers(0, 2**62, count).tolist()
        for seed in seeds:
            self.shift(seed, radius)
            ahead = self.losses(batches)
            if self.central:
                self.shift(seed, -2 * radius)
                slopes = (ahead - self.losses(batches)) / (2 * radius)
                self.shift(seed, radius)
            else:
                self.shift(seed, -radius)
                assert base is not None
                slopes = (ahead - base) / radius
            found.append(float(slopes.mean()))
        for seed, scalar in zip(seeds, found, strict=True):
            self.shift(seed, -self.method.lr * scalar / count)

    @torch.no_grad()
    def shift(self, seed: int, amount: float) -> None:
        """Add amount · u to the parameters, u drawn again from its seed."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for p in self.module.parameters():
            p.data.add_(torch.randn(p.shape, generator=generator, device=self.device), alpha=amount)

    @torch.no_grad()
    def tuned(self) -> None:
        """Take a step with one direction at a time, kept until it is added to the step, in buffers
        that are kept.
        """
        if not hasattr(self, "u"):
            self.u, self.moved, self.sum = (torch.empty_like(self.flat) for _ in range(3))
        batches, radius, count = self.batches(), self.method.smoothing, self.method.perturbations
        base = None if self.central else self.losses(batches)
        self.sum.zero_()
        for _ in range(count):
            self.u.normal_()
            torch.add(self.flat, self.u, alpha=radius, out=self.moved)
            point_at(self.module, self.moved)
            ahead = self.losses(batches)
            if self.central:
                torch.add(self.flat, self.u, alpha=-radius, out=self.moved)
                slope = float(((ahead - self.losses(batches)) / (2 * radius)).mean())
            else:
                assert base is not None
                slope = float(((ahead - base) / radius).mean())
            point_at(self.module, self.flat)
            self.sum.add_(self.u, alpha=-self.method.lr * slope / count)
        self.flat.add_(self.sum)


def loops(prepared: Any, method: str) -> dict[str, Iterator[None]]:
    """Return each loop of torch, whose every item is an update."""
    if method in VERTICAL:
        return {
            "ordinary": TorchParties(prepared).updates(),
            "tuned": TunedParties(prepared).updates(),
        }
    federation = Federation(prepared)
    return {name: _again(getattr(federation, name)) for name in ("forwards", "ordinary", "tuned")}


def _again(step: Callable[[], None]) -> Iterator[None]:
    while True:
        yield step()


def run(prepared: Any, warm: int, count: int, threads: int = 1) -> Pace:
    """Return an update's seconds in the program, everything recorded and written; threads: of the
    clients.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with TemporaryDirectory() as folder:
        return update_pace(prepared, warm, count, Path(folder) / "run")


def beside(case: Case, threads: int, repeats: int, seconds: float) -> dict[str, Any]:
    """Return microseconds of an update by the clock on the wall, with one thread and with more, one
    a turn.
    """
    prepared = experiment(case, "auto")
    count = int(min(1000, max(10, seconds / run(prepared, 5, 5).wall)))
    found: dict[int, list[float]] = {1: [], threads: []}
    for _ in range(repeats):
        for many, walls in found.items():
            walls.append(1e6 * run(prepared, 10, count, many).wall)
    return {"case": case.name, "updates": count, "us": found}


def beside_table(method: str, threads: int, cases: Sequence[Mapping[str, Any]]) -> None:
    """Print what threads gain."""
    rows = []
    for found in cases:
        one, more = found["us"][1], found["us"][threads]
        gain = median([a / b for a, b in zip(one, more, strict=True)])
        least = f"{min(one) / min(more):.2f}"
        cells = (
            f"{median(one):,.0f}",
            f"{median(more):,.0f}",
            least,
            f"{gain:.2f}",
            verdict(gain, GAIN),
        )
        rows.append((found["case"], *cells))
    columns = ("model", "one", f"{threads}", "least / least", "gain", "target")
    show(f"{method}: µs of an update on the wall clock, by threads", columns, rows)


def timed(updates: Iterator[None], count: int, cuda: bool = False) -> float:
    """Return CPU seconds of one of the next updates; cuda: seconds by the clock on the wall, until
    it is computed.
    """
    clock = time.perf_counter if cuda else time.process_time
    began = clock()
    for _ in islice(updates, count):
        pass
    if cuda:
        torch.cuda.synchronize()
    return (clock() - began) / count


def measure(case: Case, engines: Sequence[str], repeats: int, seconds: float) -> dict[str, Any]:
    """Return microseconds of an update by way, one a turn, and what the case is."""
    prepared = {engine: experiment(case, engine) for engine in engines}
    first = next(iter(prepared.values()))
    made = loops(first, case.method)
    for updates in made.values():
        timed(updates, 3, case.cuda)
    count = int(min(1000, max(5, seconds / timed(made["ordinary"], 5, case.cuda))))
    warm = min(200, max(4, count // 4))
    found: dict[str, list[float]] = {name: [] for name in (*made, *engines)}
    for _ in range(repeats):
        for name, updates in made.items():
            found[name].append(1e6 * timed(updates, count, case.cuda))
        for engine, of in prepared.items():
            pace = run(of, warm, count)
            found[engine].append(1e6 * (pace.wall if case.cuda else pace.cpu))
    size = sum(p.numel() for p in (first.flat_model(first.model_names()[-1]).module).parameters())
    resolved = {engine: of.engine for engine, of in prepared.items()}
    what = {"case": case.name, "cuda": case.cuda, "parameters": size, "engine": resolved}
    return what | {"updates": count, "us": found}


def ratio(found: Mapping[str, Any], of: str, by: str) -> float:
    """Return the median over the turns of one way's time by another's."""
    return median([a / b for a, b in zip(found["us"][of], found["us"][by], strict=True)])


def target(method: str, found: Mapping[str, Any]) -> float | None:
    """Return the least ratio of an ordinary loop's time to the program's."""
    size = found["parameters"]
    if method not in VERTICAL:
        return None
    if found["case"] in SHAPES:
        return 1.0 if found["case"] == "resnet18" else 1.2
    if size < 1000:
        return 5.0
    return 1.5 if size <= 1_000_000 else 1.0


def table(method: str, cases: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> None:
    """Print a method's figures."""
    ways = list(cases[0]["us"])
    rows = []
    for found in cases:
        engine = engines[0]
        over = ratio(found, "ordinary", engine)
        cells = [f"{found['parameters']:,}", found["engine"][engine]]
        cells += [f"{median(found['us'][way]):,.0f}" for way in ways]
        cells += [
            f"{over:.2f}",
            verdict(over, target(method, found)),
            f"{ratio(found, 'tuned', engine):.2f}",
        ]
        if method not in VERTICAL:
            step = ratio(found, engine, "forwards")
            bar = OVER_FORWARDS if found["parameters"] >= 1_000_000 else None
            cells += [f"{step:.2f}", verdict(step, bar, at_most=True)]
        rows.append((found["case"], *cells))
    columns = [
        "model",
        "parameters",
        "engine",
        *ways,
        f"ordinary / {engines[0]}",
        "target",
        "tuned / it",
    ]
    columns += [] if method in VERTICAL else ["it / forwards", "target"]
    clock = "wall clock on a GPU" if cases[0]["cuda"] else "CPU"
    show(f"{method}: µs of an update, {clock}", columns, rows)
    overs = [ratio(found, "ordinary", engines[0]) for found in cases]
    down = max((a / b for a, b in pairwise(overs)), default=1.0)
    if cases[0]["case"] not in SHAPES:
        print(f"{method}: largest step down {down:.2f}, {verdict(down, STEP_DOWN, at_most=True)}")


def cases(method: str, shapes: bool, most: int, cuda: bool) -> list[Case]:
    """Return a method's cases of at most so many parameters; on a GPU of 800,000 at least."""
    if shapes:
        widths = {"cnn_mnist": (16, 32), "cnn_cifar": (32, 64), "resnet18": (64, 128, 256, 512)}
        if method not in VERTICAL:
            return []
        return [Case(method, widths.get(shape, ()), shape, cuda) for shape in SHAPES]
    inputs, outputs, listed = (196, 16, HIDDEN) if method in VERTICAL else (784, 10, WHOLE)
    sizes = [sum((a + 1) * b for a, b in pairwise((inputs, *hidden, outputs))) for hidden in listed]
    least = 800_000 if cuda else 0
    return [
        Case(method, hidden, cuda=cuda)
        for hidden, size in zip(listed, sizes, strict=True)
        if least <= size <= most
    ]


def main() -> int:
    """Measure, print a table of each method, write the JSON."""
    parser = options(__doc__ or "")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument(
        "--engines", nargs="+", choices=("auto", "compiled", "torch"), default=["auto"]
    )
    parser.add_argument(
        "--shapes", action="store_true", help="convolutions, a transformer and ResNet-18"
    )
    parser.add_argument(
        "--most", type=int, default=1_000_000, metavar="N", help="parameters of a model, at most"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="what N threads gain vertical methods"
    )
    parser.add_argument("--cuda", action="store_true", help="models and loops on the GPU")
    given = parser.parse_args()
    if given.cuda and not torch.cuda.is_available():
        parser.error("--cuda: there is no GPU here")
    before, repeats = environment(), given.repeats or (1 if given.quick else 5)
    figures: dict[str, list[dict[str, Any]]] = {}
    with one_thread("torch"):
        for method in given.methods:
            found = cases(method, given.shapes, given.most, given.cuda)
            if not found or (given.threads and method not in VERTICAL):
                continue
            if given.threads:
                walls = [
                    beside(case, given.threads, repeats, SECONDS[given.quick]) for case in found
                ]
                beside_table(method, given.threads, walls)
                figures[method] = walls
                continue
            measured = [
                measure(case, given.engines, repeats, SECONDS[given.quick]) for case in found
            ]
            figures[method] = measured
            table(method, measured, given.engines)
    write("model_sizes", {"environment": before, "figures": figures}, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
