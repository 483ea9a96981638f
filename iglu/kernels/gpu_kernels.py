# mypy: ignore-errors
# ruff: noqa: RET505 - Triton compiles what follows a return, so every return needs its branch
"""The three Triton kernels: every operation forward, every one backward, and the gradients of gradients.

A kernel sees its tensors as ``channels`` x ``count`` elements, count being the product of ``sizes``; each
tensor comes with its strides, that of the channels first, so that views, packed pairs, broadcast gradients
and every memory format are read where they lie.  A program handles one tile of block_channels x block
elements and sees one sigma for each of its channels; where one sigma serves all, there is one channel.

The gradient of sigma is summed over the tile and written as one number for each block and channel.  The
caller adds these up, always in the same order, so that the result is the same every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from iglu.kernels.gpu_formulas import (
    INVERSE_PI,
    LARGEST_FLOAT,
    exact_by_sigma,
    exact_curvature,
    exact_gate,
    exact_gate_by_sigma,
    exact_gate_slope,
    exact_slope,
    exact_slope_by_sigma,
    exact_value,
    fused,
    rational_by_sigma,
    rational_by_sigma_from_output,
    rational_curvature,
    rational_gate,
    rational_gate_by_sigma,
    rational_gate_slope,
    rational_slope,
    rational_slope_by_sigma,
    rational_slope_from_output,
    rational_value,
)


@triton.jit
def tile(channels, count, wide: tl.constexpr, block_channels: tl.constexpr, block: tl.constexpr):
    """(block number, channels as a column, elements as a row, which of them exist)."""
    program = tl.program_id(0)
    if wide:
        program = program.to(tl.int64)
    blocks = tl.cdiv(count, block)
    channel = ((program // blocks) * block_channels + tl.arange(0, block_channels))[:, None]
    index = ((program % blocks) * block + tl.arange(0, block))[None, :]
    return program % blocks, channel, index, (channel < channels) & (index < count)


@triton.jit
def offsets(channel, index, sizes, strides):
    result = channel * strides[0]
    for i in tl.static_range(len(sizes) - 1, 0, -1):
        result += (index % sizes[i]) * strides[i + 1]
        index = index // sizes[i]
    return result + index * strides[1]


@triton.jit
def read(tensor, channel, index, sizes, strides, exists):
    return tl.load(tensor + offsets(channel, index, sizes, strides), mask=exists, other=0.0).to(tl.float32)


@triton.jit
def write(tensor, value, channel, index, sizes, strides, exists):
    tl.store(tensor + offsets(channel, index, sizes, strides), value, mask=exists)


@triton.jit
def scale(sigma, sigma_low, sigma_stride, channel, channels, is_number: tl.constexpr):
    """(sign, |sigma| as two float32), one for each channel."""
    if is_number:
        sign = tl.full((1, 1), 1.0, tl.float32)
        return sign, tl.full((1, 1), sigma, tl.float32), tl.full((1, 1), sigma_low, tl.float32)
    else:
        signed = tl.load(sigma + channel * sigma_stride, mask=channel < channels, other=1.0)
        sign = tl.where(signed < 0, -1.0, 1.0)
        size = tl.abs(signed.to(tl.float32))
        size = tl.where(size > LARGEST_FLOAT, LARGEST_FLOAT, size)  # infinite: ReLU
        if sigma.dtype.element_ty == tl.float64:
            low = (tl.abs(signed) - size.to(tl.float64)).to(tl.float32)
        else:
            low = tl.zeros(signed.shape, tl.float32)
        return sign, size, low


@triton.jit
def either(
    exact: tl.constexpr, rational: tl.constexpr,
    x, sigma, sigma_low, is_exact: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    """One of two formulas, by the family."""
    if is_exact:
        return exact(x, sigma, sigma_low, half)
    else:
        return rational(x, sigma, sigma_low, half)


@triton.jit
def value_of(x, sign, sigma, sigma_low, is_exact: tl.constexpr, half: tl.constexpr):
    """The formulas are odd or even in sigma x: f(x; sigma) = s f(s x; |sigma|), s the sign of sigma."""
    value = sign * either(exact_value, rational_value, sign * x, sigma, sigma_low, is_exact, half)
    return tl.where(sigma == 0, 0.5 * x, value)


@triton.jit
def forward(
    y, x, up,
    sigma, sigma_low, sigma_stride, channels, count, sizes,
    y_strides, x_strides, up_strides,
    operation: tl.constexpr, is_exact: tl.constexpr, is_number: tl.constexpr,
    wide: tl.constexpr, block_channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """y = f(x), Z(x) or f(x) up, as ``operation`` is "value", "gate" or "glu"."""
    half: tl.constexpr = x.dtype.element_ty != tl.float32
    _, channel, index, exists = tile(channels, count, wide, block_channels, block)
    sign, sigma, sigma_low = scale(sigma, sigma_low, sigma_stride, channel, channels, is_number)
    at = read(x, channel, index, sizes, x_strides, exists)
    if operation == "gate":
        result = either(exact_gate, rational_gate, sign * at, sigma, sigma_low, is_exact, half)
    else:
        result = value_of(at, sign, sigma, sigma_low, is_exact, half)
    if operation == "glu":
        result *= read(up, channel, index, sizes, up_strides, exists)
    write(y, result, channel, index, sizes, y_strides, exists)


@triton.jit
def backward(
    grad_x, grad, x, grad_up, up, sums,
    sigma, sigma_low, sigma_stride, channels, count, sizes,
    grad_x_strides, grad_strides, x_strides, grad_up_strides, up_strides,
    operation: tl.constexpr, is_exact: tl.constexpr, is_number: tl.constexpr, needs_sums: tl.constexpr,
    wide: tl.constexpr, block_channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The gradients of the forward operation; "output" is the rational value, x being its output."""
    half: tl.constexpr = x.dtype.element_ty != tl.float32
    number, channel, index, exists = tile(channels, count, wide, block_channels, block)
    sign, sigma, sigma_low = scale(sigma, sigma_low, sigma_stride, channel, channels, is_number)
    at = read(x, channel, index, sizes, x_strides, exists)
    through = read(grad, channel, index, sizes, grad_strides, exists)
    if operation == "glu":
        by_up = through * value_of(at, sign, sigma, sigma_low, is_exact, half)
        write(grad_up, by_up, channel, index, sizes, grad_up_strides, exists)
        through *= read(up, channel, index, sizes, up_strides, exists)
    if operation == "gate":
        by_x = sign * either(exact_gate_slope, rational_gate_slope, at, sigma, sigma_low, is_exact, half)
    elif operation == "output":
        by_x = rational_slope_from_output(sign * at, sigma, sigma_low)
    else:
        by_x = either(exact_slope, rational_slope, sign * at, sigma, sigma_low, is_exact, half)
    write(grad_x, through * by_x, channel, index, sizes, grad_x_strides, exists)
    if needs_sums:
        if operation == "gate":
            by_sigma = either(
                exact_gate_by_sigma, rational_gate_by_sigma, at, sigma, sigma_low, is_exact, half
            )
            by_sigma = tl.where(sigma == 0, at * (INVERSE_PI if is_exact else 0.5), by_sigma)
        elif operation == "output":
            by_sigma = rational_by_sigma_from_output(sign * at, sigma, sigma_low)
        else:
            by_sigma = either(exact_by_sigma, rational_by_sigma, at, sigma, sigma_low, is_exact, half)
        part = tl.sum(tl.where(exists, through * by_sigma, 0.0), axis=1, keep_dims=True)
        tl.store(sums + number * channels + channel, part, mask=channel < channels)


@triton.jit
def twice(
    of_grad, by_x, grad, x, of_x, by_up, up, of_up, sums,
    sigma, sigma_low, sigma_stride, channels, count, sizes,
    of_grad_strides, by_x_strides, grad_strides, x_strides,
    of_x_strides, by_up_strides, up_strides, of_up_strides,
    operation: tl.constexpr, is_exact: tl.constexpr, is_number: tl.constexpr, needs_sums: tl.constexpr,
    wide: tl.constexpr, block_channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The gradients of grad, x and up, given those of the gradients of x and up, as in cpu/loops.h."""
    half: tl.constexpr = x.dtype.element_ty != tl.float32
    number, channel, index, exists = tile(channels, count, wide, block_channels, block)
    sign, sigma, sigma_low = scale(sigma, sigma_low, sigma_stride, channel, channels, is_number)
    at = read(x, channel, index, sizes, x_strides, exists)
    given = read(grad, channel, index, sizes, grad_strides, exists)
    v = read(by_x, channel, index, sizes, by_x_strides, exists)
    slope = either(exact_slope, rational_slope, sign * at, sigma, sigma_low, is_exact, half)
    curvature = sign * either(exact_curvature, rational_curvature, at, sigma, sigma_low, is_exact, half)
    if operation == "glu":
        q = read(by_up, channel, index, sizes, by_up_strides, exists)
        write(of_up, given * v * slope, channel, index, sizes, of_up_strides, exists)
        v *= read(up, channel, index, sizes, up_strides, exists)
        first = fused(v, slope, q * value_of(at, sign, sigma, sigma_low, is_exact, half))
        second = given * fused(v, curvature, q * slope)
    else:
        first = v * slope
        second = given * v * curvature
    write(of_grad, first, channel, index, sizes, of_grad_strides, exists)
    write(of_x, second, channel, index, sizes, of_x_strides, exists)
    if needs_sums:
        by_sigma = v * either(
            exact_slope_by_sigma, rational_slope_by_sigma, at, sigma, sigma_low, is_exact, half
        )
        if operation == "glu":
            by_sigma += q * either(exact_by_sigma, rational_by_sigma, at, sigma, sigma_low, is_exact, half)
        part = tl.sum(tl.where(exists, given * by_sigma, 0.0), axis=1, keep_dims=True)
        tl.store(sums + number * channels + channel, part, mask=channel < channels)
