"""What tests ask of an account of releases, whatever its kind."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from raydpzv.privacy.release import ReleaseAccount, ReleaseEvent


def event(ids: Iterable[int], releases: int = 1, client: int = 0) -> ReleaseEvent:
    """Return releases on these rows, or about these users."""
    return ReleaseEvent(client, np.asarray(ids, dtype=np.int64), releases)


def charged(account: ReleaseAccount, batches: Iterable[Any], releases: int = 1) -> ReleaseAccount:
    """Return the account after releases on each of these batches."""
    for ids in batches:
        account.charge(event(ids, releases))
    return account
