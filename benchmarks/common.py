"""What every benchmark here shares: options, repetitions, the machine's facts, a table and a JSON
file.

A script runs as `python benchmarks/<name>.py`. Nothing here decides whether a figure is good:
targets are printed beside what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
"""Where JSON goes unless told otherwise; ignored by git."""
# processes measured here have byte code, as those of an installed program
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def options(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures here")
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="repetitions; medians are reported"
    )
    return parser


def environment() -> dict[str, Any]:
    """Return what the figures depend on: processors, load, versions, threads, accelerator."""
    return {
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "load_1_5_15": [round(x, 2) for x in os.getloadavg()],
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "torch_threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def median(values: Sequence[float]) -> float:
    """Return the median, NaN of nothing."""
    return float(statistics.median(values)) if values else math.nan


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / median: how far repetitions of the same thing lie apart."""
    return (max(values) - min(values)) / median(values) if values else math.nan


def verdict(value: float, target: float | None, *, at_most: bool = False) -> str:
    """Return the target and whether it is met, for a table's cell."""
    if target is None:
        return ""
    met = value <= target if at_most else value >= target
    return f"{'<=' if at_most else '>='} {target:g} {'met' if met else 'MISSED'}"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left and the others to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=max(Console().width, 150)).print(table)


def write(name: str, figures: Mapping[str, Any], path: Path | None) -> Path:
    """Write the figures as JSON (NaN and infinities as null) and print where."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_finite({"benchmark": name, **figures}), indent=2, allow_nan=False)
    path.write_text(text + "\n")
    print(f"written: {os.path.relpath(path)}")
    return path


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
