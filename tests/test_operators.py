"""The operators support what those of PyTorch do: arguments in every layout, derivatives in every mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import iglu

FAMILIES = ("none", "rational")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
both = pytest.mark.parametrize("approximate", FAMILIES)

# The functions of tensors alone, and how many of these are like x; the last is sigma, one per channel.
OPERATORS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "iglu": (lambda x, s, **options: iglu.iglu(x, s, **options), 1),
    "gate": (lambda x, s, **options: iglu.iglu_gate(x, s, **options), 1),
    "pair": (lambda x, up, s, **options: iglu.iglu_glu(x, up, s, **options), 2),
    "packed": (lambda x, s, **options: iglu.iglu_glu(torch.cat([x, 1 - 2 * x], -1), None, s, **options), 1),
}
every_operator = pytest.mark.parametrize("name", OPERATORS)


def sample(name: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    likes = [torch.randn(4, 3, 2, generator=generator).to(dtype) for _ in range(OPERATORS[name][1])]
    return [*likes, torch.tensor([0.7, 1.4, 0.2], dtype=dtype)]


def results(name: str, inputs: list[Tensor], approximate: str, grad: Tensor | None = None) -> list[Tensor]:
    """The value and the gradient of every input."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    y = OPERATORS[name][0](*leaves, approximate=approximate, channel_dim=1)
    return [y.detach(), *torch.autograd.grad(y, leaves, torch.ones_like(y) if grad is None else grad)]


def assert_same(got: Any, expected: Any, dtype: torch.dtype = torch.float64) -> None:
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got, expected, rtol=8 * eps, atol=8 * eps)


# -- layouts ----------------------------------------------------------------------------------------------


def with_gaps(x: Tensor) -> Tensor:
    return torch.stack([x, torch.full_like(x, torch.nan)], -1)[..., 0]


def reversed_strides(x: Tensor) -> Tensor:
    """Contiguous in the opposite order, in the middle of something larger."""
    around = torch.full((x.numel() + 2,), torch.nan, dtype=x.dtype)
    inside = around[1:-1].view(*reversed(x.shape)).permute(*reversed(range(x.dim())))
    return inside.copy_(x)


def negated(x: Tensor) -> Tensor:
    """A view with the sign turned, whose memory holds -x."""
    wide = torch.float32 if x.dtype.itemsize == 2 else x.dtype
    return torch.complex(x.to(wide), -x.to(wide)).conj().imag.to(x.dtype)


LAYOUTS = {
    "with gaps": with_gaps,
    "reversed strides": reversed_strides,
    "negated": negated,
    "copy on write": torch._lazy_clone,
}


def test_the_test_layouts_have_the_strides_and_flags_of_their_names() -> None:
    x = sample("iglu")[0]
    for layout in LAYOUTS.values():
        assert torch.equal(layout(x), x)
    assert not with_gaps(x).is_contiguous()
    assert reversed_strides(x).stride() == (1, 4, 12)
    assert negated(x).is_neg()
    assert torch._C._is_cow_tensor(torch._lazy_clone(x))


@every_operator
@both
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_argument_and_the_incoming_gradient_may_have_any_layout(
    name, approximate, layout, dtype
) -> None:
    inputs = sample(name, dtype)
    grad = sample("iglu", dtype, seed=1)[0]
    expected = results(name, inputs, approximate, grad)
    for place in range(len(inputs)):
        changed = [LAYOUTS[layout](each) if i == place else each for i, each in enumerate(inputs)]
        assert_same(results(name, changed, approximate, grad), expected, dtype)
    assert_same(results(name, inputs, approximate, LAYOUTS[layout](grad)), expected, dtype)


@both
@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place_on_a_lazy_copy_leaves_the_original_unchanged(approximate, dtype) -> None:
    x = torch.randn(50).to(dtype)
    before = x.clone()
    expected = iglu.iglu(x, 0.7, approximate=approximate)
    lazy = torch._lazy_clone(x)
    iglu.iglu(lazy, 0.7, approximate=approximate, inplace=True)
    assert torch.equal(lazy, expected)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize("function", [iglu.iglu, iglu.iglu_gate, iglu.iglu_glu, iglu.gelu_scaled])
def test_unsupported_dtypes_raise_and_are_named(function, dtype) -> None:
    with pytest.raises(TypeError, match=f"must have dtype float16, .* or float64, got {dtype}"):
        function(torch.ones(4).to(dtype))


# -- gradients --------------------------------------------------------------------------------------------


def subsets(count: int) -> Iterator[tuple[bool, ...]]:
    return (each for each in itertools.product((False, True), repeat=count) if any(each))


@every_operator
@both
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_gradient_does_not_depend_on_which_others_are_requested(name, approximate, backend) -> None:
    inputs = sample(name)
    with iglu.backend(backend):
        _, *expected = results(name, inputs, approximate)
        for wanted in subsets(len(inputs)):
            leaves = [
                each.detach().requires_grad_(is_wanted)
                for each, is_wanted in zip(inputs, wanted, strict=True)
            ]
            OPERATORS[name][0](*leaves, approximate=approximate, channel_dim=1).sum().backward()
            for leaf, gradient, is_wanted in zip(leaves, expected, wanted, strict=True):
                assert (leaf.grad is not None) == is_wanted
                if is_wanted:
                    assert torch.equal(leaf.grad, gradient)


@every_operator
@both
def test_the_gradient_of_a_gradient_does_not_depend_on_which_others_are_requested(name, approximate) -> None:
    """By the kernels, by the formulas where sigma's gradient is differentiated, and for some inputs only."""
    inputs = sample(name)

    def second(wanted: tuple[bool, ...], through: tuple[bool, ...]) -> list[Tensor]:
        leaves = [each.detach().requires_grad_(w) for each, w in zip(inputs, wanted, strict=True)]
        y = OPERATORS[name][0](*leaves, approximate=approximate, channel_dim=1)
        recorded = [leaf for leaf in leaves if leaf.requires_grad]
        first = torch.autograd.grad(y.square().sum(), recorded, create_graph=True)
        parts = [
            (each * (i + 0.5)).sum()
            for i, (each, is_used) in enumerate(zip(first, through, strict=True))
            if is_used
        ]
        return list(torch.autograd.grad(torch.stack(parts).sum(), recorded))

    everything = (True,) * len(inputs)
    for through in subsets(len(inputs)):
        with iglu.backend("reference"):
            expected = second(everything, through)
        torch.testing.assert_close(second(everything, through), expected, rtol=1e-11, atol=1e-12)
    for wanted in subsets(len(inputs)):
        used = (True,) * sum(wanted)
        with iglu.backend("reference"):
            expected = second(wanted, used)
        torch.testing.assert_close(second(wanted, used), expected, rtol=1e-11, atol=1e-12)


@both
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_in_place_derivatives_are_those_of_finite_differences_in_both_modes(approximate, backend) -> None:
    x, sigma = (each.requires_grad_() for each in sample("iglu"))

    def overwritten(x: Tensor, sigma: Tensor) -> Tensor:
        return iglu.iglu(x.clone(), sigma, approximate=approximate, channel_dim=1, inplace=True)

    with iglu.backend(backend):
        assert torch.autograd.gradcheck(overwritten, (x, sigma), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(overwritten, (x, sigma))


@both
def test_a_dual_number_is_overwritten_with_its_tangent(approximate) -> None:
    x, tangent = torch.randn(2, 5, dtype=torch.float64)
    with forward_ad.dual_level():
        expected = forward_ad.unpack_dual(
            iglu.iglu(forward_ad.make_dual(x, tangent), 0.7, approximate=approximate)
        )
        dual = forward_ad.make_dual(x.clone(), tangent)
        assert iglu.iglu(dual, 0.7, approximate=approximate, inplace=True) is dual
        found = forward_ad.unpack_dual(dual)
        assert_same(found.primal, expected.primal)
        assert_same(found.tangent, expected.tangent)


# -- torch.func -------------------------------------------------------------------------------------------


@every_operator
@both
def test_vmap_over_any_arguments_equals_a_loop(name, approximate) -> None:
    batches = [sample(name, seed=seed) for seed in range(3)]

    def function(*inputs: Tensor) -> Tensor:
        return OPERATORS[name][0](*inputs, approximate=approximate, channel_dim=1)

    for batched in subsets(len(batches[0])):
        for end in (0, -1):
            inputs = [
                torch.stack([batch[i] for batch in batches], end) if is_batched else batches[0][i]
                for i, is_batched in enumerate(batched)
            ]
            dims = tuple(end if is_batched else None for is_batched in batched)
            expected = [
                function(*(batch[i] if is_batched else batches[0][i] for i, is_batched in enumerate(batched)))
                for batch in batches
            ]
            assert_same(torch.func.vmap(function, dims)(*inputs), torch.stack(expected))


@every_operator
@both
def test_every_pair_of_modes_gives_the_same_second_derivatives(name, approximate) -> None:
    inputs = tuple(sample(name))
    places = tuple(range(len(inputs)))

    def loss(*inputs: Tensor) -> Tensor:
        return OPERATORS[name][0](*inputs, approximate=approximate, channel_dim=1).square().sum()

    expected = torch.autograd.functional.hessian(loss, inputs)
    for outer, inner in itertools.product((torch.func.jacfwd, torch.func.jacrev), repeat=2):
        found = outer(inner(loss, argnums=places), argnums=places)(*inputs)
        for row, expected_row in zip(found, expected, strict=True):
            torch.testing.assert_close(tuple(row), tuple(expected_row), rtol=1e-9, atol=1e-10)


@every_operator
@pytest.mark.parametrize("dtype", DTYPES)
def test_tangents_and_gradients_have_the_dtypes_of_their_inputs_in_every_order(name, dtype) -> None:
    inputs = tuple(sample(name, dtype))

    def function(*inputs: Tensor) -> Tensor:
        return OPERATORS[name][0](*inputs, channel_dim=1)

    def gradients(*inputs: Tensor) -> tuple[Tensor, ...]:
        y, pull = torch.func.vjp(function, *inputs)
        return pull(torch.ones_like(y))

    value, tangent = torch.func.jvp(function, inputs, inputs)
    first, second = torch.func.jvp(gradients, inputs, inputs)
    assert {value.dtype, tangent.dtype, *(each.dtype for each in (*first, *second))} == {dtype}
