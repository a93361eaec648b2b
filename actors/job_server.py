"""The jobs of a Ray cluster, by the HTTP port of its dashboard: submit one, follow its log, stop
it, learn its end.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import platform
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.cluster import set_defaults, use_token
from actors.project_package import IGNORE_FILE, excludes, package_folder
from raydpzv.errors import InputError, RaydpzvError, RunError, missing

_DEFAULT = "http://127.0.0.1:8265"
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Environment variables in which `ray job` looks for the address, too."""
_OLDEST_RAY, _OLDEST_PYTHON = (2, 52), (3, 11)
"""The oldest that the program runs with: see pyproject.toml."""
_ANSWER = 10.0
"""Seconds that a dashboard has for its first answer."""
_LOST = 60.0
"""Seconds without any answer after which the cluster counts as gone."""
_STOPPING = {"RAY_JOB_STOP_WAIT_TIME_S": "120"}
"""Seconds that Ray gives a stopped job before it kills it, in place of 3: for a checkpoint, a
summary, an upload.
"""
_LOOK = 0.5
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_STOPPED = 130
_TOO_LARGE = re.compile(r"status code 413|exceeds the maximum size")
"""Ray's answers to a package that is too large."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ended: the status of a process, and what Ray says of it."""

    status: int
    message: str


class JobServer:
    """A cluster's jobs. Raises InputError where no Ray answers, wants another token, or is too old
    for the program.
    """

    def __init__(self, address: str | None = None) -> None:
        set_defaults()
        try:
            import aiohttp
            import requests
            from ray.job_submission import JobSubmissionClient
        except ImportError:
            raise missing("Ray with its jobs", "ray") from None
        self.address = _url(address)
        _check_answers(self.address)
        with suppress(ImportError):  # older ones know none
            use_token()
        for module in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk"):
            logging.getLogger(f"ray.{module}").setLevel(logging.WARNING)
        # it warns of large files by names that only the temporary package has
        logging.getLogger("ray._private.runtime_env.packaging").setLevel(logging.ERROR)
        self._unreachable = (requests.exceptions.RequestException, aiohttp.ClientError)
        with self._named():
            self._client: Any = JobSubmissionClient(self.address)
            self.ray, self.python = self._versions()
        for name, there, oldest in (
            ("Ray", self.ray, _OLDEST_RAY),
            ("Python", self.python, _OLDEST_PYTHON),
        ):
            if there and _numbers(there) < oldest:
                raise InputError(
                    f"the cluster at {self.address}: wanted {name} {'.'.join(map(str, oldest))} or "
                    f"newer there, got {there}; update it on all machines"
                )

    def differences(self) -> list[str]:
        """Return what is of another version there than here, in words: the run is the cluster's,
        with its versions.
        """
        import ray

        pairs = (
            ("Ray", self.ray, ray.__version__),
            ("Python", self.python, platform.python_version()),
        )
        return [
            f"{name} {there} there, {here} here"
            for name, there, here in pairs
            if there not in ("", here)
        ]

    def submit(self, job: str, entrypoint: str, folder: Path, metadata: Mapping[str, str]) -> None:
        """Submit a job that runs in a copy of a project's folder; job: the name it gets.

        Ray packs the folder. Raises InputError if the package is too large.
        """
        with self._named(), package_folder(folder) as packed:
            try:
                self._client.submit_job(
                    entrypoint=entrypoint,
                    submission_id=job,
                    runtime_env={
                        "working_dir": str(packed),
                        "excludes": excludes(folder),
                        "env_vars": _STOPPING,
                    },
                    metadata=dict(metadata),
                )
            except RuntimeError as error:
                if not _TOO_LARGE.search(str(error)):
                    raise
                raise InputError(
                    f"{folder}: wanted a package of at most 100 MiB, which is what Ray takes, got "
                    f"a larger one; list in {IGNORE_FILE} what the run does not need, or put data "
                    "where the cluster's machines see them"
                ) from None

    def metadata(self, job: str) -> Mapping[str, str]:
        """Return what was said of a job when it was submitted. Raises InputError if there is none
        of that name.
        """
        with self._named():
            try:
                return dict(self._client.get_job_info(job).metadata or {})
            except RuntimeError as error:
                if "404" not in str(error):
                    raise
                raise InputError(
                    f"--job {job}: the cluster at {self.address} knows no such job; `ray job list` "
                    "shows them"
                ) from None

    def stop(self, job: str) -> None:
        """Ask a job to end; Ray kills it if it does not within two minutes."""
        with self._named():
            self._client.stop_job(job)

    def follow(self, job: str, write: Callable[[str], None]) -> JobEnd:
        """Hand on what a job prints until it ends. Raises RunError if the cluster is gone
        meanwhile.
        """
        seen, silent_since = 0, None
        with self._named():
            while True:
                try:
                    for text in _texts(self._client.tail_job_logs(job), seen):
                        seen += len(text)
                        write(text)
                    info = self._client.get_job_info(job)
                    if info.status in _ENDED:
                        write(self._client.get_job_logs(job)[seen:])
                        return _end(info)
                    silent_since = None
                except (*self._unreachable, RuntimeError, OSError) as error:
                    silent_since = silent_since or time.monotonic()
                    if time.monotonic() - silent_since > _LOST:
                        raise RunError(
                            f"lost the cluster at {self.address} ({_line(error)}); the job {job} "
                            "may continue there"
                        ) from None
                time.sleep(_LOOK)

    def _versions(self) -> tuple[str, str]:
        """Return the cluster's versions of Ray and Python; "": it does not say."""
        answer = self._client._do_request("GET", "/api/version")
        ray = str(answer.json().get("ray_version", ""))
        answer = self._client._do_request("GET", "/api/v0/cluster_metadata")
        if answer.status_code != 200:
            return ray, ""
        return ray, str(answer.json().get("data", {}).get("pythonVersion", ""))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn what Ray's client raises into an InputError in words."""
        try:
            yield
        except RaydpzvError:
            raise
        except Exception as error:
            if type(error).__name__ == "AuthenticationError":
                raise InputError(
                    f"Ray at {self.address} wanted the cluster's token, got none or another one; "
                    "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH, to what "
                    f"`ray get-auth-token` prints where the cluster was started ({_line(error)})"
                ) from None
            if not isinstance(error, (*self._unreachable, RuntimeError, OSError, ValueError)):
                raise
            raise InputError(
                f"Ray at {self.address} does not do what was asked: {_line(error)}"
            ) from None


def _url(address: str | None) -> str:
    found = address or next(
        (os.environ[name] for name in _ADDRESSES if os.environ.get(name)), _DEFAULT
    )
    if found == "auto":
        found = _DEFAULT
    url = found if "://" in found else f"http://{found}"
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InputError(
            f"--address: wanted the HTTP address of the cluster's dashboard, as {_DEFAULT}, got "
            f"{found}"
        )
    return url.rstrip("/")


def _check_answers(url: str) -> None:
    """Raise InputError unless a dashboard answers: Ray's own client would wait for an answer
    without end.
    """
    try:
        urllib.request.urlopen(f"{url}/api/version", timeout=_ANSWER).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return
        why = f"something else answers there: HTTP {error.code}"
    except http.client.HTTPException as error:
        why = f"something else answers there: {type(error).__name__}"
    except (OSError, ValueError) as error:
        why = str(error)
    else:
        return
    raise InputError(
        f"no Ray dashboard answers at {url} ({why}); start a cluster (ray start --head), or give "
        "the HTTP address of its dashboard (port 8265 where none was chosen)"
    )


def _texts(tail: Any, seen: int) -> Iterator[str]:
    """Yield what an asynchronous tail of a log yields, without the characters that were seen
    before.
    """
    with asyncio.Runner() as runner:
        while True:
            try:
                text = runner.run(anext(tail))
            except StopAsyncIteration:
                return
            fresh, seen = text[seen:], max(0, seen - len(text))
            if fresh:
                yield fresh


def _end(info: Any) -> JobEnd:
    # the log's end, which Ray adds, was shown
    message = _line((info.message or "").partition(", last available logs")[0])
    if info.status == "STOPPED":
        return JobEnd(_STOPPED, message)
    if info.status == "SUCCEEDED":
        return JobEnd(0, message)
    code = getattr(info, "driver_exit_code", None)
    if not code:
        return JobEnd(1, message)
    return JobEnd(code if code > 0 else 128 - code, message)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]
