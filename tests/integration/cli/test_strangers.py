"""Folders that somebody else made to run code, or to write where they have no business."""

import io
import json
import os
import pickle
import shutil
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raydpzv
from raydpzv import trust
from raydpzv.compare.live import LivePage
from raydpzv.errors import InputError, RaydpzvError
from raydpzv.foreign import importing, resolve
from raydpzv.records.run_folder import RunFolder
from raydpzv.search.tune_plan import plan_to_resume, search_folder
from tests.helpers import strangers
from tests.helpers.commands import call, complaint, stdout_of
from tests.helpers.searches import plan_of
from tests.helpers.small_horizontal import stop_after
from tests.helpers.strangers import MODULE, forget, rejson, rewrite, sent, trap

NEEDED = "names code, .* if that code may run, give --trust-code"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The reader's project, which is the working folder, and folders made in it."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        project = strangers.project(folder / "project")
        patch.chdir(project)
        for name in (*strangers.SCENARIOS, "comparison", "search"):
            strangers.make(project, name)
        yield project


@pytest.fixture
def canary(home):
    """The file in which the reader's module notes that it was imported or called."""
    yield home / "canary"
    (home / "canary").unlink(missing_ok=True)
    forget()


@pytest.fixture
def outside(tmp_path):
    """What is not the stranger's to write: a folder with a file."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "victim").write_text("mine")
    return folder


@pytest.fixture(autouse=True)
def _gate_open(monkeypatch):
    """Leave open the gate of reading commands: they are not to come to it. Draw no pictures."""
    monkeypatch.setattr("scenarios.typer_options.importing", lambda allowed: nullcontext())
    monkeypatch.setattr("raydpzv.report.plots.image", lambda figure, form="png": b"a picture")


def reading(folder: Path, out: Path):
    """Yield all reading commands, with what they write elsewhere in `out`."""
    yield "report", folder
    yield "report", folder, "--operator", "--out", out / "report"
    yield "replay", folder, "--out", out / "models.npz"
    yield "replay", folder, "--client", 0, "--at", 1
    yield "step", folder, "--at", 1, "--json", "--quiet"
    yield "step", folder, "--rank", "--quiet"
    yield "step", folder, "--clip", "--quiet"
    yield "export", folder, "--out", out / "w.safetensors"
    yield "export", folder, "--party", 0, "--out", out / "p.safetensors"
    yield "publish", folder, "--out", out / "published"
    yield "publish", folder, "--compact", "--out", out / "run.seeds"
    yield "audit", folder, "--quiet"
    yield ("list",)


def running(folder: Path, out: Path):
    """Yield the commands that run what a folder says."""
    yield "resume", folder, "--quiet"
    yield "run", folder / "scenario.toml", "--out", out / "run", "--quiet"
    yield "check", folder / "scenario.toml"
    yield "privacy", folder / "scenario.toml"


def at(key, value):
    """Return what sets a dotted key of a scenario."""

    def change(tree):
        *tables, last = key.split(".")
        for name in tables:
            tree = tree.setdefault(name, {})
        tree[last] = value

    return lambda folder: rewrite(folder, change)


def losing(*harms):
    """Return what changes a folder so, and loses its first models, which code would make again."""

    def harm(folder):
        for each in harms:
            each(folder)
        (folder / "initial.npz").unlink(missing_ok=True)
        rejson(folder / "environment.json", layouts=None)

    return harm


def both(*harms):
    def harm(folder):
        for each in harms:
            each(folder)

    return harm


class Payload:
    """What a pickle calls when it is loaded."""

    def __reduce__(self):
        return os.system, (f"touch {Path.cwd() / 'canary'}",)


def touching(folder):
    """Give the options of a model that a shell obeys."""
    at("model.options", {"cmd": f"touch {Path.cwd() / 'canary'}"})(folder)


def pickled(name):
    def harm(folder):
        found = io.BytesIO()
        np.savez(found, shared=np.array([Payload()], object))
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(found.getvalue())

    return harm


def pickled_weights(folder):
    torch.save({"0.weight": Payload()}, folder / "w.pt")
    losing(at("model.weights", str(folder / "w.pt")), at("model.kind", "mlp"))(folder)


def pickled_rows(folder):
    part = next((folder / "rows" / "model").glob("*.parquet"))
    table = pq.read_table(part)
    field = table.schema.field("party")
    extension = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Payload()),
    }
    schema = table.schema.set(table.schema.get_field_index("party"), field.with_metadata(extension))
    pq.write_table(pa.Table.from_arrays(table.columns, schema=schema), part)


def pickled_checkpoint(folder):
    (folder / "summary.json").unlink()
    (folder / "checkpoint.state").write_bytes(pickle.dumps(Payload()))


def unfinished(folder):
    (folder / "summary.json").unlink()


def of_line(key, value):
    """Return what sets a key of the scenario in a comparison's first line."""

    def harm(folder):
        def change(tree):
            tree["lines"][0].pop("own_method", None)
            table, last = key.split(".")
            tree["lines"][0]["scenario"].setdefault(table, {})[last] = value

        rewrite(folder, change, "comparison.toml")

    return harm


def of_its_run(harm):
    def change(folder):
        harm(next((folder / "runs").iterdir()))

    return change


FACTS = {"horizontal": True, "agent": False, "drifts": False, "pulls": False}
CODE = {
    "shell": ("horizontal", losing(at("model.kind", "subprocess:getoutput"), touching)),
    "shell, kept record": ("horizontal", both(at("model.kind", "subprocess:getoutput"), touching)),
    "shell, old digest": (
        "horizontal",
        lambda folder: (folder / "scenario.toml").write_text(
            (folder / "scenario.toml").read_text().replace(f"{MODULE}:Net", "subprocess:getoutput")
        ),
    ),
    "os.system": ("horizontal", losing(at("model.kind", "os:system"))),
    "builtins": ("horizontal", losing(at("model.kind", "builtins:exec"))),
    "importer": (
        "horizontal",
        losing(at("model.kind", "importlib:import_module"), at("model.options", {"name": MODULE})),
    ),
    "hub": ("horizontal", losing(at("model.kind", "torch.hub:load"))),
    "library": ("horizontal", losing(at("model.kind", "numpy:load"))),
    "the program": ("horizontal", losing(at("model.kind", "raydpzv.files:write_atomically"))),
    "the command": ("horizontal", losing(at("model.kind", "scenarios.cli:main"))),
    "through a module": ("horizontal", losing(at("model.kind", f"{MODULE}:nn.Linear"))),
    "the project's": (
        "horizontal",
        losing(at("model.kind", f"{MODULE}:Net"), at("model.options", {"spoken": "hostile"})),
    ),
    "the folder's": ("horizontal", losing(at("model.kind", "evil:run"))),
    "a package's": ("horizontal", losing(at("model.kind", "evils.inner:run"))),
    "handle": ("horizontal", losing(at("model.kind", "here:Net-00000000"))),
    "loss": ("horizontal", losing(at("model.loss", "os:system"))),
    "metrics": ("horizontal", losing(at("evaluate.metrics", "os:system"))),
    "data": ("horizontal", losing(at("data.source", "subprocess:getoutput"), touching)),
    "weights": ("horizontal", losing(at("model.weights", f"{MODULE}:weights"))),
    "weights of a party": (
        "vertical",
        losing(at("model.weights", {"0": f"{MODULE}:weights"}), at("model.bottom", "linear")),
    ),
    "bottom": ("vertical", losing(at("model.bottom", "subprocess:getoutput"), touching)),
    "bottoms": ("vertical", losing(at("model.bottoms", [f"{MODULE}:part", "os:system"]))),
    "head": ("vertical", losing(at("model.head", "os:system"))),
    "unfinished": ("horizontal", unfinished),
    "unfinished, lost": ("vertical", losing(unfinished)),
    "method": (
        "method",
        lambda folder: rejson(folder / "environment.json", own_method=None),
    ),
    "method of a module": (
        "method",
        both(
            at("method.name", f"{MODULE}:note"),
            lambda folder: rejson(folder / "environment.json", own_method=FACTS),
        ),
    ),
    "method in the summary": (
        "method",
        lambda folder: rejson(
            folder / "summary.json", method="subprocess:getoutput", own_method=None
        ),
    ),
    "method of the program's run": (
        "horizontal",
        losing(at("method.name", f"{MODULE}:METHOD")),
    ),
    "comparison": ("comparison", of_line("method.name", f"{MODULE}:METHOD")),
    "comparison's model": ("comparison", of_line("model.kind", "subprocess:getoutput")),
    "comparison's run": (
        "comparison",
        of_its_run(lambda folder: rejson(folder / "environment.json", own_method=None)),
    ),
    "pickled models": ("horizontal", pickled("models.npz")),
    "pickled first models": ("horizontal", pickled("initial.npz")),
    "pickled snapshot": ("horizontal", pickled("ledger/snapshots/shared-1.npz")),
    "pickled checkpoint": ("horizontal", pickled_checkpoint),
    "pickled rows": ("horizontal", pickled_rows),
    "pickled weights": ("horizontal", pickled_weights),
}
"""By what it is: which run a stranger changed, and how."""


@pytest.mark.parametrize("kind", CODE)
def test_no_code_of_a_strangers_folder_runs(kind, home, canary, tmp_path):
    name, harm = CODE[kind]
    folder = sent(home / f"made-{name}", tmp_path / "folder")
    harm(folder)
    (folder / "evil.py").write_text(strangers.SOURCE)
    before, out = strangers.contents(home), tmp_path / "out"
    out.mkdir()
    for words in (*reading(folder, out), *running(folder, out)):
        done = call(*words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done)
        assert not canary.exists(), (words, canary.read_text())
    watched(folder)
    assert strangers.contents(home) == before
    assert MODULE not in sys.modules


def watched(folder):
    """Make the page that `watch` serves, if it can be made."""
    with suppress(RaydpzvError):
        LivePage(folder).page()


@pytest.mark.parametrize("kind", ["the project's", "unfinished", "weights", "method"])
def test_control_the_code_runs_where_it_is_trusted(kind, home, canary, tmp_path):
    name, harm = CODE[kind]
    folder = sent(home / f"made-{name}", tmp_path / "folder")
    harm(folder)
    call("replay", folder, "--trust-code", "--out", tmp_path / "m.npz")
    call("step", folder, "--rank", "--quiet", "--trust-code")
    assert "imported" in canary.read_text()


@pytest.mark.parametrize("command", ["resume", "run", "check", "export", "step"])
def test_a_strangers_folder_needs_a_word_to_run_code(command, home, canary, tmp_path):
    folder = sent(home / "made-horizontal", tmp_path / "folder")
    (folder / "summary.json").unlink()
    words = {
        "run": ("run", folder / "scenario.toml", "--out", tmp_path / "again", "--quiet"),
        "check": ("check", folder / "scenario.toml"),
        "export": ("export", folder, "--format", "peft", "--out", tmp_path / "adapter"),
        "step": ("step", folder, "--rank", "--quiet"),
    }.get(command, ("resume", folder, "--quiet"))
    assert trust.code_words(RunFolder.open(folder).settings())
    assert "give --trust-code" in complaint(call(*words))
    assert not canary.exists()
    call(*words, "--trust-code")
    assert "imported" in canary.read_text(), "control: with the word it runs"


def test_your_own_folder_needs_none_until_its_plan_changes(home, canary, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(home / "made-horizontal", folder)
    (folder / "summary.json").unlink()
    assert call("resume", folder, "--quiet").exit_code == 0
    assert "loss" in canary.read_text()
    forget()
    canary.unlink()
    at("model.options", {"spoken": "changed"})(folder)
    (folder / "summary.json").unlink()
    assert "it was changed since" in complaint(call("resume", folder))
    assert not canary.exists()


def test_a_run_that_came_back_needs_no_word_beside_its_own_scenario(home, canary, tmp_path):
    folder = sent(home / "made-horizontal", tmp_path / "folder")
    (folder / "summary.json").unlink()
    own, other = tmp_path / "own.toml", tmp_path / "other"
    shutil.copy(folder / "scenario.toml", own)
    shutil.copytree(folder, other)
    at("method.name", f"{MODULE}:METHOD")(other)
    words = ("run", own, "--quiet", "--or-resume", "--out")
    assert f"names code, {MODULE}:METHOD, and" in complaint(call(*words, other)), "control"
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    stdout_of(call(*words, folder))
    assert "loss" in canary.read_text()
    forget()
    found = raydpzv.run(raydpzv.load(str(own)), storage_path=tmp_path, name="again")
    assert found.summary["digest"] == json.loads((folder / "summary.json").read_text())["digest"]


def test_another_users_key_makes_no_mark(home, canary, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    folder = tmp_path / "folder"
    shutil.copytree(home / "made-horizontal", folder)
    trust.mark(folder, "scenario.toml", ["a:b"])
    trust.require_trust(folder, "scenario.toml", ["a:b"])  # control: by its own key it is
    monkeypatch.setenv("XDG_STATE_HOME", str(home.parent / "state"))
    with pytest.raises(InputError, match=NEEDED):
        trust.require_trust(folder, "scenario.toml", ["a:b"])
    with raydpzv.trust_code():
        trust.require_trust(folder, "scenario.toml", ["a:b"])


def test_a_mark_of_another_folder_is_no_mark(home, tmp_path):
    folder = sent(home / "made-horizontal", tmp_path / "folder")
    for name in ("vertical", "method"):
        shutil.copy(home / f"made-{name}" / ".scenario.toml.mark", folder)
        with pytest.raises(InputError, match=NEEDED):
            RunFolder.open(folder).require_trust()
    shutil.copy(home / "made-horizontal" / ".scenario.toml.mark", folder)
    RunFolder.open(folder).require_trust()


@pytest.mark.parametrize("mode", [0o604, 0o640])
def test_a_key_that_others_can_read_is_none(mode, home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shutil.copy(home / "method.toml", tmp_path / "method.toml")
    trust.mark(tmp_path, "method.toml", ["a:b"])
    trust.require_trust(tmp_path, "method.toml", ["a:b"])
    (tmp_path / "raydpzv" / "key").chmod(mode)
    with pytest.raises(InputError, match=NEEDED):
        trust.require_trust(tmp_path, "method.toml", ["a:b"])


def test_reading_commands_import_nothing_in_their_threads_either(home, canary):
    words = []

    def asked():
        try:
            resolve(f"{MODULE}:note", "model.kind")
        except InputError as error:
            words.append(str(error))

    with importing(False):
        thread = threading.Thread(target=asked)
        thread.start()
        thread.join()
    assert "nothing of it is imported" in words[0]
    assert not canary.exists()
    asked()
    assert len(words) == 1
    assert canary.exists(), "control: without the gate it is imported"


def test_a_search_of_a_stranger_and_its_best_scenario_need_a_word(home, canary, tmp_path):
    folder = sent(home / "made-search", tmp_path / "folder")
    (folder / "trials.csv").unlink()
    for words in (("resume", folder), ("run", folder / "best.toml")):
        assert "give --trust-code" in complaint(call(*words, "--quiet"))
    assert not canary.exists()
    rewrite(folder, lambda tree: None, "search.toml")
    strangers.by_itself("resume", folder, "--trust-code")
    assert "imported" in canary.read_text()


def test_pickles_of_ray_tune_are_loaded_from_your_own_folder_alone(tmp_path, monkeypatch):
    """A search of the program's own parts names no code, and its state holds some all the same."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    folder, plan = tmp_path / "folder", plan_of({"seed": {"grid": [0, 1]}})
    with search_folder(folder, plan):
        (folder / "tune").mkdir()
    assert plan_to_resume(folder).same_as(plan), "control: its own user may go on"
    (folder / "tune" / "tuner.pkl").write_bytes(pickle.dumps(Payload()))
    (folder / ".search.toml.mark").unlink()
    needed = "Ray Tune's pickles in it may run any code, and you did not make this folder"
    assert needed in complaint(call("resume", folder, "--quiet"))
    with pytest.raises(InputError, match=needed), search_folder(folder, plan):
        pass
    assert not (tmp_path / "canary").exists()
    assert not (folder / ".search.toml.mark").exists(), "what was refused becomes nobody's own"
    pickle.loads((folder / "tune" / "tuner.pkl").read_bytes())
    assert (tmp_path / "canary").exists(), "control: loading them runs their code"


def test_a_word_that_a_search_may_draw_counts(home, tmp_path):
    folder = sent(home / "made-search", tmp_path / "folder")

    def change(tree):
        for line in tree["lines"]:
            line["scenario"]["method"] = {"name": "decomfl"}
        for dimension in tree["space"]:
            dimension |= {"setting": "model.kind", "kind": "choice", "values": ["os:system"]}

    rewrite(folder, change, "search.toml")
    assert "names code, os:system" in complaint(call("resume", folder))


LINKS = {
    "page": ("horizontal", lambda folder, out: trap(folder, "report.html", out / "victim")),
    "pictures": ("horizontal", lambda folder, out: trap(folder, "plots", out)),
    "picture": (
        "horizontal",
        lambda folder, out: trap(folder, "plots/loss_over_updates.png", out / "victim"),
    ),
    "findings": ("method", lambda folder, out: trap(folder, "step.json", out / "victim")),
    "lock": ("horizontal", lambda folder, out: trap(folder, ".lock", out / "victim")),
    "traceback": ("horizontal", lambda folder, out: trap(folder, "error.log", out / "victim")),
    "rows": ("horizontal", lambda folder, out: trap(folder, "rows/model", out)),
    "tail": ("horizontal", lambda folder, out: trap(folder, "rows.tail", out)),
    "ledger": ("horizontal", lambda folder, out: trap(folder, "ledger", out)),
    "summary": ("horizontal", lambda folder, out: trap(folder, "summary.json", out / "victim")),
    "log": ("horizontal", lambda folder, out: trap(folder, "log.jsonl", out / "victim")),
    "scratch files": (
        "horizontal",
        lambda folder, out: [
            trap(folder, f".{name}.{os.getpid()}", out / "victim")
            for name in ("report.html", "step.json", "models.npz", "summary.json")
        ],
    ),
    "comparison's pictures": ("comparison", lambda folder, out: trap(folder, "plots", out)),
    "comparison's rows": ("comparison", lambda folder, out: trap(folder, "rows", out)),
    "comparison's run": (
        "comparison",
        lambda folder, out: (
            os.rename(run := next((folder / "runs").iterdir()), moved := out / "run")
            or trap(folder, f"runs/{run.name}", moved)
        ),
    ),
    "search's trials": ("search", lambda folder, out: trap(folder, "trials.csv", out / "victim")),
}
"""By what it is: which folder, and which symbolic links a stranger puts in it."""


@pytest.mark.parametrize("kind", LINKS)
def test_no_link_in_a_strangers_folder_is_followed(kind, home, canary, tmp_path, outside):
    name, harm = LINKS[kind]
    folder, out = sent(home / f"made-{name}", tmp_path / "folder"), tmp_path / "out"
    harm(folder, outside)
    before = strangers.contents(outside)
    out.mkdir()
    trusted = [(*words, "--trust-code") for words in running(folder, out) if words[0] != "check"]
    for words in (*reading(folder, out), *trusted):
        done = call(*words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done)
        assert strangers.contents(outside) == before, words
    watched(folder)
    assert strangers.contents(outside) == before


def test_control_a_write_through_a_link_is_seen(outside, tmp_path):
    trap(tmp_path, "page", outside / "victim")
    before = strangers.contents(outside)
    (tmp_path / "page").write_text("theirs")
    assert strangers.contents(outside) != before


def test_what_a_run_keeps_to_its_owner_has_private_modes(home, canary, tmp_path):
    folder = tmp_path / "run"
    stdout_of(call("run", "horizontal.toml", "--out", folder, "--quiet", "--log", "csv,json"))
    call("step", folder, "--rank", "--quiet")
    assert folder.stat().st_mode & 0o777 == 0o700
    private = [folder / name for name in ("operator.json", "summary.json", "step.json")]
    private += [folder / name for name in ("scalars.csv", "log.jsonl", ".scenario.toml.mark")]
    private += [*folder.glob("rows/*/*.parquet")]
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in private} == {
        path.name: "0o600" for path in private
    }
    assert (home / "made-comparison").stat().st_mode & 0o777 == 0o700
    assert (home / "made-search").stat().st_mode & 0o777 == 0o700


def test_a_checkpoint_and_its_rows_are_their_owners_alone(home, canary, tmp_path):
    folder = tmp_path / "run"
    raydpzv.run(
        raydpzv.load("vertical.toml", ["record.checkpoint_updates=1"]), folder, **stop_after(2)
    )
    private = [*folder.glob("checkpoint*.state"), *folder.glob("rows.tail/*")]
    assert private
    assert {oct(path.stat().st_mode & 0o777) for path in private} == {"0o600"}


def test_a_published_folder_may_be_shared(home, canary, tmp_path):
    old = os.umask(0o022)
    try:
        stdout_of(call("publish", home / "made-vertical", "--out", tmp_path / "public", "--quiet"))
    finally:
        os.umask(old)
    public = tmp_path / "public"
    assert public.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in public.rglob("*") if path.is_file()} == {0o644}
    assert not (public / "operator.json").exists()
    assert not [*public.glob(".*.mark")]


SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_names_of_a_strangers_folder_are_text_on_its_page(home, canary, tmp_path):
    folder = sent(home / "made-vertical", tmp_path / "folder")
    rejson(
        folder / "summary.json", scenario=SCRIPT, title=SCRIPT, method=SCRIPT, stopped_by=SCRIPT,
        parties=[SCRIPT, "b"], warnings=[SCRIPT], privacy_verdict=f"NOT PRIVATE: {SCRIPT}",
        private=False, engine=SCRIPT,
    )  # fmt: skip
    rejson(folder / "environment.json", note=SCRIPT, machine=SCRIPT)
    done = call("report", folder, "--operator", "--out", tmp_path / "out")
    if done.exit_code:  # the title alone then
        done = call("report", folder, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "alert(1)" in page
    assert SCRIPT not in page
    assert "<img src=x" not in page


def test_texts_of_a_strangers_comparison_are_no_formulas(home, canary, tmp_path):
    folder, formula = sent(home / "made-comparison", tmp_path / "folder"), "=1+cmd|' /C calc'!A0"
    rewrite(folder, lambda tree: tree["lines"][0].update(label=formula), plan="comparison.toml")
    assert call("report", folder, "--out", tmp_path / "out").exit_code == 0
    table = (tmp_path / "out" / "table.csv").read_text()
    assert f'"\'{formula}"' in table
    assert f'"{formula}"' not in table


def test_a_terminal_obeys_no_text_of_a_record(home, canary, tmp_path):
    folder = sent(home / "made-vertical", tmp_path / "folder")
    rejson(folder / "summary.json", privacy_verdict="PRIVATE: \x1b[2J\x9b2J\x07")
    done = call("publish", folder, "--out", tmp_path / "public", "--quiet")
    assert "\\x1b[2J\\x9b2J\\x07" in done.stdout
    assert not {"\x1b", "\x9b", "\x07"} & set(done.stdout)
