"""Population-based training (Jaderberg et al. 2017): the worst trials resume from the best, with
other step sizes.

All trials make equally many updates, then pause. Each of the worst takes a donor among the best: it
resumes from the donor's checkpoint and ledger, with the donor's step sizes multiplied by 0.8 or
1.2, or drawn anew. A trial is thus a run whose step sizes change at given updates, as its scenario
says. Run from its start it has the same bits.

Trials differ in step sizes alone. So they have the same batches and, under the virtual clock, the
same order of
uploads: between two pauses every trial releases each record equally often (`check_alike`). The
donor released once what its copy contains, and the part that the copy replaces released each record
equally often. All releases of a search are therefore those of its trials as they end, each counted
with every trial that contains it.

Every trial draws its noise anew from the operating system, never one draw on two sums. Directions
and batches, which hide nothing, stay the donor's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raydpzv.compare.run_comparison import check_own
from raydpzv.config.scenario import AnyScenario
from raydpzv.config.toml import override
from raydpzv.errors import DataError, InputError, RunError, SpecError
from raydpzv.files import write_atomically
from raydpzv.keys import Key
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.schedule import changes_of, scheduled, without_effect
from raydpzv.records.fork import fork, fork_size
from raydpzv.records.run_folder import RunFolder
from raydpzv.registry import METHODS
from raydpzv.search.search_folder import (
    figure,
    has_reached,
    metric_at,
    ranked,
    run_path,
    without_checkpoint,
)
from raydpzv.search.search_plan import Population, SearchPlan, Trial, check_pause
from raydpzv.search.space import Dimension, literal, rounded

FACTORS = (0.8, 1.2)
"""What a donor's step size is multiplied by, either as often."""
RESAMPLED = 0.25
"""Share of step sizes that are drawn anew instead."""
LEGS = 10
"""Legs where no interval is given."""
QUANTILE = 0.25
"""Share of the trials that take donors, and from which donors are taken, where none is given."""
_TURNS = "population.jsonl"
_Changes = dict[str, tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Exploit:
    """One trial resumes from another: their metrics then, its new step sizes, and the bytes that
    are copied.

    state_bytes: of checkpoint and ledger; row_bytes: of the record.
    """

    trial: int
    donor: int
    value: float | None
    donor_value: float
    settings: Mapping[str, float]
    state_bytes: int
    row_bytes: int


@dataclass(frozen=True)
class Turn:
    """What was decided when all trials had made so many updates."""

    updates: int
    exploits: tuple[Exploit, ...]


def population_of(
    trials: Sequence[Trial],
    space: Sequence[Dimension],
    interval: int | None,
    quantile: float | None,
    seed: int,
) -> Population:
    """Return how a population trains; interval: updates of a leg, None: a tenth of the budget, at
    an evaluation.

    Raises SpecError for settings that cannot change in mid-run, and for trials that cannot resume
    from one another.
    """
    spec = trials[0].spec
    _check_space(spec, space)
    if len(trials) < 2:
        raise SpecError(
            f"--scheduler pbt: wanted a population of 2 trials or more, got {len(trials)}; raise "
            "--samples"
        )
    _check_going_on(spec)
    budget, every = spec.budget.updates, spec.evaluate.every
    if budget is None or spec.budget.seconds or spec.budget.bytes or spec.budget.epsilon:
        raise SpecError(
            "--scheduler pbt: wanted budget.updates and no other budget, since all trials make the "
            "same updates before they are held against one another; set it, and leave out the "
            "others"
        )
    found = max(1, budget // LEGS // every) * every if interval is None else interval
    check_pause("--interval", interval, found, every, budget)
    share = QUANTILE if quantile is None else quantile
    if not 0 < share <= 0.5:
        raise SpecError(
            f"--quantile: wanted a share of the trials above 0 and at most 0.5, got {share:g}"
        )
    return Population(tuple(space), found, share, seed)


def step_sizes(config: Any) -> list[str]:
    """Return the names of a method's step sizes that can change in mid-run."""
    return [name for name in scheduled(config) if isinstance(getattr(config, name), float)]


def _check_space(spec: AnyScenario, space: Sequence[Dimension]) -> None:
    names, method = [f"method.{name}" for name in step_sizes(spec.method)], spec.method
    if not names:
        able = ", ".join(name for name, m in METHODS.items() if step_sizes(m.config()))
        raise SpecError(
            f'--scheduler pbt: changes step sizes in mid-run, and method.name = "{method.name}" '
            "has none that can be "
            f"changed; use asha, or one of {able}"
        )
    for dimension in space:
        if dimension.setting not in names:
            raise SpecError(
                f"{dimension.setting}: --scheduler pbt varies what it can change in mid-run, "
                f"{' and '.join(names)}; fix this one with --set"
            )
        if dimension.kind not in ("uniform", "loguniform", "choice"):
            raise SpecError(
                f"{dimension.setting}.{dimension.kind}: --scheduler pbt draws its population; make "
                "it uniform, loguniform or choice"
            )
        if dimension.setting.removeprefix("method.") in without_effect(method):
            raise SpecError(
                f'{dimension.setting}: with method.server = "{method.server}" the head takes no '
                "steps, so that "
                "--scheduler pbt has nothing to change there; vary method.lr, or let the head "
                "learn"
            )
        if changes_of(method, dimension.setting.removeprefix("method.")):
            raise SpecError(
                f"{dimension.setting}_at: is what --scheduler pbt makes; leave it out of the "
                "scenario"
            )


def _check_going_on(spec: AnyScenario) -> None:
    if spec.clock.kind == "wall":
        raise SpecError(
            "clock.kind: --scheduler pbt continues from checkpoints after so many updates, and "
            "real time does not "
            'stand still there; use "virtual"'
        )
    if why := without_checkpoint(spec):
        raise SpecError(
            f"--scheduler pbt: continues from checkpoints, and these runs have none, since {why}; "
            "use asha"
        )
    if spec.privacy and spec.privacy.mode != "none" and spec.privacy.noise == "seeded":
        raise SpecError(
            'privacy.noise: with "seeded" a trial of --scheduler pbt and the one that it continues '
            'from would draw the same noise for two sums, whose difference lacks it; use "system"'
        )
    if getattr(spec.method, "coins", "") == "system":
        raise SpecError(
            'method.coins: with "system" every trial of --scheduler pbt has batches of its own, so '
            "that what one "
            "releases of a record is not what another one does, and no ε of the search follows; "
            "leave it out"
        )


def legs(plan: SearchPlan) -> list[int | None]:
    """Return after how many updates each leg ends, the last one's being the run's own end
    (None).
    """
    if plan.population is None:
        return [None]
    return [*range(plan.population.interval, plan.budget, plan.population.interval), None]


def turns(folder: Path) -> list[Turn]:
    """Return what was decided so far, in order. Raises DataError if the file is damaged."""
    path = folder / _TURNS
    lines = path.read_text().splitlines() if path.is_file() else []
    try:
        found = [json.loads(line) for line in lines]
        return [Turn(t["updates"], tuple(Exploit(**e) for e in t["exploits"])) for t in found]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(
            f"{path}: a line is no decision of a search ({error}); start a new search"
        ) from None


def as_trained(plan: SearchPlan, found: Sequence[Turn]) -> tuple[Trial, ...]:
    """Return the trials as they are after these decisions: with the scenarios of those that they
    continued from.

    Their settings are those scenarios' first step sizes, and the later ones as `..._at`. Raises
    DataError for decisions that this search cannot have made.
    """
    if plan.population is None:
        return plan.trials
    trained: list[tuple[Trial, _Changes]] = [(t, dict.fromkeys(t.values, ())) for t in plan.trials]
    _check_turns(plan, found)
    for turn in found:
        for exploit in turn.exploits:
            origin, changes = trained[exploit.donor]
            first = turn.updates + 1
            new = {
                name: (*changes[name], (first, value)) for name, value in exploit.settings.items()
            }
            trained[exploit.trial] = origin, new
    return tuple(_as(trial, *then) for trial, then in zip(plan.trials, trained, strict=True))


def _check_turns(plan: SearchPlan, found: Sequence[Turn]) -> None:
    ends = [end for end in legs(plan) if end is not None]
    for number, turn in enumerate(found):
        pairs = [(e.trial, e.donor) for e in turn.exploits]
        takers, givers = {taker for taker, _ in pairs}, {giver for _, giver in pairs}
        wanted = set(plan.trials[0].values)
        if not (
            ends[number : number + 1] == [turn.updates]
            and all(type(n) is int and 0 <= n < len(plan.trials) for pair in pairs for n in pair)
            and len(takers) == len(pairs)
            and not takers & givers
            and all(e.settings.keys() == wanted for e in turn.exploits)
            and all(
                type(v) in (int, float) and 0 < v < math.inf
                for e in turn.exploits
                for v in e.settings.values()
            )
        ):
            raise DataError(
                f"{_TURNS}: line {number + 1}, after {turn.updates} updates, is no decision of "
                "this search; restore the file from a copy, or start a new search"
            )


def _as(trial: Trial, origin: Trial, changes: _Changes) -> Trial:
    settings = {name: f"{name}_at={json.dumps(made)}" for name, made in changes.items()}
    spec = override(origin.spec, [settings[name] for name, made in changes.items() if made])
    return replace(
        trial, settings=(*origin.settings, *settings.values()), spec=spec.noted(origin.spec.note)
    )


def current_trials(folder: Path, plan: SearchPlan) -> tuple[Trial, ...]:
    """Return the trials as they are by what was decided so far."""
    return as_trained(plan, turns(folder))


def to_go(folder: Path, plan: SearchPlan, until: int | None) -> list[Trial]:
    """Return the trials that have not made the leg that ends after so many updates (None: at their
    end).
    """
    standing = current_trials(folder, plan)
    return [t for t in standing if not t.skipped and not has_reached(t, run_path(folder, t), until)]


def take_turn(folder: Path, plan: SearchPlan, updates: int) -> Turn:
    """Decide which trial resumes from which after so many updates, record it, and do it; or what
    was decided before.

    Raises RunError if trials do not release alike.
    """
    known = {turn.updates: turn for turn in turns(folder)}
    if updates not in known:
        known[updates] = _decided(folder, plan, updates)
        _add(folder, known[updates])
    apply_turns(folder, plan)
    return known[updates]


def _add(folder: Path, turn: Turn) -> None:
    path = folder / _TURNS
    whole = "".join(f"{json.dumps(asdict(t))}\n" for t in (*turns(folder), turn))
    write_atomically(path, whole.encode())


def apply_turns(folder: Path, plan: SearchPlan) -> None:
    """Carry out the last decisions that a kill has left undone. Raises DataError where runs differ
    from them.
    """
    found = turns(folder)
    trained = as_trained(plan, found)
    _check_known(folder, trained, found)
    for exploit in found[-1].exploits if found else ():
        trial = trained[exploit.trial]
        path, donor = run_path(folder, trial), run_path(folder, trained[exploit.donor])
        former = _left(path, found[-1].updates)
        if _is(trial, path):
            continue
        if path.is_dir() and former.exists():
            raise DataError(
                f"{folder / _TURNS}: trial {exploit.trial} continued from another after "
                f"{found[-1].updates} updates, and not as this file has it; restore the file from "
                "a copy, or start a new search"
            )
        check_paused(exploit.trial, path, found[-1].updates)
        check_paused(exploit.donor, donor, found[-1].updates)
        changes = [item for item in trial.settings if not item.endswith("=[]") and "_at=" in item]
        fork(donor, path, changes, former)


def _left(path: Path, updates: int) -> Path:
    """Return where the run that a trial leaves after so many updates stays."""
    return path.with_name(f"{path.name}.until-{updates}")


def _check_known(folder: Path, trained: Sequence[Trial], found: Sequence[Turn]) -> None:
    """Raise DataError where a trial has continued from another of which the decisions say
    nothing.
    """
    known = {
        _left(run_path(folder, trained[e.trial]), turn.updates)
        for turn in found
        for e in turn.exploits
    }
    undone = {exploit.trial for exploit in found[-1].exploits} if found else set()
    for trial in trained:
        path = run_path(folder, trial)
        other = trial.number not in undone and RunFolder.begun(path) and not _is(trial, path)
        if other or not known.issuperset(path.parent.glob(f"{path.name}.until-*")):
            raise DataError(
                f"{folder / _TURNS}: trial {trial.number} ({path}) has continued from another, and "
                "not as this file has it; restore the file from a copy, or start a new search"
            )


def _is(trial: Trial, path: Path) -> bool:
    if not RunFolder.begun(path):
        return False
    try:
        check_own(trial.planned(), path)
    except InputError:
        return False
    return True


def _decided(folder: Path, plan: SearchPlan, updates: int) -> Turn:
    assert plan.population is not None
    population, trials = plan.population, [t for t in current_trials(folder, plan) if not t.skipped]
    paths = {t.number: run_path(folder, t) for t in trials}
    values = {n: metric_at(path, plan.metric, updates) for n, path in paths.items()}
    key = Key(population.seed) / "search" / "population" / updates
    exploits = []
    for number, donor in pairs(values, population.quantile, key, higher=plan.higher):
        check_alike(number, paths[number], donor, paths[donor], updates)
        size = fork_size(paths[donor])
        now = current(next(t for t in trials if t.number == donor))
        settings = {
            d.setting: explored(d, now[d.setting], key / number / d.setting)
            for d in population.space
        }
        value = None if math.isnan(values[number]) else values[number]
        exploits.append(
            Exploit(number, donor, value, values[donor], settings, size.state, size.rows)
        )
    return Turn(updates, tuple(exploits))


def pairs(
    values: Mapping[int, float], quantile: float, key: Key, *, higher: bool
) -> Iterator[tuple[int, int]]:
    """Yield (trial, donor): each of the worst trials with one of the best, drawn at the key, if
    that one is better.

    values: metrics by trial; without one a trial is worse than all others, and no donor. Equal ones
    rank by number.
    """
    count = min(math.ceil(len(values) * quantile), len(values) // 2)
    order = ranked(values, higher=higher)
    best = [n for n in order[:count] if not math.isnan(values[n])]
    for number in sorted(order[len(order) - count :]):
        better = [n for n in best if values[n] != values[number]]
        if better:
            yield number, better[int((key / number / "donor").generator().integers(len(better)))]


def current(trial: Trial) -> dict[str, float]:
    """Return the step sizes that a trial has now, by their settings."""
    values = trial.values
    return {
        name: changes[-1][1] if (changes := values.get(f"{name}_at")) else value
        for name, value in values.items()
        if not name.endswith("_at")
    }


def explored(dimension: Dimension, value: float, key: Key) -> Any:
    """Return another step size than a donor's within the space: times a factor, a choice's next, or
    a new draw.
    """
    resample, side = key.generator().random(2)
    if resample < RESAMPLED:
        return dimension.draw(key / "drawn")
    upwards = int(side * len(FACTORS))
    if dimension.kind == "choice":
        place = dimension.values.index(value) + (1 if upwards else -1)
        return dimension.values[min(max(place, 0), len(dimension.values) - 1)]
    return rounded(value * FACTORS[upwards], *dimension.values)


def check_alike(number: int, path: Path, donor: int, other: Path, updates: int) -> None:
    """Raise RunError unless what a trial released of each record is what its donor did, whose
    releases replace them.

    A run that diverged before it came so far, by the same updates, has released less.
    """
    check_paused(number, path, updates)
    check_paused(donor, other, updates)
    mine, theirs = (_account(run, updates) for run in (path, other))
    if mine is not None and not _equal(mine, theirs):
        raise RunError(
            f"trials {number} and {donor} have not released alike after {updates} updates, so that "
            "one cannot stand for the other in what the search spends; start a new search, and "
            "report this"
        )


def check_paused(number: int, run: Path, updates: int) -> None:
    """Raise RunError for a trial that somebody continued with alone: what it released since is in
    no account.
    """
    folder = RunFolder(run)
    if not RunFolder.begun(run):
        return
    checkpoint = folder.checkpoint()
    made = [
        checkpoint.round if checkpoint else 0,
        folder.summary()["updates"] if folder.has_summary() else 0,
    ]
    made += folder.rows()["release"]["round"].to_pylist()
    if folder.ledger.exists():
        with Ledger.open(folder.ledger) as ledger:
            made += ledger.since(0).round.tolist()
    if max(made) > updates:
        raise RunError(
            f"trial {number} ({run}) wanted to stand after {updates} updates, where the population "
            f"is held against one another, but has made {max(made)}: somebody continued it alone; "
            "start a new search"
        )


def _account(run: Path, updates: int) -> Any:
    checkpoint = RunFolder(run).checkpoint()
    if checkpoint is None or checkpoint.round != updates:
        return None
    state = checkpoint.state.get("run", checkpoint.state)
    return state["status"].get("privacy", {})


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


def facts_of(number: int, found: Sequence[Turn]) -> dict[str, Any]:
    """Return what a trial's row says of the population: donors and when, and what was copied for
    it.
    """
    mine = [(turn.updates, e) for turn in found for e in turn.exploits if e.trial == number]
    return {
        "exploits": len(mine),
        "donors": ", ".join(f"{e.donor} at {updates}" for updates, e in mine),
        "state_bytes": sum(e.state_bytes for _, e in mine),
        "row_bytes": sum(e.row_bytes for _, e in mine),
    }


def said(turn: Turn) -> list[str]:
    """Return a line for each trial that resumes from another one."""
    return [
        f"after {turn.updates} updates trial {e.trial} ({figure(e.value)}) continues from trial "
        f"{e.donor} ({figure(e.donor_value)}; {e.state_bytes:,} bytes of checkpoint and ledger) "
        "with " + ", ".join(f"{name}={literal(value)}" for name, value in e.settings.items())
        for e in turn.exploits
    ]
