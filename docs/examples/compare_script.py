"""A script that iglu compare runs as it is:

iglu compare --activations relu iglu:5 --metric loss -- python docs/examples/compare_script.py --steps 300
"""

import argparse
import json
import os

import torch
from torch import nn

import iglu

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps

torch.manual_seed(int(os.environ["IGLU_SEED"]))
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
iglu.swap(model, os.environ["IGLU_ACTIVATION"])
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for _step in range(steps):
    x = torch.randn(256, 8)
    loss = nn.functional.mse_loss(model(x), (x[:, :4] * x[:, 4:]).sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(json.dumps({"loss": loss.item()}))
