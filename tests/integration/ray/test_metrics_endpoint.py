import re
import time
import urllib.request
from collections import defaultdict

import pyarrow.compute as pc
import pytest
import ray

import raydpzv
from actors.ray_metrics import METRICS
from raydpzv.ledger.ledger import Ledger
from raydpzv.records import metrics

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_session")]

LINE = re.compile(r"(ray_raydpzv_\w+)\{(.*)\} (\S+)")


def scraped(run):
    """Values of one run by exported name and the tag beside run and scenario ("": there is
    none).
    """
    node = ray.nodes()[0]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    found = {}
    for name, tags, value in LINE.findall(
        urllib.request.urlopen(address, timeout=10).read().decode()
    ):
        given = dict(re.findall(r'(\w+)="([^"]*)"', tags))
        if given.get("run") == run:
            own = [
                given[key] for key in ("client", "direction", "adversary", "part") if given.get(key)
            ]
            found[name, "".join(own)] = float(value)
    return found


def folded(run, folder):
    """The same from the rows."""
    found = defaultdict(float)
    for row in run.rows("service").to_pylist():
        client = str(row["client"])
        found["ray_raydpzv_uploads_total", client] += 1
        found["ray_raydpzv_late_epochs_total", client] += row["late"]
        found["ray_raydpzv_round_trips_total", client] += row["applied"] == row["applied"]
        if row["applied"] == row["applied"]:
            found["ray_raydpzv_round_trip_seconds_total", client] += row["applied"] - row["woke"]
    for row in run.rows("staleness").to_pylist():
        client = str(row["client"])
        found["ray_raydpzv_reads_total", client] += row["rows"] - row["missing"]
        found["ray_raydpzv_staleness_total", client] += row["age_sum"]
    for direction in ("up", "down"):
        of = run.rows("message").filter(pc.field("direction") == direction)
        found["ray_raydpzv_bytes_total", direction] = pc.sum(of.column("bytes")).as_py()
    last = run.rows("release").to_pylist()[-1]
    for adversary in ("paper", "client"):
        if last[f"epsilon_{adversary}"] < float("inf"):
            found["ray_raydpzv_epsilon", adversary] = last[f"epsilon_{adversary}"]
    for row in run.rows("evaluation").to_pylist():
        for name in ("accuracy", "loss"):
            found[f"ray_raydpzv_{name}", row["part"]] = row[name]
    found["ray_raydpzv_updates_total", ""] = metrics.updates(run.rows("service"))
    with Ledger.open(folder / "ledger") as ledger:
        found["ray_raydpzv_ledger_updates", ""] = ledger.version
    return {key: value for key, value in found.items() if value}


def test_the_endpoint_shows_what_the_rows_say(small, tmp_path):
    class Heard(raydpzv.Callback):
        ends, evaluations = 0, 0

        def evaluation(self, evaluation):
            self.evaluations += 1

        def end(self, summary):
            self.ends += 1

    folder, heard = tmp_path / f"gesehen-ε-{time.monotonic_ns()}", Heard()
    spec = small("resources.client_actors=2", "data.validation_fraction=0.2", "record.flush=0.05")
    run = raydpzv.run(spec, folder, runner="ray", callbacks=[heard])
    wanted, name = folded(run, folder), folder.name.replace("ε", r"\\u03b5")
    end = time.monotonic() + 60
    # they are exported every ten seconds; some versions of Ray show a gauge to the first who asks
    while (found := scraped(name)) != pytest.approx(wanted) and time.monotonic() < end:
        time.sleep(0.2)
    assert found == pytest.approx(wanted)
    assert {name for name, _ in wanted} <= {
        metric.exported(name) for name, metric in METRICS.items()
    }
    assert (heard.ends, heard.evaluations) == (1, run.rows("evaluation").num_rows)
