"""Start a Ray quietly, or join a running one; never shut down a Ray that we did not start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from actors import ray_watcher
from actors.actor_process import reused
from actors.cluster_address import TOKEN_SETTINGS, joinable, token_settings_kept
from raydpzv.errors import InputError, RunError, missing
from raydpzv.limits import raise_open_files, soft_limit
from raydpzv.package_check import shadowing

NAMESPACE = "raydpzv"
OBJECT_STORE = 400 * 2**20
"""Bytes of object store for messages in a Ray of our own, besides a run's data; models stay in
actors.
"""
_JOINING = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR")
"""Environment variables of a process that belongs to a cluster."""
_OPEN_FILES, _FEWEST_FILES = 4096, 256
"""The limit of open files that a process gets if the system allows it, and the limit below which
Ray aborts.
"""
_LEAST_ROOM = 8 * 2**30
"""Bytes of address space below which Ray's processes abort: they map far more than they use."""
_COMES_UP = 120
"""Seconds for the processes of a Ray of our own to come up: Ray's 30 are too few on a busy
machine.
"""


def set_defaults() -> None:
    """Set environment variables that Ray reads, many of them at import; the user's values stay."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # a CPU actor must not see GPUs it did not ask for
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", str(_COMES_UP))
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(_COMES_UP))
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(1000 * _COMES_UP))


@contextmanager
def connected(
    address: str | None = None, *, verbose: bool = False, reuse: bool = False, **local: Any
) -> Iterator[None]:
    """Connect to Ray inside the block; a Ray that was started here is shut down at its end.

    address: None joins the surrounding cluster if this process belongs to one (a submitted job, a
    Tune trial, an earlier `ray.init`, RAY_ADDRESS) and starts a local Ray otherwise; "auto" or
    host:port joins a running cluster and fails if there is none. verbose: show what actors print.
    reuse: runs inside the block leave their processes to one another (see
    `actors.actor_process.reused`). local: options for a Ray of our own, such as num_cpus. Raises
    InputError if Ray is not installed or the cluster does not answer.
    """
    set_defaults()
    try:
        import ray
    except ImportError:
        raise missing("Ray", "ray", ", or use --runner local") from None
    script = Path(sys.argv[0]).resolve().parent
    # where Ray's processes look for modules first
    shadow = shadowing("actors", [Path.cwd(), *([script] if str(script) in sys.path else [])])
    if ray.is_initialized():
        _check_unshadowed(shadow)
        with reused() if reuse else nullcontext():
            yield
        return
    options: dict[str, Any] = {
        "logging_level": "ERROR",
        "log_to_driver": verbose,
        "namespace": NAMESPACE,
    }
    given = "--address"
    if address is None and any(os.environ.get(name) for name in _JOINING):
        address, given = "auto", "RAY_ADDRESS"
    own = address in (None, "local")
    if own:
        own_ray = {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE,
        }
        options |= own_ray | local
        if shadow:  # costs a second of start-up, so only then
            options["runtime_env"] = {
                "worker_process_setup_hook": "raydpzv.package_check.claim_in_worker"
            }
    else:
        _check_unshadowed(shadow)
        options["address"] = address
    with token_settings_kept(), _watched(own=own) as mark:
        if not own:
            options["address"] = joinable(str(address), given)
        elif not TOKEN_SETTINGS & os.environ.keys() and not os.access(Path.home(), os.W_OK):
            # Ray would write a token there
            os.environ["RAY_AUTH_TOKEN"] = os.urandom(32).hex()
        with _fewer_processes(options) if own else nullcontext():
            _start(options, mark)
        try:
            with reused() if reuse else nullcontext():
                yield
        finally:
            ray.shutdown()


def _check_unshadowed(shadow: Path | None) -> None:
    if shadow:
        raise InputError(
            f"wanted raydpzv's own package `actors` in the processes of Ray, got {shadow}, which "
            "they would import instead; rename that file or folder, or start from another folder"
        )


def _start(options: dict[str, Any], mark: Mapping[str, str]) -> None:
    """Start or join Ray; if that fails or is interrupted, end the started processes. Raises
    InputError.

    Raises RunError if Ray's processes do not come up.

    mark: environment variables for the processes of Ray alone; what this process starts later does
    not have them.
    """
    import ray

    _check_limits(own=options["address"] == "local")
    os.environ.update(mark)
    try:
        with _interruptible():
            ray.init(**options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        ray.shutdown()
        raise InputError(
            f"cannot reach Ray at {options['address']}: {' '.join(str(error).split())[:300]}"
        ) from None
    except Exception as error:
        ray.shutdown()
        if type(error) is not Exception:
            raise
        # an error of no class of its own: processes of Ray that did not come up in time
        raise RunError(
            f"Ray did not start: {' '.join(str(error).split())[:300]} Try again when less else "
            "runs on this machine, or without Ray (--runner local)"
        ) from None
    except BaseException:
        ray.shutdown()
        raise
    finally:
        for name in mark:
            del os.environ[name]


def _check_limits(*, own: bool) -> None:
    """Refuse limits under which Ray's processes abort silently or deadlock. own: they start
    here.
    """
    files, room = raise_open_files(_OPEN_FILES), soft_limit("AS")
    if files is not None and files < _FEWEST_FILES:
        raise InputError(
            f"wanted at least {_FEWEST_FILES} open files for Ray, got a limit of {files}; raise it "
            f"(ulimit -n {_OPEN_FILES}), or run without Ray (--runner local)"
        )
    if own and room is not None and room < _LEAST_ROOM:
        raise InputError(
            f"wanted at least {_LEAST_ROOM / 2**30:.0f} GiB of addresses for Ray's processes, got "
            f"a limit of {room / 2**30:.3g}; raise it (ulimit -v unlimited), or run without Ray "
            "(--runner local)"
        )


@contextmanager
def _fewer_processes(options: Mapping[str, Any]) -> Iterator[None]:
    """Start a Ray with these options without its autoscaler, and without dashboard and log monitor
    unless asked for.

    Ray has no option for it, and they take 4 of the 10 seconds of CPU of its start. A Ray that
    names them otherwise starts them. Ray gives its first node 30 s, whatever is set; here it has as
    long as its other processes.
    """
    from ray._private import services
    from ray._private.node import Node

    look, until = services.get_node, time.monotonic() + _COMES_UP

    def node(*of: str) -> Any:
        while True:
            try:
                return look(*of)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    wanted = {
        "start_api_server": options["include_dashboard"],
        "start_log_monitor": options["log_to_driver"],
    }
    unwanted = ["start_monitor", *(name for name, asked in wanted.items() if not asked)]
    before = {name: vars(Node)[name] for name in unwanted if name in vars(Node)}
    for name in before:
        setattr(Node, name, lambda self, **how: None)
    services.get_node = node
    try:
        yield
    finally:
        services.get_node = look
        for name, method in before.items():
            setattr(Node, name, method)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C end the block at once, and restore the handlers: Ray sets its own for SIGTERM.

    Before a run starts, a clean stop would have nothing to keep.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _watched(*, own: bool) -> Iterator[Mapping[str, str]]:
    """Yield a mark; no process that has it outlives this one, however this one ends (Linux, our own
    Ray).
    """
    if not own or not sys.platform.startswith("linux"):
        yield {}
        return
    mark = os.urandom(16).hex()
    command = [sys.executable, "-I", "-S", ray_watcher.__file__, mark, str(os.getpid())]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdin is not None
        try:
            yield {ray_watcher.MARK: mark}
        except BaseException:
            watcher.stdin.write(ray_watcher.SWEEP)
            raise
        watcher.stdin.write(ray_watcher.DONE)
