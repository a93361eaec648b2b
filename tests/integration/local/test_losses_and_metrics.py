import math
import sys
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import raydpzv
from raydpzv.audit.canaries import Canary, chosen, neighbour
from raydpzv.compare.compare_methods import compare
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.keys import Key
from raydpzv.report.page import write_report
from raydpzv.report.run_summary import headline, summary_rows
from tests.helpers.programs import Forked, ended, said

DRAW = (Key(0) / "numbers").generator()
X = DRAW.standard_normal((120, 4)).astype(np.float32)
Y = X.astype(float) @ [1, -2, 0.5, 1.5] + 1 / 3
VIEWS = {"bank": X[:, :2], "shop": X[:, 2:]}
FUNCTIONS = """
import numpy as np
import torch


def pinball(scores, y):
    return torch.where(y > scores, 0.9 * (y - scores), 0.1 * (scores - y)).mean(1)


def costs(scores, y):
    return {"worst": float(np.abs(scores - y).max()), "near": float((np.abs(scores - y) < 0.5).mean())}
"""
SCENARIO = """
[data]
source = "csv"
file = "t.csv"
target = ["price", "rent"]
scale = "none"
validation_fraction = 0.2
[split]
parties = {bank = ["income", "debt"], shop = ["visits", "spend"]}
[model]
loss = "squared_error"
embedding = 4
[method]
lr = 0.002
batch = 16
[evaluate]
every = 20
metrics = "functions:costs"
lower = ["worst"]
[budget]
updates = 40
"""


PROGRAM = ["-m", "raydpzv"]
HIDDEN = """
import sys
from pathlib import Path
from raydpzv.experiment.rebuild import from_ledger
found = from_ledger(Path("run"), client=int(sys.argv[1]) if len(sys.argv) > 1 else None)
print(found.verified, {name: x.tobytes().hex()[:64] for name, x in found.models.items()})
assert "functions" not in sys.modules
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "prices.toml").write_text(SCENARIO)
    lines = [
        f"{','.join(map(repr, map(float, (*x, y, 2 * y))))}\n" for x, y in zip(X, Y, strict=True)
    ]
    (tmp_path / "t.csv").write_text("".join(["income,debt,visits,spend,price,rent\n", *lines]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("functions", None)


def share(scores, y):
    return {"share": float((scores.argmax(1) == y).mean())}


@pytest.mark.parametrize("kind", ["horizontal", "vertical"])
def test_own_metrics_change_no_bit_of_a_compiled_run_and_see_its_scores(kind):
    def run(**more):
        y, settings = Y > 0, {"updates": 8, "every": 4, "model__engine": "compiled"} | more
        if kind == "horizontal":
            return raydpzv.run(raydpzv.horizontal("mlp", (X, y), clients=4, lr=0.1, **settings))
        return raydpzv.run(raydpzv.vertical("mlp", VIEWS, y, batch=16, **settings))

    plain, judged = run(), run(metrics=share)
    assert judged.summary["digest"] == plain.summary["digest"]
    assert judged.summary["model_digest"] == plain.summary["model_digest"]
    assert "measures" not in plain.summary
    rows = judged.rows("measure").to_pylist()
    scored = judged.rows("evaluation").to_pylist()
    assert [row["value"] for row in rows] == [row["accuracy"] for row in scored]
    assert {row["name"] for row in rows} == {"share"}
    assert judged.summary["measures"] == {"share": judged.accuracy}


def test_own_metrics_see_the_scores_of_a_sum_of_embeddings():
    settings = {"head": "sum", "updates": 8, "every": 4, "batch": 16, "embedding": 2}
    run = raydpzv.run(
        raydpzv.vertical(
            "linear", VIEWS, Y > 0, metrics=share, model__engine="compiled", **settings
        )
    )
    assert run.summary["measures"]["share"] == run.accuracy


def test_numbers_reach_the_server_as_they_are_in_the_file(folder):
    prepared = prepare(raydpzv.load("prices.toml"))
    numbers = prepared.numbers
    np.testing.assert_array_equal(prepared.server.y_train, np.stack([Y, 2 * Y], 1)[numbers])
    (folder / "t.csv").write_text(
        (folder / "t.csv").read_text().replace(repr(float(Y[3])), "1e400")
    )
    with pytest.raises(DataError, match="has the label inf in row 3"):
        prepare(raydpzv.load("prices.toml"))


def test_a_run_of_numbers_is_judged_and_reported_without_an_accuracy(folder):
    run = raydpzv.run(raydpzv.load("prices.toml"), "run")
    summary = run.summary
    assert run.accuracy is None
    assert run.measures == {"loss": summary["loss"], **summary["measures"]}
    assert "<td>rmse</td>" in run._repr_html_()
    assert "accuracy" not in run._repr_html_()
    assert list(summary["measures"]) == ["rmse", "r2", "worst", "near"]
    assert summary["measures"]["rmse"] == pytest.approx(math.sqrt(summary["loss"]), rel=1e-5)
    shown = dict(summary_rows(summary))
    assert f"Test rmse {shown['rmse']} after 40" in headline(summary)
    assert "test accuracy" not in shown
    page = write_report([folder / "run"]).read_text(encoding="utf-8")
    assert "Test rmse against the number of" in page
    assert "Measures of the test rows: rmse, r2, worst, near." in page


@pytest.mark.parametrize("kind", ["vertical", "horizontal"])
def test_a_run_with_an_own_loss_resumes_with_it_alone_and_is_rebuilt_without_it(folder, kind):
    changes = [
        "model.loss=functions:pinball",
        "model.targets=numbers",
        "record.checkpoint_updates=3",
    ]
    if kind == "horizontal":
        (folder / "prices.toml").write_text(
            SCENARIO.replace("[split]\nparties", "[split]\nhow = 'iid'\nclients = 4\n#")
            .replace("embedding = 4", "kind = 'mlp'")
            .replace("[method]\nlr = 0.002", "[method]\nname = 'decomfl'\ncohort = 2\nlr = 0.002")
        )

    def resumed():
        return ended(Forked([*PROGRAM, "resume", "run"]))

    def spec():
        sys.modules.pop("functions", None)
        return raydpzv.load("prices.toml", changes)

    whole, stop = raydpzv.run(spec()), threading.Event()
    assert whole.summary["loss"] < 3
    assert list(whole.summary["measures"]) == ["worst", "near"]
    raydpzv.run(spec(), "run", stop=stop, progress=lambda s: stop.set() if s.updates >= 7 else None)
    (folder / "functions.py").write_text(FUNCTIONS.replace("0.9 *", "0.8 *"))
    status, _, complaint = resumed()
    assert status == 2
    assert "your own module functions changed since the run began" in complaint
    (folder / "functions.py").write_text(FUNCTIONS)
    assert resumed()[0] == 0
    again = np.load("run/models.npz")
    assert all(
        np.array_equal(again[name.replace(" ", "_")], values)
        for name, values in whole.models.items()
    )
    (folder / "functions.py").unlink()
    rebuilt = said(Forked(["-c", HIDDEN, *(("1",) if kind == "vertical" else ())]))
    name = "client 1" if kind == "vertical" else "shared"
    assert rebuilt.startswith("True")
    assert whole.models[name].tobytes().hex()[:64] in rebuilt


def test_measures_are_columns_of_a_comparison(folder):
    (folder / "two.toml").write_text(
        'title = "two"\nscenario = "prices.toml"\nseeds = [0]\n[[methods]]\nlabel = '
        '"one"\n[[methods]]\nlabel = "two"\nset = ["method.name=vafl", "method.lr=0.01"]\n'
    )
    compared = compare("two.toml", folder / "compared")
    runs = compared.runs.to_pylist()
    assert {"rmse", "r2", "worst", "near"} <= set(compared.runs.column_names)
    assert [
        (r["label"], r["outcome"], r["reason"]) for r in runs if not math.isfinite(r["rmse"])
    ] == []
    last = {row["label"]: row["rmse"] for row in compared.curves.to_pylist()}  # in order of updates
    assert last == {row["label"]: row["rmse"] for row in runs}
    assert "test rmse: median (min to max)" in compared._repr_html_()
    assert (folder / "compared" / "plots" / "accuracy_over_updates.png").is_file()


def test_a_search_chooses_by_an_own_measure_of_which_less_is_better(folder):
    (folder / "space.toml").write_text("method.lr.grid = [0.0001, 0.002]\n")
    asked = [
        *PROGRAM,
        "tune",
        "prices.toml",
        "--space",
        "space.toml",
    ]

    def found(*words):
        return ended(Forked([*asked, *words]))

    status, _, err = found("--metric", "validation_worst", "--out", "found")
    assert status == 0, err
    rows = pq.read_table("found/trials.parquet").to_pylist()
    best = min(rows, key=lambda row: row["validation_worst"])
    assert f"# trial {best['trial']} " in (folder / "found" / "best.toml").read_text()
    assert len({row["validation_worst"] for row in rows}) == 2
    for metric, complaint in (
        ("wurst", 'Did you mean "worst"? Use rmse or r2 or worst or near or loss'),
        ("accuracy", "these labels have none"),
    ):
        status, _, err = found("--metric", metric, "--out", "none")
        assert status == 2
        assert complaint in " ".join(err.split())


def test_labels_of_a_data_set_of_pairs_are_not_cut_to_whole_numbers():
    pairs = [(torch.tensor(x), float(y)) for x, y in zip(X, Y, strict=True)]
    with pytest.raises(DataError, match="wanted one class a row"):
        raydpzv.horizontal("mlp", pairs, clients=4, updates=2)
    scenario = raydpzv.horizontal("mlp", pairs, clients=4, loss="squared_error", updates=2)
    found = prepare(scenario).split
    values = np.concatenate([found.train.values[:, 0], found.test.values[:, 0]])
    assert sorted(values) == sorted(Y)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"y": Y}, "wanted one class a row.*squared_error"),
        ({"y": np.where(Y > 2, np.nan, Y), "loss": "squared_error"}, "has the label nan in row"),
        ({"y": Y[:-1], "loss": "squared_error"}, "120 rows of features and 119 labels"),
        (
            {"y": np.array(list("ab") * 60), "loss": "squared_error"},
            'y holds "a" in row 0',
        ),
        ({"y": np.arange(120) % 3, "loss": "binary"}, '"binary" is for two classes.*has 3'),
        ({"y": Y, "loss": "multi_label"}, "wants labels 0 and 1"),
        ({"y": Y > 0, "loss": "cox"}, "a time and an event a row"),
        ({"loss": "squared"}, 'unknown loss "squared". Did you mean "squared_error"'),
        ({"loss": "squared_error", "model__targets": "numbers"}, "goes with a loss of your own"),
        (
            {"loss": "squared_error", "model__engine": "compiled"},
            'cannot run model.loss = "squared_error"',
        ),
        (
            {"loss": "squared_error", "split": {"how": "dirichlet"}},
            "mixes classes, and the labels are numbers",
        ),
        ({"loss": "squared_error", "model__outputs": 3}, "wanted 1, with model.loss"),
        ({"loss": "squared_error", "metrics": lambda s, y: {"rmse": 1.0}}, '"rmse" is a column'),
        ({"loss": "squared_error", "metrics": lambda s, y: {"a": "b"}}, "wanted a float for a"),
        ({"loss": lambda s, y: ((s - y) ** 2).mean()}, "seems to return their mean"),
        ({"loss": "functions_not_there:f"}, "cannot be imported"),
    ],
)
def test_losses_labels_and_metrics_that_do_not_fit_are_refused(more, complaint):
    more = {"y": Y, **more} if "loss" in more else more
    with pytest.raises((DataError, SpecError, InputError), match=complaint):
        prepare(raydpzv.horizontal("mlp", (X, more.pop("y")), clients=4, updates=2, **more))


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"loss": lambda s, y: ((s - y) ** 2).mean()}, "seems to return their mean"),
        ({"metrics": lambda s, y: {"loss": 1.0}}, '"loss" is a column'),
        (
            {"metrics": lambda s, y: {"cost": 0.0}, "evaluate": {"lower": ["cots"]}},
            'Did you mean "cost"',
        ),
        ({"head": "sum"}, r'wanted 1, a record\'s scores, with head = "sum", got 2'),
        ({"model__engine": "compiled"}, r'cannot run model\.loss = "squared_error"'),
        ({"model__engine": "compiled_head"}, r'cannot run model\.loss = "squared_error"'),
        (
            {"evaluate": {"lower": ["cost"]}},
            "names measures of evaluate.metrics, which is not given",
        ),
    ],
)
def test_losses_and_metrics_that_do_not_fit_parties_are_refused(more, complaint):
    settings = {"loss": "squared_error", "embedding": 2, "updates": 2} | more
    with pytest.raises(InputError, match=complaint):
        prepare(raydpzv.vertical("linear", VIEWS, Y, **settings))


def test_settings_about_classes_do_not_go_with_numbers(folder):
    with pytest.raises(
        SpecError, match=r'data\.classes: is about classes, and model\.loss = "squared_error"'
    ):
        raydpzv.load("prices.toml", ["data.classes=['low', 'high']"])
    with pytest.raises(SpecError, match=r"users\.labels: is about classes"):
        raydpzv.load("digits_users", ["model.loss=multi_label", "users.labels=1"])


def test_columns_that_are_not_there_are_named_with_the_nearest(folder):
    for change, complaint in (
        (
            "split.parties={bank=['incme'], shop=['visits']}",
            'bank wants column "incme".*Did you mean "income"',
        ),
        ("data.target=['price', 'rnt']", 'no column "rnt" to predict. Did you mean "rent"'),
        ("split.parties={bank=['price'], shop=['visits']}", '"price", which data.target names'),
    ):
        with pytest.raises((DataError, SpecError), match=complaint):
            prepare(raydpzv.load("prices.toml", [change]))


@pytest.mark.parametrize("kind", ["label", "features"])
def test_an_audit_changes_a_label_that_is_a_number(folder, kind):
    prepared = prepare(raydpzv.load("prices.toml", ["data.validation_fraction=0"]))
    canary = Canary(5, int(prepared.numbers[5]), kind)
    changed = neighbour(prepared, [canary])
    moved = changed.server.y_train - prepared.server.y_train
    assert not np.delete(moved, 5, 0).any()
    assert moved[5].tolist() == ([50, 50] if kind == "label" else [0, 0])
    assert Canary(5, 5, "label").label(np.array([0.0, 1.0]), 2).tolist() == [1, 0]
    with pytest.raises(SpecError, match="new_label"):
        chosen(prepared, "replace", count=2, kinds=["new_label"], refusable=True)


def test_a_proof_about_numbers_asks_for_no_classes():
    small = {"loss": "squared_error", "embedding": 1, "head": "sum", "batch": "all", "updates": 2}
    proved = {
        "server": "frozen",
        "data__split": "plain",
        "privacy": {"mode": "proved", "epsilon": 1.0, "clip": 0.1},
    }
    found = raydpzv.privacy(raydpzv.vertical("linear", VIEWS, Y, **small, **proved))
    assert found.verdict.proved
    assert not [line for line in found.lists if "classes" in line]
