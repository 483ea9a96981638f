"""Which activation for a small network on handwritten digits?  python docs/examples/compare_digits.py"""

import torch
from torch import nn

import iglu
from iglu_lab import compare
from iglu_lab.data.embedded import digits


def train(activation: str, seed: int):
    """A plain training loop; yields the test accuracy after each epoch."""
    data = digits()
    (x, y), (test_x, test_y) = ((part.pixels[:, :1] / 255, part.labels) for part in (data.train, data.test))
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    iglu.swap(model, activation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(15):
        for batch in torch.randperm(len(x)).split(64):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean()
        yield {"acc": 100 * accuracy, "loss": loss}


if __name__ == "__main__":
    result = compare(train, ["relu", "gelu", "silu", "iglu:5"], metric="acc", seeds=5, margin=0.5, jobs=2)
    print(result)
