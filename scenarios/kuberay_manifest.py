"""`raydpzv submit SCENARIO --kuberay`: the manifest of a run as a RayJob of Kubernetes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import raydpzv
from actors.kuberay import LONGEST_NAME, POD, RUNS, SCENARIO, RayJobOptions, cluster_plan, manifest
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import SpecError, missing
from raydpzv.experiment.prepare import prepare
from raydpzv.storage.filesystem import check_uri
from scenarios import screen
from scenarios.command_options import SubmitCommand
from scenarios.options import chosen_logs

_QUOTES_SINCE = (2, 60)
"""A Ray whose `ray job submit` quotes words for the shell that reads them
(ray-project/ray#63797).
"""
_SHELLS = re.compile(r"[$`;&|<>()*?]")
"""What a shell reads as something else, also within double quotes or in words that look unhurt."""
_NEEDED = {
    "image": "--image: wanted the image of the pods, which has Ray and raydpzv; give one",
    "claim": (
        "--claim: wanted a persistent volume claim for the run folder, which a pod that is lost "
        "takes along otherwise; give its name, or --storage"
    ),
}


def show(scenario: str, options: SubmitCommand) -> None:
    """Print the manifest of a scenario with changed settings."""
    try:
        import yaml
    except ImportError:
        raise missing("PyYAML", "ray") from None
    chosen_logs(options.log)
    spec = raydpzv.load(scenario, options.changes)
    job = _ray_job(options, _name(scenario, spec.seed), spec)
    path = Path(scenario)
    own = path.read_text() if path.suffix == ".toml" or path.exists() else None
    data = locations(as_tree(spec))
    for location in data:
        setting, _, quoted = location.partition("=")
        screen.complain(f"note: {setting}: the image, or the claim, must have {json.loads(quoted)}")
    prepared = None if job.memory else prepare(spec)
    words = options.run_words(scenario if own is None else SCENARIO, data)
    words += ["--out", f"{RUNS if job.claim else POD}/{job.name}"]
    check_words(words, job.ray)
    entrypoint = shlex.join(words)
    documents = manifest(cluster_plan(spec, job, prepared), job, entrypoint, own, prepared)
    print(yaml.safe_dump_all(documents, sort_keys=False, width=1000, allow_unicode=True), end="")


def _ray_job(options: SubmitCommand, name: str, spec: AnyScenario) -> RayJobOptions:
    """Return what the manifest needs; a claim is optional with a storage. Raises InputError,
    SpecError.
    """
    given, storage = _given(options), options.storage
    if storage is not None:
        check_uri(storage)
    for needed, line in _NEEDED.items():
        if needed not in given and not (needed == "claim" and storage is not None):
            raise SpecError(line)
    job = RayJobOptions(**({"name": name, "ray": _ray()} | given))
    alone = storage is not None and "claim" not in given
    if alone and urlsplit(storage).scheme == "file":
        raise SpecError(
            f"--storage {storage}: lies on the disk of a pod, which goes with it, where no --claim "
            "is mounted; give one, or the URI of a storage elsewhere"
        )
    if "retries" not in given and not _can_resume(spec, from_storage_alone=alone):
        job = replace(job, retries=0)
    job.check()
    return job


def _can_resume(spec: AnyScenario, *, from_storage_alone: bool) -> bool:
    """Return whether an attempt after the first could resume the run."""
    privacy = spec.privacy if spec.privacy is not None and spec.privacy.mode != "none" else None
    if from_storage_alone and privacy is not None and privacy.noise == "system":
        return False  # a lost run with fresh noise does not resume from a storage
    return not spec.no_segment


def _given(options: SubmitCommand) -> dict[str, Any]:
    """Return the fields of `RayJobOptions` that were typed."""
    names = {field.name: field.name for field in fields(RayJobOptions)} | {"ray_version": "ray"}
    found = {names[name]: value for name, value in options.typed() if name in names}
    return found | ({"token": False} if options.no_token else {})


def check_words(words: Sequence[str], ray: str) -> None:
    """Raise SpecError for a word that this Ray's `ray job submit`, by which KubeRay submits, does
    not hand on as it is.

    It is given words, and gives the cluster's shell a line: up to 2.59 one as Windows reads it.
    """
    if tuple(int(part) for part in re.findall(r"\d+", ray)[:2]) >= _QUOTES_SINCE:
        return
    for word in words:
        try:
            kept = shlex.split(subprocess.list2cmdline([word])) == [word]
        except ValueError:
            kept = False
        if not kept or _SHELLS.search(word):
            raise SpecError(
                f"{word}: the `ray job submit` of Ray {ray} hands this to a shell as it stands, "
                "which reads it as something else; put the setting into the scenario's file (data: "
                f"another path), or take an image with Ray {'.'.join(map(str, _QUOTES_SINCE))} and "
                "say so by --ray-version"
            )


def _name(scenario: str, seed: int) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", Path(scenario).stem.lower()).strip("-")
    begun = words if words[:1].isalpha() else f"run-{words}".strip("-")
    return f"{begun[: LONGEST_NAME - 1 - len(str(seed))].strip('-')}-{seed}"


def _ray() -> str:
    try:
        return metadata.version("ray")
    except metadata.PackageNotFoundError:
        raise SpecError(
            "--ray-version: wanted the version of Ray in the image, since none is installed here"
        ) from None
