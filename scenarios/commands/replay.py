"""`raydpzv replay`: rebuild the models of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from raydpzv.errors import InputError
from raydpzv.experiment.rebuild import from_ledger
from raydpzv.experiment.rebuild import replay as replay_run
from raydpzv.files import sha256, write_npz
from raydpzv.ledger.ledger import Ledger
from raydpzv.records.run_folder import RunFolder, unended
from raydpzv.seed_file.seed_replay import read_seed_file, replay_seed_file, write_rebuilt
from raydpzv.settings.party_names import client_number, named
from scenarios.command_options import ReplayCommand


def replay_command(options: ReplayCommand) -> None:
    """Rebuild models of a run, all or one client's, at its end or after `at` updates, and print
    their digests.
    """
    run, at, moved, out = options.run, options.at, options.moved or (), options.out
    if run.is_file() or (run.suffix == ".seeds" and not run.is_dir()):
        _replay_seed_file(options)
        return
    if options.weights is not None:
        raise InputError(
            f"--weights: {run} is a run folder, which has its first weights; leave it out"
        )
    names = RunFolder.open(run, moved).spec().party_names
    client = None if options.client is None else client_number(options.client, names)
    if rebuilt := from_ledger(run, at, client, moved):
        print(f"ledger intact, digest {rebuilt.digest}")
        checked = (
            "; the final model has the recorded bits"
            if rebuilt.verified
            else "; nothing is on record to compare with"
        )
        print(f"{named(whose(client, at), names)} after {rebuilt.updates} updates{checked}")
        _print_unended(run, None)
        print_models(rebuilt.models, out, names)
        folder = RunFolder.open(run)
        if client is None and folder.published and set(folder.models()) - set(rebuilt.models):
            print(
                "not rebuilt: the server's head, which is in models.npz; every bit of the clients' "
                "models is checked"
            )
        return
    result = replay_run(run, at, moved)
    models = result.models if client is None else one_model(result.models, client)
    checked = "every loss and all final parameters have" if result.verified else "every loss has"
    if result.ledger:
        print(f"ledger intact, digest {result.ledger}; it holds what the rows say was released")
    print(f"replayed {result.updates} updates; {checked} the recorded bits")
    if result.unchecked:
        print(f"not checked: {result.unchecked}")
    _print_unended(run, result.updates if at is None else None)
    print_models(models, out, names)


def _replay_seed_file(options: ReplayCommand) -> None:
    """Rebuild the models of a seed file, print their digests, and write them."""
    path, out = options.run, options.out
    if options.at is not None or options.moved:
        raise InputError(
            "--at, --set: a seed file gives its final models alone; take the run folder"
        )
    names = None
    if options.client is not None:
        names = [f"client {client_number(options.client, ())}"]
    if out is not None and out.suffix not in (".npz", ".safetensors"):
        raise InputError(f"--out: wanted a file .safetensors or .npz, got {out}")
    whole = out is not None and out.suffix == ".safetensors"
    file = read_seed_file(path)
    if options.weights is not None and not (whole or file.frozen or file.wants_weights):
        raise InputError(f"--weights: {path} has its first weights; leave it out")
    models = replay_seed_file(path, options.weights, names)
    print(
        f"{path}: intact; {'its models have' if len(models) > 1 else 'its model has'} the bits "
        "that it names"
    )
    vectors = {name: x for name, (_, x) in models.items()}
    if out is not None and whole:
        written = write_rebuilt(out, models, options.weights)
        print(f"written: {out} ({len(written)} tensors)")
        beside = len(written) - sum(len(model.tensors) for model, _ in models.values())
        if beside and not file.frozen:
            tensors = "tensor" if beside == 1 else "tensors"
            print(f"not checked: {beside} {tensors} of {options.weights} that {path} does not name")
        out = None
    print_models(vectors, out)


def _print_unended(run: Path, updates: int | None) -> None:
    """Print that a run is incomplete, if it is, and how far its ledger exceeds these updates.

    updates: all of its rows; None: they were not asked for.
    """
    folder = RunFolder.open(run)
    if folder.has_summary():
        if (status := folder.summary().get("status")) != "done":
            print(
                f"the run has not finished: it {'failed' if status == 'failed' else 'was stopped'}"
            )
        return
    print(f"the run has not finished: {unended(run)}")
    if updates is None or not folder.ledger.exists():
        return
    with Ledger.open(folder.ledger) as ledger:
        if ledger.version > updates:
            print(
                f"its ledger continues to update {ledger.version}; the rows to replay it by end at "
                f"{updates}"
            )


def whose(client: int | None, at: int | None) -> str:
    """Say whose model was rebuilt: a client holds the one that its last update, or catching up,
    made.
    """
    if client is None:
        return "rebuilt: the model"
    return (
        f"rebuilt: what client {client} last had{'' if at is None else f' by update {at}'}, the "
        "model"
    )


def print_models(
    models: Mapping[str, np.ndarray], out: Path | None, names: Sequence[str] = ()
) -> None:
    """Write models to a file, if one is given, and print what they are. names: those of the
    clients' parties.
    """
    if out:
        write_npz(out, models)
        print(f"written: {out} ({', '.join(name.replace(' ', '_') for name in models)})")
    for name, values in models.items():
        print(f"{named(name, names)}: {values.size} parameters, sha256 {sha256(values)}")


def one_model(models: Mapping[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Return one client's model; InputError if there is no such client."""
    name = f"client {client}"
    if name not in models:
        raise InputError(f"--client: wanted 0..{len(models) - 2}, got {client}")
    return {name: models[name]}
