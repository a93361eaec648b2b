import re
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import scenarios
from raydpzv import registry
from raydpzv.data.users import UserParts
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.horizontal import PreparedHorizontal
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.runner import continued, run_local
from raydpzv.records import metrics
from tests.helpers.loading import refusal

CATEGORY = 'data.categories=["patient"]'
USERS = ("split.how=users", "users.count=20", "split.clients=3")
COLUMNS = (
    "data.source=csv",
    "data.target=label",
    "split.how=users",
    "split.clients=3",
    "users.how=column",
    "users.silos=column",
    'users.columns=["patient", "hospital"]',
    "model.kind=logistic",
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    lines = [f"{i % 7},{i * 3 % 11},{i % 2},p{i % 9},h{i % 3}" for i in range(120)]
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(["x,y,label,patient,hospital", *lines]))
    return path


def prepared(*overrides: str) -> PreparedHorizontal:
    found = prepare(scenarios.load("digits_decomfl", ["method.cohort=1", *overrides]))
    assert isinstance(found, PreparedHorizontal)
    return found


def test_columns_of_a_file_name_user_and_silo_and_are_no_features(table):
    """Patient i mod 9 is in hospital i mod 3 alone: three patients to a hospital."""
    found = prepared(*COLUMNS, f"data.file={table}")
    assert isinstance(found.parts, UserParts)
    assert found.split.train.shape == (2,)
    assert (found.parts.users, found.parts.clients) == (9, 3)
    assert ((found.parts.counts() > 0).sum(1) == 3).all()
    rows = np.sort(np.concatenate([found.parts.rows(silo) for silo in range(3)]))
    assert np.array_equal(rows, np.arange(len(found.split.train.y)))


def test_main_silos_are_a_files_silos_and_their_users_are_drawn(table):
    given = (
        "users.how=zipf",
        "users.silos=main",
        "users.count=10",
        'users.columns=["", "hospital"]',
        CATEGORY,
    )
    found = prepared(*COLUMNS, f"data.file={table}", *given)
    assert isinstance(found.parts, UserParts)
    assert found.split.train.shape == (2 + 9,), "patients are a category here"
    assert found.parts.users == 10


REFUSED = [
    ((*COLUMNS, 'users.columns=["doctor", "hospital"]'), DataError, 'no column "doctor" of users'),
    ((*COLUMNS, 'users.columns=["patient", "label"]'), DataError, 'users.columns: "label"'),
    ((*COLUMNS, 'users.columns=["", "hospital"]', CATEGORY), SpecError, "name their user"),
    ((*COLUMNS, "split.clients=4"), SpecError, "split.clients: wanted 3"),
    (
        (*USERS, 'users.columns=["a", "b"]'),
        SpecError,
        "users.columns: wanted a data set with named columns",
    ),
    ((*USERS, "users.count=2000"), SpecError, "users.count: wanted at most 1437"),
    ((*USERS, "users.labels=11"), SpecError, "users.labels: wanted at most 10"),
    ((*USERS, "users.silos=main"), SpecError, "name their silo"),
    ((*USERS, "users.how=zipff"), SpecError, "wanted 'uniform', 'zipf' or 'column', got 'zipff'"),
    (("split.how=users",), SpecError, "goes with a table"),
    (("users.count=20",), SpecError, "goes with a table"),
    (("method.name=uldp_avg", "method.lr=0.1"), SpecError, "users: wanted with"),
    (("method.name=dpzv", *USERS), SpecError, "users: a table for horizontal methods"),
    (
        (*USERS, "method.name=uldp_avg", "method.weights=record"),
        SpecError,
        "method.weights: wanted",
    ),
    ((*USERS, "method.name=uldp_avg", "method.sampling=1.5"), SpecError, "method.sampling: wanted"),
    ((*USERS, "method.name=uldp_group", "method.group=0"), SpecError, "method.group"),
    ((*USERS, "method.name=uldp_group", "method.rate=0.0"), SpecError, "method.rate: wanted"),
]


@pytest.mark.parametrize(("overrides", "kind", "words"), REFUSED)
def test_what_cannot_be_is_refused_in_one_line(table, overrides, kind, words):
    given = (f"data.file={table}",) if "data.source=csv" in overrides else ()
    with refusal(kind, re.escape(words)):
        prepared(*given, *overrides)


def test_an_empty_cell_of_users_is_refused_with_its_row(table):
    table.write_text(table.read_text().replace("p4,", ",", 1))
    with pytest.raises(DataError, match=r'"patient" of "patients.csv" names no user in row 4'):
        prepared(*COLUMNS, f"data.file={table}")


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(10), nn.Dropout()], ids=lambda layer: type(layer).__name__
)
def test_layers_that_mix_users_are_refused_for_methods_that_protect_them(monkeypatch, layer):
    def mixing(shape, hidden, outputs):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), layer)

    monkeypatch.setitem(registry.WHOLE_MODELS._checked, "cnn_mnist", mixing)
    model = ("model.kind=cnn_mnist", *USERS)
    with pytest.raises(SpecError, match=rf'"cnn_mnist" has {type(layer).__name__} \(2\)'):
        prepared("method.name=uldp_sgd", "privacy.clip=0.1", *model)
    assert prepared("method.name=fedavg", "method.lr=0.1", *model)


# Staleness rows of many clients: sums over windows say what all rows say, and cost less than those
# of 16 clients.

MANY = (
    "split.clients=64",
    "split.how=columns",
    "privacy.noise=seeded",
    "model.hidden=[2]",
    "model.embedding=2",
)


def loaded(*more: str):
    return scenarios.load("digits_dpzv", [*MANY, "budget.updates=150", "evaluate.every=75", *more])


@pytest.fixture(scope="module")
def whole():
    return scenarios.run(loaded())


def test_sums_have_the_folds_of_all_rows_and_the_run_its_bits(whole):
    every = scenarios.run(loaded("record.staleness=all"))
    assert every.rows("staleness").num_rows == 150 * 63
    assert whole.rows("staleness").num_rows <= 150 * 15
    assert whole.summary["staleness"] == every.summary["staleness"]
    assert whole.summary["model_digest"] == every.summary["model_digest"]
    found, expected = (metrics.staleness(run.rows("staleness"), 64) for run in (whole, every))
    assert str(found) == str(expected)


@pytest.mark.parametrize("until", [1, 40, 64, 100])
def test_a_run_that_stopped_within_a_window_ends_with_the_same_digest(
    whole, until: int, tmp_path: Path
):
    out = tmp_path / "run"
    assert run_local(prepare(loaded()), RunOptions(out, until=until)).summary["status"] == "stopped"
    prepared, folder, _ = continued(out)
    again = run_local(prepared, RunOptions(folder))
    assert again.rows("staleness").num_rows >= whole.rows("staleness").num_rows
    assert again.summary["digest"] == whole.summary["digest"]


def test_up_to_16_clients_each_service_has_a_row_for_each_other():
    run = scenarios.run(loaded("split.clients=16"))
    assert run.rows("staleness").num_rows == 150 * 15
