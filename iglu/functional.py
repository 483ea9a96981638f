"""The functions of IGLU: each checks its arguments, then runs one operation.

Named special cases of IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi):

- its gate is the distribution function of a Cauchy distribution with scale 1/sigma;
- it is the mean of x Phi(a x), a GELU of sharpness a, over a half-normal a with scale sigma;
- sigma = 0 gives x/2, sigma -> inf ReLU, sigma = 1 the ATLU of Huang (2024);
- f(x) - f(-x) = x, and f(x) + f(-x) = 2 x arctan(sigma x)/pi;
- it is strictly increasing, strictly convex and 1-Lipschitz, and tends to its floor -1/(pi sigma).

IGLU-Approx replaces arctan(u)/pi by u/(2 (1+|u|)).  It has the same limits in sigma, is also strictly
increasing, strictly convex and 1-Lipschitz, has the floor -1/(2 sigma), and is only twice continuously
differentiable.  The gates differ by at most 0.0226365, at sigma |x| = 0.313436 and 3.190440; the difference
of the activations tends to 0.18169/sigma.
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
from torch.utils._python_dispatch import _disable_current_modes

from iglu import kernels
from iglu.formulas import COMPUTE_DTYPE, FAMILIES, Sigma, compute_dtype, product
from iglu.kernels import autograd, reference

Approximate = Literal["none", "rational"]
Save = Literal["input", "output"]
_backend = kernels.current.get
SAVES = ("input", "output")

# The sigma of iglu(), IGLU, gain() and of the names iglu and iglu_approx.  Of the values that were trained
# with (0.1, 0.5, 1, 5 and 10), 5 was significantly better than ReLU on 1 task, worse on 1, equivalent on 6
# and inconclusive on 2; 1 was better on 0 of 5 tasks and worse on 2, 0.5 better on 0 of 11 and worse on 5;
# 10 was run on only 5 tasks, and was neither better nor worse on any.  Compared with 1, 5 was better on both
# transformers and worse on no network (docs/sigma.md, docs/results.md).  No run tested gates, gated pairs,
# the inverse or bounds: their default is 1, as in the standard Cauchy distribution.
DEFAULT_SIGMA = 5.0


def iglu(
    x: Tensor,
    sigma: Sigma = DEFAULT_SIGMA,
    *,
    approximate: Approximate = "none",
    channel_dim: int | None = None,
    inplace: bool = False,
    save: Save = "input",
) -> Tensor:
    """IGLU(x; sigma) = x (1/2 + arctan(sigma x)/pi), or IGLU-Approx with ``approximate="rational"``.

    ``inplace`` and ``save="output"`` take effect in eager mode; the compiler itself decides what to save.
    ``torch.jit.script`` is not supported.

    Args:
        x: The input, of dtype float16, bfloat16, float32 or float64 and of any shape.  The output has its
            dtype, shape and memory format.
        sigma: How sharp the bend at 0 is, 5 by default.  A number >= 0: 0 gives x/2, ``math.inf`` gives ReLU.
            Or a tensor with one value, or with one value per channel; a tensor gets a gradient, and its
            values are not checked (a negative one means f(x; -sigma) = x - f(x; sigma)).
        approximate: "none" for the arctan gate, "rational" for IGLU-Approx, whose gate needs no arctan.
        channel_dim: The channel dimension of ``x``, if ``sigma`` has one value per channel: 1 for images
            (batch, channels, height, width), -1 for sequences (batch, time, channels).  Required if ``x``
            has more than two dimensions.
        inplace: Overwrite ``x``.  For the backward pass, the rational form then saves the output, the exact
            form a copy of ``x``.
        save: What is saved for the backward pass, "input" or "output" (rational only).  If the next layer
            saves its input, as Linear does, saving the output needs no extra memory, as with ReLU.  The
            gradient is then less accurate in the far negative tail: relative errors of about 1e-4 at
            sigma x = -1000 in float32, and 0.4 at -100 in bfloat16.

    >>> iglu(torch.tensor([-1.0, 0.0, 1.0]), sigma=5.0)
    tensor([-0.0628,  0.0000,  0.9372])
    >>> iglu(torch.tensor([-1.0, 0.0, 1.0]), sigma=5.0, approximate="rational")
    tensor([-0.0833,  0.0000,  0.9167])
    """
    if not inplace and save == "input" and not is_dynamo_compiling():
        result = _backend().native_forward("value", x, None, sigma, approximate, channel_dim)
        if result is not None:
            return result
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu, (x, sigma), x, sigma,
            approximate=approximate, channel_dim=channel_dim, inplace=inplace, save=save,
        )  # fmt: skip
    scale, channel_dim = _prepare(x, sigma, channel_dim, approximate)
    check_save(save, approximate)
    if _is_limit(scale):
        return _limit(x, scale, bool(inplace))
    if inplace or save == "output":
        return _keep_output_or_overwrite(x, scale, approximate, channel_dim, bool(inplace))
    return _run("value", x, None, scale, approximate, channel_dim)


def iglu_gate(
    x: Tensor, sigma: Sigma = 1.0, *, approximate: Approximate = "none", channel_dim: int | None = None
) -> Tensor:
    """The gate Z(x; sigma) = 1/2 + arctan(sigma x)/pi, or Z_approx with ``approximate="rational"``.

    Args:
        x: The input, of any floating-point dtype and shape.
        sigma: As in :func:`iglu`; 0 gives 1/2 everywhere, ``math.inf`` a step from 0 to 1.
        approximate: "none" for the arctan gate, "rational" for 1/2 + u/(2 (1 + \\|u\\|)), u = sigma x.
        channel_dim: The dimension of ``x`` along which ``sigma`` has one value per channel, as in
            :func:`iglu`.

    >>> iglu_gate(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.2500, 0.5000, 0.7500])
    """
    if not is_dynamo_compiling():
        result = _backend().native_forward("gate", x, None, sigma, approximate, channel_dim)
        if result is not None:
            return result
    if has_torch_function((x, sigma)):
        return handle_torch_function(
            iglu_gate, (x, sigma), x, sigma, approximate=approximate, channel_dim=channel_dim
        )
    scale, channel_dim = _prepare(x, sigma, channel_dim, approximate)
    if _is_limit(scale):  # 1/2, or a step; the derivative of both is 0
        return torch.where(x.isnan(), x, 0.5 if scale == 0 else x.sign() * 0.5 + 0.5)
    return _run("gate", x, None, scale, approximate, channel_dim)


def iglu_glu(
    gate: Tensor,
    up: Tensor | None = None,
    sigma: Sigma = 1.0,
    *,
    approximate: Approximate = "none",
    channel_dim: int | None = None,
) -> Tensor:
    """iglu(gate) * up in one pass: the gated pair of a feed-forward layer (SwiGLU with IGLU instead of SiLU).

    Args:
        gate: The input of IGLU.  Without ``up``, it holds both halves along the last dimension, gate first;
            they are not copied.
        up: The other factor, with the shape and dtype of ``gate``.
        sigma: The sigma of IGLU(gate), as in :func:`iglu`.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.
        channel_dim: The dimension of ``gate`` (of one half, without ``up``) along which ``sigma`` has one
            value per channel, as in :func:`iglu`.

    >>> iglu_glu(torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    >>> iglu_glu(torch.tensor([-1.0, 1.0, 2.0, 2.0]))
    tensor([-0.5000,  1.5000])
    """
    if not is_dynamo_compiling():
        result = _backend().native_forward("glu", gate, up, sigma, approximate, channel_dim)
        if result is not None:
            return result
    if has_torch_function((gate, up, sigma)):
        return handle_torch_function(
            iglu_glu, (gate, up, sigma), gate, up, sigma, approximate=approximate, channel_dim=channel_dim
        )
    _check_tensor(gate, "gate")
    if up is None:
        if gate.dim() == 0 or reference.shape_of(gate)[-1] % 2:
            raise ValueError(
                f"iglu_glu: without up the last dimension holds gate and up and must be even, "
                f"got shape {tuple(gate.shape)}"
            )
    elif not isinstance(up, Tensor):
        raise TypeError(
            f"up must be a tensor or None, got {up!r}; pass sigma as the third argument or by keyword"
        )
    elif reference.shape_of(up) != reference.shape_of(gate) or up.dtype != gate.dtype:
        raise ValueError(
            f"iglu_glu: up must have gate's shape and dtype, {tuple(gate.shape)} {gate.dtype}, "
            f"got {tuple(up.shape)} {up.dtype}"
        )
    half, other = reference.halves("glu", gate, up)
    scale, channel_dim = _prepare(half, sigma, channel_dim, approximate)
    if _is_limit(scale):
        wide = compute_dtype(half.dtype)
        limit: Tensor = _limit(half.to(wide), scale) * other.to(wide)
        return limit.to(half.dtype)
    return _run("glu", gate, up, scale, approximate, channel_dim)


def gelu_scaled(x: Tensor, a: Sigma = 1.0, *, channel_dim: int | None = None) -> Tensor:
    """GELU_a(x) = x Phi(a x), the paper's GELU of sharpness a: x/2 at a = 0, GELU at 1, ReLU at inf.

    Args:
        x: The input, of any floating-point dtype and shape.
        a: The sharpness, a number >= 0 or a tensor with one value or one per channel.
        channel_dim: The dimension of ``x`` along which ``a`` has one value per channel, as in :func:`iglu`.

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
        scale = reference.widen(reference.broadcast(scale, x, channel_dim), wide.dtype)
    return (wide * (torch.erfc(product(wide, scale) * -math.sqrt(0.5)) / 2)).to(x.dtype)


def gain(sigma: float = DEFAULT_SIGMA, approximate: Approximate = "none") -> float:
    """Return the gain for weight initialization that preserves the second moment, 1/sqrt(E f(X)^2) for a
    standard normal X; compare ``nn.init.calculate_gain``.

    Args:
        sigma: The sigma of the activation that follows, a number >= 0, 5 by default; ``math.inf``
            gives ReLU's gain.
        approximate: "none" for IGLU, "rational" for IGLU-Approx.

    >>> round(gain(5.0), 4), round(gain(math.inf), 4) == round(math.sqrt(2), 4), gain(0)
    (1.4843, True, 2.0)
    """
    check_choice("approximate", approximate, FAMILIES)
    sigma = check_number("sigma", sigma)
    if _is_limit(sigma):
        return math.sqrt(2) if sigma else 2.0
    # E f^2 = integral over x > 0 of (f(x)^2 + f(-x)^2) phi(x); with x = exp(w) the trapezoidal rule
    # converges exponentially for every sigma, since the integrand is analytic around the real line.
    step, value = 1 / 64, FAMILIES[approximate].value
    with _disable_current_modes():  # fake tensors have no values
        x = torch.exp(torch.arange(-60.0, 4.0, step, dtype=torch.float64, device="cpu"))
        squares = value(x, sigma) ** 2 + value(-x, sigma) ** 2
        moment = (squares * torch.exp(-x * x / 2) * x).sum().item() * step / math.sqrt(2 * math.pi)
    return 1 / math.sqrt(moment)


CHANNEL_DIMS = "1 for images (batch, channels, height, width), -1 for sequences (batch, time, channels)"


def _run(
    operation: str, x: Tensor, up: Tensor | None, sigma: Sigma, approximate: str, channel_dim: int
) -> Tensor:
    """Run a validated call that the native kernels do not support."""
    call = (operation, x, up, sigma, approximate, channel_dim)
    if not is_dynamo_compiling():
        is_for_gpu = kernels.backend_for(x.device) == "triton"
        if is_for_gpu and (result := autograd.KERNELS["triton"].forward(*call)) is not None:
            return result
        kernels.raise_if_unsupported(x)
    return autograd.call(*call)


def _keep_output_or_overwrite(
    x: Tensor, sigma: Sigma, approximate: Approximate, channel_dim: int, inplace: bool
) -> Tensor:
    """Save the output or overwrite x, in eager mode.  Otherwise run an ordinary call and copy its result to
    x if in place: the compiler itself decides what to save, and transforms need the input."""
    records = autograd.is_recorded(x, sigma)
    if autograd.is_eager():
        kernels.raise_if_unsupported(x)
        if inplace and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                "an inference tensor can be overwritten in inference mode only; x.clone() makes a normal one"
            )
        if records and approximate == "rational" and autograd.output_determines_df_dx(x, sigma):
            return autograd.save_output(kernels.backend_for(x.device), x, sigma, channel_dim, inplace)
        if inplace and not records:
            result = autograd.overwrite(kernels.backend_for(x.device), x, sigma, approximate, channel_dim)
            if result is not None:
                return result
    # If the backward pass needs x, it gets a copy.
    at = x.clone() if inplace and records else x
    y = iglu(at, sigma, approximate=approximate, channel_dim=channel_dim)
    return x.copy_(y) if inplace else y


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
        raise TypeError(f"{name} must have dtype float16, bfloat16, float32 or float64, got {x.dtype}")


def _prepare(
    x: Tensor, sigma: Sigma, channel_dim: int | None, approximate: str = "none", name: str = "sigma"
) -> tuple[Sigma, int]:
    """Check the arguments.  Return sigma as a float or as a tensor with one value or one per channel, and the
    channel dimension."""
    check_choice("approximate", approximate, FAMILIES)
    _check_tensor(x)
    if not isinstance(sigma, Tensor):
        number = check_number(name, sigma, "a number >= 0 or a tensor")
        # A sigma that overflows the dtype of the computation gives ReLU.
        return math.inf if number > torch.finfo(compute_dtype(x.dtype)).max else number, 0
    if not sigma.is_floating_point():
        raise TypeError(f"{name} must be a number or a floating-point tensor, got a tensor of {sigma.dtype}")
    if sigma.dim() > 1:
        raise ValueError(f"{name} must be a scalar or have one dimension, got shape {tuple(sigma.shape)}")
    shape, values = reference.shape_of(x), reference.shape_of(sigma)
    if values in ((), (1,)):
        return sigma, 0
    (channels,) = values
    if channel_dim is None:
        # Guessing it from the sizes would fail where the length equals the number of channels.
        if x.dim() > 2:
            raise ValueError(
                f"{name} has {channels} values, one per channel, so x of shape {shape} needs channel_dim: "
                f"{CHANNEL_DIMS}"
            )
        channel_dim = -1
    check_integer("channel_dim", channel_dim)
    if not -x.dim() <= channel_dim < x.dim():
        raise ValueError(
            f"{name} has {channels} values, one per channel, so channel_dim must be a dimension of x, "
            f"from {-x.dim()} to {x.dim() - 1} for shape {shape}, got {channel_dim}"
        )
    if channels != shape[channel_dim]:
        raise ValueError(
            f"{name} must have 1 value or {shape[channel_dim]}, one for each channel along dimension "
            f"{channel_dim} of x of shape {shape}, got {channels}"
        )
    return sigma, channel_dim


def check_number(name: str, value: object, expected: str = "a number >= 0") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    number = float(value)
    if not number >= 0:
        raise ValueError(f"{name} must be >= 0, got {value}")
    return number


def check_integer(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")


def check_save(save: str, approximate: str) -> None:
    check_choice("save", save, SAVES)
    if save == "output" and approximate != "rational":
        raise ValueError(
            "save='output' needs approximate='rational': near its floor, the output of the exact IGLU "
            "hardly depends on its input (at sigma x = -1000 the float32 gradient would be off by up to 26%)"
        )


def check_choice(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        near = difflib.get_close_matches(str(value), list(allowed), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {choices}, got {value!r}.{hint}")
