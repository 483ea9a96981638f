"""IGLU and related activations as modules with a fixed or learnable sigma; each calls one function.

A fixed sigma is a plain attribute, so the state dict is empty and a checkpoint trained with GELU loads.
A learnable one is the parameter ``log_sigma``, which keeps sigma positive, or with ``constrain=False`` the
parameter ``free_sigma``, the paper's sigma itself.  ``module.sigma`` reads the value in all three cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from iglu import functional
from iglu.formulas import FAMILIES, Sigma, compute_dtype
from iglu.functional import DEFAULT_SIGMA, Approximate, Save
from iglu.kernels import reference


def _raise_not_scriptable(self: nn.Module) -> nn.Module:
    """Called by ``torch.jit.script``, which would otherwise fail later, with unrelated errors."""
    raise NotImplementedError(
        f"torch.jit.script does not support {type(self).__name__}: use torch.compile, torch.export or "
        "torch.jit.trace"
    )


class SigmaModule(nn.Module):
    """A module with a sigma, fixed or learnable; ``forward`` reads ``self.sigma``."""

    log_sigma: nn.Parameter
    free_sigma: nn.Parameter
    __prepare_scriptable__ = _raise_not_scriptable

    def __init__(
        self,
        sigma: float = 1.0,
        *,
        learnable: bool = False,
        channels: int | None = None,
        channel_dim: int | None = None,
        constrain: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store sigma, fixed or as a parameter.

        Args:
            sigma: The value of a fixed sigma, or the starting value of a learnable one.
            learnable: Whether sigma is a parameter.
            channels: The number of channels, for one learnable sigma per channel.
            channel_dim: The channel dimension of the input: 1 for images, -1 for sequences.
            constrain: Whether the parameter is log sigma, which keeps sigma positive, or sigma itself.
            device: The device of the learnable parameter; the default device of torch if None.
            dtype: The floating-point dtype of the learnable parameter; the default dtype of torch if None.
        """
        super().__init__()
        self.start = _check_start(self, sigma)
        if not isinstance(learnable, bool):  # in activation names, the start follows "learnable="
            raise TypeError(
                f"learnable must be True or False, got {learnable!r}; sigma is the starting value"
            )
        self.learnable = learnable
        self.channel_dim = channel_dim
        self.constrain = constrain
        _check_channels(channels, channel_dim, learnable)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating-point dtype of torch or None, got {dtype!r}")
        if not learnable:
            return
        if not 0 < self.start < math.inf and constrain:
            raise ValueError(
                f"a learnable sigma must start above 0 and below inf, got {sigma}; "
                "with constrain=False it may start at 0"
            )
        # Shape (1,), not (): fully sharded data parallel rejects parameters without a dimension.
        parameter = nn.Parameter(torch.empty(channels or 1, device=device, dtype=dtype))
        if constrain:
            self.log_sigma = parameter
        else:
            self.free_sigma = parameter
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set a learnable sigma back to its starting value."""
        if self.learnable and self.constrain:
            nn.init.constant_(self.log_sigma, math.log(self.start))
        elif self.learnable:
            nn.init.constant_(self.free_sigma, self.start)

    @property
    def sigma(self) -> Sigma:
        """The value of sigma: a number if fixed, a tensor of shape (1,) or (channels,) if learnable."""
        if not self.learnable:
            return self.start
        if not self.constrain:
            return self.free_sigma
        parameter = self.log_sigma
        return parameter.to(compute_dtype(parameter.dtype)).exp()

    @sigma.setter
    def sigma(self, value: float) -> None:
        if self.learnable:
            name = "log_sigma" if self.constrain else "free_sigma"
            raise AttributeError(
                f"sigma is learnable: its value is in the parameter {name}. "
                "Change that under torch.no_grad(), or create the module with another start"
            )
        self.start = functional.check_number("sigma", value)

    def extra_repr(self) -> str:
        if not self.learnable:
            return f"sigma={self.start:g}"
        sigma = torch.as_tensor(self.sigma).detach()
        return _with_options(
            f"sigma={_span(sigma)}, learnable=True", channels=(sigma.numel() or 1, 1),
            channel_dim=(self.channel_dim, None), constrain=(self.constrain, True),
        )  # fmt: skip


def _check_start(module: nn.Module, sigma: object) -> float:
    if isinstance(sigma, Tensor):
        raise TypeError(
            f"sigma must be a number, got a tensor; {type(module).__name__}(start, learnable=True) learns "
            "sigma, and the function iglu.iglu(x, sigma) accepts a tensor"
        )
    return functional.check_number("sigma", sigma)


def _check_channels(channels: int | None, channel_dim: int | None, learnable: bool) -> None:
    for name, value in (("channels", channels), ("channel_dim", channel_dim)):
        if value is not None:
            functional.check_integer(name, value)
    if channels is None:
        return
    if channels < 1:
        raise ValueError(f"channels must be at least 1, got {channels}")
    if not learnable:
        raise ValueError(f"channels={channels} needs learnable=True: a fixed sigma is one number")
    if channel_dim is None:
        raise ValueError(
            f"channels={channels} needs channel_dim, the dimension of the input with {channels} channels: "
            f"{functional.CHANNEL_DIMS}"
        )


def _span(values: Tensor) -> str:
    """Format one value, or the range of several; "?" if they cannot be read."""
    if not reference.is_readable(values):
        return "?"
    least, greatest = values.min().item(), values.max().item()
    return f"{least:g}" if f"{least:g}" == f"{greatest:g}" else f"{least:g}..{greatest:g}"


class IGLU(SigmaModule):
    """IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi), or IGLU-Approx with ``approximate="rational"``.

    ``torch.jit.script`` is not supported; ``torch.compile``, ``torch.export`` and ``torch.jit.trace`` are.

    >>> IGLU(5.0)
    IGLU(sigma=5)
    >>> IGLU(5.0, learnable=True, channels=16, channel_dim=1)  # images: (batch, channels, height, width)
    IGLU(sigma=5, learnable=True, channels=16, channel_dim=1)
    """

    def __init__(
        self,
        sigma: float = DEFAULT_SIGMA,
        *,
        learnable: bool = False,
        approximate: Approximate = "none",
        channels: int | None = None,
        channel_dim: int | None = None,
        inplace: bool = False,
        save: Save = "input",
        constrain: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store sigma, fixed or as a parameter.

        Args:
            sigma: How sharp the bend at 0 is, 5 by default: 0 gives x/2, ``math.inf`` gives ReLU.  A
                learnable sigma starts at this value.
            learnable: Make sigma a parameter.  It is ``log_sigma``, of shape (1,); ``module.sigma`` is the
                value.  Exclude it from weight decay, see :func:`iglu.weight_decay_groups`.
            approximate: "none" for the arctan gate, "rational" for IGLU-Approx, whose gate needs no arctan.
            channels: The number of channels, to learn one sigma per channel.  Needs ``learnable`` and
                ``channel_dim``.
            channel_dim: The channel dimension of the input: 1 for images (batch, channels, height, width),
                -1 for sequences (batch, time, channels).
            inplace: Overwrite the input; see :func:`iglu.iglu` for what is then saved.
            save: What is saved for the backward pass, "input" or "output" (rational only); "output" needs
                less memory before a Linear, see :func:`iglu.iglu`.
            constrain: Learn log sigma, which keeps sigma positive.  False learns sigma itself, in the
                parameter ``free_sigma``, as the paper does; it may become negative.
            device: The device of the learnable parameter; the default device of torch if None.
            dtype: The floating-point dtype of the learnable parameter; the default dtype of torch if None.
        """
        super().__init__(
            sigma, learnable=learnable, channels=channels, channel_dim=channel_dim,
            constrain=constrain, device=device, dtype=dtype,
        )  # fmt: skip
        functional.check_choice("approximate", approximate, FAMILIES)
        functional.check_save(save, approximate)
        self.approximate: Approximate = approximate
        self.inplace = inplace
        self.save: Save = save

    def forward(self, x: Tensor) -> Tensor:
        return functional.iglu(
            x, self.sigma, approximate=self.approximate, channel_dim=self.channel_dim,
            inplace=self.inplace, save=self.save,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return _with_options(
            super().extra_repr(), approximate=(self.approximate, "none"), inplace=(self.inplace, False),
            save=(self.save, "input"),
        )  # fmt: skip


class IGLUGate(SigmaModule):
    """The gate alone: Z(x; sigma) = 1/2 + arctan(sigma x)/pi, a Cauchy distribution function, or
    Z_approx with ``approximate="rational"``.

    >>> IGLUGate()(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.2500, 0.5000, 0.7500])
    """

    def __init__(
        self,
        sigma: float = 1.0,
        *,
        learnable: bool = False,
        approximate: Approximate = "none",
        channels: int | None = None,
        channel_dim: int | None = None,
        constrain: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store sigma, fixed or as a parameter.

        Args:
            sigma: How steep the gate is at 0: 0 gives 1/2 everywhere, ``math.inf`` a step from 0 to 1.  A
                learnable sigma starts at this value.
            learnable: Make sigma a parameter, as in :class:`iglu.IGLU`.
            approximate: "none" for the arctan gate, "rational" for the gate of IGLU-Approx.
            channels: The number of channels, to learn one sigma per channel.  Needs ``learnable`` and
                ``channel_dim``.
            channel_dim: The channel dimension of the input: 1 for images, -1 for sequences (batch, time,
                channels).
            constrain: Learn log sigma, which keeps sigma positive; False learns sigma itself.
            device: The device of the learnable parameter; the default device of torch if None.
            dtype: The floating-point dtype of the learnable parameter; the default dtype of torch if None.
        """
        super().__init__(
            sigma, learnable=learnable, channels=channels, channel_dim=channel_dim,
            constrain=constrain, device=device, dtype=dtype,
        )  # fmt: skip
        functional.check_choice("approximate", approximate, FAMILIES)
        self.approximate: Approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.iglu_gate(x, self.sigma, approximate=self.approximate, channel_dim=self.channel_dim)

    def extra_repr(self) -> str:
        return _with_options(super().extra_repr(), approximate=(self.approximate, "none"))


class IGLUGLU(SigmaModule):
    """IGLU(gate) * up of an input whose halves along ``dim`` are gate and up, gate first.

    Like ``nn.GLU`` it has no weights of its own.

    >>> IGLUGLU()(torch.tensor([-1.0, 1.0, 2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    """

    def __init__(
        self,
        sigma: float = 1.0,
        *,
        dim: int = -1,
        learnable: bool = False,
        approximate: Approximate = "none",
        channels: int | None = None,
        constrain: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Store sigma, fixed or as a parameter.

        Args:
            sigma: The sigma of IGLU(gate).  A learnable sigma starts at this value.
            dim: The dimension that is split into gate and up; its size must be even.
            learnable: Make sigma a parameter, as in :class:`iglu.IGLU`.
            approximate: "none" for IGLU, "rational" for IGLU-Approx.
            channels: The number of channels of the gate, half the size of the input along ``dim``, to learn
                one sigma per channel.  Needs ``learnable``.
            constrain: Learn log sigma, which keeps sigma positive; False learns sigma itself.
            device: The device of the learnable parameter; the default device of torch if None.
            dtype: The floating-point dtype of the learnable parameter; the default dtype of torch if None.
        """
        functional.check_integer("dim", dim)
        super().__init__(
            sigma, learnable=learnable, channels=channels, channel_dim=dim,
            constrain=constrain, device=device, dtype=dtype,
        )  # fmt: skip
        self.channel_dim = None  # self.dim is used instead
        functional.check_choice("approximate", approximate, FAMILIES)
        self.dim = dim
        self.approximate: Approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (x, None) if self.dim == -1 else self._halves(x)
        return functional.iglu_glu(gate, up, self.sigma, approximate=self.approximate, channel_dim=self.dim)

    def _halves(self, x: Any) -> tuple[Tensor, Tensor | None]:
        """Split x into gate and up; along the last dimension, leave that to the function (up is None)."""
        if not isinstance(x, Tensor):
            if not has_torch_function((x,)):
                raise TypeError(f"IGLUGLU: x must be a tensor, got {type(x).__name__}")
            gate, up = x.chunk(2, self.dim)  # symbolic tracing, which does not know the shape
            return gate, up
        shape, dim = reference.shape_of(x), self.dim
        if not shape:
            raise ValueError("IGLUGLU: x must have at least one dimension, got shape ()")
        if not -len(shape) <= dim < len(shape):
            raise ValueError(
                f"IGLUGLU: dim must be a dimension of x, from {-len(shape)} to {len(shape) - 1} for shape "
                f"{shape}, got {dim}; set it with IGLUGLU(dim=...)"
            )
        if dim == len(shape) - 1:
            return x, None
        if shape[dim] % 2:
            raise ValueError(
                f"IGLUGLU: dimension {dim} of x holds gate and up and must be even, got shape {shape}"
            )
        gate, up = x.chunk(2, dim)
        return gate, up

    def extra_repr(self) -> str:
        return _with_options(super().extra_repr(), dim=(self.dim, -1), approximate=(self.approximate, "none"))


class ScaledGELU(SigmaModule):
    """The paper's GELU_a(x) = x Phi(a x); the argument sigma is its sharpness a."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu_scaled(x, self.sigma, channel_dim=self.channel_dim)


class XATLU(nn.Module):
    """xATLU (Huang, 2024): x ((1 + 2 alpha) Z(x; 1) - alpha), its range expanded by a learned alpha."""

    __prepare_scriptable__ = _raise_not_scriptable

    def __init__(
        self,
        alpha: float = 0.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(1, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.start)

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha.to(x.dtype)
        return (1 + 2 * alpha) * functional.iglu(x, 1.0) - alpha * x


class Squareplus(nn.Module):
    """Squareplus (Barron, 2021): (x + sqrt(x^2 + b))/2, softplus without a logarithm."""

    def __init__(self, b: float = 4.0) -> None:
        super().__init__()
        self.b = b

    def forward(self, x: Tensor) -> Tensor:
        return (x + (x * x + self.b).sqrt()) / 2

    def extra_repr(self) -> str:
        return f"b={self.b:g}"


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: the parameters of activations (log sigma, alpha, PReLU's
    weight) without weight decay, all others with it.  Weight decay would pull log sigma toward 0, that is,
    sigma toward 1.

    Args:
        model: The model, after any :func:`iglu.swap`, which adds parameters.
        weight_decay: The weight decay of the other parameters, a number >= 0.

    >>> groups = weight_decay_groups(nn.Sequential(nn.Linear(2, 2), IGLU(5.0, learnable=True)), 0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(2, 0.1), (1, 0.0)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, not its parameters, got {type(model).__name__}")
    functional.check_number("weight_decay", weight_decay)
    exempt = {id(parameter) for parameter in shape_parameters(model)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) not in exempt], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in exempt], "weight_decay": 0.0},
    ]


def shape_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of every activation in the model."""
    for module in model.modules():
        if is_known(module):
            yield from module.parameters()


def is_known(module: nn.Module) -> bool:
    """Whether a module is one of iglu's activations or of a type that the zoo makes."""
    from iglu.zoo import row_of  # not at the top, since it imports this module

    return isinstance(module, SigmaModule) or row_of(type(module)) is not None


def _with_options(text: str, **options: tuple[Any, Any]) -> str:
    """Append to ``text`` each option that differs from its default."""
    return text + "".join(
        f", {name}={value!r}" for name, (value, default) in options.items() if value != default
    )
