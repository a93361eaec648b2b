"""Draws of test and validation rows, and limits on the rows that are used.

The stratified draw is scikit-learn's `train_test_split(..., stratify=y)` to the bit (a test
compares them), written out because importing `sklearn.model_selection` takes two seconds of CPU,
and so that no release of theirs moves a recorded run. Rows that belong together, such as one
patient's, can stay on one side.
"""

# D rows, G groups, K classes that occur

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raydpzv.data.table import Split, Table
from raydpzv.errors import DataError, SpecError
from raydpzv.keys import Key


def hold_out(
    table: Table, fraction: float, key: Key, how: str = "stratified", part: str = "test"
) -> tuple[Table, Table]:
    """Return a table without and with the rows that are held out: a fraction of its rows, or of its
    groups.

    how: "stratified", every class in (nearly) the same proportion on both sides, or "plain", by a
    permutation of the rows' numbers, or the groups', whatever the labels are. Groups stay whole.
    part: what the rows are for. Raises SpecError for a fraction outside (0, 1), DataError where a
    class has too few rows or groups to appear on both sides, or no row is left to train on.
    """
    if not 0 < fraction < 1:
        raise SpecError(
            f"{part}_fraction is {fraction}: choose a number between 0 and 1, such as 0.2"
        )
    if how == "plain":
        drawn = _plain_rows(table, fraction, key, part)
    else:
        seed = (key / "stratified split").seed64() % 2**32  # scikit-learn takes 32-bit seeds
        if table.groups is None:
            found = stratified_rows(table.y, fraction, seed)
        else:
            found = grouped_rows(table.y, table.groups, fraction, seed)
        if found is None:
            raise _too_few(table, fraction, part)
        drawn = found
    return table.select(drawn[0]), table.select(drawn[1])


def with_validation(split: Split, fraction: float, key: Key, how: str = "stratified") -> Split:
    """Return the same with a fraction of the training rows held out for validation, as `hold_out`
    does; 0: none.
    """
    if fraction == 0:
        return split
    train, validation = hold_out(split.train, fraction, key, how, "validation")
    return Split(train, split.test, validation)


def _plain_rows(
    table: Table, fraction: float, key: Key, part: str
) -> tuple[np.ndarray, np.ndarray]:
    units = table.rows if table.groups is None else len(np.unique(table.groups))
    held_out = math.ceil(fraction * units)
    if held_out == units:
        unit = "rows" if table.groups is None else "groups"
        raise DataError(
            f'"{table.name}" has {units} {unit}, and {part}_fraction {fraction} leaves none to '
            f"train on: add {unit} or "
            "change it"
        )
    order = (key / "plain split").generator().permutation(units)
    if table.groups is None:
        return order[held_out:], order[:held_out]
    tested = np.isin(np.unique(table.groups, return_inverse=True)[1], order[:held_out])
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def check_both_classes(split: Split) -> None:
    """Raise DataError for test or validation rows of one class where there are two.

    They have no AUC, and a constant is always right.
    """
    for part, table, settings in (
        ("test", split.test, "data.test_rows, data.test_fraction"),
        ("validation", split.validation, "data.validation_fraction"),
    ):
        # of survival times all may be events
        if table is None or table.times is not None or table.classes != 2:
            continue
        if len(found := np.unique(table.y)) == 1:
            raise DataError(
                f'the {table.rows} {part} rows of "{table.name}" hold class {found[0]} alone of '
                "two: wanted both, "
                "without which there is no AUC and a constant prediction is always right; give "
                f"more of them ({settings}) or others"
            )


@dataclass(frozen=True)
class Limits:
    """At most so many training and test rows (None: all), drawn at random, stratified or ("plain")
    not.

    Stratified, every class keeps its proportional share within one row; every row has the same
    chance. The draw needs the labels alone, so that a source with many rows can choose before it
    reads their features.
    """

    train_rows: int | None
    test_rows: int | None
    key: Key
    how: str = "stratified"

    def train(self, labels: np.ndarray, classes: int, name: str) -> np.ndarray | None:
        """Return the training rows to keep, ascending, None for all; SpecError for fewer than
        classes.
        """
        return self._chosen(labels, classes, name, "train")

    def test(self, labels: np.ndarray, classes: int, name: str) -> np.ndarray | None:
        """Return the test rows to keep, ascending, None for all; SpecError for fewer than
        classes.
        """
        return self._chosen(labels, classes, name, "test")

    def _chosen(self, labels: np.ndarray, classes: int, name: str, part: str) -> np.ndarray | None:
        rows, key = (
            self.train_rows if part == "train" else self.test_rows,
            self.key / "limit" / part,
        )
        if rows is None or rows >= len(labels):
            return None
        if self.how == "plain":
            return np.sort(key.generator().permutation(len(labels))[:rows])
        return _by_class(labels, classes, name, rows, f"{part}_rows", key)


def limit(
    split: Split, train_rows: int | None, test_rows: int | None, key: Key, how: str = "stratified"
) -> Split:
    """Return at most so many training and test rows in the table's order; see `Limits`."""
    limits, train, test = Limits(train_rows, test_rows, key, how), split.train, split.test
    keep_train = limits.train(train.y, train.classes, train.name)
    keep_test = limits.test(test.y, test.classes, test.name)
    return Split(
        train if keep_train is None else train.select(keep_train),
        test if keep_test is None else test.select(keep_test),
    )


def stratified_rows(
    labels: np.ndarray, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of the training and of the test rows; None if a class would be missing on
    either side.

    labels: int [D]; test_fraction: in (0, 1); seed: 32 bits.
    """
    _, kinds_D, counts_K = np.unique(labels, return_inverse=True, return_counts=True)
    held_out = math.ceil(test_fraction * len(labels))
    kept = len(labels) - held_out
    if counts_K.min() < 2 or min(kept, held_out) < len(counts_K):
        return None
    rows_of = np.split(np.argsort(kinds_D, kind="stable"), np.cumsum(counts_K)[:-1])
    # the legacy generator is the one scikit-learn draws from; numpy has frozen its stream (NEP 19)
    rng = np.random.RandomState(seed)
    train_K = _shares(counts_K, kept, rng)
    test_K = _shares(counts_K - train_K, held_out, rng)
    if not (train_K.all() and test_K.all()):
        return None
    train, test = [], []
    for rows, of_train, of_test in zip(rows_of, train_K, test_K, strict=True):
        shuffled = rows[rng.permutation(len(rows))]
        train.append(shuffled[:of_train])
        test.append(shuffled[of_train : of_train + of_test])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))


def _shares(counts_K: np.ndarray, draws: int, rng: np.random.RandomState) -> np.ndarray:
    """Return how many of the draws each class gets, int [K]: its proportion, the largest remainders
    rounded up.
    """
    exact_K = counts_K / counts_K.sum() * draws
    shares_K = np.floor(exact_K)
    remainders_K = exact_K - shares_K
    left = int(draws - shares_K.sum())
    for remainder in np.unique(remainders_K)[::-1]:
        if left == 0:
            break
        tied = np.flatnonzero(remainders_K == remainder)
        chosen = rng.choice(tied, size=min(len(tied), left), replace=False)
        shares_K[chosen] += 1
        left -= len(chosen)
    return shares_K.astype(np.int64)


def grouped_rows(
    labels: np.ndarray, groups: np.ndarray, test_fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the numbers of the training and of the test rows, each ascending; None if a class is
    missing on a side.

    labels, groups: int [D]; test_fraction: of the groups, in (0, 1); seed: 32 bits. Where every
    group has one class the draw of groups is stratified by it, as `stratified_rows` does it; groups
    of several classes are drawn as they come.
    """
    group_D = np.unique(groups, return_inverse=True)[1]
    count = int(group_D.max()) + 1
    lowest_G, highest_G = np.full(count, labels.max()), np.full(count, labels.min())
    np.minimum.at(lowest_G, group_D, labels)
    np.maximum.at(highest_G, group_D, labels)
    if np.array_equal(lowest_G, highest_G):
        drawn = stratified_rows(lowest_G, test_fraction, seed)
    else:
        order = np.random.RandomState(seed).permutation(
            count
        )  # the generator of the stratified draw
        held_out = math.ceil(test_fraction * count)
        drawn = order[held_out:], order[:held_out]
    if drawn is None:
        return None
    tested_D = np.isin(group_D, drawn[1])
    complete = all(
        len(np.unique(labels[side])) == len(np.unique(labels)) for side in (~tested_D, tested_D)
    )
    return (np.flatnonzero(~tested_D), np.flatnonzero(tested_D)) if complete else None


def _by_class(
    labels: np.ndarray, classes: int, name: str, rows: int, setting: str, key: Key
) -> np.ndarray:
    """Systematic sampling along the rows sorted by class: equally spaced places from a random
    start.
    """
    if rows < classes:
        raise SpecError(
            f'{setting} is {rows}, fewer than the {classes} classes of "{name}": ask for at least '
            f"{classes} rows, or "
            "none for all"
        )
    generator = key.generator()
    order = generator.permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    places = (np.arange(rows) + generator.random()) * (len(labels) / rows)
    return np.sort(by_class[places.astype(np.int64)])


def _too_few(table: Table, fraction: float, part: str) -> DataError:
    labels, counts = np.unique(table.y, return_counts=True)
    unit, total = "rows", table.rows
    if table.groups is not None:
        unit, total = "groups", len(np.unique(table.groups))
        counts = np.array([len(np.unique(table.groups[table.y == label])) for label in labels])
    least = int(np.argmin(counts))
    return DataError(
        f'class {labels[least]} of "{table.name}" has {counts[least]} of {total} {unit} '
        f"({len(labels)} "
        f"classes), too few to appear in training and {part} rows with {part}_fraction {fraction}: "
        f"add {unit}, drop the class or change {part}_fraction"
    )
