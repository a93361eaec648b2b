import hashlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raydpzv
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_toml
from raydpzv.errors import DataError, InputError, SpecError
from raydpzv.experiment.prepare import planned_privacy, prepare
from raydpzv.experiment.rebuild import check_rebuilt, rebuild
from raydpzv.keys import Key
from raydpzv.records.publish import publish
from tests.helpers.programs import Forked, ended, said
from tests.helpers.small_horizontal import stop_after

DRAW = (Key(0) / "own data").generator()
Y = DRAW.integers(0, 3, 120)
X = (DRAW.standard_normal((120, 1, 4, 4)) + Y[:, None, None, None]).astype(np.float32)
IDS = (Y[:, None] * 5 + DRAW.integers(0, 5, (120, 6))).astype(np.int64)


class Pictures(nn.Module):
    """A network with a buffer, a frozen layer, batch statistics and dropout."""

    def __init__(self, outputs: int, channels: int = 4) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels)
        self.frozen = nn.Linear(channels * 4, channels * 4).requires_grad_(False)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(channels * 4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.frozen(self.norm(self.conv(x)).relu().flatten(1))))


def words(embedding: int) -> nn.Module:
    """Mean of embedded token ids, then one layer."""
    return nn.Sequential(nn.EmbeddingBag(15, 8), nn.Linear(8, embedding))


def digests(run: raydpzv.Run) -> dict[str, str]:
    return {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in run.models.items()}


def test_an_own_model_learns_own_data_of_own_clients():
    scenario = raydpzv.horizontal(
        Pictures, (X, Y), clients=np.arange(120) % 4, updates=60, lr=0.1, perturbations=5
    )
    run = raydpzv.run(scenario)
    trained = sum(p.numel() for p in Pictures(3).parameters() if p.requires_grad)
    assert run.models["shared"].size == trained
    assert run.summary["accuracy"] > 0.6
    assert digests(run) == digests(raydpzv.run(scenario))


def test_parties_bring_pictures_and_words():
    scenario = raydpzv.vertical(
        [lambda embedding: nn.Sequential(nn.Flatten(), nn.Linear(16, embedding)), words],
        {"camera": X, "shop": IDS},
        Y,
        updates=300,
        batch=32,
        embedding=4,
        lr=0.05,
    )
    assert scenario.party_names == ("camera", "shop")
    run = raydpzv.run(scenario)
    assert run.models["client 0"].size == 16 * 4 + 4
    assert run.models["client 1"].size == 15 * 8 + 8 * 4 + 4
    assert run.summary["accuracy"] > 0.6


def test_models_by_name_are_the_parties_in_any_order():
    views = {"pictures": X, "words": IDS}
    named = raydpzv.vertical({"words": words, "pictures": Pictures}, views, Y, updates=5)
    listed = raydpzv.vertical([Pictures, words], views, Y, updates=5)
    assert named.model.bottoms == listed.model.bottoms
    with pytest.raises(SpecError, match=r"the names of views \(pictures, words\), got words, pix"):
        raydpzv.vertical({"words": words, "pix": Pictures}, views, Y, updates=5)
    with pytest.raises(SpecError, match="none: give a list"):
        raydpzv.vertical({"words": words, "pictures": Pictures}, [IDS, X], Y, updates=5)


def test_an_own_head_scores_all_embeddings():
    head = nn.Sequential(nn.Linear(8, 3))
    scenario = raydpzv.vertical(
        "linear",
        [X.reshape(120, -1)[:, :8], X.reshape(120, -1)[:, 8:]],
        Y,
        head=head,
        updates=20,
        embedding=4,
    )
    run = raydpzv.run(scenario)
    assert run.models["server"].size == 8 * 3 + 3


def test_a_given_module_starts_from_its_weights():
    model = Pictures(3)
    run = raydpzv.run(raydpzv.horizontal(model, (X, Y), clients=4, updates=1, lr=1e-9))
    before = torch.cat(
        [p.detach().reshape(-1) for p in model.parameters() if p.requires_grad]
    ).numpy()
    np.testing.assert_allclose(run.models["shared"], before, atol=1e-6)


def test_handed_over_test_rows_are_the_test_rows():
    run = raydpzv.run(
        raydpzv.horizontal("mlp", (X, Y), test=(X[:30], Y[:30]), clients=4, updates=1)
    )
    shares = np.bincount(Y[:30], minlength=3) / 30
    assert run.summary["largest_class_share"] == pytest.approx(shares.max())


PROGRAM = ["-m", "raydpzv"]
TOML = """
[data]
source = "own_parts:rows"
options = {shift = 0.5}
scale = "none"
[split]
how = "iid"
clients = 4
[model]
kind = "own_parts:Net"
options = {width = 6}
[method]
name = "decomfl"
cohort = 4
[budget]
updates = 5
"""
PARTS = """
import numpy as np
from torch import nn

def rows(shift: float):
    draw = np.random.default_rng(0)
    y = draw.integers(0, 3, 60)
    return draw.standard_normal((60, 5)) + y[:, None] * shift, y

class Net(nn.Sequential):
    def __init__(self, shape, outputs, width: int = 4):
        super().__init__(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own_parts.py").write_text(PARTS)
    (tmp_path / "own.toml").write_text(TOML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("own_parts", "own_dpzv", "own_copy"):
        sys.modules.pop(name, None)


def test_a_scenario_file_names_own_parts(folder):
    spec = raydpzv.load("own.toml")
    run = raydpzv.run(spec, out="run")
    assert run.models["shared"].size == 5 * 6 + 6 + 6 * 3 + 3
    assert "own_parts:Net" in as_toml(spec)
    said(Forked([*PROGRAM, "run", "own.toml", "--out", "again"]))
    again = np.load(folder / "again" / "models.npz")
    np.testing.assert_array_equal(again["shared"], run.models["shared"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("model.kind=own_parts:Nest", r'has no Nest. Did you mean "Net"\?'),
        ("model.options={widht=3}", r'Did you mean "width"\?'),
        ('model.options={width="a"}', "wants int, got 'a'"),
        ("data.options={}", "rows needs it; give it in .data.options."),
        ("data.source=own_partz:rows", "cannot be imported"),
        ("model.kind=own_parts:rows", "rows has no such parameter"),
        ("method.name=own_parts:Net", "wanted a VerticalMethod or a HorizontalMethod"),
    ],
)
def test_wrong_names_and_options_are_refused(folder, change, complaint):
    with pytest.raises(SpecError, match=complaint):
        raydpzv.run(raydpzv.load("own.toml", [change]))


@pytest.mark.parametrize(
    ("call", "kind", "complaint"),
    [
        (lambda: raydpzv.horizontal(Pictures, (X, Y), lr2=1), SpecError, "lr2: unknown setting"),
        (
            lambda: raydpzv.horizontal(Pictures, (X, Y), method="dpzv"),
            SpecError,
            '"dpzv" is not horizontal',
        ),
        (lambda: raydpzv.horizontal(Pictures, (X, Y[:5]), updates=1), DataError, "pair them"),
        (
            lambda: raydpzv.vertical([words], [X, IDS], Y),
            SpecError,
            "one for each of 2 views, got 1",
        ),
        (lambda: raydpzv.vertical(words, [X, IDS], Y[:5]), DataError, "one label a record"),
        (
            lambda: raydpzv.horizontal(nn.Linear(3, 3), (X, Y), clients=4, updates=1),
            InputError,
            "forward call fails",
        ),
        (
            lambda: raydpzv.horizontal(lambda: nn.Flatten(), (X, Y), clients=4, updates=1),
            InputError,
            "no trained parameter",
        ),
    ],
)
def test_objects_that_do_not_fit_are_refused_before_the_run(call, kind, complaint):
    with pytest.raises(kind, match=complaint):
        raydpzv.run(call())


HIDDEN = """
import sys
from pathlib import Path
from raydpzv.experiment.rebuild import from_ledger
run, client = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
found = from_ledger(run, client=client)
print(found.verified, {name: x.tobytes().hex()[:64] for name, x in found.models.items()})
assert "own_parts" not in sys.modules
"""


def test_a_run_is_rebuilt_where_its_model_cannot_be_imported(folder, tmp_path):
    horizontal = raydpzv.run(raydpzv.load("own.toml"), out="rows")
    vertical = raydpzv.run(
        raydpzv.vertical(words, [IDS[:, :3], IDS[:, 3:]], Y, updates=12, batch=16, embedding=3),
        out="columns",
    )
    (folder / "own_parts.py").unlink()
    for run, client in ((horizontal, ()), (vertical, ("1",))):
        printed = said(Forked(["-c", HIDDEN, str(run.path.resolve()), *client]))
        name = f"client {client[0]}" if client else "shared"
        assert printed.startswith("True")
        assert run.models[name].tobytes().hex()[:64] in printed


def test_named_weights_come_from_any_update(tmp_path):
    scenario = raydpzv.vertical(
        words, [IDS[:, :3], IDS[:, 3:]], Y, updates=12, batch=16, embedding=3
    )
    run = raydpzv.run(scenario, out=tmp_path / "run")
    last, first = run.state_dict(1), run.state_dict(1, at=0)
    assert list(last) == ["0.weight", "1.weight", "1.bias"]
    flat = torch.cat([value.reshape(-1) for value in last.values()]).numpy()
    np.testing.assert_array_equal(flat, run.models["client 1"])
    assert any(not torch.equal(last[name], first[name]) for name in last)
    assert run.state_dict("server").keys() == {"0.weight", "0.bias", "2.weight", "2.bias"}
    for party, refused in (
        ((), "each party has a model; name one of 0 to 1, or server"),
        ((2,), "wanted a party from 0 to 1, got 2"),
        (("shop",), 'party: wanted the number of a client, got "shop"'),
    ):
        with pytest.raises(InputError, match=refused):
            run.state_dict(*party)


def test_a_run_resumes_with_its_own_model_alone(folder):
    def resumed():
        return ended(Forked([*PROGRAM, "resume", "run"]))

    whole = raydpzv.run(raydpzv.load("own.toml"))
    raydpzv.run(raydpzv.load("own.toml"), "run", **stop_after(2))
    (folder / "own_parts.py").write_text(PARTS.replace("nn.Tanh(), ", ""))
    status, _, complaint = resumed()
    assert status == 2, complaint
    assert "your own module own_parts changed since the run began" in complaint
    (folder / "own_parts.py").write_text(PARTS)
    assert resumed()[0] == 0
    again = np.load(folder / "run" / "models.npz")["shared"]
    np.testing.assert_array_equal(again, whole.models["shared"])


def test_the_verdict_names_a_method_of_the_users(folder):
    (folder / "own_dpzv.py").write_text("from raydpzv.methods.vertical.dpzv import DPZV as MINE\n")
    plain = planned_privacy(raydpzv.load("digits_private"))
    changes = ["method.name=own_dpzv:MINE", "privacy.trust=method"]
    own = planned_privacy(raydpzv.load("digits_private", changes))
    assert [claim.epsilon for claim in own.claims()] == [claim.epsilon for claim in plain.claims()]
    assert (
        "ε supposes, as you state, that your own method releases only what its descriptor says"
        in " ".join(own.verdict().caveats)
    )
    assert "your own method" not in " ".join(plain.verdict().caveats)
    with pytest.raises(
        SpecError, match=r"proves nothing here: your own method .*trust = \[.method.\]"
    ):
        planned_privacy(raydpzv.load("digits_private", changes[:1]))
    noisy = planned_privacy(raydpzv.load("digits_dpzv", [changes[0], "privacy.noise=system"]))
    assert 'privacy.trust = ["method"]' in " ".join(noisy.missing_premises())


def test_a_method_written_outside_the_program_gives_the_same_bits(folder, tmp_path):
    source = Path(raydpzv.__file__).parent / "methods" / "vertical" / "dpzv.py"
    (folder / "own_copy.py").write_text(source.read_text())
    changes = ["budget.updates=40", "privacy.noise=seeded"]
    plain = raydpzv.run(raydpzv.load("digits_dpzv", changes)).summary
    own = raydpzv.run(
        raydpzv.load("digits_dpzv", [*changes, "method.name=own_copy:DPZV"]), out=tmp_path / "run"
    )
    assert own.summary["digest"] == plain["digest"]
    assert rebuild(tmp_path / "run", client=0).verified


def test_test_views_are_matched_by_name():
    x = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)
    y = np.arange(20) % 2
    one, two = ({"a": x[:, :2], "b": x[:, 2:]}, y), ({"b": x[:, 2:], "a": x[:, :2]}, y)
    settings = {"updates": 3, "embedding": 2, "batch": 4}
    digests = {
        raydpzv.vertical("mlp", one[0], y, test=test, **settings).data.source.rpartition("-")[2]
        for test in (one, two)
    }
    assert len(digests) == 1
    with pytest.raises(SpecError, match="test: wanted a view of each of a, b, by name"):
        raydpzv.vertical("mlp", one[0], y, test=([x[:, :2], x[:, 2:]], y), **settings)


def test_shuffled_views_with_ids_learn_the_same_model():
    x = np.linspace(-1, 1, 160, dtype=np.float32).reshape(40, 4) % 0.7
    y, order, ids = np.arange(40) % 2, (Key(0) / "order").generator().permutation(40), np.arange(40)
    views, shuffled = {"a": x[:, :2], "b": x[:, 2:]}, {"a": x[:, :2], "b": x[order, 2:]}
    settings = {"updates": 4, "batch": 8, "embedding": 2}
    plain = raydpzv.run(raydpzv.vertical("linear", views, y, test=(views, y), **settings))
    joined = {
        "ids": {"a": ids, "b": ids[order]},
        "test": (shuffled, y, {"a": ids, "b": ids[order]}),
    }
    assert digests(
        raydpzv.run(raydpzv.vertical("linear", shuffled, y, **joined, **settings))
    ) == digests(plain)
    other = raydpzv.run(raydpzv.vertical("linear", shuffled, y, test=(views, y), **settings))
    assert digests(other) != digests(plain)


def test_options_of_a_model_of_the_program_are_refused():
    x, y = np.zeros((20, 4), np.float32), np.arange(20) % 2
    with pytest.raises(SpecError, match=r'model\.options: "logistic" is no model of your own'):
        raydpzv.run(
            raydpzv.horizontal("logistic", (x, y), clients=2, updates=1, model__options={"a": 1})
        )


def test_claims_name_what_they_suppose_of_own_code():
    x = np.linspace(-1, 1, 240, dtype=np.float32).reshape(60, 4)
    settings = {"data": {"split": "plain"}, "classes": ["0", "1"], "server": "joint"}
    small = {"updates": 3, "embedding": 2, "batch": 4} | settings
    proof, said = {"mode": "proved", "epsilon": 4.0, "clip": 1.0}, {}
    for how, model in {"own": lambda embedding: nn.Linear(2, embedding), "mlp": "mlp"}.items():
        stated = {"trust": "model"} if how == "own" else {}
        views = [x[:, :2], x[:, 2:]]
        scenario = raydpzv.vertical(
            model, views, np.arange(60) % 2, privacy=proof, **stated, **small
        )
        said[how] = raydpzv.run(scenario).summary["privacy_verdict"]
    assert "your own model was made without these records" in said["own"]
    assert "your own model" not in said["mlp"]
    assert all("ε is of the rows as you hand them over" in text for text in said.values())


def neighbours() -> list[np.ndarray]:
    rows = np.linspace(-1, 1, 240, dtype=np.float32).reshape(60, 4)
    other = rows.copy()
    other[7, 3] += 1
    return [rows, other]


def quiet(step: str, done: int, whole: int) -> None:
    pass


def proved(rows: np.ndarray) -> AnyScenario:
    """A private run whose model refers to the private rows."""
    return raydpzv.vertical(
        lambda embedding: nn.Linear(rows.shape[1] // 2, embedding),
        [rows[:, :2], rows[:, 2:]],
        np.arange(60) % 2,
        updates=3,
        embedding=2,
        batch=4,
        classes=[0, 1],
        server="joint",
        privacy={"mode": "proved", "epsilon": 4.0, "clip": 1.0, "trust": ["model"]},
        data={"split": "plain"},
    )


def test_published_settings_do_not_tell_neighbouring_tables_apart(tmp_path):
    scenarios, texts = [proved(rows) for rows in neighbours()], []
    for number, scenario in enumerate(scenarios):
        raydpzv.run(scenario, out=tmp_path / f"run{number}")
        out = tmp_path / f"public{number}"
        publish(tmp_path / f"run{number}", out, lambda folder: check_rebuilt(folder, quiet), quiet)
        texts.append((out / "scenario.toml").read_text().replace(scenario.data.source, "DATA"))
    assert texts[0] == texts[1]
    assert scenarios[0].model.bottoms != scenarios[1].model.bottoms, (
        "the control: handles of the run itself differ"
    )
    for rows, scenario in zip(neighbours(), scenarios, strict=True):
        assert hashlib.sha256(rows.tobytes()).hexdigest()[:8] not in scenario.data.source
        assert scenario.data.source.rpartition("-")[2].isdecimal()


def test_a_party_gets_no_rows_of_the_others():
    rows = np.linspace(-1, 1, 40_000, dtype=np.float32).reshape(1000, 40)
    scenario = raydpzv.vertical(
        "linear", [rows[:, :20], rows[:, 20:]], np.arange(1000) % 2, updates=1, batch=8
    )
    prepared = prepare(scenario)
    own = sum(
        array.nbytes for array in (prepared.clients[0].x_train, prepared.clients[0].x_held_out)
    )
    assert len(pickle.dumps(prepared.clients[0])) < 1.1 * own < rows.nbytes
    assert len(pickle.dumps(prepared.server)) < own


def test_owners_are_any_hashable_values_and_lists_are_none():
    spec = raydpzv.horizontal(
        "mlp", (X, Y), clients=[("a", 1), ("b", 1)] * 60, test=(X, Y), updates=1
    )
    assert spec.split.clients == 2
    with pytest.raises(DataError, match=r"clients: wanted .*the owner of each row"):
        raydpzv.horizontal("mlp", (X, Y), clients=[1, [2]] * 60, test=(X, Y), updates=1)


def test_owners_are_part_of_what_a_resumed_run_must_have():
    owners = np.arange(120) % 4
    prepared = [
        prepare(raydpzv.horizontal("mlp", (X, Y), clients=found, test=(X, Y), updates=1))
        for found in (owners, np.sort(owners))
    ]
    assert [found.spec.data.source.rpartition("-")[2].isdecimal() for found in prepared] == [
        True,
        True,
    ]
    digests = [found.fingerprint(b"key")["data_hmac_sha256"] for found in prepared]
    assert digests[0] != digests[1]
    assert digests[0] == prepared[0].fingerprint(b"key")["data_hmac_sha256"]


def test_an_owner_with_too_few_rows_is_named():
    owners = np.where(np.arange(120) < 118, 0, 1)
    with pytest.raises(SpecError, match="client 1 has 2 training rows, wanted at least 5"):
        prepare(
            raydpzv.horizontal(
                "mlp", (X, Y), clients=owners, test=(X, Y), updates=1, split={"least": 5}
            )
        )


WORDS = [words, words], [IDS[:, :3], IDS[:, 3:]], Y
SMALL = {"updates": 1, "embedding": 2, "batch": 8}


def test_rows_that_an_embedding_layer_reads_are_whole_numbers():
    part = prepare(raydpzv.vertical(*WORDS, **SMALL)).clients[0].x_train
    assert part.dtype == np.int64
    assert set(part.ravel()) <= set(IDS.ravel())
    rows = raydpzv.horizontal(lambda: words(3), (IDS, Y), clients=4, updates=1)
    assert set(prepare(rows).split.train.x.ravel()) <= set(IDS.ravel())


@pytest.mark.parametrize("scale", ["standard", "unit", "public"])
def test_scaling_of_whole_numbers_is_refused(scale):
    constants = {"data__centre": 1, "data__spread": 2} if scale == "public" else {}
    scenarios = (
        raydpzv.vertical(*WORDS, **SMALL, scale=scale, **constants),
        raydpzv.horizontal(
            lambda: words(3), (IDS, Y), clients=4, updates=1, scale=scale, **constants
        ),
    )
    for scenario in scenarios:
        with pytest.raises(SpecError, match=rf'data\.scale: wanted "none" .*got "{scale}"'):
            prepare(scenario)
