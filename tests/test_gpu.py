"""The Triton kernels on a GPU; or, with TRITON_INTERPRET=1, in Triton's interpreter on the CPU.

Without a GPU, test_triton.py runs this file in the interpreter, in a process of its own: Triton asks for
the variable once, when it is imported.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

import iglu
from iglu.kernels import gpu, record

from truth import LONG, PI, TRUTH, every_value, extended, spread, ulp_errors

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_GPU = torch.cuda.is_available() and not IS_INTERPRETED
DEVICE = "cuda" if HAS_GPU else "cpu"

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (HAS_GPU or IS_INTERPRETED), reason="no GPU; test_triton.py runs it interpreted"),
]
real_gpu = pytest.mark.skipif(not HAS_GPU, reason="the interpreter has no such thing")

FAMILIES = ("none", "rational")
HALVES = (torch.bfloat16, torch.float16)
ALL_SIGNS = (0.7, -1.3, 0.0, 2.5, -0.01)
# Units in the last place, of value and gate and of derivatives.  The GPU rounds its float32 result to the
# nearest half; the interpreter cuts bfloat16 off, which is wrong by up to one unit.
FLOAT_ULP = {"value": 3, "gate": 3, "slope": 4, "by_sigma": 4}
HALF_ULP = {torch.bfloat16: 1.01 if IS_INTERPRETED else 0.51, torch.float16: 0.51}


@pytest.fixture(autouse=True)
def device(monkeypatch):
    gpu._tiling.cache_clear()
    monkeypatch.setattr(gpu, "device_type", DEVICE)
    with np.errstate(all="ignore"):  # the interpreter is numpy, and computes the branches not taken too
        yield DEVICE
    gpu._tiling.cache_clear()


@pytest.fixture
def large_tiles(device, monkeypatch):
    """The interpreter's time goes by tiles, not by elements."""
    if IS_INTERPRETED:
        monkeypatch.setattr(gpu, "_TILE", 2**16)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2).to(dtype).to(DEVICE)


def value(x, sigma=1.0, approximate="none", channel_dim=1):
    return gpu.forward("value", x, None, sigma, approximate, channel_dim)


def gate(x, sigma=1.0, approximate="none", channel_dim=1):
    return gpu.forward("gate", x, None, sigma, approximate, channel_dim)


def glu(x, up=None, sigma=1.0, approximate="none", channel_dim=1):
    return gpu.forward("glu", x, up, sigma, approximate, channel_dim)


def by_plain_formulas(name: str, *inputs, channel_dim: int = 1):
    """The formulas in float64, through which gradients flow to float64 leaves."""
    operation, _, approximate = name.partition(":")
    x, *up, sigma = inputs
    return record.call(operation, x, up[0] if up else None, sigma, approximate, channel_dim)


def doubled(*tensors):
    return [each.detach().double().requires_grad_() for each in tensors]


def assert_close(result, expected, rtol=1e-6, atol=1e-6):
    torch.testing.assert_close(result.double(), expected.double(), rtol=rtol, atol=atol)


def derivative(of, x, sigma: float, approximate: str, kind: str):
    """The derivative of ``of``, element by element: in sigma every element is a channel."""
    if kind == "by_sigma":
        sigmas = torch.full((x.numel(),), sigma, dtype=torch.float64, device=DEVICE, requires_grad=True)
        row = of(x.reshape(1, -1), sigmas, approximate)
        return torch.autograd.grad(row, sigmas, torch.ones_like(row))[0].to(x.dtype)
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(of(leaf, sigma, approximate), leaf, torch.ones_like(x))[0]


def evaluate(kind: str, x, sigma: float, approximate: str):
    if kind in ("slope", "by_sigma"):
        return derivative(value, x, sigma, approximate, kind)
    return (value if kind == "value" else gate)(x, sigma, approximate)


# -- how right -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.01, 0.7, 100.0])
@pytest.mark.parametrize("kind", FLOAT_ULP)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_float32_is_right_to_a_few_ulp(large_tiles, approximate, kind, sigma):
    x = spread(torch.float32, 2000)
    result = evaluate(kind, x.to(DEVICE), sigma, approximate).cpu()
    assert ulp_errors(result, TRUTH[approximate, kind](extended(x), sigma)).max() <= FLOAT_ULP[kind]


@pytest.mark.parametrize("kind", ["value", "gate", "slope"])
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_rounded_correctly_for_every_input(large_tiles, dtype, approximate, kind):
    x = every_value(dtype)
    result = evaluate(kind, x.to(DEVICE), 0.7, approximate).cpu()
    # A float32 next to the middle of two halves may go to the wrong side.
    assert ulp_errors(result, TRUTH[approximate, kind](extended(x), 0.7)).max() <= HALF_ULP[dtype]


@pytest.mark.parametrize("sigma", [0.1, 5.0])
@pytest.mark.parametrize("kind", ["slope", "by_sigma"])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_derivatives_of_the_gate_are_right_to_a_few_ulp(large_tiles, approximate, kind, sigma):
    x = spread(torch.float32, 2000)
    u = LONG(sigma) * extended(x)
    density = 1 / (PI * (1 + u * u)) if approximate == "none" else 1 / (2 * (1 + np.abs(u)) ** 2)
    expected = density * (LONG(sigma) if kind == "slope" else extended(x))
    result = derivative(gate, x.to(DEVICE), sigma, approximate, kind).cpu()
    assert ulp_errors(result, expected).max() <= 4


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_infinities_nan_and_minus_zero_follow_the_limits(dtype, approximate):
    x = torch.tensor([-torch.inf, torch.inf, torch.nan, -0.0], dtype=dtype, device=DEVICE)
    floor = -1 / ((math.pi if approximate == "none" else 2) * 0.7)
    result = value(x, 0.7, approximate).tolist()
    assert result[0] == pytest.approx(floor, rel=1e-2 if dtype in HALVES else 1e-6)
    assert result[1] == math.inf
    assert math.isnan(result[2])
    assert math.copysign(1, result[3]) == -1
    for limit in (gate(x, 0.7, approximate), derivative(value, x, 0.7, approximate, "slope")):
        assert limit[:2].tolist() == [0, 1]
        assert limit[2].isnan()
        assert limit[3].item() == pytest.approx(0.5, rel=torch.finfo(dtype).eps)


@pytest.mark.parametrize("approximate", FAMILIES)
def test_a_number_a_float64_tensor_and_a_channel_of_it_give_the_same_bits(approximate):
    x = normal(3, 100)
    expected = value(x, 0.1, approximate)
    one = torch.tensor(0.1, dtype=torch.float64, device=DEVICE)
    assert torch.equal(value(x, one, approximate), expected)
    assert torch.equal(value(x, one.expand(100), approximate), expected)
    assert torch.equal(value(x, one.expand(3), approximate, channel_dim=0), expected)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_sigma_keeps_the_digits_that_float32_has_not(large_tiles, approximate, as_tensor):
    # In float32 it would be 1, and the slope, which falls like sigma^-3 or sigma^-2, wrong in the mean.
    sigma = 1 + 2**-24.1
    x = -torch.logspace(1, 3, 4000)
    given = torch.tensor(sigma, dtype=torch.float64, device=DEVICE) if as_tensor else sigma
    slope = derivative(value, x.to(DEVICE), given, approximate, "slope").cpu()
    errors = extended(slope) / TRUTH[approximate, "slope"](extended(x), sigma) - 1
    assert abs(errors.mean()) < 1e-8


# -- sigma of any sign, a number for each channel --------------------------------------------------


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
    expected = by_plain_formulas(f"{of}:{approximate}", *wide, channel_dim=channel_dim)
    assert y.stride() == x.stride()
    assert_close(y, expected)
    results = torch.autograd.grad(y, (x, sigma), grad)
    for result, wanted in zip(results, torch.autograd.grad(expected, wide, grad.double()), strict=True):
        assert_close(result, wanted, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_one_learnable_sigma_of_any_precision_gets_the_sum_of_all_blocks(approximate, dtype):
    x, grad = normal(1500), normal(1500, seed=1)
    sigma = torch.tensor([0.625], dtype=dtype, device=DEVICE, requires_grad=True)
    (result,) = torch.autograd.grad(value(x, sigma, approximate), sigma, grad)
    assert result.dtype == dtype
    assert result.shape == (1,)
    terms = extended(grad.cpu()) * TRUTH[approximate, "by_sigma"](extended(x.cpu()), 0.625)
    rounding = max(1e-6 * float(np.abs(terms).sum()), torch.finfo(dtype).eps * abs(float(terms.sum())))
    assert abs(result.item() - float(terms.sum())) <= rounding


def test_the_gradient_of_sigma_is_the_same_every_time():
    x, sigma = normal(9, 70), torch.full((70,), 0.7, device=DEVICE, requires_grad=True)
    first, second = (torch.autograd.grad(value(x, sigma).sum(), sigma)[0] for _ in range(2))
    assert torch.equal(first, second)


# -- the gated pair --------------------------------------------------------------------------------


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_gated_pair_and_its_gradients_are_one_pass_each(approximate, packed, per_channel):
    x, grad = normal(3, 7, 2 * 53), normal(3, 7, 53, seed=1)
    gate_half, up_half = x.chunk(2, -1)
    sigma = torch.rand(53) * 2 - 0.5 if per_channel else torch.tensor(0.7)
    sigma = sigma.to(DEVICE).requires_grad_()
    halves = (gate_half.detach(), up_half.detach().clone())
    leaves = [each.requires_grad_() for each in ((x,) if packed else halves)]
    y = glu(leaves[0], None if packed else leaves[1], sigma, approximate, -1)
    wide = doubled(gate_half, up_half, sigma)
    expected = by_plain_formulas(f"glu:{approximate}", *wide, channel_dim=-1)
    assert_close(y, expected)
    *results, by_sigma = torch.autograd.grad(y, (*leaves, sigma), grad)
    by_gate, by_up, wanted = torch.autograd.grad(expected, wide, grad.double())
    assert_close(torch.cat(results, -1), torch.cat([by_gate, by_up], -1), atol=1e-5)
    assert_close(by_sigma, wanted, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_gated_pair_of_halves_is_rounded_once(dtype):
    x, up = normal(5, 301, dtype=dtype), normal(5, 301, seed=1, dtype=dtype)
    expected = extended(up.cpu()) * TRUTH["none", "value"](extended(x.cpu()), 0.7)
    assert ulp_errors(glu(x, up, 0.7).cpu(), expected).max() <= HALF_ULP[dtype]


# -- layouts ---------------------------------------------------------------------------------------

LAYOUTS = {
    "transposed": lambda: normal(31, 37).t(),
    "every other column": lambda: normal(11, 90)[:, ::2],
    "rows of a wider tensor": lambda: normal(11, 90)[2:9, 5:40],
    "channels last": lambda: normal(2, 6, 5, 3).to(memory_format=torch.channels_last),
    "permuted with gaps": lambda: normal(4, 6, 5, 8).permute(2, 0, 3, 1)[::2, :, 1:],
    "expanded": lambda: normal(1, 33).expand(7, 33),
    "one element": lambda: normal(1).reshape(()),
    "more than one tile": lambda: normal(3, 401),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_view_is_read_where_it_lies(layout):
    x = LAYOUTS[layout]()
    y = value(x, 0.7)
    assert torch.equal(y, value(x.contiguous(), 0.7))
    assert y.stride() == torch.empty_like(x).stride()
    leaf = x.detach().requires_grad_()
    grad = normal(*reversed(x.shape), seed=1).permute(*reversed(range(x.dim()))) if x.dim() else normal(1)[0]
    (by_x,) = torch.autograd.grad(value(leaf, 0.7), leaf, grad)
    dense = x.contiguous().detach().requires_grad_()
    assert torch.equal(by_x, torch.autograd.grad(value(dense, 0.7), dense, grad.contiguous())[0])


@pytest.mark.parametrize("shape", [(), (1,), (7, 1)])
def test_a_broadcast_gradient_is_not_written_out(shape):
    x = normal(7, 151).requires_grad_()
    grad = normal(*shape, seed=1) if shape else normal(1)[0]
    (result,) = torch.autograd.grad(value(x), x, grad.expand(7, 151))
    (expected,) = torch.autograd.grad(value(x), x, grad.expand(7, 151).contiguous())
    assert torch.equal(result, expected)


def test_64_bit_indices_give_the_same_bits(monkeypatch):
    x, sigma = normal(6, 5, 70), torch.tensor(ALL_SIGNS, device=DEVICE, requires_grad=True)
    narrow = torch.autograd.grad(value(x, sigma).sum(), sigma)[0]
    gpu._tiling.cache_clear()
    monkeypatch.setattr(gpu, "_NARROW", 0)
    assert torch.equal(torch.autograd.grad(value(x, sigma).sum(), sigma)[0], narrow)


# -- from the output -------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.1, 5.0])
def test_the_slope_from_an_output_is_right_for_that_output(large_tiles, sigma):
    y = spread(torch.float32, 2000)
    y = y[y * sigma > -0.5]
    ones = torch.ones_like(y).to(DEVICE)
    slope, _, _ = gpu.backward("output", ones, y.to(DEVICE), None, sigma, "rational", 1, False)
    v = LONG(sigma) * extended(y)
    u = (2 * v - 1 + np.sqrt((1 - 2 * v) ** 2 + 16 * v.clip(0))) / 4
    expected = np.where(v < 0, (1 + 2 * v) ** 2 / 2, 1 - 1 / (2 * (1 + u) ** 2))
    assert ulp_errors(slope.cpu(), expected).max() <= 4


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_the_gradients_from_the_output_are_those_from_the_input(dtype, inplace):
    x, grad = normal(40, 5, dtype=dtype).requires_grad_(), normal(40, 5, seed=1, dtype=dtype)
    sigma = torch.tensor(ALL_SIGNS, device=DEVICE, requires_grad=True)
    expected = torch.autograd.grad(value(x, sigma, "rational"), (x, sigma), grad)
    y = record.keep_output("triton", x * 1, sigma, 1, inplace)
    results = torch.autograd.grad(y, (x, sigma), grad)
    # The output has lost what its own rounding took, and more of it the flatter it is.
    tolerance = {torch.float32: 1e-5, torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()) / 4)


# -- autograd --------------------------------------------------------------------------------------


def test_nothing_but_the_inputs_is_kept_for_the_backward_pass():
    x, up = normal(50).requires_grad_(), normal(50, seed=1).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        value(x)
        glu(x, up)
    assert [each.data_ptr() for each in kept] == [x.data_ptr(), x.data_ptr(), up.data_ptr()]


@pytest.mark.parametrize("approximate", FAMILIES)
def test_second_derivatives_are_those_of_the_formulas(approximate):
    x, up = normal(60).requires_grad_(), normal(60, seed=1).requires_grad_()
    sigma = torch.tensor(0.7, device=DEVICE, requires_grad=True)
    wide = doubled(x, up, sigma)

    def twice(y, leaves):
        first = torch.autograd.grad(y.sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), leaves)

    results = twice(glu(x, up, sigma, approximate), (x, up, sigma))
    expected = twice(by_plain_formulas(f"glu:{approximate}", *wide), wide)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("sigma", [0.7, [0.7], [0.7, -1.3, 2.5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_gradients_of_gradients_are_one_pass(approximate, dtype, sigma, is_packed):
    tensors = [normal(40, 3, seed=seed).to(dtype) for seed in range(5)]
    x, up, grad, by_x, by_up = tensors
    scale = sigma if isinstance(sigma, float) else torch.tensor(sigma, device=DEVICE)
    needs_sigma = isinstance(scale, torch.Tensor)
    wide = [each.double().cpu() for each in tensors]
    for operation in ("value", "glu"):
        is_pair = operation == "glu"
        if is_packed and is_pair:
            pair = torch.cat([x, up], -1), None
            given = torch.cat([by_x, by_up], -1), None
        else:
            pair, given = ((x, up), (by_x, by_up)) if is_pair else ((x, None), (by_x, None))
        found = gpu.twice(operation, *given, grad, *pair, scale, approximate, -1, needs_sigma)
        assert found is not None
        found = list(found)
        if is_packed and is_pair:
            found[1], found[2] = found[1].chunk(2, -1)
        of = [wide[3], wide[4] if is_pair else None, None]
        double_scale = scale.double().cpu() if needs_sigma else scale
        at = (wide[2], wide[0], wide[1] if is_pair else None, double_scale)
        expected = record.differentiable_twice(operation, *of, *at, approximate, -1, needs_sigma)
        for result, wanted in zip(found, expected, strict=True):
            assert (result is None) == (wanted is None)
            if result is not None:
                is_sum = result.shape != x.shape
                tolerance = 1e-2 if dtype == torch.bfloat16 and not is_sum else 1e-5
                assert_close(result, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("sigma", [0.7, 123.456, 1e-3])
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_curvature_and_its_part_in_sigma_are_right_to_a_few_ulp(large_tiles, approximate, sigma):
    x = spread(torch.float32, 4000).reshape(1, -1)
    one = torch.ones_like(x).to(DEVICE)
    each = torch.full((x.numel(),), sigma, dtype=torch.float64, device=DEVICE)
    _, by_x, _, by_sigma = gpu.twice("value", one, None, one, x.to(DEVICE), None, each, approximate, 1, True)
    curvature = TRUTH[approximate, "curvature"](extended(x), sigma)
    limit = {"none": 4.9, "rational": 4}[approximate]
    assert ulp_errors(by_x.cpu(), curvature).max() <= limit
    parts = by_sigma.cpu().float().reshape(1, -1)
    assert ulp_errors(parts, curvature * extended(x) / LONG(sigma)).max() <= limit


def test_in_place_overwrites_what_no_gradient_needs_and_tells_autograd():
    x = normal(4, 300)
    expected, version = value(x, 0.7), x._version
    assert record.overwrite("triton", x, 0.7, "none", 1) is x
    assert torch.equal(x, expected)
    assert x._version == version + 1


# -- what is left to others ------------------------------------------------------------------------


def test_whatever_is_not_plain_is_left_to_the_plain_formulas():
    x = normal(4, 6)
    unserved = (
        (x.double(), 1.0), (x[:0], 1.0), (x.to("meta"), 1.0), (x.to_sparse(), 1.0), ([1.0], 1.0),
        (x, 0), (x, math.inf), (x, -1.0), (x, True), (x, 1e-40), (x, torch.ones(5, device=DEVICE)),
        (x, torch.ones(6, 1, device=DEVICE)), (x, torch.ones(6, device="meta")),
    )  # fmt: skip
    for argument, sigma in unserved:
        assert value(argument, sigma) is None
        assert gate(argument, sigma) is None
        assert glu(argument, argument, sigma) is None
    assert glu(x[:, 1:]) is None
    assert glu(x, x.double()) is None
    assert value(x, approximate="igul") is None
    with torch.autograd.forward_ad.dual_level():
        assert value(x) is None
    assert torch.func.vmap(lambda row: torch.tensor(value(row) is None))(x).all()


@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_tensor_sigma_may_be_infinite_or_nan(dtype, approximate):
    x = torch.tensor([-math.inf, -3.0, 0.0, 2.0, math.inf], dtype=dtype, device=DEVICE)
    sigma = torch.tensor([math.inf, math.nan, 0.0], device=DEVICE)
    rows = value(x.expand(3, 5), sigma, approximate, channel_dim=0)
    torch.testing.assert_close(rows[0], x.clamp(min=0))
    assert rows[1].isnan().all()
    torch.testing.assert_close(rows[2], x / 2)
    gates = gate(x.expand(3, 5), sigma, approximate, channel_dim=0)
    torch.testing.assert_close(gates[0], torch.tensor([0, 0, 0.5, 1, 1], dtype=dtype, device=DEVICE))


def test_why_not_gives_the_reason():
    x = normal(3)
    assert gpu.why_not(x) == ""
    assert "float64" in gpu.why_not(x.double())
    assert "meta" in gpu.why_not(x.to("meta"))
    assert "empty" in gpu.why_not(x[:0])


# -- what only a GPU has ---------------------------------------------------------------------------


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
def test_more_than_2_to_the_31_elements():
    free, _ = torch.cuda.mem_get_info()
    count = 2**31 + 1001
    if free < 5 * count:
        pytest.skip("needs 11 GB")
    x = torch.full((count,), -1.0, dtype=torch.bfloat16, device=DEVICE)
    y = value(x, 1.0)
    assert y[0] == y[-1] == -0.25
    assert (y[2**31 :] == -0.25).all()


@real_gpu
def test_compiled_the_plain_formulas_give_the_same():
    x = normal(1000)
    torch.testing.assert_close(torch.compile(iglu.iglu)(x, 0.7), value(x, 0.7))
