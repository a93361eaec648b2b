"""Peak memory of a client's training step by each vertical method, on models of the size in the
DPZV papers' figure.

The figure: preprint Appendix F, journal Figure 4, memory by method for ResNet-18 (images) and BERT
(texts), in units that are not printed. The models: ResNet-18, and a transformer of BERT's size (12
layers of 768, 30,522 tokens), from random weights. The step is the client's own: the answer to its
last upload applied, the next upload computed; the answers come from the method's server, which is
there before anything is counted.

Each case in a process of its own: the high-water mark of resident memory during the steps (on a GPU
that of torch's allocator), less what was in use before the client was made, kernels and libraries
warm from a small model. The activations of the batch are in it, as they are in a figure of peaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, write
from fresh_process import in_fresh_process
from peaks import Cuda, Meter, Resident, predictable_malloc

from raydpzv.config import catalog
from raydpzv.config.scenario import VerticalScenario
from raydpzv.experiment.parties import ClientFactory, ServerFactory
from raydpzv.keys import Key
from raydpzv.methods.descriptor import NoiseParts

METHODS = ("dpzv", "zoo_vfl", "czofo", "vafl")
_CLASSES, _STEPS = 2, 3


@dataclass(frozen=True)
class Model:
    """A bottom model: its scenario, its layers' widths, and the shape of a record."""

    scenario: str
    hidden: tuple[int, ...]
    shape: tuple[int, ...]


MODELS = {
    "ResNet-18": Model("modelnet40_dpzv", (64, 128, 256, 512), (3, 64, 64)),
    "transformer of BERT's size": Model("amazon_dpzv", (768,) * 12, (64,)),
}
SMALL = {
    "ResNet-18": Model("modelnet40_dpzv", (4, 4, 8, 16), (3, 16, 16)),
    "transformer of BERT's size": Model("amazon_dpzv", (64,), (8,)),
}
"""What kernels and libraries are warmed up on, and what `--quick` measures."""


def scenario(model: Model, method: str, momentum: float, rows: int) -> VerticalScenario:
    """Return a scenario of the papers with this bottom model and method, without noise."""
    settings = f'method={{name="{method}", batch={rows}, momentum={momentum}}}'
    found = catalog.load(
        model.scenario, [settings, 'privacy={mode="none"}', f"model.hidden={list(model.hidden)}"]
    )
    assert isinstance(found, VerticalScenario)
    return found


def measure(
    model: Model, small: Model, method: str, momentum: float, rows: int, device: str
) -> dict[str, int]:
    """Return the peak bytes of a client's step and the bytes of its parameters; the process must be
    fresh.
    """
    torch.set_num_threads(1)
    predictable_malloc()
    meter: Meter = Resident() if device == "cpu" else Cuda()
    steps(scenario(small, method, momentum, rows), small, rows, device, meter)
    return steps(scenario(model, method, momentum, rows), model, rows, device, meter)


def steps(
    spec: VerticalScenario, model: Model, rows: int, device: str, meter: Meter
) -> dict[str, int]:
    """Take a few steps of one client and return its peak and parameter bytes."""
    draws, noise = Key(0).generator(), NoiseParts(Key(0))
    values = draws.integers(1, spec.data.vocabulary, (rows, *model.shape)).astype(np.float32)
    y = np.arange(rows) % _CLASSES
    server = ServerFactory(spec, y, y, _CLASSES, noise, Key(0)).make(device)
    order = next(order for order in server.first_orders() if order.client == 0)
    before = meter.now()
    client = ClientFactory(spec, 0, values, values[:1], noise, Key(0)).make(device)
    peaks = []
    for _ in range(_STEPS):
        meter.reset()
        upload = client.process(order)
        peaks.append(meter.peak() - before)
        (order,) = server.receive(upload)
    return {"peak": max(peaks[1:]), "parameters": 4 * client.parameters().size}


def report(
    models: dict[str, Model], rows: int, momentum: float, repeats: int, device: str
) -> dict[str, Any]:
    """Measure every model and method, print the table and return the figures."""
    before, found = environment(), []
    for name, model in models.items():
        cases: dict[str, list[dict[str, int]]] = {}
        for method in METHODS:
            one = partial(
                in_fresh_process, measure, model, SMALL[name], method, momentum, rows, device
            )
            cases[method] = [one() for _ in range(repeats)]
        first_order = median([run["peak"] for run in cases["vafl"]])
        for method, runs in cases.items():
            peak = median([run["peak"] for run in runs])
            found.append(
                {
                    "model": name,
                    "method": method,
                    "parameter_bytes": runs[0]["parameters"],
                    "peak_bytes": peak,
                    "over_parameters": peak / runs[0]["parameters"],
                    "over_vafl": peak / first_order,
                    "spread": spread([run["peak"] for run in runs]),
                }
            )
    show(
        f"Peak memory of a client's step, activations of {rows} rows in it, momentum {momentum:g}, "
        f"{device}",
        ["model", "method", "parameters MB", "peak MB", "/ parameters", "/ VAFL", "spread"],
        [
            [
                str(case["model"]),
                str(case["method"]),
                f"{case['parameter_bytes'] / 1e6:.1f}",
                f"{case['peak_bytes'] / 1e6:.1f}",
                f"{case['over_parameters']:.2f}",
                f"{case['over_vafl']:.2f}",
                f"{case['spread']:.1%}",
            ]
            for case in found
        ],
    )
    how = {"rows": rows, "momentum": momentum, "repeats": repeats, "device": device}
    return {**how, "cases": found, "environment": before}


def main() -> None:
    """Run the benchmark."""
    parser = options(__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--rows", type=int, default=8, metavar="B", help="rows of a batch [default: 8]"
    )
    parser.add_argument(
        "--momentum", type=float, default=0.0, help="of the client; the papers' is 0.9"
    )
    chosen = parser.parse_args()
    models = SMALL if chosen.quick else MODELS
    figures = report(models, chosen.rows, chosen.momentum, chosen.repeats or 1, chosen.device)
    write("memory_figure", figures, chosen.json)


if __name__ == "__main__":
    main()
