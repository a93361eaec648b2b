"""Shared by unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raydpzv.records.run_writer import RunWriter
from tests.helpers.numbered_rows import begun


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunWriter]:
    """The folder of a run that has no rows yet."""
    with begun(tmp_path) as folder:
        yield folder
