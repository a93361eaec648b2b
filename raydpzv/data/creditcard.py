"""Reader for the credit card frauds of Kaggle, divided and thinned as the Uldp-FL paper's program
does.

A 15 % part, stratified, is for the test and is not thinned; of the rest all frauds and a tenth of
the other records are kept. Features are standardised by the rest before it is thinned. Source: Kato
et al. 2023, Section 5.1 and its program; the data set is by Dal Pozzolo et al. (2015).
"""

from __future__ import annotations

import numpy as np

from raydpzv.data.cells import read_cells
from raydpzv.data.held_out import hold_out
from raydpzv.data.scaling import standardise
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table, narrow

FEATURES = ("Time", *(f"V{i}" for i in range(1, 29)), "Amount")
_FILE, _LABEL = "creditcard.csv", "Class"
_TESTED, _KEPT = 0.15, 0.1


def read_folder(request: Request) -> Split:
    """Return training and test rows, x [D, 30]; class 1 is a fraud. Raises DataError."""
    cells = read_cells(request, _FILE, (*FEATURES, _LABEL))
    frauds = cells.codes(_LABEL, {"0": 0, "1": 1}).astype(int)
    table = Table("creditcard", narrow(cells.numbers(FEATURES)), frauds, 2, FEATURES)
    split = standardise(Split(*hold_out(table, _TESTED, request.draws)))
    rare, others = np.flatnonzero(split.train.y == 1), np.flatnonzero(split.train.y == 0)
    some = (request.draws / "thinned").generator().permutation(others)[: int(_KEPT * len(others))]
    return Split(split.train.select(np.sort(np.concatenate((rare, some)))), split.test)
