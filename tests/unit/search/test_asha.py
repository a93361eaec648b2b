import math
import shutil
from dataclasses import replace

import pytest

import scenarios
from raydpzv.errors import DataError, SpecError
from raydpzv.search import asha
from raydpzv.search.asha import first_rung, rule, rungs, why_not_promoting
from raydpzv.search.search_folder import Decision, add_decisions, decisions
from raydpzv.search.search_plan import SearchPlan, read_search, trials_of

RATES = [(f"method.lr={0.01 * (n + 1):.6g}",) for n in range(4)]


def trials(*changes, points=RATES, scenario="digits_dpzv"):
    quiet = ["privacy.mode=none"] if scenario == "digits_dpzv" else []
    base = ["budget.updates=100", "evaluate.every=5"]

    def make(settings):
        return scenarios.load(scenario, [*quiet, *base, *changes, *settings])

    return trials_of(make, points, None)


def plan(*changes, grace=None):
    made = trials(*changes)
    return SearchPlan("x", "accuracy", "asha", first_rung(made, grace), None, made, promotes=True)


@pytest.mark.parametrize(
    ("changes", "points", "actors", "why"),
    [
        ((), RATES, False, ""),
        ((), RATES, True, "--actors: actors of a trial's own cannot stand still"),
        (
            ("clock.kind=wall",),
            RATES,
            False,
            "trial 0 (method.lr=0.01) leaves no checkpoint to continue from: real time",
        ),
        (
            ("budget.bytes=9",),
            RATES,
            False,
            "budget.bytes: trial 0 (method.lr=0.01) may end before",
        ),
        ((), [*RATES, ("budget.epsilon=1.0",)], False, "budget.epsilon: trial 4"),
    ],
)
def test_trials_are_promoted_wherever_each_can_stand_and_continue(changes, points, actors, why):
    scenario = "digits_private" if any("epsilon" in point[0] for point in points) else "digits_dpzv"
    said = why_not_promoting(trials(*changes, points=points, scenario=scenario), actors=actors)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_noise_that_is_kept_nowhere_leaves_nothing_to_continue_from():
    changes = ("privacy.head_clip=1.0", 'method.server="dp_sgd"')
    said = why_not_promoting(trials(*changes, scenario="digits_private"), actors=False)
    assert said.endswith(
        "its noise on the head's gradients comes from the operating system and is not kept"
    )


def test_rungs_double_from_an_eighth_to_at_most_half_of_the_budget():
    assert rungs(plan()) == [10, 20, 40]
    assert rungs(plan("budget.updates=2000", "evaluate.every=50")) == [250, 500, 1000]
    assert rungs(plan(grace=5)) == [5, 10, 20, 40]
    assert rungs(plan(grace=60)) == [60]


@pytest.mark.parametrize(
    ("changes", "points", "grace", "words"),
    [
        *(
            ((), RATES, grace, r"--grace: wanted a multiple of evaluate.every \(5\) below")
            for grace in (1, 7, 100)
        ),
        (("evaluate.every=100",), RATES, None, "evaluate.every: wanted fewer updates"),
        (("evaluate.every=100",), RATES, 5, "--grace: wanted"),
        (("budget.seconds=9",), RATES, None, "no other budget"),
        (
            (),
            [*RATES, ("budget.updates=50",)],
            None,
            r"--scheduler asha: wanted one budget\.updates for all",
        ),
    ],
)
def test_a_first_rung_that_cannot_be_is_refused_and_the_cause_named(changes, points, grace, words):
    with pytest.raises(SpecError, match=words):
        first_rung(trials(*changes, points=points), grace)


def test_the_first_rung_is_an_evaluation_of_all_trials():
    points = [(f"evaluate.every={n}",) for n in (2, 3, 2, 3)]
    assert first_rung(trials(points=points), None) == 12
    with pytest.raises(SpecError, match=r"a multiple of evaluate.every \(6\)"):
        first_rung(trials(points=points), 20)


def test_a_plan_says_that_it_promotes_and_one_that_says_nothing_does_not(tmp_path):
    found, path = plan(), tmp_path / "search.toml"
    path.write_text(found.as_toml())
    assert read_search(path) == found
    assert "10, 20, 40 updates" in rule(found)
    path.write_text(found.as_toml().replace("promotes = true\n", ""))
    assert read_search(path) == replace(found, promotes=False)
    assert not found.same_as(replace(found, promotes=False))
    path.write_text(found.as_toml().replace('"asha"', '"none"').replace("grace = 10", "grace = 0"))
    with pytest.raises(DataError, match="promotes: is of asha alone"):
        read_search(path)


def test_a_plan_without_a_first_rung_is_damaged(tmp_path):
    found, path = plan(), tmp_path / "search.toml"
    for wrong in (replace(found, grace=0), replace(found, scheduler="none")):
        path.write_text(wrong.as_toml())
        with pytest.raises(DataError, match="grace: wanted updates above 0 with asha"):
            read_search(path)


def test_decisions_made_together_are_written_all_or_none(tmp_path, monkeypatch):
    add_decisions(tmp_path, [Decision(0, 5, 0.1, True)])

    def fails(*of):
        raise OSError("killed here")

    monkeypatch.setattr("os.replace", fails)
    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(OSError, match="killed here"):
        add_decisions(tmp_path, [Decision(1, 10, 0.1, True), Decision(2, 10, 0.1, False)])
    assert decisions(tmp_path) == [Decision(0, 5, 0.1, True)]


def test_trials_that_are_not_started_do_not_count_for_the_first_rung():
    points = [("budget.updates=50",), *RATES]
    first, *others = trials(points=points)
    assert first_rung([replace(first, skipped="its ε is too large"), *others], None) == 10


class Runs:
    """Stands in for the runs of a search: what they came to by trial, and which of them are
    over.
    """

    def __init__(self, monkeypatch, values, over=()):
        self.at = dict[int, int]()
        monkeypatch.setattr(
            asha, "is_paused_at", lambda trial, path, until: self.at.get(trial.number) == until
        )
        monkeypatch.setattr(asha, "finished", lambda planned, path: int(path.name) in over)
        monkeypatch.setattr(asha, "metric_at", lambda path, metric, updates: values[int(path.name)])

    def made(self, folder, found, count):
        """Let so many legs be made, one after the other, and return them."""
        legs = []
        for _ in range(count):
            leg = found.next_leg()
            legs.append(leg)
            path = folder / "runs" / f"{leg.trial:04d}"
            path.mkdir(parents=True, exist_ok=True)
            (path / "scenario.toml").write_text("")
            self.at[leg.trial] = leg.until
            found.ended(leg)
        return [(leg.trial, leg.since) for leg in legs]


BEGUN = [(0, 0), (1, 0), (2, 0), (3, 0)]
EIGHT = [(f"method.lr={0.01 * (n + 1):.6g}",) for n in range(8)]


def eight(metric="accuracy"):
    made = trials(points=EIGHT)
    return SearchPlan("x", metric, "asha", 10, None, made, promotes=True)


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 2), ("loss", 0)])
def test_the_better_of_those_that_stand_continues_by_the_metric(
    tmp_path, monkeypatch, metric, best
):
    runs = Runs(monkeypatch, {n: 0.1 + n / 100 for n in range(8)})
    found = asha.Promotion(tmp_path, eight(metric))
    assert runs.made(tmp_path, found, 4) == [*BEGUN[:3], (best, 10)]
    (told,) = decisions(tmp_path)
    assert (told.trial, told.updates, told.stop) == (best, 10, False)


def test_a_trial_that_is_over_before_its_rung_is_worse_than_all_others(tmp_path, monkeypatch):
    """Whatever it predicted when it diverged: else it would be one of the better half, and fewer
    would go on.
    """
    values = {n: 0.5 - n / 100 for n in range(8)}
    runs = Runs(monkeypatch, values, over={0})
    found = asha.Promotion(tmp_path, eight())
    assert runs.made(tmp_path, found, 4) == [*BEGUN[:3], (1, 10)]
    found.close()
    assert 0 not in {told.trial for told in decisions(tmp_path)}, "it stands nowhere"
    sound = Runs(monkeypatch, values)
    other = asha.Promotion(tmp_path / "sound", eight())
    assert sound.made(tmp_path / "sound", other, 4) == [*BEGUN[:3], (0, 10)]


def test_who_was_left_where_it_stands_stays_there_whatever_comes_later(tmp_path, monkeypatch):
    values = {n: 0.5 - n / 100 for n in range(8)}
    runs = Runs(monkeypatch, values)
    first = asha.Promotion(tmp_path, eight())
    runs.made(tmp_path, first, 2)
    first.close()
    assert [(d.trial, d.updates, d.value, d.stop) for d in decisions(tmp_path)] == [
        (0, 10, 0.5, True),
        (1, 10, 0.49, True),
    ]
    again = asha.Promotion(tmp_path, eight())
    assert runs.made(tmp_path, again, 3) == [(2, 0), (3, 0), (4, 0)], (
        "the best two of these are 0 and 1"
    )
    assert [d.trial for d in decisions(tmp_path) if not d.stop] == []
    again.close()
    assert [d.trial for d in decisions(tmp_path) if d.stop] == [0, 1, 2, 3, 4]


def test_who_stands_is_not_begun_again_and_who_was_sent_on_goes_first(tmp_path, monkeypatch):
    """Also where a run's folder has gone: that it goes on is on record."""
    runs = Runs(monkeypatch, {n: 0.1 + n / 100 for n in range(8)})
    runs.made(tmp_path, asha.Promotion(tmp_path, eight()), 2)
    again = asha.Promotion(tmp_path, eight())
    assert runs.made(tmp_path, again, 2) == [(2, 0), (2, 10)]
    shutil.rmtree(tmp_path / "runs" / "0002")
    del runs.at[2]
    assert (first := asha.Promotion(tmp_path, eight()).next_leg()) is not None
    assert (first.trial, first.since, first.until) == (2, 10, 20)


def test_a_metric_that_there_is_none_of_is_on_record_as_none(tmp_path, monkeypatch):
    runs = Runs(monkeypatch, dict.fromkeys(range(8), math.nan))
    found = asha.Promotion(tmp_path, eight())
    runs.made(tmp_path, found, 9)
    found.close()
    assert [(told.value, told.stop) for told in decisions(tmp_path)] == [
        (None, False),
        *[(None, True)] * 8,
    ]
    assert "NaN" not in (tmp_path / "decisions.jsonl").read_text()


@pytest.mark.parametrize(
    "made",
    [
        [Decision(0, 10, 0.5, stop=True), Decision(0, 20, 0.5, stop=False)],
        [Decision(0, 20, 0.5, stop=False)],
        [Decision(0, 10, 0.5, stop=False), Decision(0, 10, 0.5, stop=False)],
        [Decision(9, 10, 0.5, stop=False)],
    ],
    ids=["after its stop", "a rung left out", "twice", "no trial"],
)
def test_a_record_that_no_search_writes_is_refused(tmp_path, monkeypatch, made):
    Runs(monkeypatch, {})
    add_decisions(tmp_path, made)
    with pytest.raises(DataError, match="a decision on record"):
        asha.Promotion(tmp_path, eight())
