"""What proofs suppose of a user's own code, stated or not."""

import numpy as np
import pytest
from torch import nn

import raydpzv
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.privacy_setting import supposed, unstated
from tests.helpers.changed_settings import scenario as changed

X = np.linspace(-1, 1, 240, dtype=np.float32).reshape(60, 4)


def scenario(model, **privacy):
    return raydpzv.vertical(
        model,
        [X[:, :2], X[:, 2:]],
        np.arange(60) % 2,
        updates=3,
        embedding=2,
        batch=4,
        classes=[0, 1],
        server="joint",
        privacy={"mode": "proved", "epsilon": 4.0, "clip": 1.0} | privacy,
        data={"split": "plain"},
    )


def own(embedding):
    return nn.Linear(2, embedding)


def test_a_premise_that_is_not_stated_is_named_with_its_setting():
    (said,) = unstated(scenario(own))
    assert 'privacy.trust = ["model"] states that it does not' in said
    assert not any("as you state" in clause for clause in supposed(scenario(own)))


@pytest.mark.parametrize(("model", "privacy"), [(own, {"trust": ["model"]}), ("mlp", {})])
def test_nothing_is_missing_once_it_is_stated_or_where_nothing_is_own(model, privacy):
    spec = scenario(model, **privacy)
    assert unstated(spec) == ()
    stated = [clause for clause in supposed(spec) if "as you state" in clause]
    assert len(stated) == (model is own)


@pytest.mark.parametrize(
    ("method", "given", "reach"),
    [
        ("uldp_naive", (), 4),
        ("uldp_sgd", ("method.weights=uniform",), 4),
        ("uldp_sgd", ("method.weights=records",), 1),
    ],
)
def test_a_user_reaches_every_silo_unless_its_weights_add_up_to_one(method, given, reach):
    spec = changed("horizontal", method, ("budget.updates=1", "split.clients=4", *given))
    assert prepare_horizontal(spec).privacy.noise.release.reach == reach
