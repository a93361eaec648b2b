"""`raydpzv watch`: serve the page of a run or a comparison while it is made."""

from __future__ import annotations

import signal
import sys
import threading

from raydpzv.compare.live import LivePage, serve
from scenarios.command_options import WatchCommand


def watch_command(options: WatchCommand) -> None:
    """Serve the page on this machine until Ctrl-C."""
    live = LivePage(options.folder, options.moved or ())
    stop = threading.Event()

    def started(url: str, port: int) -> None:
        if port != options.port:
            print(f"port {options.port} is in use, this is {port}", file=sys.stderr)
        print(url, flush=True)
        print("Only this machine can open it. Stop with Ctrl-C.", file=sys.stderr)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    serve(live, options.port, started, stop)
