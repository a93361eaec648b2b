import json
import os
import subprocess
import sys

import pytest
import ray

from tests.helpers.programs import ROOT

pytestmark = pytest.mark.ray

OBJECTS = """
import numpy as np
from torch import nn
import raydpzv

x = np.linspace(-1, 1, 60 * 8, dtype="float32").reshape(60, 8)

class Net(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Linear(8, outputs))

few = {"clients": 3, "lr": 0.1, "resources": {"hosts": 1}}
scenario = raydpzv.horizontal(Net, (x, np.arange(60) % 3), updates=8, **few)
"""
RUNS = """
if __name__ == "__main__":
    for runner in ("local", "ray"):
        print(raydpzv.run(scenario, runner=runner).summary["digest"])
"""
SHARED = """
import logging
import ray
from ray._private.state import actors

session = ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
"""
CELL = """
print(raydpzv.run(scenario, runner="ray").summary["digest"])
"""
INTERRUPTED = """
import os, signal, time
from pathlib import Path

class Press(raydpzv.Callback):
    interval = 0.0

    def status(self, status):
        if pressed:  # the actors have been told
            gate.touch()
        elif status.updates >= 2:
            pressed.append(signal.raise_signal(signal.SIGINT))

pressed, folder, gate, calls = [], "interrupted", Path("gate").absolute(), []

def share(scores, y):
    calls.append(os.getpid())
    while calls.count(os.getpid()) == 2 and not gate.exists():  # in the midst of the run
        time.sleep(0.01)
    return {"share": float((scores.argmax(1) == y).mean())}

long = raydpzv.horizontal(Net, (x, np.arange(60) % 3), updates=9, every=3, metrics=share, **few)
try:
    raydpzv.run(long, folder, runner="ray", callbacks=[Press()])
except KeyboardInterrupt as error:
    print(error)
print(raydpzv.resume(folder, runner="local").summary["digest"] == raydpzv.run(long).summary["digest"])
"""
COUNT = """
[one["State"] for one in actors().values() if one["State"] != "DEAD"], len(actors()) > 0
"""


def printed(arguments, folder, program=None, **environment):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        input=program,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def cells(folder, *sources):
    """Run these cells in one process; return the texts that each shows."""
    notebook = {"cells": [{"cell_type": "code", "source": source} for source in sources]}
    (folder / "own.ipynb").write_text(json.dumps(notebook))
    run = [str(ROOT / "tests" / "helpers" / "notebooks.py"), "own.ipynb"]
    shown = json.loads(printed(run, folder)[-2])
    return ["".join(one.get("text") or one["data"]["text/plain"]) for cell in shown for one in cell]


def test_a_script_and_standard_input_have_the_same_bits_here_and_on_actors(ray_session, tmp_path):
    """In the tests' Ray, which they need not start."""
    there = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    (tmp_path / "own.py").write_text(OBJECTS + RUNS)
    script = printed(["own.py"], tmp_path, **there)
    typed = printed(["-"], tmp_path, OBJECTS + RUNS, **there)
    assert script == typed
    assert script[0] == script[1]
    assert len(script[0]) == 64


@pytest.mark.timeout(600)
def test_a_cell_that_runs_twice_or_is_interrupted_leaves_no_actor(tmp_path):
    local = OBJECTS + 'print(raydpzv.run(scenario).summary["digest"])'
    first, second, third, stopped, left = cells(
        tmp_path, local, SHARED, CELL, CELL, INTERRUPTED, COUNT
    )
    assert first == second == third
    assert "stopped; continue with raydpzv.resume('interrupted')" in stopped
    assert stopped.split()[-1] == "True", "the resumed run has the bits of an undisturbed one"
    assert left == "([], True)", "actors were there, and all have ended"
