import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import scenarios
from raydpzv.compare.plan import Planned, PlannedLine
from raydpzv.compare.run_comparison import STOPPED, run_planned
from raydpzv.config.toml import as_toml, override, scenario_sha256
from raydpzv.errors import ReplayMismatch, RunError
from raydpzv.experiment.finalize import RunOptions
from raydpzv.experiment.rebuild import rebuild, replay
from raydpzv.experiment.runner import run as raydpzv_run
from raydpzv.ledger.ledger import Ledger
from raydpzv.privacy.gdp import epsilon_of, mu_of
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.write_ahead_log import TAIL
from raydpzv.search import population
from raydpzv.search.population import take_turn, to_go, turns
from raydpzv.search.search_plan import read_search
from tests.helpers.commands import changed
from tests.helpers.searches import ALONE, FREE, NOISED, SHORT, UPDATES, killed_at, ran, raydpzv

INTERVAL = 10
POPULATION = (
    "--scheduler",
    "pbt",
    "--interval",
    INTERVAL,
    "--samples",
    4,
    "--quantile",
    0.5,
    "--draw-seed",
    2,
    "--metric",
    "loss",
)


def trained(folder, scenario, space, *changes):
    path = folder.with_suffix(".toml")
    path.write_text(space)
    words = [*POPULATION, *changed(*SHORT, *changes), *ALONE]
    done = raydpzv("search", scenario, "--space", path, *words, "--json", "--out", folder)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


BOTH = "method.lr.loguniform = [1e-3, 1e-1]\nmethod.server_lr.choice = [0.01, 0.03, 0.1]\n"
PRIVATE = "method.lr.loguniform = [0.05, 1.0]\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("population")


@pytest.fixture(scope="module")
def free(place):
    return trained(place / "free", "digits_dpzv", BOTH, *FREE), place / "free"


@pytest.fixture(scope="module")
def noised(place):
    return trained(place / "noised", "digits_private", PRIVATE, *NOISED), place / "noised"


@pytest.fixture(scope="module")
def base(place):
    """A search whose trials have all made their first leg, of whom two are to resume from
    others.
    """
    folder = place / "paused"
    path = folder.with_suffix(".toml")
    path.write_text("method.lr.loguniform = [1e-3, 1e-1]\n")
    words = [*POPULATION, *changed(*SHORT, *FREE), *ALONE]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            population, "_decided", lambda *of: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        raydpzv("search", "digits_dpzv", "--space", path, *words, "--out", folder)
    assert turns(folder) == []
    assert len(list((folder / "runs").glob("*/checkpoint.state"))) == 4
    return folder


def legs_of(path):
    return RunFolder(path).spec().method.lr_at or ()


def twice_changed(folder):
    """The folder of a trial with two exploits or more behind it, its own and those of whom it
    continued from.
    """
    found = [path for path in sorted((folder / "runs").glob("????")) if len(legs_of(path)) >= 2]
    assert found, "no trial has two exploits behind it"
    return found[0]


def test_a_trial_with_two_exploits_behind_it_is_replayed_to_every_bit(noised):
    _, folder = noised
    path = twice_changed(folder)
    done = raydpzv("replay", path)
    assert done.exit_code == 0, done.output
    assert (
        f"replayed {UPDATES} updates; every loss and all final parameters have the recorded bits"
        in done.output
    )
    spec = RunFolder(path).spec()
    for client in range(spec.split.clients):
        assert rebuild(path, client=client).verified
    with Ledger.open(path / "ledger") as ledger:
        entries = ledger.since(0)
    unit = entries.lr[0] / spec.method.lr  # what a released whole number is worth
    wanted = [
        value * unit for value in (spec.method.lr, *(value for _, value in spec.method.lr_at))
    ]
    assert list(dict.fromkeys(entries.lr.tolist())) == list(dict.fromkeys(wanted))
    assert [entries.lr[entries.round == first][0] for first, _ in spec.method.lr_at] == wanted[1:]


@pytest.mark.parametrize("name", ["lr", "server_lr"])
def test_with_other_changes_of_a_step_size_no_replay_has_the_bits(free, place, name):
    """The control of the test before."""
    path = shutil.copytree(twice_changed(free[1]), place / f"cut-{name}")
    spec = RunFolder(path).spec()
    made = [[update, 3 * value] for update, value in getattr(spec.method, f"{name}_at")]
    cut = override(spec, [f"method.{name}_at={made}"])
    facts = json.loads((path / "environment.json").read_text()) | {
        "scenario_sha256": scenario_sha256(cut)
    }
    (path / "environment.json").write_text(json.dumps(facts))
    text = (path / "scenario.toml").read_text()
    (path / "scenario.toml").write_text(as_toml(cut))
    assert text != (path / "scenario.toml").read_text()
    with pytest.raises(ReplayMismatch):
        replay(path)


def test_every_trial_is_the_run_of_its_scenario_from_the_start(free, place):
    said, folder = free
    assert sum(row["exploits"] for row in said["trials"]) >= 3
    for row in said["trials"]:
        path = folder / "runs" / f"{row['trial']:04d}" / "scenario.toml"
        assert ran(path, place / f"alone-{row['trial']}")["digest"] == row["digest"]
    best = said["trials"][said["best"]]
    assert ran(folder / "best.toml", place / "best")["digest"] == best["digest"]
    assert len({row["digest"] for row in said["trials"]}) > 1


def test_rows_say_who_continued_from_whom_and_what_was_copied(free):
    _, folder = free
    made = [(turn.updates, e) for turn in turns(folder) for e in turn.exploits]
    table = pq.read_table(folder / "trials.parquet").to_pylist()
    for row in table:
        mine = [(updates, e) for updates, e in made if e.trial == row["trial"]]
        assert row["exploits"] == len(mine)
        assert row["donors"] == ", ".join(f"{e.donor} at {updates}" for updates, e in mine)
        assert (row["state_bytes"] > 0) == bool(mine)
        for updates, _ in mine:
            aside = folder / "runs" / f"{row['trial']:04d}.until-{updates}"
            assert RunFolder(aside).summary()["updates"] == updates
    assert {row["updates"] for row in table} == {UPDATES}


def test_a_search_that_is_complete_says_no_decision_again(free):
    _, folder = free
    done = raydpzv("resume", folder, "--runner", "local")
    assert done.exit_code == 0, done.output
    assert "trials are there already" in done.stderr
    assert "continues from trial" not in done.stderr


def test_epsilon_counts_all_segments_and_that_of_the_search_all_trials(noised, place):
    said, folder = noised
    path = twice_changed(folder)
    row = said["trials"][int(path.name)]
    rows = RunFolder(path).rows()
    assert rows["release"]["round"].to_pylist() == [
        n for n in range(1, UPDATES + 1) for _ in range(2)
    ]
    whole = ran(path / "scenario.toml", place / "whole")
    proved = {(c["adversary"], c["relation"]): c["epsilon"] for c in whole["epsilon"] if c["holds"]}
    assert row["epsilon"] == proved[row["adversary"], "replace"]
    made = rows["release"]["epsilon_client"].to_pylist()
    assert made == sorted(made)
    legs = [made[2 * (first - 1)] for first, _ in legs_of(path)]
    assert legs[0] < legs[1] < made[-1] == row["epsilon"], "it goes on where the donor stood"
    spent = next(one for one in said["spent"] if one["adversary"] == row["adversary"])
    one = mu_of(row["epsilon"], spent["delta"])
    assert spent["spent"] == pytest.approx(epsilon_of(2 * one, spent["delta"])), (
        "4 trials: μ² add up"
    )
    assert spent["planned"] == pytest.approx(spent["spent"])


def test_what_was_put_aside_released_as_often_as_what_took_its_place(noised):
    """So that the trials as they end hold all that the search released."""
    _, folder = noised
    asides = sorted((folder / "runs").glob("????.until-*"))
    assert asides
    for aside in asides:
        updates = int(aside.name.partition("until-")[2])
        inherited = (
            RunFolder(folder / "runs" / aside.name[:4])
            .rows()["release"]["epsilon_client"]
            .to_pylist()
        )
        own = RunFolder(aside).rows()["release"]["epsilon_client"].to_pylist()
        assert len(own) == 2 * updates
        assert own == inherited[: len(own)]


def test_after_an_exploit_trial_and_donor_draw_noise_of_their_own(noised):
    _, folder = noised
    released = {
        p.name: RunFolder(p).rows()["release"]["value"].to_pylist()
        for p in (folder / "runs").glob("????")
    }
    (turn, *_) = [t for t in turns(folder) if t.exploits and t.updates + INTERVAL == UPDATES]
    exploit = turn.exploits[0]
    ours, theirs = (released[f"{n:04d}"] for n in (exploit.trial, exploit.donor))
    before = 2 * turn.updates
    assert ours[:before] == theirs[:before]
    after = slice(before, before + 2)  # of an upload that was on its way: the same sums
    assert ours[after] != theirs[after]
    assert sum(a == b for a, b in zip(ours[before:], theirs[before:], strict=True)) < 4


@pytest.mark.parametrize("moment", ["0001/summary.json", "*.until-*"])
def test_killed_at_any_moment_it_continues_to_the_same_table(free, place, moment):
    _, whole = free
    folder = place / f"killed-{len(moment)}"
    words = [*POPULATION, *changed(*SHORT, *FREE), *ALONE]
    command = [
        "search",
        "digits_dpzv",
        "--space",
        whole.with_suffix(".toml"),
        *words,
        "--out",
        folder,
    ]
    killed_at(command, folder, f"runs/{moment}")
    on = raydpzv("resume", folder, *ALONE)
    assert on.exit_code == 0, on.output
    assert table(folder) == table(whole)
    again = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert raydpzv("resume", folder, *ALONE).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == again


def table(folder):
    found = pq.read_table(folder / "trials.parquet").drop_columns(
        ["seconds", "state_bytes", "row_bytes"]
    )
    return [str(row) for row in found.to_pylist()]  # NaN is like NaN


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_fork_that_was_broken_off_is_made_again_whole(base, place, monkeypatch, at):
    """At every rename of a turn's forks, the last ones before and between them among them."""
    folder = shutil.copytree(base, place / f"broken-{at}")
    plan, calls, rename = read_search(folder / "search.toml"), [], Path.rename

    def fails(self, target):
        calls.append(target)
        if len(calls) == at:
            raise OSError("killed here")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="killed here"):
        take_turn(folder, plan, INTERVAL)
    monkeypatch.undo()
    made = take_turn(folder, plan, INTERVAL)
    sound = shutil.copytree(base, place / f"sound-{at}")
    assert made == take_turn(sound, plan, INTERVAL)
    files = [sorted(p.relative_to(f) for p in (f / "runs").rglob("*")) for f in (folder, sound)]
    assert files[0] == files[1]


@pytest.mark.parametrize("who", ["trial", "donor"])
@pytest.mark.parametrize("left", ["summary.json", "rows", "ledger"])
def test_a_trial_that_was_continued_with_alone_ends_the_search(base, place, who, left):
    """Also where a kill left of that its rows, or its ledger, alone."""
    folder = shutil.copytree(base, place / f"alone-{who}-{left}")
    plan = read_search(folder / "search.toml")
    turn = population._decided(folder, plan, INTERVAL)
    number = getattr(turn.exploits[0], who)
    path, stood = folder / "runs" / f"{number:04d}", base / "runs" / f"{number:04d}"
    assert raydpzv("resume", path, "--quiet").exit_code == 0
    for name in {"summary.json", "rows", "ledger"} - {left}:
        remove = shutil.rmtree if (path / name).is_dir() else Path.unlink
        remove(path / name)
        (shutil.copytree if (stood / name).is_dir() else shutil.copy)(stood / name, path / name)
    shutil.copy(stood / "checkpoint.state", path / "checkpoint.state")
    shutil.copytree(stood / TAIL, path / TAIL, dirs_exist_ok=True)
    said = f"trial {number} .* wanted to stand after {INTERVAL} updates"
    with pytest.raises(RunError, match=said):
        take_turn(folder, plan, INTERVAL)
    assert turns(folder) == [], "nothing is decided"
    population._add(folder, turn)
    with pytest.raises(RunError, match=said):
        take_turn(folder, plan, INTERVAL)


def test_a_fork_that_the_file_of_decisions_does_not_know_is_left_as_it_is(base, place):
    folder = shutil.copytree(base, place / "changed")
    made = take_turn(folder, read_search(folder / "search.toml"), INTERVAL)
    text = json.loads((folder / "population.jsonl").read_text())
    text["exploits"][0]["settings"]["method.lr"] *= 2
    (folder / "population.jsonl").write_text(json.dumps(text))
    on = raydpzv("resume", folder, *ALONE)
    assert on.exit_code == 2
    assert (
        f"trial {made.exploits[0].trial} continued from another after {INTERVAL} updates, and not "
        "as" in on.stderr
    )


@pytest.mark.parametrize("left", ["no exploits", "no turn"])
def test_a_fork_of_which_the_file_of_decisions_says_nothing_ends_the_search(free, place, left):
    """With no advice to delete what a trial has released."""
    folder = shutil.copytree(free[1], place / f"forgotten-{len(left)}")
    found = [json.loads(line) for line in (folder / "population.jsonl").read_text().splitlines()]
    forgotten = found[0]["exploits"][0]["trial"]
    found[0]["exploits"] = []
    lines = "".join(f"{json.dumps(turn)}\n" for turn in found) if left == "no exploits" else ""
    (folder / "population.jsonl").write_text(lines)
    on = raydpzv("resume", folder, *ALONE)
    said = " ".join(on.stderr.split())
    assert on.exit_code == 2, on.output
    assert "population.jsonl: trial " in said
    assert (
        re.search(rf"trial {forgotten} \(.*\) has continued from another", said)
        or left == "no turn"
    )
    assert "restore the file from a copy" in said
    assert "delete" not in said


def test_trials_that_did_not_release_alike_end_the_search(base, place, monkeypatch):
    folder = shutil.copytree(base, place / "unlike")
    monkeypatch.setattr(population, "_account", lambda run, updates: {"releases": int(run.name)})
    with pytest.raises(RunError, match="have not released alike after 10 updates"):
        take_turn(folder, read_search(folder / "search.toml"), INTERVAL)
    assert turns(folder) == [], "nothing is decided"


@pytest.mark.parametrize("scenario", ["digits_dpzv", "digits_decomfl", "decomfl_async"])
def test_a_run_that_stands_is_told_to_stand_there_and_continues_to_the_same_bits(place, scenario):
    """As after a kill between a checkpoint and the summary."""
    quiet = () if scenario != "digits_dpzv" else FREE
    spec = scenarios.load(scenario, [*SHORT, *quiet, "budget.updates=20", "budget.seconds=1e6"])
    planned, path = (
        Planned(PlannedLine("a", None, False, spec), spec, "a"),
        place / f"stands-{scenario}",
    )
    for _ in range(2):
        assert run_planned(planned, path, RunOptions(until=10)) == STOPPED
        assert RunFolder(path).summary()["updates"] == RunFolder(path).checkpoint().round == 10
        (path / "summary.json").unlink()
    assert run_planned(planned, path) == ""
    assert RunFolder(path).summary()["digest"] == raydpzv_run(spec).summary["digest"]


def test_a_segment_counts_as_made_with_its_evaluation_alone(base, place):
    folder = shutil.copytree(base, place / "unevaluated")
    plan = read_search(folder / "search.toml")
    assert to_go(folder, plan, INTERVAL) == []
    shutil.rmtree(folder / "runs" / "0001" / "rows" / "evaluation")
    shutil.rmtree(folder / "runs" / "0002")
    assert [trial.number for trial in to_go(folder, plan, INTERVAL)] == [1, 2]
    assert [trial.number for trial in to_go(folder, plan, INTERVAL + 5)] == [0, 1, 2, 3]


def test_a_trial_that_diverges_continues_from_another(place):
    """Most step sizes of the space are far too large."""
    space = "method.lr.choice = [0.003, 0.01, 1e9, 1e10]\n"
    said = trained(place / "diverging", "digits_dpzv", space, *FREE)
    assert [row["status"] for row in said["trials"]].count("done") == len(said["trials"])
    made = [e for turn in turns(place / "diverging") for e in turn.exploits]
    assert any(e.value is None for e in made)
    assert (
        RunFolder(next((place / "diverging" / "runs").glob("*.until-10"))).summary()["failure"]
        == "diverged"
    )


@pytest.mark.parametrize(
    ("scenario", "space", "changes"),
    [
        ("vafl_digits", "method.lr.loguniform = [1e-2, 1e-1]\n", ("method.momentum=0.5",)),
        ("digits_decomfl", "method.lr.loguniform = [1e-4, 1e-2]\n", ()),
        ("decomfl_async", "method.lr.loguniform = [1e-4, 1e-2]\n", ()),
        (
            "digits_decomfl",
            "method.lr.loguniform = [1e-4, 1e-2]\n",
            ("method.replicas=per_client", "method.revert=add_back", "method.momentum=0"),
        ),
    ],
)
def test_methods_of_every_kind_have_populations(place, scenario, space, changes):
    """Models in the checkpoint, updates of rounds on a ledger, of clients that pull, and clients'
    own models.
    """
    folder = place / f"{scenario}-{len(changes)}"
    said = trained(folder, scenario, space, *changes, "budget.updates=20")
    row = max(said["trials"], key=lambda row: row["exploits"])
    assert row["exploits"]
    path = folder / "runs" / f"{row['trial']:04d}"
    assert ran(path / "scenario.toml", place / f"{folder.name}-whole")["digest"] == row["digest"]
    assert raydpzv("replay", path).exit_code == 0


VECTOR_NOISE = changed(
    "privacy.mode=paper", "privacy.epsilon=9", "privacy.delta=1e-5", "privacy.clip=1"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("digits_users",), "has none that can be changed; use asha, or one of dpzv"),
        (("digits_dpzv", "--actors"), "--actors: --scheduler pbt has each trial whole"),
        (
            ("vafl_digits", *VECTOR_NOISE),
            "these runs have none, since its noise on every embedding row",
        ),
    ],
)
def test_what_no_population_can_be_made_of_is_refused_before_anything_is_written(
    place, words, said
):
    (place / "lr.toml").write_text("method.lr.loguniform = [1e-3, 1e-1]\n")
    asked = ("search", *words, "--space", place / "lr.toml", "--scheduler", "pbt", "--quiet")
    done = raydpzv(
        *asked, *(() if "--actors" in words else ("--runner", "local")), "--out", place / "refused"
    )
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert not (place / "refused").exists()
