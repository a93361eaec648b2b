import enum
from pathlib import Path

import numpy as np
import pytest
import torch

from raydpzv.settings.values import plain_value


class Split(str, enum.Enum):  # noqa: UP042  # older programs have such
    IID = "iid"


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (np.int8(-3), -3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("adam"), "adam"),
        (np.array(3), 3),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array([[1, 2], [3, 4]], np.int16), [[1, 2], [3, 4]]),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([True, False]), [True, False]),
        (Split.IID, "iid"),
        (Path("data") / "x.csv", "data/x.csv"),
        ({np.str_("a"): (np.int64(1), {"b": np.float64(2)})}, {"a": [1, {"b": 2.0}]}),
        ({("a", "b"): 1}, {("a", "b"): 1}),
        (None, None),
        (True, True),
        (10**30, 10**30),
    ],
)
def test_values_of_other_libraries_become_pythons_own(given, wanted):
    found = plain_value(given)
    assert found == wanted
    assert repr(found) == repr(wanted), "the type is Python's too"


@pytest.mark.parametrize("given", [object(), b"bytes", 1j, range(3), {1, 2}])
def test_what_is_no_setting_stays_for_validation_to_name(given):
    assert plain_value(given) is given
