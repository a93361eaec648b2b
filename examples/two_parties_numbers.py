"""Two parties predict a number: one has pictures, the other a table: python
examples/two_parties_numbers.py
"""

import numpy as np
from sklearn.datasets import load_digits
from torch import nn

import raydpzv

digits = load_digits()
orders = np.arange(len(digits.target))[:, None]
pictures = (digits.images / 16).astype("float32")[:, None]  # how many were ordered, in handwriting
table = np.sin(orders * [1.0, 2.2, 3.7]).astype("float32")  # discount, distance, weight
cost = digits.target / 5 + table @ [-1.0, 0.5, 0.8]


def picture_model(embedding: int) -> nn.Module:
    """A convolution, then one layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, embedding))


def near(scores: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of the costs that are right to within a half."""
    return {"near": float((np.abs(scores - y) < 0.5).mean())}


if __name__ == "__main__":
    scenario = raydpzv.vertical(
        [picture_model, "linear"],
        {"camera": pictures, "shop": table},
        cost,
        loss="squared_error",
        metrics=near,
        method="dpzv",
        updates=1500,
        embedding=4,
        lr=0.003,
        smoothing=0.01,
    )
    run = raydpzv.run(scenario)
    print(" ".join(f"{name} {value:.3f}" for name, value in run.summary["measures"].items()))
