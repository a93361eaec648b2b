"""`raydpzv fetch`: download the folder of a storage."""

from __future__ import annotations

from scenarios.command_options import FetchCommand
from scenarios.storage_options import fetched


def fetch_command(options: FetchCommand) -> None:
    """Download the folder of a storage and print where it is."""
    fetched(options.uri, options.folder)
    print(options.folder)
