import gc

import pytest

from raydpzv.experiment.local_session import frozen_heap


def test_the_heap_is_thawed_however_the_run_ends(monkeypatch):
    said = []
    monkeypatch.setattr(gc, "freeze", lambda: said.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: said.append("unfreeze"))
    with pytest.raises(ValueError, match="broken"), frozen_heap():
        raise ValueError("broken")
    assert said == ["freeze", "unfreeze"]
