"""The double backward and the backward pass from the output, for every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_native import DTYPES, FAMILIES, random, truth
from test_native import instruction_set as instruction_set

import iglu
from iglu.kernels import native

from truth import LONG, extended, needs_extended, needs_loops, spread, ulp_errors

pytestmark = needs_loops
kernels = native.loops

LIMITS = {torch.float32: 6, torch.float64: 6, torch.bfloat16: 0.51, torch.float16: 0.51}


def double_backward(operation, family, gg_x, gg_up, grad, x, up, sigma, needs_sigma=False, channel_dim=-1):
    found = kernels.double_backward(
        operation, gg_x, gg_up, grad, x, up, sigma, FAMILIES[family], channel_dim, needs_sigma
    )
    assert found is not None, "unsupported"
    return found


def d2f_dxdsigma(family, x, sigma):
    return truth("d2f_dx2", family, x, sigma) * x / sigma


# -- double backward -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1.0, 0.7, 123.456, 1e-3, 1e20])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=needs_extended)])
def test_the_second_derivative_is_within_5_ulp_at_every_magnitude(dtype, family, sigma):
    x = spread(dtype, 20_000)
    one = torch.ones_like(x)
    of_grad, of_x, of_up, of_sigma = double_backward("value", family, one, None, one, x, None, sigma)
    assert of_up is None
    assert of_sigma is None
    limit = {"exact": 5, "rational": 4.4}[family]
    assert ulp_errors(of_x, truth("d2f_dx2", family, extended(x), sigma)).max() <= limit
    assert ulp_errors(of_grad, truth("df_dx", family, extended(x), sigma)).max() <= 3.7
    each = torch.full((x.numel(),), sigma, dtype=torch.float64)
    *_, parts = double_backward("value", family, one, None, one, x, None, each, needs_sigma=True)
    errors = ulp_errors(parts.to(dtype), d2f_dxdsigma(family, extended(x), LONG(sigma)))
    assert errors.max() <= limit


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_all_gradients_of_the_gradient_of_a_value(family, dtype):
    x, grad, gg_x = (random(70, 33, dtype=dtype, seed=seed) for seed in range(3))
    sigma = torch.tensor(0.7, dtype=torch.float64)
    grad_grad, second, _, grad_sigma = double_backward(
        "value", family, gg_x, None, grad, x, None, sigma, True
    )
    wide, v, g = extended(x), extended(gg_x), extended(grad)
    assert ulp_errors(grad_grad, v * truth("df_dx", family, wide, 0.7)).max() <= LIMITS[dtype]
    assert ulp_errors(second, g * v * truth("d2f_dx2", family, wide, 0.7)).max() <= LIMITS[dtype] + 1
    parts = g * v * d2f_dxdsigma(family, wide, LONG(0.7))
    assert abs(grad_sigma.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_all_gradients_of_the_gradients_of_a_pair(family, dtype, is_packed):
    x, up, grad, gg_x, gg_up = (random(70, 33, dtype=dtype, seed=seed) for seed in range(5))
    sigma = torch.tensor(0.7, dtype=torch.float64)
    if is_packed:
        pairs = torch.cat([gg_x, gg_up], -1), None, grad, torch.cat([x, up], -1), None
        first, both, none, grad_sigma = double_backward("glu", family, *pairs, sigma, True)
        assert none is None
        second, third = both.chunk(2, -1)
    else:
        first, second, third, grad_sigma = double_backward(
            "glu", family, gg_x, gg_up, grad, x, up, sigma, True
        )
    wide, v, q, g, u = map(extended, (x, gg_x, gg_up, grad, up))
    f, s = truth("value", family, wide, 0.7), truth("df_dx", family, wide, 0.7)
    k, b = truth("d2f_dx2", family, wide, 0.7), truth("df_dsigma", family, wide, 0.7)
    parts = g * (v * u * d2f_dxdsigma(family, wide, LONG(0.7)) + q * b)
    assert abs(grad_sigma.item() - parts.sum()) <= 1e-5 * np.abs(parts).sum()
    assert ulp_errors(third, g * v * s).max() <= LIMITS[dtype]
    # sums of two, which may cancel: an error in units of what is added
    eps = torch.finfo(dtype).eps
    for result, one, other in ((first, v * u * s, q * f), (second, g * v * u * k, g * q * s)):
        assert (np.abs(extended(result) - (one + other)) <= 4 * eps * (np.abs(one) + np.abs(other))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_double_backward_supports_one_sigma_of_any_sign_per_channel(family, dtype):
    sigma = torch.tensor([0.7, -1.3, 2.5, -0.01], dtype=torch.float64)
    x, grad, gg_x = (random(6, 4, 9, dtype=dtype, seed=seed) for seed in range(3))
    found = double_backward("value", family, gg_x, None, grad, x, None, sigma, True, channel_dim=1)
    wide, v, g, scale = extended(x), extended(gg_x), extended(grad), sigma.numpy().reshape(1, -1, 1)
    d2f_dx2 = truth("d2f_dx2", family, wide, scale)
    assert ulp_errors(found[0], v * truth("df_dx", family, wide, scale)).max() <= LIMITS[dtype]
    assert ulp_errors(found[1], g * v * d2f_dx2).max() <= LIMITS[dtype] + 1
    parts = g * v * d2f_dx2 * wide / scale
    assert (np.abs(found[3].numpy() - parts.sum((0, 2))) <= 1e-5 * np.abs(parts).sum((0, 2))).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_double_backward_of_views_equals_that_of_dense_tensors(family):
    wide = [random(14, 10, seed=seed) for seed in range(3)]
    views = [each[::2, ::2].t() for each in wide]
    dense = [each.contiguous() for each in views]
    for got, expected in zip(
        double_backward("value", family, views[0], None, views[1], views[2], None, 0.7)[:2],
        double_backward("value", family, dense[0], None, dense[1], dense[2], None, 0.7)[:2],
        strict=True,
    ):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    expanded = torch.tensor(1.5).expand(7, 5)
    full = double_backward(
        "value", family, expanded.contiguous(), None, wide[0][:7, :5], wide[1][:7, :5], None, 0.7
    )
    short = double_backward("value", family, expanded, None, wide[0][:7, :5], wide[1][:7, :5], None, 0.7)
    assert torch.equal(full[0], short[0])
    assert torch.equal(full[1], short[1])


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_elements_do_not_depend_on_how_many_follow(family, dtype):
    """Every loop with more than one argument or result, with one sigma and with one per element."""
    x, up, grad, gg_x, gg_up = (random(67, dtype=dtype, seed=seed) for seed in range(5))
    sigmas = torch.linspace(-1, 2, 67, dtype=torch.float64)

    def everything(n):
        tensors = [each[:n].clone() for each in (gg_x, gg_up, grad, x, up)]
        a, b, g, at, other = tensors
        for sigma, needs in ((0.7, False), (sigmas[:n].clone(), n > 1)):
            options = (sigma, FAMILIES[family], 0)
            yield kernels.forward("glu", at, other, *options)
            yield from kernels.backward("glu", g, at, other, *options, needs)
            yield from kernels.backward("gate", g, at, None, *options, needs)
            yield from kernels.double_backward("value", a, None, g, at, None, *options, needs)
            yield from kernels.double_backward("glu", a, b, g, at, other, *options, needs)
            if family == "rational":
                yield from kernels.backward("output", g, at, None, *options, needs)

    complete = list(everything(67))
    for n in (2, 3, 15, 16, 17, 33, 64, 66):
        for got, expected in zip(everything(n), complete, strict=True):
            assert (got is None) == (expected is None)
            assert got is None or torch.equal(got, expected[:n])


@pytest.mark.parametrize("dtype", DTYPES.values())
@pytest.mark.parametrize("family", FAMILIES)
def test_double_backward_at_zero_and_the_infinities_is_the_closed_form(family, dtype):
    inf = float("inf")
    x = torch.tensor([-inf, -0.0, 0.0, inf, float("nan")] * 7, dtype=dtype)
    one = torch.ones_like(x)
    of_grad, of_x, *_ = double_backward("value", family, one, None, one, x, None, 2.0)
    top = 4 / np.pi if family == "exact" else 2.0
    expected = torch.tensor([0, top, top, 0] * 7, dtype=dtype).view(7, 4)
    torch.testing.assert_close(of_x.view(7, 5)[:, :4], expected)
    torch.testing.assert_close(of_grad.view(7, 5)[0, :4], torch.tensor([0, 0.5, 0.5, 1], dtype=dtype))
    assert of_x.view(7, 5)[:, 4].isnan().all()


def test_unsupported_double_backward_returns_none():
    x = random(6)
    assert kernels.double_backward("gate", x, None, x, x, None, 1.0, "none", -1, False) is None
    assert kernels.double_backward("value", x[:3], None, x, x, None, 1.0, "none", -1, False) is None
    assert kernels.double_backward("value", x, None, x.double(), x, None, 1.0, "none", -1, False) is None
    assert kernels.double_backward("glu", x, None, x, x, x, 1.0, "none", -1, False) is None
    with pytest.raises(TypeError, match="expected 10 arguments, got 1"):
        kernels.double_backward("value")


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

    def derivative(x, *sigmas):
        return torch.autograd.grad(value(x, *sigmas).sum(), x, create_graph=True)[0]

    def both_gradients(x, up, *sigmas):
        return torch.autograd.grad(pair(x, up, *sigmas).square().sum(), (x, up), create_graph=True)

    assert torch.autograd.gradgradcheck(value, (x, *inputs))
    assert torch.autograd.gradgradcheck(derivative, (x, *inputs))
    assert torch.autograd.gradgradcheck(pair, (x, up, *inputs))
    assert torch.autograd.gradgradcheck(lambda x, *s: pair(x, None, *s), (packed, *inputs))
    assert torch.autograd.gradcheck(both_gradients, (x, up, *inputs))


@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_a_differentiable_gradient_is_one_node_and_equals_the_plain_gradient(approximate):
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
def test_df_dx_from_the_output_is_within_8_ulp_above_half_of_the_infimum(dtype, sigma):
    generator = torch.Generator().manual_seed(0)
    below = -torch.rand(20_000, generator=generator, dtype=torch.float64) / (4 * sigma)
    above = 10 ** (torch.rand(20_000, generator=generator, dtype=torch.float64) * 40 - 20)
    y = torch.cat([below, above]).to(dtype)
    one = torch.ones_like(y)
    derivative, *_ = kernels.backward("output", one, y, None, sigma, "rational", -1, False)
    r, root = _from_output(extended(y), sigma)
    assert ulp_errors(derivative, np.where(extended(y) < 0, r * r / 2, 1 - r * r / 2)).max() <= 8
    each = torch.full((y.numel(),), sigma, dtype=torch.float64)
    *_, parts = kernels.backward("output", one, y, None, each, "rational", -1, True)
    assert ulp_errors(parts.to(dtype), root * root / 2).max() <= 12


@pytest.mark.parametrize("sigma", [1.0, 0.7, 30.0, 1e-5])
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, pytest.param(torch.float64, marks=needs_extended)]
)
def test_down_to_the_infimum_df_dx_is_that_of_the_rounded_output(dtype, sigma):
    y = (-torch.linspace(0.5, 1, 5001, dtype=torch.float64) / (2 * sigma)).to(dtype)
    derivative, *_ = kernels.backward("output", torch.ones_like(y), y, None, sigma, "rational", -1, False)
    r, _ = _from_output(extended(y), sigma)
    limit = 0.51 if dtype == torch.bfloat16 else 4
    assert ulp_errors(derivative, r * r / 2)[r > 1e-5].max() <= limit
