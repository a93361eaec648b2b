"""Turn a MeZO run on the CPU into a seed file: python mezo_seeds.py base.pt steps.csv 1e-6
run.seeds.

MeZO's trainer needs two lines. Before the first step, the weights in the order in which it draws
directions:
    torch.save({n: p.detach() for n, p in model.named_parameters() if p.requires_grad}, "base.pt")
At the end of zo_update, the step:
    print(self.zo_random_seed, self.projected_grad, sep=",", file=open("steps.csv", "a"))
The model is float32 and weight decay is 0. `raydpzv replay run.seeds --weights base.pt` rebuilds
what MeZO's updates make. MeZO's own weights differ in the last bits: it perturbs in place, and
adding back does not restore them.
"""

import csv
import sys

import torch

from raydpzv.files import sha256
from raydpzv.seed_file.seed_conversion import write_pairs

base, steps, lr, out = sys.argv[1:]
weights = {name: tensor.numpy() for name, tensor in torch.load(base, weights_only=True).items()}
with open(steps, newline="") as file:
    pairs = [(int(seed), float(scalar)) for seed, scalar in csv.reader(file)]
x = write_pairs(out, weights, pairs, float(lr))
print(f"written: {out}: {len(pairs)} steps; the rebuilt model has the sha256 {sha256(x)}")
