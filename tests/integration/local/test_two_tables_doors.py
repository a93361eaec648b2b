"""Two tables that differ by one odd cell of one record, from every door for own rows to the query.

With the same releases everything but the query is equal bit for bit, and the query moves by no more
than the account says, or the table is refused. The control reads types off the values.
"""

import inspect
from contextlib import nullcontext

import numpy as np
import pytest

from raydpzv import door as door_module
from raydpzv.data.own_arrays import FORMS
from raydpzv.data.own_data import CONTAINERS
from raydpzv.errors import DataError
from raydpzv.experiment.prepare import planned_privacy, prepare
from tests.helpers.doors import (
    ENTRIES,
    ODD,
    REFUSED,
    ROWS,
    CannotHold,
    Cells,
    container_of,
    doors,
    form_of,
    users_spec,
    vertical_spec,
)
from tests.helpers.proved_modes import BY_CLIENT, MODES, USER_MODES
from tests.helpers.two_tables import seen
from tests.helpers.types_from_values import read_types_from_values
from tests.integration.local.test_two_tables import (
    checked_moves,
    differences,
    moved_by,
    owner_of_changed,
)

ALL = doors()


def cases(found, modes):
    """Return the first door with every mode, and each other door with one in turn: a door ends
    where arrays begin, and a mode begins there.
    """
    first, *others = found
    able = [(method, mode) for method, of in modes.items() for mode in of]
    # labels are moved by a record's own label where a mode protects them
    whole = [case for case in able if case[1] not in BY_CLIENT]
    pairs = [(first, *mode) for mode in able]
    pairs += [(other, *whole[n % len(whole)]) for n, other in enumerate(others)]
    return [pytest.param(*case, id="-".join(map(str, case))) for case in pairs]


def test_every_door_of_the_code_has_a_case():
    """A new form of arrays or of data, or a new function that takes them, wants a line here."""
    made = [(door, door.made(Cells())) for door in (*ALL["vertical"], *ALL["users"])]
    parts = [
        (data[0][0], data[1]) if door.entry == "vertical" else ROWS[door.rows]
        for door, data in made
    ]
    values = [part for pair in parts for part in pair if not callable(part)]
    assert {form_of(value) for value in values} == set(FORMS)
    whole = {container_of(data) for door, data in made if door.entry != "vertical"}
    assert whole | {"none"} == set(CONTAINERS), '"none" refuses what is no form of data'
    functions = {
        name
        for name, found in inspect.getmembers(door_module, inspect.isfunction)
        if found.__module__ == door_module.__name__ and not name.startswith("_")
    }
    assert functions - {"setting_path"} == set(ENTRIES) - {"module:attribute"}


def runs(door, change, spec_of, *before):
    """Return a run of a door's table; None where its form cannot hold the change, or the table is
    refused, as it has to be with a cell that no table may have.
    """
    with pytest.raises(DataError) if change in REFUSED else nullcontext():
        try:
            return seen(spec_of(door.hand_over(Cells().changed(change))), *before)
        except CannotHold as error:
            if change in REFUSED:
                raise DataError("by the form itself") from error
    return None


@pytest.mark.parametrize(("door", "method", "mode"), cases(ALL["vertical"], MODES))
def test_one_odd_cell_moves_the_query_of_its_own_record_alone(door, method, mode):
    def spec_of(source):
        return vertical_spec(door, method, mode, source)

    first, moved, read = runs(door, "", spec_of), 0.0, []
    assert not planned_privacy(first.prepared.spec).missing_premises()
    for change in ODD:
        if mode in BY_CLIENT and "label" in change:
            continue
        if (other := runs(door, change, spec_of, first)) is None:
            continue
        assert differences(first, other, mode) == [], change
        moved = max(moved, checked_moves(first, other, mode))
        read.append(change)
    assert moved > 0.01
    assert {"value", "another type"} <= set(read)


@pytest.mark.parametrize(("door", "method", "mode"), cases(ALL["users"], USER_MODES))
def test_one_odd_cell_moves_the_sums_of_its_own_user_alone(door, method, mode):
    def spec_of(source):
        return users_spec(method, mode, source)

    first, read, largest = runs(door, "", spec_of), [], 0.0
    assert not planned_privacy(first.prepared.spec).missing_premises()
    for change in ODD:
        if (other := runs(door, change, spec_of, first)) is None:
            continue
        different = {name for name in first.public if first.public[name] != other.public[name]}
        if other.nonfinite != first.nonfinite:
            assert change == "huge"
            different -= {"digest"}
        assert different == set(), change
        largest = max(largest, moved_by(first, other, owner_of_changed(first), method))
        read.append(change)
    assert largest > 0
    assert {"value", "another type"} <= set(read)


@pytest.mark.parametrize("change", ["another type", "value"])
def test_control_types_that_are_read_off_the_values_are_found_out(monkeypatch, change):
    """One cell of another type moves all other records; one that stays whole moves none."""
    read_types_from_values(monkeypatch)
    door = ALL["vertical"][0]

    def spec_of(source):
        return vertical_spec(door, "dpzv", "joint", source)

    first = runs(door, "", spec_of)
    other = runs(door, change, spec_of, first)
    moved = change == "another type"
    assert ("other records" in differences(first, other, "joint")) is moved
    with pytest.raises(AssertionError) if moved else nullcontext():
        checked_moves(first, other, "joint")


@pytest.mark.parametrize("change", ["another type", "value"])
def test_control_types_that_are_read_off_the_values_move_other_users(monkeypatch, change):
    read_types_from_values(monkeypatch)
    door = ALL["users"][0]

    def spec_of(source):
        return users_spec("uldp_avg", "records", source)

    first = runs(door, "", spec_of)
    other = runs(door, change, spec_of, first)
    moved = change == "another type"
    assert (first.public["held out"] != other.public["held out"]) is moved
    assert moved_by(first, other, owner_of_changed(first), "uldp_avg") > 0


def test_control_labels_of_one_common_type_are_found_out(monkeypatch):
    """As one array of texts, booleans are "True" and "False", of which no list knows."""
    monkeypatch.setattr(
        "raydpzv.data.own_data._classes", lambda array, name: np.array(array.tolist())
    )
    monkeypatch.setattr("raydpzv.data.arrays.as_written", lambda label, kind: str(label + 0))
    door, found = ALL["vertical"][0], []
    for change in ("", "new label"):
        source = door.hand_over(Cells().changed(change))
        found.append(prepare(vertical_spec(door, "dpzv", "joint", source)).server.y_train)
    assert (found[0] == found[1]).mean() > 0.9
    monkeypatch.setattr("raydpzv.data.arrays.as_written", lambda label, kind: str(label))
    source = door.hand_over(Cells().changed("label of another type"))
    spec = vertical_spec(door, "dpzv", "joint", source)
    assert set(prepare(spec).server.y_train.tolist()) == {2}, "all count as the other one"
