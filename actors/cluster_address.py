"""The address of a cluster to join: whether a cluster answers there, of which versions, and whether
it asks for a token.

Ray itself would wait for minutes, or fail later with an error that hides the reason.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raydpzv.errors import InputError

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Environment variables by which Ray chooses whether, and which, token is used."""
TOKEN_SETTINGS = {_MODE, _TOKEN}
_ANSWERS_WITHIN = 5.0
"""Seconds in which a cluster's head takes a connection, and answers a question."""
_NO_HEAD = {
    "ray": "that is the address of a Ray Client; run `ray job submit`, or give HOST:PORT",
    "http": "that is the address of the cluster's jobs; run `ray job submit --address {address}`",
}
"""What to do instead, by the scheme of an address that is none of a head."""


def joinable(address: str, given: str) -> str:
    """Return the address of a cluster that answers; "auto": RAY_ADDRESS, or the one of this machine.

    Has Ray use a token exactly if the cluster asks for one. given: the option or variable that the
    address is from. Raises InputError.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address == "auto":
        services: Any = importlib.import_module("ray._private.services")
        services.find_gcs_addresses.cache_clear()
        try:
            address = services.canonicalize_bootstrap_address(address)
        except ConnectionError as error:
            raise InputError(f"cannot reach Ray at auto: {' '.join(str(error).split())}") from None
    _check_form(address, given)
    _choose_token(address, asks=_asks_for_token(address))
    _check_token_and_versions(address)
    return address


def _check_form(address: str, given: str) -> None:
    """Raise InputError unless something listens at an address that may be a head's."""
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.rpartition(":")
    if scheme or not host or not port.isdigit():
        other = _NO_HEAD.get(scheme.removesuffix("s"), "give the address that `ray start` printed")
        raise InputError(
            f"{given}: wanted HOST:PORT of a cluster's head, such as 10.0.0.1:6379, got {address}; "
            + other.format(address=address)
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one or leave the address out"
        ) from None


@contextmanager
def token_settings_kept() -> Iterator[None]:
    """Restore Ray's environment variables about tokens, which Ray and this program change."""
    before = {name: os.environ.get(name) for name in TOKEN_SETTINGS}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _reread()


def _reread() -> None:
    """Have Ray read its environment variables again; it keeps what they were at its import."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _asks_for_token(address: str) -> bool:
    """Return whether a cluster refuses a question that has no token. Raises InputError if no
    cluster answers.
    """
    import grpc

    words: Any = importlib.import_module("ray.core.generated.gcs_service_pb2")
    calls: Any = importlib.import_module("ray.core.generated.gcs_service_pb2_grpc")
    question = words.CheckAliveRequest()
    with _channel(address) as channel:
        try:
            calls.NodeInfoGcsServiceStub(channel).CheckAlive(question, timeout=_ANSWERS_WITHIN)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return True
            raise InputError(
                f"no Ray cluster answers at {address}, but something else may "
                f"({' '.join(str(error.details()).split())[:150]}); give the port of its head "
                "(6379 where none was chosen)"
            ) from None
    return False


def _channel(address: str) -> Any:
    """Return a connection without a token, through no proxy, encrypted where Ray's are."""
    import grpc

    options = [("grpc.enable_http_proxy", 0)]
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(address, options=options)
    files = [os.environ[f"RAY_TLS_{name}"] for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")]
    keys = grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in files))
    return grpc.secure_channel(address, keys, options=options)


def _choose_token(address: str, *, asks: bool) -> None:
    """Set whether Ray uses a token in this process. Raises InputError if the user chose otherwise.

    Where no cluster asks for it, a token that an earlier Ray left in a file would make actors and
    driver refuse each other.
    """
    mode = os.environ.get(_MODE)
    if mode is not None and (mode.lower() == "token") != asks:
        wanted, other = ("a", "token") if asks else ("no", "disabled")
        raise InputError(
            f"{_MODE}: wanted {other}, since Ray at {address} asks for {wanted} token, got {mode}; "
            f"unset it, or set {_MODE}={other}"
        )
    os.environ[_MODE] = "token" if asks else "disabled"
    _reread()


def _check_token_and_versions(address: str) -> None:
    """Raise InputError if a cluster asks for a token that we lack, or has another Ray or Python.

    Ray itself would retry for half a minute, and then report only that it cannot connect.
    """
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RpcError

    try:
        # without it Ray ends the process where there is no token
        ensure_token_if_auth_enabled(create_token_if_missing=False)
        gcs = GcsClient(address=address)
    except (AuthenticationError, RuntimeError, RpcError) as error:
        raise wrong_token(address, error) from None
    check_versions(gcs, address)


def wrong_token(address: str, error: Exception) -> InputError:
    """Return the error of a token that a cluster refuses, with where Ray took it from."""
    file, by = Path.home() / ".ray" / "auth_token", ""
    if path := os.environ.get(_TOKEN_PATH):
        file, by = Path(path), f" ({_TOKEN_PATH})"
    if os.environ.get(_TOKEN):
        got = f"another one in {_TOKEN}"
    else:
        got = f"{'another one in' if file.is_file() else f'none in {_TOKEN} or'} {file}{by}"
    return InputError(
        f"Ray at {address} wanted the cluster's token, got {got}; set {_TOKEN}, or {_TOKEN_PATH}, "
        "to what `ray get-auth-token` prints where the cluster was started "
        f"({' '.join(str(error).split())[:150]})"
    )


def check_versions(gcs: Any, address: str) -> None:
    """Raise InputError where the cluster that `gcs` (Ray's client of its head) asks has another Ray
    or Python.

    Ray itself reports it when half of its processes are up, or, for an older Ray and a newer one,
    not at all. Ray decides which Pythons differ (RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL).
    """
    try:
        usage = importlib.import_module("ray._common.usage.usage_lib")
        rule = importlib.import_module("ray._private.utils")
        read, check, own = (
            usage.get_cluster_metadata,
            rule.check_version_info,
            rule.compute_version_info,
        )
    except (ImportError, AttributeError):
        return  # this Ray keeps the rule elsewhere and reports it itself
    try:
        cluster = read(gcs)
    except (AttributeError, RuntimeError):
        return  # nothing on record, as of a head that is still coming up
    try:
        check(cluster, address)
    except RuntimeError:
        ray, python = own()
        raise InputError(
            f"Ray at {address} wanted the versions that it was started with, Ray "
            f"{cluster['ray_version']} and Python {cluster['python_version']}, got Ray {ray} and "
            f"Python {python}; run with those (ray=={cluster['ray_version']}), or start the "
            "cluster with these"
        ) from None
