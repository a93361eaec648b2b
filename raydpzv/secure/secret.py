"""Base of objects with secrets: they show their class alone and stay in their process."""

from __future__ import annotations

from typing import Any

from raydpzv.errors import RunError


class Secret:
    """Base of classes with keys, seeds or blindings: none of it is in their repr, and they are
    neither pickled nor copied, so that no checkpoint, message or log can have it.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __reduce__(self) -> Any:
        raise RunError(
            f"a {type(self).__name__} holds secrets that stay in its process, and something wanted "
            "to copy it: make a new one there and set the protocol up again"
        )
