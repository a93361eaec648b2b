from raydpzv.grouping import grouped


def test_keys_and_values_keep_their_order():
    found = grouped([("b", 2), ("a", 1), ("b", 0)])
    assert list(found.items()) == [("b", [2, 0]), ("a", [1])]
