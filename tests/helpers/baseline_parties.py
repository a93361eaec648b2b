"""Parties of DPZV's baselines on the small vertical problem."""

from dataclasses import replace
from typing import Any

from raydpzv.methods.vertical.czofo import CzofoConfig, CzofoServer
from raydpzv.methods.vertical.row_release import RowPrivacy
from raydpzv.methods.vertical.vafl import FirstOrder, StepSizes, Synchrony, VaflClient, VaflServer
from tests.helpers import vertical_parties as toy


def vafl_clients(
    data: toy.Data,
    settings: FirstOrder,
    privacy: RowPrivacy | None = None,
    *,
    shared: bool = False,
    how: str = "uniform",
    lr_decay: int | None = None,
    role: type[VaflClient] = VaflClient,
) -> list[VaflClient]:
    return [
        role(
            m,
            toy.make_bottom(data, m, descent=settings, clip=privacy.clip if privacy else None),
            toy.batches("server" if shared else m, how),
            privacy,
            StepSizes(decay=lr_decay),
        )
        for m in range(toy.CLIENTS)
    ]


def vafl_server(
    data: toy.Data,
    synchrony: Synchrony | None = None,
    privacy: RowPrivacy | None = None,
    *,
    role: type[VaflServer] = VaflServer,
    fixed_batches: bool = True,
    **options: Any,
) -> VaflServer:
    top = toy.make_top(data, toy.make_head("sgd", lr=0.2, momentum=0.9))
    return role(
        top,
        replace(toy.SIZES, fixed_batches=fixed_batches),
        synchrony or Synchrony(),
        privacy,
        **options,
    )


def czofo_server(data: toy.Data, **settings: Any) -> CzofoServer:
    config = CzofoConfig(**settings)
    return CzofoServer(toy.make_top(data, toy.make_head("sgd", lr=0.2)), toy.SIZES, config, toy.KEY)
