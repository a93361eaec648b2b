"""Numbers as text."""

from __future__ import annotations

import math
from typing import Any

NONE = "–"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: Any, digits: int = 4) -> str:
    """Return a number with `digits` significant digits; infinity as ∞; a dash where there is
    none.
    """
    if value is None or isinstance(value, str | bool):
        return NONE if value is None else "∞" if value == "infinity" else str(value)
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if isinstance(value, int):
        return f"{value:,}"
    whole = abs(value) >= 10**digits and abs(value) < 1e12
    return f"{value:,.0f}" if whole else f"{value:.{digits}g}"


def short(value: Any) -> str:
    """Return a number with three significant digits."""
    return number(value, 3)


def percent(value: Any, digits: int = 2) -> str:
    """Return a share of 1 as a percentage."""
    return NONE if value is None or math.isnan(value) else f"{100 * value:.{digits}f} %"


def known(value: Any) -> bool:
    """Return whether a summary's number is one: null and NaN are none."""
    return value is not None and not math.isnan(value)


def size_unit(largest: float) -> tuple[float, str]:
    """Return the divisor and the name of the binary unit in which `largest` bytes read best."""
    power = min(int(math.log2(largest)) // 10, len(_SIZES) - 1) if largest >= 1 else 0
    return 1024.0**power, _SIZES[power]


def size(count: float | None) -> str:
    """Return a number of bytes in its binary unit; a dash where there is none."""
    if count is None or math.isnan(count):
        return NONE
    whole = round(count)
    divisor, unit = size_unit(whole)
    return f"{whole} B" if unit == "B" else f"{whole / divisor:.2f} {unit}"


def seconds(value: float | None) -> str:
    """Return a duration; above two minutes also in hours, minutes and seconds."""
    if value is None or math.isnan(value):
        return NONE
    if value < 120:
        return f"{number(float(value))} s"
    minutes, rest = divmod(round(value), 60)
    return f"{value:,.0f} s ({minutes // 60}:{minutes % 60:02d}:{rest:02d})"


def duration(value: float) -> str:
    """Return a duration of real time in words, to the second: "12 s", "3 min 05 s", "2 h 10
    min".
    """
    minutes, rest = divmod(round(value), 60)
    if minutes < 1:
        return f"{rest} s"
    return (
        f"{minutes} min {rest:02d} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02d} min"
    )
