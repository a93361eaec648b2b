"""`raydpzv submit`: a run as a job of a cluster, its log as it comes, its run folder brought back."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import typer

import raydpzv
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError, RaydpzvError, RunError, SpecError, missing
from raydpzv.storage.filesystem import check_uri
from scenarios import screen
from scenarios.exit_codes import STOPPED
from scenarios.options import chosen_logs, output_folder

if TYPE_CHECKING:
    from actors.job_server import JobEnd, JobServer
    from actors.project_package import Project

_FOLDER, _NAME = "raydpzv_folder", "raydpzv_name"
"""What a job's metadata say: where its run folder is on the cluster, and what a folder here is called after."""
_HOME = "~/"
_MIB = 2**20
_REFUSED = 2
"""Status of a job that was refused: what is at its place is another run's."""


@dataclass(frozen=True)
class Where:
    """The cluster's address; the folder of the run there, and here; whether it is brought here at all."""

    address: str | None
    there: str | None
    out: Path | None
    fetch: bool = True


@dataclass(frozen=True)
class Submission:
    """What is to run: a scenario and its changes, the project around it, and options that go to the run as they are.

    storage: URI that the run's folder is brought to as it grows.
    """

    scenario: str
    changes: Sequence[str]
    project: Path
    log: str | None
    flags: Sequence[str]
    storage: str | None = None


def submit(request: Submission, where: Where, *, wait: bool) -> None:
    """Submit a run; follow it to its end and bring its folder here, unless nobody waits."""
    chosen_logs(request.log)
    if request.storage is not None:
        check_uri(request.storage)
    spec = raydpzv.load(request.scenario, request.changes)
    if where.there is not None:
        _check_lasting(where.there)
    job = f"raydpzv_{secrets.token_hex(8)}"
    there = where.there or f"{_HOME}raydpzv/{job}"
    name = f"{Path(request.scenario).stem}-seed{spec.seed}"
    place = _place(where, name)
    server = _server(where.address)
    from actors.project_package import pack, project

    what = project(request.project)
    scenario = _scenario_there(request.scenario, what)
    entrypoint = _entrypoint(request, scenario, [*request.changes, *_data_there(spec, what)], there)
    if what.withheld:
        screen.complain(f"note: {what.withheld}")
    for difference in server.differences():
        screen.complain(f"note: {difference}; the run is made with the cluster's")
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "project.zip"
        pack(what, archive, server.upload_limit)
        size = archive.stat().st_size
        server.submit(job, entrypoint, archive, {_FOLDER: there, _NAME: name})
    screen.complain(
        f"job {job} at {server.address}: {len(what.files)} files, {size / _MIB:.1f} MiB; its run folder there: {there}"
    )
    if not wait:
        _say_how_to_come_back(job, server, where)
        return
    _follow(server, job, there, place, where)


def rejoin(job: str, where: Where, *, stop: bool) -> None:
    """Follow a job that was submitted before, or stop it; bring its folder here once it has ended."""
    server = _server(where.address)
    metadata = server.metadata(job)
    if _FOLDER not in metadata:
        raise InputError(
            f"--job {job}: was not submitted by raydpzv submit; follow it with `ray job logs {job}`"
        )
    place = _place(where, metadata.get(_NAME, job))
    if stop:
        server.stop(job)
    _follow(server, job, metadata[_FOLDER], place, where)


def _server(address: str | None) -> JobServer:
    from actors.job_server import JobServer

    try:
        import pathspec  # noqa: F401  what packs the project needs it
    except ImportError:
        raise missing("pathspec", "ray") from None
    return JobServer(address)


def _place(where: Where, name: str) -> Path | None:
    """Return where the run folder goes here; None: it stays where it is."""
    if not where.fetch:
        if where.out is not None:
            raise SpecError(
                "--out: is where the run folder is brought to, and --no-fetch brings none; leave one out"
            )
        return None
    from actors.remote_folder import check_place

    place = output_folder(where.out, name)
    check_place(place)
    return place


def _follow(server: JobServer, job: str, there: str, place: Path | None, where: Where) -> None:
    """Show a job's log, bring its folder, and leave with its status."""
    try:
        end = server.follow(job, _print)
        if place is not None and end.status != _REFUSED:
            _bring(server, there, place, end)
    except KeyboardInterrupt:
        screen.complain("interrupted; the job is not")
        _say_how_to_come_back(job, server, where)
        raise typer.Exit(STOPPED) from None
    except RaydpzvError:
        _say_how_to_come_back(job, server, where)
        raise
    if end.status:
        screen.complain(f"the job {job} ended with {end.status}: {end.message}")
        raise typer.Exit(end.status)


def _bring(server: JobServer, there: str, place: Path, end: JobEnd) -> None:
    """Bring the run folder, which a run that failed early has not."""
    from actors.project_package import pack, program
    from actors.remote_folder import receive

    def told(done: int, whole: int) -> None:
        screen.complain(f"run folder: {done / _MIB:.1f} of {whole / _MIB:.1f} MiB")

    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "program.zip"
        pack(program(), archive, server.upload_limit)

        def ask(begin: int, most: int, public: str) -> str:
            job = f"raydpzv_fetch_{secrets.token_hex(8)}"
            entrypoint = f"python -m actors.remote_folder_parts {_shell_path(there)} {begin} {most} {public}"
            server.submit(job, entrypoint, archive, {})
            printed = server.output(job)
            server.forget(job)
            return printed

        found = receive(ask, place, told)
    if found:
        screen.complain(f"run folder: {place} (brought from {there})")
    elif end.status == 0:
        raise RunError(
            f"wanted the run folder {there} on the machine of the cluster's head, got none: where jobs run on other "
            "machines too, give --there a folder that all of them see"
        )


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say_how_to_come_back(job: str, server: JobServer, where: Where) -> None:
    line = f"raydpzv submit --job {job} --address {shlex.quote(server.address)}"
    line += f" --out {shlex.quote(str(where.out))}" if where.out is not None else ""
    line += "" if where.fetch else " --no-fetch"
    screen.complain(f"come back to it, or bring its folder: {line}")
    screen.complain(f"stop it: {line} --stop")


def _check_lasting(there: str) -> None:
    if not (PurePosixPath(there).is_absolute() or there.startswith(_HOME)):
        raise SpecError(
            f"--there: wanted an absolute path, or one that begins with ~/, got {there}: it would be in the copy of "
            "the project that Ray deletes after the job"
        )


def _shell_path(there: str) -> str:
    """Return a path for the cluster's shell: there, ~/ is the folder of whoever runs the cluster."""
    return (
        f'"$HOME"/{shlex.quote(there.removeprefix(_HOME))}' if there.startswith(_HOME) else shlex.quote(there)
    )


def _entrypoint(request: Submission, scenario: str, changes: Sequence[str], there: str) -> str:
    words = ["python", "-m", "raydpzv", "run", scenario, "--runner", "ray", "--or-resume", *request.flags]
    words += [word for change in changes for word in ("--set", change)]
    words += ["--log", request.log] if request.log is not None else []
    words += ["--storage", request.storage] if request.storage is not None else []
    return f"{shlex.join(words)} --out {_shell_path(there)}"


def _scenario_there(scenario: str, what: Project) -> str:
    """Return how the job names its scenario. Raises InputError for a file that is not packed."""
    path = Path(scenario)
    if path.suffix != ".toml" and not path.exists():
        return scenario
    if not what.holds(path):
        raise InputError(
            f"{scenario}: lies outside the folder that is packed, {what.folder}; give the folder that holds it with "
            "--project"
        )
    if not what.has(path):
        raise InputError(f"{scenario}: is left out by {what.ignored_by}; take it out of there")
    return what.name(path)


def _data_there(spec: AnyScenario, what: Project) -> list[str]:
    """Return where the data lie for the job, as changes of settings: packed ones by their names in the package.

    Raises InputError for data in the project's folder that are not packed, or not there; says which lie outside it.
    """
    found = []
    for given in locations(as_tree(spec)):
        setting, _, quoted = given.partition("=")
        path = Path(json.loads(quoted))
        if not what.holds(path):
            screen.complain(
                f"note: {setting} is {path}, outside the packed folder {what.folder}: the cluster's machines need it "
                "there"
            )
            found.append(given)
            continue
        if not path.exists():
            raise InputError(
                f"{setting}: wanted data to pack, {path} is not there; --set {setting}=PATH gives another"
            )
        if not what.has(path):
            raise InputError(f"{setting}: {path} is left out by {what.ignored_by}; take it out of there")
        found.append(f"{setting}={json.dumps(what.name(path), ensure_ascii=False)}")
    return found
