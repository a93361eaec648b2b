from pathlib import Path

import pytest

from benchmarks import privacy_tables

ROOT = Path(__file__).parents[3]


def test_every_page_states_the_same_accuracy_of_digits_private():
    pages = [(ROOT / page).read_text() for page in privacy_tables.PAGES["private"]]
    (table,) = {privacy_tables.table_in(page, "private") for page in pages}
    assert table.count("\n") == 4


def test_a_table_replaces_the_one_between_its_comments():
    page = "a\n<!-- table x -->\nold\n<!-- end of x -->\nb\n"
    found = privacy_tables.written(page, "x", [["h"], ["1"]])
    assert found == "a\n<!-- table x -->\n| h |\n| --- |\n| 1 |\n<!-- end of x -->\nb\n"
    with pytest.raises(ValueError, match="has no <!-- table y -->"):
        privacy_tables.written(page, "y", [["h"]])
