"""What a run under torch does not load: torch's compiler takes seconds in every process, and pandas
half of one.
"""

import json

from tests.helpers.programs import Forked, said

RUN = """
import json, sys
import scenarios

few = ("budget.updates=2", "evaluate.every=2", "method.batch=4")
# by the chain rule, and with token embeddings
scenarios.run(scenarios.load("vafl", ["model.engine=torch", *few]))
scenarios.run(scenarios.load("reviews_dpzv", ["data.rows=200", "privacy.noise=seeded", *few]))
names = ("raydpzv.engine.torch_engine", "sympy", "torch._dynamo", "pandas")
print(json.dumps([name for name in names if name in sys.modules]))
"""


def test_neither_compiler_nor_pandas() -> None:
    found = json.loads(said(Forked(["-c", RUN])).splitlines()[-1])
    assert found == ["raydpzv.engine.torch_engine"]
