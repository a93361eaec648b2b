import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from raydpzv.config.catalog import load
from raydpzv.config.scenario import AnyScenario
from raydpzv.data.generated import GeneratedSplit, GeneratedTable, synthetic_clients
from raydpzv.data.horizontal import EvenParts
from raydpzv.data.table import Table
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.prepare import prepare
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.registry import DATA_SOURCES
from tests.helpers.loading import refusal, request

KEY = Key(3)
SMALL = ("data.rows=1230", "data.test_fraction=0.1", "split.clients=100")


def spec_of(*overrides: str) -> AnyScenario:
    return load("decomfl_10m", [*SMALL, *overrides])


def made(*overrides: str, key: Key = KEY) -> GeneratedSplit:
    spec = spec_of(*overrides)
    return synthetic_clients(spec.data, spec.split, key)


def all_rows(table: GeneratedTable) -> tuple[np.ndarray, np.ndarray]:
    return table.rows_at(np.arange(table.parts.total))


@pytest.mark.parametrize(("clients", "total"), [(1, 1), (1, 9), (4, 4), (5, 12), (7, 70), (6, 71)])
def test_even_parts_share_out_every_row_once_and_know_its_owner(clients: int, total: int) -> None:
    parts = EvenParts(clients, total)
    mine = [parts.rows(client) for client in range(clients)]
    assert np.concatenate(mine).tolist() == list(range(total))
    assert parts.sizes.tolist() == [len(rows) for rows in mine]
    assert np.ptp(parts.sizes) <= 1
    owners, places = parts.owners(np.arange(total))
    assert owners.tolist() == [client for client, rows in enumerate(mine) for _ in rows]
    assert places.tolist() == [place for rows in mine for place in range(len(rows))]
    for outside in (-1, clients):
        with pytest.raises(InputError, match=f"no client {outside}"):
            parts.rows(outside)


def test_a_row_is_the_same_whoever_asks_and_with_whatever_others() -> None:
    table = made().train
    x, y = all_rows(table)
    assert (x.dtype, x.shape, y.dtype) == (np.float32, (1107, 16), np.int64)
    some = np.array([1106, 3, 500, 501, 3])
    again_x, again_y = made().train.rows_at(some)
    assert np.array_equal(again_x, x[some])
    assert np.array_equal(again_y, y[some])
    own_x, own_y = table.of_client(8)
    assert np.array_equal(own_x, x[table.parts.rows(8)])
    assert np.array_equal(own_y, y[table.parts.rows(8)])
    assert len(np.unique(x, axis=0)) == len(x), "no two clients draw the same rows"
    assert not np.array_equal(all_rows(made(key=Key(4)).train)[0], x)
    for outside in (-1, 1107):
        with pytest.raises(InputError, match=f"no row {outside}"):
            table.rows_at(np.array([0, outside]))


def test_rows_are_the_mixture_of_the_source_that_keeps_them() -> None:
    """Unit covariance about each centre, equal classes that come as chance has it; held-out rows
    alike.
    """
    split = made("data.rows=40000", "data.columns=3", 'data.scale="none"')
    centres = split.train.gaussians.centres
    for x, y in (all_rows(split.train), split.test.arrays):
        for label, centre in enumerate(centres):
            cloud = x[y == label]
            np.testing.assert_allclose(cloud.mean(0), centre, atol=5 / np.sqrt(len(cloud)))
            np.testing.assert_allclose(np.cov(cloud.T), np.eye(3), atol=8 / np.sqrt(len(cloud)))
        assert stats.chisquare(np.bincount(y)).pvalue > 0.001
    assert np.abs(centres - centres[0]).max() > 0.5, "a control: the classes lie apart"
    owners, _ = split.train.parts.owners(np.arange(split.train.parts.total))
    counts = stats.contingency.crosstab(owners, all_rows(split.train)[1]).count
    assert 0.001 < stats.chi2_contingency(counts).pvalue < 0.999


def test_standard_scaling_is_what_scaling_many_rows_comes_to() -> None:
    def moments(scale: str) -> tuple[np.ndarray, np.ndarray]:
        x, _ = all_rows(made("data.rows=40000", f'data.scale="{scale}"').train)
        return x.mean(0), x.std(0)

    mean, deviation = moments("standard")
    np.testing.assert_allclose(mean, 0, atol=5 / np.sqrt(36_000))
    np.testing.assert_allclose(deviation, 1, atol=5 / np.sqrt(2 * 36_000))
    assert np.abs(moments("none")[1] - 1).max() > 0.1


def test_public_scaling_is_what_scaling_the_rows_comes_to() -> None:
    sizes = ("data.rows=4000", "data.columns=3")
    raw, _ = all_rows(made(*sizes, 'data.scale="none"').train)
    public = ('data.scale="public"', "data.centre=[1, 2, 3]", "data.spread=4")
    done, _ = all_rows(made(*sizes, *public).train)
    np.testing.assert_allclose(done, (raw - np.array([1, 2, 3])) / 4, atol=1e-6)
    with pytest.raises(SpecError, match=r"data\.centre: wanted one number or 3, .* got 2"):
        made(*sizes, *public, "data.centre=[1, 2]")


@pytest.mark.parametrize("alpha", [0.3, 5.0])
def test_dirichlet_clients_have_the_moments_of_their_law(alpha: float) -> None:
    """Dir(α p), then a multinomial: variance p(1 - p)(n + α) / (n (1 + α)) of a class's share."""
    sizes = (
        "data.rows=44445",
        "split.clients=2000",
        'split.how="dirichlet"',
        f"split.alpha={alpha}",
    )
    table = made(*sizes).train
    n = table.parts.total // 2000
    shares = np.array([np.bincount(table.of_client(m)[1], minlength=4) for m in range(2000)]) / n

    def fits(alpha: float) -> bool:
        wanted = 3 / 16 * (n + alpha) / (n * (1 + alpha))
        return bool(np.abs(shares.var(0) / wanted - 1).max() < 0.12)

    assert fits(alpha)
    assert not fits(2 * alpha)
    assert not fits(alpha / 2)
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=0.04)


def test_the_least_concentration_gives_every_client_one_class() -> None:
    table = made('split.how="dirichlet"', "split.alpha=1e-6").train
    kinds = [np.unique(table.of_client(client)[1]).tolist() for client in range(100)]
    assert {len(kind) for kind in kinds} == {1}
    assert {kind[0] for kind in kinds} == {0, 1, 2, 3}


def test_rows_are_cut_to_what_is_asked_for() -> None:
    split = made("data.train_rows=300", "data.test_rows=40")
    assert (split.train.parts.total, split.test.rows) == (300, 40)
    assert np.ptp(np.bincount(split.test.y)) == 0


def test_the_datas_digest_follows_everything_that_rows_follow_from() -> None:
    def digest(*overrides: str) -> str:
        digest: str = prepare_horizontal(spec_of(*overrides)).fingerprint(b"")["data_hmac_sha256"]
        return digest

    changes = (
        "seed=1",
        "data.rows=1300",
        "split.clients=99",
        'split.how="dirichlet"',
        'data.scale="none"',
    )
    digests = [digest(), *map(digest, changes)]
    assert digest() == digests[0]
    assert len(set(digests)) == len(digests)


def test_a_generator_that_draws_otherwise_changes_the_digest() -> None:
    table = made().train
    other = dataclasses.replace(table, key=KEY / "other")
    witnesses = table.arrays[4:], other.arrays[4:]
    assert [a.shape for a in witnesses[0]] == [(12, 16), (12,), (11, 16), (11,)]
    assert not np.array_equal(witnesses[0][0], witnesses[1][0])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (('split.how="dirichlet"', 'split.sizes="drawn"'), 'sizes = "equal"'),
        (('data.scale="unit"',), '"standard" or "none"'),
        (("split.clients=1108",), "1107 rows cannot give 1108 clients 1 each"),
        (("data.rows=10_000_000", "data.columns=1000"), "set data.test_rows"),
        (("data.test_rows=3",), r"wanted 4 \(data.classes\)"),
        (
            ("data.columns=100_000", "split.clients=10", "data.rows=100_000"),
            "at most 268,435,456 numbers",
        ),
        (('split.how="dirichlet"', "split.alpha=1e7"), "alpha is 10000000"),
        (('data.folder="somewhere"',), "takes no folder"),
        (('data.groups="who"',), "takes no groups"),
        (("data.validation_fraction=0.1",), "data.validation_fraction: wanted none"),
    ],
)
def test_what_would_need_all_rows_at_once_is_refused(
    overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SpecError, match=words):
        prepare_horizontal(spec_of(*overrides))


def test_vertical_methods_are_pointed_to_the_source_that_keeps_its_rows() -> None:
    spec = load("digits_dpzv", ["data.source=synthetic_clients", 'split.how="columns"'])
    with pytest.raises(SpecError, match='for horizontal methods; use "synthetic"'):
        prepare(spec)


def test_ten_million_clients_cost_a_few_bytes_each() -> None:
    tracemalloc.start()
    try:
        prepared = prepare_horizontal(load("decomfl_10m"))
        with Ledger.create(None, prepared.plan.header()) as ledger:
            server = prepared.server(ledger)
            (*_, last) = server.first_orders()
            assert tracemalloc.get_traced_memory()[0] < 5 * 10**7
    finally:
        tracemalloc.stop()
    assert last.client > 10**6
    x, y = prepared.split.train.of_client(9_999_999)
    assert (x.shape, y.shape) == ((9, 16), (9,))


def whole(source: str, **settings: Any) -> Table:
    """All rows of generated data, before any is held out."""
    asked = request(source, **settings)
    return DATA_SOURCES[source].read(asked)


def test_synthetic_has_the_size_asked_for_and_follows_its_key() -> None:
    sizes = {"rows": 301, "columns": 5, "classes": 4}
    table = whole("synthetic", **sizes)
    assert table.x.shape == (301, 5)
    assert np.ptp(np.bincount(table.y)) <= 1
    np.testing.assert_array_equal(table.x, whole("synthetic", **sizes).x)
    assert not np.array_equal(table.x, whole("synthetic", key=Key(4), **sizes).x)


def test_synthetic_classes_are_gaussians_of_unit_covariance_about_their_centres() -> None:
    table = whole("synthetic", rows=8000, columns=3, classes=2)
    points = [table.x[table.y == c] for c in range(2)]
    for cloud in points:
        np.testing.assert_allclose(np.cov(cloud.T), np.eye(3), atol=0.12)
    assert np.linalg.norm(points[0].mean(axis=0) - points[1].mean(axis=0)) > 1


@pytest.mark.parametrize(
    "source", ["synthetic", "synthetic_survival", "synthetic_series", "synthetic_reviews"]
)
def test_generated_data_refuse_fewer_rows_than_twice_the_classes(source: str) -> None:
    with refusal(SpecError, "synthetic data with 5 rows", "choose at least 6 rows"):
        whole(source, rows=5, classes=3)


def test_survival_times_are_censored_at_the_stated_rate():
    """P(T <= C) = E[h / (h + 1/2)] with h = e^η, η ~ N(0, 1.5²), by Gauss-Hermite quadrature; so is
    the mean time.
    """
    rows = 40_000
    table = whole("synthetic_survival", rows=rows, columns=3, key=Key(5) / "data")
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    hazards, weights = np.exp(1.5 * nodes), weights / weights.sum()

    def happens(censoring):
        return weights @ (hazards / (hazards + censoring))

    deviation = 0.5 / np.sqrt(rows)
    assert abs(np.mean(table.y) - happens(0.5)) < 4 * deviation
    assert abs(np.mean(table.y) - happens(1.0)) > 20 * deviation, "control"
    assert table.times is not None
    assert np.mean(table.times) == pytest.approx(weights @ (1 / (hazards + 0.5)), rel=0.05)


def test_the_generated_series_has_its_class_in_the_course_of_time_alone():
    sizes = {"rows": 600, "columns": 4, "classes": 2, "steps": 24}
    table = whole("synthetic_series", key=Key(1), **sizes)
    assert table.x.shape == (600, 24, 4)
    assert np.array_equal(table.x, whole("synthetic_series", key=Key(1), **sizes).x)
    assert not np.array_equal(table.x, whole("synthetic_series", key=Key(2), **sizes).x)
    flat = table.x.reshape(600, -1)
    linear = (
        LogisticRegression(max_iter=500)
        .fit(flat[:400], table.y[:400])
        .score(flat[400:], table.y[400:])
    )
    power = np.abs(np.fft.rfft(table.x, axis=1)).mean(2)
    spectral = LogisticRegression(max_iter=500).fit(power[:400], table.y[:400])
    assert linear < 0.65
    assert spectral.score(power[400:], table.y[400:]) > 0.95


def counts(table: Table, vocabulary: int) -> np.ndarray:
    return np.stack(
        [np.bincount(row, minlength=vocabulary)[1:] for row in table.x.astype(np.int64)]
    )


def test_generated_reviews_are_learned_by_a_bag_of_words_and_say_nothing_without_their_words() -> (
    None
):
    sizes = {"rows": 1200, "classes": 2, "tokens": 24, "vocabulary": 200}
    table = whole("synthetic_reviews", key=Key(1), **sizes)
    assert table.x.shape == (1200, 24)
    assert np.array_equal(table.x, whole("synthetic_reviews", key=Key(1), **sizes).x)
    assert not np.array_equal(table.x, whole("synthetic_reviews", key=Key(2), **sizes).x)
    bag = counts(table, 200)
    telling, rest = bag[:, :16], bag[:, 16:]
    scores = [
        LogisticRegression(C=0.3, max_iter=500)
        .fit(x[:800], table.y[:800])
        .score(x[800:], table.y[800:])
        for x in (bag, telling, rest)
    ]
    assert scores[0] > 0.85
    assert scores[1] > 0.9
    assert scores[2] < 0.58


def test_generated_reviews_are_padded_at_their_end() -> None:
    table = whole("synthetic_reviews", rows=500, classes=3, tokens=10, vocabulary=99)
    lengths = (table.x != 0).sum(1)
    assert set(lengths.tolist()) == {5, 6, 7, 8, 9, 10}
    assert all((row[:n] != 0).all() for row, n in zip(table.x, lengths, strict=True))
    assert table.x.max() == 98
    assert np.bincount(table.y).tolist() == [167, 167, 166]
    with pytest.raises(
        SpecError, match=r"vocabulary is 25: generated reviews of 3 classes want at least 26"
    ):
        whole("synthetic_reviews", rows=500, classes=3, tokens=10, vocabulary=25)
