"""The papers' figures and tables, each by one command, on what runs offline: `python -m
benchmarks.results`.

Every part is a comparison in a folder of its own below --out, and goes on where it was stopped.
When all that was asked for is there the page is written anew, with the pictures beside it. With
`--only` it keeps the other parts' sections. `--list` says what there is and how long it took.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from raydpzv.compare.file import asked, resolved
from raydpzv.compare.plan import Comparison
from raydpzv.compare.run_comparison import unfinished
from raydpzv.files import is_comparison, write_atomically
from raydpzv.report.comparison_lines import final_accuracy, lines, named
from raydpzv.report.comparison_privacy import privacy_line
from raydpzv.report.comparison_table import Compared, ComparisonView
from raydpzv.report.comparison_text import failures_line, heads_line, summary_grid, target_line
from scenarios.command_options import Execution
from scenarios.commands.compare import made

PAGE = Path("docs/results.md")
TIMES = "times.json"


@dataclass(frozen=True)
class Part:
    """A figure or table of a paper.

    comparison: by name, of what runs offline; picture: of its plots; real: what to compare on the
    paper's own data;
    spaces: of the comparisons of that name, by which all methods are tuned alike; shows: what our
    runs say to the claim.
    """

    name: str
    paper: str
    claim: str
    comparison: str
    differs: str
    picture: str = "accuracy_over_updates"
    real: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    shows: str = ""


PARTS = (
    Part(
        "dpzv_accuracy",
        "DPZV journal, Figure 2 and Table I (preprint, Figure 2)",
        "Under noise DPZV has the highest accuracy and needs fewer rounds on MNIST and CIFAR-10. "
        "On ModelNet40 it is level with VAFL and ahead of the others (Section VII-B). It needs the "
        "fewest bytes to a target, but for VAFL's on one data set (Table I).",
        "digits_field",
        "digits in place of the four data sets; every method's step size and clip tuned by one "
        "grid; ε is what each method's noise is calibrated to by its own argument, the line on "
        "privacy says what is proved.",
        real=("mnist_field", "cifar10_field", "modelnet40_field", "amazon_field"),
        spaces=("mnist_field", "cifar10_field", "modelnet40_field", "amazon_field"),
        shows=(
            "In part. With the SGD head DPZV has the highest median at ε = 1, within the spread of "
            "VAFL with noise on the gradient; at ε = 10 it is two points behind VAFL. With the "
            "head as printed it is four points above frozen clients at ε = 1. With P and λ "
            "searched that head equals the SGD head without noise, at 13 times the bytes; with "
            "noise it is 7 to 9 points behind."
        ),
    ),
    Part(
        "dpzv_epsilons",
        "DPZV journal, Figures 3 and 5 (preprint, Figure 3)",
        "DPZV is the most accurate at ε ≤ 1 on all data sets; on MNIST and ModelNet40 it loses "
        "little as ε falls, the others much (Section VII-B). At equal bytes on CIFAR-10 VAFL leads "
        "without noise and loses much at ε = 5 and 1 (Section VII-C).",
        "digits_epsilons",
        "digits in place of the four data sets; step sizes and clips tuned without noise, at ε = "
        "10 (taken for 5 too) and at ε = 1 (for 0.5 and 0.1 too).",
        picture="accuracy_over_epsilon",
        real=("mnist_epsilons", "cifar10_epsilons", "modelnet40_epsilons", "amazon_epsilons"),
        shows=(
            "In part. At ε = 1 DPZV with the SGD head is ahead, at 0.5 level with VAFL with noise "
            "on the gradient, and at 0.1 no method is above frozen clients. With the head as "
            "printed it is below that VAFL throughout. VAFL leads without noise; with noise on "
            "embeddings it holds at ε = 5 and loses much at 1."
        ),
    ),
    Part(
        "dpzv_clips",
        "DPZV journal, Figures 6 and 7 (preprint, Figures 4 and 5)",
        "Without noise the clip speeds up and steadies training. At ε = 1 all thresholds do alike "
        "on MNIST; on CIFAR-10 C = 10 is better than 500 (Section VII-D).",
        "digits_clips",
        "digits in place of MNIST and CIFAR-10; two step sizes, of which the paper's text says "
        "none for these figures; accuracy, where Figure 6 has the test loss; C = 1 is ours.",
        real=("mnist_clips", "cifar10_clips"),
        shows=(
            "In part. Ten times the scenario's step size needs a clip: without one DPZV fails, "
            "with C = 1 it learns. At the scenario's own, C = 10 does nothing and C = 1 is slower. "
            "At ε = 1 C = 100 and 500 fail, and 1 and 10 end alike with the SGD head. With the "
            "head as printed no median is above frozen clients."
        ),
    ),
    Part(
        "reviews",
        "DPZV journal, Figure 3 and Table I, Amazon reviews",
        "DPZV is ahead of the baselines, above all at ε = 1 and 5 (Section VII-B), and reaches 80 "
        "% with the fewest bytes (Table I).",
        "reviews_field",
        "4,000 generated reviews and small transformers in place of Amazon's and BERT; every "
        "method's step size tuned by one grid, and its clip where noise is added; the choices at ε "
        "= 10 lie at the grid's edge. Made with `--set model.engine=torch`.",
        real=("amazon_field", "amazon_epsilons"),
        spaces=("amazon_field",),
        shows=(
            "No. DPZV with the SGD head is behind VAFL with noise on the gradient, by 4 points at "
            "ε = 1 (within the spread; by the area 0.10) and by 15 at ε = 10. Without noise VAFL "
            "and VFL-CZOFO are far ahead. With noise on embeddings VFL-CZOFO is a few points below "
            "at ε = 10 and at chance at 1. With the head as printed DPZV is little above frozen "
            "clients at ε = 1. VFL-CZOFO needs the fewest bytes to 70 %."
        ),
    ),
    Part(
        "mnist5k",
        "DPZV journal, Figure 2 and Table I, on real pictures",
        "On MNIST DPZV needs the fewest bytes to 90 %, and VAFL twice as many; ZOO-VFL never gets "
        "there (Table I).",
        "mnist5k_field",
        "5,000 MNIST pictures, the papers' seven clients and network; step sizes as printed, not "
        "tuned alike; all clients wake at one rate.",
        real=("mnist_field",),
        shows=(
            "90 % says little: frozen clients reach it in the median. DPZV with the SGD head ends "
            "three points above them without noise, level with VAFL, and one point above at ε = 1. "
            "With the zeroth-order head at its printed step it ends far below. ZOO-VFL as "
            "published diverges."
        ),
    ),
    Part(
        "vafl_delays",
        "VAFL, Figure 2",
        "Asynchronous and t-synchronous VAFL beside synchronous block SGD, each also with noise "
        "N(0, 0.01) on the clients' outputs.",
        "delay_times",
        "digits in place of MNIST, Fashion-MNIST, CIFAR-10 and Parkinson, one bottom layer as "
        "there; the delays of Section G.2; each protocol's step size is its quickest on held-back "
        "rows.",
        picture="accuracy_over_seconds",
        real=("mnist_times", "fashion_times", "cifar10_times", "parkinson_times"),
        shows=(
            "Asynchronous VAFL is the first at 90 and 95 % in time, synchronous in updates; all "
            "end about level with central SGD. The noise moves no median by more than 0.3 points "
            "and proves nothing: no output is clipped."
        ),
    ),
    Part(
        "vafl_mnist5k",
        "VAFL, Figure 2, on real pictures",
        "VAFL comes about as far as the centralized model (Section 5); dashed curves have noise "
        "N(0, 0.01).",
        "mnist5k_times",
        "5,000 MNIST pictures; all protocols with one step size, not tuned alike; t = 3 is ours.",
        picture="accuracy_over_seconds",
        real=("mnist_times", "fashion_times", "cifar10_times", "parkinson_times"),
        shows=(
            "Yes. All protocols end at about 89 %, above central SGD, whose momentum is 0.9 at the "
            "same step size. Asynchronous VAFL is the first at 80 and 85 % in time. The noise "
            "moves no median by more than 0.3 points."
        ),
    ),
    Part(
        "vafl_lstm",
        "VAFL, Figures 4 and 8 (LSTMs)",
        "Asynchronous and t-synchronous VAFL reach about the centralized model's area under the "
        "ROC curve, in less time than synchronous (Section 5).",
        "lstm_times",
        "generated series of 12 steps in place of MIMIC-III; the picture is of the accuracy, the "
        "areas are those at the end; each protocol's step size is the quicker of two to 80 % on "
        "held-back rows, so each is at an edge; central SGD has momentum 0.9, without which it is "
        "the synchronous protocol. Made with `--set model.engine=torch`.",
        picture="accuracy_over_seconds",
        real=("lstm_times --set data.source=mimic3 --set data.folder=data/mimic3",),
        shows=(
            "Yes. All protocols end with an area of 0.99 or more. Median times to 80 %: "
            "asynchronous 640 s, t-synchronous 767 s, synchronous 3,705 s."
        ),
    ),
    Part(
        "vafl_straggler",
        "Ours, after VAFL's Figure 2: one slow client",
        "None: the paper has no client that is ten times slower than the others.",
        "straggler_times",
        "digits; one of four clients wakes ten times more rarely; step sizes chosen as above.",
        picture="accuracy_over_seconds",
    ),
    Part(
        "decomfl_ablation",
        "DeComFL, Figure 2",
        "More perturbations P end higher and matter more than local updates K; DeComFL sends far "
        "fewer numbers than FedAvg (Section 5).",
        "digits_ablation",
        "digits and 2,410 parameters in place of MNIST and 28,938; values of K and P are ours.",
        picture="accuracy_over_vector_length",
        real=("mnist_ablation",),
        shows=(
            "Not the first: at one step size and as many rounds K = 5 and 10 gain much, P above 10 "
            "little. DeComFL ends below FedAvg."
        ),
    ),
    Part(
        "decomfl_projection",
        "DeComFL, Figure 4",
        "Loss differences do better than gradient projection and bear more step sizes (Appendix "
        "A.5).",
        "digits_projection",
        "digits in place of MNIST; step sizes are ours.",
        picture="accuracy_over_vector_length",
        real=("mnist_projection",),
        shows="Neither: both do alike at all three step sizes, and both suffer at the largest.",
    ),
    Part(
        "decomfl_baselines",
        "DeComFL, Figures 3 and 6",
        "DeComFL sends far fewer numbers than FedAvg with Top-k, which loses accuracy as k falls "
        "(Appendix B.3.2).",
        "digits_baselines",
        "digits and 2,410 parameters, where the paper has Fashion-MNIST and 1.2 million; step "
        "sizes tuned alike.",
        picture="accuracy_over_vector_length",
        real=("fashion_field",),
        shows=(
            "The numbers: yes. At the end k = 5 and 1 % are a point or two below 10 %, and all are "
            "above DeComFL."
        ),
    ),
    Part(
        "seeds_and_scalars",
        "FeedSign, FZOO and FedKSeed beside DeComFL",
        "FeedSign loses little by sending one bit in place of a scalar. FZOO needs fewer losses "
        "than plain steps. FedKSeed's messages do not depend on how long a client was away.",
        "digits_scalars",
        "digits, in place of language models; 24 to 26 losses of a client in each round for all. "
        "Step sizes are tuned alike. FeedSign has a constant step, though its scenario lowers it.",
        shows=(
            "The bytes: yes, FeedSign sends 68 times fewer than DeComFL and ends 8 points below. "
            "FZOO is level with DeComFL. FedKSeed is 5 points below and sends more, as no client "
            "is away for long here."
        ),
    ),
    Part(
        "uldp_users",
        "Uldp-FL, Figures 4 to 7",
        "ULDP-AVG and ULDP-SGD are far better than ULDP-NAIVE, whose accuracy is low, and than "
        "ULDP-GROUP, which needs much larger ε (Section 5).",
        "digits_users_field",
        "digits, softmax regression, 100 users in 5 silos, in place of the four data sets; every "
        "method has the same ε, where the paper has the same σ; step sizes tuned alike.",
        picture="accuracy_over_epsilon",
        real=("creditcard_field", "mnist_users_field", "heart_field", "brca_field"),
        shows=(
            "Yes. At ε = 3 ULDP-AVG and ULDP-SGD by records reach 86 and 88 %, ULDP-GROUP at most "
            "34 % at its exact ε, and ULDP-NAIVE is at chance. ULDP-ZO (ours) is level with "
            "ULDP-SGD at a tenth of the bytes. Uniform weights cost 10 points at ε = 3 and 36 at ε "
            "= 1."
        ),
    ),
    Part(
        "uldp_1000",
        "Uldp-FL, Figure 4 c and d, many users",
        "With 1,000 users the proposed weights by records gain over uniform ones (Figure 8).",
        "users_1000_field",
        "20,000 generated rows, 1,000 users in 20 silos; ε = .5 for all; step sizes tuned alike.",
        real=("creditcard_1000", "creditcard_weights"),
        shows=(
            "Yes: 93 % by records, also with counts capped at 8, against 61 % with uniform "
            "weights. ULDP-ZO reaches 92 % with 16 scalars a round, ULDP-GROUP 44 % at most."
        ),
    ),
)


def main() -> None:
    """Make the parts that are asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=[p.name for p in PARTS], help="these parts alone"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/results"), help="folder of the comparisons"
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="page to write; pictures go beside it"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="for every run; the page says so",
    )
    parser.add_argument(
        "--runner", default="auto", help="auto, local or ray, as of raydpzv compare"
    )
    parser.add_argument("--list", action="store_true", help="say what there is, and leave")
    given = parser.parse_args()
    parts = [p for p in PARTS if given.only is None or p.name in given.only]
    if given.list:
        for part in parts:
            print(
                f"{part.name:<20} {_took(given.out, part.name):<12} raydpzv compare "
                f"{part.comparison}: {part.paper}"
            )
        return
    console = Console(stderr=True)
    sections = {} if given.only is None else sections_of(given.page)
    for part in parts:
        comparison = resolved(asked([part.comparison]), given.set)
        console.print(
            f"{part.name}: raydpzv compare {part.comparison} ({_took(given.out, part.name)})",
            highlight=False,
        )
        folder, start = given.out / part.name, time.monotonic()
        if not is_comparison(folder):
            _add_time(given.out, part.name, -_times(given.out).get(part.name, 0.0))
        todo = unfinished(folder, comparison)
        compared, stopped = made(comparison, folder, Execution(runner=given.runner), console)
        _add_time(given.out, part.name, time.monotonic() - start if todo else 0.0)
        if stopped:
            console.print("stopped; run the same command to resume")
            sys.exit(130)
        sections[part.paper] = _section(part, comparison, compared, folder, given.page, given.set)
    kept = [sections[part.paper] for part in PARTS if part.paper in sections]
    write_atomically(given.page, page(kept, given.set).encode())
    console.print(f"page: {given.page} ({len(kept)} of {len(PARTS)} parts)", highlight=False)


def sections_of(path: Path) -> dict[str, str]:
    """Return a page's sections by their headings; none if there is no page."""
    text = path.read_text() if path.is_file() else ""
    found = (f"## {section.rstrip()}\n" for section in text.split("\n## ")[1:])
    return {section.partition("\n")[0].removeprefix("## "): section for section in found}


def page(sections: list[str], changes: list[str]) -> str:
    """Return the page of all sections; changes: settings of every run that are not the comparisons'
    own.
    """
    changed = (
        f"\nEvery run here with `{' '.join(changes)}`: not the comparisons' own settings.\n"
        if changes
        else ""
    )
    return HEAD + changed + "\n" + "\n".join(sections) + END


HEAD = """# The papers' figures, on what runs here

`python -m benchmarks.results` makes this page. A claim is the paper's, in our words. Figures are ours: medians over the
seeds, with the lowest and the highest. The papers' data do not come with the program: each table names the
commands for them, and [the data page](data.md) the files. Noise from the operating system differs from run to run.
"""


END = """
## Not on this page

- DPZV journal, Figure 4 (preprint, Figure 6), memory: `python -m benchmarks.memory_figure`.
- VAFL, Figures 3, 5 and 6, ModelNet40 in 12 views: `raydpzv compare multiview_times`.
- VAFL, Figure 7, the training loss of LSTMs: in the rows of each run of `lstm_times`.
- Uldp-FL, Figures 4 to 8 and 10: [their comparisons](methods/uldp.md#the-papers-figures).
- DeComFL, language models (Tables 2 and 6) and the Hessian's spectrum (Figure 5): not in the program.
"""


def _section(
    part: Part,
    comparison: Comparison,
    compared: Compared,
    folder: Path,
    page_file: Path,
    changes: list[str],
) -> str:
    view = ComparisonView(compared, comparison.targets)
    grid = summary_grid(view)
    said = [
        *(target_line(view.rows, target) for target in comparison.targets),
        *([heads_line(comparison.heads)] if comparison.heads else []),
        privacy_line(compared.claims, compared.runs),
        failures_line(compared.runs),
        _areas(view.rows),
        _below_frozen(compared),
    ]
    command = f"raydpzv compare {part.comparison}{''.join(f' --set {c}' for c in changes)}"
    picture = folder / "plots" / f"{part.picture}.png"
    lines = [f"## {part.paper}", ""]
    if picture.is_file():
        to = page_file.parent / "results" / f"{part.name}.png"
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, to)
        lines += [f"![Figure]({to.relative_to(page_file.parent)})", ""]
    lines += [
        f"- **Claim.** {part.claim}",
        *([f"- **We saw.** {part.shows}"] if part.shows else []),
    ]
    lines += [f"- **Command.** `{command}`", ""]
    seeds = ", ".join(map(str, comparison.seeds))
    lines += [f"<details><summary>Table, {_took(folder.parent, part.name)}</summary>", ""]
    lines += [
        f"Seeds {seeds}. {part.differs[0].upper()}{part.differs[1:]}{_with_real_data(part)}",
        "",
    ]
    lines += [
        _row(grid.heads),
        _row(["---"] * len(grid.heads)),
        *(_row(row) for row in grid.rows),
        "",
    ]
    return "\n".join([*lines, *(f"- {line}" for line in said if line), "", "</details>"]) + "\n"


def _with_real_data(part: Part) -> str:
    """Return the commands for the paper's own data, if there are any."""
    if not part.real:
        return ""
    commands = ", ".join(f"`raydpzv compare {name}`" for name in part.real)
    tuned = (
        f", tuned alike by {', '.join(f'`raydpzv tune {name} --space {name}`' for name in part.spaces)}"
        if part.spaces
        else ""
    )
    return f" With the paper's data: {commands}{tuned}."


def _areas(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the areas under the ROC curve after the last update, of runs on two classes."""
    found = [row for row in rows if not math.isnan(row["roc_auc_median"])]
    # a run that broke off counts as 0, on any number of classes
    if not any(row["roc_auc_max"] for row in found):
        return ""
    said = (
        f"{named(row['label'], row['epsilon'])} {row['roc_auc_median']:.3f} "
        f"({row['roc_auc_min']:.3f} to {row['roc_auc_max']:.3f})"
        for row in found
    )
    return f"Area under the ROC curve at the end: {'; '.join(said)}" if found else ""


def _below_frozen(compared: Compared) -> str:
    """Return which methods are not above frozen clients in half of their runs or more."""
    found = []
    for line in lines(compared.runs, compared.curves):
        below = sum(final_accuracy(run) <= run["control_accuracy"] for run in line.runs)
        if not line.control and 2 * below >= len(line.runs) > 0:
            found.append(f"{named(line.label, line.epsilon)} ({below} of {len(line.runs)})")
    return f"Not above frozen clients with the same seed: {'; '.join(found)}" if found else ""


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _times(out: Path) -> dict[str, float]:
    path = out / TIMES
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _add_time(out: Path, name: str, seconds: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    times = _times(out)
    times[name] = times.get(name, 0.0) + seconds
    write_atomically(out / TIMES, json.dumps(times, indent=1).encode())


def _took(out: Path, name: str) -> str:
    """Return how long a part's runs took here, on and off."""
    seconds = _times(out).get(name)
    return "not run yet" if seconds is None else f"took {seconds / 60:.1f} minutes"


if __name__ == "__main__":
    main()
