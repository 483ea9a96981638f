"""Bounds over intervals hold for every x, in every precision, and cannot be tightened by much."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import iglu

import truth

FAMILIES = ("none", "rational")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def intervals(dtype, count=400, seed=0):
    """Short and long intervals, at all magnitudes of the dtype."""
    generator = torch.Generator().manual_seed(seed)

    def numbers():
        magnitude = 10 ** (torch.rand(count, generator=generator, dtype=torch.float64) * 8 - 4)
        return magnitude * (torch.randint(0, 2, (count,), generator=generator) * 2 - 1)

    one, other = numbers(), numbers()
    near = one * (1 + torch.randn(count, generator=generator, dtype=torch.float64) * 1e-3)
    ends = torch.stack([torch.cat([one, one, one]), torch.cat([other, near, one])]).to(dtype)
    return ends.amin(0), ends.amax(0)


def points(low, high, count=65):
    """Both ends and numbers between them, of their dtype."""
    share = torch.linspace(0, 1, count, dtype=torch.float64).view(-1, *[1] * low.dim())
    between = low.double() + (high.double() - low.double()) * share
    return torch.minimum(torch.maximum(between.to(low.dtype), low), high)


@pytest.mark.parametrize("sigma", [0.01, 1.0, 7.0])
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bounds_hold_for_exact_and_for_computed_values(dtype, approximate, sigma):
    low, high = intervals(dtype)
    low, high = low[low.isfinite() & high.isfinite()], high[low.isfinite() & high.isfinite()]
    found = iglu.bounds(low, high, sigma, approximate=approximate)
    x = points(low, high)
    computed = iglu.iglu(x, sigma, approximate=approximate)
    assert (found.low <= computed).all()
    assert (computed <= found.high).all()
    assert (found.below(x) <= computed).all()
    assert (computed <= found.above(x)).all()
    # in extended precision, with sigma rounded as in the computation
    sigma = float(torch.tensor(sigma, dtype=torch.float64 if dtype == torch.float64 else torch.float32))
    true = truth.TRUTH[approximate, "value"](truth.extended(x), sigma)
    for line, sign in ((found.below, 1), (found.above, -1)):
        value = truth.extended(line.slope) * truth.extended(x) + truth.extended(line.intercept)
        assert (sign * (true - value) >= 0).all()
    assert (truth.extended(found.low) <= true).all()
    assert (true <= truth.extended(found.high)).all()


@pytest.mark.parametrize(
    ("approximate", "sigma", "low", "high"),
    [
        ("none", 0.5, -496.0, 0.71875),
        ("none", 1.0, -19.625, 0.40625),
        ("rational", 3.0, -4.46875, 0.1865234375),
    ],
)
def test_the_linear_bounds_hold_for_values_with_the_largest_allowed_error(approximate, sigma, low, high):
    """1 ulp in bfloat16.  Here the rounding errors of slope x + intercept add up and use the margin up."""
    low, high = torch.tensor(low, dtype=torch.bfloat16), torch.tensor(high, dtype=torch.bfloat16)
    found = iglu.bounds(low, high, sigma, approximate=approximate)
    x = torch.stack([low, high])
    true = truth.TRUTH[approximate, "value"](truth.extended(x), sigma)
    ulp = np.ldexp(torch.finfo(torch.bfloat16).eps, np.frexp(np.abs(true))[1] - 1)
    assert (truth.extended(found.below(x)) <= true - ulp).all()
    assert (true + ulp <= truth.extended(found.above(x))).all()


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_bounds_are_tight_up_to_rounding(dtype, approximate):
    low, high = intervals(dtype)
    found = iglu.bounds(low, high, 0.7, approximate=approximate)
    eps = torch.finfo(dtype).eps
    first = truth.TRUTH[approximate, "value"](truth.extended(low), 0.7)
    last = truth.TRUTH[approximate, "value"](truth.extended(high), 0.7)
    assert (np.abs(truth.extended(found.low) - first) <= 20 * eps * np.abs(first)).all()
    assert (np.abs(truth.extended(found.high) - last) <= 20 * eps * np.abs(last)).all()
    reach = truth.extended(torch.maximum(low.abs(), high.abs()))
    # the chord meets f at both ends, the tangent at the midpoint
    for x in (low, high):
        true = truth.TRUTH[approximate, "value"](truth.extended(x), 0.7)
        assert (np.abs(truth.extended(found.above(x)) - true) <= 60 * eps * reach).all()
    # and its slope is one that f has between them, however short it is
    derivatives = [truth.TRUTH[approximate, "df_dx"](truth.extended(x), 0.7) for x in (low, high)]
    assert (truth.extended(found.above.slope) >= derivatives[0] * (1 - 20 * eps)).all()
    assert (truth.extended(found.above.slope) <= derivatives[1] * (1 + 20 * eps)).all()
    middle = (low.double() + high.double()) / 2
    true = truth.TRUTH[approximate, "value"](truth.extended(middle), 0.7)
    below = truth.extended(found.below.slope) * truth.extended(middle) + truth.extended(found.below.intercept)
    assert (np.abs(below - true) <= 60 * eps * reach).all()


@pytest.mark.parametrize("approximate", FAMILIES)
def test_no_other_tangent_is_a_tighter_lower_bound_on_average(approximate):
    low, high = torch.tensor(-3.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    found = iglu.bounds(low, high, 1.5, approximate=approximate)
    x = torch.linspace(-3, 1, 4001, dtype=torch.float64)
    ours = found.below(x).mean()
    for touching in torch.linspace(-3, 1, 41, dtype=torch.float64):
        at, slope = torch.func.jvp(
            lambda x: iglu.iglu(x, 1.5, approximate=approximate), (touching,), (torch.ones_like(touching),)
        )
        assert (at + slope * (x - touching)).mean() <= ours + 1e-9


@given(
    st.floats(-1e6, 1e6, width=32),
    st.floats(0, 1e6, width=32),
    st.floats(0, 1),
    st.sampled_from(FAMILIES),
    st.floats(2**-10, 1e3, width=32),
)
@settings(max_examples=300, deadline=None)
def test_the_bounds_hold_for_any_interval(start, width, share, approximate, sigma):
    low = torch.tensor(start)
    high = torch.maximum(low, torch.tensor(start + width))
    x = torch.minimum(torch.maximum(low + (high - low) * share, low), high)
    found = iglu.bounds(low, high, sigma, approximate=approximate)
    y = iglu.iglu(x, sigma, approximate=approximate)
    assert found.low <= y <= found.high
    assert found.below(x) <= y <= found.above(x)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_infinite_ends_give_constant_bounds(approximate):
    inf = math.inf
    low, high = torch.tensor([-inf, 1.0, -inf, 1.0]), torch.tensor([1.0, inf, inf, 2.0])
    found = iglu.bounds(low, high, approximate=approximate)
    assert found.below.slope[:3].tolist() == found.above.slope[:3].tolist() == [0, 0, 0]
    assert torch.equal(found.below.intercept[:3], found.low[:3])
    assert torch.equal(found.above.intercept[:3], found.high[:3])
    assert found.high[1:3].tolist() == [inf, inf]
    assert found.low[0].item() == pytest.approx(-1 / math.pi if approximate == "none" else -0.5)
    assert found.below.slope[3] > 0.5


def test_bounds_at_the_limits_of_sigma_are_those_of_half_of_x_and_relu():
    low, high = torch.tensor([-3.0, -1.0, -2.0, 1.0]), torch.tensor([1.0, 3.0, -1.0, 2.0])
    linear = iglu.bounds(low, high, 0)
    assert linear.below.slope.tolist() == linear.above.slope.tolist() == [0.5] * 4
    torch.testing.assert_close(linear.below.intercept, torch.zeros(4), atol=1e-5, rtol=0)
    relu = iglu.bounds(low, high, math.inf)
    assert relu.below.slope.tolist() == [0, 1, 0, 1]
    torch.testing.assert_close(relu.above.slope, torch.tensor([0.25, 0.75, 0, 1]))
    torch.testing.assert_close(relu.above.intercept, torch.tensor([0.75, 0.75, 0, 0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("sigma", [0, math.inf])
def test_bounds_at_the_limits_of_sigma_have_small_gradients(sigma):
    low = torch.tensor([-1.0, -2.0, 0.0], requires_grad=True)  # with 0 at the midpoint, inside and as an end
    found = iglu.bounds(low, torch.tensor([1.0, 3.0, 0.0]), sigma)
    (grad_low,) = torch.autograd.grad(sum(each.sum() for each in tensors(found)), low)
    assert grad_low.abs().max() < 10


def tensors(found):
    return *found[:2], *found.below, *found.above


def test_bounds_support_one_sigma_per_channel_and_have_gradients():
    low = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.5, 3.0], dtype=torch.float64)
    found = iglu.bounds(low, low.detach() + 1.5, sigma)
    for channel in range(2):
        alone = iglu.bounds(low[:, channel], low[:, channel].detach() + 1.5, sigma[channel].item())
        for together, apart in zip(tensors(found), tensors(alone), strict=True):
            torch.testing.assert_close(together[:, channel], apart)
    (grad_low,) = torch.autograd.grad(found.low.sum(), low, retain_graph=True)
    derivatives = torch.func.vmap(torch.func.grad(lambda x, s: iglu.iglu(x, s)))(low.detach()[0], sigma)
    torch.testing.assert_close(grad_low[0], derivatives)
    (grad_low,) = torch.autograd.grad(found.above.intercept.sum() + found.below.intercept.sum(), low)
    assert grad_low.isfinite().all()


def test_errors_name_the_invalid_argument():
    one = torch.ones(2)
    with pytest.raises(ValueError, match="low must be <= high"):
        iglu.bounds(one, -one)
    with pytest.raises(
        ValueError, match=r"high must have low's shape and dtype, \(2,\) torch.float32, got \(3,\)"
    ):
        iglu.bounds(one, torch.ones(3))
    with pytest.raises(ValueError, match="got float"):
        iglu.bounds(one, 2.0)
    with pytest.raises(ValueError, match="concave"):
        iglu.bounds(-one, one, torch.tensor(-1.0))
    with pytest.raises(ValueError, match="approximate must be one of"):
        iglu.bounds(-one, one, approximate="tanh")
