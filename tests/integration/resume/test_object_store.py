"""Runs in stores that have neither a rename nor modes: one in memory, and a server that imitates S3."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request

import pytest

import raydpzv
import scenarios
from raydpzv.errors import InputError
from raydpzv.records.run_folder import RunFolder
from raydpzv.storage.download import local_copy
from raydpzv.storage.filesystem import open_storage
from raydpzv.storage.index import OBJECTS, latest
from tests.helpers.programs import Forked, Kill, said
from tests.helpers.ray_heads import free_port
from tests.helpers.small_horizontal import stop_after
from tests.helpers.storages import copy_at_once

OFTEN = ("record.checkpoint_updates=10", "record.flush=0.01", "privacy.noise=seeded")


@pytest.fixture(scope="module")
def s3():
    """The environment of a client, as of a server with an empty bucket."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **silent) as server:
        try:
            while not answers(port):
                assert server.poll() is None, "the server ended"
                time.sleep(0.1)
            urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"))
            yield {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_ENDPOINT_URL": url,
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
        finally:
            server.kill()


def answers(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


@pytest.fixture(params=["fsspec+memory", "s3"])
def bucket(request, monkeypatch, tmp_path):
    """The URI of a folder that does not exist yet."""
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
    return f"{request.param}://bucket/{tmp_path.name}"


def digests(run):
    return run.summary["digest"], run.summary["model_digest"]


def test_a_run_is_found_again_on_another_machine(small, bucket, tmp_path, monkeypatch):
    copy_at_once(monkeypatch)
    spec, named = small(*OFTEN), {"storage_path": bucket, "name": "one"}
    raydpzv.run(spec, tmp_path / "first", **named, **stop_after(30))
    second = raydpzv.run(spec, tmp_path / "second", **named)
    assert digests(second) == digests(scenarios.run(spec))
    third = local_copy(f"{bucket}/one", tmp_path / "third")
    assert (third / "summary.json").read_bytes() == (
        tmp_path / "second" / "summary.json"
    ).read_bytes()
    assert stat.S_IMODE((third / "operator.json").stat().st_mode) == 0o600
    place = open_storage(f"{bucket}/one")
    assert set(place.names(OBJECTS)) == latest(place).objects
    with pytest.raises(InputError, match="holds an older copy"):
        raydpzv.run(spec, tmp_path / "first", **named)


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_from_s3_to_the_same_bits(s3, tmp_path):
    changes = ("privacy.noise=seeded", "budget.updates=200", "record.checkpoint_updates=7")
    spec, environment = raydpzv.load("digits_dpzv", changes), {**os.environ, **s3}
    words = ["-m", "raydpzv", "run", "digits_dpzv", "--quiet", "--storage", "s3://bucket/killed"]
    words += ["--or-resume", *(word for change in changes for word in ("--set", change)), "--out"]
    first = Forked([*words, str(tmp_path / "first")], environment, Kill(tmp_path, after=90))
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    said(Forked([*words, str(tmp_path / "second")], environment))
    found = RunFolder.open(tmp_path / "second").summary()
    assert (found["digest"], found["model_digest"]) == digests(raydpzv.run(spec))
