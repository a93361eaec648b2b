import pickle

import numpy as np
import pytest

from raydpzv.settings.fields import Repeated, per_client


def test_one_number_is_every_clients_and_a_list_is_theirs() -> None:
    assert list(per_client(2, 3)) == [2.0] * 3
    assert list(per_client((1.0, 5.0), 2)) == [1.0, 5.0]
    assert type(per_client(2, 3)[1]) is float


def test_a_repeated_number_behaves_as_the_list_of_it() -> None:
    same, listed = Repeated(0.5, 7), [0.5] * 7
    assert len(same) == 7
    assert list(same) == listed
    assert [same[i] for i in (0, 6, -1, -7)] == [0.5] * 4
    for place in (7, -8):
        with pytest.raises(IndexError):
            same[place]
    for part in (slice(2, 5), slice(None, None, 3), slice(9, 12), slice(-2, None)):
        assert list(same[part]) == listed[part]
    assert (max(same), sum(same), same.count(0.5), 0.25 in same) == (0.5, 3.5, 7, False)
    np.testing.assert_array_equal(np.asarray(same, np.float64), listed)
    assert np.asarray(same).dtype == np.float64
    assert pickle.loads(pickle.dumps(same)) == same


def test_ten_million_clients_take_no_more_room_than_one() -> None:
    assert len(pickle.dumps(per_client(1.0, 10**7))) - len(pickle.dumps(per_client(1.0, 1))) < 10
