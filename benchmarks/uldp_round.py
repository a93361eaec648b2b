"""CPU seconds of the local work of ULDP-AVG: a model per user in a loop, and by this program.

About 700 pairs of a user and a silo, 24,584 records of 30 features of noise, an mlp 30-30-2, 10
steps on all records of a pair. One thread.

published   as the paper's Algorithm 3 reads: for each user of each silo a copy of the model,
torch.optim.SGD on
            cross_entropy, the difference clipped and added with its weight
raydpzv     the silos' roles, all users of a silo in one call; clipped to whole numbers and summed;
no noise

The ways take turns in one process, and a ratio is the median over the turns. Checked first: both
give the same sum, up to rounding.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from common import environment, median, options, show, spread, verdict, write
from torch import nn
from torch.nn.functional import cross_entropy

from raydpzv.data.users import Known, UserParts, share_users
from raydpzv.engine.compiled_objective import CompiledObjective
from raydpzv.engine.dense import dense_whole
from raydpzv.engine.row_readers import KeptRows
from raydpzv.errors import RunError
from raydpzv.keys import Key
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal.uldp_avg import TrainingSilos, UldpAvgConfig
from raydpzv.methods.roles import Order
from raydpzv.models.whole import whole
from raydpzv.privacy.user_release import UserNoiseParts, UserRelease
from raydpzv.settings.sections_horizontal import UsersSection
from raydpzv.wire.secure_sums import UserSum
from raydpzv.wire.weights import Weights

SILOS, FEATURES, HIDDEN, CLASSES = 5, 30, 30, 2
STEPS, LR, CLIP = 10, 0.1, 0.1
TARGET = 15.0
"""CPU seconds of the published way over ours, at least."""
_CLOSE = 1e-3
_KEY = Key(0)


@dataclass(frozen=True)
class Case:
    """So many records, shared out among so many users."""

    rows: int
    users: int


CASE, QUICK = Case(24_584, 143), Case(600, 20)
"""143 users have 700 pairs or so."""


class Problem:
    """Records, whose they are, and a model to start from."""

    def __init__(self, case: Case) -> None:
        generator = (_KEY / "records").generator()
        self.x = torch.from_numpy(
            generator.standard_normal((case.rows, FEATURES), dtype=np.float32)
        )
        self.y = torch.from_numpy(generator.integers(0, CLASSES, case.rows))
        self.parts: UserParts = share_users(
            Known(self.y.numpy()), SILOS, UsersSection(count=case.users), _KEY
        )
        network = dense_whole("mlp", (FEATURES,), (HIDDEN,), CLASSES)
        assert network is not None
        self.objective = CompiledObjective(network, KeptRows(self.x, self.y))
        self.start = torch.from_numpy(network.initial(_KEY))

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.parts.owners)


def published(problem: Problem) -> np.ndarray:
    """Return Σ_su w_su clip(Δ_su), float32 [d], by a copy of the model for each pair."""
    model = whole("mlp", (FEATURES,), (HIDDEN,), CLASSES)
    nn.utils.vector_to_parameters(problem.start.clone(), model.parameters())
    counts = problem.parts.counts()
    total = torch.zeros_like(problem.start)
    for silo in range(SILOS):
        pairs = problem.parts.pairs(silo)
        for place, user in enumerate(pairs.users):
            rows = torch.from_numpy(pairs.of(place).astype(np.int64))
            x, y = problem.x[rows], problem.y[rows]
            local = copy.deepcopy(model)
            optimiser = torch.optim.SGD(local.parameters(), LR)
            for _ in range(STEPS):
                optimiser.zero_grad()
                cross_entropy(local(x), y).backward()
                optimiser.step()
            change = nn.utils.parameters_to_vector(local.parameters()).detach() - problem.start
            weight = counts[silo, user] / counts[:, user].sum()
            total += weight * change * min(1.0, CLIP / float(change.norm()))
    return total.numpy()


def ours(problem: Problem) -> np.ndarray:
    """Return the same by the silos' roles."""
    noise = UserNoiseParts(UserRelease(CLIP, 16, 0.0), problem.parts.users, _KEY, _KEY)
    config = UldpAvgConfig(lr=LR, local_epochs=STEPS, batch=10**9)
    group = TrainingSilos(
        ClientGroupParts([problem.objective], problem.parts, _KEY, users=noise), config
    )
    body = Weights(problem.start.numpy())
    uploads = group.process([Order(silo, body, 1) for silo in range(SILOS)])
    sums = [upload.body.values for upload in uploads if isinstance(upload.body, UserSum)]
    return np.asarray(np.sum(sums, axis=0) * noise.release.unit)


def check_sums(problem: Problem) -> None:
    """Raise RunError unless both ways give the same sum."""
    one, other = published(problem), ours(problem)
    gap = float(np.abs(one - other).max())
    if not gap <= _CLOSE * float(np.abs(one).max()):
        raise RunError(
            f"the sums of both ways differ by {gap}, of at most {np.abs(one).max()}: they do not "
            "compute the same, and their pace compares nothing"
        )


def seconds(work: Callable[[Problem], np.ndarray], problem: Problem) -> float:
    """Return the CPU seconds of one turn."""
    start = time.process_time()
    work(problem)
    return time.process_time() - start


def main() -> None:
    """Run the benchmark."""
    chosen = options(__doc__.splitlines()[0] if __doc__ else "").parse_args()
    torch.set_num_threads(1)
    problem, before = Problem(QUICK if chosen.quick else CASE), environment()
    check_sums(problem)
    turns: list[tuple[float, float]] = []
    for _ in range(chosen.repeats or (1 if chosen.quick else 5)):
        turns.append((seconds(published, problem), seconds(ours, problem)))
        print(f"{turns[-1][0] / turns[-1][1]:.1f} x", file=sys.stderr, flush=True)
    ratios = [theirs / own for theirs, own in turns]
    found: dict[str, Any] = {
        "pairs": problem.pairs,
        "published_cpu_seconds": median([theirs for theirs, _ in turns]),
        "cpu_seconds": median([own for _, own in turns]),
        "times_faster": median(ratios),
        "spread": spread(ratios),
        "target": TARGET,
        "met": median(ratios) >= TARGET,
    }
    row = [
        str(found["pairs"]),
        f"{found['published_cpu_seconds']:.3f}",
        f"{found['cpu_seconds']:.3f}",
        f"{found['times_faster']:.1f}",
        f"{found['spread']:.0%}",
        verdict(found["times_faster"], TARGET),
    ]
    columns = [
        "pairs",
        "a model per user, CPU s",
        "raydpzv, CPU s",
        "times faster",
        "spread",
        "target",
    ]
    show("Local work of a round of ULDP-AVG", columns, [row])
    write(
        "uldp_round",
        {"figures": [found], "environment": before, "environment_after": environment()},
        chosen.json,
    )


if __name__ == "__main__":
    main()
