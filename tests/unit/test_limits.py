import errno
import resource

import pytest

from raydpzv import limits


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "fits into memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "fits into memory"),
        (ImportError("lib.so: failed to map segment from shared object"), "fits into memory"),
        (RuntimeError("can't start new thread"), "fits into memory"),
        (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
        (OSError(errno.ENOENT, "No such file or directory"), None),
        (RuntimeError("something else"), None),
        (ImportError("No module named 'ray'"), None),
        (ValueError("bad_alloc"), None),
    ],
)
def test_what_ran_into_a_limit_is_named(error, says):
    found = limits.shortage(error)
    if says is None:
        assert found is None
    else:
        assert says in found
        assert "ulimit" in found
        assert "\n" not in found


def test_open_files_are_raised_no_further_than_allowed(monkeypatch):
    given = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 300))
    monkeypatch.setattr(resource, "setrlimit", lambda which, both: given.append(both))
    assert limits.raise_open_files(4096) == 300
    assert limits.raise_open_files(200) == 200
    assert limits.raise_open_files(64) == 64
    assert given == [(300, 300), (200, 300)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert limits.raise_open_files(4096) is None
