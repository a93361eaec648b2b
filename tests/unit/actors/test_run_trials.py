"""Where Ray Tune keeps a search, and what its loggers are told. The trials: tests/integration/ray."""

from dataclasses import replace

import pytest
import tomli_w

from actors.run_trials import _Experiment, _of_evaluations
from raydpzv.errors import InputError
from raydpzv.search.tune_plan import TrialPlace
from tests.helpers.searches import plan_of


def test_loggers_are_told_of_evaluations_alone():
    """One's first report decides its columns, and a slow trial's has no metric yet."""

    class Logger:
        def __init__(self):
            self.told = []

        def log_trial_result(self, iteration, trial, result):
            self.told.append(iteration)

    logger = _of_evaluations(Logger, "accuracy")()
    for iteration, result in enumerate([{"updates": 3}, {"accuracy": 0.5}, {"loss": 1.0}]):
        logger.log_trial_result(iteration, None, result)
    assert logger.told == [1]


def test_a_stored_search_may_name_the_code_that_its_user_names_again(tmp_path):
    """A copy has no mark of who made it."""
    asked = ("privacy.mode=none", "model.bottom=tests.helpers.own_parts:bottom")
    plan = plan_of({"seed": {"grid": [0, 1]}}, *asked, scenario="digits_dpzv")
    place = TrialPlace(storage=tmp_path.as_uri())
    found = _Experiment(replace(plan, place=place), tmp_path)
    (tmp_path / plan.name).mkdir()
    (tmp_path / plan.name / "search.toml").write_text(tomli_w.dumps(plan.tree()))
    found._check_stored()
    other = plan_of({"seed": {"grid": [0, 1]}}, asked[0], scenario="digits_dpzv")
    found = _Experiment(replace(other, place=place), tmp_path)
    with pytest.raises(InputError, match=r"names code, .*own_parts:bottom"):
        found._check_stored()
