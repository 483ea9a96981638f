# mypy: ignore-errors
# ruff: noqa: RET505 - Triton compiles what follows a return, so every return needs its branch
"""The Triton kernels: value, gate and gated pair, forward and backward, one pass each.

The arithmetic is that of iglu/formulas.py under a compiler: float32, arctan as a polynomial (the interpreter
has no libdevice).  a = sigma |x|, m = min(a, 1/a).  The formulas take |sigma|; f(x; -s) = -f(-x; s).
Tensors are dense with the same order of dimensions, so a flat index finds an element in each of them; packed
pairs are contiguous with rows of 2 width elements.  The channel of an element is (index // inner) % channels.
"""

import torch
import triton
import triton.language as tl

from iglu import formulas

EXCESS = tl.constexpr(formulas.ARCTAN_EXCESS)
DERIVATIVE_TAIL = tl.constexpr(formulas.DERIVATIVE_TAIL[torch.float32])
NEAR_DERIVATIVE = tl.constexpr(formulas.NEAR_DERIVATIVE)
INVERSE_PI = tl.constexpr(1 / torch.pi)
FAR = tl.constexpr(formulas.FAR)
LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


@triton.jit
def polynomial(z, coefficients: tl.constexpr):
    result = tl.zeros_like(z) + coefficients[len(coefficients.value) - 1]
    for i in tl.static_range(len(coefficients.value) - 2, -1, -1):
        result = result * z + coefficients[i]
    return result


@triton.jit
def magnitude(x, sigma):
    """(a, m).  At sigma = 0 an infinite x has a = 0, not NaN."""
    a = tl.where((sigma == 0) & (x == x), 0.0, sigma * tl.abs(x))
    return a, tl.where(a < 1, a, tl.div_rn(1.0, a))


@triton.jit
def formula(x, sigma, sign, is_gate: tl.constexpr, exact: tl.constexpr):
    """The gate, or max(x, 0) - |x| gate(-a); the second term is (arctan(m)/m)/(pi sigma) for a >= 1."""
    a, m = magnitude(x, sigma)
    if exact:
        limit = INVERSE_PI * (1 + (m * m) * polynomial(m * m, EXCESS))
        tail, is_near = tl.where(a < 1, 0.5 - m * limit, m * limit), a < 1
    else:
        limit = tl.full(a.shape, 0.5, tl.float32)
        tail, is_near = tl.div_rn(limit, 1 + a), a < FAR
    if is_gate:
        return tl.where(x < 0, tail, 1 - tail)
    else:
        # Comparisons, not tl.minimum and tl.maximum: -0 stays -0, and NaN stays NaN.
        far = tl.div_rn(limit, sigma)
        tail = tl.where(is_near, tl.abs(x) * tail, tl.where(far > LARGEST, LARGEST, far))
        return sign * tl.where(sigma == 0, 0.5 * x, tl.where(x < 0, 0.0, x) - tail)


@triton.jit
def derivatives(x, sigma, sign, is_gate: tl.constexpr, exact: tl.constexpr):
    """(df/dx, df/dsigma), or those of the gate: sigma j and x j, j = 1/(pi (1+a^2)) or 1/(2 (1+a)^2).
    Where a >= 1, |x| is written as a/sigma and 1/(1+a) as m/(1+m), so that nothing overflows."""
    a, m = magnitude(x, sigma)
    size = tl.where(a < 1, tl.abs(x), tl.div_rn(1.0, sigma))
    j = tl.div_rn(INVERSE_PI, 1 + m * m) if exact else tl.div_rn(tl.div_rn(0.5, 1 + m), 1 + m)
    if is_gate:
        decay = tl.where(a < 1, 1.0, m)
        return sign * (sigma * decay) * (decay * j), tl.where(x < 0, -sign, sign) * size * (decay * j)
    else:
        if exact:
            far = m * ((m * m) * polynomial(m * m, DERIVATIVE_TAIL))
            tail = tl.where(a < 1, 0.5 - m * polynomial(m * m, NEAR_DERIVATIVE), far)
        else:
            r = tl.div_rn(1.0, 1 + a)
            tail = r * (0.5 * r)
        return tl.where(x < 0, tail, 1 - tail), size * (size * j)


@triton.jit
def load(x, sigma, index, mask, channels, inner, width, is_packed: tl.constexpr, is_number: tl.constexpr):
    """(index of the element in x, the sign of sigma, sign x, |sigma| limited to finite numbers)."""
    place = index + (index // width) * width if is_packed else index
    if is_number:
        signed = tl.full((1,), sigma, tl.float32)
    else:
        signed = tl.load(sigma + (index // inner) % channels, mask=mask, other=1.0).to(tl.float32)
    sign, size = tl.where(signed < 0, -1.0, 1.0), tl.abs(signed)
    x = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    return place, sign, sign * x, tl.where(size > LARGEST, LARGEST, size)


@triton.jit
def iglu_forward(
    y, x, up, sigma, count, channels, inner, width,
    operation: tl.constexpr, exact: tl.constexpr, is_packed: tl.constexpr, is_number: tl.constexpr,
    is_wide: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """y = value(x), gate(x) or value(x) up."""
    program = tl.program_id(0).to(tl.int64 if is_wide else tl.int32)
    index = program * block + tl.arange(0, block)
    mask = index < count
    place, sign, at, size = load(x, sigma, index, mask, channels, inner, width, is_packed, is_number)
    result = formula(at, size, sign, operation == "gate", exact)
    if operation == "glu":
        result *= tl.load(up + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + index, result, mask=mask)


@triton.jit
def iglu_backward(
    grad_x, grad_up, sums, grad, x, up, sigma, count, channels, inner, width,
    operation: tl.constexpr, exact: tl.constexpr, is_packed: tl.constexpr, is_number: tl.constexpr,
    is_wide: tl.constexpr, block: tl.constexpr, block_channels: tl.constexpr,
):  # fmt: skip
    """The gradients of x and up, and for a tensor sigma the sum over each block of those of sigma.

    A block is a part of the flat range or, with one sigma per channel, ``block`` elements of each of
    ``block_channels`` channels.  ``sums`` has one row per block and one column per channel; the caller adds
    the rows in a fixed order."""
    program = tl.program_id(0).to(tl.int64 if is_wide else tl.int32)
    elements = count // channels
    rows = tl.cdiv(elements, block)
    if block_channels == 0:
        index = program * block + tl.arange(0, block)
        mask = index < count
    else:
        channel = ((program // rows) * block_channels + tl.arange(0, block_channels))[:, None]
        element = ((program % rows) * block + tl.arange(0, block))[None, :]
        index = (element // inner) * (channels * inner) + channel * inner + element % inner
        mask = (channel < channels) & (element < elements)
    place, sign, at, size = load(x, sigma, index, mask, channels, inner, width, is_packed, is_number)
    through = tl.load(grad + index, mask=mask, other=0.0).to(tl.float32)
    if operation == "glu":
        tl.store(grad_up + place, through * formula(at, size, sign, False, exact), mask=mask)
        through *= tl.load(up + place, mask=mask, other=0.0).to(tl.float32)
    df_dx, df_dsigma = derivatives(at, size, sign, operation == "gate", exact)
    tl.store(grad_x + place, through * df_dx, mask=mask)
    if not is_number:
        part = tl.where(mask, through * df_dsigma, 0.0)
        if block_channels == 0:
            tl.store(sums + program, tl.sum(part))
        else:
            total = tl.sum(part, axis=1, keep_dims=True)
            tl.store(sums + (program % rows) * channels + channel, total, mask=channel < channels)
