"""The data's digest: no oracle for a label without the operator's key, and still what tells a run's
data.
"""

import dataclasses
import json
import shutil
import stat
import threading

import pytest

import scenarios
from raydpzv.compare.results import collect
from raydpzv.compare.run_comparison import RUNS_FOLDER, one_by_one, opened
from raydpzv.errors import DataError, InputError
from raydpzv.experiment.rebuild import replay
from raydpzv.experiment.resuming import resuming
from raydpzv.experiment.vertical import prepare_vertical
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.secrets_file import OPERATOR, OperatorSecrets, read_coins, read_key
from tests.helpers.plain_digest import plain_digest
from tests.helpers.small_comparisons import small_comparison
from tests.helpers.small_horizontal import stop_after

SHORT = ("budget.updates=12", "evaluate.every=12", "data.train_rows=100", "data.test_rows=30")
VICTIM = 7


@pytest.fixture(scope="module")
def made(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("digest") / "run"
    scenarios.run(small(*SHORT), folder)
    return folder


@pytest.fixture
def run(made, tmp_path):
    return shutil.copytree(made, tmp_path / "run")


def changed(folder, **facts):
    path = folder / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def guesses(experiment):
    """Yield the table with each label that one record may have, all else as the attacker knows
    it.
    """
    for label in range(10):
        y = experiment.server.y_train.copy()
        y[VICTIM] = label
        yield dataclasses.replace(
            experiment, server=dataclasses.replace(experiment.server, y_train=y)
        )


def fitting(folder, experiment, key):
    """Return the labels whose digest, made with this key, stands anywhere in the folder but in the
    operator's file.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != OPERATOR]
    content = b"".join(path.read_bytes() for path in files)
    digests = [
        plain_digest(guess) if key is None else guess.fingerprint(key)["data_hmac_sha256"]
        for guess in guesses(experiment)
    ]
    return [
        i for i, d in enumerate(digests) if d.encode() in content or bytes.fromhex(d) in content
    ]


def test_the_label_of_a_record_is_found_by_a_plain_digest_and_not_by_a_keyed_one(run, small):
    experiment = prepare_vertical(small(*SHORT))
    label = int(experiment.server.y_train[VICTIM])
    for key in (None, b"", b"raydpzv", bytes(32)):
        assert fitting(run, experiment, key) == []
    assert fitting(run, experiment, read_key(run)) == [label], "control: who has the key finds it"
    changed(run, data_sha256=plain_digest(experiment))
    assert fitting(run, experiment, None) == [label], "control: 1 of 10 fits a plain digest"


def test_each_run_has_a_key_of_its_own_for_its_owner_alone(made, small, tmp_path):
    scenarios.run(small(*SHORT), tmp_path / "other")
    assert read_key(made) != read_key(tmp_path / "other")
    assert stat.S_IMODE((made / OPERATOR).stat().st_mode) == 0o600
    key, others = read_key(made), [p for p in made.rglob("*") if p.is_file() and p.name != OPERATOR]
    assert len(others) > 5
    assert not any(shape in p.read_bytes() for p in others for shape in (key, key.hex().encode()))
    assert key.hex() not in (shown := repr(OperatorSecrets(key, 12345)))
    assert "12345" not in shown


def test_a_folder_without_the_operators_file_is_replayed_and_says_what_is_not_checked(run):
    assert replay(run).unchecked == ""
    (run / OPERATOR).unlink()
    found = replay(run)
    assert found.verified
    assert "whether these are the run's data" in found.unchecked
    assert OPERATOR in found.unchecked
    changed(run, scenario_sha256="0")
    with pytest.raises(InputError, match=r"scenario\.toml changed"):
        replay(run)


def test_a_stopped_run_continues_with_its_key_and_not_without_it(small, tmp_path):
    scenarios.run(small(*SHORT), tmp_path / "run", **stop_after(5))
    kept = (tmp_path / "run" / OPERATOR).rename(tmp_path / "kept")
    with pytest.raises(
        DataError, match=r"has no operator\.json: it holds the key .* put the operator's file back"
    ):
        resuming(tmp_path / "run")
    shutil.copy(kept, tmp_path / "run" / OPERATOR)
    _, folder, _ = resuming(tmp_path / "run")
    folder.__exit__()
    OperatorSecrets(bytes(32)).write(tmp_path / "run")
    with pytest.raises(InputError, match="the data changed since the run began"):
        resuming(tmp_path / "run")


@pytest.mark.parametrize(
    "content", ["{", "[1]", "{}", '{"key": 5}', '{"key": "SECRETx", "coins": "SECRETx"}']
)
def test_what_is_wrong_with_the_operators_file_is_said_without_its_content(tmp_path, content):
    (tmp_path / OPERATOR).write_text(content)
    for read, name in ((read_key, "key"), (read_coins, "coins")):
        with pytest.raises(DataError, match=f'wanted a hexadecimal number "{name}"') as caught:
            read(tmp_path)
        assert "SECRET" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_the_runs_of_a_comparison_share_a_key_that_comes_back_from_any_of_them(tmp_path):
    plan = small_comparison("budget.updates=12", "evaluate.every=12", seeds=(0,))
    planned = list(plan.runs())

    def make(todo):
        with opened(tmp_path, plan):
            one_by_one(
                todo,
                tmp_path,
                progress=lambda _: None,
                ended=lambda run, why: None,
                stop=threading.Event(),
            )

    def outcomes():
        return [row["reason"] for row in collect(plan, tmp_path).runs.to_pylist()][:2]

    folders = [tmp_path / RUNS_FOLDER / run.folder for run in planned]
    make(planned[:1])
    (tmp_path / OPERATOR).unlink()
    make(planned[1:2])
    assert read_key(tmp_path) == read_key(folders[0]) == read_key(folders[1])
    assert not any("not those of the first" in why for why in outcomes())
    environment = RunFolder.open(folders[1]).environment()
    changed(folders[1], data_hmac_sha256=environment["data_hmac_sha256"][::-1])
    assert "not those of the first run" in outcomes()[1], "control"
    for folder in (tmp_path, folders[0]):
        (folder / OPERATOR).unlink()
    with pytest.raises(DataError, match=r"has no operator\.json"):
        make([])
