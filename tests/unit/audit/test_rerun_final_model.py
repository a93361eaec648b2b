import numpy as np
import pytest

import raydpzv
from raydpzv.audit.canaries import Canary, neighbour
from raydpzv.audit.rerun import composed, evidence
from raydpzv.experiment.vertical import prepare_vertical


def log_softmax(prepared, models, features):
    return composed(prepared, models, features).double().log_softmax(1).numpy()


@pytest.mark.parametrize("scenario", ["digits_private", "vafl"])
def test_it_scores_held_out_rows_as_the_run_does(scenario):
    small = ["budget.updates=20", "data.train_rows=100", "data.test_rows=60", "evaluate.every=20"]
    spec = raydpzv.load(scenario, [*small, *(["method.batch=32"] if scenario == "vafl" else [])])
    run, prepared = raydpzv.run(spec), prepare_vertical(spec)
    scores = log_softmax(prepared, run.models, [c.x_held_out for c in prepared.clients])
    labels = prepared.server.y_held_out
    assert (scores.argmax(1) == labels).mean() == pytest.approx(run.summary["accuracy"])
    loss = -scores[np.arange(len(labels)), labels].mean()
    assert loss == pytest.approx(run.summary["loss"], rel=1e-5)


def test_evidence_is_the_difference_of_two_versions_of_a_record():
    small = ["budget.updates=20", "data.train_rows=100", "method.perturbations=2"]
    spec = raydpzv.load("digits_private", small)
    run, prepared = raydpzv.run(spec), prepare_vertical(spec)
    numbers = prepared.numbers
    canaries = [
        Canary(row, int(numbers[row]), kind) for row, kind in ((4, "label"), (9, "features"))
    ]
    changed = neighbour(prepared, canaries)
    found = evidence(prepared, changed, canaries, run.models)
    for canary, value in zip(canaries, found, strict=True):
        terms = []
        for version in (prepared, changed):
            features = [c.x_train[[canary.row]] for c in version.clients]
            label = version.server.y_train[canary.row]
            terms.append(log_softmax(prepared, run.models, features)[0, label])
        assert value == pytest.approx(terms[0] - terms[1], rel=1e-4)
        assert terms[0] != terms[1]
    absent = [Canary(4, int(numbers[4]), "absent")]
    alone = evidence(prepared, prepared, absent, run.models)
    features = [c.x_train[[4]] for c in prepared.clients]
    scores = log_softmax(prepared, run.models, features)
    assert alone[0] == pytest.approx(scores[0, prepared.server.y_train[4]], rel=1e-6)
