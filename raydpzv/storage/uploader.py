"""Upload a folder while a run writes it, in threads of the process that drives the run."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError, RaydpzvError, RunError, StoppedEarly
from raydpzv.storage.filesystem import StorageFolder, reason
from raydpzv.storage.lease import Fenced, Lease
from raydpzv.storage.manifest import Manifest
from raydpzv.storage.manifest_writer import ManifestWriter, Traffic


@dataclass(frozen=True)
class StorageTimes:
    """Seconds: of a lease, between two uploads, of retries, and before the first retry."""

    lease: float = 30.0
    commit: float = 5.0
    retrying: float = 60.0
    first: float = 0.25


class _Threads:
    """Loops beside a run, until they are joined; fail: called with why one of them ended before."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._fail, self._ending = fail, threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *loops: Callable[[], None]) -> None:
        self._threads = [
            threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in loops
        ]
        for thread in self._threads:
            thread.start()

    def every(self, seconds: float) -> Iterator[None]:
        """Yield after each wait of so many seconds, until the loops are joined."""
        while not self._ending.wait(seconds):
            yield

    def join(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:
            self._fail(error)


class FolderUploader:
    """Uploads one folder to a storage. It holds the lease until `released` ends."""

    def __init__(
        self, storage: StorageFolder, lease: Lease, kind: str, times: StorageTimes | None = None
    ) -> None:
        self._storage, self._lease, self._kind = storage, lease, kind
        self._base: Manifest | None = None
        self._times = times or StorageTimes()
        self._fresh_noise = False
        self._failed: Callable[[], None] = lambda: None
        self._writer: ManifestWriter | None = None
        self._traffic = Traffic()
        self._threads, self._uploading = _Threads(self._lost), threading.Lock()
        self.failure: RunError | None = None
        """Why nothing more is uploaded; None: nothing has failed for good."""

    @property
    def uri(self) -> str:
        """The storage's URI."""
        return self._storage.uri

    @property
    def writer(self) -> str:
        """The id of this writer, for the folder's link."""
        return self._lease.writer

    @property
    def up_to_date(self) -> bool:
        """Whether the last writer of the folder uploaded all of it before it ended."""
        return self._base is not None and self._base.over

    def resume_from(self, base: Manifest) -> None:
        """Take a manifest as the folder's content, so that only later changes are uploaded."""
        self._base, self._kind = base, base.kind

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lease at the block's end."""
        try:
            yield
        finally:
            self._threads.join()
            if not isinstance(self.failure, Fenced):
                try:
                    self._lease.release()
                except OSError as error:
                    self._warn(
                        f"its lease could not be released ({reason(error)}): the next writer waits "
                        "for it"
                    )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Upload nothing while the block changes files that belong together."""
        with self._uploading:
            yield

    @contextmanager
    def uploads(
        self, folder: Path, *, fresh_noise: bool, failed: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Upload this folder while the block runs, and all of it at the block's end.

        fresh_noise: see `Manifest`. failed: called once uploads have failed for good, to stop the
        block. Raises InputError if the first upload fails, RunError if a later one fails for good.
        """
        self._fresh_noise, self._failed = fresh_noise, failed
        self._writer = ManifestWriter(
            self._storage, self._lease, folder, self._kind, base=self._base, traffic=self._traffic
        )
        try:
            self._upload()
        except RunError as error:
            raise InputError(str(error)) from error
        self._threads.start(self._renew_lease, self._upload_changes)
        try:
            yield
        except BaseException as error:
            self._finish(at_failure=True)
            if self.failure and isinstance(error, StoppedEarly):  # `failed` stopped it
                raise self.failure from error
            raise
        self._finish(at_failure=False)

    def declare(self, *, fresh_noise: bool) -> None:
        """Upload a manifest that says which noise is drawn from now on, before any is. Raises
        RunError.
        """
        if fresh_noise == self._fresh_noise:
            return
        with self._uploading:
            self._fresh_noise = fresh_noise
        self._upload()

    def flush(self) -> Mapping[str, Any]:
        """Upload the folder as it is; return what summary.json says. Raises RunError."""
        self._upload()
        return self._traffic.facts(self.uri)

    def _finish(self, *, at_failure: bool) -> None:
        self._threads.join()
        if self.failure:
            if at_failure:
                return
            raise self.failure
        try:
            self._upload(over=True)
        except RunError as error:
            if not at_failure:
                raise
            self._warn(str(error))

    def _lost(self, error: Exception) -> None:
        """End the run, whatever the error is: it must not continue without its uploads."""
        if not isinstance(error, RaydpzvError):
            error = RunError(f"{self.uri}: {type(error).__name__}: {reason(error)}")
        self._fail(error if isinstance(error, RunError) else RunError(str(error)))

    def _fail(self, error: RunError) -> None:
        self.failure = self.failure or error
        self._failed()

    def _upload_changes(self) -> None:
        for _ in self._threads.every(self._times.commit):
            self._upload()

    def _renew_lease(self) -> None:
        for _ in self._threads.every(self._lease.renewals):
            try:
                self._lease.renew()
            except OSError as error:
                self._warn(f"the lease could not be renewed ({reason(error)}); it is tried again")
                continue
            self._lease.check()

    def _upload(self, *, over: bool = False) -> None:
        """Write a manifest; retry for a while if the storage fails. Raises RunError."""
        with self._uploading:
            if self.failure:
                raise self.failure
            start = time.monotonic()
            wait = self._times.first
            while True:
                try:
                    self._write(over=over)
                    break
                except RunError as error:
                    self._fail(error)
                    raise
                except OSError as error:
                    if time.monotonic() - start + wait > self._times.retrying:
                        failure = RunError(
                            f"{self.uri}: cannot be written ({reason(error)}); the run's folder on "
                            "this machine has all of it: see to the storage, and continue with: "
                            "raydpzv resume FOLDER"
                        )
                        self._fail(failure)
                        raise failure from error
                    self._warn(f"cannot be written ({reason(error)}); it is tried again")
                time.sleep(wait)
                wait *= 2
            self._traffic.seconds += time.monotonic() - start

    def _write(self, *, over: bool) -> None:
        assert self._writer is not None
        self._writer.write(fresh_noise=self._fresh_noise, over=over)

    def _warn(self, problem: str) -> None:
        warnings.warn(
            problem if problem.startswith(self.uri) else f"{self.uri}: {problem}",
            RuntimeWarning,
            stacklevel=2,
        )
