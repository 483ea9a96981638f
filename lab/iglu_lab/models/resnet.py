"""ResNets for 32 x 32 images (He et al., 2016): depth 6n + 2, three stages of n basic blocks.

Parameter names match common CIFAR checkpoints, so that these can be loaded.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from iglu_lab.models import MakeActivation

SHORTCUTS = ("A", "B")


class ZeroPadShortcut(nn.Module):
    """Option A: subsampling and zero-padded channels, without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def _norm(channels: int, norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm else nn.Identity()


def _shortcut(inputs: int, outputs: int, stride: int, norm: bool, shortcut: str) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if shortcut == "A":
        return ZeroPadShortcut(inputs, outputs, stride)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs, norm))


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut; the second activation follows the sum."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        make_activation: MakeActivation,
        norm: bool,
        shortcut: str,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = _norm(outputs, norm)
        self.act1 = make_activation()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = _norm(outputs, norm)
        self.shortcut = _shortcut(inputs, outputs, stride, norm, shortcut)
        self.act2 = make_activation()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        result: Tensor = self.act2(y)
        return result


class ResNet(nn.Module):
    """A stem, three stages of 16, 32 and 64 channels, global average pooling, a linear head."""

    def __init__(
        self, depth: int, classes: int, make_activation: MakeActivation, norm: bool, shortcut: str
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 (20, 32, 44, 56, ...; at least 8), got {depth}")
        if shortcut not in SHORTCUTS:
            raise ValueError(f"shortcut must be one of {', '.join(map(repr, SHORTCUTS))}, got {shortcut!r}")

        def stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            shapes = [(inputs, stride)] + [(outputs, 1)] * ((depth - 2) // 6 - 1)
            return nn.Sequential(
                *(BasicBlock(i, outputs, s, make_activation, norm, shortcut) for i, s in shapes)
            )

        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = _norm(16, norm)
        self.act1 = make_activation()
        self.layer1 = stage(16, 16, 1)
        self.layer2 = stage(16, 32, 2)
        self.layer3 = stage(32, 64, 2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean((2, 3)))
        return logits


def resnet(
    depth: int,
    classes: int = 10,
    make_activation: MakeActivation = nn.ReLU,
    norm: bool = True,
    shortcut: str = "B",
) -> ResNet:
    """The ResNet of that depth for CIFAR; ``norm=False`` removes only the normalization.

    >>> sum(p.numel() for p in resnet(20).parameters()), sum(p.numel() for p in resnet(20, 100).parameters())
    (272474, 278324)
    """
    return ResNet(depth, classes, make_activation, norm, shortcut)


resnet20 = functools.partial(resnet, 20)  # has 19 activation layers

# Normalization of the images of the trained model, after scaling to [0, 1].
TRAINED_MEAN = (0.485, 0.456, 0.406)
TRAINED_STD = (0.229, 0.224, 0.225)


def load_trained_resnet20(path: str | Path, make_activation: MakeActivation = nn.ReLU) -> ResNet:
    """A ResNet-20 with option A shortcuts and the weights of a CIFAR-10 checkpoint, in evaluation mode.

    The file is a dict with a ``state_dict``, with the prefix ``module.`` of data parallel training.  Loading
    it executes no code.
    """
    expected = f"{path} is not a trained CIFAR-10 ResNet-20 (a dict with a state_dict, option A shortcuts)"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0]
        raise ValueError(f"{expected}: torch.load(weights_only=True) raised {first_line}") from error
    if not isinstance(content, dict) or "state_dict" not in content:
        found = (
            f"a dict with {', '.join(map(str, content))}"
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise ValueError(f"{expected}: got {found}")
    model = resnet20(10, make_activation, shortcut="A")
    weights = {name.removeprefix("module."): tensor for name, tensor in content["state_dict"].items()}
    # The checkpoint of a ReLU model has no activation parameters.
    own = {
        name for name in model.state_dict() if name.rpartition(".")[0].rpartition(".")[2].startswith("act")
    }
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # a shape that differs
        raise ValueError(f"{expected}: {error}") from error
    missing = sorted(set(missing) - own)
    if missing or unexpected:
        raise ValueError(
            f"{expected}: missing {', '.join(missing[:3]) or 'nothing'}, "
            f"unexpected {', '.join(unexpected[:3]) or 'nothing'}"
        )
    return model.eval()
