"""What a trial asks for against what there is, said before anything starts."""

from __future__ import annotations

import pytest

from actors.tune_search import check_fits
from raydpzv.errors import Unplaceable


def test_one_machine_must_have_all_that_a_trial_asks():
    check_fits({"CPU": 1.0, "GPU": 0.0}, [{"CPU": 2.0}])
    check_fits({"CPU": 1.0, "GPU": 0.5}, [{"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0}])
    with pytest.raises(
        Unplaceable, match=r"asks 1 CPU and 0.5 GPU on one machine, .* 2 CPU and 0 GPU; 0 CPU and 1 GPU"
    ):
        check_fits({"CPU": 1.0, "GPU": 0.5}, [{"CPU": 2.0}, {"GPU": 1.0}])
