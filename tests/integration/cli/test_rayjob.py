"""The RayJob of cluster.md, held against KubeRay's own schema and the rules that its operator adds."""

import copy
import re
import shlex

import pytest
import yaml

from tests.helpers.commands import call, stdout_of
from tests.helpers.rayjob_schema import errors
from tests.test_budgets import ROOT


@pytest.fixture(scope="module")
def job():
    page = (ROOT / "docs" / "cluster.md").read_text()
    (block,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page)
    return yaml.safe_load(block)


def test_it_has_kuberays_fields_and_keeps_the_operators_rules(job):
    assert errors(job) == []
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", job["metadata"]["name"])
    spec = job["spec"]
    assert spec["shutdownAfterJobFinishes"] or not spec["ttlSecondsAfterFinished"]
    cluster = spec["rayClusterSpec"]
    version = tuple(map(int, cluster["rayVersion"].split(".")))
    assert cluster["authOptions"]["mode"] == "disabled" or version >= (2, 52, 0)
    groups = cluster["workerGroupSpecs"]
    assert len({group["groupName"] for group in groups}) == len(groups)
    for group in (cluster["headGroupSpec"], *groups):
        assert len(group["template"]["spec"]["containers"]) == 1


def test_its_ray_is_the_one_that_was_tested(job):
    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().split()


def test_its_run_is_on_the_claim_and_the_same_words_run_here(job, tmp_path):
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    (mount,) = head["containers"][0]["volumeMounts"]
    (volume,) = head["volumes"]
    assert mount["name"] == volume["name"]
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "raydpzv"]
    out = words.index("--out") + 1
    assert words[out].startswith(f"{mount['mountPath']}/")
    words[out] = tmp_path / "run"
    few = ("--runner", "local", "--quiet", "--set", "budget.updates=2")
    for _ in range(2):  # a retry shows the finished run
        stdout_of(call(*words[3:], *few))


WRONG = {
    ("spec", "backofLimit"): 3,
    ("spec", "backoffLimit"): "3",
    ("spec", "rayClusterSpec", "authOptions", "mode"): "secret",
    ("spec", "rayClusterSpec", "headGroupSpec", "templates"): {},
    ("spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"): 1,
    ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "replica"): 1,
    ("spec", "rayClusterSpec", "workerGroupSpecs", 0, "groupName"): None,
}


@pytest.mark.parametrize("path", WRONG, ids=lambda path: ".".join(map(str, path)))
def test_the_schema_refuses_what_kuberay_would_not_know(job, path):
    wrong = copy.deepcopy(job)
    at = wrong
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = WRONG[path]
    assert errors(wrong)
