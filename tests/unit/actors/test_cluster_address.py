import re
import socket
from concurrent import futures
from contextlib import contextmanager

import grpc
import pytest

from actors import cluster_address
from actors.cluster_address import joinable, token_settings_kept
from raydpzv.errors import InputError
from tests.helpers.loading import refusal

ALIVE = "CheckAlive"
TOKEN = "ab" * 32


class Head(grpc.GenericRpcHandler):
    """Answers the question whether a head is alive, as one that asks for a token or not."""

    def __init__(self, *, asks):
        self._asks = asks

    def service(self, call):
        given = dict(call.invocation_metadata).get("authorization")

        def answer(request, context):
            if self._asks and given != f"Bearer {TOKEN}":
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer) if ALIVE in call.method else None


@contextmanager
def head(*, asks, keys=None):
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[Head(asks=asks)])
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, keys) if keys else server.add_insecure_port(place)
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.fixture
def chosen(monkeypatch, tmp_path):
    """What Ray is told about tokens, by a user with an empty home unless a test says otherwise."""
    told = []
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(
        cluster_address, "_reread", lambda: told.append(cluster_address.os.environ["RAY_AUTH_MODE"])
    )
    monkeypatch.setattr(cluster_address, "_check_token_and_versions", lambda address: None)
    return told


def left_by_an_earlier_ray(home):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(TOKEN)


@pytest.mark.parametrize("asks", [False, True])
def test_a_token_is_used_if_and_only_if_the_cluster_asks_for_one(asks, chosen, tmp_path):
    left_by_an_earlier_ray(tmp_path)
    with head(asks=asks) as address:
        assert joinable(address, "--address") == address
    assert chosen == ["token" if asks else "disabled"]


@pytest.mark.parametrize(
    ("asks", "mode", "said"),
    [
        (True, "disabled", "RAY_AUTH_MODE: wanted token, since .* asks for a token, got disabled"),
        (False, "token", "RAY_AUTH_MODE: wanted disabled, since .* asks for no token, got token"),
    ],
)
def test_a_mode_that_the_user_set_otherwise_is_a_mismatch(asks, mode, said, chosen, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with head(asks=asks) as address, pytest.raises(InputError, match=said):
        joinable(address, "--address")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got none in RAY_AUTH_TOKEN or HOME/.ray/auth_token; set RAY_AUTH_TOKEN"),
        ({"file": TOKEN}, "got another one in HOME/.ray/auth_token;"),
        ({"RAY_AUTH_TOKEN": TOKEN, "file": TOKEN}, "got another one in RAY_AUTH_TOKEN;"),
        (
            {"RAY_AUTH_TOKEN_PATH": "HOME/own"},
            "got none in RAY_AUTH_TOKEN or HOME/own (RAY_AUTH_TOKEN_PATH);",
        ),
    ],
)
def test_a_wrong_token_is_one_line_with_its_file_and_variable(given, said, chosen, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        if given.pop("file", None):
            left_by_an_earlier_ray(tmp_path)
        for name, value in given.items():
            patch.setenv(name, value.replace("HOME", str(tmp_path)))
        line = str(cluster_address.wrong_token("10.0.0.1:6379", RuntimeError("refused\nthere")))
    assert said.replace("HOME", str(tmp_path)) in line
    assert line.endswith("where the cluster was started (refused there)")
    assert "\n" not in line


def test_what_ray_sets_about_tokens_does_not_outlast_the_connection(chosen, monkeypatch):
    environ = cluster_address.os.environ
    monkeypatch.setattr(cluster_address, "_reread", lambda: None)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "own")
    with token_settings_kept():
        environ["RAY_AUTH_MODE"] = "token"
        environ["RAY_AUTH_TOKEN"] = "another"
    assert "RAY_AUTH_MODE" not in environ
    assert environ["RAY_AUTH_TOKEN"] == "own"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://10.0.0.1:10001", "that is the address of a Ray Client; run `ray job submit`"),
        ("http://10.0.0.1:8265", "run `ray job submit --address http://10.0.0.1:8265`"),
        ("10.0.0.1", "give the address that `ray start` printed"),
        (":6379", "give the address that `ray start` printed"),
        ("", "give the address that `ray start` printed"),
    ],
)
def test_an_address_that_is_no_heads_is_refused_with_what_to_do(address, said, chosen):
    wanted = r"\A--address: wanted HOST:PORT of a cluster's head"
    with refusal(InputError, wanted, re.escape(said)):
        joinable(address, "--address")


def test_the_address_of_the_environment_is_checked_and_named(chosen, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    with pytest.raises(InputError, match=r"^RAY_ADDRESS: wanted HOST:PORT"):
        joinable("auto", "RAY_ADDRESS")
    with head(asks=False) as address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert joinable("auto", "RAY_ADDRESS") == address


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_another_service_is_no_cluster(answer, chosen, monkeypatch):
    monkeypatch.setattr(cluster_address, "_ANSWERS_WITHIN", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as other, futures.ThreadPoolExecutor(1) as pool:

        def serve():
            for _ in range(2):  # whether something listens; the question
                with other.accept()[0] as caller:
                    caller.sendall(answer)

        serving = pool.submit(serve) if answer is not None else None
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answers at {address}, but .*6379"):
            joinable(address, "--address")
        assert serving is None or not serving.cancelled()


def test_nobody_at_an_address_is_reported(chosen):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(InputError, match=rf"no Ray cluster answers at {address} .*refused"):
        joinable(address, "--address")
    with pytest.raises(InputError, match=r"no Ray cluster answers at 127\.0\.0\.1:99999"):
        joinable("127.0.0.1:99999", "--address")
