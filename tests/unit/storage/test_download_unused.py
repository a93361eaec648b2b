"""Which places may become a storage: empty ones, and what an interrupted beginning left."""

from __future__ import annotations

import pyarrow.fs
import pytest

from raydpzv.errors import InputError
from raydpzv.storage.commits import Commit
from raydpzv.storage.download import check_unused
from raydpzv.storage.filesystem import StorageFolder
from raydpzv.storage.lease import Lease
from tests.helpers.storages import KeptPlace, left_after


def bucket():
    from pyarrow._fs import _MockFileSystem  # in memory; the one of pyarrow's own tests

    return _MockFileSystem()


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    systems = {
        "disk": lambda: (pyarrow.fs.LocalFileSystem(), str(tmp_path / "place")),
        "bucket": lambda: (bucket(), "bucket/place"),
    }
    return StorageFolder(*systems[request.param](), "here")


def test_nothing_there_may_become_a_storage(place):
    check_unused(place)
    place._make(place._base)
    check_unused(place)


@pytest.mark.parametrize(
    "name", ["scenario.toml", "rows/part-0", "by-1/x", "commits.old/x", ".hidden", "leases2/x"]
)
def test_other_things_are_left_alone(place, name):
    place.write(name, b"")
    with pytest.raises(
        InputError, match=r"here: holds other things \(.*\) and no storage; give the URI of"
    ) as error:
        check_unused(place)
    assert name.partition("/")[0] in str(error.value)


def test_of_many_the_first_are_named_those_that_everybody_sees_before_the_others(place):
    for name in (".a", "b", "c", "d/x", "e/x"):
        place.write(name, b"")
    with pytest.raises(InputError, match=r"\(b, c, d and 2 more\)"):
        check_unused(place)


def test_a_folder_of_a_storages_name_makes_no_storage_of_other_things(place):
    place.write("commits/of-mine.txt", b"")
    place.write("notes.txt", b"")
    with pytest.raises(InputError, match=r"\(notes\.txt\)"):
        check_unused(place)


@pytest.mark.parametrize("which", ["lease", "commit"])
def test_a_storage_stays_one_beside_which_something_was_laid(place, which):
    if which == "lease":
        Lease.take(place, 1.0)
    else:  # whose leases somebody deleted
        commit = Commit(1, 0, "run", "somebody", {})
        place.write(commit.name, commit.encoded())
    place.write("README.md", b"")
    check_unused(place)


def test_what_a_kill_in_the_midst_of_a_beginning_leaves_is_begun_anew(tmp_path):
    began = KeptPlace(tmp_path / "began")
    began.write("leases/00000001-abc.json", b"{}")
    began.write("by-00000001/scenario.toml", b"x")
    began.write(Commit(1, 0, "run", "somebody", {}).name, b"torn")
    assert len(began.acts) == 3
    for done in range(len(began.acts) + 1):
        folder = tmp_path / f"after {done}"
        torn = began.acts[done] if done < len(began.acts) else None
        check_unused(left_after(began.acts[:done], folder, torn=torn))
    for alone in ("leases", "commits", "by-00000001"):
        place = left_after([], tmp_path / f"only {alone}")
        place._make(place._path(alone))
        check_unused(place)
        (tmp_path / f"only {alone}" / alone / ".file.17").write_bytes(b"half")
        check_unused(place)
