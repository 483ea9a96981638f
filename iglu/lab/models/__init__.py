"""The networks of the paper; each takes ``make_activation``, called once for every place of an activation."""

from collections.abc import Callable

from torch import nn

MakeActivation = Callable[[], nn.Module]
