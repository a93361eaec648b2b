"""Updates entered without a look at their values against the same updates appended; what waits in
memory is there.
"""

import numpy as np
import pytest

from raydpzv.errors import InputError
from raydpzv.ledger.entries import ENTRY_COLUMNS, LedgerUpdate
from raydpzv.ledger.ledger import Ledger
from tests.helpers.ledger_samples import HEADER, assert_holds, fill, update


def entry(round: int, **changed: object) -> LedgerUpdate:
    values = update(round) | changed
    return LedgerUpdate(round, **values | {name: values[name].tobytes() for name in ENTRY_COLUMNS})


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("segment-*")}


def test_what_is_entered_is_on_disk_as_if_it_had_been_appended(tmp_path):
    appended = fill(Ledger.create(tmp_path / "appended", HEADER, segment=4), 18)
    entered = Ledger.create(tmp_path / "entered", HEADER, segment=4)
    assert [entered.enter(entry(round)) for round in range(1, 19)] == list(range(1, 19))
    assert entered.digest == appended.digest == entered.verify()
    assert files(tmp_path / "entered") == files(tmp_path / "appended")
    other = Ledger.create(None, HEADER)
    for round in range(1, 19):
        other.enter(entry(round, lr=0.5) if round == 7 else entry(round))
    assert other.digest != appended.digest


def test_a_segment_sealed_from_memory_is_the_one_that_is_read_back_from_disk(tmp_path):
    held, trimmed = (
        Ledger.create(tmp_path / name, HEADER, segment=5) for name in ("held", "trimmed")
    )
    for round in range(1, 24):
        held.enter(entry(round))
        trimmed.enter(entry(round))
        trimmed.trim(round)
    assert files(tmp_path / "held") == files(tmp_path / "trimmed")
    held.close()
    with Ledger.open(tmp_path / "held", write=True) as again:  # in the midst of a segment
        fill(again, 31)
        assert again.digest == fill(trimmed, 31).digest == again.verify()
    assert files(tmp_path / "held") == files(tmp_path / "trimmed")


def test_only_the_next_round_is_taken_and_only_while_the_ledger_is_open():
    ledger = Ledger.create(None, HEADER)
    for wrong in (0, 2):
        with pytest.raises(InputError, match="wanted update 1, the next one"):
            ledger.enter(LedgerUpdate(wrong, 0, 0, 0.1, *[bytes(8)] * 4))
    ledger.enter(entry(1))
    ledger.close()
    with pytest.raises(InputError, match="takes no update"):
        ledger.enter(entry(2))


def test_updates_are_there_as_soon_as_they_are_in():
    """Asked for after every one, after some, and after more than are written into the columns at
    once.
    """
    for between in (1, 7, 63, 64, 65, 150):
        ledger, expected = Ledger.create(None, HEADER), 0
        for round in range(1, 201):
            expected += entry(round).entries
            ledger.enter(entry(round))
            assert ledger.version == round
            if round % between == 0:
                assert ledger.entries == ledger.pairs(0) == expected
                assert_holds(ledger.since(round - 1), round - 1, round)
        assert_holds(ledger.since(0), 0, 200)
        ledger.truncate(170)
        assert_holds(fill(ledger, 180).since(100), 100, 180)


def test_arrays_that_were_appended_may_be_written_to_again():
    ledger, values = Ledger.create(None, HEADER), update(1)
    values["step"] = np.asarray(values["step"], np.int64)
    ledger.append(**values)
    for name in ("step", "perturbation", "seed", "scalar"):
        values[name][:] = 9
    assert_holds(ledger.since(0), 0, 1)
