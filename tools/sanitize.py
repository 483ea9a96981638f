"""Fuzz the C kernels under the address and undefined-behavior sanitizers: every operation on tensors of
random layouts, dtypes and sigmas, compared with the formulas in torch.  Run by ``make sanitize``, which
builds the kernels with the sanitizers and preloads their library.

    python tools/sanitize.py [calls] [seed]
"""

from __future__ import annotations

import random
import sys

import torch

import iglu
from iglu.kernels import autograd, native, reference

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 0.1, torch.float16: 0.05}


def strided(random_: random.Random, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape whose memory is permuted, gapped, offset, expanded or overlapping.  Its
    allocation ends at its last element, so that the sanitizer detects an access beyond it."""
    kind = random_.choice(("dense", "permuted", "gapped", "expanded", "overlapping"))
    order = list(range(len(shape)))
    if kind != "dense":
        random_.shuffle(order)
    strides, step = [0] * len(shape), 1
    for dim in order:
        gap = random_.choice((1, 1, 2, 3)) if kind in ("gapped", "overlapping") else 1
        strides[dim] = step * gap
        step *= max(1, shape[dim]) * gap if kind != "overlapping" else max(1, shape[dim] // 2)
        if kind == "expanded" and random_.random() < 0.4:
            strides[dim] = 0
    offset = random_.randrange(4)
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + 1
    memory = (torch.randn(offset + reach) * 2).to(dtype)
    return memory.as_strided(shape, strides, offset)


def one_call(random_: random.Random) -> None:
    dtype = random_.choice(DTYPES)
    shape = [random_.choice((1, 2, 3, 5, 17, 70)) for _ in range(random_.randrange(4))]
    operation = random_.choice(("value", "gate", "glu", "glu"))
    is_packed = operation == "glu" and bool(shape) and random_.random() < 0.5
    x = strided(random_, [*shape[:-1], 2 * shape[-1]] if is_packed else shape, dtype)
    up = strided(random_, shape, dtype) if operation == "glu" and not is_packed else None
    channel_dim = random_.randrange(len(shape)) if shape else 0
    count = shape[channel_dim] if shape and random_.random() < 0.5 else 1
    sigma: float | torch.Tensor = 10 ** random_.uniform(-2, 2)
    if random_.random() < 0.6:
        sigma = strided(random_, [count], random_.choice(DTYPES))
    approximate = random_.choice(("none", "rational"))
    grad = strided(random_, shape, dtype)
    needs_sigma = isinstance(sigma, torch.Tensor)

    call = (operation, x, up, sigma, approximate, channel_dim)
    compare(call, dtype, native.loops.forward(*call), reference.forward(*call))
    inputs = (operation, grad, x, up, sigma, approximate, channel_dim)
    expected = autograd.differentiable_gradients(*inputs, (True, True, needs_sigma))
    for got, wanted in zip(native.loops.backward(*inputs, needs_sigma), expected, strict=True):
        compare(call, dtype, got, wanted)
    if operation != "gate":
        gg_x, gg_up = (
            strided(random_, list(x.shape), dtype),
            None if up is None else strided(random_, shape, dtype),
        )
        again = (operation, gg_x, gg_up, grad, x, up, sigma, approximate, channel_dim, needs_sigma)
        wanted = autograd.differentiable_double_backward(operation, gg_x, gg_up, None, *again[3:])
        for got, each in zip(native.loops.double_backward(*again), wanted, strict=True):
            compare(call, dtype, got, each)
    if operation == "value":
        y = x.clone(memory_format=torch.contiguous_format)
        native.loops.forward("value", y, None, sigma, approximate, channel_dim, y)
        compare(call, dtype, y, reference.forward(*call))


def compare(call: tuple, dtype: torch.dtype, got: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
    if got is None or wanted is None:
        assert got is wanted, f"one result is None, the other is not: {call}"
        return
    size = max(1.0, float(wanted.abs().max()))
    assert ((got.double() - wanted.double()).abs().max() <= TOLERANCE[dtype] * size).item(), call


def main() -> None:
    calls, seed = (int(each) for each in (sys.argv[1:] + ["2000", "0"][len(sys.argv) - 1 :]))
    assert native.loops is not None, native.unavailable_reason
    best = native.loops.capability()
    for instructions in ("baseline", "avx2", "avx512"):
        try:
            native.loops.use(instructions)
        except ValueError:
            continue
        random_ = random.Random(seed)
        torch.manual_seed(seed)
        for _ in range(calls):
            one_call(random_)
        print(f"{instructions}: {calls} random calls, no error")
    native.loops.use(best)
    print(iglu.explain(torch.ones(1)))


if __name__ == "__main__":
    main()
