"""Reader for the in-hospital mortality task of the MIMIC-III benchmark.

The benchmark (Harutyunyan et al. 2019, Scientific Data 6:96; github.com/YerevaNN/mimic3-benchmarks) has a folder with
`train` and `test`, each with a listfile.csv (stay,y_true) and one CSV per stay: Hours, then 17 variables, empty where
nothing was measured. MIMIC-III itself is licensed to persons and cannot come along.
"""

# D rows, T hours, F variables

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np

from raydpzv.data.files import missing, one_line, unreadable
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
"""The variables in the benchmark's order and spelling, and the normal value taken before the first measurement."""
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
    """Return x [D, 48, 17], hour by hour, and y [D] (1: died in hospital) of `folder`/train and `folder`/test.

    An hour holds its last measurement, else the hour before it; before the first one the normal value. A value that
    starts with a number is that number; the coma scale's words are its numbers. (The benchmark's own discretiser codes
    words one-hot and adds masks.) Raises DataError.
    """
    folder, home = request.folder, request.home
    lists = [folder / part / "listfile.csv" for part in ("train", "test")]
    if lacking := [f"{path.parent.name}/{path.name}" for path in lists if not path.is_file()]:
        raise missing("the MIMIC-III benchmark", lacking, folder, home)
    return Split(*(_part(path, home) for path in lists))


def _part(listfile: Path, home: str) -> Table:
    rows = _rows(listfile, ("stay", "y_true"), home)
    stays = [_stay(listfile.parent / row["stay"], home) for row in rows]
    labels = [_label(row, listfile) for row in rows]
    if not stays:
        raise DataError(f'"{listfile}" lists no stay: give it rows of stay,y_true')
    return Table(listfile.parent.name, np.stack(stays), np.array(labels), 2)


def _stay(path: Path, home: str) -> np.ndarray:
    """One stay's record, float64 [48, 17]."""
    names = tuple(VARIABLES)
    found = np.full((HOURS, len(names)), np.nan)
    for row in sorted(_rows(path, ("Hours", *names), home), key=lambda row: _number(row["Hours"], path)):
        hour = int(np.floor(_number(row["Hours"], path)))
        for place, name in enumerate(names):
            if 0 <= hour < HOURS and (row[name] or "").strip():
                found[hour, place] = _number(row[name], path)
    now = np.array(list(VARIABLES.values()))
    for hour in range(HOURS):
        now = np.where(np.isnan(found[hour]), now, found[hour])
        found[hour] = now
    return found


def _rows(path: Path, wanted: tuple[str, ...], home: str) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            lacking = [name for name in wanted if name not in (reader.fieldnames or ())]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise unreadable(path, error, home) from error
    if lacking:
        raise DataError(one_line(f'"{path}" has no column {", ".join(lacking)}: get it again from {home}'))
    return rows


def _number(text: str, path: Path) -> float:
    if number := re.match(r"\s*[-+]?\d*\.?\d+", text):
        return float(number.group())
    if text.strip().lower() in _WORDS:
        return float(_WORDS[text.strip().lower()])
    raise DataError(
        one_line(f'"{path}" has the value "{text}": wanted a number or a word of the Glasgow coma scale')
    )


def _label(row: dict[str, str], path: Path) -> int:
    if row["y_true"] not in ("0", "1"):
        raise DataError(one_line(f'"{path}" has y_true "{row["y_true"]}" for {row["stay"]}: wanted 0 or 1'))
    return int(row["y_true"])
