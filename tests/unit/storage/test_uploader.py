import threading
import warnings
from dataclasses import replace

import pytest

from raydpzv.errors import InputError, RunError, StoppedEarly
from raydpzv.storage.lease import Fenced, Lease
from raydpzv.storage.manifest import FRESH_NOISE, NO_NOISE, latest
from raydpzv.storage.uploader import FolderUploader
from tests.helpers.storages import QUICK, RecordedStorage, full_disk

ON_DEMAND = replace(QUICK, commit=1000.0)


@pytest.fixture
def storage(tmp_path):
    return RecordedStorage(tmp_path / "storage")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_bytes(b"first")
    return tmp_path / "run"


def uploader_to(storage, times=QUICK):
    return FolderUploader(storage, Lease.acquire(storage, QUICK.lease), "run", times)


@pytest.mark.parametrize("fresh", [False, True])
def test_manifests_name_the_noise_before_any_is_drawn(storage, folder, fresh):
    uploader = uploader_to(storage, ON_DEMAND)
    kinds = {True: FRESH_NOISE, False: NO_NOISE}
    with uploader.released(), uploader.uploads(folder, fresh_noise=fresh):
        assert (latest(storage).noise, latest(storage).over) == (kinds[fresh], False)
        uploader.declare(fresh_noise=not fresh)
        declared = latest(storage)
        assert declared.noise == kinds[not fresh]
        uploader.declare(fresh_noise=not fresh)
        assert latest(storage) == declared, "the storage has it already"
    assert (latest(storage).noise, latest(storage).over) == (kinds[not fresh], True)


def test_changes_are_uploaded_without_a_call(storage, folder):
    uploader = uploader_to(storage)
    seen = threading.Event()
    with uploader.released(), uploader.uploads(folder, fresh_noise=False):
        storage.before = lambda act: seen.set() if act.name == "by-00000001/a~1" else None
        (folder / "a").write_bytes(b"second")
        assert seen.wait(60)


def test_a_failure_that_passes_is_retried_with_a_warning(storage, folder):
    uploader = uploader_to(storage, ON_DEMAND)
    with uploader.released(), uploader.uploads(folder, fresh_noise=False):
        (folder / "a").write_bytes(b"second")
        storage.before = full_disk(2)
        with pytest.warns(
            RuntimeWarning, match=r"storage: cannot be written \(No space left .*tried again"
        ):
            uploader.flush()
        assert storage.read("by-00000001/a~3") == b"second"


@pytest.mark.parametrize(
    ("own", "raised"),
    [
        (None, "cannot be written"),
        (StoppedEarly("as `failed` asked"), "cannot be written"),
        (ValueError("its own"), "its own"),
    ],
)
def test_a_failure_for_good_stops_the_block_and_names_the_storage(storage, folder, own, raised):
    uploader, stopped = uploader_to(storage), threading.Event()

    def run():
        with uploader.released(), uploader.uploads(folder, fresh_noise=False, failed=stopped.set):
            storage.before = full_disk()
            (folder / "a").write_bytes(b"second")
            assert stopped.wait(60)
            with pytest.raises(
                RunError, match=r"file://.*: cannot be written .*has all of it: see to the storage"
            ):
                uploader.flush()
            if own:
                raise own

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError if raised == "its own" else RunError, match=raised):
            run()
    assert latest(storage).number == 0
    assert not latest(storage).over


def test_a_storage_that_fails_from_the_start_is_wrong_input(storage, folder):
    uploader = uploader_to(storage)
    storage.before = full_disk()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with (
            pytest.raises(InputError, match="cannot be written"),
            uploader.uploads(folder, fresh_noise=False),
        ):
            pytest.fail("the block does not start")


def test_a_writer_that_lost_its_lease_uploads_nothing_more(storage, folder):
    first, second = uploader_to(storage, ON_DEMAND), Lease(storage, 2, 1.0)

    def lose_the_lease():
        with first.released(), first.uploads(folder, fresh_noise=False):
            second.renew()
            (folder / "a").write_bytes(b"second")
            first.flush()

    with pytest.raises(Fenced, match="has taken this storage over"):
        lose_the_lease()
    assert storage.below("by-00000001") == ["a"]
    assert storage.names("commits") == ["00000001-00000000.json"]
    assert b'"released": false' in storage.read(f"leases/00000002-{second.writer}.json")


def test_the_lease_is_renewed_during_the_block_and_released_after_it(storage, folder):
    uploader = uploader_to(storage)
    with (
        uploader.released(),
        uploader.uploads(folder, fresh_noise=False),
        pytest.raises(InputError, match="is writing to this storage"),
    ):
        Lease.acquire(storage, 1.0)
    Lease.acquire(storage, 1.0, sleep=lambda seconds: pytest.fail("waited"))


def test_a_resumed_folder_uploads_only_later_changes(storage, folder):
    first = uploader_to(storage)
    with first.released(), first.uploads(folder, fresh_noise=False):
        pass
    second = uploader_to(storage, ON_DEMAND)
    second.resume_from(latest(storage))
    assert second.up_to_date
    with second.released(), second.uploads(folder, fresh_noise=False):
        (folder / "b").write_bytes(b"new")
    assert storage.below("by-00000002") == ["b"]
