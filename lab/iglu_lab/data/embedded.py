"""Installed data, so that everything runs without a download.

Images: 1,797 handwritten digits of 8 x 8 pixels, in digits.csv.gz, which names their source.  Text: the
language reference that ships inside CPython; it differs between Python versions, so compare metrics
under the same version only.
"""

from __future__ import annotations

import functools
import gzip
import io
from importlib import resources

import numpy as np
import torch
from torch import Tensor

from iglu_lab.data.images import Images, ImageSet

TEST_IMAGES_PER_CLASS = 50


@functools.cache
def digits() -> ImageSet:
    """The digits, in three equal channels; the last 50 images of each class are the test set."""
    with gzip.open(io.BytesIO(resources.files(__package__).joinpath("digits.csv.gz").read_bytes())) as file:
        table = torch.from_numpy(np.loadtxt(file, np.uint8, delimiter=","))
    grey = table[:, :64].view(-1, 1, 8, 8).double().mul(255 / 16).round().to(torch.uint8)
    everything = Images(grey.repeat(1, 3, 1, 1), table[:, 64].long())
    is_test = torch.zeros(len(everything.labels), dtype=torch.bool)
    for label in range(10):
        members = (everything.labels == label).nonzero().squeeze(1)
        is_test[members[-TEST_IMAGES_PER_CLASS:]] = True
    train = everything.take(~is_test)
    unit = train.pixels[:, 0].double() / 255
    return ImageSet(
        train=train,
        test=everything.take(is_test),
        classes=10,
        mean=(unit.mean().item(),) * 3,
        std=(unit.std().item(),) * 3,
    )


@functools.cache
def flat_digits(count: int = 1200) -> tuple[Tensor, Tensor, int]:
    """The first training images as normalized vectors of 64, their labels, and the number of classes."""
    data = digits()
    unit = data.train.pixels[:count, 0].flatten(1).float() / 255
    return (unit - data.mean[0]) / data.std[0], data.train.labels[:count], data.classes


@functools.cache
def python_reference() -> str:
    """All topics of ``help()``, sorted by name.  Topics quote each other, so repeated paragraphs are dropped:
    otherwise the test text would repeat the training text."""
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs))
