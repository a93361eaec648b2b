"""Write the tables of the privacy pages into them: `python -m benchmarks.privacy_tables`.

Two comments that name a table enclose it. The first two tables are arithmetic (a minute). The
others need runs of `digits_server` and `digits_private`, one after the other. `--only` writes some
of them. The accuracy of `digits_private` ("private") goes to every page that states it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from raydpzv.files import write_atomically
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.model_averaging import ModelAverage, tail_begin
from raydpzv.privacy.calibration import paper_sigma
from raydpzv.privacy.gdp import mu_of
from raydpzv.privacy.mean import participation_epsilon
from raydpzv.privacy.pld import poisson_epsilon

PAGE = Path("docs/privacy.md")
PROOFS = Path("docs/privacy-proofs.md")
PAGES = {"private": (PAGE,), "multipliers": (PROOFS,), "average": (PROOFS,)}
"""Where a table goes; left out: docs/privacy.md."""
ROWS, CLIP, DELTA = 60_000, 5.0, 1e-3  # the papers' MNIST setting
PAPERS = (
    *((64, 93_750, epsilon) for epsilon in (0.5, 1.0, 5.0, 10.0)),
    *((256, 23_438, epsilon) for epsilon in (1.0, 10.0)),
)
"""B, T and claimed ε: 100 epochs."""
SENSITIVITY = {"replace": 2, "add_remove": 1}
DIGITS = 1437
EPSILONS = (1.0, 3.0, 8.0)
SHARES, STEP_SIZES, RUNS = (None, 0.1, 0.25, 0.5, 0.75), (0.25, 1.0), 2
"""Shares of the releases whose models are averaged (None: of none), and runs for each step size and
seed.
"""


def papers() -> list[list[str]]:
    """What the papers' noise is worth, P = 1 and one client: claimed, and proved with and without
    secret batches.
    """
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
                _figure(change * count**0.5 / mu_of(epsilon, delta))
                for change in SENSITIVITY.values()
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
        cells.append(_spread(found))
    heads = [f"{e:g}" for e in EPSILONS]
    return [["ε, one record's features at one client, replace", *heads], ["accuracy", *cells]]


def private() -> list[list[str]]:
    """Test accuracy of `digits_private` under both relations: median, least and most of seeds 0 to
    19.
    """
    import raydpzv

    words = {"replace": "one record replaced", "add_remove": "one record added or removed"}
    cells = []
    for relation in SENSITIVITY:
        found = []
        for seed in range(20):
            changes = [f"seed={seed}", f"privacy.relation={relation}", "evaluate.every=400"]
            summary = raydpzv.run(raydpzv.load("digits_private", changes)).summary
            (claim,) = [c for c in summary["epsilon"] if c["adversary"] == "all_clients"]
            if (
                not claim["holds"]
                or claim["relation"] != relation
                or not 0.98 < claim["epsilon"] <= 1.001
            ):
                raise ValueError(f"digits_private: wanted a proved ε = 1 ({relation}), got {claim}")
            found.append(summary["accuracy"])
        cells.append(_spread(found))
    return [["`digits_private`, ε = 1", *words.values()], ["test accuracy, seeds 0 to 19", *cells]]


def average() -> list[list[str]]:
    """Test accuracy of `digits_private` by the newest models and by means of the last, from the
    same ledgers.
    """
    heads = ("newest", *(f"last {100 * share:.0f} %" for share in SHARES[1:]))
    rows = [["step size", *(f"{head}: accuracy, less the newest's" for head in heads[1:])]]
    rows[0].insert(1, heads[0])
    for lr in STEP_SIZES:
        found = np.array([_averaged(seed, lr) for seed in range(5) for _ in range(RUNS)])
        paired = found[:, 1:] - found[:, :1]
        errors = paired.std(0, ddof=1) / len(found) ** 0.5
        cells = [
            f"{median:.3f}, {mean:+.3f} ± {error:.3f}"
            for median, mean, error in zip(
                np.median(found, 0)[1:], paired.mean(0), errors, strict=True
            )
        ]
        rows.append([f"{lr:g}", f"{np.median(found[:, 0]):.3f}", *cells])
    return rows


def _averaged(seed: int, lr: float) -> list[float]:
    """Return the accuracy of one run's models, for each share of its releases that could be
    averaged.
    """
    import raydpzv
    from raydpzv.experiment.local_session import one_thread
    from raydpzv.experiment.vertical import prepare_vertical

    spec = raydpzv.load("digits_private", [f"seed={seed}", f"method.lr={lr}", "evaluate.every=400"])
    prepared = prepare_vertical(spec)
    plan, server = prepared.plan(), prepared.server.make()
    clients = [factory.make() for factory in prepared.clients]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        raydpzv.run(spec, Path(folder) / "run")
        with one_thread("torch"), Ledger.open(Path(folder) / "run" / "ledger") as ledger:
            for share in SHARES:
                embedded = []
                for m, client in enumerate(clients):
                    tail, replica = (
                        ModelAverage(tail_begin(share, ledger.version, 1)),
                        plan.replica(m),
                    )
                    replica.go_to(ledger.version, ledger, tail)
                    mean = tail.mean()
                    embedded.append(
                        client.bottom.embed_held_out(replica.state()[0] if mean is None else mean)
                    )
                found.append(server.evaluate(embedded).accuracy)
    return found


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    "papers": papers,
    "multipliers": multipliers,
    "server": server,
    "private": private,
    "average": average,
}


def _spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})"


def table_in(page: str, name: str) -> str:
    """Return a page's table with the comments around it; ValueError if the page has no place for
    it.
    """
    begin, end = (f"<!-- {word} {name} -->" for word in ("table", "end of"))
    _, found, rest = page.partition(begin)
    inside, closed, _ = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page has no {begin} ... {end}")
    return f"{begin}{inside}{end}"


def written(page: str, name: str, table: Sequence[Sequence[str]]) -> str:
    """Return the page with a table in its place; ValueError if the page has no place for it."""
    lines = [_row(table[0]), _row(["---"] * len(table[0])), *map(_row, table[1:])]
    new = "\n".join([f"<!-- table {name} -->", *lines, f"<!-- end of {name} -->"])
    return page.replace(table_in(page, name), new)


def main() -> None:
    """Write the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES))
    for name in parser.parse_args().only:
        table = TABLES[name]()
        for page in PAGES.get(name, (PAGE,)):
            write_atomically(page, written(page.read_text(), name, table).encode())


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    main()
