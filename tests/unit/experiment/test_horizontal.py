from __future__ import annotations

import pickle

import numpy as np

from raydpzv.experiment.horizontal import PreparedHorizontal, prepare_horizontal
from tests.helpers.changed_settings import scenario


def rows_in(data: bytes, prepared: PreparedHorizontal) -> int:
    return sum(row.tobytes() in data for row in np.unique(prepared.split.train.x, axis=0))


def test_a_server_of_users_sums_gets_no_training_row_and_nobodys_numbers_of_records() -> None:
    prepared = prepare_horizontal(scenario("horizontal", "uldp_avg", ()))
    seen = prepared.for_server()
    assert rows_in(pickle.dumps(seen), prepared) == 0
    assert rows_in(pickle.dumps(prepared), prepared) > 50  # control
    assert seen.parts.sizes.tolist() == [1, 1, 1]
    assert (seen.plan, seen.setting) == (prepared.plan, prepared.setting)
    assert all(
        np.array_equal(a, b) for a, b in zip(seen.split.held_out, prepared.split.held_out, strict=True)
    )


def test_the_server_of_another_method_gets_what_there_is() -> None:
    prepared = prepare_horizontal(scenario("horizontal", "decomfl", ()))
    assert prepared.for_server() is prepared
