"""`raydpzv step`: walk through a run, update by update, and leave clients out of it."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial

from raydpzv.engine.split_model import Metrics
from raydpzv.errors import InputError, RaydpzvError, command
from raydpzv.files import as_json
from raydpzv.report.text import percent
from raydpzv.settings.party_names import client_number, named
from raydpzv.timetravel.history import RunHistory, open_history
from raydpzv.timetravel.shown import absence_line, lines_of, ranking_lines, ranking_table, terms_of
from raydpzv.timetravel.what_if import Absence, what_if
from scenarios.command_options import StepCommand

HELP = (
    "Enter: next update; b: back; a number: go there; fall: next update at which accuracy fell; "
    "stale N: next update that used something N updates old; clip: next update at which the clip "
    "began to bind; who: how far each client moved the model; without CLIENT: leave it out from "
    "here on; rank: leave each out; help: these lines; q: leave"
)
_RANKED = 10
"""Clients that a ranking shows at either end."""


def step_command(options: StepCommand) -> None:
    """Print one moment of a run, or what it would have been without clients; on a terminal, walk
    through it.
    """
    with open_history(options.run, options.moved or ()) as history:
        walk = _Walk(history, quiet=options.quiet or options.as_json)
        searches = options.fall or options.clip or options.stale is not None
        if options.fall + options.clip + (options.stale is not None) > 1:
            raise InputError("--fall, --clip, --stale: wanted one search at a time")
        walk.update = history.updates if options.at is None and not searches else options.at or 0
        if options.without is not None or options.rank:
            _print_absences(walk, options)
            return
        lines = walk.fall() if options.fall else walk.lines()
        if options.clip:
            lines = walk.clip()
        if options.stale is not None:
            lines = walk.stale(options.stale)
        if options.as_json:
            begin, _ = walk.update, list(lines)
            print(as_json(walk.facts() | ({"found": walk.update > begin} if searches else {})))
        elif sys.stdin.isatty() and options.at is None and not searches:
            walk.update = 0
            walk.prompt()
        else:
            print(*lines, sep="\n")


def _print_absences(walk: _Walk, options: StepCommand) -> None:
    found = what_if(walk.history, options.since)
    if options.without is not None:
        names = walk.history.spec.party_names
        absences = [found.leave_out(client_number(options.without, names, "--without"))]
    else:
        absences = found.ranked(walk.progress)
        walk.keep_ranking(absences, options.since)
    if options.as_json:
        print(as_json([asdict(absence) for absence in absences]))
        return
    if options.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(ranking_table(absences))
        return
    print(FIRST_ORDER.format(since=options.since))
    print(*map(walk.named, ranking_lines(absences, None if options.all else _RANKED)), sep="\n")


FIRST_ORDER = (
    "First order: from update {since} on, updates are made without the client's scalars. Nobody is "
    "asked again, though clients would have answered otherwise at other models."
)


class _Walk:
    """A place in a run, and the commands that move it."""

    def __init__(self, history: RunHistory, *, quiet: bool) -> None:
        self.history, self.update, self._quiet = history, 0, quiet
        self._unscored, self._terms = "", ""

    def prompt(self) -> None:
        """Read commands from the terminal until one leaves."""
        print(HELP)
        print(*self.lines(), sep="\n")
        commands: dict[str, Callable[[], Iterator[str]]] = {
            "": partial(self.go, 1), "b": partial(self.go, -1), "fall": self.fall, "clip": self.clip,
            "who": self.who, "rank": self.rank, "help": lambda: iter([HELP]),
        }  # fmt: skip
        while (typed := _typed()) not in ("q", "quit", "exit"):
            verb, _, rest = typed.partition(" ")
            try:
                if verb.isdigit():
                    lines = self.go(int(verb) - self.update)
                elif verb == "stale" and rest.isdigit():
                    lines = self.stale(int(rest))
                elif verb == "without" and rest:
                    lines = self.without(rest)
                elif typed in commands:
                    lines = commands[typed]()
                else:
                    lines = iter([f"{typed!r} is no command. {HELP}"])
                print(*lines, sep="\n")
            except RaydpzvError as error:
                print(error)

    def go(self, by: int) -> Iterator[str]:
        """Move by so many updates, and say what happened there."""
        self.history.moment(self.update + by)  # refuses what is beyond the ledger
        self.update += by
        yield from self.lines()

    def fall(self) -> Iterator[str]:
        """Go to the next update at which accuracy fell."""
        found = self.history.next_fall(
            self.update, lambda update: self.progress(update, self.history.updates)
        )
        yield from self._arrive(found, "accuracy did not fall")
        if found is not None:
            yield (
                f"  fell       from {percent(self.history.evaluate(found - 1).accuracy)} after "
                f"update {found - 1}"
            )

    def stale(self, least: int) -> Iterator[str]:
        """Go to the next update that used something so many updates old."""
        found = self.history.next_stale(self.update, least)
        yield from self._arrive(found, f"nothing was {least} updates old")

    def clip(self) -> Iterator[str]:
        """Go to the next update at which the clip began to bind."""
        yield from self._arrive(
            self.history.next_clip(self.update), "the clip did not begin to bind"
        )

    def who(self) -> Iterator[str]:
        """Say how far each client moved the model."""
        found = what_if(self.history)
        for client, length in found.pushes(self.update).items():
            yield self.named(found.pushed.format(client=client, length=length))

    def without(self, client: str) -> Iterator[str]:
        """Leave a client out from here on."""
        number = client_number(client, self.history.spec.party_names, "without")
        yield self.named(absence_line(what_if(self.history, self.update).leave_out(number)))

    def rank(self) -> Iterator[str]:
        """Leave each client out from here on."""
        yield FIRST_ORDER.format(since=self.update)
        found = what_if(self.history, self.update).ranked(self.progress)
        self.keep_ranking(found, self.update)
        yield from map(self.named, ranking_lines(found, _RANKED))

    def keep_ranking(self, ranked: Sequence[Absence], since: int) -> None:
        """Keep a ranking for the run's page."""
        rows = list(ranking_table(ranked))[1:]
        self.history.keep(ranking={"since": since, "rows": [row[1:] for row in rows]})

    def lines(self) -> Iterator[str]:
        """Yield what happened in this update."""
        metrics = self._scored()
        moment = self.history.moment(self.update)
        yield from map(self.named, lines_of(moment, self.history.updates, metrics, self._terms))
        self._terms = terms_of(moment) or self._terms
        if self._unscored:
            yield f"  no accuracy: {self._unscored}"
        if not self.history.folder.has_summary():
            again = command("resume", self.history.folder.path)
            yield f"  unfinished: rows of the last updates may be missing; {again}"

    def facts(self) -> dict[str, object]:
        """Return the same for JSON."""
        metrics = self._scored()
        return asdict(self.history.moment(self.update)) | {"metrics": metrics and asdict(metrics)}

    def named(self, line: str) -> str:
        """Return a line with the names of parties."""
        return named(line, self.history.spec.party_names)

    def progress(self, done: int, of: int) -> None:
        """Show how far a long search is."""
        if not self._quiet and sys.stderr.isatty():
            print(
                f"\r{done} of {of}\033[K",
                end="\r" if done == of else "",
                file=sys.stderr,
                flush=True,
            )

    def _arrive(self, found: int | None, otherwise: str) -> Iterator[str]:
        if found is None:
            yield f"{otherwise} after update {self.update}"
            return
        self.update = found
        yield from self.lines()

    def _scored(self) -> Metrics | None:
        try:
            return self.history.evaluate(self.update)
        except InputError as error:
            self._unscored = str(error)
            return None


def _typed() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return "q"
