"""The models of the paper.  Each takes ``make_activation``, which it calls once per activation layer."""

from collections.abc import Callable

from torch import nn

MakeActivation = Callable[[], nn.Module]
