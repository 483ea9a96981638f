"""The modules: fixed and learnable sigmas, copying, saving, tracing and errors."""

import copy
import io
import math
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import iglu
from iglu.distributions import IGLUTransform
from iglu.modules import XATLU, ScaledGELU, Squareplus


@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_the_modules_compute_the_functions(approximate):
    x = torch.randn(3, 4)
    torch.testing.assert_close(
        iglu.IGLU(0.5, approximate=approximate)(x), iglu.iglu(x, 0.5, approximate=approximate)
    )
    torch.testing.assert_close(
        iglu.IGLUGate(0.5, approximate=approximate)(x), iglu.iglu_gate(x, 0.5, approximate=approximate)
    )


def test_fixed_sigma_leaves_the_state_dict_empty_so_that_a_gelu_checkpoint_loads():
    checkpoint = nn.Sequential(nn.Linear(2, 2), nn.GELU()).state_dict()
    model = nn.Sequential(nn.Linear(2, 2), iglu.IGLU(0.5))
    model.load_state_dict(checkpoint)
    assert not iglu.IGLU(0.5).state_dict()


def test_a_learnable_sigma_is_a_one_dimensional_parameter_of_its_logarithm_by_default():
    module = iglu.IGLU(5.0, learnable=True)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {"log_sigma": (1,)}
    assert module.sigma.item() == pytest.approx(5.0, rel=1e-6)
    free = iglu.IGLU(5.0, learnable=True, constrain=False, channels=3, channel_dim=1)
    assert {name: tuple(p.shape) for name, p in free.named_parameters()} == {"free_sigma": (3,)}
    assert free.sigma.tolist() == [5.0] * 3


def test_a_constrained_sigma_stays_positive_under_any_step():
    module = iglu.IGLU(1.0, learnable=True)
    with torch.no_grad():
        module.log_sigma.sub_(50)
    assert module.sigma.item() > 0


@pytest.mark.parametrize("constrain", [True, False])
def test_training_moves_sigma_toward_the_data(constrain):
    torch.manual_seed(0)
    x = torch.randn(2000) * 2
    target = iglu.iglu(x, 3.0)
    module = iglu.IGLU(0.5, learnable=True, constrain=constrain)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(400):
        optimizer.zero_grad()
        F.mse_loss(module(x), target).backward()
        optimizer.step()
    assert module.sigma.item() == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda: iglu.IGLU(0.3),
        lambda: iglu.IGLU(0.3, learnable=True, approximate="rational", channels=4, channel_dim=1),
        lambda: iglu.IGLU(0.3, learnable=True, constrain=False),
        lambda: iglu.IGLUGate(0.3, learnable=True),
        lambda: iglu.IGLUGLU(0.3, learnable=True),
        lambda: ScaledGELU(0.3),
        lambda: XATLU(0.2),
        lambda: Squareplus(2.0),
    ],
)
def test_copies_pickles_and_state_dicts_give_the_same_function(make):
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.25)
    x = torch.randn(2, 4, 6)
    expected = module(x)
    torch.testing.assert_close(copy.deepcopy(module)(x), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(module))(x), expected)
    fresh = make()
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))
    torch.testing.assert_close(fresh(x), expected)
    assert repr(fresh) == repr(module)


def test_the_repr_of_a_learnable_module_shows_its_present_sigma():
    module = iglu.IGLU(5.0, learnable=True)
    with torch.no_grad():
        module.log_sigma.fill_(math.log(2.0))
    assert repr(module) == "IGLU(sigma=2, learnable=True)"
    free = iglu.IGLU(0.5, learnable=True, constrain=False, channels=2, channel_dim=-1)
    with torch.no_grad():
        free.free_sigma[1] = 3
    assert repr(free) == "IGLU(sigma=0.5..3, learnable=True, channels=2, channel_dim=-1, constrain=False)"
    assert repr(iglu.IGLU(0.5, learnable=True, device="meta")) == "IGLU(sigma=?, learnable=True)"


def test_the_repr_of_a_module_shows_a_question_mark_where_its_values_cannot_be_read():
    with FakeTensorMode():
        assert repr(iglu.IGLU(0.5, learnable=True)) == "IGLU(sigma=?, learnable=True)"
        free = iglu.IGLU(0.5, learnable=True, constrain=False, channels=2, channel_dim=1)
        assert repr(free) == "IGLU(sigma=?, learnable=True, channels=2, channel_dim=1, constrain=False)"
    empty = iglu.IGLU(0.5, learnable=True)  # as on a rank that holds no part of sigma
    empty.log_sigma = nn.Parameter(torch.empty(0))
    assert repr(empty) == "IGLU(sigma=?, learnable=True)"
    module = iglu.IGLU(0.5, learnable=True)
    seen = []

    def forward(log_sigma):
        module.__dict__["log_sigma"] = log_sigma
        seen.append(repr(module))
        return log_sigma

    del module._parameters["log_sigma"]
    torch.vmap(forward)(torch.zeros(2, 1))
    assert seen == ["IGLU(sigma=?, learnable=True)"]


@pytest.mark.parametrize("make", [iglu.IGLU, iglu.IGLUGate, ScaledGELU])
def test_a_module_with_channels_requires_channel_dim(make):
    with pytest.raises(ValueError, match=r"channels=16 needs channel_dim") as caught:
        make(0.7, learnable=True, channels=16)
    assert "1 for images" in str(caught.value)
    assert "-1 for sequences" in str(caught.value)


@pytest.mark.parametrize(("channel_dim", "shape"), [(-1, "{0} {1} 5"), (1, "{0} 5 {1}")])
def test_one_sigma_per_channel_works_at_every_batch_size_and_length(channel_dim, shape):
    module = iglu.IGLU(0.7, learnable=True, channels=5, channel_dim=channel_dim, dtype=torch.float64)
    with torch.no_grad():
        module.log_sigma.copy_(torch.randn(5))
    for batch in (1, 5, 6):
        for length in (1, 4, 5, 6):
            x = torch.randn([int(size) for size in shape.format(batch, length).split()], dtype=torch.float64)
            u = x * module.sigma.view(-1, *[1] * (channel_dim % 3 == 1))
            torch.testing.assert_close(module(x), x * (0.5 + torch.atan(u) / math.pi))


def test_the_function_does_not_guess_the_dimension_of_the_channels():
    """Otherwise a call would depend on the length of a batch: (batch, 16, 16) has two dimensions that fit."""
    sigma = torch.rand(16)
    for length in (15, 16):
        x = torch.randn(2, length, 16)
        with pytest.raises(ValueError, match=r"needs channel_dim: 1 for images .*, -1 for sequences"):
            iglu.iglu(x, sigma)
        last = torch.stack([iglu.iglu(x[..., i], sigma[i].item()) for i in range(16)], -1)
        torch.testing.assert_close(iglu.iglu(x, sigma, channel_dim=-1), last)
    rows = torch.randn(16, 16)
    torch.testing.assert_close(iglu.iglu(rows, sigma), iglu.iglu(rows, sigma, channel_dim=-1))


def test_the_default_sigma_is_5_for_iglu_and_its_gain_and_1_elsewhere():
    x = torch.linspace(-3, 3, 31, dtype=torch.float64)

    def gate(sigma):
        return 0.5 + torch.atan(sigma * x) / math.pi

    for of_5 in (iglu.iglu(x), iglu.IGLU()(x), iglu.create("iglu")(x)):
        torch.testing.assert_close(of_5, x * gate(5))
    u = 5 * x
    torch.testing.assert_close(iglu.create("iglu_approx")(x), x * (0.5 + u / (2 * (1 + u.abs()))))
    assert iglu.gain() == iglu.gain(5.0) != iglu.gain(1.0)
    assert iglu.create("iglu:learnable").sigma.item() == pytest.approx(5.0)
    for of_1 in (iglu.iglu_gate(x), iglu.IGLUGate()(x), iglu.create("z")(x)):
        torch.testing.assert_close(of_1, gate(1))
    pair = torch.cat([x, x])
    for of_1 in (iglu.iglu_glu(pair), iglu.IGLUGLU()(pair), x * iglu.create("atlu")(x)):
        torch.testing.assert_close(of_1, x * x * gate(1))
    torch.testing.assert_close(XATLU(0.3, dtype=torch.float64)(x), x * (1.6 * gate(1) - 0.3))
    torch.testing.assert_close(iglu.iglu_inverse(x * gate(1)), x)
    torch.testing.assert_close(iglu.iglu_log_derivative(x), (gate(1) + x / (math.pi * (1 + x * x))).log())
    torch.testing.assert_close(iglu.bounds(x, x).high, x * gate(1))
    torch.testing.assert_close(IGLUTransform()(x), x * gate(1))
    torch.testing.assert_close(iglu.create("gelu_a")(x), F.gelu(x))
    torch.testing.assert_close(iglu.gelu_scaled(x), F.gelu(x))


# -- tracing, replicas and parametrizations --------------------------------------------------------

TRACED = {
    "fixed": lambda: iglu.IGLU(0.7),
    "learnable": lambda: iglu.IGLU(0.7, learnable=True),
    "free": lambda: iglu.IGLU(0.7, learnable=True, constrain=False),
    "channels": lambda: iglu.IGLU(0.7, learnable=True, channels=4, channel_dim=-1, approximate="rational"),
    "output": lambda: iglu.IGLU(0.7, approximate="rational", save="output"),
    "gate": lambda: iglu.IGLUGate(0.7, learnable=True),
    "pair": lambda: iglu.IGLUGLU(0.7, learnable=True),
}


@pytest.mark.parametrize("kind", TRACED)
def test_a_trace_can_be_saved_and_loaded_without_this_library(kind):
    module, x = TRACED[kind](), torch.randn(3, 4)
    traced = torch.jit.trace(module, x)
    assert "PythonOp" not in str(traced.inlined_graph)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    program = (
        "import io, sys; sys.modules['iglu'] = None; import torch; "
        "module = torch.jit.load(io.BytesIO(sys.stdin.buffer.read())); "
        "print(module(torch.full((2, 4), -0.5)).tolist())"
    )
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], input=file.getvalue(), capture_output=True
    )
    expected = module(torch.full((2, 4), -0.5))
    torch.testing.assert_close(torch.tensor(eval(run.stdout)), expected.detach(), msg=run.stderr.decode())
    leaf = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(traced(leaf).sum(), leaf), torch.autograd.grad(module(leaf).sum(), leaf),
        rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("make", [*TRACED.values(), ScaledGELU, XATLU])
def test_jit_script_fails_with_one_error_that_says_what_to_use(make):
    for model in (make(), nn.Sequential(nn.Linear(4, 4), make())):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.script does not support .*torch\.export"):
            torch.jit.script(model)


@pytest.mark.parametrize("constrain", [True, False])
def test_a_replica_without_parameters_of_its_own_gives_the_same_output(constrain):
    """As nn.DataParallel makes them: the parameters become plain attributes."""
    module = iglu.IGLU(0.7, learnable=True, constrain=constrain)
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        replica._parameters.pop(name, None)
        setattr(replica, name, parameter * 1.0)
    x = torch.randn(5)
    torch.testing.assert_close(replica(x), module(x))


def test_a_parametrization_of_sigma_is_applied():
    class Cut(nn.Module):
        def forward(self, log_sigma):
            return log_sigma.clamp(max=0)

    module = iglu.IGLU(5.0, learnable=True)
    torch.nn.utils.parametrize.register_parametrization(module, "log_sigma", Cut())
    x = torch.randn(5)
    torch.testing.assert_close(module(x), iglu.iglu(x, 1.0))


def test_symbolic_tracing_keeps_a_learnable_sigma():
    model = nn.Sequential(nn.Linear(3, 4), iglu.IGLU(0.7, learnable=True))
    traced = torch.fx.symbolic_trace(model)
    assert set(dict(traced.named_parameters())) == set(dict(model.named_parameters()))
    with torch.no_grad():
        dict(traced.named_parameters())["1.log_sigma"].add_(1)
    x = torch.randn(2, 3)
    torch.testing.assert_close(traced(x), model(x))


def test_half_precision_modules_keep_half_precision_activations():
    for dtype in (torch.bfloat16, torch.float16):
        module = iglu.IGLU(2.0, learnable=True).to(dtype)
        assert module.log_sigma.dtype == dtype
        assert module(torch.randn(4, dtype=dtype)).dtype == dtype
        assert iglu.IGLU(2.0, learnable=True)(torch.randn(4, dtype=dtype)).dtype == dtype


def test_reset_parameters_restores_the_initial_sigma_after_the_meta_device():
    module = iglu.IGLU(4.0, learnable=True, device="meta")
    module.to_empty(device="cpu")
    module.reset_parameters()
    assert module.sigma.item() == pytest.approx(4.0)


def test_a_fixed_sigma_can_be_set_and_is_checked():
    module = iglu.IGLU(1.0)
    module.sigma = 2.5
    torch.testing.assert_close(module(torch.ones(1)), iglu.iglu(torch.ones(1), 2.5))
    with pytest.raises(ValueError, match="sigma must be >= 0, got -1"):
        module.sigma = -1
    with pytest.raises(AttributeError, match="log_sigma"):
        iglu.IGLU(1.0, learnable=True).sigma = 2.0


def test_the_gated_module_takes_its_gate_from_the_first_half():
    x = torch.randn(3, 8)
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(iglu.IGLUGLU(0.7)(x), iglu.iglu(gate, 0.7) * up)
    torch.testing.assert_close(iglu.IGLUGLU(0.7, dim=0)(x.t()), (iglu.iglu(gate, 0.7) * up).t())


@pytest.mark.parametrize(
    ("dim", "x", "error", "message"),
    [
        (-1, torch.randn(3, 7), ValueError, r"last dimension .* must be even, got shape \(3, 7\)"),
        (-1, torch.tensor(2.0), ValueError, r"last dimension .* must be even, got shape \(\)"),
        (-1, [1.0, 2.0], TypeError, "must be a tensor, got list"),
        (-1, torch.ones(4, dtype=torch.int64), TypeError, "got torch.int64"),
        (1, [1.0, 2.0], TypeError, "must be a tensor, got list"),
        (1, torch.randn(2, 7, 3), ValueError, r"IGLUGLU: dimension 1 .* even, got shape \(2, 7, 3\)"),
        (3, torch.randn(2, 4), ValueError, r"dim must be .* from -2 to 1 for shape \(2, 4\), got 3"),
        (-3, torch.randn(2, 4), ValueError, r"dim must be .* from -2 to 1 for shape \(2, 4\), got -3"),
        (0, torch.tensor(2.0), ValueError, r"at least one dimension, got shape \(\)"),
    ],
)
def test_the_gated_module_raises_with_what_is_wrong_with_its_input(dim, x, error, message):
    with pytest.raises(error, match=message):
        iglu.IGLUGLU(dim=dim)(x)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_the_gated_module_can_split_every_dimension(dim):
    x = torch.randn(2, 4, 6)
    gate, up = x.tensor_split(2, dim)
    torch.testing.assert_close(iglu.IGLUGLU(0.7, dim=dim)(x), iglu.iglu(gate, 0.7) * up)
    sigma = torch.linspace(0.5, 2, gate.shape[dim])
    module = iglu.IGLUGLU(0.7, dim=dim, learnable=True, constrain=False, channels=len(sigma))
    with torch.no_grad():
        module.free_sigma.copy_(sigma)
    torch.testing.assert_close(module(x), iglu.iglu(gate, sigma, channel_dim=dim) * up)


def test_related_activations_follow_the_formulas_of_their_papers():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    gate = 0.5 + torch.atan(x) / math.pi
    torch.testing.assert_close(XATLU(0.0, dtype=torch.float64)(x), x * gate)
    torch.testing.assert_close(XATLU(0.3, dtype=torch.float64)(x), x * (1.6 * gate - 0.3))
    torch.testing.assert_close(Squareplus()(x), (x + (x**2 + 4).sqrt()) / 2)
    torch.testing.assert_close(ScaledGELU(1.0)(x), F.gelu(x), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: iglu.IGLU(-1), ValueError, "sigma must be >= 0, got -1"),
        (lambda: iglu.IGLU(0, learnable=True), ValueError, "must start above 0 and below inf, got 0"),
        (lambda: iglu.IGLU(learnable=2), TypeError, "learnable must be True or False, got 2"),
        (lambda: iglu.IGLU(channels=4), ValueError, "channels=4 needs learnable=True"),
        (lambda: iglu.IGLU(learnable=True, channels=0, channel_dim=1), ValueError, "at least 1, got 0"),
        (lambda: iglu.IGLU(learnable=True, channels=8.0, channel_dim=1), TypeError, "an integer, got 8.0"),
        (lambda: iglu.IGLU(learnable=True, channels=8, channel_dim="1"), TypeError, "an integer, got '1'"),
        (lambda: iglu.IGLU(learnable=True, dtype=torch.int32), TypeError, "floating-point .* torch.int32"),
        (lambda: iglu.IGLU(dtype=torch.int32), TypeError, "floating-point .* torch.int32"),
        (lambda: iglu.IGLU(learnable=True, dtype="float32"), TypeError, "floating-point .* 'float32'"),
        (lambda: iglu.IGLU(channel_dim=1.0), TypeError, "channel_dim must be an integer, got 1.0"),
        (lambda: iglu.IGLUGLU(dim="1"), TypeError, "^dim must be an integer, got '1'"),
        (lambda: iglu.IGLU("0.5"), TypeError, r"sigma must be a number >= 0, got '0.5'$"),
        (lambda: iglu.IGLU(approximate="tanh"), ValueError, "got 'tanh'"),
        (lambda: iglu.IGLU(approximate="rational", save="all"), ValueError, "got 'all'"),
        (lambda: iglu.IGLU(save="output"), ValueError, "save='output' needs approximate='rational'"),
        (lambda: iglu.IGLU(torch.tensor(1.0)), TypeError, r"IGLU\(start, learnable=True\) learns sigma"),
    ],
)
def test_invalid_arguments_raise_at_construction(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_free_sigma_may_start_at_zero_and_learn():
    module = iglu.IGLU(0, learnable=True, constrain=False)
    module(torch.randn(10)).sum().backward()
    assert module.free_sigma.grad.item() > 0


def test_weight_decay_groups_exempt_the_parameters_of_activations():
    model = nn.Sequential(nn.Linear(3, 3), iglu.IGLU(learnable=True), nn.PReLU(), XATLU(), nn.LayerNorm(3))
    decayed, exempt = iglu.weight_decay_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1
    assert exempt["weight_decay"] == 0.0
    assert {id(p) for p in exempt["params"]} == {
        id(model[1].log_sigma),
        id(model[2].weight),
        id(model[3].alpha),
    }
    assert len(decayed["params"]) == 4
    torch.optim.AdamW([decayed, exempt])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((nn.Linear(2, 2).parameters(), 0.1), TypeError, "must be an nn.Module, .* got generator"),
        ((nn.Linear(2, 2), -0.1), ValueError, "weight_decay must be >= 0, got -0.1"),
        ((nn.Linear(2, 2), "0.1"), TypeError, "weight_decay must be a number >= 0, got '0.1'"),
    ],
)
def test_weight_decay_groups_raise_for_invalid_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        iglu.weight_decay_groups(*arguments)
