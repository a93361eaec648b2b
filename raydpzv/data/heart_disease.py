"""Reader for the heart disease data of four hospitals, divided as FLamby does.

Columns slope, ca and thal are left out, then records without a value; cp and restecg become
indicators of all but their
first value: 13 features. 66 % of each hospital's records are for training, stratified, drawn with
the seed 43; each hospital's features are standardised by its own training records. Files:
processed.*.data of the UCI repository (Janosi et al.), or one heart_disease_uci.csv with words in
place of codes. Source: Ogier du Terrail et al., "FLamby" (2022).
"""

# D records of a hospital, F features

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raydpzv.data.cells import read_cells
from raydpzv.data.files import missing
from raydpzv.data.held_out import stratified_rows
from raydpzv.data.scaling import standardise
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table, narrow
from raydpzv.errors import DataError

_WANTED = 'data set "heart_disease"'
_CENTRES = ("cleveland", "hungarian", "switzerland", "va")
_HELD = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
    "num",
)
_MEASURED = ("age", "trestbps", "chol", "thalach", "oldpeak")
_CODES = {
    "sex": ("Female", "Male"),
    "fbs": ("FALSE", "TRUE"),
    "exang": ("FALSE", "TRUE"),
    "cp": ("typical angina", "atypical angina", "non-anginal", "asymptomatic"),
    "restecg": ("normal", "st-t abnormality", "lv hypertrophy"),
}
"""Columns of codes, each code's words in the order of the numbers that stand for them."""
_FIRST = {"cp": 1}
"""The least code of a column whose codes do not begin at 0."""
_CSV = "heart_disease_uci.csv"
_CSV_CENTRES = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
_TESTED, _SEED = 0.34, 43
FEATURES = (
    *_MEASURED,
    *(f"{name}={words[-1]}" for name, words in _CODES.items() if len(words) == 2),
    *(f"{name}={word}" for name, words in _CODES.items() if len(words) > 2 for word in words[1:]),
)


def read_folder(request: Request) -> Split:
    """Return training and test rows of all hospitals, x [D, 13], the hospitals as silos. Raises
    DataError.
    """
    folder = request.folder
    names = [f"processed.{centre}.data" for centre in _CENTRES]
    if (folder / _CSV).is_file():
        hospitals = _of_one_file(request)
    elif lacking := [name for name in names if not (folder / name).is_file()]:
        raise missing(f"{_WANTED} (or one {_CSV})", lacking, folder, request.home)
    else:
        hospitals = [_processed(request, name) for name in names]
    parts = [_divided(*hospital, silo) for silo, hospital in enumerate(hospitals)]
    return Split(_joined([part.train for part in parts]), _joined([part.test for part in parts]))


def _processed(request: Request, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a hospital's features [D, 13] and labels [D] from its own file."""
    cells = read_cells(request, name, _HELD, headed=False)
    codes = {}
    for column, words in _CODES.items():
        first = _FIRST.get(column, 0)
        known = {f"{first + i}{end}": float(i) for i in range(len(words)) for end in ("", ".0")}
        codes[column] = cells.codes(column, known, gap="?")
    return _complete(
        cells.numbers(_MEASURED, gap="?"), codes, cells.numbers(["num"], gap="?")[:, 0]
    )


def _of_one_file(request: Request) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return features and labels of each hospital from the one file of all."""
    measured = tuple({"thalach": "thalch"}.get(column, column) for column in _MEASURED)
    cells = read_cells(request, _CSV, ("dataset", *measured, *_CODES, "num"))
    codes = {
        column: cells.codes(column, {word: float(i) for i, word in enumerate(words)}, gap="")
        for column, words in _CODES.items()
    }
    centre = cells.codes("dataset", {name: float(i) for i, name in enumerate(_CSV_CENTRES)})
    values, labels = cells.numbers(measured, gap=""), cells.numbers(["num"], gap="")[:, 0]
    found = []
    for silo in range(len(_CSV_CENTRES)):
        own = centre == silo
        found.append(
            _complete(values[own], {c: code[own] for c, code in codes.items()}, labels[own])
        )
    return found


def _complete(
    values_DF: np.ndarray, codes: dict[str, np.ndarray], labels_D: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return features [D, 13] and labels [D] of the records without a gap."""
    indicators = [
        (code == level).astype(float)
        for name, code in codes.items()
        for level in range(1, len(_CODES[name]))
    ]
    gaps = np.isnan(np.column_stack([values_DF, *codes.values(), labels_D])).any(1)
    return np.column_stack([values_DF, *indicators])[~gaps], (labels_D[~gaps] > 0).astype(np.int64)


def _divided(x_DF: np.ndarray, y_D: np.ndarray, silo: int) -> Split:
    """Return a hospital's training and test rows, standardised by the training rows."""
    drawn = stratified_rows(y_D, _TESTED, _SEED) if len(y_D) else None
    if drawn is None:
        raise DataError(
            f'{_WANTED}: the {len(y_D)} records of "{_CENTRES[silo]}" without a gap are too few to '
            "have both classes "
            "for training and test; get the files again"
        )
    table = Table("heart_disease", narrow(x_DF), y_D, 2, FEATURES, silos=np.full(len(y_D), silo))
    return standardise(Split(table.select(drawn[0]), table.select(drawn[1])))


def _joined(tables: Sequence[Table]) -> Table:
    x, y, silos = (
        np.concatenate([getattr(table, name) for table in tables]) for name in ("x", "y", "silos")
    )
    return Table("heart_disease", x, y, 2, FEATURES, silos=silos)
