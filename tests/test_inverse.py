"""The inverse and the logarithm of the derivative, against their definitions in 60 digits."""

import math

import mpmath
import pytest
import torch

import iglu

import truth

FAMILIES = ("none", "rational")
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALVES)
SIGMAS = (0.01, 0.5, 1.0, 5.0, 100.0)

# Units in the last place, (inverse, log-derivative).
TOLERANCE = {torch.float64: (4, 16), torch.float32: (4, 16), torch.bfloat16: (1, 1), torch.float16: (1, 1)}


@truth.needs_extended
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inverse_is_accurate_to_4_ulp_up_to_the_floor(dtype, approximate, sigma):
    y = truth.above_the_floor(dtype, sigma, approximate)
    x = iglu.iglu_inverse(y, sigma, approximate=approximate)
    expected = [
        truth.inverse(each, truth.as_computed(sigma, dtype), approximate) for each in y.double().tolist()
    ]
    inside = torch.tensor([each is not None for each in expected])
    assert not x[~inside].isfinite().any()
    assert truth.worst_ulp(x[inside], [each for each in expected if each is not None]) <= TOLERANCE[dtype][0]


@truth.needs_extended
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_log_derivative_is_accurate_in_both_tails(dtype, approximate, sigma):
    magnitudes = torch.logspace(-10, 37, 100, dtype=torch.float64)
    bends = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 / sigma
    x = torch.cat([magnitudes, -magnitudes, bends]).to(dtype)
    x = x[x.isfinite()]
    result = iglu.iglu_log_derivative(x, sigma, approximate=approximate)
    expected = [
        truth.log_derivative(each, truth.as_computed(sigma, dtype), approximate)
        for each in x.double().tolist()
    ]
    assert truth.worst_ulp(result, expected) <= TOLERANCE[dtype][1]


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_log_derivative_is_accurate_where_sigma_times_x_overflows(approximate):
    power = 3 if approximate == "none" else 2
    first = math.log(2 / (3 * math.pi)) if approximate == "none" else math.log(0.5)
    result = iglu.iglu_log_derivative(torch.tensor(-1e30), 1e20, approximate=approximate)
    assert result.item() == pytest.approx(first - power * math.log(1e50), rel=1e-6)
    by_tensor = iglu.iglu_log_derivative(torch.tensor(-1e30), torch.tensor(1e20), approximate=approximate)
    assert by_tensor.item() == result.item()


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inverse_is_nan_below_the_floor_but_not_at_the_rounded_floor(dtype, approximate):
    for sigma in torch.logspace(-2, 2, 301).tolist():
        far = torch.tensor([-math.inf, torch.finfo(dtype).min], dtype=dtype)
        lowest = iglu.iglu(far, sigma, approximate=approximate)
        assert (iglu.iglu_inverse(lowest, sigma, approximate=approximate) * sigma < -5).all()
        below = (lowest.double() * (1 + 8 * torch.finfo(dtype).eps)).to(dtype)
        assert iglu.iglu_inverse(below, sigma, approximate=approximate).isnan().all()


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_documented_special_cases_of_the_inverse_hold(dtype, approximate):
    y = torch.tensor([math.inf, 0.0, -0.0, math.nan, -math.inf, -4.0], dtype=dtype)
    x = iglu.iglu_inverse(y, 0.5, approximate=approximate)
    assert x[0] == math.inf
    assert x[1] == 0
    assert math.copysign(1, x[2]) == -1
    assert x[3:].isnan().all()
    assert iglu.iglu_inverse(torch.tensor(-0.5, dtype=dtype), approximate="rational") == -math.inf
    assert iglu.iglu_inverse(y, 0, approximate=approximate)[[1, 4, 5]].tolist() == [0, -math.inf, -8]
    relu = iglu.iglu_inverse(torch.tensor([0.0, 3.0, -1.0], dtype=dtype), math.inf, approximate=approximate)
    assert relu[:2].tolist() == [0, 3]
    assert relu[2].isnan()
    # a sigma so small or so large that sigma y is 0 or inf
    assert iglu.iglu_inverse(torch.tensor(3.0, dtype=dtype), 1e-320, approximate=approximate) == 6
    assert iglu.iglu_inverse(torch.tensor(3.0, dtype=dtype), 3e38, approximate=approximate) == 3
    huge = torch.tensor([torch.finfo(dtype).max], dtype=dtype)
    assert iglu.iglu_inverse(huge, torch.tensor([100.0]), approximate=approximate) == huge
    zeros = iglu.iglu_inverse(torch.tensor([[3.0], [math.inf]], dtype=dtype), torch.zeros(1), channel_dim=0)
    assert zeros.flatten().tolist() == [6, math.inf]


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_documented_special_cases_of_the_log_derivative_hold(dtype, approximate):
    x = torch.tensor([-math.inf, math.inf, math.nan, 0.0], dtype=dtype)
    half = torch.tensor(0.5, dtype=dtype).log()
    result = iglu.iglu_log_derivative(x, 2.0, approximate=approximate)
    assert result[0] == -math.inf
    assert result[1] == 0
    assert result[2].isnan()
    assert result[3] == half
    linear = iglu.iglu_log_derivative(x, 0, approximate=approximate)
    assert linear[[0, 1, 3]].tolist() == [half] * 3
    assert linear[2].isnan()
    relu = iglu.iglu_log_derivative(x, math.inf, approximate=approximate)
    assert relu[[0, 1, 3]].tolist() == [-math.inf, 0, half]
    assert relu[2].isnan()


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("sigma", [0.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_tensor_sigma_at_the_limits_inverts_as_the_number_does(approximate, sigma, dtype):
    y = torch.tensor([-math.inf, -2.0, -0.0, 0.0, 1e-3, 3.0, math.inf, math.nan], dtype=dtype)
    by_tensor = iglu.iglu_inverse(y, torch.tensor([sigma], dtype=dtype), approximate=approximate)
    by_number = iglu.iglu_inverse(y, sigma, approximate=approximate)
    torch.testing.assert_close(by_tensor, by_number, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_inverse_supports_a_negative_sigma(approximate):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    sigma = torch.tensor(-1.5, dtype=torch.float64)
    y = iglu.iglu(x, sigma, approximate=approximate)
    torch.testing.assert_close(iglu.iglu_inverse(y, sigma, approximate=approximate), x)
    ceiling = torch.tensor(truth.FLOOR[approximate], dtype=torch.float64) / sigma
    assert iglu.iglu_inverse(ceiling * (1 + 1e-16), sigma, approximate=approximate) >= 1e7


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("name", ["inverse", "log_derivative"])
def test_first_and_second_derivatives_are_those_of_finite_differences(name, approximate):
    function = {"inverse": iglu.iglu_inverse, "log_derivative": iglu.iglu_log_derivative}[name]
    points = {
        "inverse": [-0.21, -0.1, 0.02, 0.4, 3.0, 40.0],
        "log_derivative": [-30.0, -2.0, -0.3, 0.2, 1.5, 9.0],
    }
    x = torch.tensor([points[name], points[name]], dtype=torch.float64).T.contiguous().requires_grad_()
    sigma = torch.tensor([0.7, 1.4], dtype=torch.float64, requires_grad=True)

    def call(x, sigma):
        return function(x, sigma, approximate=approximate)

    assert torch.autograd.gradcheck(call, (x, sigma), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, (x, sigma))
    # forward over forward uses another code path
    tangent = torch.ones(6, dtype=torch.float64)
    column = x.detach()[:, 0]

    def along(x):
        return torch.func.jvp(lambda x: call(x, 0.7), (x,), (tangent,))[1]

    forward_over_forward = torch.func.jvp(along, (column,), (tangent,))[1]
    leaf = column.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(leaf, 0.7).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    torch.testing.assert_close(forward_over_forward, second, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_derivative_of_the_inverse_is_accurate_near_the_floor(approximate):
    """dx/dy = 1/f'(x); compared with the exact value at this y, not at a rounded x."""
    sigma = 1.0
    y = (truth.FLOOR[approximate] * (1 - torch.logspace(-12, -2, 11, dtype=torch.float64))).requires_grad_()
    (dx_dy,) = torch.autograd.grad(iglu.iglu_inverse(y, sigma, approximate=approximate).sum(), y)
    for each, got in zip(y.tolist(), dx_dy.tolist(), strict=True):
        x = truth.inverse(each, sigma, approximate)
        assert got == pytest.approx(
            float(mpmath.exp(-truth.log_derivative(x, sigma, approximate))), rel=1e-13
        )


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_gradient_of_the_log_derivative_does_not_underflow(approximate):
    x = torch.tensor([-1e18, -1e6], requires_grad=True)
    sigma = torch.tensor(1.0, requires_grad=True)
    grad_x, grad_sigma = torch.autograd.grad(
        iglu.iglu_log_derivative(x, sigma, approximate=approximate).sum(), (x, sigma)
    )
    power = 3 if approximate == "none" else 2
    assert grad_x.tolist() == pytest.approx([power / 1e18, power / 1e6], rel=1e-5)
    assert grad_sigma.item() == pytest.approx(-2 * power, rel=1e-5)


def test_sigma_may_have_one_value_per_channel_along_any_dimension():
    y = torch.rand(3, 2, 4, dtype=torch.float64)
    sigma = torch.tensor([0.5, 2.0], dtype=torch.float64)
    together = iglu.iglu_inverse(y, sigma, channel_dim=1)
    apart = torch.stack([iglu.iglu_inverse(y[:, i], sigma[i]) for i in range(2)], 1)
    torch.testing.assert_close(together, apart)
    last = iglu.iglu_log_derivative(y.movedim(1, -1), sigma, channel_dim=-1)
    torch.testing.assert_close(last.movedim(-1, 1), iglu.iglu_log_derivative(y, sigma, channel_dim=1))


def test_vmap_gives_the_same_inverse_and_log_derivative():
    y = torch.linspace(-0.3, 5, 64).view(8, 8)
    assert torch.equal(torch.vmap(iglu.iglu_inverse)(y), iglu.iglu_inverse(y))
    assert torch.equal(torch.vmap(iglu.iglu_log_derivative)(y), iglu.iglu_log_derivative(y))


@truth.needs_compiler
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_compiled_inverse_is_as_accurate_near_the_floor(approximate):
    """The inverse adds pairs of numbers in twice the precision, sums that a compiler must not rearrange."""
    torch._dynamo.reset()
    y = (truth.FLOOR[approximate] * (1 - torch.logspace(-6, -0.1, 200, dtype=torch.float64))).float()
    compiled = torch.compile(lambda y: iglu.iglu_inverse(y, approximate=approximate), fullgraph=True)
    torch.testing.assert_close(
        compiled(y), iglu.iglu_inverse(y, approximate=approximate), rtol=1e-6, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("function", [iglu.iglu_inverse, iglu.iglu_log_derivative])
def test_errors_name_the_invalid_argument(function):
    with pytest.raises(TypeError, match="must have dtype float16, bfloat16, float32 or float64"):
        function(torch.arange(3))
    with pytest.raises(ValueError, match="sigma must be >= 0, got -1"):
        function(torch.ones(3), -1)
    with pytest.raises(ValueError, match="approximate must be one of 'none', 'rational', got 'tanh'"):
        function(torch.ones(3), approximate="tanh")
    with pytest.raises(ValueError, match="must have 1 value or 3, one for each channel"):
        function(torch.ones(2, 3), torch.ones(2))
