"""Reader for the in-hospital mortality task of the MIMIC-III benchmark.

The benchmark (Harutyunyan et al. 2019, Scientific Data 6:96; github.com/YerevaNN/mimic3-benchmarks)
has a folder with `train` and `test`, each with a listfile.csv (stay,y_true) and one CSV per stay:
Hours, then 17 variables, empty where nothing was measured. MIMIC-III itself is licensed to persons
and cannot come along.
"""

# D rows, T hours, F variables

from __future__ import annotations

import re

import numpy as np

from raydpzv.data.cells import Cells, read_cells
from raydpzv.data.sources import Request
from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError

HOURS = 48
"""Length of a stay's record that the task looks at."""
VARIABLES = {
    "Capillary refill rate": 0.0,
    "Diastolic blood pressure": 59.0,
    "Fraction inspired oxygen": 0.21,
    "Glascow coma scale eye opening": 4.0,
    "Glascow coma scale motor response": 6.0,
    "Glascow coma scale total": 15.0,
    "Glascow coma scale verbal response": 5.0,
    "Glucose": 128.0,
    "Heart Rate": 86.0,
    "Height": 170.0,
    "Mean blood pressure": 77.0,
    "Oxygen saturation": 98.0,
    "Respiratory rate": 19.0,
    "Systolic blood pressure": 118.0,
    "Temperature": 36.6,
    "Weight": 81.0,
    "pH": 7.4,
}
"""The variables in the benchmark's order and spelling, and the normal value taken before the first
measurement.
"""
_COLUMNS = ("Hours", *VARIABLES)
_WORDS = {
    "none": 1,
    "no response": 1,
    "no response-ett": 1,
    "to pain": 2,
    "to speech": 3,
    "spontaneously": 4,
    "abnormal extension": 2,
    "abnormal flexion": 3,
    "flex-withdraws": 4,
    "localizes pain": 5,
    "obeys commands": 6,
    "incomprehensible sounds": 2,
    "inappropriate words": 3,
    "confused": 4,
    "oriented": 5,
}
"""Words of the Glasgow coma scale without their number."""


def read_folder(request: Request) -> Split:
    """Return x [D, 48, 17], hour by hour, and y [D] (1: died in hospital) of `folder`/train and
    `folder`/test.

    An hour holds its last measurement, else the hour before it; before the first one the normal
    value. A value that starts with a number is that number; the coma scale's words are its numbers.
    (The benchmark's own discretiser codes words one-hot and adds masks.) Raises DataError.
    """
    lists = {
        part: read_cells(request, f"{part}/listfile.csv", ("stay", "y_true"))
        for part in ("train", "test")
    }
    return Split(*(_part(request, part, stays) for part, stays in lists.items()))


def _part(request: Request, part: str, listed: Cells) -> Table:
    stays = [
        _stay(read_cells(request, f"{part}/{name}", _COLUMNS)) for name in listed.texts("stay")
    ]
    if not stays:
        raise DataError(f'"{listed.path}" lists no stay: give it rows of stay,y_true')
    return Table(part, np.stack(stays), listed.codes("y_true", {"0": 0, "1": 1}).astype(int), 2)


def _stay(cells: Cells) -> np.ndarray:
    """One stay's record, float64 [48, 17]."""
    found = np.full((HOURS, len(VARIABLES)), np.nan)
    texts = {column: cells.texts(column) for column in _COLUMNS}
    hours = np.array(
        [_number(cells, row, "Hours", text) for row, text in enumerate(texts["Hours"])]
    )
    for row in np.argsort(hours, kind="stable"):
        hour = int(np.floor(hours[row]))
        for place, name in enumerate(VARIABLES):
            if 0 <= hour < HOURS and texts[name][row]:
                found[hour, place] = _number(cells, row, name, texts[name][row])
    now = np.array(list(VARIABLES.values()))
    for hour in range(HOURS):
        now = np.where(np.isnan(found[hour]), now, found[hour])
        found[hour] = now
    return found


def _number(cells: Cells, row: int, column: str, text: str) -> float:
    if number := re.match(r"[-+]?\d*\.?\d+", text):
        return float(number.group())
    if text.lower() in _WORDS:
        return float(_WORDS[text.lower()])
    raise cells.wrong(row, column, "a number or a word of the Glasgow coma scale")
