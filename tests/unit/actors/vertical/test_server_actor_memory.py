"""What a server takes of memory it takes before the run begins, or gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raydpzv
from actors.horizontal.server_actor import HorizontalServerActor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.prepare import Prepared, prepare


def vertical(prepared: Any) -> VerticalServerActor:
    server = VerticalServerActor(prepared, 0.0)
    server.begin(None, keeps=False)
    return server


def horizontal(prepared: Any) -> HorizontalServerActor:
    server = HorizontalServerActor(prepared)
    server.begin(None, None, keeps=False)
    return server


CASES: dict[str, Callable[[Any], Any]] = {"digits_dpzv": vertical, "digits_users": horizontal}


@pytest.fixture(params=CASES)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[np.ndarray]]:
    """A server in this process, and the privacy losses of which it asked for ε."""
    asked = []

    class Noted:
        def __init__(self, real: Any) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        def epsilons(self, mus: np.ndarray) -> np.ndarray:
            asked.append(mus)
            return self._real.epsilons(mus)

    prepared: Prepared = prepare(raydpzv.load(request.param))
    real = type(prepared).privacy_filter
    monkeypatch.setattr(type(prepared), "privacy_filter", lambda self: Noted(real(self)))
    monkeypatch.setattr("actors.server_actor.claim_device", lambda gpus: "cpu")
    return CASES[request.param](prepared), asked


def test_what_works_out_epsilon_is_imported_before_the_run(made: tuple[Any, list[np.ndarray]]) -> None:
    """20 MB, and a quarter of a second: the first checkpoint was held up so long, and those after it rarer for it."""
    _, ((mu,),) = made
    assert np.isfinite(mu)
    assert mu > 0


def test_each_drain_gives_back_what_those_before_it_took(
    made: tuple[Any, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    class Pool:
        def release_unused(self) -> None:
            given.append(self)

    server, _ = made
    monkeypatch.setattr(pa, "default_memory_pool", Pool)
    server.drain()
    server.drain(rest=False)
    assert len(given) == 2
