"""The progress of one run: a live view on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NamedTuple, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from raydpzv.config.scenario import AnyScenario, VerticalScenario
from raydpzv.config.timing import planned_seconds
from raydpzv.interrupts import stopping
from raydpzv.privacy.claim_words import CHANGES, TOO_LARGE, cut, standing
from raydpzv.records.callbacks import Callback, Fault, StatusCallback
from raydpzv.report.run_tables import rates_asked
from raydpzv.report.table import HeadTable
from raydpzv.report.text import duration, size
from raydpzv.sim.interfaces import Status
from scenarios.display import INTERVAL, Bar, Display

LOADING = "the data to load"
"""The first thing that a run waits for (see `Status.stage`)."""
COMPILING = "compiling kernels that are new on this machine: some seconds"
"""The note while a first run spends seconds in a compiler."""
LONGEST = 120
"""Characters of a line about a run at work."""
_MOST_CLIENTS = 8
"""Lines of clients in the live view; of more clients, those with the stalest embeddings."""


@contextmanager
def live_progress(
    spec: AnyScenario,
    console: Console,
    *,
    quiet: bool = False,
    stage: str = LOADING,
    interval: float = INTERVAL,
) -> Iterator[Callback]:
    """Show progress while the block runs; yields the run's callback that draws it.

    quiet: show nothing; stage: what the run waits for until it says so itself; interval: seconds
    between the lines that are printed if `console` is no terminal.
    """
    if quiet:
        yield Callback()
        return
    progress = _RunProgress(spec, console, stage, interval)
    with progress.display:
        yield progress


class _RunProgress(StatusCallback):
    """Shows how far a run is, and a line for each actor that was lost and made again."""

    def __init__(self, spec: AnyScenario, console: Console, stage: str, interval: float) -> None:
        super().__init__(self._update)
        self._spec, self._latest, self._began = spec, Status(stage=stage), time.monotonic()
        self._pace, self._waits, self._explained = _Pace(), _Waits(), False
        limit, self._unit = limit_of(spec)
        columns = (
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        bar = Bar(_unit_name(spec, self._unit), limit, columns)
        self.display = Display(
            console, bar, lambda: view(self._latest, spec), self._line, interval=interval
        )

    def fault(self, fault: Fault) -> None:
        """Print which actor was lost; the command's last line says what ended a run."""
        if fault.party != "run":
            self.display.say(f"{fault.party}: {fault.message}")

    def _update(self, status: Status) -> None:
        before, self._latest = self._latest, status
        amount, new_stage = amount_of(status, self._unit), status.stage != before.stage
        self._pace = _Pace() if status.stage else self._pace.after(amount, time.monotonic())
        self.display.count(amount)
        self.display.redraw(immediately=new_stage)
        if status.stage and new_stage and not self.display.is_drawn:
            self.display.say(self._line())

    def _line(self) -> str:
        """Return a line on the run, below one on the terms of its ε the first time that it has one.

        While it waits for the same thing, it says so after twice the time again, and nothing in
        between.
        """
        status, now, since = self._latest, time.monotonic(), self._pace
        if status.stage == self._waits.stage and now - self._began < 2 * self._waits.time:
            return ""
        self._waits = _Waits(status.stage, now - self._began) if status.stage else _Waits()
        line = progress_line(status, self._spec, now - self._began, now - since.time, since.amount)
        terms = "" if self._explained or status.stage else epsilon_terms(status, self._spec)
        self._explained = self._explained or bool(terms)
        return f"{terms}\n{line}" if terms else line


class _Waits(NamedTuple):
    """What a line said last that the start waits for, and at how many seconds of the run."""

    stage: str = ""
    time: float = 0.0


class _Pace(NamedTuple):
    """The time and the amount of the budget from which the rest of a run is forecast.

    That is from its first update on, or the first since it was resumed, before which it loads,
    compiles and evaluates.
    start: the amount before that update; time, amount: NaN before it.
    """

    start: float = math.nan
    time: float = math.nan
    amount: float = math.nan

    def after(self, amount: float, now: float) -> _Pace:
        """Return the pace once a run has used an amount of its budget."""
        if math.isnan(self.start):
            return _Pace(amount)
        return (
            _Pace(self.start, now, amount)
            if math.isnan(self.time) and amount > self.start
            else self
        )


def progress_line(
    status: Status, spec: AnyScenario, elapsed: float, under_way: float, before: float = 0.0
) -> str:
    """Return the state of a run as one line of text.

    elapsed: real seconds since it began; under_way: those since the amount `before` of its budget,
    which forecast the rest. If the line exceeds LONGEST characters, the least important parts are
    left out.
    """
    if status.stage:
        return f"starting, {duration(elapsed)}: waiting for {status.stage}"
    limit, unit = limit_of(spec)
    amount = amount_of(status, unit)
    of = f"/{limit:,.0f}" if math.isfinite(limit) else ""
    loss = f"loss {_number(status.loss, '.4g')}"
    sent = f"up {size(status.bytes_up)}, down {size(status.bytes_down)}"
    since, left = f"{duration(elapsed)} elapsed", ""
    if before < amount <= limit < math.inf:
        left = f"about {duration(under_way * (limit - amount) / (amount - before))} left"
    counted = f"{amount:,.0f}{of} {_unit_name(spec, unit)}"
    parts = [counted, score(status), loss, _short_epsilons(status), sent, since, left]
    for spare in (sent, loss, since, left):
        if len(", ".join(filter(None, parts))) > LONGEST:
            parts.remove(spare)
    return ", ".join(filter(None, parts))


def forecast(spec: AnyScenario) -> str:
    """Return how long a run under the wall clock will take, as a line; "" where its settings do not
    say.
    """
    seconds = planned_seconds(spec)
    if spec.clock.kind != "wall" or math.isinf(seconds):
        return ""
    return (
        f"Under the wall clock this run takes about {duration(seconds)} at the scenario's rates, "
        "and longer if this machine cannot keep them."
    )


def score(status: Status) -> str:
    """Return the newest model's accuracy in words, or the concordance of survival times; "" of
    models of numbers.
    """
    if not math.isnan(status.concordance):
        return f"concordance {status.concordance:.3f}"
    if math.isnan(status.accuracy) and not math.isnan(status.loss):
        return ""
    return f"accuracy {_number(status.accuracy, '.3f')}"


def view(status: Status, spec: AnyScenario) -> list[RenderableType]:
    """Return the lines below the bar: what the start waits for; then the model, ε with its terms,
    the clients.
    """
    if status.stage:
        return [Text(f"starting: waiting for {status.stage}")]
    sent = f"up {size(status.bytes_up)}  down {size(status.bytes_down)}"
    model = f"{score(status)}  loss {_number(status.loss, '.4g')}".lstrip()
    lines: list[RenderableType] = [Text(f"{model}  {sent}{_stale(status, spec)}")]
    if stated := _epsilons(status):
        lines += [
            Text(f"ε ({_terms(status, spec, 'closed-form GDP')}):"),
            Text(f"  {'; '.join(stated)}"),
        ]
    if spec.one_model:
        return lines + _participants(status, spec)
    return [*lines, _clients(status, spec)] if status.client_uploads else lines


def _participants(status: Status, spec: AnyScenario) -> list[RenderableType]:
    if not status.participants:
        return []
    rate = (
        f", {status.uploads / status.time:,.3g} per second of the run's clock"
        if status.time > 0
        else ""
    )
    return [
        Text(
            f"{status.participants:,} of {spec.split.clients:,} clients took part, "
            f"{status.uploads:,} uploads{rate}"
        )
    ]


def _clients(status: Status, spec: AnyScenario) -> HeadTable:
    """One line per client: uploads, activations per second of the run's clock (asked, achieved),
    staleness.
    """
    table = HeadTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in ("client", "uploads", "rate asked", "achieved", "staleness"):
        table.add_column(head, justify="right")
    asked, stalest = rates_asked(spec.arrivals.kind, spec.arrivals.rate, spec.split.clients), []
    for client, (uploads, age) in enumerate(
        zip(status.client_uploads, status.client_staleness, strict=True)
    ):
        rate = uploads / status.time if status.time > 0 else math.nan
        cells = (
            str(client),
            f"{uploads:,}",
            _number(asked[client], ".3g"),
            _number(rate, ".3g"),
            _number(age, ".1f"),
        )
        stalest.append((-1.0 if math.isnan(age) else age, client, cells))
    shown = sorted(stalest, reverse=True)[:_MOST_CLIENTS]
    for _, _, cells in sorted(shown, key=lambda line: line[1]):
        table.add_row(*cells)
    if len(stalest) > len(shown):
        table.caption = f"the {len(shown)} stalest of {len(stalest)} clients"
        table.caption_justify = "left"
    return table


def _stale(status: Status, spec: AnyScenario) -> str:
    """Ages of cached embeddings (vertical) or lag (asynchronous), and the late share; rounds wait,
    nothing is stale.
    """
    late = f"late {100 * status.late / max(status.uploads, 1):.0f} %"
    if not spec.one_model:
        return f"  staleness {_number(status.staleness, '.1f')} rounds  {late}"
    return f"  lag {_number(status.staleness, ',.0f')} updates  {late}" if spec.pulls else ""


def epsilon_terms(status: Status, spec: AnyScenario) -> str:
    """Return what ε is of, as the line before those that state it in short; "" where they state
    none.
    """
    if not _epsilons(status):
        return ""
    terms = _terms(status, spec, "GDP")
    if status.privacy.user_epsilons():
        return f"ε: {terms}; against outsiders, one silo, the server"
    claimed = (
        "" if math.isnan(status.privacy.epsilons()[0]) else "; claimed by the paper, not proved"
    )
    return f"ε: {terms}; against the clients{claimed}"


def _short_epsilons(status: Status) -> str:
    """Return the values of ε in short; their terms are in a line of their own."""
    if found := status.privacy.user_epsilons():
        shown = [_judged(value) for value in found]
        each = zip(shown, ("outsiders", "silo", "server"), strict=True)
        large = {f"{value}: {word}": None for value, word in shown if word == TOO_LARGE}
        return ", ".join(["ε " + ", ".join(f"{value} ({who})" for (value, _), who in each), *large])
    claimed, proved = status.privacy.epsilons()
    said_of = [] if math.isnan(proved) else [_judged(proved)]
    said_of += [] if math.isnan(claimed) else [(_number(claimed, ",.4g"), "claimed")]
    return ", ".join(f"ε {value} ({word})" for value, word in said_of)


def _epsilons(status: Status) -> list[str]:
    """Return the statements of ε: none in runs without noise, none of a paper if privacy.mode is
    "proved".
    """
    if found := status.privacy.user_epsilons():
        whom = ("anyone who sees the models", "one silo", "the server")
        return [_against(value, who) for value, who in zip(found, whom, strict=True)]
    paper, client = status.privacy.epsilons()
    stated = (
        [] if math.isnan(paper) else [f"{_number(paper, ',.3g')} claimed by the paper, not proved"]
    )
    return stated + ([] if math.isnan(client) else [_against(client, "the clients")])


def _against(epsilon: float, whom: str) -> str:
    value, word = _judged(epsilon)
    return (
        f"{value} {word} against {whom}" if word == "proved" else f"{value} against {whom}: {word}"
    )


def _judged(epsilon: float) -> tuple[str, str]:
    """Return a proved ε as a privacy table shows it, and what the table says of it."""
    claim = {"epsilon": epsilon, "holds": True}
    return cut(claim) or _number(epsilon, ",.4g"), standing(claim)


def _terms(status: Status, spec: AnyScenario, accountant: str) -> str:
    """Return the terms of ε: mechanism, neighbours, δ, accountant."""
    delta = f"δ={_delta(status, spec):g}"
    if spec.one_model:
        return f"discrete Gaussian mechanism, {CHANGES['add_remove']} one user, {delta}, GDP or PLD"
    relation = cast(VerticalScenario, spec).privacy.relation or "replace"
    return f"Gaussian mechanism, {CHANGES[relation]} one record, {delta}, {accountant}"


def _delta(status: Status, spec: AnyScenario) -> float:
    if not math.isnan(status.privacy.delta):
        return status.privacy.delta
    return spec.delta or math.nan


def amount_of(status: Status, unit: str) -> float:
    """Return how much of a budget in this unit is spent."""
    amounts = {"updates": float(status.updates), "seconds": status.time}
    return amounts.get(unit, float(status.bytes_up + status.bytes_down))


def _unit_name(spec: AnyScenario, unit: str) -> str:
    return "rounds" if unit == "updates" and spec.rounds else unit


@contextmanager
def foreground(console: Console, stop: threading.Event | None = None) -> Iterator[threading.Event]:
    """Set `stop` at the first Ctrl-C or SIGTERM, interrupt at a second; keep stdout for results:
    Ray prints there.
    """
    signals, stop = (signal.SIGINT, signal.SIGTERM), stop or threading.Event()
    with stopping(signals, stop, console.print), redirect_stdout(sys.stderr):
        yield stop


def limit_of(spec: AnyScenario) -> tuple[float, str]:
    """Return the budget that a bar is drawn against, and its unit: "updates", "seconds" or
    "bytes".
    """
    limits = ((getattr(spec.budget, unit), unit) for unit in ("updates", "seconds", "bytes"))
    return next((found for found in limits if found[0] is not None), (math.inf, "updates"))


def _number(value: float, form: str) -> str:
    if math.isnan(value):
        return "–"
    return "∞" if math.isinf(value) else format(value, form)
