"""Digits at equal promise: every line has the same proved ε, δ and adversary. `python -m
benchmarks.equal_promise`.

Each entrant's settings are chosen from a grid, by the median accuracy on held-back training rows of
other seeds than the reported ones; what the choice releases is in no ε. A run's ε is read from its
own claims, and one that is not the promised ε is an error. Runs are kept in --out and not made
again; the page and its picture are written at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from raydpzv.files import write_atomically

EPSILONS = (1.0, 3.0, 8.0)
RELATIONS = ("replace", "add_remove")
TUNED_ON = (100, 101)
REPORTED_ON = (0, 1, 2, 3, 4)
ROWS, DELTA_OF = 1437, 10  # digits' training rows; δ = 1 / (10 D)
PAGE = Path("docs/equal_promise.md")
FOUND = "runs.json"
SCALING = ("data.centre=0.3", "data.spread=1.0")
"""Constants of every line; those of `digits_private` itself are others."""


@dataclass(frozen=True)
class Entrant:
    """A line of the table: its settings beside `digits_private`, and its grid of lists of settings.

    noised_rows: batch size of a method whose proof is the range of all rows that it releases, and
    whose σ follows from their number; None where privacy.mode = "proved" solves for the noise.
    """

    label: str
    settings: tuple[str, ...]
    grid: tuple[tuple[str, ...], ...]
    noised_rows: int | None = None


def _steps(*values: float, of: Sequence[str] = ("method.lr",)) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"{name}={value}" for name in of) for value in values)


_LINEAR = ("model.head=linear", "model.initial=random")
_VAFL = (
    *_LINEAR,
    "method={name='vafl', batch=64, momentum=0.9, noise_on='gradient'}",
    'privacy={mode="paper", clip=0.1}',
)
_PRIVATE_HEAD = (
    "method={name='frozen', batch='all', server='dp_sgd', server_momentum=0.0}",
    "model.head=linear",
    "budget.updates=100",
)
_DESCENT = tuple(
    (f"method.server_lr={lr}", f"privacy.clip={clip}")
    for clip in (0.1, 0.3, 1.0, 3.0)
    for lr in (1.0, 3.0, 10.0, 30.0)
)

ENTRANTS = (
    Entrant("zeroth order, sum head", (), _steps(0.5, 1.0, 2.0, 4.0, 8.0)),
    Entrant(
        "zeroth order, joint linear head",
        (*_LINEAR, "method.server=joint"),
        _steps(0.125, 0.25, 0.5, 1.0, 2.0, 4.0, of=("method.lr", "method.server_lr")),
    ),
    Entrant(
        "zeroth order, linear head by DP-SGD",
        (*_LINEAR, "method.server=dp_sgd", "privacy.head_clip=1.0", "method.server_lr=0.3"),
        _steps(0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    ),
    Entrant(
        "frozen clients (random), head by DP-GD", (*_PRIVATE_HEAD, "model.initial=random"), _DESCENT
    ),
    Entrant(
        "frozen clients (orthogonal), head by DP-GD",
        (*_PRIVATE_HEAD, "model.initial=orthogonal_last"),
        _DESCENT,
    ),
    Entrant(
        "central DP-GD, softmax regression",
        (*_PRIVATE_HEAD, "model.initial=orthogonal_last", "split.clients=1", "model.embedding=64"),
        _DESCENT,
    ),
    Entrant(
        "VAFL, noise on gradients",
        _VAFL,
        tuple(
            (f"budget.updates={t}", f"method.lr={lr}")
            for t in (50, 400, 1600, 6400, 25600)
            for lr in (0.0003, 0.001, 0.01, 0.1)
        ),
        noised_rows=64,
    ),
    Entrant(
        "control: the same, clients that stand still",
        _VAFL,
        (("budget.updates=25600", "method.lr=1e-9"),),
        noised_rows=64,
    ),
)


@dataclass(frozen=True)
class Run:
    """One run: an entrant's point of its grid at one promise and seed; held_back: of the training
    rows.
    """

    entrant: int
    point: int
    epsilon: float
    relation: str
    seed: int
    held_back: float

    @property
    def name(self) -> str:
        """What the run is kept under: its settings, so that a grid may grow."""
        own = (ENTRANTS[self.entrant].label, self.epsilon, self.relation, self.seed, self.held_back)
        return json.dumps([*own, *ENTRANTS[self.entrant].grid[self.point]])


def settings(run: Run) -> list[str]:
    """Return a run's settings beside those of `digits_private`."""
    entrant = ENTRANTS[run.entrant]
    given = [*SCALING, *entrant.settings, *entrant.grid[run.point], f"seed={run.seed}"]
    given += [f"data.validation_fraction={run.held_back}"] if run.held_back else []
    if entrant.noised_rows is None:
        return [*given, f"privacy.epsilon={run.epsilon}", f"privacy.relation={run.relation}"]
    return [*given, *_by_range(run, given, entrant.noised_rows)]


def _by_range(run: Run, given: Sequence[str], batch: int) -> list[str]:
    """σ for which the range of all R = T B rows, of norm S at most, is proved to be worth ε: 2S√R /
    μ.
    """
    from raydpzv.privacy.gdp import mu_of

    updates = next(
        int(item.partition("=")[2]) for item in given if item.startswith("budget.updates=")
    )
    rows = round(ROWS * (1 - run.held_back))
    delta = 1 / (DELTA_OF * rows)
    sigma = 2 * 0.1 * math.sqrt(updates * batch) / mu_of(run.epsilon, delta)
    return [f"privacy.sigma={sigma!r}", f"privacy.delta={delta!r}"]


def made(run: Run) -> dict[str, Any]:
    """Make a run in this process; return what the table needs. Raises ValueError if its ε is
    another.
    """
    import raydpzv

    spec = raydpzv.load(
        "digits_private", [*settings(run), "evaluate.every=100000", "record.staleness=false"]
    )
    summary = raydpzv.run(spec).summary
    proved = [c for c in summary["epsilon"] if c["holds"] and _like(c, run.relation)]
    (claim,) = [c for c in proved if c["adversary"] == "client"]
    if not 0.98 * run.epsilon <= claim["epsilon"] <= 1.001 * run.epsilon:
        raise ValueError(f"{run.name}: promised ε = {run.epsilon}, proved is {claim['epsilon']}")
    against = [c["adversary"] for c in proved if c["epsilon"] <= 1.001 * run.epsilon]
    return {
        "accuracy": summary["accuracy"],
        "validation": summary["validation_accuracy"],
        "against": ["external" in against, "client" in against],
        "epsilon": claim["epsilon"],
        "delta": claim["delta"],
        "mechanism": claim["mechanism"],
        "accountant": claim["accountant"],
        "bytes": summary["bytes_up"] + summary["bytes_down"],
    }


def _like(claim: dict[str, Any], relation: str) -> bool:
    """What bounds all rows together is between any two tables, whatever the relation."""
    return bool(claim["relation"] == relation or "all rows" in claim["accountant"])


def promises(run_entrant: int) -> Iterator[tuple[float, str]]:
    """Yield the promises that an entrant is run at; what a range proves is the same for both
    relations.
    """
    for relation in RELATIONS if ENTRANTS[run_entrant].noised_rows is None else RELATIONS[:1]:
        for epsilon in EPSILONS:
            yield epsilon, relation


class Store:
    """Runs that were made, by name, in a file of --out."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FOUND
        folder.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, Any] = (
            json.loads(self._file.read_text()) if self._file.is_file() else {}
        )

    def make(self, runs: Sequence[Run], processes: int, what: str) -> None:
        """Make those that are not there."""
        todo = [run for run in runs if run.name not in self.found]
        with ProcessPoolExecutor(processes) as pool, Progress() as progress:
            task = progress.add_task(what, total=len(todo))
            started = {pool.submit(made, run): run for run in todo}
            for future in as_completed(started):
                self.found[started[future].name] = future.result()
                write_atomically(self._file, json.dumps(self.found).encode())
                progress.advance(task)

    def median(self, runs: Sequence[Run], key: str) -> float:
        """Return the median of a figure over runs."""
        return float(statistics.median(self.found[run.name][key] for run in runs))


def tuning(entrant: int, epsilon: float, relation: str, point: int) -> list[Run]:
    """Return the runs that a point of the grid is judged by."""
    return [Run(entrant, point, epsilon, relation, seed, 0.2) for seed in TUNED_ON]


def chosen(store: Store, entrant: int, epsilon: float, relation: str) -> int:
    """Return the best point of an entrant's grid at a promise, of equals the first."""
    scores = [
        store.median(tuning(entrant, epsilon, relation, point), "validation")
        for point in range(len(ENTRANTS[entrant].grid))
    ]
    return scores.index(max(scores))


def reported(
    store: Store, entrant: int, epsilon: float, relation: str, seeds: Sequence[int]
) -> list[Run]:
    """Return the runs of the table's cell."""
    point = chosen(store, entrant, epsilon, relation)
    return [Run(entrant, point, epsilon, relation, seed, 0.0) for seed in seeds]


def main() -> None:
    """Tune, run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/equal_promise"), help="where runs are kept"
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page to write; its picture goes beside it"
    )
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, a core each")
    given = parser.parse_args()
    store = Store(given.out)
    cells = [(e, *promise) for e in range(len(ENTRANTS)) for promise in promises(e)]
    grids = [
        run
        for cell in cells
        for point in range(len(ENTRANTS[cell[0]].grid))
        for run in tuning(*cell, point)
    ]
    store.make(grids, given.processes, "tuning")
    store.make(
        [run for cell in cells for run in reported(store, *cell, REPORTED_ON)],
        given.processes,
        "reported",
    )
    write_page(store, given.page)
    print(f"page: {given.page}")


def write_page(store: Store, page: Path) -> None:
    """Write the table and its picture."""
    picture = page.parent / "results" / "equal_promise.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(picture, _picture(store))
    write_atomically(page, _text(store, picture.relative_to(page.parent)).encode())


HEAD = """# At equal promise

Every line of a column has the same **proved** ε against all clients together, read from each run's own claims.
`python -m benchmarks.equal_promise` makes this page.

- **Data.** Digits, four clients with two pixel rows each, embeddings of width 10, δ = 1/(10 D). Public scaling: every
  line subtracts .3 and divides by 1.
- **Settings.** Each line's grid was searched at each ε, by the median accuracy on a fifth of the training rows of
  seeds {tuned}. No ε charges this search. Settings outside the grids, such as 400 updates of 40 directions, were set by
  hand with test rows in view.
- **Figures.** Median test accuracy of seeds {reported} (least to most), and bytes both ways.
- **VAFL promises less.** Its ε is against clients who never see the head, and the head learns from labels without
  noise. Its control, whose clients never move, shows the head's share of the accuracy. All other lines hold against
  anyone with the final model too.

[`digits_private`](privacy.md#what-is-public) has better constants, which this page does not use.
"""


def _text(store: Store, picture: Path) -> str:
    tuned, reported_on = (", ".join(map(str, seeds)) for seeds in (TUNED_ON, REPORTED_ON))
    lines = [HEAD.format(tuned=tuned, reported=reported_on), f"![Accuracy over ε]({picture})", ""]
    for relation in RELATIONS:
        if relation == "replace":
            lines += ["## One record replaced", ""]
        else:
            lines += ["<details><summary>One record's term added or removed</summary>", ""]
        lines += [_row(["method", *(f"ε = {e:g}" for e in EPSILONS), "bytes"])]
        lines += [_row(["---"] * (2 + len(EPSILONS)))]
        for entrant in range(len(ENTRANTS)):
            if (EPSILONS[0], relation) in promises(entrant):
                lines.append(_row(_cells(store, entrant, relation)))
        lines += [""] if relation == "replace" else ["", "</details>", ""]
    lines += [
        "<details><summary>Settings chosen</summary>",
        "",
        _row(["method", "ε", "relation", "settings", "at the edge of the grid"]),
    ]
    lines.append(_row(["---"] * 5))
    for entrant, line in enumerate(ENTRANTS):
        for epsilon, relation in promises(entrant):
            point = line.grid[chosen(store, entrant, epsilon, relation)]
            edges = ", ".join(at_edge(line.grid, point)) or "none"
            lines.append(_row([line.label, f"{epsilon:g}", relation, ", ".join(point), edges]))
    return "\n".join([*lines, "", "</details>"]) + "\n"


def at_edge(grid: Sequence[Sequence[str]], point: Sequence[str]) -> list[str]:
    """Return the settings of a point that are the first or the last of their values, beyond which
    one may be better.
    """
    found = []
    for place, item in enumerate(point):
        values = list(dict.fromkeys(other[place] for other in grid))
        if len(values) > 1 and item in (values[0], values[-1]):
            found.append(item)
    return found


def _cells(store: Store, entrant: int, relation: str) -> list[str]:
    cells, sizes, who = [], [], ""
    for epsilon in EPSILONS:
        runs = reported(store, entrant, epsilon, relation, REPORTED_ON)
        values = [store.found[run.name]["accuracy"] for run in runs]
        cells.append(f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        sizes.append(store.median(runs, "bytes"))
        outsiders = all(store.found[run.name]["against"][0] for run in runs)
        who = "" if outsiders else " (against clients alone)"
    return [f"{ENTRANTS[entrant].label}{who}", *cells, f"{max(sizes) / 2**20:,.1f} MiB"]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _picture(store: Store) -> bytes:
    from raydpzv.report import plots

    figure, axes = plots.canvas(9.0, 4.6, columns=2, share=True)
    handles: list[Any] = []
    for ax, relation in zip(axes[0], RELATIONS, strict=True):
        plots.head(
            ax, "replace one record" if relation == "replace" else "add or remove one record"
        )
        ax.set_xscale("log")
        ax.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        ax.minorticks_off()
        ax.set_xlabel("proved ε against all clients, δ = 1/(10 D)")
        for entrant, line in enumerate(ENTRANTS):
            if (EPSILONS[0], relation) not in promises(entrant):
                continue
            values = [
                [
                    store.found[run.name]["accuracy"]
                    for run in reported(store, entrant, e, relation, REPORTED_ON)
                ]
                for e in EPSILONS
            ]
            (drawn,) = ax.plot(
                EPSILONS,
                [statistics.median(v) for v in values],
                label=line.label,
                **plots.line(entrant),
            )
            ax.fill_between(
                EPSILONS,
                [min(v) for v in values],
                [max(v) for v in values],
                color=drawn.get_color(),
                alpha=0.12,
            )
            if relation == RELATIONS[0]:
                handles.append(drawn)
    axes[0, 0].set_ylabel("test accuracy")
    plots.legend(figure, handles, columns=2)
    return plots.png(figure)


if __name__ == "__main__":
    main()
