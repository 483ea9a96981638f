"""IGLU as a transform of torch.distributions: densities that integrate to one, and a flow that fits."""

import itertools
import math

import pytest
import torch
from scipy.integrate import quad
from torch.distributions import AffineTransform, Independent, Normal, TransformedDistribution, constraints

import iglu
from iglu.distributions import IGLUTransform

FAMILIES = ("none", "rational")


def normal(size=()):
    return Normal(torch.zeros(size, dtype=torch.float64), torch.ones(size, dtype=torch.float64))


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_the_density_integrates_to_one_and_has_the_mean_of_the_samples(approximate, sigma):
    transform = IGLUTransform(sigma, approximate=approximate)
    skewed = TransformedDistribution(normal(), [transform])

    def density(y):
        return math.exp(skewed.log_prob(torch.tensor(y, dtype=torch.float64)).item())

    # below the last point lies less than 1e-9 of the probability, at x = -6
    low = transform(torch.tensor(-6.0, dtype=torch.float64)).item()
    pieces = [
        low,
        *(transform(torch.tensor(x, dtype=torch.float64)).item() for x in (-4.5, -3.0, -1.0)),
        12.0,
    ]
    total = sum(quad(density, a, b, epsabs=1e-12, limit=200)[0] for a, b in itertools.pairwise(pieces))
    assert total == pytest.approx(1, abs=1e-7)
    mean = sum(
        quad(lambda y: y * density(y), a, b, epsabs=1e-12, limit=200)[0]
        for a, b in itertools.pairwise(pieces)
    )
    expected = quad(
        lambda x: (
            iglu.iglu(torch.tensor(x, dtype=torch.float64), sigma, approximate=approximate).item()
            * math.exp(-x * x / 2)
            / math.sqrt(2 * math.pi)
        ),
        -9,
        9,
    )[0]
    assert mean == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_transform_is_a_bijection_from_the_reals_to_the_numbers_above_the_floor(approximate):
    transform = IGLUTransform(2.0, approximate=approximate)
    floor = -1 / (math.pi * 2) if approximate == "none" else -0.25
    assert transform.floor == pytest.approx(floor, rel=1e-15)
    assert transform.domain is constraints.real
    y = torch.tensor([floor - 1e-3, floor + 1e-3, 5.0])
    assert transform.codomain.check(y).tolist() == [False, True, True]
    assert transform.bijective
    assert transform.sign == 1
    x = torch.linspace(-20, 20, 201, dtype=torch.float64)
    y = transform(x)
    assert (y.diff() > 0).all()
    torch.testing.assert_close(transform.inv(y), x, rtol=1e-9, atol=1e-12)
    log_derivative = transform.log_abs_det_jacobian(x, y)
    torch.testing.assert_close(transform.inv.log_abs_det_jacobian(y, x), -log_derivative)
    derivatives = torch.func.vmap(torch.func.grad(transform))(x)
    torch.testing.assert_close(log_derivative.exp(), derivatives, rtol=1e-12, atol=0)


def test_the_cache_returns_the_same_x_object():
    x = torch.tensor([-5000.0, 1.0])
    plain, cached = IGLUTransform(1.0), IGLUTransform(1.0).with_cache()
    assert cached.inv(cached(x)) is x
    assert not torch.equal(plain.inv(plain(x)), x)  # rounding: the reason for a cache
    assert cached.with_cache() is cached
    with_options = IGLUTransform(2.0, approximate="rational").with_cache()
    assert (with_options.sigma, with_options.approximate) == (2.0, "rational")


def test_equality_and_repr_distinguish_transforms():
    assert IGLUTransform(1.0) == IGLUTransform(1.0)
    assert IGLUTransform(1.0) != IGLUTransform(2.0)
    assert IGLUTransform(1.0) != IGLUTransform(1.0, approximate="rational")
    sigma = torch.tensor(1.0)
    assert IGLUTransform(sigma) == IGLUTransform(sigma)
    assert IGLUTransform(sigma) != IGLUTransform(1.0)
    assert repr(IGLUTransform(0.5, approximate="rational")) == "IGLUTransform(0.5, approximate='rational')"


def test_sigma_may_have_one_value_per_entry_of_the_last_dimension():
    sigma = torch.tensor([0.5, 3.0], dtype=torch.float64)
    joint = TransformedDistribution(Independent(normal(2), 1), [IGLUTransform(sigma)])
    y = torch.tensor([[0.3, -0.05], [1.0, 2.0], [-0.1, 0.0]], dtype=torch.float64)
    apart = [
        TransformedDistribution(normal(), [IGLUTransform(s)]).log_prob(y[:, i]) for i, s in enumerate(sigma)
    ]
    torch.testing.assert_close(joint.log_prob(y), apart[0] + apart[1])


def test_a_flow_fits_a_skewed_density():
    """y = shift + scale IGLU(b + a z; sigma), all five fitted by maximum likelihood, which reaches that of
    the true values; that of a normal density is much lower."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(4000, generator=generator, dtype=torch.float64)
    data = -0.3 + 2.0 * iglu.iglu(0.4 + 1.5 * z, 1.2)

    def log_likelihood(b, log_a, log_scale, log_sigma, log_gap):
        middle = IGLUTransform(log_sigma.exp())
        # the support must hold all of the data: it starts a gap below the least of them
        shift = data.min() - log_gap.exp() - log_scale.exp() * middle.floor
        outer = AffineTransform(shift, log_scale.exp())
        flow = TransformedDistribution(normal(), [AffineTransform(b, log_a.exp()), middle, outer])
        return flow.log_prob(data).mean()

    true_gap = data.min().item() + 0.3 + 2.0 / (math.pi * 1.2)
    true = torch.tensor([0.4, *(math.log(each) for each in (1.5, 2.0, 1.2, true_gap))], dtype=torch.float64)
    learned = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([learned], max_iter=300, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -log_likelihood(*learned)
        value.backward()
        return value

    optimizer.step(loss)
    best = log_likelihood(*true).item()
    assert best > Normal(data.mean(), data.std()).log_prob(data).mean().item() + 0.1
    assert log_likelihood(*learned).item() >= best - 1e-3


@pytest.mark.parametrize("sigma", [0, math.inf, 0.0])
def test_a_sigma_that_cannot_be_inverted_raises(sigma):
    with pytest.raises(ValueError, match="sigma must be above 0 and below inf"):
        IGLUTransform(sigma)
    with pytest.raises(ValueError, match="approximate must be one of"):
        IGLUTransform(1.0, approximate="tanh")
