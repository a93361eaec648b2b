import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

import scenarios
from actors import actor_process
from actors.actor_process import end, start_here
from actors.horizontal.client_group_actor import ClientGroupActor
from actors.horizontal.server_actor import HorizontalServerActor
from actors.ledger_actor import LedgerActor
from actors.vertical.client_actor import ClientActor
from actors.vertical.server_actor import VerticalServerActor
from raydpzv.experiment.horizontal import prepare_horizontal
from raydpzv.experiment.vertical import prepare_vertical

ROOT = Path(__file__).parents[3]
HEAVY = ("scipy", "matplotlib", "pandas", "dp_accounting", "sklearn", "numba", "jinja2")
BEFORE_IT_WORKS = """
import importlib, json, os, pickle, sys
from actors.actor_process import ActorProcess
for actor, module, forbidden, arguments in json.loads(sys.argv[1]):
    if os.fork():
        assert os.wait()[1] == 0
        continue
    holder = ActorProcess()
    with open(arguments, "rb") as file:
        arguments = pickle.load(file)
    importlib.import_module(module)
    print(actor, [name for name in forbidden if name in sys.modules], flush=True)
    os._exit(0)
"""
"""An actor's steps before its object is made, in a process for each: unpickle the arguments, import
the class.
"""
FORBIDDEN = {
    ClientActor: (*HEAVY, "torch", "pyarrow.parquet"),
    VerticalServerActor: (*HEAVY, "torch"),
    LedgerActor: (*HEAVY, "torch", "pydantic"),
    ClientGroupActor: (*HEAVY, "torch", "pyarrow.lib"),
    HorizontalServerActor: (*HEAVY, "torch"),
}


def test_an_actor_imports_what_its_role_needs_alone(tmp_path):
    experiment = prepare_vertical(scenarios.load("digits_dpzv"))
    horizontal = prepare_horizontal(scenarios.load("digits_decomfl"))
    made_of = {
        ClientActor: experiment.clients,
        VerticalServerActor: experiment,
        ClientGroupActor: horizontal,
        HorizontalServerActor: horizontal,
    }
    todo = []
    for actor, forbidden in FORBIDDEN.items():
        path = tmp_path / actor.__name__
        path.write_bytes(ray.cloudpickle.dumps(made_of.get(actor)))
        todo.append((actor.__name__, actor.__module__, forbidden, str(path)))
    ended = subprocess.run(
        [sys.executable, "-c", BEFORE_IT_WORKS, json.dumps(todo)],
        capture_output=True, text=True, cwd=ROOT, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{actor.__name__} []" for actor in FORBIDDEN]


class Told:
    """Says which process it is in, and what it was told; one that is told nothing cannot be
    made.
    """

    CONTROL = ("pid",)

    def __init__(self, word):
        if not word:
            raise ValueError("told nothing")
        self._word, self._extra = word, []

    def pid(self):
        return os.getpid()

    def word(self):
        self._extra.append(self._word)
        return self._extra

    def arrow(self, look):
        loaded = "pyarrow.lib" in sys.modules
        if look:
            import pyarrow

            return loaded, pyarrow.table({"a": [1]}).num_rows
        return loaded, 0


def told(word):
    groups = {"ctl": Told.CONTROL}
    actor = actor_process._on_node(
        Told, groups, {"ctl": 1}, ray.get_runtime_context().get_node_id()
    )
    return actor, actor.make.remote(Told, word)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
class TestReuse:
    def test_a_process_goes_to_the_next_run_without_its_object(self):
        first, _ = told("one")
        pid = ray.get(first.pid.remote())
        assert ray.get(first.word.remote()) == ["one"]
        end([first], well=True)
        second, _ = told("two")
        assert ray.get(second.pid.remote()) == pid
        assert ray.get(second.word.remote()) == ["two"]
        third, _ = told("three")  # the process is in use
        assert ray.get(third.pid.remote()) != pid
        end([second, third])

    def test_a_process_of_a_failed_run_is_not_reused(self):
        first, _ = told("one")
        pid = ray.get(first.pid.remote())
        end([first])
        second, _ = told("two")
        assert ray.get(second.pid.remote()) != pid
        end([second])

    @pytest.mark.parametrize("idle", [False, True], ids=["in its run", "idle"])
    def test_a_killed_process_is_not_reused(self, idle):
        first, _ = told("one")
        pid = ray.get(first.pid.remote())
        if idle:
            end([first], well=True)
            os.kill(pid, 9)
        else:
            os.kill(pid, 9)
            end([first], well=True)
        second, _ = told("two")
        assert ray.get(second.pid.remote()) != pid
        end([second])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
class TestProcess:
    def test_unpickling_loads_no_arrow_before_it_is_used(self):
        actor, made = told("word")
        ray.get(made)
        assert ray.get(actor.arrow.remote(False)) == (False, 0)
        assert ray.get(actor.arrow.remote(True))[1] == 1
        assert ray.get(actor.arrow.remote(False))[0]
        end([actor])

    def test_every_caller_gets_the_error_of_an_object_that_cannot_be_made(self):
        actor, made = told("")
        for call in (made, actor.word.remote(), actor.arrow.remote(False)):
            with pytest.raises(ValueError, match="told nothing"):
                ray.get(call)
        end([actor])

    def test_without_a_session_no_process_is_kept(self, monkeypatch):
        monkeypatch.setattr(actor_process, "_kept", None)
        actor, made = start_here(LedgerActor, {"ctl": LedgerActor.CONTROL}, {"ctl": 1})
        ray.get(made)
        end([actor], well=True)

        def answer_until_killed():
            for _ in range(300):  # a kill is on its way while calls are still answered
                ray.get(actor.ready.remote(), timeout=30)
                time.sleep(0.1)

        with pytest.raises(ray.exceptions.RayActorError):
            answer_until_killed()
