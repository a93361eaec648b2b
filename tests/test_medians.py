import itertools

import numpy as np

from tests.helpers.medians import median_reaches


def test_a_median_is_decided_by_most_of_its_values_and_no_more_are_made() -> None:
    for values in itertools.product([0.1, 0.5, 0.9, float("nan")], repeat=5):
        taken = iter(values)
        known = [v if v == v else -1.0 for v in values]
        assert median_reaches(0.5, taken, 5) == (np.median(known) >= 0.5)
    left = iter([0.9, 0.9, 0.1])
    assert median_reaches(0.5, left, 3)
    assert next(left) == 0.1
