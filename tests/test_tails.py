"""iglu.tails, compared with scipy, the definitions, and samples whose index is known.

Most draws are the k+1 largest of n, made directly: with e_i sums of i unit exponentials, e_i/e_(n+1) are
the smallest of n uniforms, and a quantile function turns them into the largest values of any law.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from iglu import tails
from iglu.tails import Tail, TailWarning, gaussian_index, gpd, hill, moment
from iglu.tails.fits import chi_square_range

scipy_stats = pytest.importorskip("scipy.stats", reason="scipy is the independent truth here")
scipy_optimize = pytest.importorskip("scipy.optimize")

METHODS = {"hill": hill, "moment": moment, "gpd": gpd}

# law -> (quantile of |X| at upper probability p, true xi)
LAWS = {
    "pareto": (lambda p: p**-0.5, 1 / 2),
    "student-t3": (lambda p: scipy_stats.t.isf(p / 2, 3), 1 / 3),
    "cauchy": (lambda p: 1 / np.tan(np.pi * p / 2), 1.0),
    "gaussian": (lambda p: scipy_stats.norm.isf(p / 2), 0.0),
    "exponential": (lambda p: -np.log(p), 0.0),
    "bounded": (lambda p: 1 - p**0.3, -0.3),
}


def largest(law: str, n: int, k: int, samples: int, seed: int = 0) -> list[Tail]:
    generator = np.random.default_rng(seed)
    sums = generator.exponential(size=(samples, k + 1)).cumsum(1)
    total = sums[:, -1:] + generator.gamma(n - k, size=(samples, 1))
    return [Tail(torch.from_numpy(row), n) for row in LAWS[law][0](sums / total)]


def student(size: int, seed: int = 0, degrees: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_t(degrees, size))


# -- the formulas ----------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 10, 100, 999])
def test_hill_is_the_formula_of_the_paper(k):
    x = student(1000)
    ranked = sorted(x.abs().tolist(), reverse=True)
    alpha = k / sum(math.log(ranked[i] / ranked[k]) for i in range(k))
    assert hill(x, k).alpha == pytest.approx(alpha, rel=1e-12)


def test_moment_is_the_formula_of_dekkers_einmahl_and_de_haan():
    x = student(1000)
    ranked = np.sort(np.abs(x.numpy()))[::-1]
    logs = np.log(ranked[:100] / ranked[100])
    first, second = logs.mean(), (logs**2).mean()
    assert moment(x, 100).xi == pytest.approx(first + 1 - 0.5 / (1 - first**2 / second), rel=1e-10)


@pytest.mark.parametrize("law", LAWS)
def test_gpd_finds_the_maximum_that_scipy_finds(law):
    for tail in largest(law, 10_000, 100, samples=5):
        estimate = gpd(tail)
        excess = (tail.values[:100] - tail.values[100]).numpy()
        xi, _, scale = scipy_stats.genpareto.fit(excess, floc=0)
        ours = scipy_stats.genpareto.logpdf(excess, estimate.xi, scale=estimate.scale).sum()
        assert ours >= scipy_stats.genpareto.logpdf(excess, xi, scale=scale).sum() - 1e-6
        assert estimate.xi == pytest.approx(xi, abs=2e-3)


@pytest.mark.parametrize("law", ["student-t3", "gaussian", "bounded"])
def test_gpd_interval_ends_where_the_likelihood_ratio_is_at_its_95_percent_point(law):
    (tail,) = largest(law, 10_000, 100, samples=1)
    estimate = gpd(tail)
    excess = (tail.values[:100] - tail.values[100]).numpy()

    def height(xi: float, log_scale: float) -> float:
        # scipy's minimizer does not take the infinity of a law that ends below the largest value
        return max(scipy_stats.genpareto.logpdf(excess, xi, scale=math.exp(log_scale)).sum(), -1e6)

    for end in (estimate.xi_low, estimate.xi_high):
        around = math.log(estimate.scale)
        best = scipy_optimize.minimize_scalar(
            lambda log_scale, end=end: -height(end, log_scale),
            bounds=(around - 2, around + 2),
            method="bounded",
        )
        ratio = 2 * (height(estimate.xi, around) + best.fun)
        assert ratio == pytest.approx(scipy_stats.chi2.ppf(0.95, 1), abs=1e-3)


@pytest.mark.parametrize("degrees", [1.3, 2, 20, 200, 20_000, 2_000_000])
def test_chi_square_range_is_that_of_scipy(degrees):
    expected = scipy_stats.chi2.ppf([0.025, 0.975], degrees) / degrees
    assert chi_square_range(degrees) == pytest.approx(tuple(expected), rel=1e-8)


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("law", ["student-t3", "gaussian", "bounded"])
def test_alpha_and_its_interval_are_the_inverse_of_xi(estimator, law):
    (tail,) = largest(law, 100_000, 100, samples=1)
    estimate = estimator(tail)
    assert estimate.xi_low < estimate.xi < estimate.xi_high
    assert estimate.alpha_low <= estimate.alpha <= estimate.alpha_high
    pairs = {
        estimate.alpha: estimate.xi,
        estimate.alpha_low: estimate.xi_high,
        estimate.alpha_high: estimate.xi_low,
    }
    for alpha, xi in pairs.items():
        assert alpha == (1 / xi if xi > 0 else math.inf)


# -- recovery and coverage -------------------------------------------------------------------------

# The 95% interval at k = 100 of n = 100,000 over 400 samples: between the 0.05% points of a binomial
# around 0.95 above, and around the 0.925 that moment and gpd reach at this k below.
SAMPLES, FEWEST, MOST = 400, 0.885, 0.985


@pytest.mark.parametrize(
    ("method", "law"),
    [
        *((method, law) for method in METHODS for law in ("pareto", "student-t3", "cauchy")),
        *((method, law) for method in ("moment", "gpd") for law in ("exponential", "bounded")),
    ],
)
def test_95_percent_interval_holds_the_true_index(method, law):
    xi = LAWS[law][1]
    estimates = [METHODS[method](tail) for tail in largest(law, 100_000, 100, SAMPLES, seed=1)]
    covered = sum(estimate.xi_low <= xi <= estimate.xi_high for estimate in estimates) / SAMPLES
    assert FEWEST < covered < MOST


def test_hill_recovers_the_index_of_a_stable_law_from_complete_samples():
    alpha, samples, covered = 1.5, 100, 0
    generator = np.random.default_rng(0)
    for _ in range(samples):
        # Chambers, Mallows and Stuck (1976), symmetric
        angle = generator.uniform(-np.pi / 2, np.pi / 2, 50_000)
        waiting = generator.exponential(size=50_000)
        x = np.sin(alpha * angle) / np.cos(angle) ** (1 / alpha)
        x *= (np.cos((1 - alpha) * angle) / waiting) ** ((1 - alpha) / alpha)
        estimate = hill(torch.from_numpy(x))
        covered += estimate.alpha_low <= alpha <= estimate.alpha_high
    assert covered >= 86


def test_hill_at_one_percent_of_student_t_is_biased_as_known():
    # the expectation at a fixed fraction, by quadrature: 2.88 for t3 where the index is 3
    (tail,) = largest("student-t3", 10_000_000, 100_000, samples=1)
    assert hill(tail, fraction=0.01).alpha == pytest.approx(2.88, abs=0.04)


# -- on Gaussian data -------------------------------------------------------------------------------


def test_gaussian_at_the_papers_sizes_gives_17_9_and_23_5_and_25_3():
    resnet = [2_097_152] * 7 + [1_048_576] * 6 + [524_288] * 6  # 128 images, three stages of ResNet-20
    figures = [
        sum(gaussian_index("hill", n, 100).alpha for n in resnet) / len(resnet),
        gaussian_index("hill", 128 * 197 * 768, 100).alpha,
        gaussian_index("hill", 16 * 1023 * 3072, 100).alpha,
    ]
    assert [round(figure, 1) for figure in figures] == [17.9, 23.5, 25.3]


@pytest.mark.parametrize(("n", "mean_alpha"), [(10**5, 13.5), (10**6, 17.9), (10**7, 22.4)])
def test_mean_alpha_of_a_gaussian_follows_from_mean_and_sd_of_xi(n, mean_alpha):
    gaussian = gaussian_index("hill", n, 100)
    assert gaussian.alpha * (1 + (gaussian.sd / gaussian.xi) ** 2) == pytest.approx(mean_alpha, abs=0.05)


@pytest.mark.parametrize("n", [10**5, 10**6, 10**7])
def test_hill_at_one_percent_of_a_gaussian_is_9_at_every_size(n):
    assert gaussian_index("hill", n, n // 100).alpha == pytest.approx(9.0, abs=0.006)


@pytest.mark.parametrize(("n", "k"), [(10_000, 50), (1_000_000, 100), (1_000_000, 1000), (1000, 300)])
@pytest.mark.parametrize("method", METHODS)
def test_gaussian_index_describes_gaussian_draws(method, n, k):
    samples = 300
    xi = np.array([METHODS[method](tail, k).xi for tail in largest("gaussian", n, k, samples, seed=2)])
    gaussian = gaussian_index(method, n, k)
    assert xi.mean() == pytest.approx(gaussian.xi, abs=4 * xi.std() / samples**0.5 + 0.05 * gaussian.sd)
    assert xi.std() == pytest.approx(gaussian.sd, rel=0.25)
    inside = ((gaussian.xi_low < xi) & (xi < gaussian.xi_high)).mean()
    assert 0.89 < inside < 0.99


def test_heavy_tails_are_distinguished_from_a_gaussian_and_a_uniform():
    uniform = torch.linspace(0, 1, 100_000)
    for estimator in METHODS.values():
        assert estimator(student(100_000)).versus_gaussian == "heavier"
        (tail,) = largest("gaussian", 100_000, 100, samples=1)
        assert estimator(tail).versus_gaussian == "like"
    assert moment(uniform).versus_gaussian == gpd(uniform).versus_gaussian == "lighter"
    assert gpd(uniform).xi_low == -math.inf


# -- invariances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("scale", [1e-30, 0.3, 2.0**100])
def test_estimate_does_not_depend_on_the_scale(estimator, scale):
    x = student(5000)
    first, second = estimator(x), estimator(-scale * x)
    assert second.xi == pytest.approx(first.xi, rel=1e-9)
    assert (second.xi_low, second.xi_high) == pytest.approx((first.xi_low, first.xi_high), rel=1e-8)
    assert second.threshold == pytest.approx(scale * first.threshold)


def test_gpd_does_not_depend_on_a_shift_of_the_data():
    magnitudes = student(5000).abs()
    assert gpd(magnitudes + 100).xi == pytest.approx(gpd(magnitudes).xi, abs=1e-8)


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
def test_the_estimate_accepts_any_shape_and_layout_and_tensors_that_require_grad(estimator):
    x = student(6000)
    laid_out = x.reshape(20, 30, 10).permute(2, 0, 1).requires_grad_()
    assert estimator(laid_out).xi == estimator(x).xi


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_the_data_changes_the_estimate_by_less_than_its_standard_error(estimator, dtype):
    moved, standard_errors = [], []
    for tail in largest("gaussian", 1_000_000, 400, samples=30):
        rounded = Tail(tail.values.to(dtype), tail.n)
        exact = estimator(tail, 100)
        moved.append(estimator(rounded, 100).xi - exact.xi)
        standard_errors.append((exact.xi_high - exact.xi_low) / 4)
    assert abs(np.mean(moved)) < 0.15 * np.mean(standard_errors)
    assert np.std(moved) < 0.4 * np.mean(standard_errors)


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
def test_a_tail_merged_from_parts_equals_that_of_all_data(estimator):
    x = student(10_000)
    parts = x.split([7000, 50, 2950])  # one of them shorter than what is kept
    merged = Tail.of(parts[0], 201)
    for part in parts[1:]:
        merged = merged.merge(Tail.of(part, 201))
    assert merged.n == 10_000
    assert torch.equal(merged.values, Tail.of(x, 201).values)
    assert estimator(merged, 200) == estimator(x, 200)


# -- choosing k ------------------------------------------------------------------------------------


def test_fraction_sets_k_to_that_share_of_the_sample():
    estimate = hill(student(5000), fraction=0.29)
    assert (estimate.k, estimate.n, estimate.k_from) == (1450, 5000, "fraction")


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
def test_distance_is_the_kolmogorov_smirnov_statistic_of_scipy(estimator):
    for seed in range(8):  # the largest gap lies above a step in some, below in others
        estimate = estimator(student(5000, seed), 200)
        law = scipy_stats.genpareto(estimate.xi, loc=estimate.threshold, scale=estimate.scale)
        values = estimate.tail.values[:200].numpy()
        assert estimate.distance == pytest.approx(scipy_stats.kstest(values, law.cdf).statistic, abs=1e-6)


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
def test_ks_choice_is_the_k_of_least_distance(estimator):
    x = student(2000)
    chosen = estimator(x, "ks")
    assert chosen.k_from == "ks"
    assert "chosen on these data" in repr(chosen)
    every = [estimator(x, k).distance for k in range(25, 201)]
    assert chosen.distance <= 1.1 * min(every)


def test_ks_choice_finds_where_a_pareto_tail_begins():
    generator = np.random.default_rng(0)
    body, tail = generator.uniform(0, 1, 95_000), generator.pareto(2, 5_000) + 1
    estimate = hill(torch.from_numpy(np.concatenate([body, tail])), "ks")
    assert 2500 < estimate.k < 5500
    assert estimate.alpha == pytest.approx(2, abs=0.15)


@pytest.mark.parametrize("method", METHODS)
def test_curve_is_the_estimate_at_each_k(method):
    estimate = METHODS[method](student(5000), 100)
    curve = estimate.curve([50, 100, 300])
    for index, k in enumerate([50, 100, 300]):
        single = METHODS[method](student(5000), k)
        assert curve.xi[index].item() == pytest.approx(single.xi, rel=1e-12)
        assert curve.xi_low[index].item() == pytest.approx(single.xi_low, rel=1e-9)
        assert curve.xi_high[index].item() == pytest.approx(single.xi_high, rel=1e-9)
        assert curve.gaussian_xi[index].item() == single.gaussian.xi
    complete = estimate.curve()
    assert complete.k[-1] == 399
    assert complete.xi.isfinite().all()


def test_curve_is_nan_where_there_is_no_estimate():
    clipped = student(5000).clamp(-4, 4)  # a few dozen values tied at the top
    assert hill(clipped, 500).curve([5, 500]).xi.isnan().tolist() == [True, False]


def test_k_is_100_by_default_and_ks_tries_from_25_to_a_tenth():
    assert (hill(student(1000)).k, hill(student(1000)).k_from) == (100, "given")
    assert hill(student(260), "ks").k in (25, 26)
    with pytest.raises(ValueError, match="at least 25 values above a threshold, got 24"):
        hill(student(249), "ks")


def test_repr_shows_the_numbers_to_four_digits():
    estimate = hill(student(1000), 50)
    shown = repr(estimate)
    for value in (estimate.alpha, estimate.alpha_low, estimate.xi, estimate.xi_high, estimate.threshold):
        assert f" {value:.4g}" in shown or f"[{value:.4g}" in shown
    assert "k = 50 of n = 1000" in shown
    assert f"alpha = {estimate.gaussian.alpha:.4g}" in repr(estimate.gaussian)
    assert estimate.versus_gaussian in shown
    assert repr(Tail.of(torch.tensor([1.23456, -2.0, 0.5]), 2)) == "Tail(largest 2 of n = 3, 2 to 1.235)"


# -- what cannot be estimated ----------------------------------------------------------------------


@pytest.mark.parametrize("estimator", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((1000,), 0.5), "equal up to rounding"),
        (torch.zeros(1000), "equal up to rounding"),
        (0.5 + 1e-8 * torch.rand(1000), "equal up to rounding"),
        (torch.cat([torch.randn(1000), torch.tensor([math.nan])]), "finite values, got 1 NaN or inf"),
        (torch.cat([torch.randn(1000), torch.tensor([-math.inf, math.inf])]), "got 2 NaN or inf"),
        (torch.randn(100), "needs k from .* to n - 1 = 99, got k = 100"),
        (torch.empty(0), "1 to n = 0 values"),
    ],
    ids=["constant", "zeros", "rounding noise", "nan", "inf", "too few", "empty"],
)
def test_data_without_a_tail_raise_with_the_reason(estimator, x, message):
    with pytest.raises(ValueError, match=message):
        estimator(x)


def test_nearly_constant_data_give_a_warning():
    x = 0.5 + 1e-4 * torch.rand(1000, generator=torch.Generator().manual_seed(0))
    with pytest.warns(TailWarning, match="no power tail"):
        estimate = hill(x)
    assert estimate.alpha > 10_000
    assert estimate.versus_gaussian == "lighter"


@pytest.mark.parametrize("estimator", [hill, moment])
def test_threshold_of_zero_raises(estimator):
    sparse = torch.zeros(1000)
    sparse[:60] = torch.arange(1.0, 61)
    with pytest.raises(ValueError, match="only 60 values are not zero"):
        estimator(sparse)


def test_gpd_leaves_out_values_equal_to_the_threshold():
    values = torch.cat([torch.arange(2.0, 62), torch.ones(940)])
    assert gpd(values, 100).k == 60
    with pytest.raises(ValueError, match="strictly above the threshold, got 20: 80 more"):
        gpd(torch.cat([torch.arange(2.0, 22), torch.ones(980)]), 100)


def test_moment_raises_if_all_values_above_the_threshold_are_equal():
    with pytest.raises(ValueError, match="all 50 above the threshold equal"):
        moment(torch.cat([torch.full((50,), 2.0), torch.ones(50)]), 50)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"k": 10, "fraction": 0.1}, ValueError, "not both"),
        ({"k": "kss"}, ValueError, "'ks', got 'kss'"),
        ({"k": 10.5}, TypeError, r"integer or 'ks', got 10\.5"),
        ({"k": 0}, ValueError, "got k = 0"),
        ({"fraction": 1.5}, ValueError, r"between 0 and 1, got 1\.5"),
        ({"fraction": 1e-6}, ValueError, "got k = 0"),
    ],
)
def test_errors_name_the_invalid_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        hill(student(1000), **arguments)


def test_errors_name_what_is_wrong_with_a_tail():
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        hill(torch.arange(1000))
    with pytest.raises(ValueError, match="descending"):
        Tail(torch.tensor([1.0, 2.0]), 10)
    with pytest.raises(ValueError, match="1 to n = 1 values"):
        Tail(torch.tensor([2.0, 1.0]), 1)
    with pytest.raises(ValueError, match="needs the 101 largest values, got the 50 largest of 1000"):
        hill(Tail.of(student(1000), 50), 100)
    with pytest.raises(ValueError, match="method must be one of 'hill', 'moment', 'gpd', got 'hil'"):
        tails.gaussian_index("hil", 1000, 100)


# -- compared with other packages --------------------------------------------------------------------


def test_hill_and_moment_equal_tailestim():
    tailestim = pytest.importorskip("tailestim", reason="tailestim is not installed")
    x = student(2000).abs()
    for estimator, other in ((hill, tailestim.HillEstimator), (moment, tailestim.MomentsEstimator)):
        theirs = other(bootstrap=False)
        theirs.fit(x.numpy())
        result = theirs.get_result()
        for k, xi in list(zip(result.k_arr_, result.xi_arr_, strict=True))[20:400:60]:
            assert estimator(x, int(k)).xi == pytest.approx(xi, rel=1e-8)


def test_hill_equals_powerlaw_up_to_its_count_of_the_threshold():
    powerlaw = pytest.importorskip("powerlaw", reason="powerlaw is not installed")
    estimate = hill(student(2000), 200)
    theirs = powerlaw.Fit(
        student(2000).abs().numpy(), xmin=estimate.threshold, parameter_ranges={"alpha": [1, 50]}, verbose=0
    )
    assert (theirs.power_law.alpha - 1) * 200 / 201 == pytest.approx(estimate.alpha, rel=1e-6)
