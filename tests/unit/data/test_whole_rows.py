import numpy as np
import pytest

from raydpzv.data.table import Split, Table, View
from raydpzv.data.vertical import by_view
from raydpzv.data.whole_rows import WholeRows
from raydpzv.errors import DataError, SpecError

WHY = WholeRows("the test says so")


def table(x, **more):
    return Table("t", np.array(x, np.float64), np.arange(len(x)) % 2, 2, **more)


def test_whole_numbers_are_int64_up_to_53_bits():
    split = Split(table([[1, 2**53], [-3, 4]]), table([[0, 1], [1, 0]]))
    found = WHY.rows(split)
    assert found.train.x.dtype == found.test.x.dtype == np.int64
    assert found.train.x.tolist() == [[1, 2**53], [-3, 4]]
    assert found.train.select(np.array([1])).x.tolist() == [[-3, 4]]


@pytest.mark.parametrize("part", ["train", "test"])
def test_another_number_is_refused_by_its_row_in_the_file(part):
    parts = {"train": table([[1, 2], [3, 4]]), "test": table([[1, 2], [3, 4]])}
    parts[part] = table([[1, 2], [3, 4], [5, 3.5]]).select(np.array([2, 0]))
    said = r'"t": wanted whole numbers up to .* \(the test says so\), got 3.5 in row 2 .*, column 1'
    with pytest.raises(DataError, match=said):
        WHY.rows(Split(**parts))


def test_a_clients_share_is_whole_numbers_that_float32_holds():
    views = (View("bank", (1,)), View("shop", (2,)))
    bank, shop = by_view(views, 2)
    x = [[0.5, 2**24, 7], [0.25, 1, 2]]
    split = Split(table(x, views=views), table(x, views=views))
    WHY.check_part(split, shop, "shop")
    with pytest.raises(DataError, match=r"the rows of bank: .* got 0.5 in row 0"):
        WHY.check_part(split, bank, "bank")
    x[1][2] = 2**24 + 1
    split = Split(table(x, views=views), split.test)
    with pytest.raises(DataError, match=r"the rows of shop: .* got 16777217 in row 1 .*, column 1"):
        WHY.check_part(split, shop, "shop")


@pytest.mark.parametrize("part", ["train", "test", "validation"])
def test_every_part_of_a_clients_share_is_checked(part):
    views = (View("shop", (1,)),)
    parts = {name: table([[1], [2]], views=views) for name in ("train", "test", "validation")}
    (shop,) = by_view(views, 1)
    WHY.check_part(Split(**parts), shop, "shop")
    parts[part] = table([[1], [0.5]], views=views)
    with pytest.raises(DataError, match=r"the rows of shop: .* got 0.5 in row 1"):
        WHY.check_part(Split(**parts), shop, "shop")


def test_a_negative_whole_number_has_the_same_limit():
    at_most, below = table([[-(2**53)], [1]]), table([[-(2**53) - 2], [1]])
    assert WHY.rows(Split(at_most, at_most)).train.x.tolist() == [[-(2**53)], [1]]
    with pytest.raises(DataError, match="got -9007199254740994 in row 0"):
        WHY.rows(Split(below, at_most))


@pytest.mark.parametrize("scale", ["unit", "standard", "public"])
def test_scaling_of_ids_is_refused(scale):
    WHY.check_scale("none")
    said = f'data.scale: wanted "none" .*the test says so.* got "{scale}"'
    with pytest.raises(SpecError, match=said):
        WHY.check_scale(scale)
