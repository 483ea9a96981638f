"""Loops that are met only with a gradient's gradient or with the output kept, for every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_native import DTYPES, FAMILIES, random, truth
from test_native import instruction_set as instruction_set

import iglu
from iglu.kernels import cpu

from truth import LONG, extended, needs_extended, needs_loops, spread, ulp_errors

pytestmark = needs_loops
kernels = cpu.loops

LIMITS = {torch.float32: 6, torch.float64: 6, torch.bfloat16: 0.51, torch.float16: 0.51}


def twice(operation, family, by_x, by_up, grad, x, up, sigma, needs_sigma=False, channel_dim=-1):
    found = kernels.twice(
        operation, by_x, by_up, grad, x, up, sigma, FAMILIES[family], channel_dim, needs_sigma
    )
    assert found is not None, "not served"
    return found


def slope_by_sigma(family, x, sigma):
    return truth("curvature", family, x, sigma) * x / sigma


# -- the gradients of a gradient -----------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1.0, 0.7, 123.456, 1e-3, 1e20])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=needs_extended)])
def test_the_curvature_is_within_5_ulp_at_every_magnitude(dtype, family, sigma):
    x = spread(dtype, 20_000)
    one = torch.ones_like(x)
    by_grad, by_x, by_up, by_sigma = twice("value", family, one, None, one, x, None, sigma)
    assert by_up is None
    assert by_sigma is None
    limit = {"exact": 5, "rational": 4.4}[family]
    assert ulp_errors(by_x, truth("curvature", family, extended(x), sigma)).max() <= limit
    assert ulp_errors(by_grad, truth("slope", family, extended(x), sigma)).max() <= 3.7
    each = torch.full((x.numel(),), sigma, dtype=torch.float64)
    *_, parts = twice("value", family, one, None, one, x, None, each, needs_sigma=True)
    errors = ulp_errors(parts.to(dtype), slope_by_sigma(family, extended(x), LONG(sigma)))
    assert errors.max() <= limit


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_all_gradients_of_a_values_gradient_in_one_pass(family, dtype):
    x, grad, by_x = (random(70, 33, dtype=dtype, seed=seed) for seed in range(3))
    sigma = torch.tensor(0.7, dtype=torch.float64)
    by_grad, second, _, by_sigma = twice("value", family, by_x, None, grad, x, None, sigma, True)
    wide, v, g = extended(x), extended(by_x), extended(grad)
    assert ulp_errors(by_grad, v * truth("slope", family, wide, 0.7)).max() <= LIMITS[dtype]
    assert ulp_errors(second, g * v * truth("curvature", family, wide, 0.7)).max() <= LIMITS[dtype] + 1
    parts = g * v * slope_by_sigma(family, wide, LONG(0.7))
    assert abs(by_sigma.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_all_gradients_of_a_pairs_gradients_in_one_pass(family, dtype, is_packed):
    x, up, grad, by_x, by_up = (random(70, 33, dtype=dtype, seed=seed) for seed in range(5))
    sigma = torch.tensor(0.7, dtype=torch.float64)
    if is_packed:
        pairs = torch.cat([by_x, by_up], -1), None, grad, torch.cat([x, up], -1), None
        first, both, none, by_sigma = twice("glu", family, *pairs, sigma, True)
        assert none is None
        second, third = both.chunk(2, -1)
    else:
        first, second, third, by_sigma = twice("glu", family, by_x, by_up, grad, x, up, sigma, True)
    wide, v, q, g, u = map(extended, (x, by_x, by_up, grad, up))
    f, s = truth("value", family, wide, 0.7), truth("slope", family, wide, 0.7)
    k, b = truth("curvature", family, wide, 0.7), truth("by_sigma", family, wide, 0.7)
    parts = g * (v * u * slope_by_sigma(family, wide, LONG(0.7)) + q * b)
    assert abs(by_sigma.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()
    assert ulp_errors(third, g * v * s).max() <= LIMITS[dtype]
    # sums of two, which may cancel: an error in units of what is added
    eps = torch.finfo(dtype).eps
    for result, one, other in ((first, v * u * s, q * f), (second, g * v * u * k, g * q * s)):
        assert (np.abs(extended(result) - (one + other)) <= 4 * eps * (np.abs(one) + np.abs(other))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_twice_serves_each_channel_its_own_sigma_of_any_sign(family, dtype):
    sigma = torch.tensor([0.7, -1.3, 2.5, -0.01], dtype=torch.float64)
    x, grad, by_x = (random(6, 4, 9, dtype=dtype, seed=seed) for seed in range(3))
    found = twice("value", family, by_x, None, grad, x, None, sigma, True, channel_dim=1)
    wide, v, g, scale = extended(x), extended(by_x), extended(grad), sigma.numpy().reshape(1, -1, 1)
    curvature = truth("curvature", family, wide, scale)
    assert ulp_errors(found[0], v * truth("slope", family, wide, scale)).max() <= LIMITS[dtype]
    assert ulp_errors(found[1], g * v * curvature).max() <= LIMITS[dtype] + 1
    parts = g * v * curvature * wide / scale
    assert (np.abs(found[3].numpy() - parts.sum((0, 2))) <= 1e-5 * np.abs(parts).sum((0, 2))).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_twice_reads_views_and_writes_what_dense_tensors_give(family):
    wide = [random(14, 10, seed=seed) for seed in range(3)]
    views = [each[::2, ::2].t() for each in wide]
    dense = [each.contiguous() for each in views]
    for got, expected in zip(
        twice("value", family, views[0], None, views[1], views[2], None, 0.7)[:2],
        twice("value", family, dense[0], None, dense[1], dense[2], None, 0.7)[:2],
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    expanded = torch.tensor(1.5).expand(7, 5)
    full = twice("value", family, expanded.contiguous(), None, wide[0][:7, :5], wide[1][:7, :5], None, 0.7)
    short = twice("value", family, expanded, None, wide[0][:7, :5], wide[1][:7, :5], None, 0.7)
    assert torch.equal(full[0], short[0])
    assert torch.equal(full[1], short[1])


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_elements_do_not_depend_on_how_many_follow(family, dtype):
    """Of every loop with more than one argument or result, by one sigma and by one for each element."""
    x, up, grad, by_x, by_up = (random(67, dtype=dtype, seed=seed) for seed in range(5))
    sigmas = torch.linspace(-1, 2, 67, dtype=torch.float64)

    def everything(n):
        tensors = [each[:n].clone() for each in (by_x, by_up, grad, x, up)]
        a, b, g, at, other = tensors
        for sigma, needs in ((0.7, False), (sigmas[:n].clone(), n > 1)):
            options = (sigma, FAMILIES[family], 0)
            yield kernels.forward("glu", at, other, *options)
            yield from kernels.backward("glu", g, at, other, *options, needs)
            yield from kernels.backward("gate", g, at, None, *options, needs)
            yield from kernels.twice("value", a, None, g, at, None, *options, needs)
            yield from kernels.twice("glu", a, b, g, at, other, *options, needs)
            if family == "rational":
                yield from kernels.backward("output", g, at, None, *options, needs)

    whole = list(everything(67))
    for n in (2, 3, 15, 16, 17, 33, 64, 66):
        for got, expected in zip(everything(n), whole, strict=True):
            assert (got is None) == (expected is None)
            assert got is None or torch.equal(got, expected[:n])


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_twice_at_the_limits(family, dtype):
    inf = float("inf")
    x = torch.tensor([-inf, -0.0, 0.0, inf, float("nan")] * 7, dtype=dtype)
    one = torch.ones_like(x)
    by_grad, by_x, *_ = twice("value", family, one, None, one, x, None, 2.0)
    top = 4 / np.pi if family == "exact" else 2.0
    expected = torch.tensor([0, top, top, 0] * 7, dtype=dtype).view(7, 4)
    torch.testing.assert_close(by_x.view(7, 5)[:, :4], expected)
    torch.testing.assert_close(by_grad.view(7, 5)[0, :4], torch.tensor([0, 0.5, 0.5, 1], dtype=dtype))
    assert by_x.view(7, 5)[:, 4].isnan().all()


def test_twice_declines_what_is_not_its_own():
    x = random(6)
    assert kernels.twice("gate", x, None, x, x, None, 1.0, "none", -1, False) is None
    assert kernels.twice("value", x[:3], None, x, x, None, 1.0, "none", -1, False) is None
    assert kernels.twice("value", x, None, x.double(), x, None, 1.0, "none", -1, False) is None
    assert kernels.twice("glu", x, None, x, x, x, 1.0, "none", -1, False) is None
    with pytest.raises(TypeError, match="expected 10 arguments, got 1"):
        kernels.twice("value")


# -- through autograd ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", ["number", "tensor", "channels"])
@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_second_and_third_derivatives_are_those_of_finite_differences(approximate, sigma):
    generator = torch.Generator().manual_seed(0)
    x, up = (
        torch.randn(2, 3, dtype=torch.float64, generator=generator, requires_grad=True) for _ in range(2)
    )
    packed = torch.cat([x, up], -1).detach().requires_grad_()
    scale = {
        "number": 0.7,
        "tensor": torch.tensor(0.7).double(),
        "channels": torch.tensor([0.7, 1.3, 0.2]).double(),
    }
    scale = scale[sigma]
    inputs = (scale.requires_grad_(),) if isinstance(scale, torch.Tensor) else ()

    def value(x, *sigmas):
        return iglu.iglu(x, *sigmas or (scale,), approximate=approximate, channel_dim=-1)

    def pair(x, up, *sigmas):
        return iglu.iglu_glu(x, up, sigma=sigmas[0] if sigmas else scale, approximate=approximate)

    def slope(x, *sigmas):
        return torch.autograd.grad(value(x, *sigmas).sum(), x, create_graph=True)[0]

    def both_slopes(x, up, *sigmas):
        return torch.autograd.grad(pair(x, up, *sigmas).square().sum(), (x, up), create_graph=True)

    assert torch.autograd.gradgradcheck(value, (x, *inputs))
    assert torch.autograd.gradgradcheck(slope, (x, *inputs))
    assert torch.autograd.gradgradcheck(pair, (x, up, *inputs))
    assert torch.autograd.gradgradcheck(lambda x, *s: pair(x, None, *s), (packed, *inputs))
    assert torch.autograd.gradcheck(both_slopes, (x, up, *inputs))


@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_a_recorded_gradient_is_one_node_and_equals_the_one_that_is_not(approximate):
    x, grad = random(100).requires_grad_(), random(100, seed=1)
    with iglu.backend("native"):
        (recorded,) = torch.autograd.grad(iglu.iglu(x, approximate=approximate), x, grad, create_graph=True)
        (alone,) = torch.autograd.grad(iglu.iglu(x, approximate=approximate), x, grad)
    assert torch.equal(recorded, alone)
    assert type(recorded.grad_fn).__name__ == "IgluBackward"


# -- from the output -----------------------------------------------------------------------------------------


def _from_output(y, sigma):
    """r = 1/(1+|u|) and |x| r, of an output y of the rational value."""
    v = LONG(sigma) * y
    b = 2 * np.maximum(v, 0) - 1
    u = (b + np.sqrt(b * b + 16 * np.maximum(v, 0))) / 4
    return np.where(y < 0, 1 + 2 * v, 1 / (1 + u)), np.where(y < 0, 2 * np.abs(y), 2 * y / (1 + 2 * u))


@pytest.mark.parametrize("sigma", [1.0, 0.7, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=needs_extended)])
def test_the_slope_from_the_output_is_right_to_8_ulp_above_half_of_the_floor(dtype, sigma):
    generator = torch.Generator().manual_seed(0)
    below = -torch.rand(20_000, generator=generator, dtype=torch.float64) / (4 * sigma)
    above = 10 ** (torch.rand(20_000, generator=generator, dtype=torch.float64) * 40 - 20)
    y = torch.cat([below, above]).to(dtype)
    one = torch.ones_like(y)
    slope, *_ = kernels.backward("output", one, y, None, sigma, "rational", -1, False)
    r, root = _from_output(extended(y), sigma)
    assert ulp_errors(slope, np.where(extended(y) < 0, r * r / 2, 1 - r * r / 2)).max() <= 8
    each = torch.full((y.numel(),), sigma, dtype=torch.float64)
    *_, parts = kernels.backward("output", one, y, None, each, "rational", -1, True)
    assert ulp_errors(parts.to(dtype), root * root / 2).max() <= 12


@pytest.mark.parametrize("sigma", [1.0, 0.7, 30.0, 1e-5])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float64, marks=needs_extended)]
)
def test_down_to_the_floor_the_slope_is_that_of_the_output_as_it_was_rounded(dtype, sigma):
    y = (-torch.linspace(0.5, 1, 5001, dtype=torch.float64) / (2 * sigma)).to(dtype)
    slope, *_ = kernels.backward("output", torch.ones_like(y), y, None, sigma, "rational", -1, False)
    r, _ = _from_output(extended(y), sigma)
    limit = 0.51 if dtype == torch.bfloat16 else 4
    assert ulp_errors(slope, r * r / 2)[r > 1e-5].max() <= limit
