"""The page of a run or a comparison while it is made, served on this machine alone.

The page is made of the folder's rows whenever a browser asks and they have grown: there is no
second state.
"""

from __future__ import annotations

import html
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from raydpzv.arrow_columns import array
from raydpzv.compare.compare_methods import about
from raydpzv.compare.plan import read_comparison
from raydpzv.compare.results import RUNS_FOLDER, collect
from raydpzv.errors import InputError, RaydpzvError
from raydpzv.experiment.prepare import Prepared
from raydpzv.experiment.resuming import prepared_again
from raydpzv.experiment.summary import Ending, Outcome, summarise
from raydpzv.files import PLAN, is_comparison
from raydpzv.records import metrics
from raydpzv.records.checkpoint import CHECKPOINT
from raydpzv.records.run_folder import RunFolder
from raydpzv.records.store import KeptParts
from raydpzv.report.comparison_page import comparison_page
from raydpzv.report.page import ReportedRun, live_page, read_runs, unfinished

RUNNING = "running"
"""The status of a run that has not come to its end."""
_PORTS = 100
"""Ports tried, from the one asked for on."""
_MOST_CONNECTIONS = 64
"""Connections at once: a browser has six."""
_IDLE = 30.0
"""Seconds until a connection that asks for nothing is ended."""


class LivePage:
    """The newest page of a folder.

    Raises InputError for a folder that holds neither a run nor a comparison.
    """

    def __init__(self, folder: Path, moved: Sequence[str] = ()) -> None:
        self._folder, self._moved = folder, moved
        self._lock = threading.Lock()
        self._page, self._made = "", ""
        self._parts: KeptParts = {}
        self.compares = is_comparison(folder)
        if not self.compares:
            RunFolder.open(folder, moved)
        self.page()

    @property
    def version(self) -> str:
        """A text that changes with the record."""
        runs = [self._folder]
        if self.compares:
            runs = sorted((self._folder / RUNS_FOLDER).glob("*/"))
        found = blake2b(digest_size=8)
        for run in runs:
            names = ["summary.json"] if self.compares else ["summary.json", CHECKPOINT, "rows"]
            for path in (
                p for name in names for p in (run / name, *sorted((run / name).glob("*/")))
            ):
                if path.exists():
                    stat = path.stat()
                    found.update(f"{path} {stat.st_mtime_ns} {stat.st_size}".encode())
        return found.hexdigest()

    def page(self) -> str:
        """Return the page of the record as it is now."""
        with self._lock:  # one is made at a time
            version = self.version
            if version != self._made:
                self._page = self._comparison(version) if self.compares else self._run(version)
                self._made = version
            return self._page

    def _comparison(self, version: str) -> str:
        plan = read_comparison(self._folder / PLAN, self._moved)
        said = about(plan, self._folder, self._folder)
        return comparison_page(collect(plan, self._folder), said, version=version)

    def _run(self, version: str) -> str:
        folder = RunFolder.open(self._folder, self._moved)
        if not folder.has_summary():
            return live_page(self._unfinished(folder), version)
        (run,) = read_runs([self._folder], self._moved)
        return live_page(run, version)

    def _unfinished(self, folder: RunFolder) -> ReportedRun:
        """Return a run that has no summary yet: it is made of the rows so far, and of the planned
        ε.
        """
        prepared, rows = self._prepared, folder.rows(self._parts)
        updates = metrics.updates(rows["service"])
        served = array(rows["service"].column("served"))
        passed = float(served.max()) if len(served) else 0.0
        ending = Ending(Outcome("done", ""), math.nan, passed, updates, None)
        summary = summarise(str(folder.environment().get("scenario", "")), prepared, rows, ending)
        planned = prepared.spec.budget.updates
        of = f" of {planned:,}" if planned else ""
        summary |= {
            "status": RUNNING,
            "stopped_by": f"{updates:,}{of} updates so far",
            "failure": None,
        }
        return unfinished(folder, summary, rows)

    @cached_property
    def _prepared(self) -> Prepared:
        return prepared_again(RunFolder.open(self._folder, self._moved))


class _Server(ThreadingHTTPServer):
    """Serves a page to few connections, each of which has to ask for something soon."""

    daemon_threads = True

    def __init__(self, port: int, live: LivePage) -> None:
        self.live, self.token = live, secrets.token_urlsafe(16)
        self.idle: dict[socket.socket, float] = {}
        """Connections that have not asked yet, and since when."""
        self._open = set[socket.socket]()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection, or end it if there are too many."""
        if len(self._open) >= _MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open.add(request)
        self.idle[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self._open.discard(request)
        self.idle.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that are idle, also those that send a byte now and then."""
        now = time.monotonic()
        for request, since in list(self.idle.items()):
            if now - since > _IDLE:
                self.idle.pop(request, None)
                with suppress(OSError):  # it has ended by itself; its thread wakes and closes it
                    request.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _IDLE

    def do_GET(self) -> None:
        """Answer with the page, or its version; with 404 where the token is missing."""
        self.server.idle.pop(self.connection, None)
        own = f"127.0.0.1:{self.server.server_port}", f"localhost:{self.server.server_port}"
        found = self.path.split("/")
        known = len(found) == 3 and secrets.compare_digest(
            found[1].encode(), self.server.token.encode()
        )
        # a foreign host name: another page's script asks
        if not known or self.headers.get("Host") not in own:
            self._answer(404, "text/plain", "not found")
        elif found[2] == "version":
            self._answer(200, "text/plain", self.server.live.version)
        elif found[2] == "":
            try:
                self._answer(200, "text/html", self.server.live.page())
            except RaydpzvError as error:
                self._answer(
                    500,
                    "text/html",
                    f"<!DOCTYPE html><title>raydpzv</title><p>{html.escape(str(error))}",
                )
        else:
            self._answer(404, "text/plain", "not found")

    def _answer(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data)), "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        with suppress(ConnectionError):  # who asked has gone
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing."""


def serve(
    live: LivePage, port: int, started: Callable[[str, int], None], stop: threading.Event
) -> None:
    """Serve a page on 127.0.0.1 until `stop` is set.

    port: the first one that is tried, the next free one is taken; started: called with the URL and
    the port. Raises InputError if none of a hundred is free.
    """
    server = _bound(port, live)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
    )
    thread.start()
    try:
        started(server.url, server.server_port)
        stop.wait()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bound(port: int, live: LivePage) -> _Server:
    ports = range(port, min(port + _PORTS, 65536))
    for tried in ports:
        try:
            return _Server(tried, live)
        except OSError:
            continue
    if not ports:
        raise InputError(f"--port: wanted at most 65535, got {port}")
    raise InputError(f"--port: none of {port} to {ports[-1]} is free on this machine")
