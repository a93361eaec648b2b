"""A deferred library is loaded by the first look inside it, by whatever way it is imported, and not before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydpzv.lazy_import import defer

LIBRARY = "library_for_test_deferred"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / LIBRARY
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"import sys\nvalue = 3\nloaded = sys.modules.get('{LIBRARY}.part')\nassert loaded is None\n"
        f"import {LIBRARY}\nassert {LIBRARY}.value == 3\n"
    )
    (folder / "part.py").write_text(f"import {LIBRARY}\nvalue = {LIBRARY}.value + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith(LIBRARY)]:
        del sys.modules[name]


def loaded() -> bool:
    return "value" in vars(sys.modules[LIBRARY])


def test_importing_it_does_not_load_it_and_looking_inside_does(library: Path) -> None:
    defer(LIBRARY)
    namespace: dict[str, object] = {}
    exec(f"import {LIBRARY}\nimport {LIBRARY} as again", namespace)
    assert not loaded()
    assert sys.modules[LIBRARY].value == 3
    assert loaded()
    assert type(sys.modules[LIBRARY]) is type(sys)
    assert namespace["again"] is sys.modules[LIBRARY]


@pytest.mark.parametrize(
    "code", [f"from {LIBRARY} import part", f"import {LIBRARY}.part", f"from {LIBRARY}.part import value"]
)
def test_importing_a_part_of_it_loads_it_first(library: Path, code: str) -> None:
    defer(LIBRARY)
    exec(code, {})
    assert loaded()
    assert sys.modules[f"{LIBRARY}.part"].value == 4


def test_one_that_fails_to_load_is_loaded_anew_by_the_next_import(library: Path) -> None:
    source = (library / "__init__.py").read_text()
    (library / "__init__.py").write_text("raise OSError('broken')\n")
    defer(LIBRARY)
    with pytest.raises(OSError, match="broken"):
        _ = sys.modules[LIBRARY].value
    (library / "__init__.py").write_text(source + "# of another length\n")
    exec(f"import {LIBRARY}", {})
    assert loaded()


def test_what_is_loaded_already_or_not_installed_is_left_alone() -> None:
    before = sys.modules["pytest"]
    defer("pytest")
    assert sys.modules["pytest"] is before
    defer("a_library_that_nobody_has")
    assert "a_library_that_nobody_has" not in sys.modules
