import json
import pathlib
import sqlite3
import sys
import types

import pytest

import raydpzv
from raydpzv.errors import InputError
from raydpzv.registry import LOGS
from raydpzv.report.page import write_report
from scenarios.options import chosen_logs
from tests.helpers.report_views import without_pixels

SHORT = ["budget.updates=60", "evaluate.every=20", "privacy.noise=seeded"]


def tracked(name, folder):
    """A run with this tracker, and its accuracies as the rows have them: (update, accuracy)."""
    pytest.importorskip(LOGS[name].library, reason=f"{name} is not installed")
    run = raydpzv.run(
        raydpzv.load("digits_dpzv", SHORT), folder / "run", callbacks=chosen_logs(name)
    )
    return [(row["round"], row["accuracy"]) for row in run.rows("evaluation").to_pylist()]


@pytest.mark.filterwarnings("ignore")  # of its own libraries
def test_mlflow_reads_back_what_the_rows_hold(tmp_path):
    wanted = tracked("mlflow", tmp_path)
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("raydpzv").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["budget.updates"] == "60"
    assert len(client.list_artifacts(run.info.run_id, "plots")) > 3
    assert [
        (m.step, m.value) for m in client.get_metric_history(run.info.run_id, "accuracy")
    ] == wanted


def test_trackio_reads_back_what_the_rows_hold(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    wanted = tracked("trackio", tmp_path)
    with sqlite3.connect(tmp_path / "trackio" / "raydpzv.db") as database:
        found = [
            (step, json.loads(m))
            for step, m in database.execute("select step, metrics from metrics")
        ]
    assert [(step, m["accuracy"]) for step, m in found if "accuracy" in m] == wanted


def test_wandb_keeps_what_the_rows_hold(tmp_path):
    wanted = tracked("wandb", tmp_path)
    from wandb.proto import wandb_internal_pb2

    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    data, found = file.read_bytes()[7:], []
    while len(data) > 7:  # records of one block: check sum, length, kind, then the bytes
        size = int.from_bytes(data[4:6], "little")
        record = wandb_internal_pb2.Record.FromString(data[7 : 7 + size])
        data = data[7 + size :]
        items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
        if "accuracy" in items:
            found.append((json.loads(items["update"]), json.loads(items["accuracy"])))
    assert found == wanted


class Fake:
    """Stands for the library of a tracker: keeps what it is given, and the bytes of pictures as
    they are then.
    """

    def __init__(self):
        self.pictures, self.logged, self.summary, self.ended = {}, [], {}, 0
        fields = types.SimpleNamespace(Metric=lambda *given: given, Param=lambda *given: given)
        self.entities, found = (
            fields,
            types.SimpleNamespace(experiment_id=0, info=types.SimpleNamespace(run_id=1)),
        )
        self.create_experiment = self.create_run = lambda *given, **more: found
        self.get_experiment_by_name = lambda name: None
        self.MlflowClient = self.init = lambda **given: self
        self.log_batch = self.define_metric = lambda *given, **more: None

    def Image(self, path):  # of wandb and trackio
        return pathlib.Path(path).read_bytes()

    def log(self, values, step=None):
        self.pictures |= {
            name.removeprefix("plots/"): v for name, v in values.items() if isinstance(v, bytes)
        }

    def log_artifact(self, run, path, folder):  # of MLflow
        assert folder == "plots"
        self.pictures[pathlib.Path(path).stem] = pathlib.Path(path).read_bytes()

    def finish(self, **_):
        self.ended += 1

    set_terminated = lambda self, *_: self.finish()  # noqa: E731


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_tracker_gets_the_pictures_that_a_report_draws(name, tmp_path, monkeypatch):
    if name != "mlflow":  # the bytes of one prove those of all
        without_pixels(monkeypatch)
    fake = Fake()
    monkeypatch.setitem(sys.modules, name, fake)
    raydpzv.run(raydpzv.load("digits_dpzv", SHORT), tmp_path / "run", callbacks=chosen_logs(name))
    write_report([tmp_path / "run"])
    drawn = {path.stem: path.read_bytes() for path in (tmp_path / "run" / "plots").glob("*.png")}
    assert fake.ended == 1
    assert fake.pictures == drawn
    assert "accuracy_over_updates" in drawn


def test_no_picture_of_a_private_run_leaves(tmp_path, monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    private = raydpzv.load("digits_private", ["budget.updates=60", "data.train_rows=150"])
    assert raydpzv.run(private, tmp_path / "run", callbacks=chosen_logs("wandb")).summary["private"]
    assert (fake.pictures, fake.ended) == ({}, 1)


def test_an_error_while_drawing_warns_and_the_log_is_closed(tmp_path, monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)

    def broken(folder):
        raise OSError("no space left")

    (log,) = chosen_logs("wandb")
    log.pictures = broken
    with pytest.warns(RuntimeWarning, match="no space left; the run continues"):
        run = raydpzv.run(raydpzv.load("digits_dpzv", SHORT), tmp_path / "run", callbacks=[log])
    assert (run.summary["status"], fake.ended) == ("done", 1)


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_named_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"pip install 'raydpzv\[{name}\]'"):
        chosen_logs(name)


def test_an_error_of_a_tracker_warns_and_the_run_continues(tmp_path, monkeypatch):
    class Broken:
        @staticmethod
        def init(**_):
            raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", Broken)
    with pytest.warns(RuntimeWarning, match="no network; the run continues"):
        run = raydpzv.run(
            raydpzv.load("digits_dpzv", SHORT), tmp_path / "run", callbacks=chosen_logs("wandb")
        )
    assert run.summary["status"] == "done"
