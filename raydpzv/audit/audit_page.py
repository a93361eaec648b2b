"""An audit in a folder of its own: audit.json, its pictures (the noise seen, labels guessed), and
one HTML page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import PercentFormatter

from raydpzv.audit.findings import NOT_FALSIFIED, Finding
from raydpzv.audit.label_inference import LabelGuesses
from raydpzv.audit.ledger_audit import LedgerAudit
from raydpzv.errors import InputError
from raydpzv.files import as_json, inner_folder, write_atomically
from raydpzv.privacy.gdp import mu_of
from raydpzv.report import plots, text
from raydpzv.report.page import embedded, rendered, write_pictures
from raydpzv.report.plots import ReportFigure, chart
from raydpzv.report.table import text_grid


def write_audit(run: Path, finding: Finding, pictures: Sequence[ReportFigure], out: Path) -> Path:
    """Write `audit.json`, `plots/*.png` and `audit.html` into `out`; return the page. Raises
    InputError.
    """
    try:
        plots = inner_folder(out / "plots")
        write_atomically(
            out / "audit.json", as_json({"run": str(run)} | dict(finding.facts)).encode()
        )
        write_pictures(plots, pictures)
        page = rendered(
            "audit",
            title=f"Audit of {run.name}",
            facts=f"by {finding.facts['by']}",
            finding=finding,
            found=text_grid(finding.heads, finding.rows),
            holds=finding.verdict == NOT_FALSIFIED,
            pictures=[embedded(picture) for picture in pictures],
        )
        write_atomically(out / "audit.html", page.encode())
    except OSError as error:
        raise InputError(
            f"{out}: cannot write the audit ({error.strerror or error}); choose another --out"
        ) from None
    return out / "audit.html"


def noise_histogram(audit: LedgerAudit) -> ReportFigure:
    """Draw the releases less their queries, in stated deviations, against the standard normal
    law.
    """
    residuals = audit.noise.residuals
    figure, ax = chart("Noise seen", "noise of a release, in stated deviations", "density")
    ax.hist(residuals, bins=min(60, max(10, len(residuals) // 25)), density=True, color=plots.FAINT)
    edge = max(4.0, float(np.abs(residuals).max()))
    x = np.linspace(-edge, edge, 400)
    (law,) = ax.plot(
        x,
        np.exp(-x * x / 2) / np.sqrt(2 * np.pi),
        **plots.line(0),
        label="as stated: standard normal",
    )
    plots.legend(figure, [law])
    caption = (
        f"The noise of {audit.noise.releases:,} releases, over the deviation that the run states. "
        f"It should follow the line (Kolmogorov-Smirnov p = {text.number(audit.noise.p, 2)})."
    )
    return ReportFigure("audit_noise", caption, figure)


def label_accuracy_over_epsilon(guesses: Sequence[LabelGuesses]) -> ReportFigure:
    """Draw the share of labels that clients guess right over ε, with the bound Φ(μ/2)."""
    from scipy.special import ndtr

    delta, at = guesses[0].delta, np.array([g.epsilon for g in guesses])
    shares = np.array([g.right / g.count for g in guesses])
    figure, ax = chart("Labels guessed right", "ε proved against the clients", "share of labels")
    x = np.geomspace(at.min() / 1.5, at.max() * 1.5, 200)
    mus = np.array([mu_of(float(epsilon), delta) for epsilon in x])
    (bound,) = ax.plot(x, ndtr(mus / 2), **plots.line(0), label="most that ε permits, Φ(μ/2)")
    expected = ax.scatter(
        at,
        [g.expected for g in guesses],
        color=plots.PALETTE[2],
        zorder=3,
        label="expected of this attack",
    )
    low, high = (np.array([getattr(g, end) for g in guesses]) for end in ("low", "high"))
    seen = ax.errorbar(
        at,
        shares,
        np.stack([shares - low, high - shares]),
        fmt="s",
        color=plots.PALETTE[1],
        capsize=3,
    )
    seen.set_label("seen, with 95 % intervals")
    ax.axhline(0.5, color=plots.FAINT, zorder=0)
    ax.set_xscale("log")
    ax.set_xticks(at, [text.number(float(epsilon), 3) for epsilon in at], minor=False)
    ax.minorticks_off()
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    plots.legend(figure, [bound, expected, seen], columns=3)
    caption = (
        f"All clients together know all else and guess {guesses[0].count:,} labels, each one of "
        f"two, in one run at each ε (δ = {text.number(delta)}, one record's label). Chance is one "
        "half."
    )
    return ReportFigure("audit_labels", caption, figure)
