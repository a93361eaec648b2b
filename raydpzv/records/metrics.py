"""Every reported number as a pure function of the rows.

All functions take tables of the schemas in `raydpzv.records.schema` and accept tables of 0 rows. A
quantity with nothing to average over is NaN, never 0. Where `clients` (M) is left out, M is one
more than the highest client in the table. Times are seconds of the run's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydpzv.arrow_columns import array, equal
from raydpzv.records.schema import AGE_BINS

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class ClientStaleness:
    """Age, in server rounds, of the cached embeddings of one client that the server used.

    `rows` counts the cached rows used and `missing` those never uploaded, which have no age.
    `bins[k]` counts ages 2^(k-1) .. 2^k - 1 (`bins[0]`: age 0). `mean` is NaN where no used row has
    an age.
    """

    client: int
    rows: int
    missing: int
    mean: float
    max: int
    bins: IntArray


@dataclass(frozen=True)
class EpsilonSeries:
    """Epsilon spent after each round with a release: as the paper claims, and as proved for the
    clients.
    """

    round: IntArray
    paper: FloatArray
    client: FloatArray


@dataclass(frozen=True)
class AccuracySeries:
    """One entry per evaluation; `bytes` counts both directions on the wire up to and including its
    round.
    """

    round: IntArray
    time: FloatArray
    bytes: IntArray
    accuracy: FloatArray
    loss: FloatArray


@dataclass(frozen=True)
class BestModel:
    """The model that the validation rows choose: after which update, its test accuracy, its
    validation accuracy.
    """

    update: int
    accuracy: float
    validation_accuracy: float


@dataclass(frozen=True)
class Activity:
    """The round trips of one client, in order of waking: due <= woke <= served <= applied (NaN: no
    reply).
    """

    client: int
    due: FloatArray
    woke: FloatArray
    served: FloatArray
    applied: FloatArray
    late: BoolArray


def bytes_up(message: pa.Table) -> int:
    """Return the tensor bytes sent by the clients to the server."""
    return _bytes(message, "up")


def bytes_down(message: pa.Table) -> int:
    """Return the tensor bytes sent by the server to the clients."""
    return _bytes(message, "down")


def bytes_by_round(message: pa.Table) -> tuple[IntArray, IntArray, IntArray]:
    """Return the rounds with messages, ascending, and the bytes up and down sent by the end of
    each.
    """
    rounds, place = np.unique(_column(message, "round"), return_inverse=True)
    size, up = _column(message, "bytes"), _is(message, "direction", "up")
    totals = np.zeros((2, len(rounds)), dtype=np.int64)
    np.add.at(totals[0], place[up], size[up])
    np.add.at(totals[1], place[~up], size[~up])
    return rounds, totals[0].cumsum(), totals[1].cumsum()


def staleness(table: pa.Table, clients: int | None = None) -> list[ClientStaleness]:
    """Return each client's staleness; the mean age is sum(age_sum) / sum(rows - missing)."""
    client = _column(table, "client")
    count = _clients(client, clients)
    rows, missing, age_sum = (
        _sum_by(client, _column(table, n), count) for n in ("rows", "missing", "age_sum")
    )
    oldest = np.zeros(count, dtype=np.int64)
    np.maximum.at(oldest, client, _column(table, "age_max"))
    merged, place = np.zeros((count, AGE_BINS), np.int64), 0
    # two thirds of a run's bytes: not copied to be in one piece
    for chunk in table.column("age_bins").chunks:
        bins = array(chunk.flatten()).reshape(-1, AGE_BINS)
        there, place = client[place : place + len(bins)], place + len(bins)
        merged += np.stack([_sum_by(there, bins[:, k], count) for k in range(AGE_BINS)], axis=1)
    mean = _ratio(age_sum, rows - missing)
    return [
        ClientStaleness(m, int(rows[m]), int(missing[m]), float(mean[m]), int(oldest[m]), merged[m])
        for m in range(count)
    ]


def delays(service: pa.Table, clients: int | None = None) -> list[IntArray]:
    """Return, per client, the delay of each applied update, in order of service.

    The delay is the number of other uploads the server finished after the client had read its
    parameters (`woke`) and no later than it changed them (`applied`). Rows without an applied reply
    are left out.
    """
    client, woke, own, applied = (
        _column(service, n) for n in ("client", "woke", "served", "applied")
    )
    served = np.sort(own)
    between = np.searchsorted(served, applied, "right") - np.searchsorted(served, woke, "right")
    # With zero latency an upload is served at the instant it was read: it is then not in its own
    # interval.
    others = between - ((own > woke) & (own <= applied))
    kept = ~np.isnan(applied)
    return _split(client[kept], others[kept], _clients(client, clients))


def gaps(service: pa.Table, clients: int | None = None) -> list[IntArray]:
    """Return, per client, the rounds from each upload to its next one (1: consecutive rounds)."""
    client = _column(service, "client")
    return [
        np.diff(r) for r in _split(client, _column(service, "round"), _clients(client, clients))
    ]


def late_share(service: pa.Table, clients: int | None = None) -> FloatArray:
    """Return the share [M] of each client's activations that fell into a running round trip."""
    client = _column(service, "client")
    count = _clients(client, clients)
    late = _sum_by(client, _column(service, "late"), count)
    return _ratio(late, np.bincount(client, minlength=count))


def behind(service: pa.Table, clients: int) -> FloatArray:
    """Return by what share [M] of the time until then each client's last activation came after its
    epoch.

    No epoch is left out: one that falls into a round trip is served at its end. So this is by how
    much the client's rate is below that of its epochs: one that keeps up is late now and then, one
    that does not more and more. NaN: it was never active.
    """
    client, (due, woke) = _column(service, "client"), np.zeros((2, clients))
    np.maximum.at(due, client, _column(service, "due"))
    np.maximum.at(woke, client, _column(service, "woke"))
    return _ratio(woke - due, woke)


def staleness_summary(staleness_table: pa.Table, service: pa.Table, clients: int) -> dict[str, Any]:
    """Return the `staleness` block of summary.json; a number that does not exist is None."""
    ages = staleness(staleness_table, clients)
    lags, late = delays(service, clients), late_share(service, clients)
    aged, used = sum(a.rows - a.missing for a in ages), sum(a.rows for a in ages)
    total = sum(a.mean * (a.rows - a.missing) for a in ages if a.rows > a.missing)
    return {
        "mean": total / aged if aged else None,
        "max": max((a.max for a in ages), default=0) if aged else None,
        "missing_share": 1 - aged / used if used else None,
        "clients": [
            {
                "client": a.client,
                "mean": a.mean if a.rows > a.missing else None,
                "max": a.max if a.rows > a.missing else None,
                "delay_mean": float(lags[a.client].mean()) if len(lags[a.client]) else None,
                "delay_max": int(lags[a.client].max()) if len(lags[a.client]) else None,
                "late_share": None if math.isnan(late[a.client]) else float(late[a.client]),
            }
            for a in ages
        ],
    }


def updates(service: pa.Table) -> int:
    """Return how many updates the served uploads led to; rounds are counted from 1."""
    return int(_column(service, "round").max(initial=0))


def throughput(service: pa.Table) -> float:
    """Return served uploads per second of the run's clock; NaN if nothing was served or no time
    passed.
    """
    served = _column(service, "served")
    span = float(served.max()) if len(served) else 0.0
    return len(served) / span if span > 0 else math.nan


def epsilon_series(release: pa.Table) -> EpsilonSeries:
    """Return epsilon spent after each round, taken from the round's last release."""
    last = _last_of_each(_column(release, "round"))
    paper, client = (_column(release, n)[last] for n in ("epsilon_paper", "epsilon_client"))
    return EpsilonSeries(_column(release, "round")[last], paper, client)


def user_epsilons(table: pa.Table) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return, by adversary, the rounds and ε of one user after each; {} of a run without accounts
    of users.
    """
    if not table.num_rows:
        return {}
    rounds = _column(table, "round")
    return {who: (rounds, _column(table, who)) for who in ("external", "client", "server")}


def accuracy_series(evaluation: pa.Table, message: pa.Table) -> AccuracySeries:
    """Return the evaluations on the test rows, each with the bytes sent up to its round."""
    chosen = _of_part(evaluation, "test")
    rounds, up, down = bytes_by_round(message)
    total = np.concatenate([np.zeros(1, dtype=np.int64), up + down])
    at = _column(chosen, "round")
    sent = total[np.searchsorted(rounds, at, "right")]
    time, accuracy, loss = (_column(chosen, n) for n in ("time", "accuracy", "loss"))
    return AccuracySeries(at, time, sent, accuracy, loss)


def vector_length(numbers: pa.Table, clients: int) -> tuple[IntArray, FloatArray]:
    """Return rounds, and DeComFL's communication vector length up to each: numbers sent both ways,
    per client.
    """
    return _column(numbers, "round"), (_column(numbers, "up") + _column(numbers, "down")) / clients


def peak_accuracy(evaluation: pa.Table) -> float:
    """Return the highest test accuracy of any evaluation; NaN if there is none.

    It is chosen on the test rows: a bound that shows a fall, never a result.
    """
    values = _column(_of_part(evaluation, "test"), "accuracy")
    return float(np.nanmax(values)) if np.isfinite(values).any() else math.nan


def best_by_validation(evaluation: pa.Table) -> BestModel | None:
    """Return the first evaluation with the highest validation accuracy; None without validation
    rows.
    """
    validated, tested = _of_part(evaluation, "validation"), _of_part(evaluation, "test")
    accuracy = _column(validated, "accuracy")
    if not np.isfinite(accuracy).any():
        return None
    at = int(
        np.nanargmax(accuracy)
    )  # both parts are scored at every evaluation, so their rows go in pairs
    update, found = (tested.column(name)[at].as_py() for name in ("round", "accuracy"))
    return BestModel(update, found, float(accuracy[at]))


def final_areas(auc: pa.Table) -> dict[str, float]:
    """Return roc_auc and pr_auc of the last evaluation of the test rows; NaN where there are no two
    classes.
    """
    last = _of_part(auc, "test").to_pylist()[-1:]
    return {name: last[0][name] if last else math.nan for name in ("roc_auc", "pr_auc")}


def concordances(scores: pa.Table) -> FloatArray:
    """Return the concordance of every evaluation of the test rows, in order."""
    return _column(_of_part(scores, "test"), "concordance")


def final_score(scores: pa.Table, name: str) -> float:
    """Return a score of a row type of its own at the last evaluation of the test rows; NaN without
    one.
    """
    last = _of_part(scores, "test").to_pylist()[-1:]
    return float(last[0][name]) if last else math.nan


def measures(table: pa.Table) -> dict[str, tuple[IntArray, FloatArray]]:
    """Return rounds and values of each measure of its own name at the evaluations of the test rows,
    in order.
    """
    chosen = _of_part(table, "test")
    names = np.array(chosen.column("name").to_pylist(), dtype=str)
    rounds, values = _column(chosen, "round"), _column(chosen, "value")
    return {
        name: (rounds[names == name], values[names == name])
        for name in dict.fromkeys(names.tolist())
    }


def validation_by_round(evaluation: pa.Table) -> dict[int, float]:
    """Return the accuracy on validation rows by the round of the evaluation; nothing without such
    rows.
    """
    validated = _of_part(evaluation, "validation")
    return dict(
        zip(*(validated.column(name).to_pylist() for name in ("round", "accuracy")), strict=True)
    )


def loss_series(service: pa.Table) -> tuple[IntArray, FloatArray]:
    """Return (round, training loss) of the uploads whose loss was computed, in the order of
    rounds.
    """
    service = service.sort_by("round")
    loss = _column(service, "loss")
    kept = ~np.isnan(loss)
    return _column(service, "round")[kept], loss[kept]


def activity(service: pa.Table, clients: int | None = None) -> list[Activity]:
    """Return each client's round trips in order of waking."""
    woken = np.argsort(_column(service, "woke"), kind="stable")
    client = _column(service, "client")[woken]
    count = _clients(client, clients)
    names = ("due", "woke", "served", "applied", "late")
    columns = [_split(client, _column(service, n)[woken], count) for n in names]
    return [Activity(m, *(c[m] for c in columns)) for m in range(count)]


def _of_part(evaluation: pa.Table, part: str) -> pa.Table:
    return evaluation.filter(equal(evaluation.column("part"), part))


def _bytes(message: pa.Table, direction: str) -> int:
    return int(_column(message, "bytes")[_is(message, "direction", direction)].sum())


def _column(table: pa.Table, name: str) -> NDArray[Any]:
    return array(table.column(name))


def _is(table: pa.Table, name: str, value: str) -> BoolArray:
    return array(equal(table.column(name), value))


def _clients(client: NDArray[Any], clients: int | None) -> int:
    return int(client.max(initial=-1)) + 1 if clients is None else clients


def _sum_by(client: NDArray[Any], values: NDArray[Any], count: int) -> IntArray:
    """Return the sum of whole numbers per client; exact below 2^53, where float64 is."""
    return np.bincount(client, weights=values, minlength=count).astype(np.int64)


def _ratio(part: NDArray[Any], whole: NDArray[Any]) -> FloatArray:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _split(client: NDArray[Any], values: NDArray[Any], count: int) -> list[NDArray[Any]]:
    """Return the values of each client, in row order; a client without rows has an empty array."""
    order = np.argsort(client, kind="stable")
    return np.split(values[order], np.searchsorted(client[order], np.arange(1, count)))[:count]


def _last_of_each(rounds: NDArray[Any]) -> IntArray:
    return len(rounds) - 1 - np.unique(rounds[::-1], return_index=True)[1]
