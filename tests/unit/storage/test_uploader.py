"""A folder's way to a storage: commits, horizon, errors, and who may write."""

from __future__ import annotations

import os
import threading
import warnings
from dataclasses import replace

import pytest

from raydpzv.errors import InputError, RunError
from raydpzv.storage.commits import ANNOUNCED, NO_NOISE, TRIALS, UNBOUNDED, latest
from raydpzv.storage.lease import Fenced, Lease
from raydpzv.storage.uploader import FolderUploader, FreshNoise
from tests.helpers.storages import QUICK, KeptPlace

AHEAD = FreshNoise(ANNOUNCED, 10)


@pytest.fixture
def place(tmp_path):
    return KeptPlace(tmp_path / "storage")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_bytes(b"first")
    return tmp_path / "run"


ON_DEMAND = replace(QUICK, commit=1000.0)


def mirror_to(place, pace=QUICK):
    return FolderUploader(place, Lease.take(place, QUICK.lease), "run", pace)


def written(place, *, since=0):
    return [act.name for act in place.acts[since:] if act.data is not None and act.name.startswith("by-")]


def test_only_what_has_changed_travels_and_of_what_has_grown_the_end(place, folder):
    mirror = mirror_to(place, ON_DEMAND)
    (folder / "b").write_bytes(b"x")
    with mirror.released(), mirror.of(folder, FreshNoise()):
        assert sorted(written(place)) == ["by-00000001/a", "by-00000001/b"]
        before = len(place.acts)
        (folder / "a").write_bytes(b"first and more")
        mirror.flush()
        assert written(place, since=before) == ["by-00000001/a~1"]
        assert place.read("by-00000001/a~1") == b" and more"
        before = len(place.acts)
        (folder / "a").write_bytes(b"another")
        mirror.flush()
        assert [act.data for act in place.acts[before:] if act.name == "by-00000001/a~2"] == [b"another"]
        before = len(place.acts)
        mirror.flush()
        assert written(place, since=before) == []


def test_a_change_within_the_same_tick_of_the_clock_is_seen(place, folder):
    mirror = mirror_to(place, ON_DEMAND)
    stat = (folder / "a").stat()
    with mirror.released(), mirror.of(folder, FreshNoise()):
        with open(folder / "a", "r+b") as file:
            file.write(b"other")
        os.utime(folder / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        mirror.flush()
        assert place.read("by-00000001/a~1") == b"other"


def test_what_no_kept_commit_names_is_deleted_and_what_one_names_is_there(place, folder):
    mirror = mirror_to(place, ON_DEMAND)

    def whole(act):
        """Whatever is deleted, the two newest commits stay whole."""
        names = place.names("commits")[-2:]
        for name in names:
            data = place.read(f"commits/{name}")
            if data and (found := latest(place)):
                assert act.data is not None or act.name not in found.objects

    with mirror.released(), mirror.of(folder, FreshNoise()):
        place.before = whole
        for n in range(6):
            (folder / "a").write_bytes(b"%d" % n)
            mirror.flush()
        assert len(place.names("commits")) == 2
        assert len(place.below("by-00000001")) == 2
    assert latest(place).over


def test_a_run_stands_still_at_what_was_announced_until_more_is_in_the_storage(place, folder):
    mirror = mirror_to(place)
    with mirror.released():
        with mirror.of(folder, AHEAD):
            assert mirror.limit == 10
            for update in range(1, 36):
                found = latest(place)
                mirror.horizon.reach(update)
                # what the storage knows of when an update is made, or a newer commit, has announced it
                assert update <= latest(place).announced
                assert found.covered <= update - 1
        last = latest(place)
    assert (last.noise, last.covered, last.announced) == (ANNOUNCED, 34, 34)


def test_a_run_that_comes_near_what_was_announced_asks_for_more_at_once(place, folder):
    """It does not stand still until a commit would be due anyway."""
    mirror = mirror_to(place, ON_DEMAND)
    with mirror.released(), mirror.of(folder, AHEAD):
        for update in range(1, 36):
            mirror.horizon.reach(update)
        assert latest(place).announced >= 35


def test_what_is_released_from_now_on_is_announced_before_it_is(place, folder):
    mirror = mirror_to(place, ON_DEMAND)
    with mirror.released(), mirror.of(folder, FreshNoise()):
        assert latest(place).noise == NO_NOISE
        mirror.announce(FreshNoise(TRIALS))
        told = latest(place)
        assert told.noise == TRIALS
        mirror.announce(FreshNoise(TRIALS))
        assert latest(place) == told, "it knows already"


def test_who_drives_a_run_elsewhere_notes_how_far_it_is_and_hears_that_no_more_is_brought(place, folder):
    mirror, stopped = mirror_to(place, ON_DEMAND), []

    def run():
        with mirror.released(), mirror.of(folder, AHEAD, failed=lambda: stopped.append(1)):
            mirror.note(7)
            mirror.check()
            assert mirror.horizon.made == 7
            assert not stopped
            place.before = failing(10**9)
            (folder / "a").write_bytes(b"second")
            with pytest.raises(RunError, match="cannot be written"):
                mirror.flush()
            assert stopped
            for told in (mirror.check, lambda: mirror.note(8)):
                with pytest.raises(RunError, match="cannot be written"):
                    told()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RunError, match="cannot be written"):
            run()


def test_where_nothing_is_announced_nobody_waits(place, folder):
    for noise, said in ((FreshNoise(), NO_NOISE), (FreshNoise(UNBOUNDED), UNBOUNDED)):
        mirror = mirror_to(place)
        with mirror.released():
            with mirror.of(folder, noise):
                assert mirror.limit is None
                assert latest(place).noise == said
            assert latest(place).noise == NO_NOISE  # over: there is no more than this


def failing(times, name="by-"):
    left = [times]

    def fail(act):
        if act.name.startswith(name) and left[0] > 0:
            left[0] -= 1
            raise OSError(28, "No space left on device")

    return fail


def test_what_fails_for_a_while_is_tried_again_and_warned_of(place, folder):
    mirror = mirror_to(place, ON_DEMAND)
    with mirror.released(), mirror.of(folder, FreshNoise()):
        (folder / "a").write_bytes(b"second")
        place.before = failing(2)
        with pytest.warns(RuntimeWarning, match=r"storage: cannot be written \(No space left .*tried again"):
            mirror.flush()
        assert place.read("by-00000001/a~3") == b"second"


def test_what_fails_for_good_ends_the_run_in_words_that_name_the_storage(place, folder):
    mirror = mirror_to(place)
    place.before = failing(0)
    ended = []

    def run():
        with mirror.released(), mirror.of(folder, AHEAD):
            place.before = failing(10**9)
            (folder / "a").write_bytes(b"second")
            for update in range(1, 100):
                mirror.horizon.reach(update)
                ended.append(update)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            RunError, match=r"file://.*: cannot be written .*has all of it: see to the storage"
        ):
            run()
    assert max(ended) <= 10
    assert (folder / "a").read_bytes() == b"second"
    assert latest(place).announced == 10


@pytest.mark.parametrize("own", [None, ValueError("its own")])
def test_who_asks_nothing_meanwhile_learns_at_its_end_that_the_storage_failed(place, folder, own):
    """But for what fails by itself, whose error it stays."""
    mirror, stopped = mirror_to(place), threading.Event()

    def run():
        with mirror.released(), mirror.of(folder, FreshNoise(), failed=stopped.set):
            place.before = failing(10**9)
            (folder / "a").write_bytes(b"second")
            assert stopped.wait(60)
            if own:
                raise own

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(type(own) if own else RunError, match="its own" if own else "cannot be written"):
            run()
    assert latest(place).number == 0


def test_a_storage_that_cannot_be_written_from_the_start_is_wrong_input(place, folder):
    mirror = mirror_to(place)
    place.before = failing(10**9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="cannot be written"), mirror.of(folder, FreshNoise()):
            pytest.fail("nothing is begun")


def test_a_writer_that_was_taken_over_brings_nothing_more(place, folder):
    first = mirror_to(place, ON_DEMAND)
    second = Lease(place, 2, 1.0)

    def taken_over():
        with first.released(), first.of(folder, FreshNoise()):
            second.renew()
            (folder / "a").write_bytes(b"second")
            first.flush()

    with pytest.raises(Fenced, match="has taken this storage over"):
        taken_over()
    assert place.below("by-00000001") == ["a"]
    assert place.names("commits") == ["00000001-00000000.json"]
    assert b'"released": false' in place.read(f"leases/{second._name}")


def test_one_that_was_taken_over_while_it_committed_makes_none_of_the_updates_it_announced(place, folder):
    """Whoever has taken over reads the commit, or is seen: never neither."""
    mirror = mirror_to(place)
    taken = threading.Event()

    def take(act):
        if act.name == "commits/00000001-00000001.json" and not taken.is_set():
            taken.set()
            Lease(place, 2, 1.0).renew()

    place.before = take
    made = []

    def run():
        with mirror.released(), mirror.of(folder, AHEAD):
            for update in range(1, 100):
                mirror.horizon.reach(update)
                made.append(update)

    with pytest.raises(RunError, match="taken this storage over"):
        run()
    assert latest(place).announced > 10
    assert max(made) == 10


def test_the_lease_moves_while_a_run_goes_on_and_is_released_after_it(place, folder):
    mirror = mirror_to(place)
    with (
        mirror.released(),
        mirror.of(folder, FreshNoise()),
        pytest.raises(InputError, match="is writing to this storage"),
    ):
        Lease.take(place, 1.0)
    waited = []
    Lease.take(place, 1.0, sleep=waited.append)
    assert not waited


def test_what_an_interrupted_writer_left_is_swept_by_the_next(place, folder):
    first = mirror_to(place)
    place.write("by-00000001/half", b"")
    place.write("commits/00000001-00000000.json", b"torn")
    place.write("commits/.00000001-00000001.json.4711", b"half")
    with first.released(), first.of(folder, FreshNoise()):
        pass
    second = mirror_to(place)
    second.go_on_from(latest(place))
    with second.released(), second.of(folder, FreshNoise()):
        (folder / "a").write_bytes(b"second")
    assert place.below("by-00000001") == ["a"]  # the commit before the last names it
    assert place.below("commits") == ["00000002-00000000.json", "00000002-00000001.json"]
    assert latest(place).files["a"].pieces == (("by-00000002/a", 6),)
