"""Dataclasses as commands of typer: each field is an argument or an option, with the docstring
under it as help.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from raydpzv.docstrings import docstring
from raydpzv.foreign import importing
from raydpzv.interrupts import leaving_at_once
from raydpzv.limits import require_room
from raydpzv.trust import trust_code
from scenarios.exit_codes import errors

_ROOM = ("run", "resume")
"""Commands that need room for a run's libraries."""
_READS = ("audit", "export", "fetch", "list", "publish", "replay", "report", "step", "watch")
"""Commands that read a record: what it names is not imported, unless the folder is trusted."""


def as_command(name: str, taken: type[Any]) -> Callable[..., None]:
    """Return a function for typer that carries out a command; taken: the dataclass of its arguments
    and options.

    The command is the function of its name in `scenarios.commands.NAME`, imported when it is
    called. Errors become one line and an exit status, with a traceback if the command has --verbose
    and gets it.
    """

    def call(**values: Any) -> None:
        with (
            errors(bool(values.get("verbose"))),
            importing(name not in _READS),
            trust_code(bool(values.get("trust_code"))),
        ):
            if name in _ROOM:
                require_room()
            with leaving_at_once():
                module = importlib.import_module(f"scenarios.commands.{name}")
            getattr(module, f"{name}_command")(taken(**values))

    parameters = list(_parameters(taken))
    call.__doc__ = taken.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    """Yield the fields of a dataclass as parameters with typer's description: an option, if the
    type names none.
    """
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        hint = hints[field.name]
        kind, *found = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        described = copy(found[0]) if found else typer.Option()
        if isinstance(described, OptionInfo) and described.default is ...:
            # typer's first argument is the option's name here; alone, it would also add --no-NAME
            described.default = f"--{field.name.strip('_').replace('_', '-')}"
        described.help = described.help or docstring(group, field.name)
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, described],
        )
