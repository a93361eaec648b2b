"""Two raw files that differ in what one user has: readers x modes x methods that protect users, from file to query.

With the same releases everything but the query is equal bit for bit, and sums move by no more than the account says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import planned_privacy, prepare
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.registry import DATA_SOURCES
from tests.helpers.proved_modes import USER_MODES, user_spec
from tests.helpers.raw_tables import (
    CHANGED,
    OWNED,
    OWNERS,
    OWNERS_OF,
    READERS,
    USER_CHANGES,
    raw,
    write_table,
)
from tests.helpers.raw_tables import USERS as USERS_OF_FILES
from tests.helpers.two_tables import Seen, seen

MOVING = ("one silo", "only record")
"""Changes that move records to another silo. Rows count a silo's users, which stays with the operator."""
BY_OWNERS = [
    pytest.param(reader, method, mode, id=f"{reader}-{method}-{mode}")
    for reader in OWNERS_OF
    for method, modes in USER_MODES.items()
    for mode in modes
]


@pytest.mark.parametrize(("reader", "method", "mode"), BY_OWNERS)
def test_a_user_moves_sums_as_stated_and_nothing_else(tmp_path, reader, method, mode):
    source = OWNERS_OF[reader]
    (tmp_path / "one").mkdir()
    spec = user_spec(reader, method, mode, source.write(tmp_path / "one", ""))
    assert not planned_privacy(spec).missing_premises()
    first = seen(spec)
    assert first.public == seen(spec, first).public
    largest = 0.0
    for change, (user, _) in USER_CHANGES.items():
        (tmp_path / change).mkdir()
        if method == "uldp_group" and change in MOVING:
            assert any(
                "How many records each silo uses is public" in c["note"] for c in first.public["claims"]
            )
            continue
        other = seen(user_spec(reader, method, mode, source.write(tmp_path / change, change)), first)
        different = {name for name in first.public if first.public[name] != other.public[name]}
        assert different <= ({"digest"} if change in MOVING else set()), change
        largest = max(largest, moved_by(first, other, user, method))
    assert largest > 0.1


def moved_by(first: Seen, other: Seen, user: int, method: str) -> float:
    """Return the largest move of a release by one user in units of its limit, other silos' queries being equal."""
    releases: dict[tuple[int, ...], list[np.ndarray]] = {}
    silos = {
        silo
        for run in (first, other)
        for silo in np.flatnonzero(run.prepared.parts.counts()[:, user]).tolist()
    }
    for address, query in first.tape.queries.items():
        moved = other.tape.queries[address] - query
        assert address[0] in silos or not moved.any(), "a silo without the user"
        releases.setdefault(address[1:], []).append(moved)
    setting = first.prepared.setting
    limit = (
        first.prepared.privacy.noise.release.sensitivity
        * 2
        * (setting.group if setting.kind == "group" else 1)
    )
    largest = max(float(np.linalg.norm(np.sum(moves, axis=0))) for moves in releases.values())
    assert largest <= limit
    return largest / limit


DRAWN = [
    pytest.param(reader, method, next(iter(modes)), id=f"{reader}-{method}")
    for reader in READERS
    if reader not in OWNERS_OF and not DATA_SOURCES[reader].tokens
    for method, modes in USER_MODES.items()
    if method != "uldp_group" or DATA_SOURCES[reader].loss == "cross_entropy"  # a record moves others' losses
]


@pytest.mark.parametrize(("reader", "method", "mode"), DRAWN)
def test_a_record_of_a_drawn_user_moves_sums_as_stated_and_nothing_else(tmp_path, reader, method, mode):
    source, largest = READERS[reader], 0.0
    (tmp_path / "one").mkdir()
    spec = user_spec(reader, method, mode, source.write(tmp_path / "one", ""))
    assert not planned_privacy(spec).missing_premises()
    first = seen(spec)
    for change in source.changes():
        (tmp_path / change).mkdir()
        other = seen(user_spec(reader, method, mode, source.write(tmp_path / change, change)), first)
        assert [name for name in first.public if first.public[name] != other.public[name]] == [], change
        largest = max(largest, moved_by(first, other, owner_of_changed(first), method))
    assert largest > 0


def owner_of_changed(run: Seen) -> int:
    """Return the user whose record is changed."""
    numbers, parts = run.prepared.split.train.numbers, run.prepared.parts
    row = CHANGED if numbers is None else int(np.flatnonzero(numbers == CHANGED)[0])
    place = int(np.flatnonzero(parts.ids == row)[0])
    return int(parts.owners[np.searchsorted(parts.offsets, place, side="right") - 1])


def kept(prepared: Any, keeps: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Any:
    """Return the same with the pairs (silos, users) alone that are kept; U and all others' records stay."""
    held = prepared.parts
    counts = np.diff(held.offsets)
    silos = np.repeat(np.arange(held.clients), np.diff(held.starts))
    chosen = keeps(silos, held.owners)
    parts = replace(
        held,
        ids=held.ids[np.repeat(chosen, counts)],
        starts=np.searchsorted(silos[chosen], np.arange(held.clients + 1)),
        owners=held.owners[chosen],
        offsets=np.concatenate(([0], np.cumsum(counts[chosen]))),
    )
    return replace(prepared, parts=parts)


@pytest.mark.parametrize("user", [0, USERS_OF_FILES - 1], ids=["a user", "a user's only record"])
@pytest.mark.parametrize(
    ("method", "mode"), [(m, mode) for m in USER_MODES for mode in USER_MODES[m] if m != "uldp_group"]
)
def test_a_user_whose_terms_are_zero_moves_sums_half_as_far(tmp_path, method, mode, user):
    """Of uldp_group the numbers of records are public, so that no record is taken away."""
    spec = user_spec("csv", method, mode, OWNERS_OF["csv"].write(tmp_path, "values"))
    first = seen(spec)
    other = seen(spec, first, lambda prepared: kept(prepared, lambda silos, users: users != user))
    assert {name for name in first.public if first.public[name] != other.public[name]} <= {"digest"}
    assert 0 < moved_by(first, other, user, method) <= (1 if method == "uldp_naive" else 0.5)


def test_others_records_of_a_user_move_the_sum_beside_a_silo_by_up_to_twice_the_clip(tmp_path):
    """By weights of records the looking silo's own weight grows; C alone is no bound, 2C is."""
    spec = user_spec("csv", "uldp_sgd", "records", OWNERS_OF["csv"].write(tmp_path, "two minds"))
    first, norms = seen(spec), []
    for user in range(USERS_OF_FILES - 1):
        for silo in range(3):
            alone = partial(kept, keeps=lambda s, u, user=user, silo=silo: (u != user) | (s == silo))
            other = seen(spec, first, alone)
            moved = sum(
                other.tape.queries[address] - query
                for address, query in first.tape.queries.items()
                if address[1] == 1
            )
            norms.append(float(np.linalg.norm(moved)) / first.prepared.privacy.noise.release.limit)
    assert 1.2 < max(norms) <= 2


def test_a_file_without_a_record_of_a_silo_is_refused(tmp_path):
    """That each silo has records is public; a change that empties one is none that a proof speaks of."""
    found = raw()
    path = write_table(
        replace(found, silos=np.where(found.silos == 1, 2, found.silos)), tmp_path / "own.csv", "time"
    )
    with pytest.raises(SpecError, match=r"split\.clients: wanted 2, the silos of the data, got 3"):
        prepare(user_spec("csv", "uldp_sgd", "records", path))


@pytest.mark.parametrize(
    ("users", "without", "said"),
    [
        (
            "users={count=8, labels=2}",
            OWNERS,
            "all labels (users.labels = 2), so that whose they are is public",
        ),
        (
            "users={count=8, silos='column', columns=['', 'hospital']}",
            OWNERS[:1],
            'all silos (users.silos = "column")',
        ),
        (OWNED[0], (), ""),
        ("users={count=8}", OWNERS, ""),
    ],
)
def test_what_decides_whose_records_are_is_stated_as_public(tmp_path, users, without, said):
    path = write_table(raw(), tmp_path / "own.csv", "time", *without)
    setting = planned_privacy(user_spec("csv", "uldp_sgd", "records", path, users))
    assert isinstance(setting, UserReleasePlan)
    assert said in setting.drawn
    assert bool(setting.drawn) == bool(said)
    assert not said or setting.drawn in setting.caveats()
