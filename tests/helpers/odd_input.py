"""Odd input for the command line, from a seeded generator: what is valid, mutated.

Scenario files, overrides, options, comparison files and run folders.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raydpzv.config import catalog

TINY = ["--set", "budget.updates=4", "--set", "evaluate.every=2"]
OWN_DATA = (
    "digits_dpzv",
    "vafl",
    "czofo",
    "zoo_vfl",
    "frozen",
    "sgd",
    "lstm_vafl",
    "digits_decomfl",
    "stragglers",
)
"""Scenarios whose data comes with the program and is small."""

VALUES = (
    "",
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1",
    "3",
    "1e308",
    "1e-308",
    "-0.0",
    "1e12",
    "1e-9",
    "0.5",
    "true",
    str(10**6),
    str(10**9),
    str(10**15),
    str(2**63),
    str(2**64),
    "9" * 5000,
    "0x" + "f" * 5000,
    "1" * 400,
    "[]",
    "{}",
    "[[]]",
    "[1, 2]",
    "[-1, 0.5]",
    '["a"]',
    "[" * 400 + "]" * 400,
    "{a={b={c=1}}}",
    "[nan]",
    "1979-05-27",
    "07:32:00",
    "1979-05-27T07:32:00Z",
    "9999-99-99",
    "'''x",
    '"',
    '""',
    '"auto"',
    '"none"',
    '"[/x]"',
    '"[bold]"',
    '":boom:"',
    r'"\u0000"',
    r'"\u001b[2J"',
    '"' + "x" * 9000 + '"',
    '"/dev/zero"',
    '"/"',
    '"é"',
    '"dpzv"',
    '"paper"',
    '"wall"',
    '"trace"',
    '"csv"',
    '"mnist"',
    '"poisson"',
    '"cnn"',
    '"resnet18"',
)
JSON_VALUES = (
    None,
    True,
    -1,
    0,
    10**15,
    10**400,
    1e308,
    float("nan"),
    "",
    "x",
    "[/x]",
    "\x1b",
    [],
    [1],
    {},
    {"a": 1},
    [[]],
)
WORDS = (
    "",
    " ",
    "[/x]",
    "é",
    "\udcff",
    "\x1b[2J",
    "\n",
    "..",
    "/",
    "-1",
    "x" * 300,
    "x" * 9000,
    "%s{}",
    "a=b",
    "=",
)


@dataclass(frozen=True)
class Case:
    """One input: what is given to the command line, and the file that it names, to see what went
    wrong.
    """

    arguments: list[str]
    file: Path | None = None


def mutated_text(draw: random.Random, text: str) -> bytes:
    """Return a TOML or JSON file with one to three things wrong or unusual in it."""
    content = text.encode()
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice(
            (other_value, other_value, other_value, other_key, other_lines, other_bytes)
        )(draw, content)
    return content


def other_value(draw: random.Random, content: bytes) -> bytes:
    places = list(re.finditer(rb"(?m)^(\s*\"?[\w.-]+\"?\s*[=:]\s*)(.*?)(,?)$", content))
    if not places:
        return content
    place = draw.choice(places)
    value = draw.choice(VALUES).encode(errors="surrogateescape")
    return content[: place.start(2)] + value + content[place.end(2) :]


def other_json(draw: random.Random, text: str) -> bytes:
    """Return a JSON file with another value somewhere, or without it."""
    tree = json.loads(text)
    place: dict | list = tree
    while True:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.3:
            break
        place = place[key]
    if draw.random() < 0.2:
        del place[key]
    else:
        place[key] = draw.choice(JSON_VALUES)
    return json.dumps(tree).encode()


def other_key(draw: random.Random, content: bytes) -> bytes:
    places = list(re.finditer(rb"[A-Za-z_]+", content))
    if not places:
        return content
    place = draw.choice(places)
    word = draw.choice(
        (b"x", b"methdo", b"a-b", b'"a b"', b"dpzv", b"[", b"a.b.c", b".".join([b"a"] * 3000))
    )
    return content[: place.start()] + word + content[place.end() :]


def other_lines(draw: random.Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    change = draw.randrange(4)
    if change == 0:
        del lines[place]
    elif change == 1:
        lines.insert(place, lines[place])
    elif change == 2:
        lines.insert(
            place,
            draw.choice((b"[method]", b"[x]", b"[[methods]]", b"[dpzv]", b"= 1", b"\xff\xfe")),
        )
    else:
        lines = lines[:place]
    return b"\n".join(lines)


def other_bytes(draw: random.Random, content: bytes) -> bytes:
    if not content:
        return b"\x00"
    place = draw.randrange(len(content))
    change = draw.randrange(3)
    if change == 0:
        return content[:place]
    if change == 1:
        return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]
    return content[:place] + draw.randbytes(4) + content[place:]


def settings() -> list[str]:
    """Every dotted key that a scenario which comes with the program sets, and some that none
    sets.
    """
    found = {f"data.{name}" for name in ("rows", "columns", "classes", "folder", "file")}
    found |= {f"budget.{name}" for name in ("bytes", "epsilon", "seconds")}
    found |= {
        "arrivals.file",
        "arrivals.kind",
        "clock.compute",
        "method.batches",
        "resources.timeout",
    }
    for path in catalog.FOLDER.glob("*.toml"):
        table = ""
        for line in path.read_text().splitlines():
            if line.startswith("["):
                table = line.strip("[]") + "."
            elif "=" in line and not line.startswith("#"):
                found.add(table + line.split("=")[0].strip())
    return sorted(found)


SETTINGS = settings()


def mutated_items(draw: random.Random) -> list[str]:
    found = []
    for _ in range(draw.randint(1, 3)):
        key = draw.choice(SETTINGS)
        item = draw.choice(
            (
                f"{key}={draw.choice(VALUES)}",
                f"{key}={draw.choice(VALUES)}",
                f"{key[:-1]}=1",
                key,
                key + "=",
            )
        )
        if draw.random() < 0.1:
            item = draw.choice(
                (
                    f"{{{item}}}",
                    f"a.{item}",
                    f".{item}",
                    f"{'a.' * 500}{item}",
                    f"{key}={draw.choice(WORDS)}",
                )
            )
        found += ["--set", item]
    return found


OPTIONS: dict[str, tuple[str, ...]] = {
    "run": ("--set", "--seed", "--out", "--runner", "--address", "--json", "--nothing"),
    "privacy": ("--set", "--seed", "--rows", "--json"),
    "compare": (
        "--methods",
        "--seeds",
        "--epsilons",
        "--targets",
        "--set",
        "--out",
        "--jobs",
        "--runner",
        "--json",
    ),
    "replay": ("--at", "--client", "--out"),
    "report": ("--out",),
    "resume": ("--runner", "--json"),
}
NUMBERS = (
    "-1",
    "0",
    "1",
    "7",
    "1e3",
    "nan",
    "9" * 5000,
    "9999999999999999",
    str(2**63),
    str(10**12),
    "0x10",
    "1_0",
    "",
)
GIVEN = (
    "1,2,3",
    "1,,2",
    ",",
    "none",
    "none,1",
    "0.9",
    "1.5",
    "-1,1",
    "inf",
    "vafl",
    "vafl,frozen",
    "dpzv,dpzv",
    "local",
    "auto",
    "9999999999999999",
    "0,0",
    "1e-300",
    "1e300",
)


class Inputs:
    """Makes cases out of what is valid: run folders (by name), scenarios, comparisons; files go
    into `folder`.
    """

    def __init__(self, draw: random.Random, valid: dict[str, Path], folder: Path) -> None:
        self.draw, self.valid, self.folder, self.count = draw, valid, folder, 0

    def new_path(self, suffix: str = "") -> Path:
        self.count += 1
        return self.folder / f"{self.count}{suffix}"

    def scenario_file(self) -> Case:
        path = self.new_path(".toml")
        name = self.draw.choice(catalog.names())
        path.write_bytes(mutated_text(self.draw, (catalog.FOLDER / f"{name}.toml").read_text()))
        command = self.draw.choice(
            (["privacy"], ["privacy", "--json"], ["run", *TINY, "--out", str(self.new_path())])
        )
        return Case([command[0], str(path), *command[1:]], path)

    def overrides(self) -> Case:
        command = self.draw.choice(("privacy", "privacy", "run"))
        start = [command, self.draw.choice(OWN_DATA)]
        if command == "run":
            start += [*TINY, "--out", str(self.new_path())]
        return Case([*start, *mutated_items(self.draw)])

    def options(self) -> Case:
        command = self.draw.choice(sorted(OPTIONS))
        folder = command in ("replay", "report", "resume")
        first = (
            str(self.copied(self.draw.choice(sorted(self.valid))))
            if folder
            else self.draw.choice(OWN_DATA)
        )
        if self.draw.random() < 0.2:
            first = self.draw.choice(
                (*WORDS, "digits_field", "/dev/null", "/dev/zero", "/", str(self.folder))
            )
        arguments = [command, first]
        if command in ("run", "compare") and self.draw.random() < 0.8:
            arguments += ["--out", str(self.new_path())]
        for option in self.draw.sample(
            OPTIONS[command], self.draw.randint(1, min(2, len(OPTIONS[command])))
        ):
            arguments.append(option)
            if option == "--out":
                arguments.append(
                    self.draw.choice(
                        (str(self.new_path()), f"{self.folder}/[/x]", "/dev/null/x", "/dev/null")
                    )
                )
            elif option == "--set":
                arguments.append(mutated_items(self.draw)[1])
            elif option not in ("--json", "--nothing"):
                arguments.append(self.draw.choice((*WORDS, *NUMBERS, *NUMBERS, *GIVEN, *GIVEN)))
        return Case(arguments)

    def comparison_file(self) -> Case:
        path = self.new_path(".toml")
        name = self.draw.choice(("digits_field", "delay_times", "straggler_times"))
        path.write_bytes(
            mutated_text(self.draw, (catalog.COMPARISONS / f"{name}.toml").read_text())
        )
        return Case(["compare", str(path), "--out", str(self.new_path())], path)

    def run_folder(self) -> Case:
        name = self.draw.choice(sorted(self.valid))
        folder = self.copied(name)
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
        target = self.draw.choice(
            [f for f in files if f.suffix in (".json", ".toml")]
            if self.draw.random() < 0.6
            else files
        )
        self.damage(target)
        commands = (
            ["report"],
            ["replay"],
            ["replay", "--client", "0"],
            ["resume"],
            ["replay", "--at", "1"],
        )
        command = self.draw.choice(commands)
        return Case([command[0], str(folder), *command[1:]], target)

    def copied(self, name: str) -> Path:
        return Path(shutil.copytree(self.valid[name], self.new_path()))

    def damage(self, target: Path) -> None:
        if target.suffix in (".json", ".toml") and self.draw.random() < 0.7:
            change = (
                other_json
                if target.suffix == ".json" and self.draw.random() < 0.7
                else mutated_text
            )
            target.write_bytes(change(self.draw, target.read_text()))
            return
        change = self.draw.randrange(5)
        if change == 0:
            target.write_bytes(b"")
        elif change == 1:
            target.unlink()
        elif change == 2:
            target.unlink()
            target.mkdir()
        elif change == 3 and target.suffix == ".json":
            target.write_text(
                self.draw.choice(("[]", "3", "null", "{}", '{"private": [1]}', "[" * 100_000))
            )
        else:
            target.write_bytes(other_bytes(self.draw, target.read_bytes()))

    def make(self) -> Case:
        kinds: tuple[Callable[[], Case], ...] = (
            self.scenario_file,
            self.overrides,
            self.options,
            self.comparison_file,
            self.run_folder,
        )
        return self.draw.choices(kinds, weights=(3, 4, 4, 2, 3))[0]()
