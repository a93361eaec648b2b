"""Cells that are names: ids, users, silos, groups, categories and classes. They are text, whatever
they look like.

As numbers "7" and "007" would be one name, and so would ids of 20 digits that differ in the last.
"""

# D rows

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from raydpzv.data.files import one_line
from raydpzv.data.spelling import in_order, likeness, shown
from raydpzv.errors import DataError

_BYTES = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
_DIGITS = 100
"""More than a decimal of Arrow has."""
_EXACT = {16: 2**11, 32: 2**24, 64: 2**53}
"""Below this floating-point numbers of so many bits hold every whole number apart."""


def texts_of(column: pa.ChunkedArray, where: str, *, owners: bool = False) -> pa.DictionaryArray:
    """Return a column's cells as texts, each different one once in the dictionary; gaps are null.

    A number's text follows from the number, and not from the column's type, which one cell may
    decide: 1.50 is "1.5", and 7.0 is "7". where: the column in words; owners: whose a row is, which
    no number with a fraction says. Raises DataError for cells of a type that no text stands for,
    and for floating-point numbers so large that two whole ones may have become one.
    """
    found = column.combine_chunks()
    if types.is_dictionary(found.type):
        found = found.dictionary_decode()
    if types.is_floating(found.type):
        found = pc.if_else(pc.is_nan(found), None, found)
        found = _whole(found, where) if owners else _checked(found, where)
    if types.is_floating(found.type) or types.is_decimal(found.type):
        found = _written(found)
    if types.is_timestamp(found.type):  # its text follows from its unit
        raise DataError(f"{where} has the type {found.type}, which is no text: write texts")
    if any(kind(found.type) for kind in _BYTES):
        found = pa.array([None if cell is None else cell.hex() for cell in found.to_pylist()])
    try:
        return found.cast(pa.string()).dictionary_encode()
    except pa.ArrowException as error:
        raise DataError(
            f"{where} has the type {found.type}, which is no text ({one_line(error)}): write texts"
        ) from None


def _written(numbers: pa.Array) -> pa.Array:
    encoded = numbers.dictionary_encode()
    with localcontext(prec=_DIGITS):
        texts = [
            format(Decimal(str(value)).normalize() + 0, "f")
            for value in encoded.dictionary.to_pylist()
        ]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _whole(numbers: pa.Array, where: str) -> pa.Array:
    """Return floats as the whole numbers that they are. Raises DataError."""
    return pc.cast(_checked(numbers, where, whole=True), pa.int64())


def _checked(numbers: pa.Array, where: str, *, whole: bool = False) -> pa.Array:
    """Return floats. Raises DataError for one of which the type does not hold each whole number,
    and if they have to be `whole` for a fraction.
    """
    cells = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
    most = _EXACT[numbers.type.bit_width]
    fraction = (np.floor(cells) != cells) & whole
    wrong = np.flatnonzero(~np.isnan(cells) & (fraction | (np.abs(cells) >= most)))
    if wrong.size:
        row = int(wrong[0])
        raise DataError(
            f"{where} has the floating-point number {float(cells[row])!r} in row {row} (counted from 0): "
            f"wanted texts or whole numbers below {most}, above which two may be one number; "
            "write them as text"
        )
    return numbers


def numbers_of(texts: pa.DictionaryArray, *, natural: bool) -> tuple[np.ndarray, int]:
    """Return each cell's place among the different texts in sorted order, float64 [D], NaN for a
    gap, and how many there are.

    natural: whole numbers in the order of numbers, if all are; else texts are sorted as such.
    """
    values = texts.dictionary.to_pylist()
    order = in_order(values) if natural else sorted(values)
    place = {text: number for number, text in enumerate(order)}
    places = np.array([*(place[text] for text in values), np.nan])
    return places[texts.indices.fill_null(-1).to_numpy(zero_copy_only=False)], len(values)


def lookalikes(texts: pa.DictionaryArray, where: str) -> str:
    """Return a sentence on two names of a column that differ by blanks or case alone; "" for none.

    Letters that Unicode writes in several ways count as alike too. where: the column in words.
    """
    known: dict[str, str] = {}
    for text in texts.dictionary.to_pylist():
        first = known.setdefault(likeness(text), text)
        if first != text:
            rows = {each: first_row(texts, each) for each in (first, text)}
            return (
                f"{where} has {shown(text)} in row {rows[text]} and {shown(first)} in row "
                f"{rows[first]} (counted from 0), which differ by blanks or case alone; mend the "
                "cells if they are one"
            )
    return ""


def first_row(texts: pa.DictionaryArray, text: str) -> int:
    """Return the first row, counted from 0, that has one of a column's texts."""
    place = texts.dictionary.index(text).as_py()
    return int(pc.index(texts.indices, pa.scalar(place, texts.indices.type)).as_py())
