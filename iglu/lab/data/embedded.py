"""Data that is already on the machine, so that everything runs with no download.

Images: the 1,797 handwritten digits that ship with scikit-learn, 8 x 8 pixels.  Text: the language
reference that ships inside CPython; it differs from one Python to the next, so that its figures compare
under the same Python only.
"""

from __future__ import annotations

import functools

import torch

from iglu.lab.data.images import Images, ImageSet

TEST_IMAGES_A_CLASS = 50


@functools.cache
def digits() -> ImageSet:
    """The digits, in three equal channels; the last 50 images of each class are the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    grey = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)
    everything = Images(grey.unsqueeze(1).repeat(1, 3, 1, 1), torch.from_numpy(bunch.target).long())
    is_test = torch.zeros(len(everything.labels), dtype=torch.bool)
    for label in range(10):
        members = (everything.labels == label).nonzero().squeeze(1)
        is_test[members[-TEST_IMAGES_A_CLASS:]] = True
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
def python_reference() -> str:
    """Every topic of ``help()``, in the order of their names.  Topics quote each other: a paragraph stays
    where it comes first only, or the end of the text could be learnt from its beginning."""
    from pydoc_data.topics import topics

    paragraphs = "\n\n".join(topics[name] for name in sorted(topics)).split("\n\n")
    return "\n\n".join(dict.fromkeys(paragraphs))
