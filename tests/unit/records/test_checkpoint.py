"""A checkpoint's file: at each moment there is a whole one, whatever ends its writing and however
often.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scenarios
from raydpzv.errors import DataError
from raydpzv.records import checkpoint_policy as checkpoint_pace
from raydpzv.records.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    before,
    read_checkpoint,
    write_checkpoint,
)
from raydpzv.records.checkpoint_policy import CheckpointPolicy, own_seconds
from raydpzv.records.run_folder import drop_checkpoints
from raydpzv.records.run_writer import RunWriter
from tests.helpers.kills import Killed
from tests.helpers.reopened import reopened
from tests.helpers.small_horizontal import small

_OPERATIONS = ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (os, "link"), (os, "open"))
"""What the writing of a checkpoint does to files."""


class Ending:
    """Ends the writing before its n-th operation."""

    def __init__(self, operation: int, error: type[BaseException]) -> None:
        self.left, self._error = operation, error

    def before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def ended(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise self._error(28, "No space left on device")
            return operation(*args, **options)

        return ended

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for where, name in _OPERATIONS:
                patch.setattr(where, name, self.before(getattr(where, name)))
            yield


def put(path: Path, round: int) -> None:
    write_checkpoint(path, Checkpoint(round, {"held": [round] * (50 - round)}), {})


def ended_at(path: Path, round: int, operation: int, error: type[BaseException]) -> bool:
    """Write a checkpoint that is ended; tell whether it was."""
    ending = Ending(operation, error)
    try:
        with ending.at_work():
            put(path, round)
    except (Killed, OSError):
        return True
    return False


def standing(path: Path) -> int:
    """The round of the last checkpoint, which is whole."""
    assert path.is_file(), "what another name alone has is not the last one"
    found = read_checkpoint(path)
    assert found.place == path
    round = found.checkpoint.round
    assert found.checkpoint.state == {"held": [round] * (50 - round)}
    return round


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("errors", list(product([Killed, OSError], repeat=2)))
def test_whatever_ends_two_writings_the_last_one_or_this_one_stands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    errors: tuple[type[BaseException], ...],
    links: bool,
) -> None:
    def no_link(*names: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    ended = 0
    for n, (first, second) in enumerate(product(range(1, 9), repeat=2)):
        path = tmp_path / str(n) / CHECKPOINT
        path.parent.mkdir()
        for round in (1, 2, 3):
            put(path, round)
        made = 3
        for round, operation, error in ((4, first, errors[0]), (5, second, errors[1])):
            gone = ended_at(path, round, operation, error)
            assert standing(path) in ((made, round) if gone else (round,))
            made, ended = standing(path), ended + gone
        put(path, 6)
        put(path, 7)
        older = read_checkpoint(before(path))
        assert (standing(path), older and older.checkpoint.round) == (7, 6)
    assert ended > 40


def test_a_file_that_somebody_else_holds_under_another_name_is_not_written_over(
    tmp_path: Path,
) -> None:
    """As in a copy that is made of links."""
    path = tmp_path / CHECKPOINT
    put(path, 1)
    os.link(path, tmp_path / "copy")
    held = (tmp_path / "copy").read_bytes()
    for round in range(2, 6):
        put(path, round)
    assert (tmp_path / "copy").read_bytes() == held


def test_one_with_any_byte_changed_is_refused(tmp_path: Path) -> None:
    """Most changed bytes of its arrays are numbers as good as the right ones: the digest alone
    tells.
    """
    path = tmp_path / CHECKPOINT
    write_checkpoint(path, Checkpoint(3, {"held": np.arange(5.0)}, np.ones(4, np.float32)), {})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match="its sha256 does not fit its content"):
            read_checkpoint(path)
    path.write_bytes(whole)
    assert read_checkpoint(path) is not None


def test_nobody_else_may_read_one(tmp_path: Path) -> None:
    for round in range(4):
        put(tmp_path / CHECKPOINT, round)
        assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}


def test_that_of_another_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    write_checkpoint(path, Checkpoint(1, {}), {}, run="one")
    assert read_checkpoint(path, "one") is not None
    with pytest.raises(DataError, match="is a checkpoint of another run"):
        read_checkpoint(path, "two")


def test_the_last_one_alone_is_not_replaced_by_the_one_before_where_it_is_missing(
    tmp_path: Path,
) -> None:
    path = tmp_path / CHECKPOINT
    put(path, 1)
    put(path, 2)
    path.unlink()
    with pytest.raises(
        DataError, match=r"is missing, and checkpoint\.before\.state, which knows of less"
    ):
        read_checkpoint(path, only_last=True)
    found = read_checkpoint(path)
    assert found.checkpoint.round == 1


def test_where_the_last_one_is_missing_the_one_before_stays_until_there_is_another(
    tmp_path: Path,
) -> None:
    for error in (Killed, OSError):
        path = tmp_path / error.__name__ / CHECKPOINT
        path.parent.mkdir()
        put(path, 1)
        put(path, 2)
        path.unlink()
        assert ended_at(path, 3, 2, error)
        found = read_checkpoint(path)
        assert found.checkpoint.round == 1


def test_who_continues_from_the_one_before_makes_it_the_last(tmp_path: Path) -> None:
    run = tmp_path / "run"
    scenarios.run(small("decomfl", "record.checkpoint_updates=2"), run)
    folder = RunWriter(run)
    for round in (1, 2):
        folder.write_checkpoint(Checkpoint(round, {}))
    sha256 = folder.checkpoint_sha256()
    (run / CHECKPOINT).write_bytes(b"damaged")
    assert folder.checkpoint_sha256() not in ("", sha256), (
        "it is the digest of the one that is continued from"
    )
    with reopened(run) as opened:
        assert (run / CHECKPOINT).is_file()
        assert not before(run / CHECKPOINT).is_file()
        found = opened.checkpoint(only_last=True)
        assert found.round == 1


def test_of_a_run_that_has_ended_the_last_one_goes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever brings the folder to a storage meanwhile sees no run that has lost it."""
    for round in (1, 2):
        put(tmp_path / CHECKPOINT, round)
    unlink, gone = Path.unlink, []

    def seen(path: Path, **options: bool) -> None:
        unlink(path, **options)
        gone.append(path.name)
        assert (tmp_path / CHECKPOINT).is_file() or not before(tmp_path / CHECKPOINT).is_file()

    monkeypatch.setattr(Path, "unlink", seen)
    drop_checkpoints(tmp_path)
    assert gone == ["checkpoint.before.state", CHECKPOINT]


# When checkpoints are due, and what is said of their cost, under a clock that stands where the test
# says.


class Clock:
    """Both clocks, of a thread that waits for nobody."""

    def __init__(self) -> None:
        self.now = 1000.0

    def take(
        self, pace: CheckpointPolicy, seconds: float, updates: int = 0, size: int = 0
    ) -> float:
        """Take a checkpoint that costs so many seconds."""
        pace.begin()
        self.now += seconds
        return pace.taken(updates, size)


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_pace, "own_seconds", lambda: found.now)
        patch.setattr(checkpoint_pace.time, "monotonic", lambda: found.now)
        yield found


def until_due(pace: CheckpointPolicy, clock: Clock) -> float:
    """Seconds that pass until a checkpoint is due, to a hundredth."""
    begun = clock.now
    while not pace.due(0):
        clock.now += 0.01
    return clock.now - begun


def test_every_so_many_updates(clock: Clock) -> None:
    pace = CheckpointPolicy(None, 4, 5.0)
    assert [updates for updates in range(9) if pace.due(updates)] == [4, 5, 6, 7, 8]
    clock.take(pace, 9.0, updates=5)
    assert [updates for updates in range(5, 12) if pace.due(updates)] == [8, 9, 10, 11], (
        "whatever they cost"
    )
    clock.take(pace, 9.0, updates=8)
    assert [updates for updates in range(8, 14) if pace.due(updates)] == [12, 13]


def test_every_so_many_seconds_but_not_so_often_that_they_take_more_than_a_small_part(
    clock: Clock,
) -> None:
    pace = CheckpointPolicy(3.0, None, 5.0)
    assert until_due(pace, clock) == pytest.approx(3, abs=0.02)
    clock.take(pace, 0.01)
    assert until_due(pace, clock) == pytest.approx(3, abs=0.02)
    for _ in range(5):
        clock.take(pace, 0.2)
        until_due(pace, clock)
    clock.take(pace, 0.2)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02)
    clock.take(pace, 50.0)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02), (
        "one that was kept waiting counts little"
    )


def test_the_first_one_rests_less_since_it_costs_more(clock: Clock) -> None:
    pace = CheckpointPolicy(0.5, None, 5.0)
    until_due(pace, clock)
    clock.take(pace, 0.4)
    assert until_due(pace, clock) == pytest.approx(10 * 0.4, abs=0.02)
    clock.take(pace, 0.2)
    assert until_due(pace, clock) == pytest.approx(40 * 0.2, abs=0.02)
    clock.take(pace, 0.1)
    assert until_due(pace, clock) == pytest.approx(40 * 0.1, abs=0.02), (
        "the lower of the two after the first"
    )


@pytest.mark.parametrize(
    ("most", "gaps"), [(5.0, (0.3, 0.5)), (0.4, (0.3, 0.4)), (0.2, (0.2, 0.2))]
)
def test_a_share_of_what_was_computed_at_most_half_a_second(
    clock: Clock, most: float, gaps: Sequence[float]
) -> None:
    pace = CheckpointPolicy(None, None, most)
    assert until_due(pace, clock) == pytest.approx(min(0.5, most), abs=0.02)
    clock.take(pace, 0.0)
    assert until_due(pace, clock) < 0.05
    for begun, gap in zip((30, 2000), gaps, strict=True):
        clock.now = 1000.0 + begun
        clock.take(pace, 0.0)
        assert until_due(pace, clock) == pytest.approx(gap, abs=0.05)


def test_a_checkpoint_says_what_it_took_and_the_run_what_all_took(clock: Clock) -> None:
    pace = CheckpointPolicy(None, 1, 5.0)
    clock.now += 7.0
    assert clock.take(pace, 0.25, 1, 100) == 0.25
    clock.now += 7.0
    assert clock.take(pace, 0.5, 2, 80) == 0.5
    assert (pace.count, pace.spent, pace.bytes) == (2, 0.75, 80)
    assert pace.facts() == {"checkpoints": {"count": 2, "seconds": 0.75, "bytes": 80}}


def test_time_in_which_others_had_the_processor_is_not_a_threads_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "schedstat"
    monkeypatch.setattr(checkpoint_pace, "_WAITED", said)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    assert own_seconds() == 50.0, "where the system does not tell"
    said.write_text("123456789 4000000000 17\n")
    assert own_seconds() == 46.0
    for odd in ("", "123", "some words here"):
        said.write_text(odd)
        assert own_seconds() == 50.0
