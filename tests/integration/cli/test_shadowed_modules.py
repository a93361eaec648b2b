import subprocess
from pathlib import Path

import pytest

from tests.helpers.programs import ROOT, python

OURS = [str(ROOT / "actors/remote.py"), str(ROOT / "scenarios/screen.py")]
FOREIGN = 'raise RuntimeError("a module of the user\'s own was imported")\n'
IMPORTS_OURS = """
from raydpzv.package_check import import_module
print(import_module("actors.remote").__file__)
print(import_module("scenarios.screen").__file__)
"""
IMPORTS_HERS_FIRST = """
import actors
from raydpzv.errors import InputError
from raydpzv.registry import RUNNERS
try:
    RUNNERS["ray"]
except InputError as error:
    print(error)
"""
ASKS_A_WORKER = """
from raydpzv.package_check import import_module
with import_module("actors.cluster").connected("local", num_cpus=1, num_gpus=0):
    import ray

    @ray.remote
    def ours():
        import actors.remote
        return actors.remote.__file__

    print(ray.get(ours.remote()))
"""


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python(*arguments, cwd=folder, PYTHONPATH=str(ROOT))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a user's modules of our names."""
    (tmp_path / "actors.py").write_text(FOREIGN)
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "__init__.py").write_text(FOREIGN)
    return tmp_path


def test_a_script_beside_modules_of_our_names_gets_ours(folder):
    (folder / "script.py").write_text(IMPORTS_OURS)
    result = call(folder, "script.py")
    assert result.stdout.split() == OURS, result.stderr


def test_a_module_that_was_imported_before_is_named(folder):
    (folder / "actors.py").write_text("")
    (folder / "script.py").write_text(IMPORTS_HERS_FIRST)
    result = call(folder, "script.py")
    assert f"got {folder / 'actors.py'}, imported before" in result.stdout, result.stderr
    assert "rename" in result.stdout


@pytest.mark.parametrize("package", [True, False])
def test_the_command_works_from_a_folder_with_modules_of_our_names(folder, package):
    if not package:
        (folder / "scenarios" / "__init__.py").unlink()
    result = call(folder, "-m", "raydpzv", "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("raydpzv ")


def test_a_folder_of_scenarios_that_is_no_package_is_no_obstacle(tmp_path):
    (tmp_path / "scenarios").mkdir()
    result = call(tmp_path, "-m", "scenarios", "--version")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.ray
def test_a_worker_of_ray_started_in_such_a_folder_gets_ours(folder):
    (folder / "script.py").write_text(ASKS_A_WORKER)
    result = call(folder, "script.py")
    assert result.stdout.split() == OURS[:1], result.stderr


def test_a_cluster_whose_processes_would_import_it_is_refused(folder):
    code = """
import sys, types
sys.modules["ray"] = types.SimpleNamespace(is_initialized=lambda: True)
from raydpzv.package_check import import_module
from raydpzv.errors import InputError
try:
    with import_module("actors.cluster").connected():
        raise AssertionError("connected")
except InputError as error:
    print(error)
"""
    result = call(folder, "-c", code)
    assert f"got {folder / 'actors.py'}" in result.stdout, result.stderr
    assert "rename that file or folder" in result.stdout
