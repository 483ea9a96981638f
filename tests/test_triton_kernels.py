"""The Triton kernels against extended precision: on a GPU or, with TRITON_INTERPRET=1, in the interpreter.

Without a GPU, test_triton.py runs this file in the interpreter, in a process of its own: Triton reads the
variable once, when it is imported.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

import iglu
from iglu.kernels import autograd, triton

from truth import LONG, PI, TRUTH, every_value, extended, spread, ulp_errors

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = "cuda" if HAS_GPU else "cpu"

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (HAS_GPU or IS_INTERPRETED), reason="no GPU; test_triton.py runs this interpreted"
    ),
]
real_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")

FAILURE = triton.failure
FAMILIES = ("none", "rational")
HALVES = (torch.bfloat16, torch.float16)
ALL_SIGNS = (0.7, -1.3, 0.0, 2.5, -0.01)
FLOAT_ULP = {"value": 4, "gate": 4, "df_dx": 16, "df_dsigma": 16}
# The interpreter truncates bfloat16 instead of rounding it.
HALF_ULP = {torch.bfloat16: 1.01 if IS_INTERPRETED else 0.51, torch.float16: 0.51}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    """The kernels on this device, unchecked; the interpreter's time goes by blocks, so they are large."""
    monkeypatch.setattr(triton, "device_type", DEVICE)
    monkeypatch.setattr(triton, "failure", lambda *_: "")
    if IS_INTERPRETED:
        monkeypatch.setattr(triton, "BLOCK", 2**14)
    with np.errstate(all="ignore"):  # the interpreter is numpy, and evaluates the branches not taken too
        yield DEVICE


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2).to(dtype).to(DEVICE)


def value(x, sigma=1.0, approximate="none", channel_dim=1):
    return triton.forward("value", x, None, sigma, approximate, channel_dim)


def gate(x, sigma=1.0, approximate="none", channel_dim=1):
    return triton.forward("gate", x, None, sigma, approximate, channel_dim)


def glu(x, up=None, sigma=1.0, approximate="none", channel_dim=1):
    return triton.forward("glu", x, up, sigma, approximate, channel_dim)


def reference(operation, x, up, sigma, approximate, channel_dim):
    """The formulas in float64, through which gradients flow to float64 leaves."""
    return autograd.call(operation, x, up, sigma, approximate, channel_dim)


def doubled(*tensors):
    return [each.detach().double().requires_grad_() for each in tensors]


def assert_close(result, expected, rtol=2e-6, atol=1e-6):
    torch.testing.assert_close(result.double(), expected.double(), rtol=rtol, atol=atol)


def derivative(of, x, sigma: float, approximate: str, kind: str):
    """The derivative of ``of``, element by element: with respect to sigma every element is a channel."""
    if kind == "df_dsigma":
        sigmas = torch.full((x.numel(),), sigma, dtype=torch.float64, device=DEVICE, requires_grad=True)
        row = of(x.reshape(1, -1), sigmas, approximate)
        return torch.autograd.grad(row, sigmas, torch.ones_like(row))[0].to(x.dtype)
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(of(leaf, sigma, approximate), leaf, torch.ones_like(x))[0]


def evaluate(kind: str, x, sigma: float, approximate: str):
    if kind in ("df_dx", "df_dsigma"):
        return derivative(value, x, sigma, approximate, kind)
    return (value if kind == "value" else gate)(x, sigma, approximate)


# -- accuracy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1e-30, 0.01, 0.7, 100.0, 1e30])
@pytest.mark.parametrize("kind", FLOAT_ULP)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_float32_is_within_the_stated_ulp(approximate, kind, sigma):
    if kind == "df_dsigma" and not 0.01 <= sigma <= 100:
        pytest.skip("1/sigma^2 is beyond float32")
    x = spread(torch.float32, 2000)
    result = evaluate(kind, x.to(DEVICE), sigma, approximate).cpu()
    errors = ulp_errors(result, TRUTH[approximate, kind](extended(x), sigma))
    print(f"{approximate} {kind} sigma={sigma}: {errors.max():.2f} ulp")
    assert errors.max() <= FLOAT_ULP[kind]


@pytest.mark.parametrize("kind", ["value", "gate", "df_dx"])
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_once_for_every_input(dtype, approximate, kind):
    x = every_value(dtype)
    result = evaluate(kind, x.to(DEVICE), 0.7, approximate).cpu()
    # A float32 next to the middle of two halves may be rounded to the wrong side.
    assert ulp_errors(result, TRUTH[approximate, kind](extended(x), 0.7)).max() <= HALF_ULP[dtype]


@pytest.mark.parametrize("sigma", [0.1, 5.0, 1e20])
@pytest.mark.parametrize("kind", ["df_dx", "df_dsigma"])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_derivatives_of_the_gate_are_within_16_ulp(approximate, kind, sigma):
    x = spread(torch.float32, 2000)
    u = LONG(sigma) * extended(x)
    density = 1 / (PI * (1 + u * u)) if approximate == "none" else 1 / (2 * (1 + np.abs(u)) ** 2)
    expected = density * (LONG(sigma) if kind == "df_dx" else extended(x))
    result = derivative(gate, x.to(DEVICE), sigma, approximate, kind).cpu()
    assert ulp_errors(result, expected).max() <= 16


@pytest.mark.parametrize("sigma", [1e-30, 0.7, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_infinities_nan_and_minus_zero_follow_the_limits(dtype, approximate, sigma):
    x = torch.tensor([-torch.inf, torch.inf, torch.nan, -0.0], dtype=dtype, device=DEVICE)
    floor = torch.tensor(-1 / ((math.pi if approximate == "none" else 2) * sigma), dtype=dtype)
    result = value(x, sigma, approximate).cpu()
    torch.testing.assert_close(result[0], floor)
    assert result[1] == math.inf
    assert result[2].isnan()
    assert result[3].signbit()
    for limit in (gate(x, sigma, approximate), derivative(value, x, sigma, approximate, "df_dx")):
        assert limit[:2].tolist() == [0, 1]
        assert limit[2].isnan()
        assert limit[3].item() == pytest.approx(0.5, rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_negative_tail_keeps_its_sign_and_power_law(approximate):
    x = -torch.logspace(2, 9, 200, device=DEVICE)
    derivatives = derivative(value, x, 1.0, approximate, "df_dx").double().cpu()
    assert (value(x, 1.0, approximate) < 0).all()
    exponent = np.polyfit(np.log(-x.cpu().numpy()), np.log(derivatives.numpy()), 1)[0]
    assert exponent == pytest.approx({"none": -3, "rational": -2}[approximate], abs=0.01)


def test_a_number_and_a_tensor_of_any_form_give_the_same_bits():
    x = normal(3, 100)
    expected = value(x, 0.1)
    one = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
    assert torch.equal(value(x, one), expected)
    assert torch.equal(value(x, one.expand(100)), expected)
    assert torch.equal(value(x, one.expand(3), channel_dim=0), expected)


# -- a sigma of any sign, for each channel ----------------------------------------------------------


@pytest.mark.parametrize("of", ["value", "gate"])
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize(
    ("shape", "channel_dim", "memory_format"),
    [
        ((3, 5, 4, 7), 1, torch.contiguous_format),
        ((3, 5, 4, 7), 1, torch.channels_last),
        ((30, 5), -1, torch.contiguous_format),
        ((5, 37), 0, torch.contiguous_format),
        ((5,), 0, torch.contiguous_format),
    ],
)
def test_each_channel_has_its_sigma_and_its_gradient(of, approximate, shape, channel_dim, memory_format):
    x = normal(*shape).to(memory_format=memory_format).requires_grad_()
    sigma = torch.tensor(ALL_SIGNS, device=DEVICE, requires_grad=True)
    grad = normal(*shape, seed=1)
    y = (value if of == "value" else gate)(x, sigma, approximate, channel_dim)
    wide = doubled(x, sigma)
    expected = reference(of, wide[0], None, wide[1], approximate, channel_dim)
    assert y.stride() == x.stride()
    assert_close(y, expected)
    results = torch.autograd.grad(y, (x, sigma), grad)
    for result, wanted in zip(results, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        assert_close(result, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1500,), (40, 70), (3, 70, 11)])
def test_the_gradient_of_sigma_is_the_sum_of_all_blocks_the_same_every_time(monkeypatch, shape):
    monkeypatch.setattr(triton, "BLOCK", 64)
    x, grad = normal(*shape), normal(*shape, seed=1)
    channels = 1 if len(shape) == 1 else shape[1]
    sigma = torch.linspace(0.3, 2, channels, device=DEVICE, requires_grad=True)
    first, second = (torch.autograd.grad(value(x, sigma), sigma, grad)[0] for _ in range(2))
    wide = doubled(sigma)[0]
    (expected,) = torch.autograd.grad(
        reference("value", x.double(), None, wide, "none", 1), wide, grad.double()
    )
    assert_close(first, expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(first, second)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_a_tensor_sigma_may_be_infinite_nan_or_zero(approximate):
    x = torch.tensor([-math.inf, -3.0, 0.0, 2.0, math.inf], device=DEVICE)
    sigma = torch.tensor([math.inf, math.nan, 0.0], device=DEVICE)
    rows = value(x.expand(3, 5), sigma, approximate, channel_dim=0)
    torch.testing.assert_close(rows[0], x.clamp(min=0))
    assert rows[1].isnan().all()
    torch.testing.assert_close(rows[2], x / 2)
    gates = gate(x.expand(3, 5), sigma, approximate, channel_dim=0)
    torch.testing.assert_close(gates[0], torch.tensor([0, 0, 0.5, 1, 1.0], device=DEVICE))
    assert gates[1].isnan().all()
    for of in (value, gate):
        leaves = x.expand(3, 5).clone().requires_grad_(), sigma.clone().requires_grad_()
        grad_x, grad_sigma = torch.autograd.grad(of(*leaves, approximate, channel_dim=0).sum(), leaves)
        assert grad_x[1].isnan().all()
        assert grad_sigma[1].isnan()


# -- the gated pair --------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_gated_pair_and_its_gradients_are_those_of_the_formulas(approximate, is_packed, per_channel):
    x, grad = normal(3, 7, 2 * 53), normal(3, 7, 53, seed=1)
    gate_half, up_half = x.chunk(2, -1)
    sigma = torch.rand(53) * 2 - 0.5 if per_channel else torch.tensor(0.7)
    sigma = sigma.to(DEVICE).requires_grad_()
    halves = (gate_half.detach(), up_half.detach().clone())
    leaves = [each.requires_grad_() for each in ((x,) if is_packed else halves)]
    y = glu(leaves[0], None if is_packed else leaves[1], sigma, approximate, -1)
    wide = doubled(gate_half, up_half, sigma)
    expected = reference("glu", *wide, approximate, -1)
    assert_close(y, expected)
    *results, grad_sigma = torch.autograd.grad(y, (*leaves, sigma), grad)
    grad_gate, grad_up, wanted = torch.autograd.grad(expected, wide, grad.double())
    assert_close(torch.cat(results, -1), torch.cat([grad_gate, grad_up], -1), rtol=1e-5, atol=1e-5)
    assert_close(grad_sigma, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_gated_pair_of_halves_is_rounded_once(dtype):
    x, up = normal(5, 301, dtype=dtype), normal(5, 301, seed=1, dtype=dtype)
    expected = extended(up.cpu()) * TRUTH["none", "value"](extended(x.cpu()), 0.7)
    assert ulp_errors(glu(x, up, 0.7).cpu(), expected).max() <= HALF_ULP[dtype]


# -- layouts ---------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda: normal(31, 37).t(),
    "every other column": lambda: normal(11, 90)[:, ::2],
    "channels last": lambda: normal(2, 6, 5, 3).to(memory_format=torch.channels_last),
    "permuted with gaps": lambda: normal(4, 6, 5, 8).permute(2, 0, 3, 1)[::2, :, 1:],
    "expanded": lambda: normal(1, 33).expand(7, 33),
    "one element": lambda: normal(1).reshape(()),
    "several blocks": lambda: normal(3, 401),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_bits_of_a_contiguous_tensor(monkeypatch, layout):
    monkeypatch.setattr(triton, "BLOCK", 256)
    x = LAYOUTS[layout]()
    y = value(x, 0.7)
    assert torch.equal(y, value(x.contiguous(), 0.7))
    assert y.stride() == torch.empty_like(x).stride()
    leaf = x.detach().requires_grad_()
    grad = normal(*reversed(x.shape), seed=1).permute(*reversed(range(x.dim()))) if x.dim() else normal(1)[0]
    (grad_x,) = torch.autograd.grad(value(leaf, 0.7), leaf, grad)
    dense = x.contiguous().detach().requires_grad_()
    assert torch.equal(grad_x, torch.autograd.grad(value(dense, 0.7), dense, grad.contiguous())[0])


def test_64_bit_indices_give_the_same_bits(monkeypatch):
    x, sigma = normal(6, 5, 70), torch.tensor(ALL_SIGNS, device=DEVICE, requires_grad=True)
    narrow = torch.autograd.grad(value(x, sigma).sum(), sigma)[0]
    monkeypatch.setattr(triton, "NARROW", 0)
    assert torch.equal(torch.autograd.grad(value(x, sigma).sum(), sigma)[0], narrow)


# -- autograd --------------------------------------------------------------------------------------


def test_nothing_but_the_inputs_is_saved_for_the_backward_pass():
    x, up = normal(50).requires_grad_(), normal(50, seed=1).requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        value(x)
        glu(x, up)
    assert [each.data_ptr() for each in saved] == [x.data_ptr(), x.data_ptr(), up.data_ptr()]


@pytest.mark.parametrize("approximate", FAMILIES)
def test_second_derivatives_are_those_of_the_formulas(approximate):
    x, up = normal(60).requires_grad_(), normal(60, seed=1).requires_grad_()
    sigma = torch.tensor(0.7, device=DEVICE, requires_grad=True)
    wide = doubled(x, up, sigma)

    def second(y, leaves):
        first = torch.autograd.grad(y.sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), leaves)

    results = second(glu(x, up, sigma, approximate), (x, up, sigma))
    expected = second(reference("glu", *wide, approximate, 1), wide)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_gradients_from_the_output_are_those_from_the_input(inplace):
    x, grad = normal(40, 5).requires_grad_(), normal(40, 5, seed=1)
    sigma = torch.tensor(ALL_SIGNS, device=DEVICE, requires_grad=True)
    expected = torch.autograd.grad(value(x, sigma, "rational"), (x, sigma), grad)
    y = autograd.save_output("triton", x * 1, sigma, 1, inplace)
    for result, wanted in zip(torch.autograd.grad(y, (x, sigma), grad), expected, strict=True):
        assert_close(result, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_in_place_overwrites_the_input_and_increments_its_version():
    x = normal(4, 300)
    expected, version = value(x, 0.7), x._version
    assert autograd.overwrite("triton", x, 0.7, "none", 1) is x
    assert torch.equal(x, expected)
    assert x._version == version + 1
    assert autograd.overwrite("triton", x[:, ::2], 0.7, "none", 1) is None  # memory with gaps


# -- the check before the first use ------------------------------------------------------------------


class Broken:
    """A kernel whose launch is changed."""

    def __init__(self, kernel, change):
        self.kernel, self.change = kernel, change

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.change(self.kernel, grid, arguments, options)


def too_few_programs(kernel, grid, arguments, options):
    if grid[0] > 1:
        kernel[(grid[0] - 1,)](*arguments, **options)


def one_element_too_many(kernel, grid, arguments, options):
    *first, count, channels, inner, width = arguments
    kernel[grid](*first, count + 1, channels, inner, width, **options)


def fails_to_compile(kernel, grid, arguments, options):
    raise RuntimeError("ptxas failed")


@pytest.fixture
def checked(device, monkeypatch):
    """Kernels are checked, with small blocks, and none was yet; the CPU kernels are out of the way."""
    monkeypatch.setattr(triton, "failure", FAILURE)
    monkeypatch.setattr(triton, "_failures", {})
    monkeypatch.setattr(triton, "BLOCK", 64)
    token = iglu.kernels.current.set(iglu.kernels.Backend("auto", lambda *_: None))
    yield
    iglu.kernels.current.reset(token)


def break_launch(monkeypatch, change):
    module = triton.load()[0]
    for name in ("iglu_forward", "iglu_backward"):
        monkeypatch.setattr(module, name, Broken(getattr(module, name), change))


def break_constant(monkeypatch, value):
    module = triton.load()[0]
    monkeypatch.setattr(module, "INVERSE_PI", module.tl.constexpr(value))


FAULTS = {
    "a wrong constant": lambda patch: break_constant(patch, 0.31832),
    "NaN": lambda patch: break_constant(patch, math.nan),
    "too few programs": lambda patch: break_launch(patch, too_few_programs),
    "a write beyond the end": lambda patch: break_launch(patch, one_element_too_many),
    "an exception": lambda patch: break_launch(patch, fails_to_compile),
}


@pytest.mark.skipif(not IS_INTERPRETED, reason="a compiled kernel does not see a changed constant")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_kernel_is_disabled_with_one_warning_and_the_formulas_run(checked, monkeypatch, fault):
    FAULTS[fault](monkeypatch)
    x = normal(100)
    with pytest.warns(RuntimeWarning, match="failed its check on cpu and is disabled.*iglu doctor"):
        result = iglu.iglu(x, 0.7)
    assert torch.equal(result, autograd.call("value", x, None, 0.7, "none", 1))
    assert torch.equal(iglu.iglu(x, 0.7), result)  # a second warning would be an error
    assert iglu.explain(x).startswith("reference: ")


@pytest.mark.skipif(not IS_INTERPRETED, reason="a compiled kernel does not see a changed constant")
def test_each_kernel_is_checked_by_itself(checked, monkeypatch):
    break_constant(monkeypatch, 0.31832)
    leaf = normal(100).requires_grad_()
    with pytest.warns(RuntimeWarning):
        assert value(leaf) is None
    y = value(leaf, 1.0, "rational")  # has no such constant
    assert y is not None
    y.sum().backward()
    passed = {
        (kernel.direction, kernel.approximate) for (kernel, _), why in triton._failures.items() if not why
    }
    assert passed == {("forward", "rational"), ("backward", "rational")}


def test_correct_kernels_pass_their_check_once(checked, monkeypatch):
    calls = []
    check = triton.check
    monkeypatch.setattr(triton, "check", lambda *which: calls.append(which) or check(*which))
    x, up = normal(4, 6), normal(4, 6, seed=1)
    sigma = torch.full((6,), 0.7, device=DEVICE, requires_grad=True)
    for _ in range(2):
        iglu.iglu_glu(x, up, sigma).sum().backward()
        iglu.iglu_gate(x.bfloat16())
    assert [kernel.direction for kernel, _ in calls] == ["forward", "backward", "forward"]
    assert not any(triton._failures.values())
    assert iglu.explain(x) == "triton: passed its check"


# -- only on a GPU ---------------------------------------------------------------------------------


@real_gpu
def test_calls_can_be_captured_in_a_cuda_graph():
    x, sigma = normal(1000).requires_grad_(), torch.tensor(0.7, device=DEVICE, requires_grad=True)
    torch.autograd.grad(value(x, sigma).sum(), (x, sigma))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = value(x, sigma)
        grads = torch.autograd.grad(y.sum(), (x, sigma))
    with torch.no_grad():
        x.copy_(normal(1000, seed=5))
        sigma.fill_(2.0)
    graph.replay()
    assert torch.equal(y, value(x, sigma))
    for result, wanted in zip(grads, torch.autograd.grad(value(x, sigma).sum(), (x, sigma)), strict=True):
        assert torch.equal(result, wanted)


@real_gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_kernel_runs_on_the_device_of_its_tensor():
    x = normal(1000)
    assert torch.equal(value(x.to("cuda:1")).to("cuda:0"), value(x.to("cuda:0")))


@real_gpu
@pytest.mark.slow
def test_more_than_2_to_the_31_elements_are_supported():
    free, _ = torch.cuda.mem_get_info()
    count = 2**31 + 1001
    if free < 5 * count:
        pytest.skip("needs 11 GB")
    x = torch.full((count,), -1.0, dtype=torch.bfloat16, device=DEVICE)
    y = value(x, 1.0)
    assert y[0] == y[-1] == -0.25
    assert (y[2**31 :] == -0.25).all()


@real_gpu
def test_the_compiled_reference_formulas_give_the_same_values():
    x = normal(1000)
    torch.testing.assert_close(torch.compile(iglu.iglu)(x, 0.7), value(x, 0.7))
