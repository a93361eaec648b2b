import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, balanced_accuracy_score, roc_auc_score

from raydpzv.engine.ranking import areas, balanced_accuracy, concordance
from raydpzv.keys import Key


def by_scikit_learn(scores, labels):
    return roc_auc_score(labels, scores), average_precision_score(labels, scores)


@settings(max_examples=60)
@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=2, max_size=40),
    width=st.sampled_from([1.0, 1e-3, 1 / 3]),
)
def test_the_areas_are_scikit_learns_with_ties(rows, width):
    labels, scores = np.array([r[0] for r in rows]), np.array([r[1] for r in rows]) * width
    if len(set(labels.tolist())) == 2:
        assert areas(scores, labels) == pytest.approx(by_scikit_learn(scores, labels), abs=1e-12)


@pytest.mark.parametrize("share", [0.5, 0.02])
def test_the_areas_of_many_rows_are_scikit_learns(share):
    draws = (Key(1) / "rows").generator()
    labels = (draws.random(5000) < share).astype(int)
    scores = np.float64(np.float32(draws.standard_normal(5000) + labels))
    found = areas(scores, labels)
    assert found == pytest.approx(by_scikit_learn(scores, labels), abs=1e-12)
    assert areas(-scores, labels)[0] == pytest.approx(1 - found[0], abs=1e-12)
    assert abs(found[1] - found[0]) > (0.5 if share < 0.5 else 0)  # two areas, not one twice


@pytest.mark.parametrize(
    ("scores", "labels"), [([0.0, 1.0], [1, 1]), ([0.0, 1.0], [0, 0]), ([0.0, math.nan], [0, 1])]
)
def test_there_is_no_area_of_one_class_or_of_scores_that_are_no_numbers(scores, labels):
    assert all(map(math.isnan, areas(np.array(scores), np.array(labels))))


def test_the_margin_of_two_scores_ranks_as_their_softmax_does():
    scores = torch.tensor((Key(2) / "scores").generator().standard_normal((200, 2)))
    labels = ((Key(2) / "labels").generator().random(200) < 0.4).astype(int)
    by_share = areas(scores.softmax(1)[:, 1].numpy(), labels)
    assert areas((scores[:, 1] - scores[:, 0]).numpy(), labels) == pytest.approx(
        by_share, abs=1e-12
    )


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(st.integers(0, 1), st.integers(-4, 4)), min_size=2, max_size=40))
def test_balanced_accuracy_is_scikit_learns(rows):
    labels, scores = np.array([r[0] for r in rows]), np.array([r[1] for r in rows]) / 3
    if len(set(labels.tolist())) == 2:
        found = balanced_accuracy_score(labels, scores > 0)
        assert balanced_accuracy(scores, labels) == pytest.approx(found, abs=1e-12)
    else:
        assert math.isnan(balanced_accuracy(scores, labels))


def counted(scores, times, events):
    """Concordance pair by pair, as its definition says."""
    right = pairs = 0.0
    for i in range(len(scores)):
        for j in range(len(scores)):
            if events[i] and times[i] < times[j]:
                pairs += 1
                right += 1.0 if scores[i] > scores[j] else 0.5 if scores[i] == scores[j] else 0.0
    return right / pairs if pairs else math.nan


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(-3, 3), st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=40
    )
)
def test_concordance_is_what_counting_pairs_finds_with_ties_of_scores_and_of_times(rows):
    scores, times, events = (np.array(column) for column in zip(*rows, strict=True))
    found = counted(scores, times, events)
    assert concordance(scores / 3, times - 2.5, events) == pytest.approx(
        found, abs=1e-12, nan_ok=True
    )


def test_concordance_of_a_ranking_without_censoring_is_one_and_of_its_reverse_none():
    times = (Key(2) / "times").generator().permutation(700) / 7
    events = np.ones(700, int)
    assert (concordance(-times, times, events), concordance(times, times, events)) == (1.0, 0.0)
    assert math.isnan(concordance(np.append(times[1:], np.nan), times, events))
    assert math.isnan(concordance(times, times, 0 * events))
