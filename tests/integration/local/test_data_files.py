import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.data.held_out import limit
from raydpzv.data.sources import Request
from raydpzv.errors import DataError, SpecError
from raydpzv.experiment.prepare import load_data
from raydpzv.keys import Key
from tests.helpers.dataset_files import (
    TINY_RESNET,
    TINY_TRANSFORMER,
    write_cifar10,
    write_creditcard,
    write_heart_disease,
    write_mnist,
    write_reviews,
    write_speech,
    write_tcga_brca,
    write_views,
)

FEW = ("budget.updates=20", "evaluate.every=10", "method.batch=16", "privacy.noise=seeded")


@pytest.fixture
def mnist(tmp_path):
    return write_mnist(tmp_path)


@pytest.fixture
def cifar10(tmp_path):
    return write_cifar10(tmp_path)


def test_mnist_with_seven_clients(mnist):
    run = scenarios.run(scenarios.load("mnist_dpzv", [f"data.folder={mnist}", *FEW]))
    assert run.summary["updates"] == 20
    assert run.summary["bytes_up"] == 20 * 16 * (4 + 2 * 64 * 4)
    assert len([name for name in run.models if name.startswith("client")]) == 7


def test_cifar10_with_four_clients(cifar10):
    run = scenarios.run(scenarios.load("cifar10_dpzv", [f"data.folder={cifar10}", *FEW]))
    assert run.summary["updates"] == 20
    assert len({values.size for name, values in run.models.items() if name != "server"}) == 1


def views(path, objects):
    """Write random objects in 12 views of 8 by 8 pixels."""
    x = (Key(3) / "views").generator().standard_normal((objects, 12, 1, 8, 8)).astype(np.float32)
    np.savez(path / "views.npz", x=x, y=np.arange(objects) % 4)
    return f"data.file={path / 'views.npz'}"


def test_views_of_objects(tmp_path):
    overrides = ["data.source=multiview", views(tmp_path, 80), "split.how=views"]
    overrides += ["split.clients=4", "model.bottom=cnn", "model.hidden=[4]", *FEW]
    run = scenarios.run(scenarios.load("digits_dpzv", overrides))
    assert run.summary["updates"] == 20


FEW_VAFL = ("budget.updates=14", "evaluate.every=7", "method.batch=16")


@pytest.mark.parametrize("name", ["mnist_vafl", "fashion_vafl"])
def test_vafl_on_images_by_rows(mnist, name):
    run = scenarios.run(scenarios.load(name, [f"data.folder={mnist}", *FEW_VAFL]))
    assert (run.summary["bytes_up"], run.summary["bytes_down"]) == (14 * 16 * 44, 14 * 16 * 40)
    assert run.models["client 0"].size == 4 * 28 * 10 + 10


def test_vafl_on_patches(cifar10):
    run = scenarios.run(scenarios.load("cifar10_vafl", [f"data.folder={cifar10}", *FEW_VAFL]))
    assert run.summary["updates"] == 14
    assert run.models["client 7"].size == 3 * 16 * 8 * 10 + 10


def test_vafl_on_parkinsons_speech_features_keeps_patients_on_one_side(tmp_path):
    spec = scenarios.load("parkinson_vafl", [f"data.file={write_speech(tmp_path)}", *FEW_VAFL[:2]])
    split = load_data(Request(spec.data, Key(spec.seed) / "data"))
    assert split.train.features == (
        "gender",
        "PPE",
        "DFA",
        "RPDE",
        "numPulses",
        "tqwt_kurtosisValue_dec_36",
    )
    trained, tested = set(split.train.groups.tolist()), set(split.test.groups.tolist())
    assert (len(trained), len(tested)) == (24, 6)
    assert not trained & tested
    assert split.test.rows == 18
    assert scenarios.run(spec).summary["updates"] == 14


def test_a_group_on_both_sides_is_what_an_accuracy_can_come_from(tmp_path):
    """Features name the group, and groups have labels by chance: only a model that has seen the
    group can know them.
    """
    names, labels = (Key(5) / "groups").generator().standard_normal((60, 64)), np.arange(60) % 2
    noise = (Key(6) / "rows").generator().standard_normal((240, 64)) / 10
    rows = [[*(names[i % 60] + noise[i]), i % 60, labels[i % 60]] for i in range(240)]
    lines = [
        ",".join([*(f"f{n}" for n in range(64)), "who", "label"]),
        *(",".join(map(str, r)) for r in rows),
    ]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    given = [
        "data.source=csv",
        f"data.file={tmp_path / 'rows.csv'}",
        "data.target=label",
        "split.how=columns",
    ]
    given += [
        "split.clients=2",
        "method.name=sgd",
        "privacy.mode=none",
        "method.batch=48",
        "method.lr=0.1",
    ]
    given += ["method.server_lr=0.1", "budget.updates=150", "evaluate.every=150"]
    leaky, honest = (
        scenarios.run(
            scenarios.load("digits_dpzv", [*given, "data.groups=who"][: len(given) + n])
        ).summary
        for n in (0, 1)
    )
    assert leaky["accuracy"] > 0.95
    assert honest["accuracy"] < 0.8


@pytest.mark.parametrize(("name", "clients"), [("multiview_vafl", 4), ("multiview12_vafl", 12)])
def test_vafl_on_views_with_the_papers_noise(tmp_path, name, clients):
    noise = [
        "privacy.mode=paper",
        "privacy.sigma=1.0",
        "method.layer_noise=[0.0577, 0.0577, 0.00577]",
    ]
    run = scenarios.run(scenarios.load(name, [views(tmp_path, 40), *FEW_VAFL, *noise]))
    assert run.summary["bytes_down"] == 14 * 16 * 512 * 4
    assert run.models["server"].size == clients * 512 * 256 + 256 + 256 * 100 + 100 + 100 * 4 + 4
    assert run.rows("release").num_rows == 14


def test_vafl_on_time_series_with_noise_on_every_layer():
    noise = [
        "privacy.mode=paper",
        "privacy.sigma=0.01",
        "method.layer_noise=[0.01]",
        "data.rows=80",
    ]
    noise += ["method.layer_law=gaussian"]
    run = scenarios.run(scenarios.load("lstm_vafl", [*FEW_VAFL, *noise]))
    assert run.summary["updates"] == 14


def test_modelnet40_with_twelve_clients(tmp_path):
    spec = scenarios.load(
        "modelnet40_dpzv", [f"data.file={write_views(tmp_path)}", *TINY_RESNET, *FEW]
    )
    run = scenarios.run(spec)
    assert run.summary["updates"] == 20
    assert run.summary["bytes_up"] == 20 * 16 * (4 + 2 * 4 * 4)
    assert len([name for name in run.models if name.startswith("client")]) == 12


def test_amazon_reviews_with_three_clients_are_the_same_run_in_both_forms(tmp_path):
    few = (*TINY_TRANSFORMER, *FEW, "data.train_rows=60", "data.test_rows=10")
    runs = []
    for form in ("csv", "ft.txt"):
        (tmp_path / form).mkdir()
        folder = write_reviews(tmp_path / form, form)
        runs.append(scenarios.run(scenarios.load("amazon_dpzv", [f"data.folder={folder}", *few])))
    one, other = runs
    assert np.array_equal(one.models["client 0"], other.models["client 0"])
    assert one.summary["updates"] == 20
    # V·W + L·W + 2W for the embeddings, 12W² + 13W for the layer, (W + 1)·E
    assert one.models["client 2"].size == (200 + 4 + 2) * 8 + 12 * 64 + 13 * 8 + 9 * 4
    assert one.summary["private"] is not True


def test_the_settings_of_texts_reach_the_data(tmp_path):
    folder = write_reviews(tmp_path, "csv")

    def rows(*overrides):
        spec = scenarios.load(
            "amazon_dpzv", [f"data.folder={folder}", *TINY_TRANSFORMER, *FEW, *overrides]
        )
        return load_data(Request(spec.data, Key(spec.seed) / "data"))

    split = rows("data.train_rows=30", "data.test_rows=6")
    assert (split.train.x.shape, split.test.x.shape) == ((30, 12), (6, 12))
    assert split.train.vocabulary == 200
    assert np.array_equal(split.train.x, np.floor(split.train.x)), (
        "no scaling, though data.scale says standard"
    )
    whole = rows()
    kept = limit(whole, 30, 6, Key(0) / "data" / "limit")
    assert np.array_equal(split.train.x, kept.train.x)


def test_texts_and_models_of_other_kinds(tmp_path):
    texts = [f"data.folder={write_reviews(tmp_path, 'csv')}", *TINY_TRANSFORMER, *FEW]
    for name, overrides, said in (
        (
            "amazon_dpzv",
            [*texts, "model.bottom=mlp"],
            r"token ids, names and no quantities.*use transformer",
        ),
        (
            "amazon_dpzv",
            [*texts, "split.clients=5", "clock.compute=1"],
            "5 clients cannot have equal spans of 12 tokens",
        ),
        (
            "digits_dpzv",
            ["model.bottom=transformer", "split.how=columns"],
            'numbers, which "transformer" does not take',
        ),
    ):
        with pytest.raises(SpecError, match=said):
            scenarios.run(scenarios.load(name, overrides))


METHODS = ("vafl", "zoo_vfl", "czofo", "frozen", "sgd")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("scenario", ["modelnet40_dpzv", "amazon_dpzv"])
def test_every_method_runs_on_these_models(tmp_path, scenario, name):
    if scenario == "amazon_dpzv":
        source = [f"data.folder={write_reviews(tmp_path, 'csv')}", *TINY_TRANSFORMER]
    else:
        source = [f"data.file={write_views(tmp_path)}", *TINY_RESNET]
    overrides = [
        f'method={{name="{name}", batch=16}}',
        'privacy={mode="none"}',
        "budget.updates=26",
    ]
    run = scenarios.run(scenarios.load(scenario, [*source, *overrides, "evaluate.every=13"]))
    assert run.summary["updates"] >= 26
    assert np.isfinite(run.models["client 0"]).all()
    still = scenarios.run(
        scenarios.load(scenario, [*source, *overrides, "budget.updates=1"])
    ).models["client 1"]
    moved = not np.array_equal(run.models["client 1"], still)
    assert moved == (name != "frozen")


def test_a_poisson_batch_without_a_record_goes_through_these_models(tmp_path):
    few = ["method.batch=1", "method.batches=poisson", "budget.updates=12", "privacy.noise=seeded"]
    reviews = [f"data.folder={write_reviews(tmp_path, 'csv')}", *TINY_TRANSFORMER]
    views = [f"data.file={write_views(tmp_path)}", *TINY_RESNET]
    for scenario, source in (("amazon_dpzv", reviews), ("modelnet40_dpzv", views)):
        run = scenarios.run(scenarios.load(scenario, [*source, *few]))
        sizes = np.array(run.summary["bytes_up"])
        assert run.summary["updates"] == 12
        assert sizes != 12 * (4 + 2 * 4 * 4), "control: they were not all of one record"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "least", "most"),
    [
        (("privacy.noise=seeded",), 0.72, 1.0),
        (('method={name="frozen", batch=64}', 'privacy={mode="none"}'), 0.0, 0.66),
    ],
    ids=["epsilon 1", "control"],
)
def test_generated_reviews_are_learned_offline(overrides, least, most):
    spec = scenarios.load(
        "reviews_dpzv", ["evaluate.every=4000", "record.staleness=false", *overrides]
    )
    assert least <= scenarios.run(spec).summary["accuracy"] <= most


def test_parties_are_columns_by_name_and_what_nobody_holds_is_said(tmp_path):
    lines = [
        "age,city,income,bmi,label",
        *(f"{i},{'ab'[i % 2]},{i % 9},{i % 4},{i % 2}" for i in range(60)),
    ]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    given = [
        "data.source=csv",
        f"data.file={tmp_path / 'own.csv'}",
        "data.target=label",
        "split.how=columns",
    ]
    given += [
        'data.categories=["city"]',
        "split.clients=2",
        'split.columns=[["city", "age"], ["income"]]',
    ]
    run = scenarios.run(scenarios.load("frozen", [*given, "method.batch=8", "budget.updates=4"]))
    assert run.summary["warnings"][0].startswith(
        "no client holds the columns bmi: they are not used"
    )
    spec = scenarios.load(
        "frozen", [*given, 'split.columns=[["city"], ["incme"]]', "method.batch=8"]
    )
    with pytest.raises(DataError, match='Did you mean "income"'):
        scenarios.run(spec)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_that_no_party_uses_is_not_read(tmp_path, form):
    file = tmp_path / f"own.{form}"
    columns = {
        "note": [
            f"patient {i}".encode() + b"\xff" for i in range(60)
        ],  # no UTF-8: reading it fails
        "age": list(range(60)),
        "income": [i % 9 for i in range(60)],
        "label": [i % 2 for i in range(60)],
    }
    if form == "csv":
        rows = zip(*columns.values(), strict=True)
        lines = [
            b",".join(v if isinstance(v, bytes) else str(v).encode() for v in row) for row in rows
        ]
        file.write_bytes(b"\n".join([",".join(columns).encode(), *lines]) + b"\n")
    else:
        notes = pa.array(columns["note"], pa.binary()).view(pa.string())
        pq.write_table(pa.table({**columns, "note": notes}), file)
    given = [
        f"data.source={form}",
        f"data.file={file}",
        "data.target=label",
        "split.clients=2",
        "split.how=columns",
    ]
    given += ["method.batch=8", "budget.updates=4"]
    run = scenarios.run(scenarios.load("frozen", [*given, 'split.columns=[["age"], ["income"]]']))
    assert run.summary["warnings"][0].startswith(
        "no client holds the columns note: they are not used"
    )
    for columns_used in ("[[0], [1, 2]]", '[["age"], ["note"]]'):  # by number all are counted
        with pytest.raises((DataError, UnicodeDecodeError), match=r"note|utf|UTF"):
            scenarios.run(scenarios.load("frozen", [*given, f"split.columns={columns_used}"]))


USERS = {
    "creditcard_users": (write_creditcard, 5_012, "roc_auc"),
    "heart_users": (write_heart_disease, 28, "balanced_accuracy"),
    "brca_users": (write_tcga_brca, 40, "concordance"),
    "mnist_users": (write_mnist, 21_840, "accuracy"),
}


@pytest.mark.parametrize("name", USERS)
def test_scenarios_of_users_run_from_small_files_of_their_format(name, tmp_path):
    write, parameters, score = USERS[name]
    small = ("budget.updates=1", "evaluate.every=1", "users.count=8", "method.local_epochs=1")
    fewer = ("split.clients=2",) if name in ("creditcard_users", "mnist_users") else ()
    run = scenarios.run(scenarios.load(name, [f"data.folder={write(tmp_path)}", *small, *fewer]))
    assert run.models["shared"].size == parameters
    assert 0 <= run.summary[score] <= 1
    proved = name in ("brca_users", "mnist_users")
    assert run.summary["private"] is proved, run.summary["privacy_verdict"]
    assert proved or "scaled by" in run.summary["privacy_verdict"]
