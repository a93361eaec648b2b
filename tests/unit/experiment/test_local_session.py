import gc

import pytest

from raydpzv.experiment.local_session import frozen_heap


@pytest.mark.parametrize("own", [False, True])
def test_a_programs_own_frozen_heap_is_left_alone(monkeypatch, own):
    said = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: int(own))
    monkeypatch.setattr(gc, "freeze", lambda: said.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: said.append("unfreeze"))
    with frozen_heap():
        assert said == ([] if own else ["freeze"])
    assert said == ([] if own else ["freeze", "unfreeze"])
