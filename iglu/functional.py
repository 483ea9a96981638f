"""The functions of IGLU: check the arguments, then one operation.

Named special cases of IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi):

- its gate is the distribution function of the Cauchy law with scale 1/sigma;
- it is the average of x Phi(a x), GELU's gate at sharpness a, over a half-normal a of scale sigma;
- sigma = 0 is x/2, sigma -> inf is ReLU, sigma = 1 is the ATLU of Huang (2024);
- f(x) - f(-x) = x, and f(x) + f(-x) = 2 x arctan(sigma x)/pi;
- it is strictly increasing, strictly convex and 1-Lipschitz, and falls to the floor -1/(pi sigma).

IGLU-Approx replaces arctan(u)/pi by u/(2 (1+|u|)): the same in every respect above but for its floor,
-1/(2 sigma), and its smoothness (twice continuously differentiable).  The gates differ by at most
0.0226365, at sigma |x| = 0.313436 and 3.190440; the activations tend to a difference of 0.18169/sigma.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from iglu import kernels
from iglu.formulas import FAMILIES, Sigma, compute_dtype
from iglu.kernels import plain

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SAVES = ("input", "output")


def iglu(
    x: Tensor,
    sigma: Sigma = 1.0,
    *,
    approximate: str = "none",
    channel_dim: int = 1,
    inplace: bool = False,
    save: str = "input",
) -> Tensor:
    """IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi), or IGLU-Approx with ``approximate="rational"``.

    ``sigma`` is a number >= 0 (0 gives x/2, ``math.inf`` gives ReLU), or a tensor with one value, or one
    value for each channel along ``channel_dim``; a tensor is differentiated and its values are not
    checked (a negative one means f(x; -sigma) = x - f(x; sigma)).  The output has the dtype, shape and
    memory format of ``x``.

    ``save="output"`` (rational only) keeps the output for the backward pass instead of ``x``: before a layer
    that keeps its input, such as a Linear, one buffer then serves both, as with ReLU.  ``inplace`` overwrites
    ``x``: the rational form then keeps the output, the exact one a copy of ``x``.  Both are for eager mode;
    the compiler decides by itself what to keep.  The price is the gradient's accuracy in the far negative
    tail: relative errors of about 1e-4 at sigma x = -1000 in float32, and 0.4 at -100 in bfloat16.

    >>> iglu(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.2500,  0.0000,  0.7500])
    >>> iglu(torch.tensor([-1.0, 0.0, 1.0]), sigma=2.0, approximate="rational")
    tensor([-0.1667,  0.0000,  0.8333])
    """
    if save in SAVES and not is_dynamo_compiling():
        served = kernels.value(x, sigma, approximate, channel_dim, inplace, save == "output")
        if served is not None:
            return served
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu, (x, sigma), x, sigma,
            approximate=approximate, channel_dim=channel_dim, inplace=inplace, save=save,
        )  # fmt: skip
    check_choice("approximate", approximate, FAMILIES)
    check_choice("save", save, SAVES)
    if save == "output" and approximate != "rational":
        raise ValueError(
            "save='output' needs approximate='rational': near its floor the output of the exact IGLU says "
            "too little of its input (at sigma x = -1000 the float32 gradient would be off by up to 26%)"
        )
    scale = _prepare(x, sigma, channel_dim)
    if _is_limit(scale):
        return _limit(x, scale, inplace)
    kernels.refuse_if_named(x)
    if approximate == "rational" and (inplace or save == "output"):
        return plain.value_keeping_output(approximate, x, scale, overwrite=inplace)
    if inplace:
        return plain.overwriting(approximate, x, scale)
    return plain.call(f"value:{approximate}", x, scale)


def iglu_gate(x: Tensor, sigma: Sigma = 1.0, *, approximate: str = "none", channel_dim: int = 1) -> Tensor:
    """The gate Z(x; sigma) = 1/2 + arctan(sigma x)/pi, or Z_approx; sigma as in :func:`iglu`.

    >>> iglu_gate(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.2500, 0.5000, 0.7500])
    """
    if not is_dynamo_compiling():
        served = kernels.gate(x, sigma, approximate, channel_dim)
        if served is not None:
            return served
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu_gate, (x, sigma), x, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    scale = _prepare(x, sigma, channel_dim)
    if isinstance(scale, float):
        if scale == 0:
            return torch.where(x.isnan(), x, 0.5)
        if scale == math.inf:
            return torch.where(x.isnan(), x, torch.heaviside(x, torch.full_like(x, 0.5)))
    kernels.refuse_if_named(x)
    return plain.call(f"gate:{approximate}", x, scale)


def iglu_glu(
    gate: Tensor,
    up: Tensor | None = None,
    sigma: Sigma = 1.0,
    *,
    approximate: str = "none",
    channel_dim: int = 1,
) -> Tensor:
    """iglu(gate) * up, the gated pair of a feed-forward layer (SwiGLU with IGLU for SiLU), in one pass.

    Without ``up``, gate and up are the halves of the first argument along its last dimension, gate first;
    nothing is copied to split them.

    >>> iglu_glu(torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    >>> iglu_glu(torch.tensor([-1.0, 1.0, 2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    """
    if not is_dynamo_compiling():
        served = kernels.glu(gate, up, sigma, approximate, channel_dim)
        if served is not None:
            return served
    if has_torch_function((gate, up, sigma)):
        return handle_torch_function(
            iglu_glu, (gate, up, sigma), gate, up, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    if up is None:
        if gate.dim() == 0 or gate.shape[-1] % 2:
            raise ValueError(
                f"iglu_glu: without up the last dimension holds gate and up and must be even, "
                f"got shape {tuple(gate.shape)}"
            )
        gate, up = gate.chunk(2, -1)
    scale = _prepare(gate, sigma, channel_dim)
    if up.shape != gate.shape or up.dtype != gate.dtype:
        raise ValueError(
            f"iglu_glu: up must have gate's shape and dtype, {tuple(gate.shape)} {gate.dtype}, "
            f"got {tuple(up.shape)} {up.dtype}"
        )
    if _is_limit(scale):
        return _limit(gate, scale) * up
    kernels.refuse_if_named(gate)
    return plain.call(f"glu:{approximate}", gate, up, scale)


def gelu_scaled(x: Tensor, a: Sigma = 1.0, *, channel_dim: int = 1) -> Tensor:
    """GELU_a(x) = x Phi(a x), the paper's GELU of sharpness a >= 0: 0 is x/2, 1 is GELU, inf is ReLU.

    >>> gelu_scaled(torch.tensor([-1.0, 0.0, 1.0]), 1.0)
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if has_torch_function((x, a)):
        return handle_torch_function(gelu_scaled, (x, a), x, a, channel_dim=channel_dim)
    scale = _prepare(x, a, channel_dim, name="a")
    if scale == math.inf and isinstance(scale, float):
        return F.relu(x)
    wide = x.to(compute_dtype(x.dtype))
    argument = wide * (scale.to(wide.dtype) if isinstance(scale, Tensor) else scale)
    return (wide * (torch.erfc(argument * -math.sqrt(0.5)) / 2)).to(x.dtype)


def gain(sigma: float = 1.0, approximate: str = "none") -> float:
    """The factor for weight initialisation that keeps the second moment, as ``nn.init.calculate_gain``:
    1/sqrt(E f(X)^2) for a standard normal X.

    >>> round(gain(1.0), 4), round(gain(math.inf), 4) == round(math.sqrt(2), 4), gain(0)
    (1.6984, True, 2.0)
    """
    check_choice("approximate", approximate, FAMILIES)
    sigma = check_number("sigma", sigma)
    if sigma == math.inf:
        return math.sqrt(2)
    # E f^2 = integral over x > 0 of (f(x)^2 + f(-x)^2) phi(x); with x = exp(w) the trapezoidal rule
    # converges exponentially for every sigma, since the integrand is analytic around the whole line.
    step = 1 / 64
    x = torch.exp(torch.arange(-60.0, 4.0, step, dtype=torch.float64))
    squares = iglu(x, sigma, approximate=approximate) ** 2 + iglu(-x, sigma, approximate=approximate) ** 2
    moment = (squares * torch.exp(-x * x / 2) * x).sum().item() * step / math.sqrt(2 * math.pi)
    return 1 / math.sqrt(moment)


def _is_limit(sigma: Sigma) -> TypeGuard[float]:
    return isinstance(sigma, float) and sigma in (0, math.inf)


def _limit(x: Tensor, sigma: float, inplace: bool = False) -> Tensor:
    """x/2 at sigma = 0, ReLU at sigma = inf."""
    if sigma == 0:
        return x.mul_(0.5) if inplace else x * 0.5
    return F.relu(x, inplace)


def _prepare(x: Tensor, sigma: Sigma, channel_dim: int, name: str = "sigma") -> Sigma:
    """Check x and sigma; return sigma as a float, or as a tensor that broadcasts against x."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, got {type(x).__name__}")
    if x.dtype not in _DTYPES:
        raise TypeError(f"x must be of float16, bfloat16, float32 or float64, got {x.dtype}")
    if not isinstance(sigma, Tensor):
        number = check_number(name, sigma)
        # Where sigma overflows the precision of the computation, nothing is left of IGLU but ReLU.
        return math.inf if number > torch.finfo(compute_dtype(x.dtype)).max else number
    if not sigma.is_floating_point():
        raise TypeError(f"{name} must be a number or a floating-point tensor, got a tensor of {sigma.dtype}")
    if sigma.dim() > 1:
        raise ValueError(f"{name} must be a scalar or have one dimension, got shape {tuple(sigma.shape)}")
    if sigma.numel() == 1:
        return plain.along_channels(sigma, x.dim(), channel_dim)
    if not -x.dim() <= channel_dim < x.dim():
        raise ValueError(
            f"{name} has {sigma.shape[0]} values, one a channel, so channel_dim must be a dimension of x, "
            f"from {-x.dim()} to {x.dim() - 1} for shape {tuple(x.shape)}, got {channel_dim}"
        )
    if sigma.shape[0] != x.shape[channel_dim]:
        raise ValueError(
            f"{name} must have 1 value or {x.shape[channel_dim]}, one for each channel along dimension "
            f"{channel_dim} of x of shape {tuple(x.shape)}, got {sigma.shape[0]}"
        )
    return plain.along_channels(sigma, x.dim(), channel_dim)


def check_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{name} must be a number >= 0 or a tensor, got {value!r}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name} must be >= 0, got {value}")
    return number


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        near = difflib.get_close_matches(str(value), list(allowed), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {choices}, got {value!r}.{hint}")
