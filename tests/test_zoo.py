"""One table of names, and a grammar that says what is wrong with a name."""

import math

import mpmath
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import iglu
from iglu import zoo
from iglu.modules import SigmaModule

import truth

PAPER = [
    "Z", "Z_approx", "IGLU", "IGLU-Approx", "ReLU", "GELU", "SiLU", "CELU", "ELU", "Hardshrink",
    "Hardsigmoid", "Hardswish", "HardTanh", "LeakyReLU", "Mish", "PReLU", "SELU", "Sigmoid",
    "Softplus", "Softshrink", "Squareplus", "Tanh", "Tanhshrink", "Identity",
]  # fmt: skip


def test_the_table_begins_with_the_papers_table_1():
    assert [row.label for row in zoo.ZOO.values()][: len(PAPER)] == PAPER


@pytest.mark.parametrize("name", zoo.ZOO)
def test_every_name_makes_a_module_that_runs_forward_and_backward(name):
    module = iglu.create(name)
    x = torch.randn(2, 5, requires_grad=True)
    y = module(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name, row in zoo.ZOO.items() if row.self_gated])
def test_self_gated_activations_vanish_at_zero(name):
    assert iglu.create(name)(torch.zeros(1)).item() == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iglu", iglu.IGLU(5.0)),
        ("iglu:0.5", iglu.IGLU(0.5)),
        ("iglu:0", iglu.IGLU(0)),
        ("iglu:1e-2", iglu.IGLU(0.01)),
        ("iglu_approx:inf", iglu.IGLU(torch.inf, approximate="rational")),
        ("iglu:learnable", iglu.IGLU(learnable=True)),
        ("iglu_approx:learnable=5", iglu.IGLU(5, learnable=True, approximate="rational")),
        ("z:2", iglu.IGLUGate(2)),
        ("relu", nn.ReLU()),
    ],
)
def test_a_name_creates_the_module_it_describes(text, expected):
    made = iglu.create(text)
    assert repr(made) == repr(expected)
    assert str(zoo.parse(str(zoo.parse(text)))) == str(zoo.parse(text))


def test_a_name_written_back_loses_no_digit():
    assert str(zoo.parse("iglu:0.123456789012")) == "iglu:0.123456789012"
    assert str(zoo.parse("iglu:learnable=3.0")) == "iglu:learnable=3"


def test_options_are_passed_to_the_module():
    assert iglu.create("relu", inplace=True).inplace
    assert iglu.create("iglu", sigma=0.5, learnable=True, channels=3, channel_dim=1).log_sigma.shape == (3,)


def test_labels_are_those_of_the_tables():
    assert zoo.parse("iglu:0.5").label == "IGLU (sigma = 0.5)"
    assert zoo.parse("iglu_approx:learnable=5").label == "IGLU-Approx (learnable sigma)"
    assert zoo.parse("gelu").label == "GELU"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("igul", "Unknown activation 'igul'. Did you mean 'iglu'?"),
        ("ilgu", "Did you mean 'iglu'?"),
        ("IGLU-Approx", "Did you mean 'iglu_approx'?"),
        ("qqqq", "Known: z, z_approx, iglu"),
        ("iglu:", "Malformed activation 'iglu:'"),
        ("iglu:x", "a number >= 0 or learnable"),
        ("iglu:-1", "got '-1'"),
        ("iglu:nan", "got 'nan'"),
        ("iglu:learnable=", "Malformed"),
        ("iglu:learnable=x", "got 'x'"),
        ("relu:0.5", "'relu' takes no sigma"),
        ("swish", "Did you mean 'silu'?"),
        ("Swish", "Did you mean 'silu'?"),
        ("hard-swish", "Did you mean 'hardswish'?"),
        ("squared_relu", "Did you mean 'relu2'?"),
        ("LeakyReLU", "Did you mean 'leaky_relu'?"),
    ],
)
def test_an_invalid_name_raises_with_the_reason_or_a_suggestion(text, message):
    with pytest.raises(ValueError, match=r"[aA]ctivation") as caught:
        zoo.parse(text)
    assert message in str(caught.value)


def test_stating_sigma_twice_raises():
    with pytest.raises(TypeError, match="already states sigma"):
        iglu.create("iglu:0.5", sigma=1.0)


@pytest.mark.parametrize("given", [None, 0.5, nn.ReLU(), nn.ReLU], ids=str)
def test_a_name_that_is_not_a_string_raises(given):
    with pytest.raises(TypeError, match=r"name must be a string, such as 'iglu:5', got "):
        iglu.create(given)


# -- activations of other papers -------------------------------------------------------------------


# Value, first and second derivative in extended precision; far from 0 they are x, 1 and 0, or all 0.


def _relu2(x):
    return (x * x, 2 * x, 2) if x > 0 else (0, 0, 0)


def _telu(x):
    if abs(x) > 800:
        return (x, 1, 0) if x > 0 else (0, 0, 0)
    u = mpmath.exp(x)
    gate, bend = mpmath.tanh(u), u * mpmath.sech(u) ** 2
    return x * gate, gate + x * bend, (2 + x) * bend - 2 * x * u * bend * gate


def _golu(x):
    if not -20 < x < 800:
        return (x, 1, 0) if x > 0 else (0, 0, 0)
    v = mpmath.exp(-x)
    gate = mpmath.exp(-v)
    return x * gate, gate * (1 + x * v), gate * v * (2 + x * v - x)


def _xielu(x):
    # both slopes start at 0.8, beta = 1/2
    alpha, half = mpmath.mpf("0.8"), mpmath.mpf("0.5")
    if x > 0:
        return alpha * x * x + half * x, 2 * alpha * x + half, 2 * alpha
    return (
        alpha * (mpmath.expm1(x) - x) + half * x,
        alpha * mpmath.expm1(x) + half,
        alpha * mpmath.exp(x),
    )


BASELINES = {"relu2": _relu2, "telu": _telu, "golu": _golu, "xielu": _xielu}
HALVES = (torch.bfloat16, torch.float16)


def value_and_df_dx(name, x):
    module = iglu.create(name).to(torch.promote_types(x.dtype, torch.float32))
    if name == "xielu":
        module.reset_parameters()  # rounded to this precision
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    assert y.dtype == x.dtype
    (derivative,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
    return y.detach(), derivative


def sampled(dtype):
    """Values up to where every baseline has reached its limit."""
    if dtype in HALVES:
        return truth.every_value(dtype)[::61]
    everywhere = torch.logspace(-30, 4, 120, dtype=torch.float64)
    return torch.cat([-everywhere, everywhere, torch.linspace(-110, 12, 400, dtype=torch.float64)]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_accurate_to_four_ulp_of_the_result_or_of_the_input(name, dtype):
    """The effect of rounding x is allowed for: exp(-exp(-x)) magnifies it a hundredfold in its tail."""
    x = sampled(dtype)
    x = x[x.isfinite()]
    kind = torch.finfo(dtype)
    coarse = kind.eps if dtype in HALVES else 0.0  # the halves are rounded once, from single precision
    eps = mpmath.mpf(torch.finfo(torch.promote_types(dtype, torch.float32)).eps)
    found = value_and_df_dx(name, x)
    with mpmath.workdps(60):
        for number, value, derivative in zip(x.tolist(), *(each.tolist() for each in found), strict=True):
            point = mpmath.mpf(number)
            exact, first, second = BASELINES[name](point)
            for got, right, rate in ((value, exact, first), (derivative, first, second)):
                if abs(right) > kind.max:
                    assert math.isinf(got), (name, number, got)
                    continue
                allowed = 4 * eps * (abs(right) + abs(point * rate)) + coarse * abs(right)
                floor = kind.smallest_normal * kind.eps * max(abs(number), 1)
                assert abs(got - right) <= allowed + floor, (name, number, got, mpmath.nstr(right, 10))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("relu2", (0, 0), (math.inf, math.inf)),
        ("telu", (0, 0), (math.inf, 1)),
        ("golu", (0, 0), (math.inf, 1)),
        ("xielu", (math.inf, -0.3), (math.inf, math.inf)),
    ],
)
def test_baselines_have_their_limits_at_the_infinities_and_keep_nan(name, dtype, left, right):
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, math.inf, -largest, largest, math.nan], dtype=dtype)
    value, derivative = value_and_df_dx(name, x)
    assert (value[0].item(), value[1].item()) == (left[0], right[0])
    assert derivative[[0, 2]].tolist() == pytest.approx([left[1]] * 2, rel=4 * torch.finfo(dtype).eps)
    assert derivative[[1, 3]].tolist() == [right[1]] * 2
    assert value[4].isnan()


def test_xielu_starts_as_its_authors_start_it_and_learns_both_slopes():
    module = iglu.create("xielu", dtype=torch.float64)
    assert {name: parameter.shape for name, parameter in module.named_parameters()} == {
        "alpha_p": (1,),
        "alpha_n": (1,),
    }
    assert nn.functional.softplus(module.alpha_p).item() == pytest.approx(0.8)
    assert 0.5 + nn.functional.softplus(module.alpha_n).item() == pytest.approx(0.8)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)

    def by_parameters(x, alpha_p, alpha_n):
        return torch.func.functional_call(module, {"alpha_p": alpha_p, "alpha_n": alpha_n}, (x,))

    assert torch.autograd.gradcheck(by_parameters, (x, module.alpha_p, module.alpha_n))
    assert torch.autograd.gradgradcheck(by_parameters, (x, module.alpha_p, module.alpha_n))
    groups = iglu.weight_decay_groups(nn.Sequential(nn.Linear(2, 2), module), 0.1)
    assert [len(group["params"]) for group in groups] == [2, 2]
    with pytest.raises(ValueError, match=r"alpha_n must be above 0\.5, got 0\.3"):
        iglu.create("xielu", alpha_n=0.3)


def test_the_repr_of_xielu_shows_its_present_parameters():
    module = iglu.create("xielu", alpha_p=1.25, alpha_n=2)
    assert repr(module) == "XIELU(alpha_p=1.25, alpha_n=2)"
    nn.init.constant_(module.alpha_n, math.log(math.expm1(0.25)))
    assert repr(module) == "XIELU(alpha_p=1.25, alpha_n=0.75)"
    assert repr(iglu.create("xielu", device="meta")) == "XIELU(alpha_p=?, alpha_n=?)"
    with FakeTensorMode():
        assert repr(iglu.create("xielu")) == "XIELU(alpha_p=?, alpha_n=?)"


def test_xielu_equals_that_of_transformers():
    activations = pytest.importorskip("transformers.activations")
    theirs, x = activations.XIELUActivation(dtype=torch.float64), torch.linspace(-5, 5, 101).double()
    torch.testing.assert_close(iglu.create("xielu").double()(x), theirs(x), rtol=1e-5, atol=1e-6)


def test_a_number_after_leaky_relu_is_its_negative_slope() -> None:
    made = zoo.create("leaky_relu:0.3")
    assert isinstance(made, nn.LeakyReLU)
    assert made.negative_slope == 0.3
    assert zoo.parse("leaky_relu:0.3").label == "LeakyReLU (negative slope = 0.3)"
    assert str(zoo.parse("leaky_relu:0.30")) == "leaky_relu:0.3"
    with pytest.raises(ValueError, match="takes no sigma"):
        zoo.parse("leaky_relu:learnable")


# -- activations of the user ---------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _table(monkeypatch):
    monkeypatch.setattr(zoo, "ZOO", dict(zoo.ZOO))


class Snake(SigmaModule):
    def forward(self, x):
        return x + torch.sin(self.sigma * x) ** 2 / self.sigma


class Scaled(nn.Module):
    """Learns a factor, which starts at 1."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.ones_(self.factor)

    def forward(self, x):
        return self.factor * torch.sin(x)


def test_a_registered_activation_supports_the_complete_grammar():
    iglu.register_activation("snake", Snake, label="Snake", takes_sigma=True)
    x = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(iglu.create("snake:0.5")(x), x + 2 * torch.sin(x / 2) ** 2)
    assert repr(iglu.create("snake:learnable=3")) == "Snake(sigma=3, learnable=True)"
    assert zoo.parse("snake:0.5").label == "Snake (sigma = 0.5)"
    with pytest.raises(ValueError, match="Did you mean 'snake'"):
        zoo.parse("snaek")


def test_a_registered_activation_can_be_swapped_in_and_out_and_is_exempt_from_decay():
    iglu.register_activation("scaled", Scaled)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    iglu.swap(model, "scaled")
    assert isinstance(model[1], Scaled)
    decayed, exempt = iglu.weight_decay_groups(model, 0.1)
    assert [p is model[1].factor for p in exempt["params"]] == [True]
    assert len(decayed["params"]) == 4
    iglu.swap(model, "relu")
    assert isinstance(model[1], nn.ReLU)


def test_an_activation_registered_as_not_replaceable_is_swapped_only_by_its_place():
    iglu.register_activation("scaled", lambda: Scaled(), replaceable=False)
    model = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.ReLU())
    iglu.swap(model, "iglu:5")
    assert isinstance(model[1], Scaled)
    iglu.swap(model, "iglu:5", only="1")
    assert isinstance(model[1], iglu.IGLU)


def test_the_same_class_may_be_registered_again_and_another_may_not():
    iglu.register_activation("scaled", Scaled)
    iglu.register_activation("scaled", Scaled, label="S")
    assert zoo.ZOO["scaled"].label == "S"
    with pytest.raises(ValueError, match=r"'scaled' is taken by .*Scaled"):
        iglu.register_activation("scaled", Snake)
    with pytest.raises(ValueError, match="'relu' is taken"):
        iglu.register_activation("relu", Scaled)


class OwnSigma(nn.Module):
    """Has the two arguments of a sigma, and none of the rest."""

    def __init__(self, sigma=1.0, learnable=False):
        super().__init__()
        self.sigma, self.learnable = sigma, learnable

    def forward(self, x):
        return x * self.sigma


class Narrow(Snake):
    def __init__(self, sigma=1.0, learnable=False):
        super().__init__(sigma, learnable=learnable)


class Deaf(Snake):
    def __init__(self, sigma=1.0, **options):
        super().__init__(1.0, **options)


class Unset(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.factor * x


class Summing(nn.Module):
    def forward(self, x):
        return x.sum()


@pytest.mark.parametrize(
    ("make", "takes_sigma", "problem"),
    [
        (OwnSigma, True, "SigmaModule"),
        (Narrow, True, "constrain"),
        (Deaf, True, "ignores"),
        (Unset, False, "reset_parameters"),
        (Summing, False, "shape"),
        (nn.ReLU(), False, "class or a function"),
        ("relu", False, "class or a function"),
        (torch.relu, False, "fails"),
        (lambda: torch.relu, False, "must return a module"),
        (lambda: nn.Sequential(nn.ReLU()), False, "forward of its own"),
        (lambda size: nn.ReLU(), False, "size"),
    ],
)
def test_registering_an_invalid_activation_raises_with_the_problem(make, takes_sigma, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        iglu.register_activation("mine", make, takes_sigma=takes_sigma)
    assert "mine" not in zoo.ZOO


@pytest.mark.parametrize("name", ["", "Snake", "my-act", "a:b", "2x", "a b", 3, None])
def test_registering_a_malformed_name_raises(name):
    with pytest.raises(ValueError, match="name must consist of"):
        iglu.register_activation(name, Scaled)


def test_a_number_after_the_colon_may_set_another_parameter():
    iglu.register_activation("soft", nn.Softplus, parameter="beta")
    assert iglu.create("soft:3").beta == 3
    with pytest.raises(TypeError, match="alpha"):
        iglu.register_activation("soft2", nn.Softplus, parameter="alpha")


class Forgetful(nn.Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        self.factor = alpha

    def forward(self, x):
        return x * self.factor


class Vector(nn.Module):
    def __init__(self, alpha=1.0):
        super().__init__()
        self.start = alpha
        self.alpha = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.constant_(self.alpha, self.start)

    def forward(self, x):
        return x * self.alpha


class Stuck(Vector):
    def reset_parameters(self):
        nn.init.constant_(self.alpha, 1.0)


def test_a_parameter_is_stored_under_its_name_as_a_number_or_as_a_tensor_filled_with_it():
    with pytest.raises(TypeError, match=r"make\(alpha=0.5\) must return a module .* attribute 'alpha'"):
        iglu.register_activation("forgetful", Forgetful, parameter="alpha")
    with pytest.raises(ValueError, match=r"make\(alpha=0.5\) ignores an argument"):
        iglu.register_activation("stuck", Stuck, parameter="alpha")
    iglu.register_activation("vector", Vector, parameter="alpha")
    assert iglu.create("vector:0.3").alpha.tolist() == pytest.approx([0.3] * 3)


def test_weights_of_a_layer_that_derives_from_an_activation_are_decayed():
    class Projection(nn.Identity):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.weight

    decayed, exempt = iglu.weight_decay_groups(nn.Sequential(Projection()), 0.1)
    assert (len(decayed["params"]), len(exempt["params"])) == (1, 0)
