"""Medians of runs, made only as far as the answer needs."""

from collections.abc import Iterable


def median_reaches(least: float, values: Iterable[float], count: int) -> bool:
    """Tell whether the median of `count` values, an odd number, is at least `least`: as soon as
    most of them agree.

    values: lazily made, so that those no longer needed are not.
    """
    assert count % 2
    above = below = 0
    for value in values:
        above, below = above + (value >= least), below + (not value >= least)
        if 2 * max(above, below) > count:
            return above > below
    raise ValueError(f"wanted {count} values, got {above + below}")
