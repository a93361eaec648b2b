from raydpzv.experiment.diagnostics import CONSTANT, DIVERGED, SHARE
from raydpzv.records.summary_fields import shown
from raydpzv.sim.virtual import NOBODY_WAKES


def test_words_on_record_are_shown_in_words_of_the_field():
    assert shown(SHARE) == "single-class accuracy"
    assert shown(f"ended before its budget was spent: {NOBODY_WAKES}").endswith(
        "the arrival trace is exhausted"
    )
    assert [shown(word) for word in (DIVERGED, CONSTANT)] == [DIVERGED, CONSTANT]
