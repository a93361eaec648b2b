from pathlib import Path

from filelock import FileLock

from raydpzv.files import LOCK, is_written


def test_a_folder_is_written_as_long_as_somebody_has_its_lock(tmp_path: Path) -> None:
    assert is_written(tmp_path) is False
    assert not (tmp_path / LOCK).exists(), "who asks leaves nothing"
    with FileLock(tmp_path / LOCK):
        assert is_written(tmp_path) is True
    assert is_written(tmp_path) is False


def test_of_a_folder_that_cannot_be_locked_nobody_can_tell(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    assert is_written(tmp_path) is None
