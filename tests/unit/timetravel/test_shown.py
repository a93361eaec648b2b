import math

from raydpzv.engine.split_model import Metrics
from raydpzv.timetravel.history import Moment
from raydpzv.timetravel.shown import absence_line, lines_of, ranking_lines, ranking_table, terms_of
from raydpzv.timetravel.what_if import Absence

RANKED = [Absence(client, Metrics(0.5, client / 10, 0.1), client / 10 - 1) for client in range(25)]


def test_the_terms_of_an_epsilon_are_said_once_until_they_change() -> None:
    def at(update: int, epsilon: tuple[float, str] | None) -> Moment:
        return Moment(update, 0.0, (), (), (), 0.1, {}, 0, None, math.nan, epsilon, (update, 0.9))

    whole = "ε = 0.5, δ = 0.001, adversary client: proved"
    assert list(lines_of(at(1, (0.5, whole)), 9, None))[-2:] == [
        "  recorded   accuracy 90.00 % after update 1",
        f"  so far     {whole}",
    ]
    terms, later = terms_of(at(1, (0.5, whole))), at(2, (0.7, whole.replace("0.5", "0.7")))
    assert list(lines_of(later, 9, None, terms))[-1] == "  so far     ε = 0.7, terms as above"
    other = at(3, (12.0, "ε = 12, δ = 0.001, adversary client: no useful ε"))
    assert list(lines_of(other, 9, None, terms))[-1].endswith("no useful ε")
    assert terms_of(at(4, None)) == ""


def test_a_long_ranking_shows_both_ends_and_how_many_are_between() -> None:
    lines = list(ranking_lines(RANKED, 10))
    named = [line.split(":")[0] for line in lines]
    assert named[:10] == [f"without client {k}" for k in range(10)]
    assert lines[10] == "... 5 more: --all lists them, --csv writes a table"
    assert named[11:] == [f"without client {k}" for k in range(15, 25)]


def test_a_short_ranking_and_all_of_one_leave_nothing_out() -> None:
    assert len(list(ranking_lines(RANKED, None))) == 25
    assert len(list(ranking_lines(RANKED[:20], 10))) == 20


def test_the_table_has_a_row_for_each_client() -> None:
    head, *rows = ranking_table(RANKED)
    assert head == ("place", "client", "change", "loss", "accuracy")
    assert rows[3] == (4, 3, RANKED[3].change, 0.3, 0.5)
    assert len(rows) == 25


def test_an_absence_without_a_finite_loss_is_neither_higher_nor_lower() -> None:
    line = absence_line(Absence(3, Metrics(math.nan, math.nan, 0.1), math.nan))
    assert line == "without client 3: loss nan (no finite loss to compare)"
