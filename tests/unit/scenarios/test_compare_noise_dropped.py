"""A comparison without values of ε says whose noise it leaves out."""

from __future__ import annotations

import pytest

from raydpzv.compare.file import resolved
from scenarios.compare import _asked, noise_dropped


@pytest.mark.parametrize(
    ("what", "epsilons", "said"),
    [
        (["digits_dpzv", "vafl"], None, ["noise of digits_dpzv dropped: no --epsilons given"]),
        (["digits_dpzv", "vafl"], "1", []),
        (["vafl", "frozen"], None, []),
        (["straggler_times"], None, []),
    ],
)
def test_noise_that_is_left_out_is_said(what, epsilons, said):
    file = _asked(what, None, "1", epsilons, None)
    found = resolved(file, ["privacy.clip=1"] if epsilons else [])
    assert noise_dropped(what, found) == said
