import pytest

from raydpzv.compare.file import resolved
from scenarios.command_options import CompareCommand
from scenarios.commands.compare import asked_for, noise_dropped


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
    file = asked_for(CompareCommand(what=what, seeds="1", epsilons=epsilons))
    found = resolved(file, ["privacy.clip=1"] if epsilons else [])
    assert noise_dropped(what, found) == said
