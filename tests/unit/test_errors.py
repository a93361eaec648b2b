"""Words of error messages."""

from raydpzv.errors import suggest


def test_a_similar_name_is_suggested_and_no_other():
    assert suggest("incom", ["age", "income"]) == 'Did you mean "income"? '
    assert suggest("label", ["age", "debt"]) == ""
