import json
import shutil

import numpy as np
import pytest
from filelock import FileLock

import raydpzv
from raydpzv.audit.recorded import recorded_run
from raydpzv.methods.vertical.dpzv import IntegerServer
from raydpzv.zo.update import Step
from tests.helpers import commands
from tests.helpers.commands import stdout_of
from tests.helpers.keyed_noise import keyed_noise
from tests.helpers.sound_runs import sound, table

DEMO = ("budget.updates=300", "method.perturbations=2", "evaluate.every=300", "data.train_rows=400")
PAPER = (
    "model.bottom=linear",
    "model.head=sum",
    "model.embedding=10",
    "privacy.clip=0.1",
    "method.lr=0.2",
    "method.batch=256",
    "budget.updates=40",
    "evaluate.every=40",
    "privacy.delta=1e-5",
)
PUBLIC = (
    "data.scale=public",
    "data.centre=0.3",
    "data.spread=1",
    "data.split=plain",
    "method.server=frozen",
)
JOINT = (
    "method.server=joint",
    "model.head=linear",
    "model.initial=random",
    "method.batch=359",
    "method.perturbations=2",
    "budget.updates=40",
    "evaluate.every=40",
)


def call(*arguments):
    return commands.call("audit", *arguments)


def audited(folder, *options, status=0):
    result = call(folder, "--json", "--quiet", *options)
    assert result.exit_code == status, result.output
    return json.loads(result.stdout)


def made(folder, scenario, *overrides):
    raydpzv.run(raydpzv.load(scenario, overrides), folder)
    return folder


def complaint(*arguments):
    return commands.complaint(call(*arguments))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The private demo with 300 updates, 400 rows and 2 directions an update."""
    with keyed_noise():
        return made(tmp_path_factory.mktemp("audit") / "demo", "digits_private", *DEMO)


@pytest.fixture(autouse=True)
def fixed_noise():
    with keyed_noise():
        yield


def test_the_demo_is_not_falsified_and_much_of_its_epsilon_is_seen(demo, tmp_path):
    stdout = stdout_of(call(demo, "--quiet", "--out", tmp_path / "page"))
    assert stdout.startswith("not falsified: the attack shows ε ≥ 0.")
    printed = " ".join(stdout.split())
    assert "the run proves ε = 1 (δ = 0.00025, one record replaced, against clients" in printed
    assert "p = 0." in printed.partition("Kolmogorov-Smirnov")[2]
    found = json.loads((tmp_path / "page" / "audit.json").read_text())
    assert 0.5 <= found["epsilon_seen"] <= found["epsilon_proved"] == pytest.approx(1)
    assert found["hidden_difference"] == 0
    assert found["noise"]["releases"] == 600
    assert [c["canary"]["kind"] for c in found["canaries"]] == [
        "label",
        "features",
        "type",
        "label",
    ]
    assert (tmp_path / "page" / "plots" / "audit_noise.png").stat().st_size > 1000
    page = (tmp_path / "page" / "audit.html").read_text()
    assert "not falsified" in page
    assert "private" in page
    assert "<script" not in page


def test_half_the_noise_is_falsified(tmp_path):
    with keyed_noise(0.5):
        run = made(tmp_path / "run", "digits_private", *DEMO)
    found = audited(run, "--canaries", 1, status=1)
    assert found["verdict"] == "FALSIFIED"
    assert found["epsilon_seen"] > found["epsilon_proved"]
    assert found["noise"]["p"] < 1e-3
    assert 0.5 < found["noise"]["deviation_up"] < 0.6


def test_noise_that_is_small_beside_whole_numbers_is_not_falsified_for_that(tmp_path):
    """Deviations of 0.8 and 0.04 on whole numbers: of no use as privacy, but as stated."""
    small = (
        "budget.updates=60",
        "method.perturbations=2",
        "evaluate.every=60",
        "data.train_rows=60",
    )
    noise = ("privacy.mode=none", "privacy.mode=proved", "privacy.clip=0.1")
    for z in (2e-4, 1e-5):
        run = made(
            tmp_path / f"{z}", "digits_private", *small, *noise, f"privacy.noise_multiplier={z}"
        )
        found = audited(run, "--canaries", 1)
        assert found["verdict"] == "not falsified", found["reasons"]
        assert found["noise"]["p"] > 1e-3
        assert 0.9 < found["noise"]["deviation_up"] < 1.3
    assert ", too large to be useful (" in " ".join(
        call(run, "--canaries", 1, "--quiet").stdout.split()
    )


def test_a_head_that_learns_without_noise_is_falsified_in_proved_mode(monkeypatch, tmp_path):
    honest = audited(made(tmp_path / "honest", "digits_private", *JOINT), "--row", 3)
    assert honest["verdict"] == "not falsified"
    (canary,) = honest["canaries"]
    assert canary["others"] > 20
    assert canary["hidden_count"] == 0

    class Leaking(IntegerServer):
        def _released(self, client, number, held):
            given = super()._released(client, number, held)
            sums = held.sums.astype(np.float32)
            self.top.descend(Step(self._seeds.of(client, number).tolist(), sums, self._head.lr))
            return given

    monkeypatch.setattr("raydpzv.methods.vertical.dpzv.IntegerServer", Leaking)
    found = audited(made(tmp_path / "leaking", "digits_private", *JOINT), "--row", 3, status=1)
    assert found["hidden_difference"] > 0
    assert "a record moves releases whose batch it is not in" in found["reasons"]


@pytest.mark.parametrize(
    ("overrides", "kind", "differs"),
    [
        ((), "label", False),
        ((), "features", False),
        (("method.server=sgd",), "label", True),
        (("data.scale=standard", "data.centre=", "data.spread="), "features", True),
        (("data.split=stratified",), "label", True),
    ],
    ids=["label", "features", "head", "scaling", "split"],
)
def test_hidden_differences_of_paper_runs(tmp_path, overrides, kind, differs):
    fitted = any("standard" in text for text in overrides)
    public = [
        text for text in PUBLIC if not (fitted and text.startswith(("data.centre", "data.spread")))
    ]
    changes = [text for text in overrides if not text.endswith("=")]
    run = made(tmp_path / "run", "digits_dpzv", *PAPER, *public, *changes)
    found = audited(run, "--row", 3, "--kind", kind, "--out", tmp_path / "page")
    assert (found["hidden_difference"] > 0) is differs
    note = (
        "with it does not hold."
        if differs
        else "Releases without the changed record stay the same."
    )
    assert note in (tmp_path / "page" / "audit.html").read_text()
    assert found["canaries"][0]["others"] > 20
    # a bound by the range of a release holds whatever is hidden; fitted scaling and split prove
    # nothing
    proves = "data.scale=standard" not in overrides and "data.split=stratified" not in overrides
    assert (found["verdict"] == "not falsified") is proves


def test_a_records_term_set_to_zero_and_gathered_uploads(tmp_path):
    gathered = (
        "privacy.relation=add_remove",
        "method.batch=359",
        "method.gather=2",
        "method.perturbations=2",
    )
    run = made(
        tmp_path / "run", "digits_private", *gathered, "budget.updates=40", "evaluate.every=40"
    )
    found = audited(run, "--canaries", 2)
    assert found["relation"] == "add_remove"
    assert {c["canary"]["kind"] for c in found["canaries"]} == {"absent"}
    assert all(
        c["releases"] > 0 and c["others"] > 0 and c["hidden"] == 0 < c["apart"]
        for c in found["canaries"]
    )
    assert 0 < found["epsilon_seen"] <= found["epsilon_proved"]
    assert "is no neighbour under privacy.relation" in complaint(run, "--kind", "label")
    assert "another label is no neighbour, so that it bounds no guesses" in complaint(
        run, "--by", "labels"
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A sound run on 96 generated rows."""
    rows = (
        "data.source=synthetic",
        "data.rows=120",
        "data.columns=8",
        "data.classes=2",
        "data.centre=0.3",
    )
    shape = ("model.embedding=2", "split.how=columns", "split.clients=2", "budget.updates=40")
    with keyed_noise():
        return made(
            tmp_path_factory.mktemp("audit") / "tiny",
            "digits_private",
            *rows,
            *shape,
            "method.perturbations=2",
            "evaluate.every=40",
        )


def test_labels_are_guessed_no_more_often_than_the_bound(tiny, tmp_path):
    how = ("--by", "labels", "--canaries", 8, "--epsilons", "1,8")
    found = audited(tiny, *how, "--out", tmp_path / "page")
    assert found["verdict"] == "not falsified"
    assert [g["epsilon"] for g in found["guesses"]] == pytest.approx([1, 8])
    assert all(0.5 < g["expected"] <= g["bound"] < 1 for g in found["guesses"])
    assert found["guesses"][0]["bound"] < found["guesses"][1]["bound"]
    assert (tmp_path / "page" / "plots" / "audit_labels.png").stat().st_size > 1000


def test_next_to_no_noise_lets_labels_be_guessed(tiny):
    with keyed_noise(0.01):
        found = audited(tiny, "--by", "labels", "--canaries", 20, "--epsilons", "1", status=1)
    assert found["verdict"] == "FALSIFIED"
    assert found["guesses"][0]["right"] == 20


def own_table(folder, *overrides, label="0"):
    """A sound run on a table of one's own, of which row 3 has this label."""
    file = table(folder / "own.csv")
    lines = file.read_text().splitlines()
    lines[4] = f"{lines[4].rpartition(',')[0]},{label}"
    file.write_text("\n".join(lines))
    run = folder / "run"
    raydpzv.run(sound(file, "budget.updates=40", "evaluate.every=40", *overrides), run)
    return run


def canary_of_new_label(run, *options, status=0):
    found = audited(run, "--kind", "new_label", "--canaries", 2, *options, status=status)
    return found, found["canaries"][0]


def test_a_new_label_is_refused_or_counts_as_the_other_one(tmp_path):
    run = own_table(tmp_path)
    found = audited(run)
    assert found["verdict"] == "not falsified"
    kinds = [c["canary"]["kind"] for c in found["canaries"]]
    assert kinds == ["label", "features", "type", "new_label"]
    assert [c["outcome"] for c in found["canaries"]] == ["", "", "", "refused"]
    assert "data.classes does not list it" in call(run, "--quiet").stdout
    (tmp_path / "other").mkdir()
    found, canary = canary_of_new_label(own_table(tmp_path / "other", "data.other=2"))
    assert found["verdict"] == "not falsified"
    assert canary["outcome"] == ""
    assert canary["hidden"] == 0
    assert canary["others"] > 10
    assert found["epsilon_seen"] <= found["epsilon_proved"]


@pytest.mark.parametrize("rare", ["0", "9"], ids=["one class more", "as many"])
def test_a_list_of_classes_that_is_read_off_the_table_is_falsified(tmp_path, monkeypatch, rare):
    """The mode refuses such a run; here the refusal is taken away."""
    monkeypatch.setattr("raydpzv.config.public_lists.read_off", lambda data, goal: ())
    width = () if rare == "0" else ("model.embedding=4",)
    run = own_table(tmp_path, "data.classes=2", *width, label=rare)
    row = next(r for r, n in enumerate(recorded_run(run).prepared.numbers) if n == 3)
    found, canary = canary_of_new_label(run, "--row", row, status=1)
    assert found["verdict"] == "FALSIFIED"
    if rare == "0":
        assert canary["outcome"] == "classes"
        assert "moves the list of classes" in found["reasons"][0]
    else:
        assert canary["outcome"] == ""
        assert canary["hidden_count"] > 10, (
            "sorted first in place of last, it renumbers all other labels"
        )
        assert "a record moves releases whose batch it is not in" in found["reasons"]


def test_new_labels_are_for_the_ledger_and_for_labels_of_files(demo, tiny):
    assert "data whose labels data.classes lists" in complaint(demo, "--kind", "new_label")
    assert "goes with --by ledger" in complaint(tiny, "--by", "runs", "--kind", "new_label")


SMALL = (
    "data.source=synthetic",
    "data.rows=120",
    "data.columns=8",
    "data.classes=2",
    "data.scale=none",
    "split.how=columns",
    "split.clients=2",
    "budget.updates=60",
    "method.batch=32",
    "privacy.mode=paper",
    "privacy.delta=1e-5",
    "privacy.clip=5",
    "evaluate.every=60",
    "method.lr=0.02",
)


@pytest.mark.parametrize(("sigma", "shows"), [("0.001", True), ("5", False)])
def test_runs_of_a_method_without_a_ledger(tmp_path, sigma, shows):
    run = made(tmp_path / "run", "vafl", *SMALL, f"privacy.sigma={sigma}")
    found = audited(run, "--by", "runs", "--runs", 24, "--kind", "features")
    assert (found["adversary"], found["relation"], found["delta"]) == ("external", "replace", 1e-5)
    assert found["verdict"] == "nothing proved"
    assert (found["inside"], found["outside"]) == (6, 6)
    assert (found["epsilon_seen"] > 0) is shows


@pytest.mark.parametrize(("sigma", "shows"), [("0.001", True), ("5", False)])
def test_guesses_in_one_run_of_a_method_without_a_ledger(tmp_path, sigma, shows):
    """With features enough to learn 96 labels by heart, canaries are told by their labels."""
    by_heart = ("data.columns=60", "model.embedding=8", "method.lr=0.05", "budget.updates=400")
    run = made(
        tmp_path / "run", "vafl", *SMALL, *by_heart, "evaluate.every=400", f"privacy.sigma={sigma}"
    )
    found = audited(run, "--by", "guesses", "--canaries", 60, "--kind", "label")
    assert (found["canaries"], found["guesses"]) == (60, 30)
    assert (found["epsilon_seen"] > 0.5) is shows


def test_an_interrupted_audit_ends_in_one_line(demo, monkeypatch, tmp_path):
    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("raydpzv.audit.audit_run.audit_ledger", interrupted)
    result = call(demo, "--out", tmp_path / "page")
    assert (result.exit_code, result.stderr) == (130, "raydpzv: interrupted\n")
    assert not (tmp_path / "page").exists()


def test_what_cannot_be_audited_is_refused(demo, tmp_path):
    run = shutil.copytree(demo, tmp_path / "run")
    for words, said in (
        (("--row", 400), "wanted a training row, 0..399, got 400"),
        (("--canaries", 0), "--canaries: wanted 1..400"),
        (("--kind", "lable"), 'got "lable". Did you mean "label"?'),
        (("--by", "legder"), 'got "legder". Did you mean "ledger"?'),
        (("--by", "runs", "--runs", 7), "wanted at least 8"),
        (("--by", "guesses", "--canaries", 3), "wanted at least 4 different records"),
        (("--by", "labels", "--epsilons", "1,x"), "--epsilons: wanted numbers above 0"),
        (("--by", "labels", "--epsilons", "0"), "--epsilons: wanted numbers above 0"),
    ):
        assert said in complaint(run, *words)
    shutil.move(run / "ledger", tmp_path / "ledger")
    assert "has no ledger (ledger/header.json)" in complaint(run)
    shutil.move(tmp_path / "ledger", run / "ledger")
    environment = json.loads((run / "environment.json").read_text())
    digest = next(name for name in environment if name.startswith("data_"))
    (run / "environment.json").write_text(json.dumps(environment | {digest: "0" * 64}))
    assert "the data changed since the run began" in complaint(run)
    shutil.copy(demo / "environment.json", run / "environment.json")
    (run / "operator.json").rename(tmp_path / "operator.json")
    assert "operator.json" in complaint(run)
    (run / "summary.json").unlink()
    assert "this run has not finished" in complaint(run)
    assert "the run was killed; continue it first" in complaint(run)
    with FileLock(run / ".lock"):
        assert "another process is writing this run" in complaint(run)
    assert "not a run folder" in complaint(tmp_path)


def test_published_noiseless_and_horizontal_runs_are_refused(demo, tmp_path):
    stdout_of(commands.call("publish", demo, "--out", tmp_path / "published"))
    assert "holds what was published of a run" in complaint(tmp_path / "published")
    quiet = made(tmp_path / "quiet", "zoo_vfl", "budget.updates=4")
    assert "adds no noise and claims no ε" in complaint(quiet)
    rounds = made(tmp_path / "rounds", "digits_decomfl", "budget.updates=2", "data.train_rows=200")
    said = complaint(rounds)
    assert "an audit wants a vertical run" in said
    assert "adds no noise" not in said
    rows = made(tmp_path / "rows", "vafl", *SMALL, "privacy.sigma=1")
    assert "keeps no ledger of its releases; use --by runs or --by guesses" in complaint(rows)
    assert "proves no ε against the clients" in complaint(rows, "--by", "labels")
