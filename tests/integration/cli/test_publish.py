"""What leaves of a private run: no byte of what its rows hold, a ledger that gives the models, and
a page of that.
"""

import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.config.toml import as_toml
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.files import sha256
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.publish import STAYS
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.schema import SCHEMAS
from raydpzv.records.secrets_file import OPERATOR, read_coins, read_key
from tests.helpers.commands import call, complaint, stdout_of
from tests.helpers.plain_digest import plain_digest
from tests.helpers.public_data import PUBLIC
from tests.helpers.small_horizontal import stop_after

FROZEN = (
    "method.server=frozen",
    *PUBLIC,
    "privacy.noise=system",
    "budget.updates=40",
    "evaluate.every=20",
)
SECRET = ("method.batches=poisson", "method.coins=system")
PARTS = {
    "scenario.toml",
    "environment.json",
    "published.json",
    "models.npz",
    "rows/model/part-00000.parquet",
    "ledger/header.json",
    "ledger/segment-00000.arrow",
    "ledger/.lock",
}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module", params=[SECRET], ids=["secret batches"])
def made(small, tmp_path_factory, request):
    """A private run and what was published of it."""
    folder = tmp_path_factory.mktemp("private")
    spec = small(*FROZEN, *request.param)
    scenarios.run(spec, folder / "run")
    stdout = stdout_of(call("publish", folder / "run", "--out", folder / "public", "--quiet"))
    verdict = stdout.partition("published: ")[0]
    assert len(verdict) > 100 >= max(map(len, verdict.splitlines())), "wrapped"
    return spec, folder / "run", folder / "public"


BOTH = pytest.mark.parametrize(
    "made", [(), SECRET], ids=["batches of the seed", "secret batches"], indirect=True
)


@pytest.fixture
def copied(made, tmp_path):
    return (
        made[0],
        shutil.copytree(made[1], tmp_path / "run"),
        shutil.copytree(made[2], tmp_path / "public"),
    )


def content(folder: Path) -> bytes:
    """Return all bytes of a folder, those of tables and archives also without their compression."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        found += [str(path.relative_to(folder)).encode(), path.read_bytes()]
        if path.suffix == ".parquet":
            columns = pq.read_table(path).to_pydict().values()
            found += [
                b"".join(np.asarray(c).tobytes() for c in columns if np.asarray(c).dtype != object)
            ]
        if path.suffix == ".npz":
            with np.load(path) as stored:
                found += [stored[name].tobytes() for name in stored.files]
    return b"\n".join(found)


def shapes_of(spec, run: Path) -> dict[str, list[bytes]]:
    """Return what must not leave, in every form in which it could stand in a file."""
    folder = RunFolder.open(run)
    rows, summary, environment = folder.rows(), folder.summary(), folder.environment()
    coins = read_coins(run) if spec.method.coins == "system" else None
    experiment = prepare_vertical(spec, coins)
    batches = [experiment.clients[m].make()._batches.draw(0) for m in range(2)]
    losses = rows["service"].column("loss").to_numpy()
    scores = rows["evaluation"].column("loss").to_numpy()
    numbers = {"training losses": losses[:5], "test losses": scores}
    sizes = rows["release"].column("batch").to_numpy()
    found = {
        name: [
            shape for x in values for shape in (np.float64(x).tobytes(), repr(float(x)).encode())
        ]
        for name, values in numbers.items()
    }
    found["ids"] = [
        ids[:6].astype(kind).tobytes() for ids in batches for kind in (np.int32, np.int64)
    ]
    found["batch sizes"] = [
        sizes[:4].astype(kind).tobytes() for kind in (np.int32, np.int64, np.float64)
    ]
    found["staleness"] = [rows["staleness"].column("age_sum").to_numpy()[-4:].tobytes()]
    digests = [environment["data_hmac_sha256"], plain_digest(experiment), summary["digest"]]
    found["digests"] = [shape for d in digests for shape in (d.encode(), bytes.fromhex(d))]
    secrets = [read_key(run).hex(), *([] if coins is None else [f"{coins:064x}", str(coins)])]
    found["secrets"] = [s.encode() for s in secrets] + [read_key(run)]
    found["names"] = b'"loss" accuracy" "batch" nonfinite age_sum bytes_up top_share'.split()
    return found


@BOTH
def test_no_byte_of_what_stays_is_in_what_leaves(made):
    spec, run, public = made
    assert files(public) == PARTS
    leaving, operators = content(public), content(run)
    for name, shapes in shapes_of(spec, run).items():
        assert not [shape for shape in shapes if shape in leaving], name
        if name != "ids":  # the run's folder does not hold them either: they follow from the coins
            assert any(shape in operators for shape in shapes), f"control: {name}"


def test_ids_among_what_leaves_would_be_seen(copied):
    spec, run, public = copied
    shapes = shapes_of(spec, run)["ids"]
    assert not any(shape in content(public) for shape in shapes)
    ids = prepare_vertical(spec, read_coins(run)).clients[0].make()._batches.draw(0)
    np.savez_compressed(public / "planted.npz", ids=ids)
    assert any(shape in content(public) for shape in shapes)


@BOTH
def test_who_knows_the_batches_is_spoken_of_only_where_they_may_be_known(made):
    spec, run, public = made
    stated, own = RunFolder.open(public).summary(), RunFolder.open(run).summary()
    counted = [c for c in own["epsilon"] if c["adversary"] == "client"]
    seen = (public / "published.json").read_text()
    if spec.method.coins == "seed":
        assert stated["epsilon"] == own["epsilon"]
        assert stated["privacy_verdict"] == own["privacy_verdict"]
        return
    assert {c["adversary"] for c in stated["epsilon"]} == {"external", "server"}
    assert all(c in own["epsilon"] for c in stated["epsilon"])
    assert not any(repr(c["epsilon"])[:6] in seen for c in counted)
    assert "as counted" not in seen


def test_the_published_ledger_gives_the_released_models_bit_for_bit(made, tmp_path):
    _, run, public = made
    with Ledger.open(run / "ledger") as own, Ledger.open(public / "ledger") as copy:
        assert copy.digest == own.digest == RunFolder.open(public).summary()["ledger"]["digest"]
    stdout = stdout_of(call("replay", public, "--out", tmp_path / "again.npz"))
    assert "the final model has the recorded bits" in stdout
    assert "not rebuilt: the server's head, which is in models.npz" in stdout
    again, released = np.load(tmp_path / "again.npz"), np.load(run / "models.npz")
    assert set(again.files) == set(released.files) - {"server"}
    assert all(again[name].tobytes() == released[name].tobytes() for name in again.files)
    assert (public / "models.npz").read_bytes() == (run / "models.npz").read_bytes()
    assert "client 1: 610 parameters" in stdout_of(
        call("replay", public, "--client", "1", "--at", "20")
    )


def test_models_that_the_ledger_does_not_give_are_not_published(copied):
    _, run, public = copied
    shutil.rmtree(public)
    models = dict(np.load(run / "models.npz"))
    models["client_1"][0] += 1
    np.savez(run / "models.npz", **models)
    assert "models.npz does not hold the models on record" in complaint(
        call("publish", run, "--out", public)
    )
    (part,) = (run / "rows" / "model").iterdir()
    rows = pq.read_table(part).to_pylist()
    changed = [
        r | ({"sha256": sha256(models["client_1"])} if r["party"] == "client 1" else {})
        for r in rows
    ]
    pq.write_table(pa.Table.from_pylist(changed, schema=SCHEMAS["model"]), part)
    result = call("publish", run, "--out", public)
    assert result.exit_code == 1
    assert (
        "client 1 rebuilt from the ledger after update 40 is not the one on record" in result.stderr
    )
    assert [p.name for p in run.parent.iterdir()] == ["run"], "nothing half written stays"


def test_publishing_twice_writes_the_same_again_and_leaves_the_rest_alone(copied):
    _, run, public = copied
    before = content(public)
    (public / "README").write_text("mine")
    (public / "models.npz").unlink()
    assert call("publish", run, "--out", public).exit_code == 0
    assert (public / "README").read_text() == "mine"
    (public / "README").unlink()
    assert content(public) == before


def test_a_folder_of_something_else_is_left_as_it_is(copied, made, small, tmp_path):
    _, run, public = copied
    scenarios.run(small(*FROZEN, "seed=1"), tmp_path / "other")
    for source, out in ((run, run), (run, tmp_path), (tmp_path / "other", public)):
        before = files(out)
        assert "holds something else" in complaint(call("publish", source, "--out", out))
        assert files(out) == before
    (tmp_path / "empty").mkdir()
    assert call("publish", run, "--out", tmp_path / "empty").exit_code == 0
    (tmp_path / "file").write_text("x")
    assert complaint(call("publish", run, "--out", tmp_path / "file"))


def test_what_may_not_leave_is_refused_with_the_reason(made, small, tmp_path):
    *_, public = made
    scenarios.run(small(*FROZEN, "method.server=sgd"), tmp_path / "hidden")
    said = complaint(call("publish", tmp_path / "hidden", "--out", tmp_path / "out"))
    assert (
        "is not private, so nothing of it may leave: the server trains its head on labels" in said
    )
    scenarios.run(small(*FROZEN), tmp_path / "stopped", **stop_after(5))
    assert "has not finished" in complaint(
        call("publish", tmp_path / "stopped", "--out", tmp_path / "out")
    )
    (tmp_path / "stopped" / "summary.json").unlink()
    assert "continue it first" in complaint(
        call("publish", tmp_path / "stopped", "--out", tmp_path / "out")
    )
    assert "published of a run already" in complaint(
        call("publish", public, "--out", tmp_path / "out")
    )
    (tmp_path / "comparison.toml").touch()
    assert "its runs are published one by one" in complaint(
        call("publish", tmp_path, "--out", tmp_path / "out")
    )
    (tmp_path / "comparison.toml").unlink()
    assert "not a run folder" in complaint(call("publish", tmp_path, "--out", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_was_published_is_no_run_to_continue_with_or_to_run_again(made, tmp_path):
    *_, public = made
    bare = shutil.copytree(public, tmp_path / "bare", ignore=shutil.ignore_patterns("ledger"))
    assert "too little to continue from or to run again" in complaint(call("replay", bare))
    assert "too little to continue from" in complaint(call("resume", public))


def test_the_owners_page_is_full_and_that_of_what_was_published_shows_what_may_leave(copied):
    spec, run, public = copied
    pages = {}
    for folder in (run, public):
        assert call("report", folder).exit_code == 0
        pages[folder] = (folder / "report.html").read_text()
    assert "Not covered by ε: keep this page." in pages[run]
    assert "training loss" in pages[run]
    assert (run / "plots" / "loss_over_updates.png").is_file()
    assert not list((public / "plots").iterdir())
    assert "Not covered by ε" not in pages[public]
    assert STAYS in pages[public]
    assert not [
        (k, shape)
        for k, shapes in shapes_of(spec, run).items()
        for shape in shapes
        if shape in pages[public].encode()
    ]
    assert "Training loss" not in pages[public]


def test_the_screen_of_a_private_run_shows_no_training_loss_and_no_digest_of_its_rows(
    made, tmp_path
):
    spec, *_ = made
    (tmp_path / "s.toml").write_text(as_toml(spec))
    result = call("run", tmp_path / "s.toml", "--out", tmp_path / "run", "--explain")
    assert result.exit_code == 0, result.output
    folder = RunFolder.open(tmp_path / "run")
    losses = folder.rows()["service"].column("loss").to_pylist()
    # sizes, times and shares may have the digits of a loss by chance
    numbers = set(
        re.findall(r"(?<![\w.])\d+\.\d+(?![\d%]| ?(?:[kKMG]?i?B|m?s|min|%))", result.output)
    )
    assert not {f"{x:.3g}" for x in losses} & numbers - {f"{folder.summary()['loss']:.3g}"}
    assert folder.summary()["digest"][:16] not in result.output
    assert "digest of model" in result.output
    assert f"raydpzv publish {tmp_path / 'run'} --out FOLDER" in result.output
    assert OPERATOR not in result.output
