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
from typing import Literal, TypeGuard

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from iglu import kernels
from iglu.formulas import COMPUTE_DTYPE, FAMILIES, Sigma, compute_dtype
from iglu.kernels import plain, record

Approximate = Literal["none", "rational"]
Save = Literal["input", "output"]
_chosen = kernels.chosen.get
SAVES = ("input", "output")


def iglu(
    x: Tensor,
    sigma: Sigma = 1.0,
    *,
    approximate: Approximate = "none",
    channel_dim: int | None = None,
    inplace: bool = False,
    save: Save = "input",
) -> Tensor:
    """IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi), or IGLU-Approx with ``approximate="rational"``.

    ``sigma`` is a number >= 0 (0 gives x/2, ``math.inf`` gives ReLU), or a tensor with one value, or one
    value for each channel along ``channel_dim`` (by default dimension 1 or the last, whichever has as
    many); a tensor is differentiated and its values are not checked (a negative one means
    f(x; -sigma) = x - f(x; sigma)).  The output has the dtype, shape and memory format of ``x``.

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
    if not inplace and save == "input" and not is_dynamo_compiling():
        served = _chosen().forward("value", x, None, sigma, approximate, channel_dim)
        if served is not None:
            return served
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu, (x, sigma), x, sigma,
            approximate=approximate, channel_dim=channel_dim, inplace=inplace, save=save,
        )  # fmt: skip
    check_choice("approximate", approximate, FAMILIES)
    check_save(save, approximate)
    scale, channel_dim = _prepare(x, sigma, channel_dim)
    if _is_limit(scale):
        return _limit(x, scale, bool(inplace))
    if inplace or save == "output":
        return _keep_output_or_overwrite(x, scale, approximate, channel_dim, bool(inplace))
    return _serve("value", x, None, scale, approximate, channel_dim)


def iglu_gate(
    x: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """The gate Z(x; sigma) = 1/2 + arctan(sigma x)/pi, or Z_approx; sigma as in :func:`iglu`.

    >>> iglu_gate(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.2500, 0.5000, 0.7500])
    """
    if not is_dynamo_compiling():
        served = _chosen().forward("gate", x, None, sigma, approximate, channel_dim)
        if served is not None:
            return served
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu_gate, (x, sigma), x, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    scale, channel_dim = _prepare(x, sigma, channel_dim)
    if _is_limit(scale):  # 1/2, or a step; both with a slope of 0
        return torch.where(x.isnan(), x, 0.5 if scale == 0 else x.sign() * 0.5 + 0.5)
    return _serve("gate", x, None, scale, approximate, channel_dim)


def iglu_glu(
    gate: Tensor,
    up: Tensor | None = None,
    sigma: Sigma = 1.0,
    *,
    approximate: Approximate = "none",
    channel_dim: int | None = None,
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
        served = _chosen().forward("glu", gate, up, sigma, approximate, channel_dim)
        if served is not None:
            return served
    if has_torch_function((gate, up, sigma)):
        return handle_torch_function(
            iglu_glu, (gate, up, sigma), gate, up, sigma, approximate=approximate, channel_dim=channel_dim
        )
    check_choice("approximate", approximate, FAMILIES)
    _check_tensor(gate, "gate")
    if up is None:
        if gate.dim() == 0 or plain.shape_of(gate)[-1] % 2:
            raise ValueError(
                f"iglu_glu: without up the last dimension holds gate and up and must be even, "
                f"got shape {tuple(gate.shape)}"
            )
    elif not isinstance(up, Tensor):
        raise TypeError(f"up must be a tensor or None, got {up!r}; sigma is the third argument, or sigma=...")
    elif plain.shape_of(up) != plain.shape_of(gate) or up.dtype != gate.dtype:
        raise ValueError(
            f"iglu_glu: up must have gate's shape and dtype, {tuple(gate.shape)} {gate.dtype}, "
            f"got {tuple(up.shape)} {up.dtype}"
        )
    half, other = plain.halves("glu", gate, up)
    scale, channel_dim = _prepare(half, sigma, channel_dim)
    if _is_limit(scale):
        wide = compute_dtype(half.dtype)
        product: Tensor = _limit(half.to(wide), scale) * other.to(wide)
        return product.to(half.dtype)
    return _serve("glu", gate, up, scale, approximate, channel_dim)


def gelu_scaled(x: Tensor, a: Sigma = 1.0, *, channel_dim: int | None = None) -> Tensor:
    """GELU_a(x) = x Phi(a x), the paper's GELU of sharpness a >= 0: 0 is x/2, 1 is GELU, inf is ReLU.

    >>> gelu_scaled(torch.tensor([-1.0, 0.0, 1.0]), 1.0)
    tensor([-0.1587,  0.0000,  0.8413])
    """
    if has_torch_function((x, a)):
        return handle_torch_function(gelu_scaled, (x, a), x, a, channel_dim=channel_dim)
    scale, channel_dim = _prepare(x, a, channel_dim, name="a")
    if _is_limit(scale):
        return _limit(x, scale)
    wide = x.to(compute_dtype(x.dtype))
    if isinstance(scale, Tensor):
        scale = plain.widen(plain.broadcast(scale, x, channel_dim), wide.dtype)
    return (wide * (torch.erfc(wide * scale * -math.sqrt(0.5)) / 2)).to(x.dtype)


def gain(sigma: float = 1.0, approximate: Approximate = "none") -> float:
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


def _serve(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int
) -> Tensor:
    """A call whose arguments are what they should be: offered to the kernels again, else by the formulas."""
    if not is_dynamo_compiling():
        served = _chosen().forward(operation, x, up, sigma, approximate, channel_dim)
        if served is not None:
            return served
        kernels.refuse_if_named(x)
    return record.call(operation, x, up, sigma, approximate, channel_dim)


def _keep_output_or_overwrite(
    x: Tensor, sigma: Sigma, approximate: str, channel_dim: int, inplace: bool
) -> Tensor:
    """Both are for eager mode: the compiler decides by itself what to keep, and transforms need the input.
    There the ordinary operation serves, and overwriting x is a copy."""
    records = record.is_recorded(x, sigma)
    if record.is_eager():
        kernels.refuse_if_named(x)
        if inplace and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                "an inference tensor can be overwritten in inference mode only; x.clone() makes a normal one"
            )
        if records and approximate == "rational" and record.output_tells_slope(x, sigma):
            return record.keep_output(kernels.kernels_for(x), x, sigma, channel_dim, inplace)
        if inplace and not records:
            served = record.overwrite(kernels.kernels_for(x), x, sigma, approximate, channel_dim)
            if served is not None:
                return served
    if not inplace:
        return _serve("value", x, None, sigma, approximate, channel_dim)
    # where a gradient will need x, it is that of a copy
    return x.copy_(_serve("value", x.clone() if records else x, None, sigma, approximate, channel_dim))


def _is_limit(sigma: Sigma) -> TypeGuard[float]:
    return isinstance(sigma, float) and sigma in (0, math.inf)


def _limit(x: Tensor, sigma: float, inplace: bool = False) -> Tensor:
    """x/2 at sigma = 0, ReLU at sigma = inf."""
    if sigma == 0:
        return x.mul_(0.5) if inplace else x * 0.5
    return F.relu(x, inplace)


def _check_tensor(x: object, name: str = "x") -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.dtype not in COMPUTE_DTYPE:
        raise TypeError(f"{name} must be of float16, bfloat16, float32 or float64, got {x.dtype}")


def _prepare(x: Tensor, sigma: Sigma, channel_dim: int | None, name: str = "sigma") -> tuple[Sigma, int]:
    """Check x and sigma; return sigma as a float, or as a tensor of one value or of one a channel, and the
    dimension of the channels."""
    _check_tensor(x)
    if not isinstance(sigma, Tensor):
        number = check_number(name, sigma)
        # Where sigma overflows the precision of the computation, nothing is left of IGLU but ReLU.
        return (math.inf if number > torch.finfo(compute_dtype(x.dtype)).max else number), 0
    if not sigma.is_floating_point():
        raise TypeError(f"{name} must be a number or a floating-point tensor, got a tensor of {sigma.dtype}")
    if sigma.dim() > 1:
        raise ValueError(f"{name} must be a scalar or have one dimension, got shape {tuple(sigma.shape)}")
    shape, values = plain.shape_of(x), plain.shape_of(sigma)
    if values in ((), (1,)):
        return sigma, 0
    (channels,) = values
    if channel_dim is None:
        channel_dim = _find_channels(name, channels, shape)
    if not -x.dim() <= channel_dim < x.dim():
        raise ValueError(
            f"{name} has {channels} values, one a channel, so channel_dim must be a dimension of x, "
            f"from {-x.dim()} to {x.dim() - 1} for shape {shape}, got {channel_dim}"
        )
    if channels != shape[channel_dim]:
        raise ValueError(
            f"{name} must have 1 value or {shape[channel_dim]}, one for each channel along dimension "
            f"{channel_dim} of x of shape {shape}, got {channels}"
        )
    return sigma, channel_dim


def _find_channels(name: str, channels: int, shape: tuple[int, ...]) -> int:
    """The dimension of the channels: the second or the last, where only one of them fits."""
    is_second, is_last = len(shape) > 1 and shape[1] == channels, bool(shape) and shape[-1] == channels
    if is_second and is_last and len(shape) > 2:
        raise ValueError(
            f"{name} has {channels} values, one a channel, and both dimension 1 and the last of x of shape "
            f"{shape} have {channels}: say channel_dim=1 or channel_dim=-1"
        )
    if not (is_second or is_last):
        raise ValueError(
            f"{name} must have 1 value, or one for each channel of x of shape {shape}, along dimension 1 or "
            f"the last (or along channel_dim), got {channels}"
        )
    return 1 if is_second else -1


def check_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{name} must be a number >= 0 or a tensor, got {value!r}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name} must be >= 0, got {value}")
    return number


def check_save(save: str, approximate: str) -> None:
    check_choice("save", save, SAVES)
    if save == "output" and approximate != "rational":
        raise ValueError(
            "save='output' needs approximate='rational': near its floor the output of the exact IGLU says "
            "too little of its input (at sigma x = -1000 the float32 gradient would be off by up to 26%)"
        )


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        near = difflib.get_close_matches(str(value), list(allowed), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {choices}, got {value!r}.{hint}")
