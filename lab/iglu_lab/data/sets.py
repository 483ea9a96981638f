"""Image sets by name; add a row for a new set.  Text has no row: its dataset is a path in the data folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from iglu_lab.data import cifar, embedded
from iglu_lab.data.images import ImageSet

IMAGE_SETS: dict[str, Callable[[Path], ImageSet]] = {
    "cifar10": lambda root: cifar.load("cifar10", root),
    "cifar100": lambda root: cifar.load("cifar100", root),
    "digits": lambda _: embedded.digits(),
}


class ContinualSet(NamedTuple):
    """Images for a sequence of tasks, with new random labels or permuted pixels."""

    images: Callable[[], tuple[Tensor, Tensor, int]]  # flat images, labels, number of classes
    has_new_labels: bool


CONTINUAL_SETS = {
    "digits-random-labels": ContinualSet(embedded.flat_digits, True),
    "digits-permuted-pixels": ContinualSet(embedded.flat_digits, False),
}
