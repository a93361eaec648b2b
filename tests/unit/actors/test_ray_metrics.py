"""Ray's metrics are the fold of the rows, however these are cut into parts."""

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import ray.util.metrics

import raydpzv
from actors import runner
from actors.ray_metrics import METRICS, MOST_CLIENTS, OTHERS, RayMetrics
from actors.runner import run_on_ray
from raydpzv.experiment.prepare import prepare
from raydpzv.records.callbacks import Evaluation, Fault, RunStart
from raydpzv.records.schema import SCHEMAS
from raydpzv.sim.interfaces import Status

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def exported(monkeypatch):
    """Values by name and the tags beside run and scenario, as Ray would keep them."""
    values = defaultdict(float)

    class Kept:
        def __init__(self, name, description, tag_keys):
            self.name, self.keys = name, tag_keys

        def place(self, tags):
            assert set(tags) == set(self.keys)
            assert (tags["run"], tags["scenario"]) == ("digits_dpzv-seed0", "digits_dpzv")
            return self.name, *(tags[key] for key in self.keys[2:])

        def inc(self, value, tags):
            assert value > 0
            values[self.place(tags)] += value

        def set(self, value, tags):
            values[self.place(tags)] = value

    monkeypatch.setattr(ray.util.metrics, "Counter", Kept)
    monkeypatch.setattr(ray.util.metrics, "Gauge", Kept)
    return values


def begun(*, private=False):
    watch = RayMetrics(private=private)
    watch.start(RunStart(raydpzv.load("digits_dpzv"), "digits_dpzv", "ray", None))
    return watch


def rows(**given):
    return {
        name: pa.Table.from_pylist(given.get(name, []), schema=schema)
        for name, schema in SCHEMAS.items()
    }


def upload(round, client, late=False, applied=1.0):
    zero = dict.fromkeys(("step", "due", "served", "loss"), 0)
    return zero | {"round": round, "client": client, "late": late, "woke": 0.25, "applied": applied}


def test_clients_beyond_the_first_are_counted_as_one(exported):
    watch = begun()
    watch.rows(rows(service=[upload(m + 1, m, late=m >= 70) for m in range(100)]))
    watch.rows(rows(service=[upload(101, 3, applied=np.nan)]))
    watch.end(None)
    uploads = {key[1]: value for key, value in exported.items() if key[0] == "raydpzv_uploads"}
    assert len(uploads) == MOST_CLIENTS + 1
    assert (uploads["3"], uploads["63"], uploads[OTHERS]) == (2, 1, 36)
    assert exported["raydpzv_late_epochs", OTHERS] == 30
    assert ("raydpzv_late_epochs", "3") not in exported
    assert exported["raydpzv_round_trips", "3"] == 1
    assert exported["raydpzv_round_trip_seconds", OTHERS] == 36 * 0.75
    assert exported["raydpzv_updates",] == 101


def test_parts_of_the_rows_add_up_to_the_same(exported, small):
    tables = raydpzv.run(small()).tables
    watch = begun()
    watch.rows(tables)
    watch.end(None)
    whole = dict(exported)
    exported.clear()
    watch = begun()
    for part in range(3):
        watch.rows(
            {name: t.slice(part * 50, 50 if part < 2 else None) for name, t in tables.items()}
        )
        if part == 1:
            watch.status(Status())
    watch.end(None)
    assert {name for name, *_ in whole} >= {"raydpzv_reads", "raydpzv_staleness", "raydpzv_bytes"}
    assert exported.keys() == whole.keys()
    assert all(exported[key] == pytest.approx(whole[key]) for key in whole)


def test_ray_gets_one_value_of_each_metric_at_a_time_however_often_rows_come(
    exported, monkeypatch, small
):
    """Ray keeps each value until it exports, and the export's memory is not given back: the driver
    grew by 5 %.
    """
    given, take = [], ray.util.metrics.Counter.inc
    monkeypatch.setattr(
        ray.util.metrics.Counter,
        "inc",
        lambda self, value, tags: (given.append(self.place(tags)), take(self, value, tags)),
    )
    tables, watch = raydpzv.run(small()).tables, begun()
    for turn in range(2):
        for row in range(100):
            watch.rows({name: table.slice(100 * turn + row, 1) for name, table in tables.items()})
        assert given == []
        watch.status(Status())
        assert len(given) == len(set(given)) > 0
        given.clear()
    assert RayMetrics.interval >= 10


def test_a_private_run_exports_no_scores_sizes_or_times(exported, small):
    tables = raydpzv.run(small()).tables
    for private in (False, True):
        exported.clear()
        watch = begun(private=private)
        watch.rows(tables)
        watch.evaluation(Evaluation(3, 1.0, "test", {"accuracy": 0.5, "loss": 0.5}))
        watch.end({"ledger": {"updates": 7}})
        leave = {"raydpzv_updates", "raydpzv_uploads", "raydpzv_ledger_updates"}
        assert ({name for name, *_ in exported} - {"raydpzv_epsilon"} == leave) == private


@pytest.mark.parametrize("scenario", ["digits_private", "digits_dpzv"])
def test_a_run_on_ray_is_told_whether_it_is_private(scenario, monkeypatch):
    found = []
    monkeypatch.setitem(
        runner._BY_KIND,
        "vertical",
        lambda prepared, options, place: found.extend(options.callbacks),
    )
    run_on_ray(prepare(raydpzv.load(scenario)))
    (metrics,) = found
    assert ("raydpzv_accuracy" in metrics._exported) == (scenario == "digits_dpzv")


def test_faults_of_actors_are_restarts_and_undefined_scores_are_left_out(exported):
    watch = begun()
    for party in ("host 0", "client actor 1", "run"):
        watch.fault(Fault(0.0, party, "lost", ""))
    watch.evaluation(Evaluation(3, 1.0, "validation", {"accuracy": np.nan, "loss": 0.5}))
    watch.end({"ledger": {"updates": 7}})
    assert exported == {
        ("raydpzv_restarts",): 2,
        ("raydpzv_loss", "validation"): 0.5,
        ("raydpzv_ledger_updates",): 7,
    }
    assert all(
        name.startswith("raydpzv_") and metric.description for name, metric in METRICS.items()
    )


def test_seconds_of_checkpoints_add_up_across_a_loss(exported):
    """A restarted server counts from 0."""
    watch = begun()
    for seconds in (0.0, 2.0, 3.5, 0.5, 1.0):
        watch.status(Status(checkpoints=1, checkpoint_seconds=seconds))
    watch.status(Status(stage="3 actors to come up", checkpoint_seconds=9.0))
    assert exported == {("raydpzv_checkpoint_seconds",): 4.0}
    exported.clear()
    begun(private=True).status(Status(checkpoint_seconds=2.0))
    assert exported == {}


def test_the_dashboard_asks_for_what_is_exported_and_for_tags_that_it_has():
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    exported = {metric.exported(name): metric for name, metric in METRICS.items()}
    asked = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"\b(ray_\w+)\{", target["expr"])
            tags = re.findall(r"(\w+)=~", target["expr"]) + re.findall(
                r"\{\{(\w+)\}\}", target["legendFormat"]
            )
            for by in re.findall(r"by \(([^)]*)\)", target["expr"]):
                tags += by.split(", ")
            assert names, target
            assert set(tags) <= set.intersection(*(set(exported[name].tags) for name in names)), (
                target
            )
            asked |= set(names)
    assert asked == exported.keys()
    for variable in dashboard["templating"]["list"][1:]:
        (name, tag) = re.search(r"label_values\((\w+)[^,]*, (\w+)\)", variable["query"]).groups()
        assert tag in exported[name].tags
    places = [tuple(panel["gridPos"][key] for key in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)


def test_the_page_lists_what_is_exported():
    lines = re.findall(
        r"^\| `(ray_\w+)` \| ([^|]*) \|", (DOCS / "watching.md").read_text(), re.MULTILINE
    )
    assert dict(lines) == {
        metric.exported(name): ", ".join(metric.tags[2:]) for name, metric in METRICS.items()
    }
