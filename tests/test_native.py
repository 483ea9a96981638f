"""The C kernels, called directly, for every instruction set of this processor."""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import subprocess
import sys
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch

from iglu.kernels import native

from truth import LONG, PI, TRUTH, every_value, extended, needs_extended, needs_loops, spread, ulp_errors

pytestmark = needs_loops
kernels = native.loops

FAMILIES = {"exact": "none", "rational": "rational"}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
# The dtypes for which the reference is more precise on this platform.
CHECKED = [
    pytest.param(dtype, marks=needs_extended) if dtype == torch.float64 else dtype
    for dtype in DTYPES.values()
]
FORWARD = ("value", "gate")
PARTIALS = ("df_dx", "df_dsigma", "dgate_dx", "dgate_dsigma")
CHANNELS_WITH_ALL_SIGNS = (0.7, -1.3, 0.0, 2.5, -0.01)


def _available() -> list[str]:
    if kernels is None:
        return ["none"]
    best = kernels.capability()
    found = []
    for name in ("baseline", "avx2", "avx512"):
        try:
            kernels.use(name)
        except ValueError:
            continue
        found.append(name)
    kernels.use(best)
    return found


@pytest.fixture(params=_available(), autouse=True)
def instruction_set(request):
    before = kernels.capability()
    kernels.use(request.param)
    assert kernels.capability() == request.param
    yield request.param
    kernels.use(before)


@pytest.fixture
def once(instruction_set):
    """For claims that do not depend on the instruction set: run once."""
    if instruction_set != _available()[-1]:
        pytest.skip("the instruction set does not matter")


@pytest.fixture
def threads():
    """torch.set_num_threads, undone; the kernels run on torch's threads."""
    before = torch.get_num_threads()
    assert native.parallel_for_address is not None
    yield torch.set_num_threads
    torch.set_num_threads(before)


def as_sigma(sigma):
    """The kernels accept a number only if it is positive, and a tensor of any values."""
    is_number = not isinstance(sigma, torch.Tensor)
    return torch.tensor(sigma, dtype=torch.float64) if is_number and sigma <= 0 else sigma


def forward(operation: str, family: str, x, sigma=1.0, out=None):
    """The channels are along dimension 1 of three, or the last."""
    channel_dim = 1 if x.dim() == 3 else -1
    y = kernels.forward(operation, x, None, as_sigma(sigma), FAMILIES[family], channel_dim, out)
    assert y is not None, "unsupported"
    return y


def backward(operation: str, family: str, grad, x, sigma=1.0, grad_sigma=None):
    channel_dim = 1 if x.dim() == 3 else -1
    if grad_sigma is not None and not isinstance(sigma, torch.Tensor):
        sigma = torch.tensor(sigma, dtype=torch.float64)
    grad_x, grad_up, sums = kernels.backward(
        operation, grad.expand_as(x), x, None, as_sigma(sigma), FAMILIES[family], channel_dim,
        grad_sigma is not None,
    )  # fmt: skip
    assert grad_up is None
    if grad_sigma is not None:
        grad_sigma.copy_(sums.reshape(grad_sigma.shape))
    return grad_x


def partial(kind: str, family: str, x, sigma: float):
    """A derivative per element: one channel per element, so that the kernel does not sum."""
    operation = "gate" if "gate" in kind else "value"
    one = torch.ones(1, dtype=x.dtype)
    if kind.endswith("_dx"):
        return backward(operation, family, one, x, sigma)
    sums = torch.empty(x.numel(), dtype=torch.float64)
    backward(operation, family, one, x, torch.full_like(sums, sigma), grad_sigma=sums)
    return sums.to(x.dtype)


def glu(family: str, gate, up, sigma=1.0):
    y = kernels.forward("glu", gate, up, as_sigma(sigma), FAMILIES[family], -1)
    assert y is not None, "unsupported"
    return y


def glu_backward(family: str, grad, gate, up, sigma=1.0, grad_sigma=None):
    if grad_sigma is not None and not isinstance(sigma, torch.Tensor):
        sigma = torch.tensor(sigma, dtype=torch.float64)
    grad_gate, grad_up, sums = kernels.backward(
        "glu", grad.expand_as(gate), gate, up, as_sigma(sigma), FAMILIES[family], -1, grad_sigma is not None
    )
    if grad_sigma is not None:
        grad_sigma.copy_(sums.reshape(grad_sigma.shape))
    return grad_gate, grad_up


def truth(kind: str, family: str, x: np.ndarray, sigma) -> np.ndarray:
    if "dgate" not in kind:
        with np.errstate(all="ignore"):  # limits at infinity, computed and not used where sigma is 0
            return TRUTH[FAMILIES[family], kind](x, sigma)
    sigma = LONG(sigma)
    square = {"exact": PI * (1 + (sigma * x) ** 2), "rational": 2 * (1 + np.abs(sigma * x)) ** 2}[family]
    return (sigma if kind == "dgate_dx" else x) / square


def result(kind: str, family: str, x, sigma: float):
    return forward(kind, family, x, sigma) if kind in FORWARD else partial(kind, family, x, sigma)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


# -- accuracy ----------------------------------------------------------------------------------------------

# Units in the last place: slightly above the largest error of any instruction set, to detect a lost digit.
ULP = {
    "value": {"exact": 2.1, "rational": 2.25},
    "gate": {"exact": 2.3, "rational": 1.5},
    "df_dx": {"exact": 3.7, "rational": 3.9},
    "df_dsigma": {"exact": 3.05, "rational": 3.35},
    "dgate_dx": {"exact": 2.8, "rational": 3.75},
    "dgate_dsigma": {"exact": 1.95, "rational": 3.4},
}
ULP_OF_FLOAT64 = {
    "value": {"exact": 1.85, "rational": 2},
    "gate": {"exact": 1.85, "rational": 1.4},
    "df_dx": {"exact": 3, "rational": 3.6},
    "df_dsigma": {"exact": 2.75, "rational": 3.35},
    "dgate_dx": {"exact": 2.8, "rational": 2.95},
    "dgate_dsigma": {"exact": 1.85, "rational": 2.75},
}


@pytest.mark.parametrize("sigma", [1.0, 0.7, 123.456, 1e-3, 1e20])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", FORWARD + PARTIALS)
def test_float32_is_within_3_ulp_and_its_derivatives_within_4(kind, family, sigma):
    x = spread(torch.float32, 50_000)
    errors = ulp_errors(result(kind, family, x, sigma), truth(kind, family, extended(x), sigma))
    assert errors.max() <= ULP[kind][family], x[errors.argmax()]


@needs_extended
@pytest.mark.parametrize("sigma", [1.0, 0.7, 1e-3, 1e20])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", FORWARD + PARTIALS)
def test_float64_is_within_2_ulp_and_its_derivatives_within_4(kind, family, sigma):
    x = spread(torch.float64, 20_000)
    errors = ulp_errors(result(kind, family, x, sigma), truth(kind, family, extended(x), sigma))
    assert errors.max() <= ULP_OF_FLOAT64[kind][family], x[errors.argmax()]


@pytest.mark.parametrize("sigma", [1.0, 0.7, 5.0])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [*FORWARD, "df_dx", "dgate_dx"])
def test_every_bfloat16_is_rounded_correctly(kind, family, sigma):
    x = every_value(torch.bfloat16)
    x = x[x.isfinite()]
    assert ulp_errors(result(kind, family, x, sigma), truth(kind, family, extended(x), sigma)).max() <= 0.5


@pytest.mark.parametrize("sigma", [1.0, 0.7, 5.0])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [*FORWARD, "df_dx", "dgate_dx"])
def test_float16_is_rounded_correctly_but_for_one_in_a_thousand(kind, family, sigma):
    x = every_value(torch.float16)
    x = x[x.isfinite()]
    errors = ulp_errors(result(kind, family, x, sigma), truth(kind, family, extended(x), sigma))
    assert (errors > 0.5).mean() <= 1e-3
    assert errors.max() <= 0.51


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["df_dsigma", "dgate_dsigma"])
def test_half_types_sum_the_gradient_of_sigma_before_any_rounding(kind, family, dtype):
    x = random(4096, dtype=dtype)
    sums = torch.empty(1, dtype=torch.float64)
    grad = random(4096, dtype=dtype, seed=1)
    backward("gate" if "gate" in kind else "value", family, grad, x, 0.7, grad_sigma=sums)
    parts = extended(grad) * truth(kind, family, extended(x), 0.7)
    assert abs(sums.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()


@pytest.mark.parametrize("sigma", [0.1, 0.7, 5.0])
def test_the_derivative_from_an_output_is_accurate_for_that_output(sigma):
    y = spread(torch.float32, 20_000)
    y = y[y.double() * sigma > -0.4999]
    v = LONG(sigma) * extended(y)
    u = (2 * v - 1 + np.sqrt((1 - 2 * v) ** 2 + 16 * v.clip(0))) / 4
    r = np.where(v < 0, 1 + 2 * v, 1 / (1 + u))
    derivative = backward("output", "rational", torch.ones(1), y, sigma)
    errors = ulp_errors(derivative, np.where(v < 0, r * r / 2, 1 - r * r / 2))
    # below 0 the digits of r = 1 + 2v are those that its rounding leaves, 1/r units, twice after squaring
    assert (errors * np.where(v < 0, np.minimum(r, 1), 1)).max() <= 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_halves_are_rounded_as_torch_rounds_them(dtype):
    """Overflow, underflow, ties and subnormal numbers: with this sigma f(x) is x for x > 0."""
    up = every_value(dtype)
    for gate in (1.0, 1.5, 3.0, 2.0**-9, 2.0**8):
        for values in (up, up[:-1]):  # an even and an odd number
            got = glu("rational", torch.full_like(values, gate), values, 1e30)
            assert torch.equal(got, (values.float() * gate).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_a_sigma_of_any_precision_is_read_to_its_last_bit(dtype):
    """Also one that is subnormal, infinite or NaN, one value or one per channel, dense or not."""
    info = torch.finfo(dtype)
    sizes = [0.0, info.smallest_normal / 4, info.smallest_normal, 3 * info.eps, 0.7, 1.0, 3e4, math.inf]
    values = torch.tensor([*sizes, *(-size for size in sizes), math.nan]).to(dtype)
    x = random(3, len(values), dtype=torch.float64)
    expected = forward("gate", "exact", x, values.double())
    assert torch.equal(forward("gate", "exact", x, values)[:, :-1], expected[:, :-1])
    apart = torch.stack([values, torch.full_like(values, 99)], -1)[:, 0]
    assert torch.equal(forward("gate", "exact", x, apart)[:, :-1], expected[:, :-1])
    assert expected[:, -1].isnan().all()
    for i, value in enumerate(values[:-1]):
        assert torch.equal(forward("gate", "exact", x[:, i], value), expected[:, i])


# -- special values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_limits_zeros_and_nan_are_those_of_the_definition(family, dtype):
    sigma, inf = 2.0, float("inf")
    floor = -1 / (np.pi * sigma) if family == "exact" else -1 / (2 * sigma)
    density = 1 / np.pi if family == "exact" else 0.5
    x = torch.tensor([-inf, -0.0, 0.0, inf, float("nan")], dtype=dtype)
    expected = {
        "value": [floor, -0.0, 0.0, inf],
        "gate": [0, 0.5, 0.5, 1],
        "df_dx": [0, 0.5, 0.5, 1],
        "df_dsigma": [density / sigma**2, 0, 0, density / sigma**2],
        "dgate_dx": [0, sigma * density, sigma * density, 0],
        "dgate_dsigma": [0, 0, 0, 0],
    }
    for kind, values in expected.items():
        # 16 times over: through the vectorized part of a loop, then alone, through what follows it
        for found in (result(kind, family, x.repeat(16), sigma)[:5], result(kind, family, x, sigma)):
            torch.testing.assert_close(found[:4], torch.tensor(values, dtype=dtype), msg=f"{kind} {found}")
            assert found[4].isnan(), kind
    assert forward("value", family, x.repeat(16), sigma)[1::5].signbit().all()
    assert not forward("value", family, x.repeat(16), sigma)[2::5].signbit().any()


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sigma", [1e-38, 1e-3, 1e4, 1e38])
def test_no_finite_input_and_no_extreme_sigma_gives_nan(family, dtype, sigma):
    info = torch.finfo(dtype)
    sizes = torch.tensor(
        [0, info.smallest_normal / 4, info.smallest_normal, info.eps, 1, info.max], dtype=dtype
    )
    x = torch.cat([sizes, -sizes]).repeat(4)
    for kind in FORWARD + PARTIALS:
        assert not result(kind, family, x, sigma).isnan().any(), kind


@pytest.mark.parametrize("payload", [0x7FFFFFFF, -1, 0x7F800001], ids=["7fffffff", "ffffffff", "signalling"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_nan_sigma_of_any_payload_gives_nan_in_bfloat16(family, per_channel, payload):
    """Rounding to bfloat16 would carry a full significand into the sign: -0 instead of NaN."""
    nan = torch.tensor([payload], dtype=torch.int32).view(torch.float32)
    sigma = nan.repeat(35) if per_channel else nan[0]
    x, grad = random(4, 35, dtype=torch.bfloat16), random(4, 35, dtype=torch.bfloat16, seed=1)
    options = (sigma, FAMILIES[family], -1)
    results = [kernels.forward(operation, x, None, *options) for operation in FORWARD]
    results.append(kernels.forward("glu", x, grad, *options))
    for operation in FORWARD:
        results += kernels.backward(operation, grad, x, None, *options, True)[::2]
    results += kernels.backward("glu", grad, x, x, *options, True)
    results += kernels.double_backward("value", grad, None, grad, x, None, *options, True)[::3]
    results += kernels.double_backward("glu", grad, grad, grad, x, x, *options, True)
    for each in results:
        assert each.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sigma_of_zero_gives_half_of_x_and_a_gate_of_one_half(family, dtype):
    x = torch.tensor([-float("inf"), -3.0, 0.0, 5.0, float("inf")], dtype=dtype).repeat(9)
    density = 1 / np.pi if family == "exact" else 0.5
    torch.testing.assert_close(forward("value", family, x, 0.0), x / 2)
    torch.testing.assert_close(forward("gate", family, x, 0.0), torch.full_like(x, 0.5))
    torch.testing.assert_close(partial("df_dx", family, x, 0.0), torch.full_like(x, 0.5))
    torch.testing.assert_close(partial("df_dsigma", family, x, 0.0), x * x * density)
    torch.testing.assert_close(partial("dgate_dsigma", family, x, 0.0), x * density)


# -- layouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [(3, 5, 1), (700, 5, 1), (2, 5, 7), (40, 5, 49), (3, 100, 49), (2, 5, 300), (2, 5, 1300), (2, 3000, 40)],
)
@pytest.mark.parametrize("dtype", CHECKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_channel_has_its_own_sigma_of_any_sign(family, dtype, shape):
    _, channels, _ = shape
    sigma = torch.tensor(CHANNELS_WITH_ALL_SIGNS, dtype=torch.float64).repeat(channels)[:channels].clone()
    x, grad = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    wide, scale = extended(x), sigma.numpy().reshape(1, -1, 1)
    limits = {torch.float32: 4, torch.float64: 4, torch.bfloat16: 0.51, torch.float16: 0.51}
    for operation, derivative in (("value", "df_dx"), ("gate", "dgate_dx")):
        y = forward(operation, family, x, sigma)
        assert ulp_errors(y, truth(operation, family, wide, scale)).max() <= limits[dtype]
        sums = torch.empty(channels, dtype=torch.float64)
        grad_x = backward(operation, family, grad, x, sigma, grad_sigma=sums)
        assert torch.equal(grad_x, backward(operation, family, grad, x, sigma))
        expected = extended(grad) * truth(derivative, family, wide, scale)
        assert ulp_errors(grad_x, expected).max() <= limits[dtype] + 1
        parts = extended(grad) * truth(derivative.replace("_dx", "_dsigma"), family, wide, scale)
        error = np.abs(sums.numpy() - parts.sum(axis=(0, 2)))
        assert (error <= 1e-5 * np.abs(parts).sum(axis=(0, 2))).all()


@pytest.mark.parametrize("dtype", CHECKED)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shape", [(7, 5), (3, 700)])
def test_a_packed_pair_is_read_and_written_in_place(family, dtype, shape):
    packed, grad = random(shape[0], 2 * shape[1], dtype=dtype), random(*shape, dtype=dtype, seed=1)
    gate, up = packed.chunk(2, dim=1)
    wide, sigma = extended(gate), 0.7
    value, derivative = truth("value", family, wide, sigma), truth("df_dx", family, wide, sigma)
    limit = 5 if dtype in (torch.float32, torch.float64) else 0.51
    assert ulp_errors(glu(family, gate, up, sigma), value * extended(up)).max() <= limit
    sums = torch.empty(1, dtype=torch.float64)
    grad_gate, grad_up = glu_backward(family, grad, gate, up, sigma, grad_sigma=sums)
    assert ulp_errors(grad_gate, extended(grad) * extended(up) * derivative).max() <= limit + 1
    assert ulp_errors(grad_up, extended(grad) * value).max() <= limit
    parts = extended(grad) * extended(up) * truth("df_dsigma", family, wide, sigma)
    assert abs(sums.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_pair_may_have_a_sigma_for_each_column(family):
    packed, grad = random(9, 10), random(9, 5, seed=1)
    gate, up = packed.chunk(2, dim=1)
    sigma = torch.tensor(CHANNELS_WITH_ALL_SIGNS, dtype=torch.float64)
    value = truth("value", family, extended(gate), sigma.numpy())
    assert ulp_errors(glu(family, gate, up, sigma), value * extended(up)).max() <= 5
    sums = torch.empty(5, dtype=torch.float64)
    _, grad_up = glu_backward(family, grad, gate, up, sigma, grad_sigma=sums)
    assert ulp_errors(grad_up, extended(grad) * value).max() <= 5
    parts = extended(grad) * extended(up) * truth("df_dsigma", family, extended(gate), sigma.numpy())
    np.testing.assert_allclose(sums.numpy(), parts.sum(axis=0).astype(float), rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gradient_of_one_value_equals_the_same_value_written_out(family, dtype):
    x, up = random(3, 700, dtype=dtype), random(3, 700, dtype=dtype, seed=1)
    one = torch.tensor([[1.75]], dtype=dtype)
    written_out = one.expand(3, 700).contiguous()
    for operation in FORWARD:
        sums = torch.empty(2, dtype=torch.float64)
        short = backward(operation, family, one, x, grad_sigma=sums[:1])
        assert torch.equal(short, backward(operation, family, written_out, x, grad_sigma=sums[1:]))
        assert sums[0] == sums[1]
    for short, full in zip(
        glu_backward(family, one, x, up), glu_backward(family, written_out, x, up), strict=True
    ):
        assert torch.equal(short, full)


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_up_to_67_fills_its_output_and_nothing_else(family, dtype):
    x, grad = random(67, dtype=dtype), random(67, dtype=dtype, seed=1)
    complete = {operation: forward(operation, family, x) for operation in FORWARD}
    complete_backward = {operation: backward(operation, family, grad, x) for operation in FORWARD}
    for operation, n in itertools.product(FORWARD, range(1, 68)):
        around = torch.full((n + 2,), 77.0, dtype=dtype)
        around[1:-1] = x[:n]
        inside = around[1:-1]
        assert forward(operation, family, inside, out=inside) is inside
        assert torch.equal(inside, complete[operation][:n])
        assert around[0] == around[-1] == 77
        assert torch.equal(backward(operation, family, grad[:n], x[:n]), complete_backward[operation][:n])


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_the_result_does_not_depend_on_the_address(family, dtype):
    """A loop runs downwards where its loads would alias its stores in the low 12 address bits."""
    everything, grads = random(2500, dtype=dtype), random(2500, dtype=dtype, seed=1)
    value, derivative = forward("value", family, everything), backward("value", family, grads, everything)
    pair = glu(family, everything, grads)
    for begin in range(0, 2048, 64):
        x, grad = everything[begin : begin + 100], grads[begin : begin + 100]
        assert torch.equal(forward("value", family, x), value[begin : begin + 100])
        assert torch.equal(backward("value", family, grad, x), derivative[begin : begin + 100])
        assert torch.equal(glu(family, x, grad), pair[begin : begin + 100])


# -- threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [None, (16, 3, 3001), (9000, 16, 1), (150, 33, 31)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_result_does_not_depend_on_the_number_of_threads(threads, dtype, shape):
    x = random(*(shape or (150_001,)), dtype=dtype)
    grad = random(*x.shape, dtype=dtype, seed=1)
    sigma = 0.7 if shape is None else torch.linspace(-1, 2, shape[1], dtype=torch.float64)
    sums = torch.empty(3, 1 if shape is None else shape[1], dtype=torch.float64)
    outputs = []
    for row, count in enumerate((1, 2, 3)):
        threads(count)
        outputs.append(backward("value", "exact", grad, x, sigma, grad_sigma=sums[row]))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(sums[0], sums[1])
    assert torch.equal(sums[0], sums[2])


def test_torch_parallelizes_large_tensors_and_not_small_ones(monkeypatch):
    calls = []
    body_type = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, body_type, ctypes.c_void_p
    )
    def in_pieces(begin, end, grain, body, context):
        calls.append((begin, end, grain))
        for start in range(begin, end, grain):
            body(start, min(start + grain, end), context)
        return 0

    short, long = random(16_384), random(100_001)
    sums = torch.empty(2, dtype=torch.float64)
    expected = forward("value", "exact", long), backward("value", "exact", long, long, grad_sigma=sums[:1])
    try:
        monkeypatch.setattr(native, "parallel_for_address", ctypes.cast(in_pieces, ctypes.c_void_p).value)
        native._set_up(kernels)
        forward("value", "exact", short)
        assert calls == []
        found = forward("value", "exact", long), backward("value", "exact", long, long, grad_sigma=sums[1:])
        assert calls == [(0, 100_001, 16_384), (0, 25, 4)]
        monkeypatch.setattr(native, "parallel_for_address", None)  # one thread
        native._set_up(kernels)
        alone = forward("value", "exact", long)
    finally:
        monkeypatch.undo()
        native._set_up(kernels)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    assert torch.equal(alone, expected[0])
    assert sums[0] == sums[1]


# -- memory ------------------------------------------------------------------------------------------------


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="no such file on this system")
def test_calls_leak_no_memory_and_no_reference(once):
    x, grad = random(2, 50_000), random(2, 50_000, seed=1)
    packed, sigma = torch.cat([x, x], -1), torch.rand(50_000) + 0.5
    inputs = (x, grad, packed, sigma)

    def everything():
        for channels, needs in ((sigma, True), (0.7, False)):
            call = (channels, "rational", -1)
            results = [kernels.forward(each, x, None, *call) for each in FORWARD]
            results.append(kernels.forward("glu", packed, None, *call))
            results.append(kernels.forward("glu", x, grad, *call))
            for each in (*FORWARD, "output"):
                results.extend(kernels.backward(each, grad, x, None, *call, needs))
            results.extend(kernels.backward("glu", grad, packed, None, *call, needs))
            results.extend(kernels.backward("glu", grad, x, grad, *call, needs))
            results.extend(kernels.double_backward("value", grad, None, grad, x, None, *call, needs))
            results.extend(kernels.double_backward("glu", packed, None, grad, packed, None, *call, needs))
            results.extend(kernels.double_backward("glu", grad, grad, grad, x, grad, *call, needs))
            for declined in (x.to("meta"), torch.ones(0), x.int(), x[None]):
                assert kernels.forward("glu", x, declined, *call) is None
        return [weakref.ref(each) for each in results if each is not None]

    for _ in range(3):
        assert [each for each in everything() if each() is not None] == []
    counts, before = [sys.getrefcount(each) for each in inputs], _resident()
    for _ in range(100):
        everything()
    assert [sys.getrefcount(each) for each in inputs] == counts
    assert _resident() - before < 25e6  # one array each time would be 40e6


# -- unsupported calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["default", "avx2", "avx512"])
def test_the_capability_limit_of_torch_limits_the_kernels(limit, once):
    program = "from iglu.kernels import native; print(native.loops.capability())"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ATEN_CPU_CAPABILITY": limit},
        capture_output=True,
        text=True,
    ).stdout.strip()
    order = ("baseline", "avx2", "avx512")
    allowed = order[: {"default": 1, "avx2": 2, "avx512": 3}[limit]]
    assert found == [each for each in allowed if each in _available()][-1]


def test_unsupported_calls_return_none(once):
    x, channels = random(2, 3, 4), torch.ones(3)
    declined = (
        ("value", x, None, 10**400, "none", 1),  # an integer beyond every float
        ("value", x, None, 1e39, "none", 1),  # beyond every float32
        ("value", x, None, 0.0, "none", 1),
        ("value", x, None, -1.0, "none", 1),
        ("value", x, None, math.inf, "none", 1),
        ("value", x, None, math.nan, "none", 1),
        ("value", x, None, True, "none", 1),
        ("value", x, None, torch.ones(1, 1), "none", 1),
        ("value", x, None, torch.ones(0), "none", 1),
        ("value", x, None, torch.ones(5), "none", None),
        ("value", random(2, 3, 3), None, channels, "none", None),  # which dimension?
        ("value", x[0, 0, 0], None, channels, "none", None),
        ("value", x, None, channels, "none", 1.0),
        ("value", x, None, channels, "none", 2),
        ("value", x, None, channels, "none", 3),
        ("value", x, None, channels, "none", -4),
        ("value", x, None, torch.ones(24), "none", -4),
        ("value", x, None, channels, "none", 2**70),
        ("value", x, None, channels, "none", -(2**70)),
        ("value", x, None, np.bool_(True), "none", 1),
        ("value", x, None, np.ones(()), "none", 1),
        ("value", x, None, "1", "none", 1),
        ("value", x, None, channels.to("meta"), "none", 1),
        ("value", x, None, 1.0, "tanh", 1),
        ("value", x, None, 1.0, 3, 1),
        (3, x, None, 1.0, "none", 1),
        ("output", x, None, 1.0, "rational", 1),
        ("value", x, x, 1.0, "none", 1),
        ("gate", x, x, 1.0, "none", 1),
        ("glu", x, x[:1], 1.0, "none", 1),
        ("glu", x, x[0], 1.0, "none", 1),
        ("glu", x, x.double(), 1.0, "none", 1),
        ("glu", x, 3, 1.0, "none", 1),
        ("glu", x[..., :3], None, 1.0, "none", 1),
        ("glu", x[0, 0, 0], None, 1.0, "none", 1),
        ("value", x.view(*(1,) * 14, 2, 3, 4), None, 1.0, "none", 1),  # 17 dimensions
        ("value", x.int(), None, 1.0, "none", 1),
        ("value", x.to(torch.complex64), None, 1.0, "none", 1),
        ("value", x.to(torch.float8_e4m3fn), None, 1.0, "none", 1),
        ("value", [1.0], None, 1.0, "none", 1),
    )
    for call in declined:
        assert kernels.forward(*call) is None, call[3:]
    assert kernels.forward("value", x, None, 1.0, "none", 1, x.clone()) is None
    one = torch.ones(1).expand(2, 3)
    assert kernels.forward("value", one, None, 1.0, "none", 1, one) is None
    assert kernels.forward("value", x, None, 1e39, "none", 1) is None
    assert kernels.forward("value", x.double(), None, 1e39, "none", 1) is not None
    assert kernels.forward("value", x.view(*(1,) * 13, 2, 3, 4), None, 1.0, "none", 1) is not None


@pytest.mark.parametrize("sigma", [np.float64(0.75), np.float32(0.75), Fraction(3, 4)])
def test_a_number_of_any_type_is_supported_and_saved_as_a_float(once, sigma):
    x = random(2, 3).requires_grad_()
    y = kernels.forward("value", x, None, sigma, "none", 1)
    assert torch.equal(y, kernels.forward("value", x, None, 0.75, "none", 1))
    assert type(y.grad_fn.call[2]) is float


@pytest.mark.parametrize(("shape", "dimension"), [((4, 3), 1), ((3, 3), 1), ((3,), 0)])
def test_without_channel_dim_the_channels_of_at_most_two_dimensions_are_the_last(once, shape, dimension):
    x, sigma = random(*shape).requires_grad_(), torch.tensor([0.5, -1.0, 2.0])
    y = kernels.forward("value", x, None, sigma, "none", None)
    assert torch.equal(y, kernels.forward("value", x, None, sigma, "none", dimension))
    assert y.grad_fn.call[4] == dimension  # for the backward pass, also by the formulas
    for more in ((2, 3, 4), (2, 4, 3)):
        assert kernels.forward("value", random(*more), None, sigma, "none", None) is None


def test_a_gradient_of_another_shape_or_dtype_and_one_of_a_number_return_none(once):
    x = random(2, 3)
    for grad in (x[:1], x[0], x.double(), x.to("meta"), 3):
        assert kernels.backward("value", grad, x, None, 1.0, "none", 1, False) is None
        assert kernels.double_backward("value", x, None, grad, x, None, 1.0, "none", 1, False) is None
        assert kernels.double_backward("value", grad, None, x, x, None, 1.0, "none", 1, False) is None
        assert kernels.double_backward("glu", x, grad, x, x, x, 1.0, "none", 1, False) is None
    assert kernels.backward("value", x, x, None, 1.0, "none", 1, True) is None
    assert kernels.double_backward("value", x, None, x, x, None, 1.0, "none", 1, True) is None
    assert kernels.backward("output", x, x, None, 1.0, "none", 1, False) is None
    assert kernels.double_backward("output", x, None, x, x, None, 1.0, "rational", 1, False) is None


class _Recorder:
    """Takes the place of the module and keeps what set_up is called with."""

    def set_up(self, table, *addresses, **torch_api):
        self.table, self.addresses, self.torch_api = table, addresses, torch_api


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_torch_without_one_of_the_allocator_functions_uses_empty_like(once, missing):
    handed = _Recorder()
    native._set_up(handed)
    x, sigma = random(2, 3, 4, 5), torch.tensor(CHANNELS_WITH_ALL_SIGNS)
    layouts = (x, x.transpose(1, 2), x[:, ::2], x[:, :, :1], x[0, 0, 0, 0], x[:1].expand(3, 3, 4, 5))

    def everything():
        for each in layouts:
            for dtype in DTYPES.values():
                at = each.to(dtype)
                scale = sigma[: at.shape[-1]] if at.dim() else 0.7
                yield kernels.forward("value", at, None, scale, "none", -1)
                yield from kernels.backward("value", at, at, None, scale, "none", -1, bool(at.dim()))[::2]
                yield from kernels.double_backward("value", at, None, at, at, None, 0.7, "none", -1, False)[
                    :2
                ]

    expected = list(everything())
    try:
        addresses = [None if i == missing else each for i, each in enumerate(handed.addresses)]
        kernels.set_up(handed.table, *addresses, **handed.torch_api)
        found = list(everything())
    finally:
        native._set_up(kernels)
    for got, wanted in zip(found, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert torch.equal(got, wanted)
            assert (got.dtype, got.stride()) == (wanted.dtype, wanted.stride())


def test_private_functions_of_torch_are_used_only_for_tested_releases(once, monkeypatch):
    handed = _Recorder()
    for version, is_tested in (("2.13.0+cpu", True), ("2.13.1", True), ("2.1.3", False), ("99.0.0", False)):
        monkeypatch.setattr(torch, "__version__", version)
        native._set_up(handed)
        assert (handed.addresses[1:] == (None, None, None)) is not is_tested


def test_the_installed_torch_is_a_tested_release(once):
    assert native._release(torch.__version__) in native.TESTED_TORCH, (
        f"torch {torch.__version__} is not in TESTED_TORCH of iglu/kernels/native.py, so tensors are made "
        "by the slower torch.empty_like. Add this release there, then run tests/test_native.py and "
        "tools/check_sanitized with it. If one fails or crashes, do not add it, and report the failure"
    )


@pytest.mark.parametrize("wrong", [lambda y: y.to("meta"), lambda y: y.new_empty(y.shape, dtype=torch.int32)])
def test_new_tensors_without_the_expected_memory_make_the_kernels_decline(once, monkeypatch, wrong):
    """As inside a transform of torch, which wraps them: nothing may be written through a missing pointer."""
    x, up, sigma = random(6, 4), random(6, 4, seed=1), torch.rand(4)
    packed = torch.cat([x, up], -1)

    def calls():
        yield 1, lambda: kernels.forward("glu", x, up, sigma, "none", -1)
        yield 1, lambda: kernels.forward("glu", packed, None, sigma, "none", -1)
        yield 2, lambda: kernels.backward("value", x, x, None, sigma, "none", -1, True)
        yield 3, lambda: kernels.backward("glu", x, x, up, sigma, "none", -1, True)
        yield 2, lambda: kernels.backward("glu", x, packed, None, sigma, "none", -1, True)
        yield 3, lambda: kernels.double_backward("value", x, None, x, x, None, sigma, "none", -1, True)
        yield 4, lambda: kernels.double_backward("glu", x, up, x, x, up, sigma, "none", -1, True)
        yield (
            3,
            lambda: kernels.double_backward("glu", packed, None, x, packed, None, sigma, "none", -1, True),
        )

    def set_up(broken):
        """torch.empty_like, whose result number `broken` is wrong."""
        made = itertools.count()
        genuine = torch.empty_like

        def empty_like(*args, **options):
            y = genuine(*args, **options)
            return wrong(y) if next(made) == broken else y

        handed = _Recorder()
        native._set_up(handed)
        options = {**handed.torch_api, "empty_like": empty_like}
        kernels.set_up(handed.table, handed.addresses[0], None, None, None, **options)

    try:
        for count, call in calls():
            for broken in range(count):
                set_up(broken)
                assert call() is None
            set_up(count)
            assert call() is not None
    finally:
        native._set_up(kernels)


def test_another_version_of_dlpack_and_a_missing_keyword_raise(once):
    handed = _Recorder()
    native._set_up(handed)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    memories = []

    def table(major, function, name=b"dlpack_exchange_api"):
        memories.append((ctypes.c_uint64 * 8)(major, 0, 0, 0, 0, function))
        return new(ctypes.addressof(memories[-1]), name, None)

    for wrong, error, message in (
        (table(2, 1), ImportError, r"must be DLPack 1 .* got 2\.0"),
        (table(1, 0), ImportError, r"got 1\.0 without that function"),
        (table(1, 1, b"another"), ValueError, "incorrect name"),
    ):
        with pytest.raises(error, match=message):
            kernels.set_up(wrong, *handed.addresses, **handed.torch_api)
    try:
        for missing in handed.torch_api:
            others = {name: each for name, each in handed.torch_api.items() if name != missing}
            with pytest.raises(TypeError, match=f"{missing} is missing"):
                kernels.set_up(handed.table, *handed.addresses, **others)
    finally:
        native._set_up(kernels)
    assert forward("value", "exact", torch.ones(3)).tolist() == [0.75] * 3


def test_an_unknown_instruction_set_raises():
    with pytest.raises(ValueError, match="'baseline', 'avx2' or 'avx512'"):
        kernels.use("sse9")


def test_a_wrong_number_of_arguments_raises():
    with pytest.raises(TypeError, match="expected 6 or 7 arguments, got 2"):
        kernels.forward("value", 0)
    with pytest.raises(TypeError, match="expected 8 arguments, got 1"):
        kernels.backward("value")


@pytest.mark.parametrize("has_allocator", [True, False], ids=["torch's C interface", "empty_like"])
def test_results_have_the_layout_of_empty_like(has_allocator, once, monkeypatch):
    """With and without the functions that only a tested torch has."""
    if not has_allocator:
        monkeypatch.setattr(native, "_addresses", lambda _, *names: [None] * len(names))
        native._set_up(kernels)
    dense = random(4, 6, 5, 2)
    layouts = (
        dense,
        dense.to(memory_format=torch.channels_last),
        dense.permute(2, 0, 3, 1),
        dense[:, :1].permute(1, 3, 0, 2),
        dense[:, ::2],
        dense[..., :1],
        dense[:, :1].expand(4, 6, 5, 2),
        dense.as_strided((3, 4), (1, 1)),
        dense[0, 0, 0, 0],
    )
    try:
        for x in layouts:
            y = forward("value", "exact", x)
            grad_x, *_ = kernels.backward("value", torch.ones_like(x), x, None, 1.0, "none", 0, False)
            for each in (y, grad_x):
                assert each.stride() == torch.empty_like(x).stride()
                assert (each.dtype, each.device, each.requires_grad) == (x.dtype, x.device, False)
                assert each.untyped_storage().resizable()
            torch.testing.assert_close(y, forward("value", "exact", x.contiguous()), rtol=0, atol=0)
        half = kernels.forward("glu", dense, None, 1.0, "none", 0)
        assert half.stride() == torch.empty_like(dense[..., :1]).stride()
        with torch.inference_mode():
            assert forward("value", "exact", dense).is_inference()
    finally:
        monkeypatch.undo()
        native._set_up(kernels)
