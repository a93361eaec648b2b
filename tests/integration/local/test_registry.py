"""What holds of every method, and of everything else that a scenario can name: no list here is kept
by hand.
"""

import dataclasses
import re
import sys
import types
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

import raydpzv
import scenarios
from raydpzv import registry
from raydpzv.compare.file import ComparisonFile, MethodEntry, resolved
from raydpzv.config.settings_reference import settings_page
from raydpzv.config.toml import as_toml
from raydpzv.data.sources import Source
from raydpzv.errors import SpecError
from raydpzv.experiment.prepare import prepare
from raydpzv.experiment.resuming import continued
from raydpzv.ledger.ledger import begin_ledger
from raydpzv.methods.descriptor import MethodConfig
from raydpzv.methods.horizontal.fedavg import FEDAVG
from raydpzv.methods.vertical.base import Batched
from raydpzv.methods.vertical.frozen import FROZEN
from raydpzv.registry import METHODS, Registry
from scenarios.cli import app
from tests.helpers.changed_settings import (
    CONTROL,
    FILES,
    fields_of_method,
    protects_users,
    scenario,
)
from tests.helpers.commands import stdout_of
from tests.helpers.loading import refusal
from tests.helpers.programs import python_said
from tests.helpers.runs import run_prepared
from tests.helpers.small_horizontal import stop_after

DOCS = Path(__file__).parents[3] / "docs"
every_method = pytest.mark.parametrize("name", METHODS)


def small(name, *overrides):
    return scenario(METHODS[name].kind, name, overrides)


@every_method
def test_its_roles_exchange_messages_of_the_size_they_promise(name):
    prepared = prepare(small(name))
    server, work = parties_of(prepared)
    orders, served = list(server.first_orders()), 0
    while orders and served < 8:
        order = orders.pop(0)
        upload = work(order)
        if order.upload_bytes is not None:
            assert upload.body.wire_bytes == order.upload_bytes
        orders += server.receive(upload)
        served += 1
    assert served == 8
    assert server.updates > 0


def parties_of(prepared):
    """The server, and what turns one order into its upload."""
    if prepared.spec.kind == "vertical":
        clients = [factory.make() for factory in prepared.clients]
        return prepared.server.make(), lambda order: clients[order.client].process(order)
    header = prepared.ledger_header()
    ledger = begin_ledger(None, header) if header else None
    group = prepared.client_group(ledger)
    return prepared.server(ledger), lambda order: group.process([order])[0]


@every_method
def test_a_stopped_run_continues_to_the_bits_of_a_whole_one(name, tmp_path):
    spec = small(name)
    whole = scenarios.run(spec).summary
    first = scenarios.run(spec, tmp_path / "run", **stop_after(3)).summary
    assert (first["status"], first["updates"]) == ("stopped", 3)
    prepared, folder, _ = continued(tmp_path / "run")
    last = run_prepared(prepared, folder).summary
    assert (last["status"], last["digest"], last["model_digest"]) == (
        "done",
        whole["digest"],
        whole["model_digest"],
    )
    assert last["method"] == name


@every_method
def test_its_privacy_is_stated(name):
    summary = scenarios.run(small(name)).summary
    config = METHODS[name].config()
    noised = METHODS[name].noise if METHODS[name].kind == "vertical" else METHODS[name].users
    adds_noise = noised(config) is not None
    assert bool(summary.get("epsilon")) == adds_noise
    assert summary["private"] is False
    assert "NOT PRIVATE" in summary["private_reason"]


@pytest.fixture(scope="module")
def listed():
    """The words of `raydpzv list`."""
    return stdout_of(CliRunner().invoke(app, ["list"], env={"COLUMNS": "300"})).split()


@pytest.fixture(scope="module")
def page():
    return settings_page()


@every_method
def test_it_is_in_every_list_and_page(name, listed, page):
    assert name in listed or f"{name}:" in listed
    assert METHODS.summary(name) == raydpzv.methods()[name] != ""
    section = page.split(f"## [method] name = {name!r}")[1].split("\n## ")[0]
    for key, _ in fields_of_method(name):
        row = next(
            line for line in section.splitlines() if line.startswith(f"| `{key.split('.')[1]}` |")
        )
        assert row.split(" | ")[-1].strip(" |"), key
    pages = "".join(path.read_text() for path in sorted((DOCS / "methods").glob("*.md")))
    assert f"`{name}`" in pages or (DOCS / "methods" / f"{name}.md").is_file(), (
        f"docs/methods says nothing of {name}"
    )
    assert page == (DOCS / "settings.md").read_text().rstrip("\n"), (
        "raydpzv list --settings > docs/settings.md"
    )


@every_method
def test_a_comparison_takes_it(name, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text(as_toml(small(name)))
    # an agent alone wants one client and a method of users wants users, which no other method's
    # file has
    particular = getattr(METHODS[name], "agent", False) or protects_users(name)
    base = str(own) if particular else FILES[METHODS[name].kind]
    entry = MethodEntry(label="this", set=(f"method.name={name}",))
    found = resolved(
        ComparisonFile(name="one", scenario=base, seeds=(0,), epsilons=("none",), methods=(entry,))
    )
    lines = [line for line in found.lines if line.label == "this"]
    assert [line.spec.method.name for line in lines] == [name]
    assert lines[0].control == METHODS[name].control


@pytest.mark.parametrize(
    ("of", "is_right"),
    [
        (
            registry.DATA_SOURCES,
            lambda entry: isinstance(entry, Source) and entry.about and callable(entry.read),
        ),
        (registry.VERTICAL_SPLITS, callable),
        (registry.HORIZONTAL_SPLITS, callable),
        (registry.BOTTOMS, callable),
        (registry.HEADS, callable),
        (registry.WHOLE_MODELS, callable),
        (registry.LOSSES, lambda entry: callable(entry.at_points)),
        (registry.RUNNERS, callable),
        (registry.PREPARERS, callable),
    ],
    ids=lambda of: of.kind if isinstance(of, Registry) else "",
)
def test_every_other_entry_is_there_and_of_its_kind(of, is_right):
    assert len(of) > 0
    for name in of:
        if of.module_of(name).startswith("actors"):
            pytest.importorskip("ray")
        assert is_right(of[name]), f"{of.kind} {name}"


@dataclasses.dataclass(frozen=True)
class Right(Batched):
    """A method of this test."""

    name: Literal["tried"] = "tried"
    """The method."""
    server: Literal["sgd"] = "sgd"
    """How the head learns."""


@dataclasses.dataclass(frozen=True)
class NoDefault(Batched):
    """A setting without a default."""

    name: Literal["tried"] = "tried"
    """The method."""
    more: float = dataclasses.field(kw_only=True)
    """No default."""


@dataclasses.dataclass(frozen=True)
class NoLine(Batched):
    """A setting without a docstring."""

    name: Literal["tried"] = "tried"
    """The method."""
    more: float = 1.0


@dataclasses.dataclass(frozen=True)
class Undescribed(Batched):
    name: Literal["tried"] = "tried"
    """The method."""


@dataclasses.dataclass(frozen=True)
class NoBatch(MethodConfig):
    """A vertical method that says nothing of batches."""

    name: Literal["tried"] = "tried"
    """The method."""


class Plain(MethodConfig):
    """No dataclass."""


def changed(**changes):
    return dataclasses.replace(FROZEN, **changes)


WRONG = {
    "a function": (lambda: None, "wanted a VerticalMethod or a HorizontalMethod"),
    "a config": (Right, "wanted a VerticalMethod or a HorizontalMethod"),
    "no dataclass": (
        changed(config=Plain),
        "config: wanted a frozen dataclass that extends MethodConfig, got Plain",
    ),
    "another name": (
        FROZEN,
        "FrozenConfig.name: wanted the registry's name 'tried' as default, got 'frozen'",
    ),
    "no default": (changed(config=NoDefault), "NoDefault.more: wanted a default"),
    "no docstring": (changed(config=NoLine), "NoLine.more: wanted a docstring under the field"),
    "no description": (
        changed(config=Undescribed),
        "config: wanted a docstring, Undescribed has none",
    ),
    "no batch": (changed(config=NoBatch), "wanted a setting batch"),
    "no client": (changed(config=Right, client=None), "client: wanted a function, got None"),
    "no server": (
        changed(config=Right, server="server"),
        "server: wanted a function, got 'server'",
    ),
    "no barrier": (changed(config=Right, barrier=1), "barrier: wanted a function, got 1"),
    "no clients": (
        dataclasses.replace(FEDAVG, config=Right, clients=None),
        "clients: wanted a function, got None",
    ),
}


@pytest.fixture
def tried(monkeypatch):
    """A registry's entry "tried" that is whatever is put there."""
    module = types.ModuleType("tried_methods")
    monkeypatch.setitem(sys.modules, "tried_methods", module)
    METHODS.add("tried", "tried_methods:TRIED")
    yield module
    METHODS.remove("tried")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_descriptor_is_refused_in_words(tried, wrong):
    tried.TRIED, said = WRONG[wrong]
    with refusal(SpecError, r'\Amethod "tried": ', re.escape(said)):
        _ = METHODS["tried"]
    with pytest.raises(SpecError, match='method "tried": '):
        scenarios.load("frozen", ["method.name=tried"])


def test_a_right_descriptor_is_found_and_runs(tried):
    tried.TRIED = changed(config=Right)
    assert METHODS["tried"] is tried.TRIED
    spec = scenarios.load("frozen", ["method.name=tried", *CONTROL, "budget.updates=4"])
    assert scenarios.run(spec).summary["updates"] == 4


def test_the_public_door_is_what_it_says():
    names = (
        "Callback Run audit check compare export features horizontal load methods privacy report "
        "resume run trust_code tune vertical"
    )
    assert sorted(raydpzv.__all__) == sorted([*names.split(), "__version__"])
    assert all(getattr(raydpzv, name) is not None for name in raydpzv.__all__)
    assert all(
        callable(getattr(raydpzv, name)) for name in raydpzv.__all__ if not name.startswith("_")
    )
    spec = raydpzv.load("frozen", ["budget.updates=4", "evaluate.every=4"])
    assert isinstance(raydpzv.run(spec), raydpzv.Run)
    assert list(raydpzv.methods()) == list(METHODS)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raydpzv.nothing


def test_the_public_door_imports_neither_torch_nor_numpy():
    code = (
        "import sys, raydpzv\nprint([m for m in ('torch', 'numpy', 'ray', 'pydantic', 'pyarrow') "
        "if m in sys.modules], raydpzv.__version__)"
    )
    assert python_said("-c", code).split() == ["[]", raydpzv.__version__]
