"""Whether the client with wrong labels, one of 100, is ranked first by `raydpzv step --rank`, and
what ranking costs.

Each run draws another client, whose labels are all shifted by one class. The control ranks the same
client with right labels. Prints the runs in which it came first, and the CPU time of ranking over
that of the run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import process_time

import numpy as np
from sklearn.datasets import make_blobs

import raydpzv
from raydpzv.keys import Key
from raydpzv.timetravel.history import open_history
from raydpzv.timetravel.what_if import what_if

CLIENTS, CLASSES, TEST_ROWS = 100, 5, 1400


def ranked(
    seed: int, folder: Path, *, poisoned: bool, records: int = 50
) -> tuple[int, float, float]:
    """Return the place of the drawn client, 0 for the first, and the CPU seconds of the run and of
    the ranking.
    """
    x, y = make_blobs(
        TEST_ROWS + CLIENTS * records, 20, centers=CLASSES, cluster_std=6, random_state=1
    )
    x, draw = (x - x.mean(0)) / x.std(0), Key(seed).generator()
    test, train = np.split(draw.permutation(len(x)), [TEST_ROWS])
    owner, bad, labels = (
        np.arange(len(train)) % CLIENTS,
        int(draw.integers(CLIENTS)),
        y[train].copy(),
    )
    if poisoned:
        labels[owner == bad] = (labels[owner == bad] + 1) % CLASSES
    scenario = raydpzv.horizontal(
        "mlp", (x[train], labels), clients=owner, test=(x[test], y[test]), method="decomfl", updates=40, lr=0.05,
        cohort=50, perturbations=25, batch=64, model__hidden=[], seed=seed, classes=CLASSES,
    )  # fmt: skip
    start = process_time()
    raydpzv.run(scenario, folder)
    trained = process_time()
    with open_history(folder) as history:
        order = [absence.client for absence in what_if(history).ranked()]
    return order.index(bad), trained - start, process_time() - trained


def main() -> None:
    """Print how often the poisoner came first, and the control."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--records", type=int, default=50, help="of each client")
    options = parser.parse_args()
    for poisoned in (True, False):
        with tempfile.TemporaryDirectory() as scratch:
            found = [
                ranked(seed, Path(scratch) / f"{seed}", poisoned=poisoned, records=options.records)
                for seed in range(options.runs)
            ]
        first, ratio = (
            sum(place == 0 for place, _, _ in found),
            np.median([rank / run for _, run, rank in found]),
        )
        what = "wrong labels" if poisoned else "right labels (control)"
        print(
            f"{what}: first in {first} of {options.runs} runs; ranking takes {ratio:.2f} of a "
            "run's CPU time"
        )


if __name__ == "__main__":
    main()
