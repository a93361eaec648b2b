from pathlib import Path

import pytest

import scenarios

_SEEDED = ("privacy.noise=seeded", "model.bottom=mlp")


def checkpoint_bytes(
    folder: Path, scenario: str, changes: tuple[str, ...], width: int
) -> tuple[int, int]:
    """Return the bytes of the last checkpoint, and of the models of all but the server."""
    given = [
        *changes,
        "budget.updates=20",
        "record.checkpoint_updates=19",
        f"model.hidden=[{width}]",
    ]
    run = scenarios.run(scenarios.load(scenario, given), folder)
    models = sum(4 * x.size for party, x in run.models.items() if party != "server")
    return run.summary["checkpoints"]["bytes"], models


@pytest.mark.parametrize(
    ("scenario", "changes", "grows"),
    [
        ("digits_dpzv", _SEEDED, False),
        ("digits_decomfl", (), False),
        ("decomfl_async", (), False),
        ("vafl_digits", ("model.bottom=mlp",), True),  # the control
    ],
)
def test_the_size_of_a_checkpoint(
    tmp_path: Path, scenario: str, changes: tuple[str, ...], grows: bool
) -> None:
    small, few = checkpoint_bytes(tmp_path / "small", scenario, changes, 16)
    large, many = checkpoint_bytes(tmp_path / "large", scenario, changes, 128)
    assert many > 4 * few
    if grows:
        assert large - small >= many - few
    else:
        assert abs(large - small) < 256  # figures written out are a digit longer or shorter
