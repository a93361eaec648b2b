"""Rows that tell which they are: faults, or releases, whose time or round is a number."""

from pathlib import Path

import pyarrow as pa

import scenarios
from raydpzv.records.checkpoint import Checkpoint
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.run_writer import RunWriter
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.secrets_file import OperatorSecrets
from raydpzv.records.store import Rows


def begun(path: Path) -> RunFolder:
    """The folder of a run that has no rows yet; to be left."""
    return RunWriter.create(
        path / "run", scenarios.load("frozen"), {}, OperatorSecrets(bytes(16), None)
    )


def after(round: int) -> Checkpoint:
    """A checkpoint with nothing in it."""
    return Checkpoint(round, {}, None)


def faults(*numbers: int) -> Rows:
    """All row types; of faults one for each number, in that order."""
    return _rows("fault", [fault(number) for number in numbers])


def fault(number: int) -> dict[str, object]:
    return {
        "time": float(number),
        "party": "host 0",
        "kind": "host lost",
        "message": f"number {number}",
    }


def evaluations(*numbers: int) -> Rows:
    """The same, of evaluations of the test rows."""
    blank = dict.fromkeys(SCHEMAS["evaluation"].names, 0)
    return _rows("evaluation", [blank | {"round": number, "part": "test"} for number in numbers])


def releases(*numbers: int) -> Rows:
    """The same, of releases."""
    blank = dict.fromkeys(SCHEMAS["release"].names, 0)
    words = {field.name: "" for field in SCHEMAS["release"] if pa.types.is_string(field.type)}
    return _rows("release", [blank | words | {"round": number} for number in numbers])


def beside(*several: Rows) -> Rows:
    """Rows of several types in one piece."""
    return {name: pa.concat_tables([rows[name] for rows in several]) for name in SCHEMAS}


def numbers(table: pa.Table) -> list[int]:
    """Which rows these are."""
    column = "time" if "kind" in table.column_names else "round"
    return [int(value) for value in table.column(column).to_pylist()]


def _rows(name: str, given: list[dict[str, object]]) -> Rows:
    return {
        each: pa.Table.from_pylist(given if each == name else [], schema=schema)
        for each, schema in SCHEMAS.items()
    }
