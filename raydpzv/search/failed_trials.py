"""Trials of a search whose machine was lost: what they may have released there is charged as if it had been whole."""

from __future__ import annotations

from pathlib import Path

from raydpzv.compare.run_comparison import set_aside
from raydpzv.errors import NotRecomputable
from raydpzv.experiment.prepare import planned_privacy
from raydpzv.files import as_json, write_atomically
from raydpzv.search.search_folder import SEARCH, run_path, trials_left
from raydpzv.search.search_plan import SearchPlan, read_search
from raydpzv.storage.commits import TRIALS, Commit
from raydpzv.storage.uploader import FreshNoise


def trials_noise(plan: SearchPlan) -> FreshNoise:
    """Return what the trials chosen so far release that a second draw would release once more.

    Of a search that goes on to choose trials it is to be asked again whenever there are more.
    """
    for trial in plan.started():
        setting = planned_privacy(trial.spec)
        if setting is not None and setting.noise == "system":
            return FreshNoise(TRIALS)
    return FreshNoise()


def charge_lost_trials(folder: Path, base: Commit) -> None:
    """Put on record, in the folder of a search that a storage has, that trials were begun on a machine that was lost.

    Those that have not come to their end may have released all that they plan: they stand there as trials that were
    begun before, whose whole ε counts. Raises NotRecomputable where nobody knows which trials there were.
    """
    if base.noise != TRIALS:
        return
    plan = read_search(folder / SEARCH)
    if plan.drawing or plan.population:
        what = (
            "--search optuna chooses trials"
            if plan.drawing
            else "--scheduler pbt chooses what trials go on from"
        )
        raise NotRecomputable(
            f"the machine was lost that made this search, and {what} by results that may not be in the storage: nobody "
            "knows what was released; go on in the folder where it was made, or start a new search"
        )
    for trial in trials_left(folder, plan):
        path = set_aside(run_path(folder, trial))[0]
        path.mkdir(parents=True)
        write_atomically(
            path / "lost.json", as_json({"trial": trial.number, "charged": "as planned"}).encode()
        )
