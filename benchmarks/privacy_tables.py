"""The tables of docs/privacy.md, written into it: `python -m benchmarks.privacy_tables`.

Each table stands between two comments that name it. The first two are arithmetic (a minute); the last needs runs of
`digits_server`, which are made one after the other. `--only` writes some of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from raydpzv.files import write_atomically
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.mean_accountant import participation_epsilon, poisson_epsilon

PAGE = Path("docs/privacy.md")
ROWS, CLIP, DELTA = 60_000, 5.0, 1e-3  # the papers' MNIST setting
PAPERS = (
    *((64, 93_750, epsilon) for epsilon in (0.5, 1.0, 5.0, 10.0)),
    *((256, 23_438, epsilon) for epsilon in (1.0, 10.0)),
)
"""B, T and claimed ε: 100 epochs."""
SENSITIVITY = {"replace": 2, "add_remove": 1}
DIGITS = 1437
EPSILONS = (1.0, 3.0, 8.0)


def papers() -> list[list[str]]:
    """What the papers' noise is worth, P = 1 and one client: claimed, and proved with and without secret batches."""
    who = ("secret Poisson batches", "client that knows its batches")
    rows = [["B", "T", "claimed ε", *(f"{name}: replace / add-remove" for name in who)]]
    for batch, releases, claimed in PAPERS:
        sigma = paper_sigma(epsilon=claimed, delta=DELTA, clip=CLIP, releases=releases, rows=ROWS)
        rate = batch / ROWS
        secret = [
            poisson_epsilon(
                noise_multiplier=sigma * batch / CLIP,
                rate=rate,
                releases=releases,
                delta=DELTA,
                relation=relation,
            )
            for relation in SENSITIVITY
        ]
        known = [
            participation_epsilon(
                participations=-(-releases // (ROWS // batch)),
                sensitivity=change * CLIP / batch,
                sigma=sigma,
                delta=DELTA,
            )
            for change in SENSITIVITY.values()
        ]
        pairs = (f"{_figure(pair[0])} / {_figure(pair[1])}" for pair in (secret, known))
        rows.append([f"{batch}", f"{releases:,}", f"{claimed:g}", *pairs])
    return rows


def multipliers() -> list[list[str]]:
    """The noise multiplier z of n releases that a record takes part in: z = c√n / μ(ε, δ)."""
    delta = 1 / (10 * DIGITS)
    rows = [["releases of a record", *(f"ε = {e:g}: replace / add-remove" for e in EPSILONS)]]
    for count in (1, 100, 400):
        cells = [
            " / ".join(
                _figure(change * count**0.5 / mu_of(epsilon, delta)) for change in SENSITIVITY.values()
            )
            for epsilon in EPSILONS
        ]
        rows.append([f"{count}", *cells])
    return rows


def server() -> list[list[str]]:
    """Test accuracy of `digits_server` over ε: median, least and most of seeds 0 to 19."""
    import raydpzv

    cells = []
    for epsilon in EPSILONS:
        found = [
            raydpzv.run(
                raydpzv.load("digits_server", [f"seed={seed}", f"privacy.epsilon={epsilon}"])
            ).summary["accuracy"]
            for seed in range(20)
        ]
        cells.append(f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})")
    heads = [f"{e:g}" for e in EPSILONS]
    return [["ε, one record's features at one client, replace", *heads], ["accuracy", *cells]]


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    "papers": papers,
    "multipliers": multipliers,
    "server": server,
}


def written(page: str, name: str, table: Sequence[Sequence[str]]) -> str:
    """Return the page with a table in its place; ValueError if the page has no place for it."""
    begin, end = (f"<!-- {word} {name} -->" for word in ("table", "end of"))
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no {begin} ... {end}")
    lines = [_row(table[0]), _row(["---"] * len(table[0])), *map(_row, table[1:])]
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def main() -> None:
    """Write the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    page = given.page.read_text()
    for name in given.only:
        page = written(page, name, TABLES[name]())
    write_atomically(given.page, page.encode())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
