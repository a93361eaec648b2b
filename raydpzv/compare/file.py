"""Comparison files: which methods meet on which scenario, and how each is set where noise is added
and where not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from raydpzv.compare.plan import MOST_SEEDS, Comparison, PlannedLine, by_seed
from raydpzv.config import catalog
from raydpzv.config.scenario import AnyScenario, method_fields, shared_fields
from raydpzv.config.toml import as_tree, changed
from raydpzv.config.tree import read_tree
from raydpzv.errors import SpecError, command, suggest
from raydpzv.methods.vertical.base import Batched
from raydpzv.registry import METHODS
from raydpzv.settings.bounds import Positive
from raydpzv.settings.fields import Section

Overrides = Annotated[tuple[str, ...], Field(strict=False)]
Epsilons = Annotated[tuple[Positive | Literal["none"], ...], Field(strict=False)]
Seeds = Annotated[int, Field(ge=1, le=MOST_SEEDS)] | Annotated[tuple[int, ...], Field(strict=False)]
Shares = Annotated[tuple[float, ...], Field(strict=False)]

CONTROLS = {"frozen": "frozen clients (control)", "sgd": "central SGD (control)"}
"""The controls of every vertical comparison, by method: no client is trained, and nothing is
private.
"""


_OF_NOISE = ("privacy.delta", "privacy.noise")
"""Settings without a meaning where no noise is added."""

_SIGMA = "privacy.sigma"
"""Noise of a method's own that aims at no ε: some papers print a deviation."""

_OF_PROOF = ("mode", "relation", "adversary", "delta", "permit_large_delta", "noise")
"""Settings of privacy.mode = "proved" that are no method's own."""


class MethodEntry(Section):
    """One method of a comparison, with its settings."""

    label: str = ""
    """Name in tables and pictures; left out: the scenario's, or the method's."""
    scenario: str | None = None
    """Scenario whose [method] and privacy.clip it takes; left out: the comparison's."""
    set: Overrides = ()
    """Settings of [method] and [privacy], as "key=value"; privacy.sigma adds noise that aims at no
    ε.
    """
    private: Overrides = ()
    """More of them, for the values of ε at which noise is added."""
    epsilons: Epsilons | None = None
    """Those of the comparison's values of ε that it takes part in; left out: all."""


class ComparisonFile(Section):
    """A comparison as its author writes it."""

    name: str = ""
    """Name of the comparison; left out: the file's."""
    title: str = ""
    """One line for `raydpzv list`."""
    scenario: str
    """Scenario that gives data, split, model, clocks, network, budget, evaluation and
    privacy.delta.
    """
    set: Overrides = ()
    """Settings for all, as "key=value"; those of [method] and [privacy] come before a method's
    own.
    """
    seeds: Seeds = 3
    """How many seeds, from 0, or which."""
    epsilons: Epsilons = ("none",)
    """Values of ε that noise is calibrated to; "none": no noise."""
    multiplier: Positive | None = None
    """Noise multiplier σ of all methods that protect users, each with its own ε, in place of values
    of ε.
    """
    targets: Shares = (0.8, 0.9)
    """Test accuracies whose cost in updates, bytes and seconds is asked for."""
    methods: Annotated[tuple[MethodEntry, ...], Field(strict=False)] = ()
    """The methods; left out: the scenario's own."""
    frozen: Overrides = ()
    """Settings of the control whose clients are never trained."""
    central: Overrides = ()
    """Settings of the control that is synchronous SGD through the whole model."""
    heads: str = ""
    """Why the methods' heads learn by different step sizes or in different ways; left out: they do
    not.
    """


def asked(
    names: Sequence[str],
    methods: Sequence[str] = (),
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> ComparisonFile:
    """Return the comparison of this name or path: a comparison's file, or scenarios and further
    methods.

    changes: seeds, epsilons and targets in place of the file's or the defaults. Raises SpecError.
    """
    _check_known(names)
    path = catalog.comparison(names[0])
    if path is not None:
        if len(names) > 1 or methods:
            raise SpecError(
                f"{names[0]}: is a comparison with methods of its own; leave out further scenarios "
                "and --methods"
            )
        replaced = dict(changes) | ({"multiplier": None} if "epsilons" in changes else {})
        return read_comparison_file(path).model_copy(update=replaced)
    for name in names[1:]:
        if catalog.comparison(name) is not None:
            raise SpecError(f"{name}: is a comparison; it is run alone: {command('compare', name)}")
    stems = [catalog.label_of(name) for name in names]
    entries = [
        MethodEntry(label=label, scenario=name)
        for label, name in zip(_unlike(stems, names), names, strict=True)
    ]
    if methods:
        own = catalog.load(names[0]).method.name
        entries += [MethodEntry(label=m, set=(f"method.name={m}",)) for m in methods if m != own]
    name = "-".join(dict.fromkeys(stems))[:60]
    file = ComparisonFile(name=name, scenario=names[0], methods=tuple(entries))
    return file.model_copy(update=dict(changes))


def _check_known(names: Sequence[str]) -> None:
    known = [*catalog.names(catalog.COMPARISONS), *catalog.names()]
    for name in names:
        catalog.refuse_standard_input(name)
        known_file = Path(name).suffix == ".toml" or Path(name).exists() or name in known
        if not known_file and not catalog.is_object(name):
            raise SpecError(
                f'"{name}" is no comparison and no scenario. {suggest(name, known)}See: raydpzv '
                "list"
            )


def _unlike(stems: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return labels that differ: stems of file names, or the paths if two stems are the same;
    objects are numbered.
    """
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise SpecError(f"{twice}: is there twice; name each scenario once")
    if len(set(stems)) == len(stems):
        return stems
    return [
        f"{stem} {n}" if catalog.is_object(name) else name
        for n, (stem, name) in enumerate(zip(stems, names, strict=True), 1)
    ]


def read_comparison_file(path: Path) -> ComparisonFile:
    """Read a comparison file. Raises SpecError."""
    tree = read_tree(path, "the comparison file")
    try:
        return ComparisonFile.model_validate({"name": path.stem, **tree})
    except ValidationError as error:
        raise SpecError(_fault(error, path.name)) from None


def resolved(file: ComparisonFile, overrides: Sequence[str] = ()) -> Comparison:
    """Return the comparison that a file asks for; overrides: for all methods, last.

    Raises SpecError, which names the entry, if its settings are wrong or contradict one another.
    """
    base = _base(file, overrides)
    first, last = (tuple(o for o in items if _of_methods(o)) for items in (file.set, overrides))
    _check_multiplier(file, base)
    lines = [line for _, line in method_lines(file, overrides)]
    lines += _controls(file, base, lines, first, last)
    check_heads(file, lines)
    seeds = by_seed(file.seeds)
    return Comparison(file.name, file.title, seeds, file.targets, tuple(lines), file.heads)


def method_lines(
    file: ComparisonFile, overrides: Sequence[str] = ()
) -> list[tuple[MethodEntry, PlannedLine]]:
    """Return the lines of a file's methods, without the controls it does not name, each with its
    entry. Raises SpecError.
    """
    base = _base(file, overrides)
    first, last = (tuple(o for o in items if _of_methods(o)) for items in (file.set, overrides))
    return [
        (entry, line)
        for entry in file.methods or (MethodEntry(label=base.method.name),)
        for line in _lines(entry.model_copy(update={"set": (*first, *entry.set)}), file, base, last)
    ]


def _base(file: ComparisonFile, overrides: Sequence[str]) -> AnyScenario:
    """Return the scenario that gives everything but the methods."""
    return catalog.load(file.scenario, [o for o in (*file.set, *overrides) if not _of_methods(o)])


def _check_multiplier(file: ComparisonFile, base: AnyScenario) -> None:
    if file.multiplier is None:
        return
    if getattr(base, "users", None) is None:
        raise SpecError(
            f"multiplier: goes with methods that protect users, and {file.scenario} has none "
            "([users]); give epsilons"
        )
    if file.epsilons != ("none",):
        raise SpecError(
            "multiplier: wanted either a noise multiplier or values of ε that noise is calibrated "
            f"to, got {file.multiplier:g} and epsilons = {list(file.epsilons)}; leave one out"
        )


def check_heads(file: ComparisonFile, lines: Sequence[PlannedLine]) -> None:
    """Refuse heads that learn differently, if the file does not say why: what a method reaches may
    be its head's merit, not its own.

    Central SGD has one step size for the whole model, and is no method here. A head that nobody
    trains has no merit. Methods without controls have no head.
    """
    if file.heads or not any(line.control for line in lines):
        return
    heads = [(line, _head(line.spec.method)) for line in lines if line.spec.method.name != "sgd"]
    found = [(line, head) for line, head in heads if head["server"] != "frozen"]
    first, alike = found[0]  # the frozen control is always there
    for line, head in found:
        if head != alike:
            here, others = (", ".join(f"{k}={v}" for k, v in h.items()) for h in (head, alike))
            raise SpecError(
                f"methods: the head of {line} learns otherwise ({here}) than that of {first} "
                f"({others}), so that a "
                "difference may be the heads'; give all the same, or say why not: heads = \"a "
                'sentence for the tables" '
                "(--heads on the command line)"
            )


def _head(method: Any) -> dict[str, Any]:
    """Return how a vertical method's head learns."""
    return {
        "server": getattr(method, "server", "sgd"),
        "server_lr": method.server_lr,
        "server_momentum": method.server_momentum,
    }


def _lines(
    entry: MethodEntry, file: ComparisonFile, base: AnyScenario, last: Sequence[str]
) -> Iterator[PlannedLine]:
    method = _method(entry, base)
    label = entry.label or entry.scenario or str(method["method"]["name"])
    wanted = [e for e in file.epsilons if entry.epsilons is None or e in entry.epsilons]
    is_control = METHODS[method["method"]["name"]].control
    multiplier = file.multiplier if _protects(method["method"]["name"]) else None
    for value in ("none",) if is_control else wanted:  # a control adds no noise
        epsilon = None if isinstance(value, str) else float(value)
        _check_overrides(entry.set, label, sigma=epsilon is None)
        _check_overrides([*entry.private, *last], label)
        noisy = epsilon is not None or multiplier is not None or _SIGMA in map(_key, entry.set)
        spec = _spec(base, method, epsilon, _items(entry, last, noisy=noisy), label, multiplier)
        said = label if multiplier is None else f"{label}, σ = {multiplier:g}"
        if not noisy and file.epsilons == ("none",) and _named_after_noisy(entry, label):
            said = f"{label}, without noise"
        yield PlannedLine(said, epsilon, is_control, spec)


def _named_after_noisy(entry: MethodEntry, label: str) -> bool:
    """Return whether a line is called after a scenario that adds noise."""
    if entry.scenario is None or label not in (entry.scenario, catalog.label_of(entry.scenario)):
        return False
    privacy = catalog.load(entry.scenario).privacy
    return privacy is not None and privacy.mode != "none"


def _protects(name: str) -> bool:
    """Return whether a method clips and noises what it releases of users."""
    method = METHODS[name]
    return method.users(method.config()) is not None


def _items(entry: MethodEntry, last: Sequence[str], *, noisy: bool) -> list[str]:
    """Return a method's overrides; without noise those of privacy for all are left out, but not its
    own clip.
    """
    if noisy:
        return [*entry.set, *entry.private, *last]
    own = [o for o in entry.set if _key(o) not in _OF_NOISE]
    return own + [o for o in last if not _key(o).startswith("privacy.")]


def _method(entry: MethodEntry, base: AnyScenario) -> dict[str, Any]:
    """Return the [method] and privacy.clip that a method starts with; a clip is of its method
    alone.
    """
    tree = as_tree(catalog.load(entry.scenario) if entry.scenario else base)
    names = [o.partition("=")[2].strip().strip('"') for o in entry.set if _key(o) == "method.name"]
    if names and names[-1] != tree["method"]["name"]:
        return {"method": _fresh(names[-1], tree["method"]), "clip": None}
    return {"method": tree["method"], "clip": (tree.get("privacy") or {}).get("clip")}


def _fresh(name: str, method: dict[str, Any]) -> dict[str, Any]:
    """Return another method's settings: its own defaults, but for what both mean alike (vertical:
    what all share).
    """
    if name not in METHODS:
        raise SpecError(
            f'method.name: wanted one of {", ".join(METHODS)}, got "{name}".'
            f" {suggest(name, METHODS)}".rstrip()
        )
    descriptor, own = METHODS[name], METHODS[method["name"]].config
    known = _CARRIED[descriptor.kind](descriptor.config, own)
    return {"name": name} | {k: v for k, v in method.items() if k in known and k != "name"}


def _spec(
    base: AnyScenario,
    method: dict[str, Any],
    epsilon: float | None,
    items: Sequence[str],
    label: str,
    multiplier: float | None = None,
) -> AnyScenario:
    tree = as_tree(base) | {"method": method["method"]}
    if METHODS[method["method"]["name"]].kind != base.kind:
        raise SpecError(
            f"{label}: {method['method']['name']} and {base.method.name} are not of one kind: "
            f"vertical methods ({', '.join(_of_kind('vertical'))}) share out features, the others "
            "rows; give each kind a scenario of its own"
        )
    noise = {"epsilon": epsilon, "multiplier": multiplier}
    asked_for = {name: value for name, value in noise.items() if value is not None}
    given = tree.pop("privacy", {})
    privacy = _PRIVACY[base.kind](tree, given, asked_for, own=_SIGMA in map(_key, items))
    if privacy is not None:
        tree["privacy"] = privacy | ({} if method["clip"] is None else {"clip": method["clip"]})
    where = label if epsilon is None else f"{label} at ε={epsilon:g}"
    return _named(lambda: changed(tree, items, where), where)


def _of_records(
    tree: dict[str, Any], given: Mapping[str, Any], noise: dict[str, float], *, own: bool
) -> dict[str, Any] | None:
    """Return the [privacy] of a vertical method with this noise; without any its budget has no ε.

    given: the comparison's [privacy]; own: has the method a deviation of its own?
    """
    if noise and given.get("mode") == "proved":
        return {k: v for k, v in given.items() if k in _OF_PROOF} | noise
    if noise:
        return (
            {"mode": "paper"} | {k: v for k, v in given.items() if k in ("noise", "delta")} | noise
        )
    if own:
        return {"mode": "paper"} | {k: v for k, v in given.items() if k == "noise"}
    tree["budget"] = {k: v for k, v in tree["budget"].items() if k not in ("epsilon", "adversary")}
    return {}


def _of_users(
    tree: dict[str, Any], given: Mapping[str, Any], noise: dict[str, float], *, own: bool
) -> dict[str, Any] | None:
    """Return the [privacy] of a horizontal method with this noise, None where it protects no
    users.
    """
    name = tree["method"]["name"]
    protects = _protects(name)
    if noise and not protects:
        raise SpecError(
            f"epsilons: {name} adds no noise here; horizontal methods without users compare "
            "without ε (epsilons = "
            '["none"])'
        )
    if not noise:
        tree["budget"] = {k: v for k, v in tree["budget"].items() if k != "epsilon"}
        return {"mode": "none"} if protects else None
    return (
        {k: v for k, v in given.items() if k in ("delta", "against", "noise")}
        | {"mode": "user"}
        | noise
    )


_PRIVACY = {"vertical": _of_records, "horizontal": _of_users}
_CARRIED = {"vertical": lambda one, other: method_fields(Batched), "horizontal": shared_fields}
"""The settings that a method takes over from another one."""


def _controls(
    file: ComparisonFile,
    base: AnyScenario,
    lines: Sequence[PlannedLine],
    first: Sequence[str],
    last: Sequence[str],
) -> list[PlannedLine]:
    """Return the controls that are not among the methods."""
    known = {line.spec.method.name for line in lines}
    found = []
    batches = {k: v for k, v in as_tree(base)["method"].items() if k in method_fields(Batched)}
    # what is set for all methods reaches a control as far as it has the setting
    settings = {"frozen": file.frozen, "sgd": file.central}
    for name in _of_kind(base.kind):
        if name not in CONTROLS or name in known:
            continue
        items, label = settings[name], CONTROLS[name]
        own = {f"method.{field}" for field in method_fields(METHODS[name].config)}
        before, after = ([o for o in items if _key(o) in own] for items in (first, last))
        method = {"method": {"name": name} | batches, "clip": None}
        spec = _spec(base, method, None, [*before, *items, *after], label)
        found.append(PlannedLine(label, None, True, spec))
    return found


def _of_kind(kind: str) -> list[str]:
    return [name for name in METHODS if METHODS[name].kind == kind]


def _check_overrides(items: Sequence[str], label: str, *, sigma: bool = False) -> None:
    """Refuse what methods may not differ in; sigma: they may have a deviation of their own."""
    for item in items:
        if not _of_methods(item):
            raise SpecError(
                f"{label}: {item} is not a setting of [method] or [privacy]; methods differ in "
                "these alone, so set it for all of them"
            )
        if _key(item) in ("privacy.mode", "privacy.epsilon") or (
            _key(item) == _SIGMA and not sigma
        ):
            raise SpecError(
                f"{label}: {item}: the comparison's epsilons say where noise is added and how "
                "much; to give a method "
                'a fixed deviation, put privacy.sigma in its `set`, with epsilons = ["none"]'
            )


def _of_methods(item: str) -> bool:
    return _key(item).startswith(("method.", "privacy."))


def _key(item: str) -> str:
    return item.partition("=")[0].strip()


def _named(make: Callable[[], AnyScenario], where: str) -> AnyScenario:
    """Say which method a complaint is about, if it does not."""
    try:
        return make()
    except SpecError as error:
        text = str(error)
        if "privacy.clip: wanted" in text:
            text += (
                "; for all: --set privacy.clip=NUMBER, for one method of a file: private ="
                ' ["privacy.clip=NUMBER"]'
            )
        raise SpecError(text if where in text else f"{where}: {text}") from None


def _fault(error: ValidationError, where: str) -> str:
    """Return what is wrong with a file, in one line."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        kind = MethodEntry if first["loc"][0] == "methods" else ComparisonFile
        known = sorted(kind.model_fields)
        wrong = str(first["loc"][-1])
        return (
            f"{name}: unknown setting in {where}. {suggest(wrong, known)}Settings here: "
            f"{', '.join(known)}"
        )
    if first["type"] == "missing":
        return (
            f"{name}: wanted in {where}, and it is not there; a comparison names the scenario it is"
            " run on"
        )
    name = ".".join(
        str(part) for part in first["loc"] if isinstance(part, int) or str(part).isidentifier()
    )
    if first["type"] == "tuple_type":
        return f"{name}: wanted a list in [ ], got {first['input']!r:.80} in {where}"
    wanted = first["msg"].removeprefix("Input should be ")
    return f"{name}: wanted {wanted}, got {first['input']!r:.80} in {where}"
