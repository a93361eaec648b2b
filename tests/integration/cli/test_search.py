import json
import re
import shutil
import signal
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from raydpzv.search.search_plan import read_search
from scenarios.search_progress import SearchProgress
from tests.helpers.commands import call as raydpzv
from tests.helpers.commands import changed
from tests.helpers.searches import killed_at

SPACE = (
    'method.lr.loguniform = [1e-3, 1e-1]\nmethod.server.choice = ["sgd", "zo"]\nseed.grid = [0,'
    " 1]\n"
)
SHORT = ("budget.updates=12", "evaluate.every=6", "data.train_rows=200", "privacy.noise=seeded")
LOCAL = ("--runner", "local")
SEARCH = ["search", "digits_dpzv", "--samples", "3", *changed(*SHORT)]


def rows(folder):
    table = pq.read_table(folder / "trials.parquet")
    return [str(row) for row in table.drop_columns(["seconds"]).to_pylist()]  # NaN is like NaN


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    (folder / "space.toml").write_text(SPACE)
    return folder


@pytest.fixture(scope="module")
def searched(place):
    words = [*SEARCH, "--space", place / "space.toml", *LOCAL, "--out", place / "out"]
    done = raydpzv(*words, "--quiet", "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), place / "out"


def test_the_folder_holds_tables_a_picture_and_the_best_scenario(searched):
    said, folder = searched
    assert [row["status"] for row in said["trials"]] == ["done"] * 6
    assert said["seeds"] == 2
    alike = [
        row
        for row in said["trials"]
        if row["method.lr"] == said["trials"][said["best"]]["method.lr"]
    ]
    assert said["median"] == sum(row["accuracy"] for row in alike) / 2
    assert (folder / "trials.png").read_bytes().startswith(b"\x89PNG")
    assert read_search(folder / "search.toml").log_scaled == ("method.lr",)
    assert len((folder / "trials.csv").read_text().splitlines()) == 7
    assert pq.read_table(folder / "trials.parquet")["trial"].to_pylist() == list(range(6))


def test_a_trial_is_the_run_with_its_settings_and_the_best_file_is_the_best_trial(searched, place):
    said, folder = searched
    row = said["trials"][said["best"]]
    words = changed(
        *SHORT, *(f"{name}={row[name]}" for name in ("method.lr", "method.server", "seed"))
    )
    for scenario, more in (("digits_dpzv", words), (folder / "best.toml", ())):
        out = place / f"alone-{len(str(scenario))}"
        alone = raydpzv("run", scenario, *more, "--out", out, "--quiet", "--json")
        assert json.loads(alone.stdout)["digest"] == row["digest"], scenario


def test_a_search_killed_at_any_moment_continues_with_the_same_table(searched, place):
    """In a process of its own, killed with kill -9 once its second trial has begun to write."""
    _, whole = searched
    folder = place / "killed"
    command = [
        *SEARCH,
        "--space",
        place / "space.toml",
        "--runner",
        "local",
        "--quiet",
        "--out",
        folder,
    ]
    killed_at(command, folder, "runs/0001/scenario.toml")
    first = folder / "runs" / "0000" / "summary.json"
    before = first.stat().st_mtime_ns
    on = raydpzv("resume", folder, "--runner", "local", "--quiet")
    assert on.exit_code == 0, on.output
    assert first.stat().st_mtime_ns == before
    assert rows(folder) == rows(whole)


def test_continuing_with_a_whole_search_runs_nothing(searched):
    _, folder = searched
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert raydpzv("resume", folder, "--quiet").exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == before


def test_the_screen_says_which_trial_stands_for_the_best_settings_and_why(searched):
    said, folder = searched
    done = raydpzv("resume", folder)
    assert done.exit_code == 0, done.output
    text, best = " ".join(done.stdout.split()), said["best"]
    assert f"best: trial {best}, run it again with: raydpzv run" in text
    assert (
        f"the best median accuracy, {said['median']:.6g}, of those with the most finished seeds"
        in text
    )
    assert f"trial {best} represents them by the lowest seed, 0" in text
    assert (
        f"trial {best} represents them by the lowest seed, 0" in (folder / "best.toml").read_text()
    )


PRIVATE = ("budget.updates=4", "evaluate.every=2", "data.train_rows=100", "data.test_rows=40")


def test_a_search_without_a_winner_says_what_it_spent(place):
    (place / "large.toml").write_text("method.lr.grid = [1e11, 1e12]\n")
    words = [
        "search",
        "digits_dpzv",
        "--space",
        place / "large.toml",
        *LOCAL,
        "--out",
        place / "large",
    ]
    ended = raydpzv(*words, *changed(*SHORT[:3]))
    assert ended.exit_code == 1
    assert "no point of the space came to its end" in ended.stderr
    assert "1/2 trial 0 (method.lr=100000000000.0): 12 updates, diverged: " in ended.stderr
    text = " ".join(ended.stdout.split())
    again = raydpzv("resume", place / "large", "--quiet", "--json")
    spent = json.loads(again.stdout)["spent"]
    assert "client" in {one["adversary"] for one in spent}
    for one in spent:
        assert (one["winner"], one["runs"], one["cut"]) == (None, 2, False)
        assert (
            f"the whole search of 2 runs spent ε={one['spent']:.4g} of all releases made "
            f"({one['relation']}" in text
        )
    assert (
        "No winner was chosen, but what was released stays released, and that is the number to "
        "claim" in text
    )
    assert not (place / "large" / "best.toml").exists()


def test_a_search_that_the_user_stopped_says_what_it_has_spent(place, monkeypatch):
    (place / "two.toml").write_text("method.lr.grid = [0.1, 0.2]\n")
    words = ["search", "digits_private", "--space", place / "two.toml", *LOCAL, *changed(*PRIVATE)]
    ended = SearchProgress.ended

    def stop(watch, trial, reason):
        ended(watch, trial, reason)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(SearchProgress, "ended", stop)
        done = raydpzv(*words, "--out", place / "two")
    assert done.exit_code == 130, done.output
    text = " ".join(done.stdout.split())
    assert re.search(
        r"the whole search of 1 runs spent ε=\S+ of all releases made; ε=\S+ of all that were"
        r" planned",
        text,
    )
    assert "the plan's is the number to claim of all trials together" in text
    assert "best so far: trial 0; best.toml is written when the search is over" in text
    assert "run it again" not in text
    assert not (place / "two" / "best.toml").exists()
    on = raydpzv("resume", place / "two", "--runner", "local")
    assert (on.exit_code, "the winner alone spent ε=" in " ".join(on.stdout.split())) == (
        0,
        True,
    ), on.output
    assert "1 of 2 trials are there already" in on.stderr


def test_trials_that_fail_are_rows_and_the_exit_status(place):
    (place / "bad.toml").write_text("method.batch.grid = [64, 150]\n")
    words = ["search", "digits_dpzv", "--space", place / "bad.toml", *LOCAL, "--out", place / "bad"]
    ended = raydpzv(*words, *changed(*PRIVATE, "privacy.mode=none"), "--quiet")
    assert ended.exit_code == 1
    assert "1 of 2 trials failed" in ended.stderr
    assert "method.batch: wanted at most 100" in ended.stderr
    assert pq.read_table(place / "bad" / "trials.parquet")["status"].to_pylist() == [
        "done",
        "failed",
    ]


def test_a_trial_that_misses_the_pace_of_the_wall_clock_is_warned_of(place):
    (place / "one.toml").write_text("seed.grid = [0]\n")
    words = [
        "search",
        "digits_dpzv",
        "--space",
        place / "one.toml",
        *LOCAL,
        "--out",
        place / "wall",
    ]
    wall = changed(*SHORT, "clock.kind=wall", "arrivals.rate=1e5", "budget.updates=60")
    ended = raydpzv(*words, *wall, "--quiet")
    assert ended.exit_code == 0, ended.output
    assert "WARNING: trial 0 missed its pace" in " ".join(ended.stdout.split())
    (row,) = pq.read_table(place / "wall" / "trials.parquet").to_pylist()
    assert row["rate_asked"] == 4 * 1e5
    assert 0 < row["throughput"] < row["rate_asked"]
    assert 0.1 < row["late"] <= 1
    assert "uploads a second came" in row["pace"]


def test_a_search_that_learns_continues_where_it_was_killed(place, monkeypatch):
    """Whatever chooses its trials: what stands here in Optuna's place goes by the outcomes
    alone.
    """
    (place / "learns.toml").write_text("method.lr.loguniform = [1e-3, 1e-1]\n")

    def suggested(space, outcomes, count, seed, *, higher, accepts):
        assert all(value is not None for _, value in outcomes)
        best = max(outcomes, key=lambda found: found[1])[0]["method.lr"] if outcomes else 0.01
        points = [(f"method.lr={best * 1.5 ** (len(outcomes) + k):.6g}",) for k in range(count)]
        return [point for point in points if accepts(point)]

    for module in ("raydpzv.search.search_plan", "raydpzv.search.run_search"):
        monkeypatch.setattr(f"{module}.suggested", suggested)
    monkeypatch.setattr("raydpzv.search.run_search.require_optuna", lambda: None)
    monkeypatch.setattr("raydpzv.search.run_search.RANDOM_FIRST", 2)
    words = [
        "search",
        "digits_dpzv",
        "--space",
        place / "learns.toml",
        "--search",
        "optuna",
        "--samples",
        "5",
    ]
    words += [*changed(*SHORT), *LOCAL, "--jobs", "2", "--out", place / "learned", "--quiet"]
    assert raydpzv(*words).exit_code == 0
    whole, plan = rows(place / "learned"), read_search(place / "learned" / "search.toml")
    assert [trial.number for trial in plan.trials] == [0, 1, 2, 3, 4]
    # as it was killed in its second batch: the third is not chosen yet, a trial has written nothing
    (place / "learned" / "search.toml").write_text(replace(plan, trials=plan.trials[:4]).as_toml())
    for number in (3, 4):
        shutil.rmtree(place / "learned" / "runs" / f"{number:04d}")
    first = (place / "learned" / "runs" / "0002" / "summary.json").stat().st_mtime_ns
    again = raydpzv("resume", place / "learned", "--runner", "local", "--quiet")
    assert again.exit_code == 0, again.output
    assert rows(place / "learned") == whole
    assert (place / "learned" / "runs" / "0002" / "summary.json").stat().st_mtime_ns == first
    assert raydpzv(*words).exit_code == 0  # the same search again: nothing is left
    assert rows(place / "learned") == whole


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("digits_dpzv", "--space", "space.toml", "--set", "method.lr=0.1"),
            "method.lr: is fixed by --set",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--metric", "acuracy"),
            'Did you mean "accuracy"',
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--metric", "roc_auc"),
            "wanted data of two classes",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--epsilon", "1e-9"),
            "--epsilon 1e-09: the least of 20 trials",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--scheduler", "pb"),
            '--scheduler: wanted none, asha or pbt, got "pb". Did you mean "pbt"?',
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--scheduler", "pbt"),
            "method.server: --scheduler pbt varies",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--interval", "10"),
            "--interval: goes with --scheduler",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--quantile", "0.5"),
            "--quantile: goes with --scheduler",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--grace", "10"),
            "--grace: goes with --scheduler asha",
        ),
        (
            (
                "digits_dpzv",
                "--space",
                "space.toml",
                "--scheduler",
                "asha",
                "--runner",
                "local",
                "--set",
                "clock.kind=wall",
            ),
            "--runner local: has no Ray; asha stops trials by Ray Tune's rule: trial 0",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--actors", "--runner", "local"),
            "--runner local: runs one trial after the other, without --actors and --address",
        ),
        (("digits_dpzv",), "Missing option '--space'"),
        (("digits_dpzv", "--space", "nowhere.toml"), "cannot read the space file"),
        (("digits_dpz", "--space", "space.toml"), 'Did you mean "digits_dpzv"'),
        (("digits_dpzv", "--space", "space.toml", "--search", "optun"), 'Did you mean "optuna"'),
        (
            ("digits_dpzv", "--space", "space.toml", "--search", "optuna"),
            "seed: wanted a setting that is drawn",
        ),
        (
            ("digits_dpzv", "--space", "space.toml", "--search", "optuna", "--scheduler", "asha"),
            "--search optuna: goes by whole trials",
        ),
    ],
)
def test_wrong_input_ends_with_2_before_anything_is_written(place, monkeypatch, words, said):
    monkeypatch.chdir(place)
    ended = raydpzv("search", *words, "--out", "never")
    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.output
    assert not (place / "never").exists()


def test_without_ray_tune_or_optuna_one_line_says_how_to_install_it(place, monkeypatch):
    (place / "drawn.toml").write_text("method.lr.loguniform = [1e-3, 1e-1]\n")
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ["search", "digits_dpzv", "--space", place / "drawn.toml", "--search", "optuna"]
    ended = raydpzv(*words, "--out", place / "never", "--quiet")
    assert (ended.exit_code, ended.stderr) == (
        2,
        (
            "raydpzv: Optuna is not installed: pip install 'raydpzv[optuna]', or draw at random: "
            "leave out --search\n"
        ),
    )
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    ended = raydpzv(
        "search",
        "digits_dpzv",
        "--space",
        place / "space.toml",
        "--out",
        place / "never",
        "--quiet",
    )
    assert (ended.exit_code, ended.stderr) == (
        2,
        (
            "raydpzv: Ray Tune is not installed: pip install 'raydpzv[tune]', or search without it:"
            " --runner local\n"
        ),
    )


def test_less_than_one_trial_asks_for_ends_with_the_arithmetic_before_anything_is_written(
    place, tmp_path, monkeypatch
):
    """On a cluster that is played here: the real one has its tests in tests/integration/ray."""
    disconnected = []

    @contextmanager
    def connected(address, *, verbose):
        with ExitStack() as at_end:
            at_end.callback(disconnected.append, address)
            yield

    monkeypatch.setattr("actors.tune_search.connected", connected)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "Resources": {"CPU": 2.0}}])
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    words = [*SEARCH, "--space", place / "space.toml", "--out", tmp_path / "out", "--actors"]
    ended = raydpzv(*words, *changed("resources.client_cpus=1", "resources.client_actors=4"))
    assert (ended.exit_code, ended.stdout, disconnected) == (2, "", [None]), ended.output
    asked = (
        "5 actors ask 4.3999 CPU in all (server 0.3999, clients 4), the cluster has 1.9999; lower"
    )
    assert asked in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("space", "samples", "said"), [("[1, 2]", 3, True), ("[1, 2, 3, 4, 5, 6, 7, 8]", 1, False)]
)
def test_draws_that_repeat_one_another_are_said(tmp_path, space, samples, said):
    (tmp_path / "space.toml").write_text(f"seed.choice = {space}\n")
    words = ["search", "digits_dpzv", *changed(*SHORT), "--samples", samples, *LOCAL]
    done = raydpzv(*words, "--space", tmp_path / "space.toml", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    found = [
        tuple(trial.settings) for trial in read_search(tmp_path / "out" / "search.toml").trials
    ]
    text = (
        f"{len(found)} trials, not {samples}: {samples - len(found)} of the draws came to the "
        "settings of another"
    )
    assert (text in done.stderr) == said
    assert (len(found) < samples) == said
