import pytest

import scenarios
from raydpzv.records.settings_diff import other_setting


def spec(*changes):
    return scenarios.load("digits_dpzv", changes)


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        ((), (), ""),
        (("method.lr=0.5",), ("method.lr=0.25",), "method.lr is 0.5 there, asked for is 0.25"),
        (("budget.seconds=9",), (), "budget.seconds is 9.0 there, asked for is not set"),
        (("method.lr=0.5",), ("method.lr=0.25", "data.train_rows=200"), "data.train_rows is "),
        (("model.engine=torch",), ("model.engine=auto",), ""),
        (
            ("model.engine=auto",),
            ("model.engine=torch",),
            'model.engine is "auto" there, asked for is "torch"',
        ),
    ],
)
def test_the_first_that_differs_is_said_and_what_the_run_chose_is_no_other(there, asked, said):
    found = other_setting(spec(*there), spec(*asked))
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_wherever_the_data_lie(tmp_path):
    here, moved = (
        spec("arrivals.kind=trace", f"arrivals.file={tmp_path}/{name}.csv") for name in ("a", "b")
    )
    assert other_setting(here, moved) == ""
