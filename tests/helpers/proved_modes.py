"""Every mode in which a method has a proof, as small scenarios on raw files; and methods that have
none, and why.
"""

from typing import Any

import scenarios
from tests.helpers.raw_tables import OWNERS_OF, READERS

SOUND = (
    "split.clients=2",
    "method.batch=8",
    "method.perturbations=3",
    "method.lr=0.3",
    "model.initial=random",
    "budget.updates=20",
    "evaluate.every=20",
    "privacy.epsilon=3.0",
)
LINEAR = ("model.head=linear", "method.server_lr=0.5")
BASELINE = (
    "privacy={mode='paper', sigma=0.3, delta=1e-3, clip=0.5}",
    "split.clients=2",
    "method.batch=8",
    "budget.updates=20",
    "evaluate.every=20",
    "resources.client_actors=0",
    "model.bottom=linear",
    "model.initial=random",
)
MODES: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "dpzv": {
        "frozen": ("digits_private", SOUND),
        "poisson": ("digits_private", (*SOUND, "method.batches=poisson")),
        "joint": ("digits_private", (*SOUND, *LINEAR, "method.server=joint")),
        "dp_sgd": ("digits_private", (*SOUND, *LINEAR, "method.server=dp_sgd", "privacy.head_clip=0.5")),
        "paper": (
            "digits_dpzv",
            (*BASELINE, "method.server=frozen", "model.head=sum", "method.perturbations=2"),
        ),
    },
    "frozen": {
        "dp_sgd": (
            "digits_private",
            (*SOUND[:1], "method={name='frozen', batch=8, server='dp_sgd', server_lr=0.5, server_momentum=0.0}",
             "model.head=linear", "model.initial=random", *SOUND[5:]),
        ),
        "discriminant": (
            "digits_server",
            ("split.clients=2", "method.batch=8", "budget.updates=20", "evaluate.every=20", "model.initial=random"),
        ),
    },
    "zoo_vfl": {"rows": ("zoo_vfl", BASELINE)},
}  # fmt: skip
"""Vertical methods with a proof, and the modes that they have it in."""
UNPROVED = {
    "sgd": "adds no noise",
    "vafl": (
        "keeps hidden state: what is proved is the range of all that it releases, for any two "
        "tables"
    ),
    "czofo": (
        "keeps hidden state: what is proved is the range of all that it releases, for any two "
        "tables"
    ),
    **dict.fromkeys(
        ("decomfl", "mezo", "feedsign", "fzoo", "fedkseed", "fedavg", "fedcom", "topk", "fedzo"),
        "adds no noise",
    ),
}
"""Methods without a line of their own, and why."""
BY_CLIENT = {"discriminant", "rows"}
"""Modes whose unit is a record's features, so that labels are not protected."""
IN_THE_OPEN = {"paper"}
"""Modes whose rows hold what stays with the operator, such as the training loss, so that digests
cover it.
"""
USER_MODES: dict[str, dict[str, tuple[str, ...]]] = {
    "uldp_sgd": {
        "records": (),
        "uniform": ("method.weights=uniform",),
        "masked": ("method.aggregation=masked",),
        "sampled": ("method.sampling=0.6",),
    },
    "uldp_avg": {"records": ("method.local_epochs=2",)},
    "uldp_zo": {
        "rounds": ("method.perturbations=3", "method.local_steps=2"),
        "asynchronous": (
            "method.perturbations=3",
            "method.asynchronous=true",
            "method.weights=uniform",
            "network.latency=0.05",
        ),
    },
    "uldp_naive": {"naive": ("method.local_epochs=2",)},
    "uldp_group": {"group": ("method.group=4", "method.rate=1.0", "method.local_epochs=1")},
}
"""Methods that protect users, and their modes. Sums under private weights never lie open
(tests/unit/secure).
"""
USERS = (
    "split.how=users",
    "split.clients=3",
    "model.kind=logistic",
    "budget.updates=4",
    "evaluate.every=2",
    "privacy={mode='user', multiplier=1.0, delta=1e-3, clip=0.5}",
)


def spec_of(reader: str, method: str, mode: str, path: Any, *overrides: str) -> Any:
    scenario, given = MODES[method][mode]
    source, width = READERS[reader], ()
    if mode == "discriminant":
        width = ("model.embedding=4",)
    return scenarios.load(
        scenario, [*given, *source.given(path), *source.vertical, *width, *overrides]
    )


def user_spec(reader: str, method: str, mode: str, path: Any, *overrides: str) -> Any:
    name, source = f"method={{name='{method}'}}", OWNERS_OF.get(reader, READERS[reader])
    given = [
        name,
        *USERS,
        *source.given(path),
        *source.users,
        *USER_MODES[method][mode],
        *overrides,
    ]
    return scenarios.load("digits_users", given)
