"""The table [data] of a scenario: where rows come from, and how they are read, cut and scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from raydpzv.registry import DATA_SOURCES
from raydpzv.settings.bounds import Count, Fraction, FractionOrNone
from raydpzv.settings.fields import (
    Categories,
    Classes,
    Confirmed,
    Dates,
    Label,
    Missing,
    Named,
    OneLabel,
    Options,
    PerColumn,
    PerColumnPositive,
    Section,
    Separator,
    Target,
)


class DataSection(Section):
    """Where the rows come from."""

    source: Annotated[str, Named(DATA_SOURCES)] = "digits"
    """Data set, one of `raydpzv list`; or your own, "module:attribute"."""
    options: Options | None = None
    """Arguments of your own function that returns the data."""
    folder: str | None = None
    """Folder with the data set's files (mnist, fashion_mnist, cifar10, mimic3, amazon_polarity,
    creditcard, heart_disease, tcga_brca); see docs/data.md."""
    file: str | None = None
    """Table or array file (csv, parquet, survival, multiview, tokens); counts from the scenario
    file's folder.
    """
    target: Target | None = None
    """Column with the label (csv, parquet), or a list of columns of numbers; of survival times,
    whether one is an event (1, or 0 for censored)."""
    time: str | None = None
    """Column of survival times (survival), numbers that are 0 or more."""
    groups: str | None = None
    """Column of which equal values (one patient's rows) stay on one side of every split of
    training, validation and test rows; no feature (csv, parquet). Horizontal clients share out the
    training rows one by one all the same."""
    skip_lines: Count | None = None
    """Lines of the file before its heading (csv)."""
    separator: Separator | None = None
    """What stands between cells (csv), such as ";" or a tab; left out: a comma."""
    decimal: Literal[".", ","] | None = None
    """What stands before the fraction of a number (csv); left out: a point."""
    dates: Dates | None = None
    """Columns of dates (csv, parquet), each with a public day, {joined = "2020-01-01"}: a cell
    counts as the days since then. Written as 2020-12-31, 2020-12-31 18:30 or 31.12.2020; times of
    a zone count as UTC's."""
    categories: Categories | None = None
    """Columns of categories (csv, parquet), each of which becomes a column of 0 and 1 for every
    value: a table of each column's values, which proofs need, such as {city = ["Oslo", "Rome"]}; or
    a list of columns, whose values are read off the training rows (one that these do not have, or
    none, is 0 in all of them)."""
    other: OneLabel | None = None
    """The value of `classes`, or of a column's list in `categories`, that each value outside the
    list counts as; where a list does not have it, and where it is left out, values outside are
    refused."""
    confirmed: Confirmed | None = None
    """What was read off the data and you confirm as public knowledge all the same: constants
    (`raydpzv new --public-from-data` names them), or "ids", which records all parties have
    (`vertical(ids=...)`). The verdict says so."""
    missing: Missing | None = None
    """Empty cells of features (csv, parquet, your own arrays with names). A table has a public
    constant for each column that may have them, {age = 40, region = "other"}; a category's is a
    value of its list, a date's a date or days. "mean": of numbers the mean of the training rows,
    and a category is 0 in all its columns, so that no ε is proved. "refuse", or left out: none."""
    test_fraction: Fraction = 0.2
    """Share of the rows (with `groups`: of the groups) held out for the test, drawn as `split`
    says; ignored where the data set has its own test rows."""
    validation_fraction: FractionOrNone | None = None
    """Share of the training rows (with `groups`: of their groups) held out to choose the best of a
    run's models by, drawn as `split` says; left out or 0: none. Test rows choose nothing."""
    split: Literal["stratified", "plain"] = "stratified"
    """How held-out rows, train_rows and test_rows are drawn: by class, or without a look at labels,
    as proofs need.
    """
    scale: Literal["standard", "unit", "none", "public"] = "standard"
    """Fitted on the training rows (mean 0 and deviation 1, or the range [0, 1]), so that no ε is
    proved; none; or by public constants, (x - centre) / spread. Token ids are never scaled."""
    centre: PerColumn | None = None
    """Subtracted by "public" scaling: one number, one per column (of images: channel, or pixel), or
    a table by column name, {age = 50}, which leaves other columns as they are. Known without the
    data."""
    spread: PerColumnPositive | None = None
    """What "public" scaling divides by, in the same forms as `centre`. Known without the data."""
    train_rows: Count | None = None
    """Use only so many training rows, drawn as `split` says."""
    test_rows: Count | None = None
    """Use only so many test rows, drawn as `split` says."""
    rows: Count = 1000
    """Rows of the synthetic data sets; of synthetic_clients, those of all clients and the held-out
    ones.
    """
    columns: Count = 16
    """Columns of the synthetic data sets, or variables of the time series."""
    classes: Classes = 2
    """The labels of your own data (csv, parquet, multiview, tokens), numbered as listed, such as
    ["ill", "well"]; proofs need the list, and without it labels are numbered by those that occur. A
    number: classes of the synthetic data sets."""
    steps: Annotated[int, Field(ge=1, le=100_000)] = 24
    """Time steps of the synthetic time series."""
    tokens: Annotated[int, Field(ge=1, le=100_000)] = 192
    """Length of a text in tokens (amazon_polarity, synthetic_reviews): longer texts are cut,
    shorter ones padded.
    """
    vocabulary: Annotated[int, Field(ge=2, le=2**24)] = 30_522
    """Token ids, 0 (padding) to one less; words are hashed to them, the source "tokens" has its
    own. BERT's number.
    """

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns with labels."""
        return (self.target,) if isinstance(self.target, str) else self.target or ()

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The public list of labels; None where there is none."""
        return None if isinstance(self.classes, int) else self.classes

    @property
    def generated_classes(self) -> int:
        """How many classes generated data have."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def constants(self) -> Mapping[str, Label | float]:
        """What an empty cell counts as, by column."""
        return self.missing if isinstance(self.missing, Mapping) else {}

    @property
    def category_columns(self) -> tuple[str, ...]:
        """Columns of categories, in either form."""
        return tuple(self.categories or ())

    @property
    def public_categories(self) -> Mapping[str, tuple[Label, ...]]:
        """The values of each column of categories that are known without the data."""
        return self.categories if isinstance(self.categories, Mapping) else {}
