"""What a cluster's dashboard may answer, played by a small server: nothing here needs a Ray."""

import io
import json
import platform
import socket
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from actors import job_server
from actors.job_server import JobServer
from raydpzv.errors import InputError, RunError

ray = pytest.importorskip("ray")
HERE = {"/api/version": {"ray_version": ray.__version__}}
PYTHON = "/api/v0/cluster_metadata"


@pytest.fixture
def dashboard():
    """An address whose answers are those put into a dictionary: path to JSON, or to a status."""
    answers: dict[str, object] = dict(HERE)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found = answers.get(self.path, 404)
            body = b"" if isinstance(found, int) else json.dumps(found).encode()
            self.send_response(found if isinstance(found, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self):
            answers["package"] = self.rfile.read(int(self.headers["Content-Length"]))
            answers[self.path] = answers.get("PUT", {})
            self.do_GET()

        def do_POST(self):
            answers["submitted"] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answers[self.path] = {
                "job_id": None,
                "submission_id": answers["submitted"]["submission_id"],
            }
            self.do_GET()

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", answers
        server.shutdown()


def metadata(python):
    return {PYTHON: {"result": True, "data": {"pythonVersion": python}}}


def test_its_versions_are_compared_with_ours(dashboard):
    address, answers = dashboard
    answers |= metadata(platform.python_version())
    server = JobServer(address + "/")
    assert (server.address, server.differences()) == (address, [])
    answers |= {"/api/version": {"ray_version": "2.53.1"}} | metadata("3.12.9")
    assert JobServer(address).differences() == [
        f"Ray 2.53.1 there, {ray.__version__} here",
        f"Python 3.12.9 there, {platform.python_version()} here",
    ]
    del answers[PYTHON]  # not every version tells
    assert JobServer(address).python == ""


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"/api/version": {"ray_version": "2.51.2"}}, "wanted Ray 2.52 or newer there, got 2.51.2"),
        (metadata("3.10.2"), "wanted Python 3.11 or newer there, got 3.10.2"),
        ({"/api/version": 401}, "wanted the cluster's token, got none or another one"),
        ({"/api/version": 403}, "wanted the cluster's token, got none or another one"),
        ({"/api/version": 404}, "something else answers there: HTTP 404"),
    ],
    ids=["ray", "python", "no token", "wrong token", "no dashboard"],
)
def test_an_address_that_takes_no_job_is_refused(dashboard, answer, line):
    address, answers = dashboard
    answers |= answer
    with pytest.raises(InputError, match=line):
        JobServer(address)


def test_nobody_at_the_address_is_named_at_once():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        with pytest.raises(
            InputError, match=r"no Ray dashboard answers at http://127\.0\.0\.1:\d+"
        ):
            JobServer(f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.timeout(20)
def test_somebody_who_never_answers_is_named(monkeypatch):
    monkeypatch.setattr(job_server, "_ANSWER", 0.2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(InputError, match="timed out"),
    ):
        JobServer(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "file:///tmp/x"])
def test_an_address_of_another_kind_is_refused(address):
    with pytest.raises(InputError, match="wanted the HTTP address of the cluster's dashboard"):
        JobServer(address)


def test_the_address_is_found_where_ray_looks(dashboard, monkeypatch):
    address, _ = dashboard
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
    assert JobServer().address == address


SECRETS = (
    ".env",
    "deep/.env.local",
    "one/operator.json",
    "keys/a.pem",
    ".ssh/config",
    "id_ed25519",
)
USUAL = (".git/HEAD", ".venv/x.py", "a/__pycache__/a.pyc")
DEFAULTS = ("b.pyc", "runs/one/summary.json")


@pytest.mark.parametrize(
    ("ignores", "excluded", "packed"),
    [
        (
            {},
            (*DEFAULTS, *SECRETS),
            ("own.toml", "deep/runs/x", ".env.example", "one/summary.json"),
        ),
        ({".rayignore": "*.csv\n"}, ("x.csv", *SECRETS), ("own.toml", *DEFAULTS)),
        (
            {".rayignore": "!/keys/a.pem\n", ".gitignore": "*.csv\n"},
            ("x.csv", ".env"),
            ("keys/a.pem",),
        ),
        ({"deep/.gitignore": "raw/\n"}, ("deep/raw/y",), ("raw/y",)),
    ],
    ids=["nothing", "rayignore", "secret", "nested"],
)
def test_ray_packs_the_project_and_the_program_without_secrets(
    dashboard, tmp_path, ignores, excluded, packed
):
    address, answers = dashboard
    for name in (*USUAL, *excluded, *packed):
        put(tmp_path / name)
    for name, text in ignores.items():
        put(tmp_path / name, text)
    JobServer(address).submit("one", "python -m raydpzv", tmp_path, {"a": "b"})
    names = sent(answers)
    assert {
        *packed,
        *ignores,
        "raydpzv/__main__.py",
        "actors/__init__.py",
        "scenarios/digits_dpzv.toml",
    } <= names
    assert not {*USUAL, *excluded} & names
    assert not any("__pycache__" in name or name.endswith("operator.json") for name in names)
    assert answers["submitted"]["metadata"]["a"] == "b"


def test_a_project_that_contains_the_program_is_packed_alone(dashboard, tmp_path):
    address, answers = dashboard
    for name in ("raydpzv/__main__.py", "actors/mine.py"):
        put(tmp_path / name)
    JobServer(address).submit("one", "python -m raydpzv", tmp_path, {})
    assert sent(answers) == {"raydpzv/__main__.py", "actors/mine.py"}


@pytest.mark.parametrize("name", ["actors/mine.py", "scenarios.py"])
def test_a_project_with_a_package_name_of_the_program_is_refused(dashboard, tmp_path, name):
    address, answers = dashboard
    put(tmp_path / name)
    with pytest.raises(InputError, match="bears the name of a package of raydpzv"):
        JobServer(address).submit("one", "python -m raydpzv", tmp_path, {})
    assert "submitted" not in answers


def test_a_stopped_job_gets_two_minutes_to_write_its_summary(dashboard, tmp_path):
    """Ray gives three seconds. The process that watches a job reads this from the job's
    environment.
    """
    address, answers = dashboard
    JobServer(address).submit("one", "python -m raydpzv", tmp_path, {})
    assert answers["submitted"]["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "120"}


def test_an_ignore_file_that_is_not_text_is_refused(dashboard, tmp_path):
    (tmp_path / ".rayignore").write_bytes(b"\xff*\n")
    with pytest.raises(InputError, match=r"\.rayignore: wanted patterns in UTF-8"):
        JobServer(dashboard[0]).submit("one", "python -m raydpzv", tmp_path, {})


def test_a_package_that_ray_finds_too_large_is_refused_with_advice(dashboard, tmp_path):
    address, answers = dashboard
    answers["PUT"] = 413
    put(tmp_path / "large.csv")
    with pytest.raises(
        InputError, match="wanted a package of at most 100 MiB, which is what Ray takes"
    ):
        JobServer(address).submit("one", "python -m raydpzv", tmp_path, {})


def put(path, text="text"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def sent(answers):
    """Return the names of the files in the package that the dashboard got."""
    return set(zipfile.ZipFile(io.BytesIO(answers["package"])).namelist())


def test_a_ray_that_does_not_look_for_a_token_by_itself_is_asked(dashboard, monkeypatch):
    setup = pytest.importorskip("ray._private.authentication.authentication_token_setup")
    monkeypatch.delattr(setup, "maybe_enable_token_auth_if_token_available", raising=False)
    address, _ = dashboard
    assert JobServer(address).address == address


def test_a_job_that_is_not_known_is_named(dashboard):
    address, _ = dashboard
    with pytest.raises(InputError, match=r"--job nobody: the cluster at .* knows no such job"):
        JobServer(address).metadata("nobody")


class Client:
    """Ray's client: a log that comes in pieces, over a line that breaks."""

    def __init__(self, pieces, status, code=None, breaks=()):
        self.text, self.status, self.code = "".join(pieces), status, code
        self.pieces, self.breaks = pieces, list(breaks)

    async def tail_job_logs(self, job):
        for n, piece in enumerate(self.pieces):
            if self.breaks and self.breaks[0] == n:
                self.breaks.pop(0)
                raise RuntimeError("WebSocket connection closed unexpectedly")
            yield piece

    def get_job_info(self, job):
        return self

    def get_job_logs(self, job):
        return self.text + "its last words"

    message = "what Ray says, last available logs (truncated to 20,000 chars):\none"

    @property
    def driver_exit_code(self):
        return self.code


@pytest.fixture
def server(dashboard, monkeypatch):
    monkeypatch.setattr(job_server, "_LOOK", 0.01)
    return JobServer(dashboard[0])


@pytest.mark.parametrize("breaks", [(), (0,), (2,), (1, 3, 0)])
def test_a_log_is_whole_and_comes_once_however_often_the_line_breaks(server, breaks):
    server._client = Client(["one\n", "two", " three\n", "four\n"], "SUCCEEDED", breaks=breaks)
    pieces = []
    assert server.follow("job", pieces.append).status == 0
    assert "".join(pieces) == "one\ntwo three\nfour\nits last words"


@pytest.mark.parametrize(
    ("status", "code", "exit_status"),
    [
        ("SUCCEEDED", 0, 0),
        ("FAILED", 2, 2),
        ("FAILED", -9, 137),
        ("FAILED", None, 1),
        ("FAILED", 0, 1),
        ("STOPPED", -15, 130),
    ],
)
def test_the_exit_status_is_the_jobs(server, status, code, exit_status):
    server._client = Client([], status, code)
    end = server.follow("job", lambda text: None)
    assert (end.status, end.message) == (exit_status, "what Ray says")


def test_a_cluster_that_is_gone_is_named(server, monkeypatch):
    monkeypatch.setattr(job_server, "_LOST", 0.05)
    server._client = Client(["one"], "RUNNING", breaks=[0] * 10**6)
    with pytest.raises(RunError, match=r"lost the cluster at .* the job j7 may continue there"):
        server.follow("j7", lambda text: None)


def test_a_dashboard_that_goes_away_is_named(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path in HERE else 404)
            self.end_headers()
            self.wfile.write(json.dumps(HERE.get(self.path)).encode())

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as dashboard:
        threading.Thread(target=dashboard.serve_forever, args=(0.01,), daemon=True).start()
        server = JobServer(f"127.0.0.1:{dashboard.server_port}")
        dashboard.shutdown()
    monkeypatch.setattr(job_server, "_LOST", 0.05)
    with pytest.raises(
        RunError, match=r"lost the cluster at http://127\.0\.0\.1:\d+ \(.*; the job j7 may continue"
    ):
        server.follow("j7", lambda text: None)
    with pytest.raises(InputError, match="does not do what was asked"):
        server.stop("j7")
