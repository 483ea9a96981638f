"""The sets of images by name; a new one is a row.  Text needs none: a path in the data folder is enough."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from iglu.lab.data import cifar, embedded
from iglu.lab.data.images import ImageSet

IMAGE_SETS: dict[str, Callable[[Path], ImageSet]] = {
    "cifar10": lambda root: cifar.load("cifar10", root),
    "cifar100": lambda root: cifar.load("cifar100", root),
    "digits": lambda _: embedded.digits(),
}
