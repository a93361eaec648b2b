from __future__ import annotations

import pytest
import ray

from actors.cluster import connected
from raydpzv.errors import InputError, RunError


@pytest.mark.parametrize(
    ("error", "wanted", "words"),
    [
        (
            Exception("The current node timed out during startup."),
            RunError,
            "Ray did not start: The current node",
        ),
        (ConnectionError("nobody there"), InputError, "cannot reach Ray at local: nobody there"),
        (TypeError("wrong option"), TypeError, "wrong option"),
    ],
)
def test_a_ray_that_does_not_come_up_is_said_in_words_and_ended(
    error: Exception, wanted: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def fail(**options: object) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # whatever other tests of this process left
    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    with pytest.raises(wanted, match=words), connected("local"):
        pass
    assert ended
