import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raydpzv.data.vertical import Part, partition, without_client
from raydpzv.errors import DataError, SpecError
from raydpzv.settings.sections import SplitSection

SHAPES = {
    "columns": st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    "rows": st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    "patches": st.tuples(st.integers(1, 3), st.integers(4, 9), st.integers(4, 9)),
    "views": st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple),
}


def shared(shape, how, clients, *, names=(), **settings):
    return partition(shape, SplitSection(how=how, clients=clients, **settings), names)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[Part, ...]]:
    how = draw(st.sampled_from(sorted(SHAPES)))
    shape = draw(SHAPES[how])
    if how == "patches":
        grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        return shape, shared(shape, how, math.prod(grid), grid=grid)
    places = {
        "columns": math.prod(shape),
        "rows": shape[1] if len(shape) > 1 else 0,
        "views": shape[0],
    }[how]
    return shape, shared(shape, how, draw(st.integers(1, places)))


@settings(max_examples=200, deadline=None)
@given(partitions())
def test_parts_are_disjoint_cover_everything_and_are_even(made):
    shape, parts = made
    width = math.prod(shape)
    x = np.arange(2 * width).reshape(2, *shape)
    blocks = [part.select(x) for part in parts]
    for row in range(2):
        taken = np.concatenate([block[row].ravel() for block in blocks])
        np.testing.assert_array_equal(np.sort(taken), x[row].ravel())
    for part, block in zip(parts, blocks, strict=True):
        assert block.dtype == np.float32
        assert block.flags.c_contiguous
        assert block.shape == (2, *part.shape)
    for sides in zip(*(part.shape for part in parts), strict=True):
        assert max(sides) - min(sides) <= 1
    if parts[0].how != "patches":
        sizes = [part.shape for part in parts]
        assert sizes == sorted(sizes, reverse=True), "the first clients have the extra"


def test_columns():
    parts = shared((7,), "columns", 3)
    x = np.arange(14).reshape(2, 7)
    np.testing.assert_array_equal(parts[0].select(x), [[0, 1, 2], [7, 8, 9]])
    assert [part.describe() for part in parts] == ["columns 0..2", "columns 3..4", "columns 5..6"]
    assert shared((3,), "columns", 3)[1].describe() == "column 1"


def test_columns_of_an_image_are_its_pixels():
    x = np.arange(2 * 12).reshape(2, 1, 3, 4)
    np.testing.assert_array_equal(
        shared((1, 3, 4), "columns", 2)[1].select(x), x.reshape(2, 12)[:, 6:]
    )


NAMES = ("age", "city", "city", "income", "bmi", "pulse")


def test_columns_by_name_are_those_of_their_numbers():
    given = [["income", "city"], [0, "pulse"]]
    parts = shared((6,), "columns", 2, columns=given, names=NAMES)
    assert parts == shared((6,), "columns", 2, columns=[[3, 1, 2], [0, 5]])
    assert without_client(parts, NAMES) == ("bmi",)
    assert without_client(parts) == ("4",)
    assert without_client(shared((6,), "columns", 4), NAMES) == ()
    assert without_client(shared((1, 6, 6), "rows", 2)) == ()


@pytest.mark.parametrize(
    ("columns", "names", "words"),
    [
        ([["age"], ["incme"]], NAMES, 'client 1 wants column "incme".*Did you mean "income"'),
        ([["age"], ["age", "bmi"]], NAMES, 'column "age" is listed for client 0 and for client 1'),
        ([["city"], [2]], NAMES, "column 2 is listed for client 0 and for client 1"),
        ([["age"], [1]], (), "no names: give their numbers"),
    ],
)
def test_names_that_cannot_be_are_refused(columns, names, words):
    with pytest.raises(SpecError, match=words):
        shared((6,), "columns", 2, columns=columns, names=names)


def test_messages_about_columns_name_the_party():
    with pytest.raises(SpecError, match=r'shop wants column "incme".*Did you mean "income"'):
        shared((6,), "columns", 2, names=NAMES, parties={"bank": ["age"], "shop": ["incme"]})


def test_explicit_columns_keep_their_order_and_may_leave_some_out():
    parts = shared((6,), "columns", 2, columns=[[4, 0, 1], [3]])
    x = np.arange(6)[None]
    np.testing.assert_array_equal(parts[0].select(x), [[4, 0, 1]])
    assert [part.describe() for part in parts] == ["columns 4, 0..1", "column 3"]
    assert parts[0].shape == (3,)


def test_image_rows():
    parts = shared((1, 28, 28), "rows", 7)
    x = np.arange(2 * 28 * 28).reshape(2, 1, 28, 28)
    np.testing.assert_array_equal(parts[2].select(x), x[:, :, 8:12, :])
    assert parts[2].describe() == "image rows 8..11"
    assert shared((1, 2, 2), "rows", 2)[1].describe() == "image row 1"


def test_patches_of_cifar_in_reading_order():
    parts = shared((3, 32, 32), "patches", 4)
    x = np.arange(3 * 32 * 32).reshape(1, 3, 32, 32)
    for part, (top, left) in zip(parts, [(0, 0), (0, 16), (16, 0), (16, 16)], strict=True):
        np.testing.assert_array_equal(part.select(x), x[:, :, top : top + 16, left : left + 16])
    assert parts[1].describe() == "image rows 0..15, columns 16..31"


@pytest.mark.parametrize(
    ("clients", "corner"), [(6, (14, 10)), (7, (28, 4)), (9, (10, 10)), (1, (28, 28))]
)
def test_the_grid_is_the_most_square_one(clients, corner):
    assert shared((1, 28, 28), "patches", clients)[0].shape == (1, *corner)


def test_a_grid_may_be_given():
    assert [part.shape for part in shared((1, 4, 4), "patches", 4, grid=(4, 1))] == [(1, 1, 4)] * 4


def test_views():
    parts = shared((12, 3, 8, 8), "views", 4)
    x = np.arange(2 * 12 * 3 * 64).reshape(2, 12, 3, 8, 8)
    np.testing.assert_array_equal(parts[3].select(x), x[:, 9:12])
    assert parts[3].describe() == "views 9..11"
    assert shared((2, 5), "views", 2)[0].describe() == "view 0"


@pytest.mark.parametrize(
    ("shape", "how", "clients", "options", "words"),
    [
        ((7,), "columns", 8, {}, "8 clients cannot share 7 columns"),
        ((1, 8, 9), "rows", 9, {}, "share 8 image rows"),
        ((4, 9), "views", 5, {}, "share 4 views"),
        ((4,), "views", 2, {}, 'choose "columns"'),
        ((7,), "rows", 2, {}, 'images of shape .C, H, W.*choose "columns"'),
        ((7,), "patches", 2, {}, 'images of shape .C, H, W.*choose "columns"'),
        ((12, 3, 8, 8), "rows", 2, {}, 'choose "views"'),
        ((1, 8, 8), "patches", 6, {"grid": (2, 2)}, "product is 6, such as 2 x 3"),
        ((1, 8, 8), "patches", 6, {"grid": (-2, -3)}, "product is 6"),
        ((1, 2, 9), "patches", 9, {}, "share 2 image rows"),
        ((1, 9, 2), "patches", 9, {}, "share 2 image columns"),
        (
            (7,),
            "columns",
            2,
            {"columns": [[0, 1], [1, 2]]},
            "column 1 .* client 0 and for client 1",
        ),
        ((7,), "columns", 2, {"columns": [[0, 0], [1]]}, "column 0 is listed"),
        ((7,), "columns", 2, {"columns": [[0], [7]]}, r"column 7: the data has 0\.\.6"),
        ((7,), "columns", 2, {"columns": [[0], [-1]]}, "column -1"),
        ((7,), "columns", 2, {"columns": [[0], []]}, "client 1 has no columns"),
        ((7,), "columns", 3, {"columns": [[0], [1]]}, "2 lists for 3 clients"),
        ((1, 8, 8), "rows", 2, {"columns": [[0], [1]]}, "explicit columns do not go"),
        ((1, 8, 8), "rows", 2, {"grid": (1, 2)}, "a grid does not go"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(shape, how, clients, options, words):
    with pytest.raises(SpecError, match=rf"\A(?=.*{words})[^\n]+\Z"):
        shared(shape, how, clients, **options)


def test_a_part_refuses_rows_of_another_shape():
    with pytest.raises(DataError, match=r"image rows 0\.\.3.*\(1, 8, 8\).*\(1, 9, 8\)"):
        shared((1, 8, 8), "rows", 2)[0].select(np.zeros((5, 1, 9, 8)))


def test_variables_are_shared_out_and_every_client_keeps_all_time_steps():
    x = np.arange(5 * 24 * 7, dtype=np.float32).reshape(5, 24, 7)
    parts = shared((24, 7), "variables", 3)
    assert [part.shape for part in parts] == [(24, 3), (24, 2), (24, 2)]
    assert [part.describe() for part in parts] == [
        "variables 0..2",
        "variables 3..4",
        "variables 5..6",
    ]
    assert np.array_equal(np.concatenate([part.select(x) for part in parts], axis=2), x)
    assert shared((24, 3), "variables", 3)[1].describe() == "variable 1"
    with pytest.raises(SpecError, match="wants time series"):
        shared((24,), "variables", 3)
    with pytest.raises(SpecError, match="8 clients cannot share 7 variables"):
        shared((24, 7), "variables", 8)


def test_spans_of_tokens() -> None:
    parts = shared((12,), "tokens", 3)
    x = np.arange(24).reshape(2, 12)
    assert [part.describe() for part in parts] == ["tokens 0..3", "tokens 4..7", "tokens 8..11"]
    np.testing.assert_array_equal(parts[1].select(x), [[4, 5, 6, 7], [16, 17, 18, 19]])
    assert {part.shape for part in parts} == {(4,)}
    assert shared((3,), "tokens", 3)[2].describe() == "token 2"
    with pytest.raises(
        SpecError, match="5 clients cannot have equal spans of 12 tokens: make it a multiple of 5"
    ):
        shared((12,), "tokens", 5)
    with pytest.raises(SpecError, match="24 clients cannot have equal spans"):
        shared((12,), "tokens", 24)
    with pytest.raises(SpecError, match='"tokens" wants texts'):
        shared((24, 3), "tokens", 3)
