"""`raydpzv new`: a scenario for one's own table, whose features lie with two parties or more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from raydpzv.config.paths import located
from raydpzv.config.toml import parse
from raydpzv.config.tree import read_toml
from raydpzv.data.column_facts import MOST_VALUES, ColumnFacts, column_facts
from raydpzv.data.files import one_line
from raydpzv.data.table_files import likely_form
from raydpzv.errors import DataError, InputError, SpecError, command, suggest
from raydpzv.experiment.prepare import prepare
from raydpzv.files import write_atomically
from scenarios.command_options import NewCommand
from scenarios.new_scenario import Proposal, confirmed, rare, scenario_text

_TARGETS = ("label", "target")


def new_command(options: NewCommand) -> None:
    """Write NAME.toml and print the next steps; write nothing if the scenario would not run. Raises
    InputError.
    """
    path = Path(options.name if options.name.endswith(".toml") else f"{options.name}.toml")
    if options.public_from_data and not options.private:
        raise SpecError(
            "--public-from-data: goes with --private, which needs public constants; give both"
        )
    if path.exists() and not options.force:
        raise InputError(
            f"{path}: is there already; choose another NAME, or add --force to replace it"
        )
    if not path.parent.is_dir():
        raise InputError(
            f'{path}: wanted a NAME in a folder that exists, got "{path.parent}"; create it first'
        )
    form = likely_form(options.data)
    facts = column_facts(options.data, form)
    predicted = _target(facts, options.target, options.data.name)
    private = options.private
    shared = given_parties(options.parties) if options.parties else even_parties(facts, predicted)
    typed = {"--data": str(options.data), "--target": options.target, "--parties": options.parties}
    words = [
        word for option, value in typed.items() if value is not None for word in (option, value)
    ]
    made_by = one_line(command("new", options.name, *words))
    proposal = Proposal(options.data, form, facts, predicted, shared, private, made_by)
    check(proposal)
    active = scenario_text(proposal, path, active=True)
    remarks = prepare(parse(located(read_toml(active), path.parent), path.name)).remarks
    held_back = private and not options.public_from_data
    write_atomically(
        path, (scenario_text(proposal, path, active=False) if held_back else active).encode()
    )
    for line in (
        *(f"look at it: {remark}" for remark in remarks),
        *_next_steps(proposal, path, held_back),
    ):
        print(line)


def given_parties(text: str) -> dict[str, tuple[str, ...]]:
    """Read "bank=income,age shop=visits", with ; between parties where names have blanks. Raises
    SpecError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for item in filter(
        None, (part.strip() for part in (text.split(";") if ";" in text else text.split()))
    ):
        name, equals, columns = item.partition("=")
        listed = tuple(column.strip() for column in columns.split(",") if column.strip())
        if not equals or not listed:
            raise SpecError(
                '--parties: wanted "bank=income,age shop=visits" (; between parties where names '
                f'have blanks), got "{item}"; give each party a name and its columns'
            )
        if name.strip() in found:
            raise SpecError(
                f'--parties: wanted each party once, got "{name.strip()}" twice; join its columns'
            )
        found[name.strip()] = listed
    return found


def even_parties(facts: Mapping[str, ColumnFacts], target: str) -> dict[str, tuple[str, ...]]:
    """Return two parties that share the usable columns evenly, in the file's order."""
    usable = tuple(name for name, column in facts.items() if name != target and not column.unusable)
    half = -(-len(usable) // 2)
    return {"first": usable[:half], "second": usable[half:]}


def check(proposal: Proposal) -> None:
    """Raise the error for a column that is unknown, or that cannot have its role."""
    name = one_line(proposal.file.name)
    features = [known for known in proposal.facts if known != proposal.target]
    for party, columns in proposal.parties.items():
        for column in columns:
            if column not in features:
                raise SpecError(
                    f'--parties: wanted columns of "{name}" for "{party}", got "{column}". '
                    f"{suggest(column, features)}Its features: {', '.join(features)}"
                )
            if why := proposal.facts[column].unusable:
                raise DataError(
                    f'--parties: column "{column}" of "{name}" cannot be a feature of "{party}": '
                    f"{why}; leave it out"
                )
    if proposal.of_numbers and not proposal.facts[proposal.target].numeric:
        raise DataError(
            f"--target: wanted a column of numbers, or of 2 to {MOST_VALUES} classes (texts, whole "
            "numbers, true or "
            f'false), and "{proposal.target}" of "{name}" is none; choose another'
        )


def _next_steps(proposal: Proposal, path: Path, held_back: bool) -> Iterator[str]:
    for party, columns in proposal.parties.items():
        yield f"{party}: {', '.join(columns)}"
        for facts in (proposal.facts[name] for name in columns):
            if facts.gap_word and not facts.numeric and not proposal.private:
                yield (
                    f'look at it: column "{one_line(facts.name)}" has {facts.gaps}; if that is a '
                    "value, add it to data.categories"
                )
    for column in proposal.unused:
        why = f" ({column.unusable})" if column.unusable else ""
        yield f"not used: {one_line(column.name) or 'a column'}{why}"
    yield from rare(proposal)
    yield f"written: {path}"
    if held_back:
        marked = 1 + len(confirmed(proposal))
        yield (
            f"before it runs: {marked} lines of it, marked PUBLIC?, were read from the data; "
            "replace each by what is known without the data, and delete the # before it"
        )
        yield (
            "if they are public knowledge as they are: the same command with --public-from-data "
            "--force"
        )
    yield f"{'then run it' if held_back else 'run it'}: {command('run', path)}"


def _target(facts: Mapping[str, ColumnFacts], given: str | None, file: str) -> str:
    target = given or next((name for name in _TARGETS if name in facts), "")
    if target in facts:
        return target
    got = f'"{given}". {suggest(given, facts)}' if given else "none. "
    raise SpecError(
        f'--target: wanted the column of "{one_line(file)}" to predict, got {got}Its columns: '
        f"{', '.join(facts)}"
    )
