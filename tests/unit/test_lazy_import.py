import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raydpzv.lazy_import import Lazy

LIBRARY = "library_for_test_lazy"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    source = tmp_path / f"{LIBRARY}.py"
    source.write_text("import time\ntime.sleep(0.1)\nvalue = [3]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield source
    sys.modules.pop(LIBRARY, None)


def test_the_first_look_inside_loads_it(source: Path) -> None:
    library = Lazy(LIBRARY)
    assert LIBRARY not in sys.modules
    assert library.value is sys.modules[LIBRARY].value
    assert vars(library)["value"] is sys.modules[LIBRARY].value


def test_threads_that_look_at_the_same_time_get_the_whole_library(source: Path) -> None:
    library = Lazy(LIBRARY)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: library.value, range(4)))
    assert all(value is found[0] for value in found)


def test_a_library_that_fails_to_load_is_loaded_by_the_next_look(source: Path) -> None:
    library, good = Lazy(LIBRARY), source.read_text()
    source.write_text("raise OSError('broken')\n")
    with pytest.raises(OSError, match="broken"):
        _ = library.value
    source.write_text(good)
    assert library.value == [3]


def test_an_unknown_attribute_is_an_attribute_error_and_an_unknown_library_an_import_error(
    source: Path,
) -> None:
    assert not hasattr(Lazy(LIBRARY), "nothing")
    with pytest.raises(ModuleNotFoundError):
        _ = Lazy("a_library_that_nobody_has").value
