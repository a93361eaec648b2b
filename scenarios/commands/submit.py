"""`raydpzv submit`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

from typer import Argument, Option

from raydpzv.errors import SpecError
from raydpzv.interrupts import leaving_at_once
from scenarios.option_groups import JobOptions, SettingChanges
from scenarios.options import Explain, Log, Quiet, Storage, Verbose, scenario_names


@dataclass(frozen=True)
class ManifestOptions:
    """A RayJob of Kubernetes: what to print, and the fields of `actors.kuberay.RayJobOptions`."""

    kuberay: bool = False
    """Print the manifest of a RayJob (KubeRay) instead of submitting a job."""
    image: str | None = None
    """With --kuberay: image of the pods, with Ray and raydpzv."""
    claim: str | None = None
    """With --kuberay: persistent volume claim for the run folder; optional with --storage."""
    name: str | None = None
    """With --kuberay: name of the job and its run folder [default: SCENARIO-SEED]."""
    workers: Annotated[int | None, Option(min=1)] = None
    """With --kuberay: pods that share the actors [default: 1]."""
    cpus: Annotated[int | None, Option(min=1)] = None
    """With --kuberay: CPUs for "auto" shares [default: one for each actor]."""
    memory: Annotated[int | None, Option(min=4)] = None
    """With --kuberay: GiB of each pod [default: from the plan, which reads the data]."""
    retries: Annotated[int | None, Option(min=0)] = None
    """With --kuberay: retries of a failed job [default: 3, or 0 if it cannot resume]."""
    keep: Annotated[int | None, Option(min=0)] = None
    """With --kuberay: seconds until the pods are removed [default: 600]."""
    deadline: Annotated[int | None, Option(min=1)] = None
    """With --kuberay: seconds per attempt [default: no limit]."""
    no_token: bool = False
    """With --kuberay: open the cluster's ports to everybody."""
    suspend: bool = False
    """With --kuberay: let a queue start the job."""
    queue: str | None = None
    """With --kuberay: the queue (Kueue) that starts the job."""
    ray_version: str | None = None
    """With --kuberay: Ray's version in the image [default: the one here]."""

    def given(self) -> dict[str, Any]:
        """Return the fields of `RayJobOptions` that were typed."""
        renamed = {"ray_version": "ray", "no_token": "token"}
        typed = {name: value for name, value in _typed(self) if name != "kuberay"}
        return {renamed.get(name, name): name != "no_token" and value for name, value in typed.items()}


@dataclass(frozen=True)
class JobOutput:
    """What the job prints: no progress, notes too, tracebacks."""

    quiet: Quiet = False
    explain: Explain = False
    verbose: Verbose = False

    @property
    def flags(self) -> list[str]:
        """The options for the job's command line."""
        return [f"--{name}" for name, _ in _typed(self)]


def submit(
    changes: SettingChanges,
    job: JobOptions,
    manifest: ManifestOptions,
    output: JobOutput,
    scenario: Annotated[
        str | None,
        Argument(
            help="A scenario, by name (see `raydpzv list`) or as a TOML file in the packed folder.",
            autocompletion=scenario_names,
        ),
    ] = None,
    storage: Storage = None,
    log: Log = None,
) -> None:
    """Run a scenario as a job of a Ray cluster: submit, show its log, download its run folder, exit with its status."""
    if manifest.kuberay:
        _refuse_typed(job, "with a cluster that is there, not with --kuberay; leave it out", "project")
        if scenario is None:
            raise SpecError("submit: wanted a SCENARIO to run, got none; give one")
        with leaving_at_once():
            from scenarios.kuberay_command import show
        show(scenario, changes.settings, manifest.given(), log, output.flags, storage)
        return
    _refuse_typed(manifest, "with --kuberay; give both, or leave it out")
    with leaving_at_once():
        from scenarios.submit_command import Submission, rejoin
        from scenarios.submit_command import submit as send
    if (scenario is None) == (job.job is None):
        raise SpecError(
            "submit: wanted a SCENARIO to run, or --job ID of one submitted before; give one of them"
        )
    if job.stop and job.job is None:
        raise SpecError("--stop: goes with --job ID, the job to stop; give both")
    if storage is not None and job.job is not None:
        raise SpecError("--storage: is what a job is submitted with, not --job; leave it out")
    if scenario is None:
        rejoin(job)
    else:
        send(Submission(scenario, changes.settings, log, output.flags, storage), job)


def _typed(options: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each option that differs from its default."""
    for field in fields(options):
        if (value := getattr(options, field.name)) != field.default:
            yield field.name, value


def _refuse_typed(options: Any, why: str, *but: str) -> None:
    for name, _ in _typed(options):
        if name not in but:
            raise SpecError(f"--{name.replace('_', '-')}: goes {why}")
