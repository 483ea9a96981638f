"""The functions: identities, derivatives, in-place calls, layouts and the arguments that they accept."""

import math

import mpmath
import pytest
import torch
from scipy import integrate, optimize, special, stats
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import iglu
from iglu import functional

FAMILIES = ("none", "rational")
X = torch.linspace(-20, 20, 4001, dtype=torch.float64)

both = pytest.mark.parametrize("approximate", FAMILIES)


# -- identities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 1.0, 7.0])
def test_gate_is_the_cauchy_distribution_function(sigma):
    expected = stats.cauchy.cdf(X.numpy(), scale=1 / sigma)
    torch.testing.assert_close(iglu.iglu_gate(X, sigma), torch.from_numpy(expected), rtol=1e-13, atol=0)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 7.0])
def test_derivative_is_the_distribution_function_of_student_t_with_3_degrees_of_freedom(sigma):
    derivative = torch.func.vmap(torch.func.grad(lambda x: iglu.iglu(x, sigma)))(X)
    expected = stats.t.cdf(math.sqrt(3) * sigma * X.numpy(), df=3)
    torch.testing.assert_close(derivative, torch.from_numpy(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("x", [-3.0, -0.7, 0.4, 2.5])
def test_iglu_is_the_half_normal_mixture_of_scaled_gelus(x, sigma):
    def weighted(a):
        density = 2 / (sigma * math.sqrt(2 * math.pi)) * math.exp(-(a**2) / (2 * sigma**2))
        return x * special.ndtr(a * x) * density

    mixture, _ = integrate.quad(weighted, 0, 40 * sigma, epsabs=1e-13, epsrel=1e-13, limit=500)
    assert iglu.iglu(torch.tensor(x, dtype=torch.float64), sigma).item() == pytest.approx(mixture, abs=1e-10)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@both
def test_difference_of_mirrored_values_is_x(approximate, sigma):
    difference = iglu.iglu(X, sigma, approximate=approximate) - iglu.iglu(-X, sigma, approximate=approximate)
    torch.testing.assert_close(difference, X, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_sum_of_mirrored_values_is_the_even_part(sigma):
    total = iglu.iglu(X, sigma) + iglu.iglu(-X, sigma)
    torch.testing.assert_close(total, 2 * X * torch.atan(sigma * X) / math.pi, rtol=1e-12, atol=1e-14)


@both
def test_iglu_is_strictly_increasing_convex_and_1_lipschitz(approximate):
    y = iglu.iglu(X, 1.3, approximate=approximate)
    steps = y.diff() / X.diff()
    assert (steps > 0).all()
    assert (steps < 1).all()
    assert (steps.diff() > 0).all()


@both
def test_sigma_zero_is_half_of_x_and_sigma_infinite_is_relu(approximate):
    x = torch.tensor([-math.inf, -3.0, -0.0, 0.0, 2.5, math.inf], requires_grad=True)
    half = iglu.iglu(x, 0, approximate=approximate)
    assert torch.equal(half, x / 2)
    rectified = iglu.iglu(x, math.inf, approximate=approximate)
    assert torch.equal(rectified, F.relu(x))
    (derivative,) = torch.autograd.grad(rectified.sum(), x)
    assert derivative.tolist() == [0, 0, 0, 0, 1, 1]


def test_the_gate_at_the_limits_is_a_half_and_a_step_with_a_derivative_of_zero():
    for sigma, expected in ((0, [0.5, 0.5, 0.5]), (math.inf, [0.0, 0.5, 1.0])):
        x = torch.tensor([-2.0, 0.0, 3.0], requires_grad=True)
        gate = iglu.iglu_gate(x, sigma)
        assert gate.tolist() == expected
        (derivative,) = torch.autograd.grad(gate.sum(), x)
        assert derivative.tolist() == [0, 0, 0]
        assert iglu.iglu_gate(torch.tensor(math.nan), sigma).isnan()


def test_scaled_gelu_at_zero_sharpness_halves_the_infinities():
    x = torch.tensor([-math.inf, -1.0, math.inf])
    assert iglu.gelu_scaled(x, 0).tolist() == [-math.inf, -0.5, math.inf]


@both
def test_iglu_tends_to_half_of_x_and_to_relu_at_the_limits_of_sigma(approximate):
    torch.testing.assert_close(iglu.iglu(X, 1e-9, approximate=approximate), X / 2, rtol=0, atol=1e-6)
    torch.testing.assert_close(iglu.iglu(X, 1e9, approximate=approximate), F.relu(X), rtol=0, atol=1e-8)


@both
def test_a_sigma_too_large_for_the_precision_gives_relu(approximate):
    x = torch.tensor([-1e-30, 0.0, 1e-30])
    assert torch.equal(iglu.iglu(x, 1e300, approximate=approximate), F.relu(x))


@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_floors_are_one_over_pi_sigma_and_one_over_two_sigma(sigma):
    x = torch.tensor(-1e12, dtype=torch.float64)
    assert iglu.iglu(x, sigma).item() == pytest.approx(-1 / (math.pi * sigma), rel=1e-11)
    assert iglu.iglu(x, sigma, approximate="rational").item() == pytest.approx(-1 / (2 * sigma), rel=1e-11)


@pytest.mark.parametrize("place", [0.313436, 3.190440])
def test_the_gates_differ_by_at_most_0_0226365(place):
    def difference(u):
        u = torch.tensor(u, dtype=torch.float64)
        return -abs((iglu.iglu_gate(u) - iglu.iglu_gate(u, approximate="rational")).item())

    found = optimize.minimize_scalar(difference, bounds=(place - 0.3, place + 0.3), method="bounded",
                                     options={"xatol": 1e-10})  # fmt: skip
    assert found.x == pytest.approx(place, abs=1e-5)
    assert -found.fun == pytest.approx(0.0226365, abs=1e-7)
    assert (iglu.iglu_gate(X) - iglu.iglu_gate(X, approximate="rational")).abs().max() <= 0.0226366


@pytest.mark.parametrize("sigma", [0.5, 3.0])
def test_the_activations_tend_to_a_difference_of_0_18169_over_sigma(sigma):
    far = torch.tensor([-1e6, 1e6], dtype=torch.float64)
    difference = iglu.iglu(far, sigma) - iglu.iglu(far, sigma, approximate="rational")
    assert difference.tolist() == pytest.approx([0.18169 / sigma] * 2, rel=1e-4)


@pytest.mark.parametrize("a", [0.0, 0.5, 1.0, 3.0])
def test_scaled_gelu_is_x_times_the_normal_distribution_function(a):
    expected = torch.from_numpy(X.numpy() * special.ndtr(a * X.numpy()))
    torch.testing.assert_close(iglu.gelu_scaled(X, a), expected, rtol=1e-13, atol=1e-300)


@pytest.mark.parametrize("a", [0.0, math.inf])
def test_scaled_gelu_with_a_tensor_equals_that_with_a_number_at_the_limits(a):
    # like torch's GELU, it is NaN at -inf unless sigma is 0
    x = torch.tensor([-3.4e38 if a else -math.inf, -3.0, -0.0, 0.0, 0.1, math.inf], requires_grad=True)
    by_tensor, by_number = iglu.gelu_scaled(x, torch.tensor([a])), iglu.gelu_scaled(x, a)
    assert by_tensor.tolist() == by_number.tolist()
    (df_dx,) = torch.autograd.grad(by_tensor[1:5].sum(), x)
    assert df_dx[1:5].tolist() == ([0, 0.5, 0.5, 1] if a else [0.5] * 4)


def test_scaled_gelu_is_relu_in_the_limit_and_accepts_a_tensor():
    assert torch.equal(iglu.gelu_scaled(X, math.inf), F.relu(X))
    a = torch.tensor(1.0, dtype=torch.float64)
    torch.testing.assert_close(iglu.gelu_scaled(X, a), F.gelu(X), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 30.0, 1e5])
@both
def test_gain_keeps_the_second_moment_of_a_standard_normal(approximate, sigma):
    def square(x):
        return iglu.iglu(torch.tensor(x, dtype=torch.float64), sigma, approximate=approximate).item() ** 2

    moment = sum(
        integrate.quad(lambda x: square(x) * stats.norm.pdf(x), a, b, epsabs=1e-12, limit=400)[0]
        for a, b in ((-40, -1 / sigma), (-1 / sigma, 0), (0, 1 / sigma), (1 / sigma, 40))
    )
    assert iglu.gain(sigma, approximate) == pytest.approx(moment**-0.5, rel=1e-8)


def test_gain_at_the_limits_of_sigma_is_that_of_half_of_x_and_of_relu():
    assert iglu.gain(0) == pytest.approx(2, rel=1e-12)
    assert iglu.gain(math.inf) == pytest.approx(torch.nn.init.calculate_gain("relu"))


@pytest.mark.parametrize("sigma", [0.0, 1e-3, 1.0, 5.0, 1e4])
@both
def test_gain_is_accurate_to_1e_12(approximate, sigma):
    def integrand(x):
        u = sigma * x
        tail = mpmath.atan2(1, u) / mpmath.pi if approximate == "none" else 1 / (2 * (1 + u))
        return x**2 * ((1 - tail) ** 2 + tail**2) * mpmath.npdf(x)

    with mpmath.workdps(25):
        moment = mpmath.quad(integrand, [0, 1e-6, 1e-4, 1e-2, 0.1, 1, 3, 10, 20])
        assert iglu.gain(sigma, approximate) == pytest.approx(float(1 / mpmath.sqrt(moment)), rel=1e-12)


@pytest.mark.parametrize("context", [lambda: torch.device("meta"), FakeTensorMode])
def test_gain_does_not_depend_on_the_default_device_or_on_fake_tensors(context):
    with context():
        inside = iglu.gain(5.0)
    assert inside == iglu.gain(5.0)


# -- sigma as a tensor ------------------------------------------------------------------------------


@both
def test_negative_sigma_is_the_analytic_continuation(approximate):
    sigma = torch.tensor(0.8, dtype=torch.float64)
    continued = iglu.iglu(X, -sigma, approximate=approximate)
    torch.testing.assert_close(
        continued, X - iglu.iglu(X, sigma, approximate=approximate), rtol=1e-12, atol=1e-13
    )


@both
def test_values_and_sigma_gradients_at_a_sigma_of_zero_are_the_closed_forms(approximate):
    x = torch.tensor([-2.0, -0.5, 0.0, 1.5], dtype=torch.float64)
    sigma = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    y = iglu.iglu(x[None], sigma, approximate=approximate)
    assert torch.equal(y[0], x / 2)
    (grad_sigma,) = torch.autograd.grad(y.sum(), sigma)
    torch.testing.assert_close(grad_sigma, x**2 / (math.pi if approximate == "none" else 2))


def test_a_sigma_of_zero_halves_infinite_inputs_and_keeps_nan():
    x = torch.tensor([-math.inf, math.inf, math.nan])
    for approximate in FAMILIES:
        y = iglu.iglu(x, torch.tensor(0.0), approximate=approximate)
        assert y[:2].tolist() == [-math.inf, math.inf]
        assert y[2].isnan()


@both
def test_each_channel_has_its_own_sigma(approximate):
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    for dim in (0, 1, 2, 3, -1, -2):
        sigma = torch.rand(x.shape[dim], dtype=torch.float64) + 0.1
        together = iglu.iglu(x, sigma, approximate=approximate, channel_dim=dim)
        for index, value in enumerate(sigma.tolist()):
            part = iglu.iglu(x.select(dim, index), value, approximate=approximate)
            torch.testing.assert_close(together.select(dim, index), part)


def test_a_sigma_with_one_value_fits_every_shape():
    for shape in ((), (3,), (2, 3)):
        x = torch.randn(shape)
        y = iglu.iglu(x, torch.tensor([0.7]))
        assert y.shape == x.shape
        torch.testing.assert_close(y, iglu.iglu(x, 0.7))


def test_half_precision_activations_stay_half_with_a_float32_sigma():
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.randn(8, dtype=dtype, requires_grad=True)
        sigma = torch.tensor([1.0], requires_grad=True)
        y = iglu.iglu(x, sigma)
        assert y.dtype == dtype
        y.sum().backward()
        assert x.grad.dtype == dtype
        assert sigma.grad.dtype == torch.float32


# -- the gated pair ---------------------------------------------------------------------------------


@both
def test_the_gated_pair_is_the_product(approximate):
    gate, up = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True).unbind()
    expected = iglu.iglu(gate, 0.6, approximate=approximate) * up
    torch.testing.assert_close(iglu.iglu_glu(gate, up, 0.6, approximate=approximate), expected)
    for limit in (0.0, math.inf):
        expected = iglu.iglu(gate, limit, approximate=approximate) * up
        torch.testing.assert_close(iglu.iglu_glu(gate, up, limit, approximate=approximate), expected)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gated_pair_rounds_once(dtype, approximate):
    gate, up = (torch.randn(2, 10_000) * 3).to(dtype)
    result = iglu.iglu_glu(gate, up, 0.7, approximate=approximate).double()
    expected = iglu.iglu(gate.double(), 0.7, approximate=approximate) * up.double()
    kind = torch.finfo(dtype)
    spacing = kind.eps * (2 ** expected.abs().log2().floor()).clamp(min=kind.smallest_normal)
    assert ((result - expected).abs() <= (0.51 if dtype != torch.float32 else 5) * spacing).all()


# -- derivatives ------------------------------------------------------------------------------------


def _functions(approximate):
    sigma = torch.tensor([0.7, 1.4, 0.2], dtype=torch.float64, requires_grad=True)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    up = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    return [
        (lambda x, s: iglu.iglu(x, s, approximate=approximate), (x, sigma)),
        (lambda x: iglu.iglu(x, 0.7, approximate=approximate), (x,)),
        (lambda x, s: iglu.iglu_gate(x, s, approximate=approximate), (x, sigma)),
        (lambda g, u, s: iglu.iglu_glu(g, u, s, approximate=approximate), (x, up, sigma)),
    ]


@both
@pytest.mark.parametrize("which", range(4))
def test_first_and_second_derivatives_are_those_of_finite_differences_in_both_modes(approximate, which):
    torch.manual_seed(0)
    function, inputs = _functions(approximate)[which]
    assert torch.autograd.gradcheck(
        function, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True)


@both
def test_the_second_derivative_at_zero_is_the_closed_form(approximate):
    second_derivative = torch.func.grad(torch.func.grad(lambda x: iglu.iglu(x, 2.0, approximate=approximate)))
    expected = 4 / math.pi if approximate == "none" else 2.0
    assert second_derivative(torch.tensor(0.0)).item() == pytest.approx(expected, rel=1e-6)


@both
def test_the_hessian_agrees_in_every_order_of_modes(approximate):
    x = torch.randn(5, dtype=torch.float64)

    def loss(x, s):
        return iglu.iglu(x, s, approximate=approximate).pow(2).sum()

    s = torch.tensor(0.9, dtype=torch.float64)
    reference = torch.autograd.functional.hessian(loss, (x, s))
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            hessian = outer(inner(loss, argnums=(0, 1)), argnums=(0, 1))(x, s)
            for row, expected_row in zip(hessian, reference, strict=True):
                for block, expected in zip(row, expected_row, strict=True):
                    torch.testing.assert_close(block, expected)


@both
def test_third_derivatives_are_finite(approximate):
    third = torch.func.grad(
        torch.func.grad(torch.func.grad(lambda x: iglu.iglu(x, 1.0, approximate=approximate)))
    )
    values = torch.func.vmap(third)(torch.tensor([-1e20, -3.0, 0.0, 2.0, 1e20]))
    assert values.isfinite().all()
    assert third(torch.tensor(0.5)).item() < 0 < third(torch.tensor(-0.5)).item()


def _derivatives(function, x, count):
    """The first derivatives of an elementwise function, one after the other."""
    leaf = x.clone().requires_grad_()
    y, found = function(leaf), []
    for _ in range(count):
        (y,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        found.append(y.detach())
    return torch.stack(found)


@pytest.mark.parametrize("sigma", [2.0, torch.tensor(2.0).double(), torch.tensor([-2.0]).double()])
def test_derivatives_up_to_the_fifth_are_those_of_the_textbook_formula_also_at_zero(sigma):
    x = torch.tensor([-1.0, -0.0, 0.0, 0.5], dtype=torch.float64)

    def gate(x):
        return 0.5 + torch.atan(x * sigma) / math.pi

    cases = (
        (lambda x: iglu.iglu(x, sigma), lambda x: x * gate(x)),
        (lambda x: iglu.iglu_gate(x, sigma), gate),
        (lambda x: iglu.iglu_glu(x, 3 * torch.ones_like(x), sigma), lambda x: 3 * x * gate(x)),
    )
    for function, textbook in cases:
        torch.testing.assert_close(_derivatives(function, x, 5), _derivatives(textbook, x, 5))


def test_mixed_derivatives_at_zero_sigma_are_those_of_the_textbook_formula():
    x = torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)

    def gate(x, sigma):
        return 0.5 + torch.atan(x * sigma) / math.pi

    for function, textbook in ((iglu.iglu, lambda x, sigma: x * gate(x, sigma)), (iglu.iglu_gate, gate)):
        third = []
        for each in (function, textbook):
            sigma = torch.zeros((), dtype=torch.float64, requires_grad=True)
            first = torch.func.vmap(torch.func.grad(each), in_dims=(0, None))
            (mixed,) = torch.autograd.grad(first(x, sigma).sum(), sigma, create_graph=True)
            third.append((mixed, *torch.autograd.grad(mixed, sigma, allow_unused=True)))
        torch.testing.assert_close(*third)


def test_second_and_third_derivatives_at_infinity_and_zero_sigma_are_not_nan():
    x = torch.tensor([-math.inf, -3.0, 0.0, 3.0, math.inf])
    for function in (iglu.iglu, iglu.iglu_gate):
        found = _derivatives(lambda x, f=function: f(x, torch.zeros(1)), x, 3)
        assert found[1:].tolist() == [[0] * 5] * 2


@both
def test_vmap_over_x_and_over_sigma(approximate):
    x, sigma = torch.randn(4, 6), torch.rand(4) + 0.2
    batched = torch.func.vmap(lambda x, s: iglu.iglu(x, s, approximate=approximate))(x, sigma)
    torch.testing.assert_close(batched, iglu.iglu(x, sigma, approximate=approximate, channel_dim=0))


def test_only_the_inputs_are_saved_for_backward():
    saved = []
    x = torch.randn(100, requires_grad=True)
    up = torch.randn(100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        iglu.iglu(x, 0.5)
        assert [t.data_ptr() for t in saved] == [x.data_ptr()]
        saved.clear()
        iglu.iglu_glu(x, up, 0.5)
        assert {t.data_ptr() for t in saved} == {x.data_ptr(), up.data_ptr()}


# -- in place ---------------------------------------------------------------------------------------


@both
def test_in_place_overwrites_the_input_and_gives_the_same_gradient(approximate):
    x = torch.randn(50, requires_grad=True)
    before = x * 1.0
    after = iglu.iglu(before, 0.7, approximate=approximate, inplace=True)
    assert after is before
    torch.testing.assert_close(after, iglu.iglu(x, 0.7, approximate=approximate))
    (got,) = torch.autograd.grad(after.sum(), x)
    (expected,) = torch.autograd.grad(iglu.iglu(x, 0.7, approximate=approximate).sum(), x)
    torch.testing.assert_close(got, expected)


def test_in_place_on_a_leaf_that_requires_grad_raises_as_in_torch():
    with pytest.raises(RuntimeError, match="leaf Variable"):
        iglu.iglu(torch.randn(3, requires_grad=True), inplace=True)


def test_in_place_without_gradients_writes_into_the_same_memory():
    x = torch.randn(5)
    expected = iglu.iglu(x, 2.0)
    address = x.data_ptr()
    assert iglu.iglu(x, 2.0, inplace=True).data_ptr() == address
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("sigma", [0.7, torch.tensor(0.7), torch.tensor(-0.7), torch.tensor([0.3, 0.9, 2.0])])
def test_saving_the_output_gives_the_gradients_of_saving_the_input(sigma, inplace):
    x = torch.cat([torch.randn(40, 3) * 3, torch.zeros(1, 3)]).requires_grad_()
    grad = torch.randn(41, 3)
    results = []
    for options in ({}, {"save": "output", "inplace": inplace}):
        leaves = [x]
        if isinstance(sigma, torch.Tensor):
            leaves.append(sigma.clone().requires_grad_())
        scale = leaves[-1] if len(leaves) > 1 else sigma
        y = iglu.iglu(x * 1.0, scale, approximate="rational", **options)
        results.append((y, *torch.autograd.grad(y, leaves, grad)))
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("options", [{"save": "output"}, {"inplace": True}])
def test_the_rational_form_can_save_only_its_output(options):
    saved = []
    x = torch.randn(100, requires_grad=True) * 1.0
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = iglu.iglu(x, 0.5, approximate="rational", **options)
    assert saved == [y.data_ptr()]
    assert (y.data_ptr() == x.data_ptr()) == ("inplace" in options)


def test_double_backward_from_the_output_is_that_of_finite_differences():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    for inplace in (False, True):
        assert torch.autograd.gradgradcheck(
            lambda x, s, i=inplace: iglu.iglu(x * 1.0, s, approximate="rational", save="output", inplace=i),
            (x, sigma),
        )


def _second_derivatives(x, sigma, **options):
    """Differentiate the value by x and by sigma, then each of the two by x and by sigma."""
    leaf, scale = x.clone().requires_grad_(), sigma.clone().requires_grad_()
    y = iglu.iglu(leaf * 1, scale, approximate="rational", channel_dim=-1, **options)
    firsts = torch.autograd.grad(y.sum(), (leaf, scale), create_graph=True)
    return [
        each
        for first in firsts
        for each in torch.autograd.grad(first.sum(), (leaf, scale), retain_graph=True)
    ]


@pytest.mark.parametrize("options", [{"save": "output"}, {"inplace": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_second_derivatives_from_the_output_are_those_from_the_input(dtype, options):
    sigma = torch.tensor([3.0, -3.0, 0.0, 1e-6, 0.7], dtype=dtype)
    x = torch.tensor([-4.0, -1e-3, -0.0, 0.0, 1e-3, 0.5, 30.0, 1e10, 1e25, math.inf], dtype=dtype)
    for each in x:  # alone, since the gradients of sigma are sums
        row = each.expand(1, 5) * sigma.sign().where(each.abs() > 100, 1)  # far out only where u > 0
        row = row.nan_to_num(0.0, math.inf, -math.inf)
        expected = _second_derivatives(row, sigma)
        for got, wanted in zip(_second_derivatives(row, sigma, **options), expected, strict=True):
            # from the input, x f'' is inf times 0 at infinity; its limit is 0
            torch.testing.assert_close(got, wanted.nan_to_num(0.0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("options", [{"save": "output"}, {"inplace": True}])
def test_second_derivatives_from_the_output_are_the_closed_forms_at_zero_and_the_infinities(options):
    x = torch.tensor([-math.inf, -0.0, 0.0, 1e30, math.inf], requires_grad=True)
    (derivative,) = torch.autograd.grad(
        iglu.iglu(x * 1, 3.0, approximate="rational", **options).sum(), x, create_graph=True
    )
    (second_derivative,) = torch.autograd.grad(derivative.sum(), x)
    assert second_derivative.tolist() == [0, 3, 3, 0, 0]  # sigma/(1 + |sigma x|)^3


def test_the_third_derivative_from_the_output_is_that_of_the_right_side_at_zero():
    x = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    third = _derivatives(lambda x: iglu.iglu(x * 1, 3.0, approximate="rational", save="output"), x, 3)[2]
    sign = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(third, -3 * sign * 9 / (1 + 3 * x.abs()) ** 4)


def test_a_gradient_penalty_trains_a_sigma_of_zero_whose_output_is_saved():
    module = iglu.IGLU(0.0, learnable=True, constrain=False, approximate="rational", save="output")
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    (derivative,) = torch.autograd.grad(module(x * 1).sum(), x, create_graph=True)
    derivative.square().sum().backward()
    # f' = 1/2 + sigma x + ..., so the derivative of the sum of f'^2 is the sum of x
    assert module.free_sigma.grad.tolist() == pytest.approx([1.5])


def test_batched_second_derivatives_from_the_output_are_those_from_the_input():
    x = torch.tensor([-2.0, 0.0, 0.5], dtype=torch.float64)
    sigma = torch.tensor([0.7, 2.0, -1.0], dtype=torch.float64)
    found = [
        torch.autograd.functional.hessian(
            lambda x, s, save=save: iglu.iglu(x, s, approximate="rational", save=save).pow(2).sum(),
            (x, sigma), vectorize=True,
        )
        for save in ("input", "output")
    ]  # fmt: skip
    torch.testing.assert_close(*found)


def test_overwriting_a_saved_output_raises():
    x = torch.randn(5, requires_grad=True) * 1.0
    y = iglu.iglu(x, approximate="rational", inplace=True)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_exact_output_has_lost_too_much_of_its_input_to_be_saved():
    def value(x):
        return iglu.iglu(torch.tensor(x, dtype=torch.float64), 1.0).item()

    errors = []
    for x in torch.linspace(-900, -1100, 41).tolist():
        y = torch.tensor(value(x), dtype=torch.float32).item()
        found = optimize.brentq(lambda v, y=y: value(v) - y, -1e9, -1)
        derivative, expected = stats.t.cdf([math.sqrt(3) * found, math.sqrt(3) * x], df=3)
        errors.append(abs(derivative / expected - 1))
    assert max(errors) == pytest.approx(0.26, abs=0.02)


def test_saving_the_output_of_the_exact_form_raises():
    with pytest.raises(ValueError, match="needs approximate='rational'"):
        iglu.iglu(torch.randn(3), save="output")


# -- layouts ----------------------------------------------------------------------------------------

LAYOUTS = {
    "contiguous": lambda: torch.randn(2, 4, 6, 5),
    "channels_last": lambda: torch.randn(2, 4, 6, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": lambda: torch.randn(2, 4, 3, 6, 5).to(memory_format=torch.channels_last_3d),
    "transposed": lambda: torch.randn(6, 4).t(),
    "sliced": lambda: torch.randn(4, 6, 10)[:, ::2, 1:],
    "expanded": lambda: torch.randn(4, 1).expand(4, 7),
    "offset": lambda: torch.randn(101)[1:],
    "scalar": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 4),
    "one": lambda: torch.randn(1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@both
def test_the_output_has_the_strides_of_torchs_gelu_and_the_gradient_does_not_depend_on_the_layout(
    approximate, layout
):
    x = LAYOUTS[layout]().requires_grad_()
    y = iglu.iglu(x, 0.7, approximate=approximate)
    like = F.gelu(x)
    assert y.shape == like.shape
    assert y.stride() == like.stride()
    reference = iglu.iglu(x.detach().double(), 0.7, approximate=approximate)
    torch.testing.assert_close(y.double(), reference, rtol=1e-6, atol=1e-7)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(
        grad,
        torch.autograd.grad(iglu.iglu(x.contiguous(), 0.7, approximate=approximate), x, torch.ones_like(x))[
            0
        ],
    )
    if x.dim() > 1:
        sigma = torch.rand(x.shape[1]) + 0.5
        assert iglu.iglu(x, sigma, approximate=approximate, channel_dim=1).stride() == like.stride()


FUNCTIONS = {
    "iglu": lambda x, s: iglu.iglu(x, s),
    "rational": lambda x, s: iglu.iglu(x, s, approximate="rational"),
    "output": lambda x, s: iglu.iglu(x, s, approximate="rational", save="output"),
    "gate": lambda x, s: iglu.iglu_gate(x, s),
    "pair": lambda x, s: iglu.iglu_glu(x, x, s),
    "packed": lambda x, s: iglu.iglu_glu(torch.cat([x, x], -1) if x.dim() else x.repeat(2), None, s),
    "scaled gelu": lambda x, s: iglu.gelu_scaled(x, s),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_function_behaves_like_an_operator_of_torch(name, layout, dtype):
    """Fake tensors predict results and gradients; arguments are not changed and share no memory with them."""
    x = LAYOUTS[layout]().to(dtype)
    sigma = torch.tensor([0.7], dtype=dtype)
    before = x.clone(), sigma.clone()

    def everything(x, sigma):
        leaf, scale = x.detach().requires_grad_(), sigma.detach().requires_grad_()
        y = FUNCTIONS[name](leaf, scale)
        return y, *torch.autograd.grad(y, (leaf, scale), torch.ones_like(y))

    found = everything(x, sigma)
    assert torch.equal(x, before[0])
    assert torch.equal(sigma, before[1])
    assert not {each.untyped_storage().data_ptr() for each in found if each.numel()} & {
        x.untyped_storage().data_ptr()
    }
    with FakeTensorMode() as mode:
        fake = everything(mode.from_tensor(x), mode.from_tensor(sigma))
    for got, predicted in zip(found, fake, strict=True):
        assert (got.shape, got.dtype) == (predicted.shape, predicted.dtype)
    assert found[0].stride() == fake[0].stride()


# -- invalid input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: iglu.iglu(x, -1.0), ValueError, "sigma must be >= 0, got -1.0"),
        (lambda x: iglu.iglu(x, math.nan), ValueError, "sigma must be >= 0, got nan"),
        (lambda x: iglu.iglu(x, "1"), TypeError, "sigma must be a number >= 0 or a tensor, got '1'"),
        (lambda x: iglu.iglu(x, True), TypeError, "sigma must be a number >= 0 or a tensor, got True"),
        (lambda x: iglu.iglu(x.long()), TypeError, "got torch.int64"),
        (lambda x: iglu.iglu(x.to(torch.complex64)), TypeError, "got torch.complex64"),
        (lambda x: iglu.iglu([1.0]), TypeError, "x must be a tensor, got list"),
        (
            lambda x: iglu.iglu(x, torch.ones(5)),
            ValueError,
            r"one for each channel along dimension -1 of x of shape \(2, 3\), got 5",
        ),
        (lambda x: iglu.iglu(x, torch.ones(3, 1)), ValueError, r"one dimension, got shape \(3, 1\)"),
        (lambda x: iglu.iglu(x, torch.ones(3), channel_dim=4), ValueError, "from -2 to 1 .* got 4"),
        (lambda x: iglu.iglu(x, torch.ones(3), channel_dim="1"), TypeError, "an integer, got '1'"),
        (lambda x: iglu.iglu_gate(x, torch.ones(3), channel_dim=1.0), TypeError, "an integer, got 1.0"),
        (lambda x: iglu.iglu(x, torch.ones(3, dtype=torch.int64)), TypeError, "tensor of torch.int64"),
        (lambda x: iglu.iglu(x, approximate="tanh"), ValueError, "'none', 'rational', got 'tanh'"),
        (lambda x: iglu.iglu(x, approximate="rationale"), ValueError, "Did you mean 'rational'"),
        (lambda x: iglu.iglu(x, save="nothing"), ValueError, "'input', 'output', got 'nothing'"),
        (lambda x: iglu.iglu_glu(x, x[:, :2]), ValueError, r"gate's shape and dtype, \(2, 3\)"),
        (lambda x: iglu.iglu_glu(x, x.double()), ValueError, "got .* torch.float64"),
        (lambda x: iglu.iglu_glu([1.0]), TypeError, "gate must be a tensor, got list"),
        (
            lambda x: iglu.iglu_glu(x, 0.5),
            TypeError,
            "up must be a tensor or None, got 0.5; pass sigma as the third",
        ),
        (lambda x: iglu.iglu_glu(x[:, :1]), ValueError, r"must be even, got shape \(2, 1\)"),
        (lambda x: iglu.gelu_scaled(x, -2), ValueError, "a must be >= 0, got -2"),
        (lambda x: iglu.gain(-2), ValueError, "sigma must be >= 0, got -2"),
    ],
)
def test_invalid_input_raises_with_what_was_given_and_what_is_allowed(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.randn(2, 3))


def test_the_public_function_is_that_of_the_functional_module():
    assert functional.iglu is iglu.iglu
