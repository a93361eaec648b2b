import os
import resource
import subprocess
import sys

import pytest

import raydpzv
from raydpzv.config.catalog import names
from scenarios import screen
from scenarios.options import comparable_names, scenario_names
from tests.helpers.commands import call, complaint, stdout_of


def test_the_version():
    assert call("--version").stdout == f"raydpzv {raydpzv.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["run"],
        ["compare"],
        ["privacy"],
        ["resume"],
        ["replay"],
        ["report"],
        ["list"],
    ],
)
def test_short_help_is_help(command):
    assert stdout_of(call(*command, "-h")) == call(*command, "--help").stdout


def test_no_command_shows_what_there_is():
    result = call()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "privacy" in result.stderr


def test_names_of_scenarios_are_completed():
    assert scenario_names("digits_d") == ["digits_decomfl", "digits_dpzv"]
    assert "digits_field" in comparable_names("digits")
    assert scenario_names("") == names()
    environment = os.environ | {
        "_RAYDPZV_COMPLETE": "complete_bash",
        "COMP_WORDS": "raydpzv run zoo",
        "COMP_CWORD": "2",
    }
    shell = subprocess.run(
        [sys.executable, "-m", "raydpzv"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shell.stdout.split() == ["zoo_vfl"], shell.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("privacy", "digits_dpzv", "--set", "{a={b={c=1}}}"), "wanted key=value"),
        (("privacy", "digits_dpzv", "--set", "methdo.lr=1"), 'Did you mean "method"?'),
        (("privacy", "digits_dpzv", "--set", "a-b=1"), "a-b: unknown setting"),
        (("privacy", "digits_dpzv", "--set", "seed=" + "9" * 5000), "seed: wanted"),
        (("privacy", "digits_dpzv", "--set", "seed=0x" + "f" * 5000), "at most 64 bits"),
        (("privacy", "digits_dpzv", "--set", "seed=1979-05-27"), "seed: wanted"),
        (("privacy", "digits_dpzv", "--set", "a." * 500 + "b=1"), "a key of at most"),
        (
            (
                "privacy",
                "digits_dpzv",
                "--set",
                "data.source=synthetic",
                "--set",
                f"data.rows={10**12}",
            ),
            "2 GiB",
        ),
        (("privacy", "digits_dpzv", "--rows", "9" * 5000), "--rows"),
        (("privacy", "digits_\udcff"), "UTF-8"),
        (("privacy", "[/x]"), '"[/x]" is unknown'),
        *(
            ((verb, "-"), "save it as a .toml file")
            for verb in ("run", "privacy", "check", "compare")
        ),
        (("run", "digits_dpzv", "--out", "/dev/null/[/x]"), "/dev/null/[/x]: cannot write"),
        (("compare", "digits_dpzv", "--seeds", "9999999999999999"), "at most 10,000"),
        (("compare", "digits_dpzv", "--epsilons", ""), "--epsilons: wanted numbers"),
        (("replay", "/dev/null"), "not a run folder"),
        (("replay", "x", "--at", "1e3"), "--at"),
        (("nothing",), "No such command"),
        (("submit", "digits_dpzv"), "use `ray job submit`, see docs/cluster.md"),
        (("run", "digits_dpzv", "--nothing"), "see: raydpzv run --help"),
    ],
)
def test_one_line_says_what_is_wrong(arguments, said):
    assert said in complaint(call(*arguments))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"seed = 1\n[data]\nx = \xff", "UTF-8"),
        (b"a = " + b"[" * 5000, "nested too deeply"),
        (b"a." * 3000 + b"b = 1", "nested too deeply"),
        (b"a." * 30 + b"b = 1", "flatten it"),
        (b"seed = " + b"9" * 5000, "not a TOML file"),
        (b'title = "\\u0000"', "control characters"),
        (b"[dpzv]\nlr = 1", "dpzv: unknown setting"),
        (b"[split]\nclients = nan", "split.clients: wanted"),
    ],
)
def test_a_scenario_file_says_what_is_wrong_with_it(tmp_path, content, said):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    assert said in complaint(call("privacy", path))


def test_a_device_is_no_scenario():
    assert "folder or device" in complaint(call("privacy", "/dev/zero"))


@pytest.mark.parametrize("batches", ["shuffle", "uniform", "poisson"])
def test_any_number_of_updates_has_its_ε_at_once(batches):
    stdout_of(
        call(
            "privacy",
            "digits_dpzv",
            "--set",
            f"budget.updates={10**15}",
            "--set",
            f"method.batches={batches}",
        )
    )


def test_text_of_the_users_is_no_markup(capsys):
    screen.console().print("[/x] [bold]y[/bold] :smile:")
    assert capsys.readouterr().out == "[/x] [bold]y[/bold] :smile:\n"


def test_a_complaint_holds_nothing_that_a_terminal_obeys():
    assert screen.printable("a\x1b[2J\nb\udcff") == "a\\x1b[2J b\\udcff"
    assert len(screen.printable("9" * 10_000)) < 2100


LIBRARY = """import signal
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("what a library makes of it")
"""


def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "numpy.py").write_text(LIBRARY)
    command = [sys.executable, "-m", "raydpzv", "run", "digits_dpzv", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "raydpzv: interrupted\n")
    assert not (tmp_path / "run").exists()


# Too little memory and too few open files end a command in one line that says so, with exit status
# 2.

COMMAND = (
    sys.executable,
    "-m",
    "raydpzv",
    "run",
    "digits_dpzv",
    "--set",
    "budget.updates=10",
    "--quiet",
)


@pytest.mark.parametrize(
    ("name", "limit", "runner", "says"),
    [
        ("RLIMIT_AS", 700_000_000, "local", "GiB of addresses for a run, got a limit of 0.652"),
        (
            "RLIMIT_AS",
            2_500_000_000,
            "ray",
            "GiB of addresses for Ray's processes, got a limit of 2.33",
        ),
        ("RLIMIT_NOFILE", 64, "ray", "open files for Ray, got a limit of 64"),
    ],
)
def test_a_limit_is_named(tmp_path, name, limit, runner, says):
    which = getattr(resource, name)
    found = subprocess.run(
        [*COMMAND, "--runner", runner, "--out", str(tmp_path / "run")],
        preexec_fn=lambda: resource.setrlimit(which, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2, found.stderr
    assert says in found.stderr
    assert "ulimit" in found.stderr
    assert "internal error" not in found.stderr
    assert not (tmp_path / "run").exists()
