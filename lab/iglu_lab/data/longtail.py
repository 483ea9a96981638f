"""Long-tailed training sets, subsampled from a balanced set.  The test set is not changed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from iglu.functional import check_choice
from iglu_lab.data.images import ImageSet

PROFILES = ("exponential", "step")

# More than 100 training images, 20 to 100, fewer than 20: the usual groups of the long-tail literature.
MANY, FEW = 100, 20
SHOTS = ("many", "medium", "few")


def class_sizes(largest: int, classes: int, ratio: float, profile: str = "exponential") -> list[int]:
    """n_k = int(n_max mu^(k/(K-1))) with mu = 1/ratio, or, as a step, n_max for the first half of the
    classes and int(n_max mu) for the others.  No class is left empty.

    >>> class_sizes(500, 5, 100)
    [500, 158, 50, 15, 5]
    >>> class_sizes(500, 4, 100, "step")
    [500, 500, 5, 5]
    """
    check_choice("profile", profile, PROFILES)
    if ratio < 1:
        raise ValueError(f"ratio must be at least 1 (largest class to smallest), got {ratio}")
    if profile == "step":
        sizes = [int(largest / (1 if k < (classes + 1) // 2 else ratio)) for k in range(classes)]
    else:
        sizes = [int(largest * (1 / ratio) ** (k / (classes - 1))) for k in range(classes)]
    return [max(size, 1) for size in sizes]


def long_tailed(
    data: ImageSet, ratio: float, profile: str = "exponential", seed: int = 0, subset: str = "seeded"
) -> ImageSet:
    """Subsample the training classes of ``data``, class 0 the largest, at random; the order is kept.

    With ``subset="authors"`` it is the subset of the paper's authors: NumPy's legacy generator, seeded once,
    shuffles the images of each class, in ascending order of the classes."""
    sizes = class_sizes(int(data.counts().min()), data.classes, ratio, profile)
    generator, legacy = torch.Generator().manual_seed(seed), np.random.RandomState(seed)
    kept = []
    for label, size in enumerate(sizes):
        members = (data.train.labels == label).nonzero().squeeze(1)
        if subset == "authors":
            order = members.numpy().copy()
            legacy.shuffle(order)
            kept.append(torch.from_numpy(order[:size]))
        else:
            kept.append(members[torch.randperm(len(members), generator=generator)[:size]])
    return data._replace(train=data.train.take(torch.cat(kept).sort().values))


def class_weights(counts: Tensor) -> Tensor:
    """Weights proportional to 1/n_k that sum to the number of classes.

    >>> class_weights(torch.tensor([30, 10]))
    tensor([0.5000, 1.5000])
    """
    weights = 1 / counts.double()
    return (weights * (len(counts) / weights.sum())).float()


def shot_of(counts: Tensor) -> Tensor:
    """The group of each class (many-, medium- or few-shot) as an index into ``SHOTS``."""
    return torch.where(counts > MANY, 0, torch.where(counts >= FEW, 1, 2))
