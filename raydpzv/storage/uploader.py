"""Brings a folder to a storage while it is written, in threads of the process that watches over the writing."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError, RaydpzvError, RunError
from raydpzv.sim.run_until import RunUntil
from raydpzv.storage.commits import ANNOUNCED, NO_NOISE, Commit
from raydpzv.storage.filesystem import StorageFolder, reason
from raydpzv.storage.lease import Fenced, Lease
from raydpzv.storage.upload import Announced, Traffic, Uploader, facts


@dataclass(frozen=True)
class StorageTimes:
    """Seconds: of a lease, between two commits at the most, of trying again what fails, and before the first try."""

    lease: float = 30.0
    commit: float = 5.0
    retrying: float = 60.0
    first: float = 0.25


@dataclass(frozen=True)
class FreshNoise:
    """What a run releases with fresh noise, which a second draw would release once more.

    kind: see `raydpzv.storage.commits`; ahead: updates that it may make before they are in the storage, if announced.
    """

    kind: str = NO_NOISE
    ahead: int = 0


class FolderUploader:
    """A folder's way to a storage. It holds the lease from when it is made until `released` ends.

    horizon: what a run asks before each update; `note` says how far it has come where that is another process's.
    """

    def __init__(
        self, place: StorageFolder, lease: Lease, kind: str, pace: StorageTimes | None = None
    ) -> None:
        self._place, self._lease, self._kind = place, lease, kind
        self._base: Commit | None = None
        self._pace = pace or StorageTimes()
        self.horizon = RunUntil(self._ask)
        self.traffic = Traffic()
        self._noise = FreshNoise()
        self._failed: Callable[[], None] = lambda: None
        self._uploader: Uploader | None = None
        self._wanted, self._ending = threading.Event(), threading.Event()
        self._one = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.failure: RunError | None = None

    @property
    def uri(self) -> str:
        """Where the storage is."""
        return self._place.uri

    @property
    def writer(self) -> str:
        """Who this writer is, for the folder's link."""
        return self._lease.writer

    @property
    def up_to_date(self) -> bool:
        """Whether the folder's last writer brought all of it before it left."""
        return self._base is not None and self._base.over

    @property
    def announces(self) -> bool:
        """Whether a run must ask before each update."""
        return self._noise.kind == ANNOUNCED

    def go_on_from(self, base: Commit) -> None:
        """Take what a commit names for the folder's content, so that only what changes after it travels."""
        self._base, self._kind = base, base.kind

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the lease at the block's end."""
        try:
            yield
        finally:
            self._ending.set()
            self._wanted.set()
            for thread in self._threads:
                thread.join()
            if not isinstance(self.failure, Fenced):
                try:
                    self._lease.release()
                except OSError as error:
                    self._warn(
                        f"its lease could not be released ({reason(error)}): the next writer waits for it"
                    )

    @contextmanager
    def still(self) -> Iterator[None]:
        """Bring nothing while the block runs, which changes what belongs together."""
        with self._one:
            yield

    @contextmanager
    def of(
        self, folder: Path, noise: FreshNoise, failed: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Bring this folder to the storage while the block runs, and as it is at its end.

        failed: called where nothing more is brought, for a block that asks no horizon.
        Raises InputError if the first commit fails, RunError if the last one does and the block itself did not fail.
        """
        self._noise, self._failed = noise, failed
        self._uploader = Uploader(
            *(self._place, self._lease, folder, self._kind), base=self._base, traffic=self.traffic
        )
        try:
            self._bring()
        except RunError as error:
            raise InputError(str(error)) from error
        self._start(self._renewing, self._bringing)
        try:
            yield
        except BaseException:
            self._last(at_failure=True)
            raise
        self._last(at_failure=False)

    def announce(self, noise: FreshNoise) -> None:
        """Have a commit say what is released from now on with fresh noise, before any of it is. Raises RunError."""
        if noise == self._noise:
            return
        with self._one:
            self._noise = noise
        self._bring()

    def note(self, updates: int) -> None:
        """Say that the releases of so many updates are on record, and raise RunError where nothing more is brought."""
        self.check()
        self.horizon.note(updates)

    def check(self) -> None:
        """Raise RunError where nothing more is brought."""
        if self.failure:
            raise self.failure

    @property
    def limit(self) -> int | None:
        """Updates that the run may make by now; None: any number."""
        return self.horizon.limit

    def flush(self) -> Mapping[str, Any]:
        """Bring what there is now; return what summary.json says."""
        self._bring()
        return facts(self.traffic, self.uri)

    def _last(self, *, at_failure: bool) -> None:
        self._ending.set()
        self._wanted.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        if self.failure:
            if at_failure:
                return
            raise self.failure
        try:
            self._bring(over=True)
        except RunError as error:
            if not at_failure:
                raise
            self._warn(str(error))

    def _start(self, *loops: Callable[[], None]) -> None:
        self._threads = [threading.Thread(target=self._guarded, args=(loop,), daemon=True) for loop in loops]
        for thread in self._threads:
            thread.start()

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except RaydpzvError as error:
            self._fail(error if isinstance(error, RunError) else RunError(str(error)))
        except Exception as error:  # whatever it is, the run must not wait for more
            self._fail(RunError(f"{self.uri}: {type(error).__name__}: {reason(error)}"))

    def _fail(self, error: RunError) -> None:
        self.failure = self.failure or error
        self.horizon.deny(str(error))
        self._failed()

    def _ask(self) -> None:
        self._wanted.set()

    def _bringing(self) -> None:
        while not self._ending.is_set():
            self._wanted.wait(self._pace.commit)
            self._wanted.clear()
            if not self._ending.is_set():
                self._bring()

    def _renewing(self) -> None:
        while not self._ending.wait(self._lease.renewals):
            try:
                self._lease.renew()
            except OSError as error:
                self._warn(f"the lease could not be renewed ({reason(error)}); it is tried again")
                continue
            self._lease.check()

    def _bring(self, *, over: bool = False) -> None:
        """Commit, and let the run go on; what fails is tried again for a while. Raises RunError."""
        with self._one:
            self.check()
            begun = time.monotonic()
            wait = self._pace.first
            while True:
                try:
                    self._commit(over=over)
                    break
                except RunError as error:
                    self._fail(error)
                    raise
                except OSError as error:
                    if time.monotonic() - begun + wait > self._pace.retrying:
                        failure = RunError(
                            f"{self.uri}: cannot be written ({reason(error)}); the run's folder on this machine has "
                            "all of it: see to the storage, and go on with: raydpzv resume FOLDER"
                        )
                        self._fail(failure)
                        raise failure from error
                    self._warn(f"cannot be written ({reason(error)}); it is tried again")
                time.sleep(wait)
                wait *= 2
            self.traffic.seconds += time.monotonic() - begun

    def _commit(self, *, over: bool) -> None:
        assert self._uploader is not None
        covered = self.horizon.made
        ahead = 0 if over else self._noise.ahead
        announced = NO_NOISE if over and not self.announces else self._noise.kind
        self._uploader.commit(Announced(announced, covered, covered + ahead, over))
        self.horizon.allow(covered + ahead if self.announces else None)

    def _warn(self, what: str) -> None:
        warnings.warn(
            f"{self.uri}: {what}" if not what.startswith(self.uri) else what, RuntimeWarning, stacklevel=2
        )
