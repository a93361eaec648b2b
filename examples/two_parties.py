"""Two parties with different models: one has pictures, the other a table: python
examples/two_parties.py
"""

from sklearn.datasets import load_digits
from torch import nn

import raydpzv

digits = load_digits()
pictures = (digits.images / 16).astype("float32")[:, None]
table = pictures[:, 0].sum(axis=2) / 8 - 0.5  # the ink in each of 8 rows


def picture_model(embedding: int) -> nn.Module:
    """A convolution, then one layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, embedding))


def table_model(embedding: int) -> nn.Module:
    """One layer."""
    return nn.Linear(8, embedding)


if __name__ == "__main__":
    scenario = raydpzv.vertical(
        [picture_model, table_model],
        {"camera": pictures, "shop": table},
        digits.target,
        method="dpzv",
        updates=1000,
        embedding=8,
        lr=0.003,
        smoothing=0.1,
    )
    run = raydpzv.run(scenario)
    print(f"accuracy {run.accuracy:.3f}")
    print({name: tuple(value.shape) for name, value in run.state_dict(party="camera").items()})
