import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import scenarios
from raydpzv.errors import NotRecomputable
from raydpzv.experiment.rebuild import rebuild, replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy import integer_release
from raydpzv.privacy.gdp import epsilon_of
from raydpzv.records.run_folder import RunFolder
from tests.helpers.keyed_noise import keyed_noise
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after
from tests.helpers.sound_runs import sound, table

GATHERED = ("method.gather=2", "method.batch=5", "budget.updates=101")
UNEVEN = ("arrivals.rate=[4.0, 1.0, 0.5]",)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return table(tmp_path_factory.mktemp("table") / "rows.csv")


def recounted(experiment, services, gather: int) -> int:
    """The most releases of one record, from the batches that clients draw: P directions are one
    release.
    """
    uploads = Counter(services.column("client").to_pylist())
    counts = np.zeros(len(experiment.server.y_train), np.int64)
    for m, made in uploads.items():
        batches = experiment.clients[m].make()._batches
        for number in range(made // gather):
            drawn = np.concatenate([batches.draw(number * gather + q) for q in range(gather)])
            assert len(set(drawn.tolist())) == len(drawn), "a record is once in a release"
            counts[drawn] += 1
    return int(counts.max())


def stated(summary) -> float:
    """ε against all clients, as the summary prints it."""
    (row,) = (c for c in summary["epsilon"] if c["adversary"] == "all_clients")
    assert row["holds"]
    assert row["relation"] == "replace"
    return float(row["epsilon"])


def expected(experiment, most: int) -> float:
    z, delta = experiment.setting.noise_multiplier, experiment.setting.delta
    return epsilon_of(2 * math.sqrt(most) / z, delta)


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="passes and a rest that is dropped"),  # 64 rows: 8 batches of 8
        pytest.param(("method.batch=7",), id="rest"),
        pytest.param(UNEVEN, id="uneven"),
        pytest.param((*GATHERED, *UNEVEN), id="gathered"),
        pytest.param(("method.batches=uniform", "method.perturbations=1"), id="uniform"),
        pytest.param(("method.batches=poisson", "method.coins=system"), id="poisson"),
        pytest.param(("method.batch=all", "budget.updates=9"), id="all"),
    ],
)
def test_epsilon_is_that_of_the_recounted_participations(rows, tmp_path, overrides):
    experiment = prepare_vertical(sound(rows, *overrides))
    run = run_prepared(experiment, tmp_path / "run")
    gather = experiment.spec.method.gather
    most = recounted(experiment, run.rows("service"), gather)
    assert stated(run.summary) == pytest.approx(expected(experiment, most), rel=1e-9)
    assert stated(run.summary) <= 3.0 * (1 + 1e-9), "never above what was asked for"
    assert run.summary["private"]
    released = run.rows("release")
    assert released.num_rows == sum(
        experiment.spec.method.perturbations * (made // gather)
        for made in Counter(run.rows("service").column("client").to_pylist()).values()
    )
    assert np.isnan(run.rows("service").column("loss").to_numpy()).all(), "no training loss"
    values = released.column("value").to_numpy()
    assert np.array_equal(values, np.rint(values))
    assert replay(tmp_path / "run").verified


def test_a_run_that_is_stopped_says_what_it_spent_and_continues_to_the_sum(rows, tmp_path):
    experiment = prepare_vertical(sound(rows, *GATHERED, *UNEVEN))
    first = run_prepared(experiment, tmp_path / "run", **stop_after(37))
    assert (first.summary["status"], first.summary["updates"]) == ("stopped", 37)
    most = recounted(experiment, first.rows("service"), 2)
    assert stated(first.summary) == pytest.approx(expected(experiment, most), rel=1e-9)
    before = first.rows("release").to_pylist()
    resumed, folder, _ = resuming(tmp_path / "run")
    last = run_prepared(resumed, folder)
    assert last.summary["status"] == "done"
    after = last.rows("release").to_pylist()
    known = {(r["client"], r["step"], r["perturbation"]): r["value"] for r in after}
    assert all(known[r["client"], r["step"], r["perturbation"]] == r["value"] for r in before)
    assert len(after) > len(before)
    most = recounted(experiment, last.rows("service"), 2)
    assert stated(last.summary) == pytest.approx(expected(experiment, most), rel=1e-9)
    replayed = replay(tmp_path / "run")
    assert replayed.verified
    for m in range(3):
        found = rebuild(tmp_path / "run", client=m)
        assert found.verified
        assert np.array_equal(found.models[f"client {m}"], last.models[f"client {m}"])


def test_a_run_that_breaks_off_states_what_was_released(rows, tmp_path, monkeypatch):
    """The release whose service fails is in the ledger: the stated ε must count it."""
    from raydpzv.sim.server_loop import ServerLoop

    experiment = prepare_vertical(sound(rows, "method.batch=all", "budget.updates=20"))
    record = ServerLoop._record_service

    def failing(self, upload, how, served, orders, round):
        if round == 11:
            raise OSError("the disk is full")
        record(self, upload, how, served, orders, round)

    monkeypatch.setattr(ServerLoop, "_record_service", failing)
    with pytest.raises(OSError, match="the disk is full"):
        run_prepared(experiment, tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["ledger"]["updates"] == 11
    assert stated(summary) == pytest.approx(expected(experiment, 11), rel=1e-9)


def test_a_joint_head_is_replayed_and_one_with_noise_of_its_own_is_not(rows, tmp_path):
    heads = ("model.head=linear", "method.server_lr=0.1")
    scenarios.run(sound(rows, *heads, "method.server=joint"), tmp_path / "joint")
    assert replay(tmp_path / "joint").verified
    private = ("method.server=dp_sgd", "privacy.head_clip=0.5")
    frozen = ("method={name='frozen', batch='all', server='dp_sgd'}", "model.head=linear")
    for name, given in ("zeroth order", (*heads, *private)), ("frozen", frozen):
        run = scenarios.run(sound(rows, *given), tmp_path / name)
        assert run.summary["private"]
        (tmp_path / name / "summary.json").unlink()  # as if it had been killed
        for again in (replay, resuming):
            with pytest.raises(
                NotRecomputable, match="noise on the head's gradients came from the operating"
            ):
                again(tmp_path / name)


def test_no_sum_before_its_noise_and_no_draw_is_in_any_byte_of_the_folder(
    rows, tmp_path, monkeypatch, capfd
):
    drawn, sums = [], []

    def watched(release):
        def told(sums_P, how, **of):
            found, receipt = release(sums_P, how, **of)
            sums.append(sums_P)
            drawn.append(found - sums_P)
            return found, receipt

        return told

    experiment = prepare_vertical(
        sound(
            rows,
            "method.batch=all",
            "budget.updates=12",
            "method.perturbations=4",
            # which hold what is not noised yet, and go with the run's end
            "record.checkpoint_updates=2",
        )
    )
    # with noise of the system's one run in a hundred has a hidden number among its counts
    with keyed_noise(), monkeypatch.context() as patch:
        patch.setattr(
            integer_release, "release_integers", watched(integer_release.release_integers)
        )
        run = run_prepared(experiment, tmp_path / "run")
    assert len(sums) == 12
    assert run.summary["checkpoints"]["count"] > 3
    folder, unit = RunFolder.open(tmp_path / "run"), experiment.privacy.noise().unit
    kept = numbers_in(tmp_path / "run", folder)
    releases = {float(v) for v in run.rows("release").column("value").to_pylist()}
    assert releases <= kept, "control: it finds releases"
    # small numbers are everywhere, and one release in some thousand pairs is the sum or the draw of
    # another
    hidden = {float(v) for values in (*sums, *drawn) for v in values if abs(v) > 10_000} - releases
    assert len(hidden) > 30
    assert not hidden & kept
    assert not {float(np.float32(v * unit)) for v in hidden} & kept
    said = capfd.readouterr()
    text = said.out + said.err + "".join(p.read_text() for p in (tmp_path / "run").glob("*.json"))
    raw = [p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()]
    said_numbers = {float(number) for number in re.findall(r"(?<![\w.])-?\d+(?![\w.])", text)}
    assert run.summary["updates"] in said_numbers, "control: it finds numbers in words"
    assert not hidden & said_numbers
    for values in (*sums, *drawn):
        for shape in (np.int64, np.int32, np.float64, np.float32):
            assert not any(values.astype(shape).tobytes() in data for data in raw)


def numbers_in(path: Path, folder: RunFolder) -> set[float]:
    """Every number of the rows, the ledger and the models, decoded."""
    found: set[float] = set()
    for rows in folder.rows().values():
        for name in rows.column_names:
            values = rows.column(name)
            if str(values.type) in ("int64", "int32", "double"):
                found |= set(values.to_numpy().astype(float).tolist())
    with Ledger.open(path / "ledger") as ledger:
        found |= set(ledger.since(0).scalar.astype(float).tolist())
    with np.load(path / "models.npz") as models:
        for name in models:
            found |= set(models[name].astype(float).ravel().tolist())
    return found
