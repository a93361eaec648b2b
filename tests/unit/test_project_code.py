import importlib.util
import subprocess
import sys
import sysconfig
from functools import partial

import pytest
import torch

from raydpzv import foreign
from raydpzv.errors import SpecError
from raydpzv.foreign import handle, is_handed, resolve
from raydpzv.models.bottoms import mlp
from raydpzv.project_code import check_object, is_installed
from tests.helpers.programs import python

CANARY = "from pathlib import Path\nPath(__file__).with_name('canary').touch()\n"
MODULE = f"""{CANARY}
import os
import subprocess
from functools import lru_cache, partial

import numpy as np
import torch
from os import system
from torch import nn

class Net(nn.Linear):
    pass

class Loss:
    def __call__(self, scores, y):
        return scores

    def method(self):
        return 1

def made():
    return Net(1, 1)

@torch.no_grad()
def decorated():
    return 1

@lru_cache
def cached():
    return 1

part, module, loss = partial(made), nn.Sequential(nn.Linear(1, 1)), Loss()
method = loss.method
data, table, weights = (np.zeros(3), np.zeros(3)), {{"x": [1]}}, {{"w": torch.zeros(1)}}
wrapped, vectorised = partial(subprocess.getoutput, "true"), np.vectorize(made)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on Python's path; modules of it are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("named_"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("word", "whose"),
    [
        ("subprocess:getoutput", "Python's own"),
        ("os:system", "Python's own"),
        ("os.path:join", "Python's own"),
        ("builtins:exec", "Python's own"),
        ("sys:exit", "Python's own"),
        ("_posixsubprocess:fork_exec", "Python's own"),
        ("importlib.util:find_spec", "Python's own"),
        ("numpy:load", "an installed package"),
        ("torch.hub:load", "an installed package"),
        ("torch.nn:Linear", "an installed package"),
        ("pip:main", "an installed package"),
        ("raydpzv.files:write_atomically", "the program's"),
        ("raydpzv:run", "the program's"),
        ("raydpzv.models.initial_weights:read_weights", "the program's"),
        ("scenarios.cli:main", "the program's"),
        ("actors.cluster:connected", "the program's"),
        ("raydpzv.models.pretrained:_pretrained", "the program's"),
    ],
)
def test_what_is_not_of_the_project_is_refused(word, whose):
    with pytest.raises(
        SpecError, match=f"^model.kind: wanted an object of your own project.*{whose}"
    ):
        resolve(word, "model.kind")


@pytest.mark.parametrize("place", ["site-packages", "dist-packages"])
@pytest.mark.parametrize("word", ["named_pack:x", "named_pack.inner:x", "named_pack.deep.er:x"])
def test_nothing_installed_is_imported_to_find_that_out(folder, monkeypatch, place, word):
    for site in (folder / "lib" / place, folder / "own"):
        for name in ("", "deep"):
            (site / "named_pack" / name).mkdir(parents=True)
            (site / "named_pack" / name / "__init__.py").write_text(f"{CANARY}x = (1,)\n")
        for name in ("inner", "deep/er"):
            (site / "named_pack" / f"{name}.py").write_text(f"{CANARY}x = (1,)\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(folder / "lib" / place))
        with pytest.raises(SpecError, match="an installed package"):
            resolve(word, "model.kind")
        assert not [*folder.rglob("canary")]
    monkeypatch.syspath_prepend(str(folder / "own"))
    assert resolve(word, "data.source") == (1,)
    assert (folder / "own" / "named_pack" / "canary").exists(), "control: own sources are imported"


def test_a_package_without_a_file_counts_by_all_its_folders(folder, monkeypatch):
    for place in ("own", "site-packages"):
        (folder / place / "named_spread").mkdir(parents=True)
        (folder / place / "named_spread" / f"{place[:3]}.py").write_text("x = (1,)\n")
        monkeypatch.syspath_prepend(str(folder / place))
    with pytest.raises(SpecError, match="named_spread is an installed package"):
        resolve("named_spread.own:x", "data.source")


def test_a_link_to_an_installed_file_is_installed(folder):
    stdlib = sysconfig.get_path("stdlib")
    (folder / "named_link.py").symlink_to(f"{stdlib}/subprocess.py")
    with pytest.raises(SpecError, match="named_link is an installed package"):
        resolve("named_link:getoutput", "model.kind")


def test_a_link_to_another_project_is_own(folder):
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "real.py").write_text("x = (1,)\n")
    (folder / "named_linked.py").symlink_to(folder / "elsewhere" / "real.py")
    assert resolve("named_linked:x", "data.source") == (1,)


def test_the_sources_of_an_editable_installation_are_own(folder, monkeypatch):
    (folder / "src").mkdir()
    (folder / "src" / "named_editable.py").write_text("x = (1,)\n")

    class Finder:
        """As setuptools writes one into site-packages."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "named_editable":
                file = folder / "src" / "named_editable.py"
                return importlib.util.spec_from_file_location(name, file)
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert resolve("named_editable:x", "data.source") == (1,)


def test_a_project_inside_of_a_prefix_is_own():
    assert not is_installed("films", f"{sys.prefix}/src/app/films.py")
    assert is_installed("films", f"{sysconfig.get_path('purelib')}/films.py")
    assert is_installed("films", f"{sysconfig.get_path('stdlib')}/films.py")


OWN = ["Net", "made", "decorated", "cached", "part", "module", "loss", "method", "Loss.method"]
OWN += ["data", "table", "weights"]
OTHERS = ["system", "nn.Linear", "os.system", "subprocess.getoutput", "wrapped", "vectorised", "nn"]
OTHERS += ["np.load", "torch.hub.load", "Net.__subclasses__", "Net.__class__", "table.get", "os"]


@pytest.mark.parametrize("name", OWN)
def test_objects_of_the_project_are_resolved(folder, name):
    (folder / "named_parts.py").write_text(MODULE)
    resolve(f"named_parts:{name}", "model.kind")


@pytest.mark.parametrize("name", OTHERS)
def test_objects_that_the_project_only_imports_are_refused(folder, name):
    (folder / "named_parts.py").write_text(MODULE)
    with pytest.raises(SpecError, match=r"^model\.kind: "):
        resolve(f"named_parts:{name}", "model.kind")


def test_a_module_that_nobody_finds_is_said_so():
    with pytest.raises(SpecError, match=r"cannot be imported .ModuleNotFoundError"):
        resolve("named_nowhere.at.all:x", "model.kind")


def test_models_of_the_program_may_be_named():
    assert resolve("raydpzv.models.bottoms:mlp", "model.kind") is mlp
    with pytest.raises(SpecError, match=r"which is of raydpzv.errors"):
        resolve("raydpzv.models.pretrained:missing", "model.kind")
    with pytest.raises(SpecError, match="which is of pathlib"):
        resolve("raydpzv.models.pretrained:Path", "model.kind")


def test_an_object_that_was_handed_over_may_be_of_any_package():
    text = handle(torch.nn.Bilinear)
    assert text == "torch.nn.modules.linear:Bilinear"
    assert is_handed(text)
    assert resolve(text, "model.kind") is torch.nn.Bilinear
    foreign._HANDED.discard(text)
    with pytest.raises(SpecError, match="an installed package"):
        resolve(text, "model.kind")


def test_a_function_inside_of_others_is_looked_at():
    check_object(partial(partial(test_models_of_the_program_may_be_named)), "model.kind", "a:b")
    with pytest.raises(SpecError, match="which is of subprocess"):
        check_object(partial(partial(subprocess.getoutput)), "model.kind", "a:b")


@pytest.mark.parametrize("program", ["raydpzv", "scenarios"])
def test_the_program_itself_is_no_project(program, tmp_path):
    words = ("run", "digits_decomfl", "--set", 'model.kind="__main__:main"', "--out", "run")
    ended = python("-m", program, *words, cwd=tmp_path)
    assert ended.returncode == 2
    assert "wanted what is defined in your own project" in ended.stderr
