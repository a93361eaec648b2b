"""Commands of the program, called in this process."""

from typer.testing import CliRunner

from scenarios.cli import app


def call(*arguments):
    """Call the program with these words, whatever they are made of, and return what came of it."""
    return CliRunner().invoke(app, [str(a) for a in arguments])


def changed(*settings):
    """Return the words that change these settings of a scenario."""
    return [word for setting in settings for word in ("--set", setting)]


def stdout_of(result):
    """Return what a command prints that succeeds."""
    assert result.exit_code == 0, result.output
    return result.stdout


def complaint(result):
    """Return the one line that input gets that is refused."""
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("raydpzv: ")
    return lines[0]
