import pytest

from raydpzv.errors import DataError, InputError, NotRecomputable
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import Index
from raydpzv.storage.link import LINK, Link, link_of, newest_here, require_resumable, write_link


@pytest.fixture
def uri(tmp_path):
    return (tmp_path / "storage").as_uri()


def stored(uri, number, writer, *, fresh=False, over=False):
    index = Index(number, writer, {}, fresh_noise=fresh, over=over)
    open_storage(uri).write(index.name, index.encoded())
    return index


def test_a_folder_remembers_its_storage(tmp_path, uri):
    assert link_of(tmp_path) is None
    assert require_resumable(tmp_path) is None
    write_link(tmp_path, Link(uri, "me", "index/1-me.json"))
    assert link_of(tmp_path) == Link(uri, "me", "index/1-me.json")
    (tmp_path / LINK).write_text("{}")
    with pytest.raises(DataError, match="is damaged"):
        link_of(tmp_path)


WRITER, DOWNLOADED = ("me", ""), ("", "index/00000003-other.json")


@pytest.mark.parametrize(
    ("link", "index", "newest"),
    [
        (WRITER, (9, "me"), True),  # whatever this folder wrote last
        (WRITER, (9, "other"), False),
        (WRITER, None, True),  # killed before its first copy
        (DOWNLOADED, (3, "other"), True),
        (DOWNLOADED, (4, "other"), False),  # its writer went on
        (DOWNLOADED, (3, "third"), False),
        (DOWNLOADED, None, False),
        (("me", DOWNLOADED[1]), (3, "other"), True),  # killed before its first copy
    ],
)
def test_whose_folder_is_the_newest(tmp_path, uri, link, index, newest):
    if index:
        stored(uri, *index)
    here = Link(uri, *link)
    if newest:
        place, found = newest_here(tmp_path, here)
        assert (place.uri, found and (found.number, found.writer)) == (uri, index)
        return
    with pytest.raises(
        InputError, match=r"holds an older copy of file:.*, which another folder has"
    ):
        newest_here(tmp_path, here)


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("link", [WRITER, DOWNLOADED, ("new", DOWNLOADED[1])])
def test_fresh_noise_goes_on_elsewhere_after_a_clean_end_alone(tmp_path, uri, link, fresh, over):
    writer = "me" if link == WRITER else "other"
    stored(uri, 3, writer, fresh=fresh, over=over)
    write_link(tmp_path, Link(uri, *link))
    if fresh and not over and link != WRITER:
        with pytest.raises(NotRecomputable, match="did not end cleanly"):
            require_resumable(tmp_path)
    else:
        assert require_resumable(tmp_path)
