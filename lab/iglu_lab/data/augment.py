"""Batched random crop, flip and color jitter, on the device of the images.

``draw`` takes all random numbers of a batch from one generator; ``apply`` is a function of pixels and draws.
So a batch can be split between processes, or compared with another implementation, with the same draws.  The
formulas are those of torchvision on float images in [0, 1]; each image has its own factors and order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

# ITU-R 601 luma, with the digits of torchvision.
_GREY = (0.2989, 0.587, 0.114)


class Jitter(NamedTuple):
    """Half-widths of the uniform distributions: three factors around 1, and a hue shift around 0."""

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __bool__(self) -> bool:
        return any(value > 0 for value in self)


class Augmentation(NamedTuple):
    """In this order: resize (also test images), pad and crop, horizontal flip, color jitter."""

    size: int | None = None
    padding: int = 0
    flip: bool = False
    jitter: Jitter = Jitter()


class Draws(NamedTuple):
    """The random numbers of a batch, one row per image."""

    shift: Tensor  # (n, 2), rows and columns, in 0 .. 2 padding
    flip: Tensor  # (n,) bool
    factors: Tensor  # (n, 4), in the order of Jitter
    order: Tensor  # (n, 4), a permutation of 0 .. 3: the order of the adjustments

    def take(self, rows: slice) -> Draws:
        return Draws(*(values[rows] for values in self))

    def to(self, device: torch.device) -> Draws:
        """The order stays on the CPU: indexing by it on a GPU would synchronize."""
        return Draws(self.shift.to(device), self.flip.to(device), self.factors.to(device), self.order)


def draw(count: int, augmentation: Augmentation, generator: torch.Generator) -> Draws:
    """Draw for ``count`` images, on the CPU, so that results do not depend on the device."""
    half = torch.tensor(augmentation.jitter)
    low = torch.cat([(1 - half[:3]).clamp(min=0), -half[3:]])
    high = torch.cat([1 + half[:3], half[3:]])
    return Draws(
        shift=torch.randint(0, 2 * augmentation.padding + 1, (count, 2), generator=generator),
        flip=torch.rand(count, generator=generator) < 0.5,
        factors=low + (high - low) * torch.rand(count, 4, generator=generator),
        order=torch.rand(count, 4, generator=generator).argsort(1),
    )


def apply(pixels: Tensor, draws: Draws, augmentation: Augmentation) -> Tensor:
    """Augment uint8 images; return floats in [0, 1]."""
    if augmentation.size is not None:
        pixels = resize(pixels, augmentation.size)
    # Still uint8 unless resized, a quarter of the memory traffic.
    if augmentation.padding > 0:
        pixels = crop(pixels, draws.shift, augmentation.padding)
    if augmentation.flip:
        pixels = torch.where(draws.flip[:, None, None, None], pixels.flip(-1), pixels)
    images = to_unit(pixels)
    return jitter(images, draws.factors, draws.order) if augmentation.jitter else images


def to_unit(pixels: Tensor) -> Tensor:
    """Convert uint8 to floats in [0, 1]; floats are returned unchanged."""
    return pixels if pixels.is_floating_point() else pixels.float().div_(255)


def resize(pixels: Tensor, size: int) -> Tensor:
    """Resize to size x size floats in [0, 1], bilinear with antialiasing."""
    return F.interpolate(to_unit(pixels), size=(size, size), mode="bilinear", antialias=True)


def crop(pixels: Tensor, shift: Tensor, padding: int) -> Tensor:
    """Pad with black and crop each image at its own shift."""
    height, width = pixels.shape[-2:]
    framed = F.pad(pixels, (padding,) * 4)
    windows = framed.unfold(2, height, 1).unfold(3, width, 1)  # a view: (n, c, shifts, shifts, h, w)
    return windows[torch.arange(len(pixels), device=pixels.device), :, shift[:, 0], shift[:, 1]]


def jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply the four adjustments in the order of each image, batched over the images with the same next
    adjustment.  Overwrites ``images``."""
    if images.shape[1] != 3:
        raise ValueError(f"Color jitter needs images with 3 channels, got {images.shape[1]}")
    for turn in range(4):
        for index, adjust in enumerate((_brightness, _contrast, _saturation, _hue)):
            rows = (order[:, turn] == index).nonzero().squeeze(1).to(images.device)
            images[rows] = adjust(images[rows], factors[rows, index].view(-1, 1, 1))
    return images


def _grey(images: Tensor) -> Tensor:
    red, green, blue = images.unbind(1)
    return (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor images + (1 - factor) other, clamped to [0, 1]; ``other`` has no channel dimension."""
    factor = factor.unsqueeze(1)
    return (images * factor).add_(other.unsqueeze(1) * (1 - factor)).clamp_(0, 1)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor.unsqueeze(1)).clamp_(0, 1)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((1, 2), keepdim=True), factor)


def _saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def _hue(images: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue h, in sixths of the circle, by 6 ``turn``; keep value v and chroma c = max - min.

    Back to RGB: v - c clamp(min(k, 4 - k), 0, 1) with k = h + 5, 3, 1 (mod 6) for red, green, blue.
    """
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    scale = chroma.clamp(min=1e-12).reciprocal_()  # gray has chroma 0 and any hue
    hue = torch.where(
        value == red,
        (green - blue) * scale,
        torch.where(value == green, (blue - red) * scale + 2, (red - green) * scale + 4),
    )
    hue += 6 * turn
    k = (hue.unsqueeze(1) + hue.new_tensor((5.0, 3.0, 1.0)).view(3, 1, 1)).remainder_(6)
    weight = torch.minimum(k, 4 - k).clamp_(0, 1)
    return torch.addcmul(value.unsqueeze(1), weight, chroma.unsqueeze(1), value=-1)
