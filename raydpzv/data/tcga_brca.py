"""Reader for FLamby's breast cancer set: survival of patients of six regions, 39 features, divided
as it comes.

brca.csv has a patient's pid, 39 features, E (1: death, 0: censored) and T (days);
train_test_split.csv says in fold2 whether a pid is for training or test and of which region:
train_0 to test_5. Source: Ogier du Terrail et al., "FLamby" (2022), from the Cancer Genome Atlas.
"""

from __future__ import annotations

import numpy as np

from raydpzv.data.cells import read_cells
from raydpzv.data.files import one_line
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table, narrow
from raydpzv.errors import DataError

_PATIENTS, _FOLDS = "brca.csv", "train_test_split.csv"
_FEATURES, _REGIONS = 39, 6
_PARTS = {
    f"{part}_{region}": float(i * _REGIONS + region)
    for i, part in enumerate(("train", "test"))
    for region in range(_REGIONS)
}


def read_folder(request: Request) -> Split:
    """Return training and test rows, x [D, 39], survival times, the regions as silos. Raises
    DataError.
    """
    cells = read_cells(request, _PATIENTS, ("pid", "E", "T"))
    other = ("", "pid", "E", "T")  # "": pandas' number of a row
    features = tuple(c for c in cells.columns if c not in other)
    if len(features) != _FEATURES:
        raise DataError(
            one_line(
                f'"{cells.path}" has {len(features)} columns beside pid, E and T: wanted '
                f"{_FEATURES} features; get it "
                f"again from {request.home}"
            )
        )
    folds = read_cells(request, _FOLDS, ("pid", "fold2"))
    places = dict(
        zip(
            folds.texts("pid").tolist(),
            folds.codes("fold2", _PARTS).astype(int).tolist(),
            strict=True,
        )
    )
    patients = cells.texts("pid").tolist()
    if (
        lost := next((row for row, pid in enumerate(patients) if pid not in places), None)
    ) is not None:
        raise cells.wrong(lost, "pid", f"a pid that {_FOLDS} has")
    place = np.array([places[pid] for pid in patients])
    events = cells.codes("E", {"0": 0, "1": 1, "0.0": 0, "1.0": 1}).astype(int)
    times = cells.numbers(["T"])[:, 0]
    for row in np.flatnonzero(times < 0)[:1].tolist():
        raise cells.wrong(row, "T", "a number of days that is 0 or more")
    table = Table(
        "tcga_brca",
        narrow(cells.numbers(features)),
        events,
        2,
        features,
        silos=place % _REGIONS,
        times=times,
    )
    train, test = (np.flatnonzero(place // _REGIONS == part) for part in range(2))
    for part, rows in (("training", train), ("test", test)):
        if not len(rows):
            raise DataError(
                one_line(f'"{folds.path}" has no {part} row; get it again from {request.home}')
            )
    return Split(table.select(train), table.select(test))
