"""Train your own network on your own arrays, by seeds and scalars alone: python
examples/own_model.py
"""

from sklearn.datasets import load_digits
from torch import nn

import raydpzv

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32").reshape(-1, 1, 8, 8)


class Net(nn.Sequential):
    """A small convolutional network."""

    def __init__(self, classes: int, channels: int = 8) -> None:
        super().__init__(
            nn.Conv2d(1, channels, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * channels, classes)
        )


if __name__ == "__main__":
    owners = y % 5  # client 0 holds the digits 0 and 5, client 1 holds 1 and 6, ...
    scenario = raydpzv.horizontal(
        Net,
        (x, y),
        clients=owners,
        method="decomfl",
        updates=200,
        lr=0.02,
        perturbations=10,
        every=50,
    )
    run = raydpzv.run(scenario)
    print(f"accuracy {run.accuracy:.3f} from {run.summary['bytes_up']:,} bytes of scalars")
    print({name: tuple(value.shape) for name, value in run.state_dict().items()})
