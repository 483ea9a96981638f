"""A labeled image set as uint8 tensors, small enough to stay on the device without a DataLoader."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Images(NamedTuple):
    """One split: ``pixels`` (n, channels, height, width) in uint8, ``labels`` (n,) in int64."""

    pixels: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Images:
        return Images(self.pixels[rows], self.labels[rows])

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


class ImageSet(NamedTuple):
    """Both splits, and the mean and standard deviation of each channel in [0, 1]."""

    train: Images
    test: Images
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def counts(self) -> Tensor:
        """The number of training images of each class."""
        return torch.bincount(self.train.labels, minlength=self.classes)
