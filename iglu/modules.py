"""IGLU and its relatives as modules: they hold sigma, fixed or learnable, and call one function.

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

from iglu import functional
from iglu.formulas import FAMILIES, Sigma, compute_dtype
from iglu.functional import Approximate, Save
from iglu.kernels import plain
from iglu.peers import XIELU


class SigmaModule(nn.Module):
    """A module with a sigma."""

    log_sigma: nn.Parameter
    free_sigma: nn.Parameter

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
        super().__init__()
        self.start = _check_start(self, sigma)
        self.learnable = learnable
        self.channel_dim = channel_dim
        self.constrain = constrain
        if not learnable:
            if channels is not None:
                raise ValueError(f"channels={channels} needs learnable=True: a fixed sigma is one number")
            return
        if channels is not None and channels < 1:
            raise ValueError(f"channels must be at least 1, got {channels}")
        if not 0 < self.start < math.inf and constrain:
            raise ValueError(
                f"a learnable sigma starts above 0 and below inf, got {sigma}; "
                "constrain=False learns sigma itself and may start at 0"
            )
        # Shape (1,), not (): fully sharded data parallel refuses parameters without a dimension.
        parameter = nn.Parameter(torch.empty(channels or 1, device=device, dtype=dtype))
        if constrain:
            self.log_sigma = parameter
        else:
            self.free_sigma = parameter
            self.register_load_state_dict_pre_hook(_read_the_name_of_0_1_0)  # type: ignore[no-untyped-call]
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
                f"sigma is learnable here: its value lives in the parameter {name}. "
                "Change that under torch.no_grad(), or build the module with another start"
            )
        self.start = functional.check_number("sigma", value)

    def extra_repr(self) -> str:
        if not self.learnable:
            return f"sigma={self.start:g}"
        sigma = torch.as_tensor(self.sigma).detach()
        parts = [f"sigma={_span(sigma)}", "learnable=True"]
        if sigma.numel() > 1:
            parts.append(f"channels={sigma.numel()}")
        if not self.constrain:
            parts.append("constrain=False")
        return ", ".join(parts)


def _check_start(module: nn.Module, sigma: object) -> float:
    if isinstance(sigma, Tensor):
        raise TypeError(
            f"sigma must be a number, got a tensor; {type(module).__name__}(start, learnable=True) learns "
            "one, and the function iglu.iglu(x, sigma) takes a tensor"
        )
    return functional.check_number("sigma", sigma)


def _span(values: Tensor) -> str:
    """One value, or the least and the greatest of several; nothing where there is no memory to read."""
    if values.is_meta:
        return "?"
    least, greatest = values.min().item(), values.max().item()
    return f"{least:g}" if f"{least:g}" == f"{greatest:g}" else f"{least:g}..{greatest:g}"


def _read_the_name_of_0_1_0(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """The free parameter was called sigma, as the property is."""
    if prefix + "sigma" in state:
        state[prefix + "free_sigma"] = state.pop(prefix + "sigma")


class IGLU(SigmaModule):
    """IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi), or IGLU-Approx with ``approximate="rational"``.

    sigma = 0 is x/2 and sigma = inf is ReLU; see :func:`iglu.iglu` for ``inplace`` and ``save``.

    >>> IGLU(0.5)
    IGLU(sigma=0.5)
    >>> IGLU(5.0, learnable=True, approximate="rational", channels=16)
    IGLU(sigma=5, learnable=True, channels=16, approximate='rational')
    """

    def __init__(
        self,
        sigma: float = 1.0,
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
    """The gate alone: the Cauchy distribution function Z, or Z_approx with ``approximate="rational"``."""

    def __init__(self, sigma: float = 1.0, *, approximate: Approximate = "none", **options: Any) -> None:
        super().__init__(sigma, **options)
        functional.check_choice("approximate", approximate, FAMILIES)
        self.approximate: Approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return functional.iglu_gate(x, self.sigma, approximate=self.approximate, channel_dim=self.channel_dim)

    def extra_repr(self) -> str:
        return _with_options(super().extra_repr(), approximate=(self.approximate, "none"))


class IGLUGLU(SigmaModule):
    """IGLU(gate) * up of an input whose halves along ``dim`` are gate and up, gate first.

    Like ``nn.GLU`` it has no weights of its own; channels, if learnable, are counted along ``dim``.

    >>> IGLUGLU()(torch.tensor([-1.0, 1.0, 2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    """

    def __init__(
        self, sigma: float = 1.0, *, dim: int = -1, approximate: Approximate = "none", **options: Any
    ) -> None:
        super().__init__(sigma, channel_dim=dim, **options)
        functional.check_choice("approximate", approximate, FAMILIES)
        self.dim = dim
        self.approximate: Approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        if plain.shape_of(x)[self.dim] % 2:
            raise ValueError(f"IGLUGLU needs an even size along dimension {self.dim}, got {tuple(x.shape)}")
        # along the last dimension the halves are used where they are
        gate, up = (x, None) if self.dim in (-1, x.dim() - 1) else x.chunk(2, self.dim)
        return functional.iglu_glu(gate, up, self.sigma, approximate=self.approximate, channel_dim=self.dim)

    def extra_repr(self) -> str:
        return _with_options(super().extra_repr(), dim=(self.dim, -1), approximate=(self.approximate, "none"))


class ScaledGELU(SigmaModule):
    """The paper's GELU_a(x) = x Phi(a x); its sharpness a is called sigma here, as everywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu_scaled(x, self.sigma, channel_dim=self.channel_dim)


class XATLU(nn.Module):
    """xATLU (Huang, 2024): x ((1 + 2 alpha) Z(x) - alpha), its range expanded by a learned alpha."""

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
        return (1 + 2 * alpha) * functional.iglu(x) - alpha * x


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
    """Two parameter groups for an optimizer: the shape parameters of activations (sigma, alpha, the
    slope of PReLU) without weight decay, which would pull them to 0, and all others with it.

    >>> groups = weight_decay_groups(nn.Sequential(nn.Linear(2, 2), IGLU(learnable=True)), 0.1)
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(2, 0.1), (1, 0.0)]
    """
    exempt = {id(parameter) for parameter in shape_parameters(model)}
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if id(p) not in exempt], "weight_decay": weight_decay},
        {"params": [p for p in parameters if id(p) in exempt], "weight_decay": 0.0},
    ]


def shape_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters that shape an activation, of every activation in the model."""
    for module in model.modules():
        if isinstance(module, SigmaModule | XATLU | XIELU | nn.PReLU):
            yield from module.parameters(recurse=False)


def _with_options(text: str, **options: tuple[Any, Any]) -> str:
    """The text of ``extra_repr`` with each option that differs from its default."""
    return text + "".join(
        f", {name}={value!r}" for name, (value, default) in options.items() if value != default
    )
