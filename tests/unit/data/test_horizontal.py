import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydpzv.data.horizontal import Parts, split_rows
from raydpzv.errors import InputError, SpecError
from raydpzv.keys import Key
from raydpzv.settings.sections_horizontal import HorizontalSplitSection
from tests.helpers.loading import refusal

SHARES = np.array([0.1, 0.2, 0.3, 0.4])
SMALL = np.repeat([0, 1, 2], [40, 30, 30])


def labels_of(rows: int) -> np.ndarray:
    return Key(5).generator().permutation(np.repeat(np.arange(4), (SHARES * rows).astype(int)))


def shared(
    labels: np.ndarray, clients: int, how: str = "dirichlet", *, key: Key, **options
) -> Parts:
    return split_rows(labels, HorizontalSplitSection(clients=clients, how=how, **options), key)


def counts_of(parts: Parts, labels: np.ndarray) -> np.ndarray:
    """Rows of every class that every client has, [M, C]."""
    return np.array([np.bincount(labels[parts.rows(i)], minlength=4) for i in range(parts.clients)])


def is_a_partition(parts: Parts, rows: int) -> bool:
    mine = [parts.rows(i) for i in range(parts.clients)]
    ascending = all((np.diff(ids) > 0).all() for ids in mine)
    return ascending and np.array_equal(np.sort(np.concatenate(mine)), np.arange(rows))


WAYS = [("iid", "equal"), ("dirichlet", "equal"), ("dirichlet", "drawn")]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(WAYS),
    st.integers(1, 30),
    st.integers(1, 3),
    st.integers(0, 60),
    st.integers(1, 6),
    st.floats(-6, 6),
    st.integers(0, 99),
)
def test_every_row_has_one_owner_and_every_client_its_rows(
    way: tuple[str, str],
    clients: int,
    least: int,
    more: int,
    classes: int,
    exponent: float,
    seed: int,
) -> None:
    rows = clients * least + more
    labels = 7 * Key(seed).generator().integers(
        0, classes, rows
    )  # numbers of classes may have gaps
    how, sizes = way
    parts = shared(
        labels, clients, how, alpha=10**exponent, sizes=sizes, least=least, key=Key(seed) / "split"
    )
    assert is_a_partition(parts, rows)
    assert parts.sizes.min() >= least
    assert parts.sizes.tolist() == [len(parts.rows(i)) for i in range(clients)]
    assert sizes == "drawn" or np.ptp(parts.sizes) <= 1


@pytest.mark.parametrize(("how", "sizes"), WAYS)
def test_the_split_depends_on_the_key_alone(how: str, sizes: str) -> None:
    def ids(key: Key) -> np.ndarray:
        return shared(SMALL, 5, how, alpha=0.5, sizes=sizes, key=key).ids

    assert np.array_equal(ids(Key(1) / "a"), ids(Key(1) / "a"))
    assert not np.array_equal(ids(Key(1) / "a"), ids(Key(1) / "b"))


def test_iid_clients_have_the_labels_of_a_random_deal_and_dirichlet_ones_do_not() -> None:
    labels = labels_of(20_000)

    def p_value(how: str, alpha: float = 1.0) -> float:
        return stats.chi2_contingency(
            counts_of(shared(labels, 50, how, alpha=alpha, key=Key(2)), labels)
        ).pvalue

    assert 0.001 < p_value("iid") < 0.999, "neither unlike nor more alike than chance makes them"
    assert p_value("dirichlet", alpha=10.0) < 1e-6
    assert 0.001 < p_value("dirichlet", alpha=1e6) < 0.999, "large α is the random deal"


@pytest.mark.parametrize(("how", "sizes"), WAYS)
def test_which_rows_of_a_class_a_client_gets_does_not_follow_their_order(
    how: str, sizes: str
) -> None:
    parts = shared(np.zeros(20_000, int), 20, how, alpha=1e6, sizes=sizes, key=Key(3))
    first = np.array([(parts.rows(i) < 10_000).sum() for i in range(20)])
    assert stats.chi2_contingency([first, parts.sizes - first]).pvalue > 0.001
    assert first.std() > 5, "and not dealt out in turns"


def test_which_rows_a_large_client_gives_away_does_not_follow_their_order() -> None:
    parts = shared(
        np.zeros(1000, int), 2, "dirichlet", alpha=1e-6, sizes="drawn", least=400, key=Key(3)
    )
    poor = int(np.argmin(parts.sizes))
    assert parts.sizes[poor] == 400
    assert abs(parts.rows(poor).mean() - 500) < 4 * 289 / 20


def has_the_moments(counts: np.ndarray, alpha: float) -> bool:
    """Counts of Dir(α p), then a multinomial: covariance (diag p - p pᵀ)(n + α) / (n (1 + α)) of
    the shares.
    """
    n = counts.sum(1)[0]
    wanted = (np.diag(SHARES) - np.outer(SHARES, SHARES)) * (n + alpha) / (n * (1 + alpha))
    return bool(np.abs(np.cov(counts.T / n) / wanted - 1).max() < 0.12)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_equal_sizes_have_the_moments_of_dirichlet(alpha: float) -> None:
    labels = labels_of(200_000)
    counts = counts_of(shared(labels, 4000, "dirichlet", alpha=alpha, key=Key(4)), labels)
    np.testing.assert_allclose(counts.mean(0) / 50, SHARES, rtol=1e-12)
    assert has_the_moments(counts, alpha)
    assert not has_the_moments(counts, 1.5 * alpha)
    assert not has_the_moments(counts, alpha / 1.5)


def test_equal_sizes_have_beta_marginals() -> None:
    labels = labels_of(1_000_000)
    shares = counts_of(shared(labels, 1000, "dirichlet", alpha=2.0, key=Key(5)), labels) / 1000

    def fits(alpha: float) -> bool:
        laws = [stats.beta(alpha * p, alpha * (1 - p)) for p in SHARES]
        return all(
            stats.kstest(shares[:, j], law.cdf).pvalue > 0.001 for j, law in enumerate(laws) if j
        )

    assert fits(2.0)
    assert not fits(3.0)


def test_drawn_sizes_share_every_class_by_dirichlet() -> None:
    classes, clients = 400, 8
    labels = np.repeat(np.arange(classes), 500)
    parts = shared(labels, clients, "dirichlet", alpha=0.7, sizes="drawn", key=Key(6))
    shares = (
        np.array([np.bincount(labels[parts.rows(i)], minlength=classes) for i in range(clients)])
        / 500
    )

    def fits(alpha: float) -> bool:
        law = stats.beta(alpha, (clients - 1) * alpha)
        seen = shares[
            shares > 0.01
        ]  # shares are whole 500ths: compared where the law is flat between them
        return (
            stats.kstest(seen, lambda s: (law.cdf(s) - law.cdf(0.01)) / law.sf(0.01)).pvalue > 0.001
        )

    assert shares.mean(1) == pytest.approx(np.full(clients, 1 / clients), abs=4 * 0.13 / 20)
    assert fits(0.7)
    assert not fits(1.05)
    assert np.ptp(parts.sizes) > 1000


def test_a_class_that_runs_out_is_replaced_by_what_is_left() -> None:
    parts = shared(SMALL, 4, "dirichlet", alpha=1e-6, key=Key(7))
    counts = counts_of(parts, SMALL)
    assert parts.sizes.tolist() == [25] * 4
    assert counts.sum(0).tolist() == [40, 30, 30, 0]
    assert (counts == 25).any(), "a client whose class lasts has nothing else"


def test_small_clients_are_topped_up_from_the_largest_alone() -> None:
    few, many = (
        shared(SMALL, 10, "dirichlet", alpha=0.1, sizes="drawn", least=least, key=Key(8))
        for least in (1, 4)
    )
    assert few.sizes.min() < 4, "the case has clients to top up"
    assert many.sizes.tolist() == taken_one_by_one(few.sizes.tolist(), 4)
    same = [i for i in range(10) if 4 <= few.sizes[i] < many.sizes.max()]
    assert same
    assert all(np.array_equal(few.rows(i), many.rows(i)) for i in same), (
        "who has enough keeps its rows"
    )


def test_a_topped_up_client_gets_rows_of_several_owners() -> None:
    labels = np.repeat(np.arange(10), 100)
    parts = shared(labels, 30, "dirichlet", alpha=1e-6, sizes="drawn", least=20, key=Key(9))
    poor = [i for i in range(30) if parts.sizes[i] == 20]
    assert len(poor) >= 20, "ten classes, one owner each"
    assert all(len(np.unique(labels[parts.rows(i)])) > 2 for i in poor)


def taken_one_by_one(sizes: list[int], least: int) -> list[int]:
    """The slow way: as long as somebody is short, one row moves from the largest (the last of
    equals).
    """
    sizes = list(sizes)
    while min(sizes) < least:
        largest = max(range(len(sizes)), key=lambda i: (sizes[i], i))
        sizes[largest] -= 1
        sizes[sizes.index(min(sizes))] += 1
    return sizes


def test_memory_is_four_bytes_a_row_and_a_client() -> None:
    parts = shared(SMALL, 7, "iid", key=Key(0))
    assert parts.nbytes == 4 * 100 + 4 * 8
    assert parts.sizes.dtype == np.int64
    assert not parts.rows(3).flags.writeable
    assert parts.rows(3).base is not None, "a view, not a copy"


@pytest.mark.parametrize("client", [-1, 7])
def test_a_client_that_does_not_exist_is_refused(client: int) -> None:
    with pytest.raises(InputError, match=f"no client {client}: choose one of 0..6"):
        shared(SMALL, 7, "iid", key=Key(0)).rows(client)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1e-7}, "alpha is 1e-07"),
        ({"alpha": 1e7}, "alpha is 10000000.0"),
        ({"least": 21}, "100 rows cannot give 5 clients 21 each: use at most 4 clients"),
        ({"clients": 101}, "100 rows cannot give 101 clients 1 each: use at most 100"),
    ],
)
def test_a_split_that_cannot_be_is_refused(options: dict[str, object], message: str) -> None:
    with refusal(SpecError, message):
        shared(SMALL, **{"clients": 5, "key": Key(0), **options})
