"""Two raw files that differ by one legal change of one record, from file to query, by all readers
and modes.

With the same releases everything but the query is equal bit for bit, and the query moves by no more
than the account says. Controls read off the table what is public, and must show.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.data.sources import Source
from raydpzv.errors import InputError, SpecError
from raydpzv.experiment.prepare import planned_privacy, prepare
from raydpzv.privacy.users import UserReleasePlan
from raydpzv.registry import DATA_SOURCES, METHODS
from tests.helpers import raw_tables
from tests.helpers.proved_modes import (
    BY_CLIENT,
    IN_THE_OPEN,
    MODES,
    UNPROVED,
    USER_MODES,
    USERS,
    spec_of,
    user_spec,
)
from tests.helpers.raw_tables import (
    CHANGED,
    FITTED,
    LABELS,
    NOT_READ,
    OWNED,
    OWNERS,
    OWNERS_OF,
    READERS,
    STRANGE,
    USER_CHANGES,
    raw,
    write_table,
)
from tests.helpers.raw_tables import USERS as USERS_OF_FILES
from tests.helpers.two_tables import Seen, seen


def pairs(readers, *tables):
    """Return the first reader with every mode, and each other one with two in turn, of which one
    protects labels.

    A reader ends where arrays begin, and a mode begins there: neither knows the other.
    """
    first, *others = readers
    for_arrays = [
        (method, mode) for table in tables for method, modes in table.items() for mode in modes
    ]
    found = [(first, *mode) for mode in for_arrays]
    for n, reader in enumerate(others):
        able = [mode for mode in for_arrays if mode[0] in MODES or not DATA_SOURCES[reader].tokens]
        whole = [mode for mode in able if mode[1] not in BY_CLIENT]
        found += [
            (reader, *whole[n % len(whole)]),
            (reader, *able[(n + len(able) // 2) % len(able)]),
        ]
    return [pytest.param(*case, id="-".join(case)) for case in found]


VERTICAL = pairs([name for name in READERS if DATA_SOURCES[name].loss == "cross_entropy"], MODES)


def test_every_reader_and_method_has_a_line_or_a_reason():
    assert READERS.keys() | NOT_READ.keys() == set(DATA_SOURCES)
    assert not READERS.keys() & NOT_READ.keys()
    covered = [MODES, USER_MODES, UNPROVED]
    assert set().union(*covered) == set(METHODS)
    assert sum(map(len, covered)) == len(METHODS)
    for source, reason in NOT_READ.items():
        found: Source = DATA_SOURCES[source]
        assert bool(found.fitted) == (reason == FITTED), source
        assert reason != raw_tables.BUILT_IN or not found.needs
    for name in UNPROVED:
        method = METHODS[name]
        if method.kind == "horizontal":
            assert method.users(method.config()) is None
        else:
            plan = method.noise(method.config())
            assert plan is None or plan.hidden


@pytest.mark.parametrize(("reader", "method", "mode"), VERTICAL)
def test_everything_but_the_query_is_equal_and_the_query_moves_as_stated(
    tmp_path, reader, method, mode
):
    files = {
        change: tmp_path / (change or "as it is") for change in ("", *READERS[reader].changes())
    }
    for folder in files.values():
        folder.mkdir()
    paths = {change: READERS[reader].write(folder, change) for change, folder in files.items()}
    spec = spec_of(reader, method, mode, paths[""])
    assert not planned_privacy(spec).missing_premises()
    first = seen(spec)
    again = seen(spec, first)
    assert differences(first, again, mode) == []
    moved = 0.0
    for change, path in paths.items():
        if not change or (mode in BY_CLIENT and "label" in change):
            continue
        other = seen(spec_of(reader, method, mode, path), first)
        assert differences(first, other, mode) == [], change
        moved = max(moved, checked_moves(first, other, mode))
    assert moved > 0, "the record must be seen where it takes part"


def differences(first: Seen, other: Seen, mode: str) -> list[str]:
    """Return what differs beside queries: what is public, and what belongs to other records."""
    skipped = {"digest"} if mode in IN_THE_OPEN else set()
    found = [
        name
        for name in first.public
        if name not in skipped and first.public[name] != other.public[name]
    ]
    row = row_of(first)
    pairs = [
        (a.x_train, b.x_train)
        for a, b in zip(first.prepared.clients, other.prepared.clients, strict=True)
    ]
    pairs += [(first.prepared.server.y_train, other.prepared.server.y_train)]
    same = all(np.array_equal(np.delete(a, row, 0), np.delete(b, row, 0)) for a, b in pairs)
    return found if same else [*found, "other records"]


def row_of(run: Seen) -> int:
    """Return the training row of the record that is changed."""
    (found,) = np.flatnonzero(run.prepared.numbers == CHANGED)
    return int(found)


def checked_moves(first: Seen, other: Seen, mode: str) -> float:
    """Return the largest move of a query in units of its limit, having seen that only the record's
    own moved.
    """
    row, largest, without = row_of(first), 0.0, 0
    for address, query in first.tape.queries.items():
        moved = other.tape.queries[address] - query
        if address[:2] not in first.tape.rows and mode != "discriminant":
            continue  # it was under way when the run was over
        if mode == "rows":
            own = first.tape.rows[address[:2]] == row
            assert not moved[~own].any()
            without += int((~own).sum())
        elif mode == "discriminant":
            moved = moved.reshape(-1, first.prepared.spec.model.embedding)
            assert (moved.any(1)).sum() <= 1
            without += len(moved) - 1
        elif row not in first.tape.rows[address[:2]]:
            assert not moved.any(), address
            without += 1
        largest = max(largest, float(np.linalg.norm(moved)) / first.tape.limits[address])
    assert without > 5
    assert largest <= 1 + 1e-6
    return largest


@pytest.mark.parametrize("reader", [name for name, found in READERS.items() if found.refused])
def test_what_no_record_may_have_is_refused_by_name(tmp_path, reader):
    by_record = DATA_SOURCES[reader].loss == "cross_entropy"
    for change, said in READERS[reader].refused.items():
        folder = tmp_path / change
        folder.mkdir()
        path = READERS[reader].write(folder, change)
        of_records, of_users = (spec_of, "dpzv", "frozen"), (user_spec, "uldp_sgd", "records")
        make, method, mode = of_records if by_record else of_users
        spec = make(reader, method, mode, path)
        with pytest.raises(InputError, match=said):
            prepare(spec)


LISTED = [name for name in READERS if DATA_SOURCES[name].listed]
READ_OFF = [
    *((reader, "classes") for reader in LISTED),
    *((reader, "categories") for reader in LISTED if "category" not in READERS[reader].absent),
]


@pytest.mark.parametrize(("reader", "read"), READ_OFF)
def test_control_a_list_that_is_read_off_the_table_is_found_out(
    tmp_path, monkeypatch, reader, read
):
    """The modes refuse such runs, or say that nothing is proved; here that is taken away."""
    monkeypatch.setattr("raydpzv.config.public_lists.read_off", lambda data, goal: ())
    change = {"classes": "new label", "categories": "new category"}[read]
    update: dict[str, Any] = {
        "classes": {"classes": 2, "other": None},
        "categories": {"categories": ("city",)},
    }[read]
    runs: list[Seen] = []
    for name, written in (("one", ""), ("two", change)):
        (tmp_path / name).mkdir()
        spec = spec_of(reader, "dpzv", "joint", READERS[reader].write(tmp_path / name, written))
        fitted = spec.model_copy(update={"data": spec.data.model_copy(update=update)})
        runs.append(seen(fitted, *runs))
    first, other = runs
    known = {"classes": "classes", "categories": "widths"}[read]
    assert first.public[known] != other.public[known]
    row = row_of(first)
    hidden = [
        a for a, rows in first.tape.rows.items() if a in first.tape.queries and row not in rows
    ]
    moved = [a for a in hidden if not np.array_equal(first.tape.queries[a], other.tape.queries[a])]
    assert len(moved) > len(hidden) / 2 > 5


@pytest.mark.parametrize("read", ["off the table", "from a list"])
def test_two_rare_labels_are_told_apart_where_classes_are_read_off_the_table(
    tmp_path, monkeypatch, read
):
    """Row 3 has a label that nobody else has, sorted before all others or after them."""
    runs: list[Seen] = []
    if read == "off the table":
        monkeypatch.setattr("raydpzv.config.public_lists.read_off", lambda data, goal: ())
    for rare in (STRANGE, "zzz"):
        path = write_table(
            raw().with_row(CHANGED, labels=rare),
            tmp_path / f"{rare}.csv",
            "time",
            *raw_tables.OWNERS,
        )
        spec = spec_of("csv", "dpzv", "frozen", path)
        if read == "off the table":
            spec = spec.model_copy(
                update={"data": spec.data.model_copy(update={"classes": 2, "other": None})}
            )
        runs.append(seen(spec, *runs))
    first, other = runs
    differ = [
        a
        for a, query in first.tape.queries.items()
        if not np.array_equal(query, other.tape.queries[a])
    ]
    others = np.delete(
        first.prepared.server.y_train != other.prepared.server.y_train, row_of(first)
    )
    if read == "off the table":
        assert others.all()
        assert len(differ) > len(first.tape.queries) / 2
    else:
        assert first.prepared.server.y_train[row_of(first)] == LABELS.index("other")
        assert not differ
        assert first.public == other.public


@pytest.mark.parametrize(("reader", "method", "mode"), pairs(LISTED, MODES, USER_MODES))
def test_without_a_public_list_of_classes_nothing_is_proved(tmp_path, reader, method, mode):
    lists = ("data.classes", "data.other")
    path, source = READERS[reader].write(tmp_path, ""), READERS[reader]
    given = [text for text in source.given(path) if not text.startswith(lists)]
    if method in MODES:
        scenario, own = MODES[method][mode]
        given = [*own, *given, *source.vertical]
    else:
        own = USER_MODES[method][mode]
        scenario, given = (
            "digits_users",
            [f"method={{name='{method}'}}", *USERS, *given, *source.users, *own],
        )
    if scenario in ("digits_private", "digits_server"):
        with pytest.raises(
            SpecError, match=r"data\.classes: classes are numbered by the labels that occur"
        ):
            scenarios.load(scenario, given)
        return
    found = planned_privacy(scenarios.load(scenario, given))
    assert not any(claim.holds for claim in found.claims())
    assert any("set data.classes" in clause for clause in found.missing_premises())


# Two raw files that differ in what one user has: readers x modes x methods that protect users, from
# file to query.
#
# With the same releases everything but the query is equal bit for bit, and sums move by no more
# than the account says.

MOVING = ("one silo", "only record")
"""Changes that move records to another silo. Rows count a silo's users, which stays with the
operator.
"""


@pytest.mark.parametrize(("reader", "method", "mode"), pairs(OWNERS_OF, USER_MODES))
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
                "How many records each silo uses is public" in c["note"]
                for c in first.public["claims"]
            )
            continue
        other = seen(
            user_spec(reader, method, mode, source.write(tmp_path / change, change)), first
        )
        different = {name for name in first.public if first.public[name] != other.public[name]}
        assert different <= ({"digest"} if change in MOVING else set()), change
        largest = max(largest, moved_by(first, other, user, method))
    assert largest > 0.1


def moved_by(first: Seen, other: Seen, user: int, method: str) -> float:
    """Return the largest move of a release by one user in units of its limit, other silos' queries
    being equal.
    """
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


_FIRST = {method: dict([next(iter(modes.items()))]) for method, modes in USER_MODES.items()}
_WITHOUT_OWNERS = [
    name for name in READERS if name not in OWNERS_OF and not DATA_SOURCES[name].tokens
]
DRAWN = [
    case
    for case in pairs(_WITHOUT_OWNERS, _FIRST)
    # of a survival's group, a record moves others' losses
    if case.values[:2] != ("survival", "uldp_group")
]


@pytest.mark.parametrize(("reader", "method", "mode"), DRAWN)
def test_a_record_of_a_drawn_user_moves_sums_as_stated_and_nothing_else(
    tmp_path, reader, method, mode
):
    source, largest = READERS[reader], 0.0
    (tmp_path / "one").mkdir()
    spec = user_spec(reader, method, mode, source.write(tmp_path / "one", ""))
    assert not planned_privacy(spec).missing_premises()
    first = seen(spec)
    for change in source.changes():
        (tmp_path / change).mkdir()
        other = seen(
            user_spec(reader, method, mode, source.write(tmp_path / change, change)), first
        )
        assert [name for name in first.public if first.public[name] != other.public[name]] == [], (
            change
        )
        largest = max(largest, moved_by(first, other, owner_of_changed(first), method))
    assert largest > 0


def owner_of_changed(run: Seen) -> int:
    """Return the user whose record is changed."""
    numbers, parts = run.prepared.split.train.numbers, run.prepared.parts
    row = CHANGED if numbers is None else int(np.flatnonzero(numbers == CHANGED)[0])
    place = int(np.flatnonzero(parts.ids == row)[0])
    return int(parts.owners[np.searchsorted(parts.offsets, place, side="right") - 1])


def kept(prepared: Any, keeps: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Any:
    """Return the same with the pairs (silos, users) alone that are kept; U and all others' records
    stay.
    """
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
    ("method", "mode"),
    [(m, mode) for m in USER_MODES for mode in USER_MODES[m] if m != "uldp_group"],
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
            alone = partial(
                kept, keeps=lambda s, u, user=user, silo=silo: (u != user) | (s == silo)
            )
            other = seen(spec, first, alone)
            moved = sum(
                other.tape.queries[address] - query
                for address, query in first.tape.queries.items()
                if address[1] == 1
            )
            norms.append(float(np.linalg.norm(moved)) / first.prepared.privacy.noise.release.limit)
    assert 1.2 < max(norms) <= 2


def test_a_file_without_a_record_of_a_silo_is_refused(tmp_path):
    """That each silo has records is public; a change that empties one is none that a proof speaks
    of.
    """
    found = raw()
    path = write_table(
        replace(found, silos=np.where(found.silos == 1, 2, found.silos)),
        tmp_path / "own.csv",
        "time",
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
