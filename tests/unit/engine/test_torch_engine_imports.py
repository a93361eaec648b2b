"""What a run under torch does not load: torch's compiler takes seconds, in every process."""

from __future__ import annotations

import json

import pytest

from tests.helpers.programs import Forked, said

RUN = """
import json, sys
import scenarios

scenarios.run(scenarios.load(sys.argv[1], sys.argv[2:]))
print(json.dumps([name for name in ("raydpzv.engine.torch_engine", "sympy", "torch._dynamo") if name in sys.modules]))
"""
FEW = ("budget.updates=2", "evaluate.every=2", "method.batch=4")


@pytest.mark.parametrize(
    "scenario",
    [
        ("vafl", "model.engine=torch"),
        ("reviews_dpzv", "data.rows=200", "privacy.noise=seeded"),
    ],
    ids=["by the chain rule", "with token embeddings"],
)
def test_no_compiler(scenario: tuple[str, ...]) -> None:
    found = json.loads(said(Forked(["-c", RUN, *scenario, *FEW])).splitlines()[-1])
    assert found == ["raydpzv.engine.torch_engine"]
