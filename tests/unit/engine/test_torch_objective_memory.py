import sys

import pytest

from tests.helpers.programs import Forked, said

FORWARD_PASSES = """
import resource, torch
from raydpzv.keys import Key
from raydpzv.engine.row_readers import KeptRows
from raydpzv.engine.torch_objective import TorchObjective
from raydpzv.models.whole import whole
from raydpzv.zo.directions import Direction

torch.set_num_threads(1)
x, y = torch.rand(32, 1, 28, 28, generator=torch.Generator()), torch.arange(32) % 10
objective = TorchObjective(lambda: whole("cnn_fashion", (1, 28, 28), (), 62), KeptRows(x, y))
at, directions = objective.initial(Key(0)), [Direction(seed, objective.size) for seed in range(10)]
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    objective.losses(at, directions, 1e-3, [torch.arange(32).numpy()])
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
def test_forward_passes_keep_their_memory() -> None:
    """In a process of its own, as this one's allocator has learnt already."""
    assert int(said(Forked(["-c", FORWARD_PASSES]))) < 10 * 200
