"""`raydpzv list`."""

from __future__ import annotations

from typing import Annotated

import typer

from raydpzv.lazy_import import defer


def list_(
    settings: Annotated[bool, typer.Option("--settings", help="Print every setting as Markdown.")] = False,
    papers: Annotated[
        bool, typer.Option("--papers", help="Print scenarios against their papers as Markdown.")
    ] = False,
) -> None:
    """List scenarios, methods and data sets."""
    if settings:
        defer("torch")
        from raydpzv.config.settings_reference import settings_page

        print(settings_page())
    elif papers:
        defer("torch")
        from raydpzv.compare.printed import comparison_lines
        from raydpzv.config.papers import scenarios_page

        print(scenarios_page(comparison_lines))
    else:
        from scenarios.list_output import show_list

        show_list()
