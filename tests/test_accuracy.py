"""Accuracy of the public functions in units in the last place."""

import mpmath
import numpy as np
import pytest
import torch

import iglu

import truth

SIGMAS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 100.0)
HALVES = (torch.bfloat16, torch.float16)
FAMILIES = ("none", "rational")

# Stated tolerance in units in the last place: (value and gate, derivatives).
TOLERANCE = {
    torch.float64: (4, 16),
    torch.float32: (4, 16),
    torch.bfloat16: (1, 1),
    torch.float16: (1, 1),
}


def worst_ulp(kind: str, x: torch.Tensor, sigma: float, approximate: str) -> float:
    result = truth.evaluate(kind, x, sigma, approximate)
    return float(truth.ulp_errors(result, truth.TRUTH[approximate, kind](truth.extended(x), sigma)).max())


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("kind", ["value", "gate", "df_dx", "df_dsigma"])
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=truth.needs_extended), torch.float32, *HALVES]
)
def test_every_result_is_accurate_to_a_few_ulp(dtype, approximate, kind, sigma):
    x = truth.every_value(dtype) if dtype in HALVES else truth.spread(dtype, 50_000)
    # the computation rounds sigma to float32, so the reference does too
    if kind == "df_dsigma" and dtype != torch.float64:
        sigma = float(np.float32(sigma))
    assert worst_ulp(kind, x, sigma, approximate) <= TOLERANCE[dtype][kind in ("df_dx", "df_dsigma")]


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", HALVES)
def test_output_never_decreases_over_all_half_precision_values(dtype, approximate, sigma):
    y = iglu.iglu(truth.every_value(dtype), sigma, approximate=approximate).double()
    assert (y[1:] >= y[:-1]).all()


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_gradient_is_positive_wherever_it_can_be_represented(dtype, approximate, sigma):
    x = truth.every_value(dtype) if dtype in HALVES else truth.spread(dtype, 50_000)
    x = x[x.isfinite()]
    derivative = truth.evaluate("df_dx", x, sigma, approximate)
    expected = truth.TRUTH[approximate, "df_dx"](truth.extended(x), sigma)
    representable = torch.from_numpy(expected >= torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    assert (derivative[representable] > 0).all()
    assert (derivative >= 0).all()


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_infinities_and_nan_follow_the_limits(dtype, approximate, sigma):
    x = torch.tensor([-torch.inf, torch.inf, torch.nan], dtype=dtype)
    floor = torch.tensor(-1 / ((torch.pi if approximate == "none" else 2) * sigma), dtype=dtype)
    value = truth.evaluate("value", x, sigma, approximate)
    # the floor is itself a product of a few roundings
    assert abs(value[0] - floor) <= 4 * torch.finfo(dtype).eps * abs(floor)
    assert value[1] == torch.inf
    assert value[2].isnan()
    gate = truth.evaluate("gate", x, sigma, approximate)
    derivative = truth.evaluate("df_dx", x, sigma, approximate)
    for limit in (gate, derivative):
        assert limit[0] == 0
        assert limit[1] == 1
        assert limit[2].isnan()


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_far_negative_tail_is_flat_at_the_floor_up_to_1e30(approximate):
    x = -torch.logspace(3, 30, 1000)
    y = iglu.iglu(x, 1.0, approximate=approximate)
    # distance to the floor: 1/(3 pi x^2) of the exact form, 1/(2(1 + |x|)) of the rational form
    floor, distance = (-1 / torch.pi, 0.11 / x.square()) if approximate == "none" else (-0.5, 0.5 / x.abs())
    assert ((y - floor).abs() <= distance + 1e-7).all()
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("approximate", FAMILIES)
def test_large_half_precision_products_do_not_overflow(approximate):
    x = torch.tensor([7000.0, -7000.0, 65504.0, -65504.0], dtype=torch.float16)
    y = iglu.iglu(x, 10.0, approximate=approximate)
    floor = -1 / ((np.pi if approximate == "none" else 2) * 10)
    assert y.tolist() == pytest.approx([7000.0, floor, 65504.0, floor], rel=1e-3)


def test_the_sigma_gradient_does_not_overflow_where_x_squared_would():
    sigma = torch.tensor(1.0, requires_grad=True)
    for approximate, limit in (("none", 1 / torch.pi), ("rational", 0.5)):
        (df_dsigma,) = torch.autograd.grad(
            iglu.iglu(torch.tensor([1e25, -1e25]), sigma, approximate=approximate).sum(), sigma
        )
        assert df_dsigma.item() == pytest.approx(2 * limit, rel=1e-6)


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_summed_sigma_gradient_is_accurate_relative_to_its_terms(dtype, approximate):
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(100_000, generator=generator) * 3).to(dtype)
    grad = torch.randn(100_000, generator=generator).to(dtype)
    sigma = torch.tensor(0.7, requires_grad=True)
    (df_dsigma,) = torch.autograd.grad(iglu.iglu(x, sigma, approximate=approximate), sigma, grad)
    terms = truth.extended(grad) * truth.TRUTH[approximate, "df_dsigma"](truth.extended(x), sigma.item())
    assert abs(float(df_dsigma) - float(terms.sum())) <= 1e-6 * float(np.abs(terms).sum())


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("kind", ["value", "df_dx", "df_dsigma", "d2f_dx2"])
def test_the_reference_values_agree_with_mpmath(approximate, kind):
    with mpmath.workdps(40):
        sigma = mpmath.mpf(0.7)

        def function(x, s):
            u = s * x
            gate = mpmath.atan2(1, -u) / mpmath.pi
            if approximate == "rational":
                gate = (1 + 2 * max(u, 0)) / (2 * (1 + abs(u)))
            return x * gate

        for point in (-1e6, -300.0, -8.1, -7.9, -2.0, -1.4, -0.3, 1e-5, 0.9, 1.6, 40.0):
            x = mpmath.mpf(point)
            expected = {
                "value": lambda x=x: function(x, sigma),
                "df_dx": lambda x=x: mpmath.diff(
                    lambda v: function(v, sigma), x, h=abs(x) * mpmath.mpf(10) ** -18
                ),
                "df_dsigma": lambda x=x: mpmath.diff(lambda s: function(x, s), sigma),
                "d2f_dx2": lambda x=x: mpmath.diff(
                    lambda v: function(v, sigma), x, 2, h=abs(x) * mpmath.mpf(10) ** -12
                ),
            }[kind]()
            with mpmath.workdps(20):
                got = truth.TRUTH[approximate, kind](np.array([point], dtype=truth.LONG), 0.7)[0]
            assert float(got) == pytest.approx(float(expected), rel=1e-13)


@truth.needs_compiler
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("kind", ["value", "df_dx"])
def test_compiled_results_meet_the_stated_tolerance(kind, approximate):
    torch._dynamo.reset()
    x = truth.spread(torch.float32, 50_000).requires_grad_()
    y = torch.compile(lambda x: iglu.iglu(x, 0.7, approximate=approximate), fullgraph=True)(x)
    result = y.detach() if kind == "value" else torch.autograd.grad(y, x, torch.ones_like(y))[0]
    expected = truth.TRUTH[approximate, kind](truth.extended(x), 0.7)
    assert truth.ulp_errors(result, expected).max() <= TOLERANCE[torch.float32][kind == "df_dx"]
