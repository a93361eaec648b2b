import json
import shutil

import pytest
from filelock import FileLock

import scenarios
from raydpzv.files import LOCK
from tests.helpers.commands import call, changed, complaint
from tests.helpers.dataset_files import write_mnist
from tests.helpers.small_horizontal import stop_after

CHANGES = ("privacy.noise=seeded", "budget.updates=60", "evaluate.every=20")
SET = changed(*CHANGES)
RUN = ("run", "digits_dpzv", *SET)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert call(*RUN, "--out", folder, "--or-resume", "--quiet").exit_code == 0
    return folder


def test_a_stopped_run_continues_to_the_bits_of_one_that_was_not(whole, tmp_path):
    scenarios.run(scenarios.load("digits_dpzv", CHANGES), tmp_path / "run", **stop_after(25))
    assert summary(tmp_path / "run")["updates"] == 25
    assert call(*RUN, "--out", tmp_path / "run", "--or-resume", "--quiet").exit_code == 0
    assert summary(tmp_path / "run")["digest"] == summary(whole)["digest"]


def test_a_complete_run_is_shown_and_left_as_it_is(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    result = call(*RUN, "--out", whole, "--or-resume", "--json")
    assert json.loads(result.stdout)["digest"] == summary(whole)["digest"]
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


def test_what_a_kill_left_of_a_complete_run_is_deleted_unless_it_is_being_written(whole, tmp_path):
    """The checkpoints go after the summary."""
    folder = shutil.copytree(whole, tmp_path / "run")
    left = [
        folder / name
        for name in ("checkpoint.state", "rows.tail/00000.rows", "rows/.part-00000.parquet")
    ]
    (folder / "rows.tail").mkdir()
    for path in left:
        path.write_bytes(b"left")
    with FileLock(folder / LOCK):
        assert call(*RUN, "--out", folder, "--or-resume", "--quiet").exit_code == 0
    assert all(path.exists() for path in left)
    assert call(*RUN, "--out", folder, "--or-resume", "--quiet").exit_code == 0
    assert not any(path.exists() for path in (*left, folder / "rows.tail"))
    assert summary(folder) == summary(whole)


def test_a_run_with_other_settings_is_left_alone(whole):
    said = complaint(call(*RUN, "--set", "method.lr=0.5", "--out", whole, "--or-resume"))
    assert "method.lr is " in said
    assert "asked for is 0.5" in said
    assert "model.engine is" in complaint(
        call(*RUN, "--set", "model.engine=torch", "--out", whole, "--or-resume")
    )


def test_it_needs_a_folder_and_without_it_a_run_that_is_there_is_refused(whole):
    assert "--out FOLDER" in complaint(call(*RUN, "--or-resume"))
    assert "holds a run already" in complaint(call(*RUN, "--out", whole))


def test_data_may_have_moved_meanwhile(tmp_path):
    (tmp_path / "a").mkdir()
    write_mnist(tmp_path / "a")
    given = (
        "--set",
        "budget.updates=2",
        "--set",
        "method.batch=8",
        "--out",
        tmp_path / "run",
        "--or-resume",
    )

    def run():
        return call(
            "run", "mnist_dpzv", "--set", f"data.folder={tmp_path / 'a'}", *given, "--quiet"
        )

    assert run().exit_code == 0
    (tmp_path / "run" / "summary.json").unlink()
    shutil.move(tmp_path / "a", tmp_path / "b")
    result = call("run", "mnist_dpzv", "--set", f"data.folder={tmp_path / 'b'}", *given, "--quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert summary(tmp_path / "run")["updates"] == 2


@pytest.mark.parametrize("copied", [True, False])
def test_a_folder_that_ray_deletes_with_its_job_is_said_to_be_one(tmp_path, monkeypatch, copied):
    """The working folder of a submitted job is such a copy."""
    folder = tmp_path / ("_ray_pkg_0123456789abcdef" if copied else "mine")
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = call("run", "frozen", "--set", "budget.updates=2", "--quiet")
    assert result.exit_code == 0
    assert ("deletes after it; give --out" in result.stderr) == copied
