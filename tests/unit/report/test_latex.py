import re

from raydpzv.report.comparison_table import ComparisonView
from raydpzv.report.comparison_text import paper_table
from raydpzv.report.latex import escaped, latex
from raydpzv.report.table import Column, grid
from tests.helpers.synthetic_comparison import Made


def test_special_letters_are_printed_and_figures_keep_their_units() -> None:
    assert (
        escaped(r"a_b & \input{x} 5 % ε ≥ 2 s")
        == r"a\_b \& \textbackslash{}input\{x\} 5\,\% $\varepsilon$ ≥ 2\,s"
    )


def test_a_grid_is_a_tabular_whose_rows_have_a_cell_for_each_head() -> None:
    columns = (
        Column("name", lambda row: row[0], align="left"),
        Column("a & b", lambda row: row[1]),
    )
    found = latex(grid(columns, [("x\ny", 1), ("$1$", 2)]), "two\nlines")
    assert found.splitlines() == [
        r"% Needs \usepackage{booktabs}.", "% two lines", r"\begin{tabular}{lr}", r"\toprule", r"name & a \& b \\",
        r"\midrule", r"x y & 1 \\", r"\$1\$ & 2 \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_the_table_of_a_paper_has_medians_and_their_ranges() -> None:
    made = Made().run("a_1", None, 0, 0.7).run("a_1", None, 1, 0.8).run("a_1", None, 2, 0.9)
    (row,) = re.findall(r"^a.*$", paper_table(ComparisonView(made.tables, [0.8])), re.MULTILINE)
    assert row.startswith(r"a\_1 & 3 & 80.00\,\% (70.00 to 90.00) & ")
