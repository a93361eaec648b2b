"""The data sets by name: what each is, what it needs, where to get it, and how to load it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raydpzv.data import builtin, cifar, idx, multiview, reviews, series, tabular
from raydpzv.data import text as texts
from raydpzv.data.builtin import Mixture
from raydpzv.data.table import Limits, Split, Table, stratified_split
from raydpzv.data.text import Text
from raydpzv.errors import SpecError, suggest
from raydpzv.keys import Key


@dataclass(frozen=True)
class Request:
    """What a source is asked for; `folder`, `file` and `target` as far as the source needs them."""

    name: str
    folder: Path
    file: Path
    target: str
    test_fraction: float
    key: Key
    mixture: Mixture
    text: Text
    limits: Limits


@dataclass(frozen=True)
class Source:
    """A data set: a line about it, where it comes from, and what it `needs` of folder, file and target.

    tokens: its rows are token ids, for models that embed tokens.
    """

    about: str
    home: str
    read: Callable[[Request], Split]
    needs: tuple[str, ...] = ()
    tokens: bool = False


def load(
    name: str,
    folder: Path | None = None,
    *,
    file: Path | None = None,
    target: str | None = None,
    test_fraction: float,
    key: Key,
    mixture: Mixture | None = None,
    text: Text | None = None,
    limits: Limits | None = None,
) -> Split:
    """Return the training and test rows of the data set `name` (see SOURCES), unscaled.

    An official test set is used where there is one; else `test_fraction` of the rows is drawn, stratified by
    class. `mixture` shapes the synthetic data, `text` the rows of texts. `limits` are kept by the sources that are too
    large to be read whole, with the rows that `table.limit` would leave; the others do not look at them. Raises
    SpecError for an unknown name and for settings that are missing or do not belong, DataError for files that are
    missing or malformed.
    """
    if name not in SOURCES:
        raise SpecError(f'data set "{name}" is unknown. {suggest(name, SOURCES)}Choose {", ".join(SOURCES)}')
    _check_settings(name, {"folder": folder, "file": file, "target": target})
    request = Request(
        name,
        folder or Path(),
        file or Path(),
        target or "",
        test_fraction,
        key,
        mixture or Mixture(),
        text or Text(),
        limits or Limits(None, None, key),
    )
    return SOURCES[name].read(request)


def _check_settings(name: str, given: dict[str, Path | str | None]) -> None:
    source = SOURCES[name]
    for setting, value in given.items():
        if setting in source.needs and not value:
            raise SpecError(f'data set "{name}" needs a {setting}: give one. It comes from {source.home}')
        if value and setting not in source.needs:
            takes = " and ".join(source.needs) or "none of folder, file and target"
            raise SpecError(
                f'data set "{name}" takes no {setting}, "{value}" was given: leave it out; it takes {takes}'
            )


def _drawn(read: Callable[[Request], Table]) -> Callable[[Request], Split]:
    """A source without a test set of its own."""

    def split(request: Request) -> Split:
        return stratified_split(read(request), request.test_fraction, request.key)

    return split


def _idx(request: Request) -> Split:
    return idx.read_folder(request.name, request.folder, SOURCES[request.name].home)


SOURCES: dict[str, Source] = {
    "digits": Source(
        "1,797 handwritten digits of 8 x 8 pixels",
        "scikit-learn, which brings it along",
        _drawn(lambda request: builtin.digits()),
    ),
    "breast_cancer": Source(
        "569 cases with 30 measurements, benign or malignant",
        "scikit-learn, which brings it along",
        _drawn(lambda request: builtin.breast_cancer()),
    ),
    "wine": Source(
        "178 wines of three growers with 13 measurements",
        "scikit-learn, which brings it along",
        _drawn(lambda request: builtin.wine()),
    ),
    "mnist": Source(
        "70,000 handwritten digits of 28 x 28 pixels",
        "the MNIST database by LeCun, Cortes and Burges (yann.lecun.com/exdb/mnist)",
        _idx,
        ("folder",),
    ),
    "fashion_mnist": Source(
        "70,000 pictures of clothes of 28 x 28 pixels, ten kinds",
        "the Fashion-MNIST project by Zalando Research (github.com/zalandoresearch/fashion-mnist)",
        _idx,
        ("folder",),
    ),
    "cifar10": Source(
        "60,000 colour pictures of 32 x 32 pixels, ten kinds",
        "the CIFAR-10 data set by Krizhevsky, Nair and Hinton, binary version "
        "(www.cs.toronto.edu/~kriz/cifar.html)",
        lambda request: cifar.read_folder(request.folder, SOURCES["cifar10"].home),
        ("folder",),
    ),
    "csv": Source(
        "your own table: numeric features and a target column, with a heading line",
        "your own data, one record a line",
        _drawn(lambda request: tabular.read_csv(request.file, request.target)),
        ("file", "target"),
    ),
    "parquet": Source(
        "your own table: numeric features and a target column",
        "your own data, one record a row",
        _drawn(lambda request: tabular.read_parquet(request.file, request.target)),
        ("file", "target"),
    ),
    "multiview": Source(
        "your own objects seen from several sides: x [D, V, ...] and y [D] in an .npz archive",
        "your own data, or views rendered from Princeton's ModelNet (modelnet.cs.princeton.edu)",
        lambda request: multiview.read_npz(request.file, request.test_fraction, request.key),
        ("file",),
    ),
    "synthetic": Source(
        "a Gaussian mixture generated from the seed, in the size asked for",
        "nowhere: it is generated",
        _drawn(lambda request: builtin.synthetic(request.mixture, request.key)),
    ),
    "mimic3": Source(
        "time series of intensive care, 48 hours of 17 variables: who died in hospital",
        "the MIMIC-III benchmark's in-hospital-mortality folder (github.com/YerevaNN/mimic3-benchmarks), made from "
        "MIMIC-III (physionet.org, licensed to persons)",
        lambda request: series.read_mimic3(request.folder, SOURCES["mimic3"].home),
        ("folder",),
    ),
    "synthetic_series": Source(
        "time series whose frequency is their class, generated from the seed in the size asked for",
        "nowhere: it is generated",
        _drawn(lambda request: series.synthetic_series(request.mixture, request.key)),
    ),
    "amazon_polarity": Source(
        "4,000,000 reviews, negative or positive, their words hashed to token ids",
        "the Amazon Review Polarity set by Zhang, Zhao and LeCun, amazon_review_polarity_csv "
        "(github.com/zhangxiangxiao/Crepe), or in fastText's form (kaggle.com/datasets/bittlingmayer/amazonreviews)",
        lambda request: reviews.read_folder(
            request.folder, request.text, request.limits, SOURCES["amazon_polarity"].home
        ),
        ("folder",),
        tokens=True,
    ),
    "tokens": Source(
        "your own texts as token ids of any tokenizer: x [D, L] (0: padding) and y [D] in an .npz archive",
        "your own data",
        lambda request: texts.read_npz(request.file, request.text, request.test_fraction, request.key),
        ("file",),
        tokens=True,
    ),
    "synthetic_reviews": Source(
        "texts with words that tell their class, generated from the seed in the size asked for",
        "nowhere: it is generated",
        _drawn(lambda request: texts.synthetic_reviews(request.mixture, request.text, request.key)),
        tokens=True,
    ),
}
"""Every data set by its name in a scenario."""
