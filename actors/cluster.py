"""Start Ray quietly, or join what is there; never shut down what is not ours."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError

NAMESPACE = "raydpzv"
OBJECT_STORE = 400 * 2**20
"""Bytes of object store for a Ray of our own: models stay in actors, so little is needed."""


@contextmanager
def connected(address: str | None = None, *, verbose: bool = False, **local: Any) -> Iterator[None]:
    """Be connected to Ray inside the block; a Ray that was started here is shut down at its end.

    address: None joins the surrounding cluster if this process belongs to one (a submitted job, a Tune trial, an
    earlier `ray.init`, RAY_ADDRESS) and starts a local Ray otherwise; "auto" or host:port joins a running cluster
    and fails if there is none. verbose: show what actors print. local: options for a Ray of our own, such as
    num_cpus. Raises InputError if Ray is not installed or the cluster does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # a CPU actor must not see GPUs it did not ask for
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    _token_without_a_home()
    try:
        import ray
    except ImportError:
        raise InputError("Ray is not installed: pip install 'raydpzv[ray]', or use --runner local") from None
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {
        "logging_level": "ERROR",
        "log_to_driver": verbose,
        "namespace": NAMESPACE,
    }
    if address is None and os.environ.get("RAY_ADDRESS"):
        _probe(os.environ["RAY_ADDRESS"])
        address = "auto"
    elif address is None and os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR"):
        address = "auto"
    if address in (None, "local"):
        options |= {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
        } | local
    else:
        assert address is not None
        _probe(address)
        options |= {"address": address}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # ray's own exits at once; ours stops the run cleanly
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise InputError(
            f"cannot reach Ray at {address or 'local'}: {' '.join(str(error).split())[:300]}"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _token_without_a_home() -> None:
    """Ray writes an authentication token below HOME; where it cannot, give it one in the environment."""
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_MODE" in os.environ:
        return
    home = Path.home()
    if not os.access(home, os.W_OK):
        os.environ["RAY_AUTH_TOKEN"] = os.urandom(32).hex()


def _probe(address: str) -> None:
    """Ray waits minutes for an address that does not answer; ask the port first."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one or leave the address out"
        ) from None
