"""Tables for papers: a grid as a `tabular` of LaTeX with the rules of the package booktabs."""

from __future__ import annotations

import re

from raydpzv.report.table import Grid

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "λ": r"$\lambda$", "σ": r"$\sigma$", "μ": r"$\mu$", "∞": r"$\infty$",
    "×": r"$\times$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip
_FIGURE = re.compile(r"(?<=\d) (?=%|B\b|[KMGTP]iB\b|s\b)")
"""The space between a figure and its unit."""


def escaped(words: str) -> str:
    """Return words as LaTeX prints them, a figure and its unit on one line."""
    bound = _FIGURE.sub("\0", " ".join(words.split()))
    return "".join(_SPECIAL.get(letter, letter) for letter in bound).replace("\0", r"\,")


def latex(grid: Grid, *notes: str) -> str:
    """Return the grid as a tabular; notes: comments above it."""
    lines = [f"% {' '.join(note.split())}" for note in ("Needs \\usepackage{booktabs}.", *notes)]
    columns = "".join(align[0] for align in grid.aligns)
    rows = [" & ".join(map(escaped, row)) + r" \\" for row in grid.rows]
    lines += [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escaped, grid.heads)) + r" \\",
    ]
    return "\n".join([*lines, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""])
