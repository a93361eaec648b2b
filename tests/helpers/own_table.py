"""A table of one's own: numbers and a category that tell a text label, and columns that nobody can
use.
"""

from pathlib import Path

import numpy as np

from raydpzv.keys import Key

PARTIES = "bank=income,age shop=visits,city"


def write_own_table(file: Path, rows: int = 400) -> Path:
    """Write a CSV file whose label follows from what the bank and the shop hold together."""
    draws = (Key(3) / "own table").generator()
    income, age = draws.normal(50_000, 15_000, rows).round(), draws.integers(18, 90, rows)
    visits, city = draws.poisson(5, rows), draws.choice(["Basel", "Bern", "Chur"], rows)
    score = (income - 50_000) / 15_000 + (age - 54) / 20 - (visits - 5) / 2 + 1.5 * (city == "Bern")
    label = np.where(score + draws.normal(0, 0.4, rows) > 0.4, "well", "ill")
    lines = ["income,age,visits,city,label,name,gaps"]
    lines += [
        f"{income[i]:g},{age[i]},{visits[i]},{city[i]},{label[i]},person "
        f"{i},{'' if i % 9 == 0 else i}"
        for i in range(rows)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file
