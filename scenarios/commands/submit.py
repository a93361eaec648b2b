"""`raydpzv submit`: run a scenario as a job of a cluster, show its log, and download its run
folder.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import typer

import raydpzv
from raydpzv.config.paths import locations
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import as_tree
from raydpzv.errors import InputError, RaydpzvError, RunError, SpecError
from raydpzv.storage.download import check_free, stored_kind
from raydpzv.storage.filesystem import check_uri
from scenarios import screen
from scenarios.command_options import SubmitCommand
from scenarios.exit_codes import STOPPED
from scenarios.options import chosen_logs, output_folder
from scenarios.storage_options import fetched

if TYPE_CHECKING:
    from actors.job_server import JobServer

_STORAGE, _NAME = "raydpzv_storage", "raydpzv_name"
"""Keys of a job's metadata: the URI of its storage ("": none), and a name for the folder that is
downloaded.
"""
_HOME = "~/"
_REFUSED = 2
"""Exit status of a job that was refused: the storage holds another run."""


def submit_command(options: SubmitCommand) -> None:
    """Submit a run, or come back to a job that was submitted before."""
    if (options.scenario is None) == (options.job is None):
        raise SpecError(
            "submit: wanted a SCENARIO to run, or --job ID of one submitted before; give one of "
            "them"
        )
    if options.stop and options.job is None:
        raise SpecError("--stop: goes with --job ID, the job to stop; give both")
    if options.storage is not None and options.job is not None:
        raise SpecError("--storage: is what a job is submitted with, not --job; leave it out")
    if options.scenario is not None:
        submit_run(options.scenario, options)
    elif options.job is not None:
        rejoin(options.job, options)


def submit_run(scenario: str, options: SubmitCommand) -> None:
    """Submit a run; follow it to its end and download its folder, unless nobody waits."""
    chosen_logs(options.log)
    _check(options)
    spec = raydpzv.load(scenario, options.changes)
    project = options.project.resolve()
    if not project.is_dir():
        raise InputError(
            f"--project: wanted a folder, got {options.project}; give the one that holds the "
            "scenario"
        )
    job = f"raydpzv_{secrets.token_hex(8)}"
    there = options.there or f"{_HOME}raydpzv/{job}"
    name = f"{Path(scenario).stem}-seed{spec.seed}"
    folder = _folder_here(options, options.storage, name)
    packed = _packed_scenario(scenario, project)
    words = options.run_words(packed, _packed_data(spec, project))
    server = _server(options.address)
    for difference in server.differences():
        screen.complain(f"note: {difference}; the run uses the cluster's version")
    entrypoint = f"{shlex.join(words)} --out {_shell_path(there)}"
    server.submit(job, entrypoint, project, {_STORAGE: options.storage or "", _NAME: name})
    screen.complain(f"job {job} at {server.address}; its run folder on the cluster: {there}")
    if options.no_wait:
        _say_how_to_return(job, server, options)
        return
    _follow(server, job, options.storage, folder, options)


def rejoin(job: str, options: SubmitCommand) -> None:
    """Follow a job that was submitted before, or stop it; download its folder once it has ended."""
    server = _server(options.address)
    metadata = server.metadata(job)
    if _STORAGE not in metadata:
        raise InputError(
            f"--job {job}: was not submitted by raydpzv submit; follow it with `ray job logs {job}`"
        )
    storage = metadata[_STORAGE] or None
    folder = _folder_here(options, storage, metadata[_NAME])
    if options.stop:
        server.stop(job)
    _follow(server, job, storage, folder, options)


def _check(options: SubmitCommand) -> None:
    """Raise SpecError if no folder would outlive the job, InputError for a storage that cannot be
    opened.
    """
    if options.storage is not None:
        check_uri(options.storage)
    elif options.there is None and not options.no_fetch:
        raise SpecError(
            "submit: wanted --storage URI, through which the run folder comes back, or --there "
            "FOLDER, where it stays on the cluster; give one"
        )
    if options.there is not None and not (
        PurePosixPath(options.there).is_absolute() or options.there.startswith(_HOME)
    ):
        raise SpecError(
            f"--there: wanted an absolute path, or one that begins with ~/, got {options.there}: "
            "it would be in the copy of the project that Ray deletes after the job"
        )


def _server(address: str | None) -> JobServer:
    from actors.job_server import JobServer

    return JobServer(address)


def _folder_here(options: SubmitCommand, storage: str | None, name: str) -> Path | None:
    """Return the folder to download to; None: nothing is downloaded."""
    if storage is not None and not options.no_fetch:
        folder = output_folder(options.out, name)
        check_free(folder)
        return folder
    if options.out is not None and options.no_fetch:
        raise SpecError(
            "--out: is the folder to download to, and --no-fetch downloads none; leave one out"
        )
    if options.out is not None:
        raise SpecError(
            "--out: the run folder comes back through a storage; submit with --storage URI, or "
            "leave --out out"
        )
    return None


def _follow(
    server: JobServer, job: str, storage: str | None, folder: Path | None, options: SubmitCommand
) -> None:
    """Show a job's log, download its folder, and exit with its status."""
    try:
        end = server.follow(job, _print)
        if storage is not None and folder is not None and end.status != _REFUSED:
            _download(storage, folder, succeeded=end.status == 0)
    except KeyboardInterrupt:
        screen.complain("interrupted; the job continues")
        _say_how_to_return(job, server, options)
        raise typer.Exit(STOPPED) from None
    except RaydpzvError:
        _say_how_to_return(job, server, options)
        raise
    if end.status:
        screen.complain(f"the job {job} ended with {end.status}: {end.message}")
        if end.status == _REFUSED:
            screen.complain(
                "note: a job lacks the files that .gitignore, .rayignore or a secret's name exclude"
            )
        raise typer.Exit(end.status)


def _download(storage: str, folder: Path, *, succeeded: bool) -> None:
    """Download the run folder from its storage, which is empty if a run failed early."""
    if stored_kind(storage):
        fetched(storage, folder)
        screen.complain(f"run folder: {folder} (downloaded from {storage})")
    elif succeeded:
        raise RunError(
            f"wanted the run folder in {storage}, found nothing there from this machine; use a "
            "storage that this machine and the cluster share"
        )


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _say_how_to_return(job: str, server: JobServer, options: SubmitCommand) -> None:
    line = f"raydpzv submit --job {job} --address {shlex.quote(server.address)}"
    line += f" --out {shlex.quote(str(options.out))}" if options.out is not None else ""
    line += " --no-fetch" if options.no_fetch else ""
    screen.complain(f"follow it again, and download its folder: {line}")
    screen.complain(f"stop it: {line} --stop")


def _shell_path(there: str) -> str:
    """Return a path for the cluster's shell: ~/ is the home folder of the cluster's user."""
    return (
        f'"$HOME"/{shlex.quote(there.removeprefix(_HOME))}'
        if there.startswith(_HOME)
        else shlex.quote(there)
    )


def _packed_name(path: Path, project: Path) -> str | None:
    """Return the name of a file in the package; None if it lies outside the project.

    A link is packed under its own name, wherever it leads.
    """
    absolute = path.absolute()
    found = absolute.parent.resolve() / absolute.name
    return found.relative_to(project).as_posix() if found.is_relative_to(project) else None


def _packed_scenario(scenario: str, project: Path) -> str:
    """Return the job's name for its scenario. Raises InputError for a file outside the project."""
    path = Path(scenario)
    if path.suffix != ".toml" and not path.exists():
        return scenario
    name = _packed_name(path, project)
    if name is None:
        raise InputError(
            f"{scenario}: lies outside the folder that is packed, {project}; give the folder that "
            "holds it with --project"
        )
    return name


def _packed_data(spec: AnyScenario, project: Path) -> list[str]:
    """Return the job's paths of the data, as changes of settings.

    Raises InputError for data of the project that do not exist; says which data lie outside it.
    """
    found = []
    for location in locations(as_tree(spec)):
        setting, _, quoted = location.partition("=")
        path = Path(json.loads(quoted))
        name = _packed_name(path, project)
        if name is None:
            screen.complain(
                f"note: {setting} is {path}, outside the packed folder {project}: the cluster's "
                "machines need it there"
            )
            found.append(location)
            continue
        if not path.exists():
            raise InputError(
                f"{setting}: wanted data to pack, {path} is not there; --set {setting}=PATH gives "
                "another"
            )
        found.append(f"{setting}={json.dumps(name, ensure_ascii=False)}")
    return found
