"""A small problem for methods whose users have records in several silos, and what is left of it
without one user.
"""

from typing import Any

from raydpzv.data.users import Known, UserParts, share_users
from raydpzv.engine.objective import Objective
from raydpzv.ledger.ledger import Ledger
from raydpzv.methods.descriptor import ClientGroupParts
from raydpzv.methods.horizontal.rounds import Cohorts
from raydpzv.methods.horizontal.seeded import SeededPullServer, Updates
from raydpzv.methods.horizontal.seeded_clients import SharedClients
from raydpzv.methods.horizontal.uldp_zo import (
    PairWork,
    UldpZoConfig,
    UldpZoServer,
    uldp_zo_settings,
)
from raydpzv.methods.horizontal.user_sums import mean_over_users
from raydpzv.methods.replica import UpdateSource
from raydpzv.privacy.user_release import UserNoiseParts, UserRelease
from raydpzv.settings.sections_horizontal import UsersSection
from tests.helpers import seed_parties as toy

SILOS, USERS = 3, 7
PARTS = share_users(
    Known(toy.Y.numpy()), SILOS, UsersSection(count=USERS, how="uniform", silos="uniform"), toy.KEY
)
CLIP = 3.0


def config(**changes: Any) -> UldpZoConfig:
    return UldpZoConfig(**({"perturbations": 4, "lr": 0.3, "local_lr": 0.05} | changes))


def noise(how: UldpZoConfig, multiplier: float = 0.0, *, seeded: bool = True) -> UserNoiseParts:
    reach = SILOS if how.weights == "uniform" else 1
    release = UserRelease(CLIP, how.value_bits, multiplier, reach)
    return UserNoiseParts(release, USERS, toy.KEY, toy.KEY / "coins", seeded)


def work(
    how: UldpZoConfig,
    history: UpdateSource,
    *,
    parts: UserParts = PARTS,
    multiplier: float = 0.0,
    recorded: int = 0,
    objectives: list[Objective] | None = None,
    seeded: bool = True,
) -> PairWork:
    given = noise(how, multiplier, seeded=seeded)
    all_of_it = ClientGroupParts(
        objectives or [toy.objective()],
        parts,
        toy.KEY,
        updates=history,
        users=given,
        recorded=recorded,
    )
    return PairWork(all_of_it, how)


def silos(how: UldpZoConfig, history: UpdateSource, **options: Any) -> SharedClients:
    replica = toy.replica(uldp_zo_settings(how, toy.KEY))
    return SharedClients(replica, history, work(how, history, **options))


def server(how: UldpZoConfig, ledger: Ledger) -> UldpZoServer:
    settings = uldp_zo_settings(how, toy.KEY)
    return UldpZoServer(
        Cohorts(SILOS, SILOS, toy.KEY),
        Updates(ledger, settings, SILOS),
        mean_over_users(noise(how), how.sampling),
    )


def pull_server(how: UldpZoConfig, ledger: Ledger) -> SeededPullServer:
    return SeededPullServer(Updates(ledger, uldp_zo_settings(how, toy.KEY), SILOS))


def ledger(how: UldpZoConfig) -> Ledger:
    return toy.ledger(uldp_zo_settings(how, toy.KEY))
