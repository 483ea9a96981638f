"""Dispatch: which backend runs a call, and that the native kernels agree with the formulas."""

import contextlib
import itertools
import math
import threading

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import iglu
from iglu import kernels
from iglu.kernels import autograd, native, reference

from truth import needs_compiler, needs_loops

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FAMILIES = ("none", "rational")
BACKENDS = [pytest.param("native", marks=needs_loops), "reference"]


def _fell_through(*_):
    raise AssertionError("not served by the loops")


@contextlib.contextmanager
def native_only():
    """Make a call or a backward pass that falls back to the formulas raise."""
    with iglu.backend("native"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "forward", _fell_through)
        patch.setattr(autograd, "differentiable_gradients", _fell_through)
        patch.setattr(autograd, "differentiable_double_backward", _fell_through)
        yield


def by_native_and_reference(function, leaves, grad=None, **options):
    """[result, gradients...] by the native kernels alone, and by the formulas in float64."""
    found = []
    for context, dtype in ((native_only(), None), (iglu.backend("reference"), torch.float64)):
        with context:
            # a sigma of float32 would round its own gradient
            of = dtype or (torch.float64 if leaves[0].dtype == torch.float64 else None)
            inputs = [
                each.detach().to(of or each.dtype).requires_grad_()
                if isinstance(each, torch.Tensor)
                else each
                for each in leaves
            ]
            tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
            y = function(*inputs, **options)
            through = torch.ones_like(y) if grad is None else grad.to(y.dtype)
            found.append([y, *torch.autograd.grad(y, tensors, through)])
    return found


def assert_same(found, dtype, atol=None):
    """Compare the results of two backends; without ``atol`` the first is a value, which is rounded once."""
    eps = torch.finfo(dtype).eps
    bounds = {"rtol": 16 * eps, "atol": atol or {torch.float64: 1e-13, torch.float32: 1e-5}.get(dtype, 2e-2)}
    for index, (got, expected) in enumerate(zip(*found, strict=True)):
        is_value = index == 0 and atol is None
        of_value = {"rtol": 4 * eps, "atol": torch.finfo(dtype).tiny}
        torch.testing.assert_close(got.double(), expected.double(), **(of_value if is_value else bounds))


# -- native kernels and formulas -----------------------------------------------------------------------

LAYOUTS = {
    "vector": lambda: torch.randn(1037),
    "contiguous": lambda: torch.randn(3, 5, 7, 4),
    "channels_last": lambda: torch.randn(3, 5, 7, 4).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(6, 5).t(),
    "permuted": lambda: torch.randn(3, 4, 5, 6).permute(2, 0, 3, 1),
    "gapped": lambda: torch.randn(6, 5, 70)[::2, :, 1:69:3],
    "rows": lambda: torch.randn(6, 5, 70)[1:, :4, :33],
    "expanded": lambda: torch.randn(6, 1, 70).expand(6, 5, 70),
    "overlapping": lambda: torch.randn(80).as_strided((5, 20), (3, 2)),
    "scalar": lambda: torch.randn(()),
}


@needs_loops
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [iglu.iglu, iglu.iglu_gate])
@pytest.mark.parametrize("kind", ["number", "one", "channels"])
def test_values_and_gradients_are_those_of_the_formulas(layout, approximate, dtype, function, kind):
    torch.manual_seed(0)
    x = LAYOUTS[layout]()
    x = x.to(dtype) if dtype != torch.float32 else x
    if kind == "channels" and x.dim() < 2:
        pytest.skip("no channels in this layout")
    sigma = {
        "number": lambda: 0.7,
        "one": lambda: torch.tensor([0.7]),
        "channels": lambda: torch.rand(x.shape[1]) * 2 - 0.5,
    }[kind]()
    grad = torch.randn(x.shape)
    found = by_native_and_reference(function, (x, sigma), grad, approximate=approximate, channel_dim=1)
    assert found[0][0].stride() == torch.nn.functional.gelu(x).stride()
    assert [each.dtype for each in found[0][:2]] == [dtype, dtype]
    assert_same(found, dtype)


@needs_loops
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "gapped"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["number", "one", "channels"])
def test_gradients_from_the_output_are_those_of_the_formulas(inplace, layout, dtype, kind):
    torch.manual_seed(0)
    x = LAYOUTS[layout]().to(dtype)
    sigma = {"number": 0.7, "one": torch.tensor(0.7), "channels": torch.rand(x.shape[1]) - 0.3}[kind]
    if dtype == torch.float16 and kind != "number":
        pytest.skip("keeps its input")

    def value(x, sigma):
        at = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)
        return iglu.iglu(at, sigma, approximate="rational", save="output", inplace=inplace, channel_dim=1)

    found = by_native_and_reference(value, (x, sigma), torch.randn(x.shape))
    # rounding the output loses digits of its input, more of them where the function is flatter
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 0.02}.get(dtype, 0.15)
    assert_same(found, dtype, atol=tolerance)


PAIRS = {
    "dense": lambda: (torch.randn(4, 6, 10), torch.randn(4, 6, 10)),
    "channels_last": lambda: tuple(
        torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last) for _ in range(2)
    ),
    "halves": lambda: torch.randn(4, 6, 20).chunk(2, -1),
    "unequal": lambda: (torch.randn(4, 6, 10), torch.randn(4, 6, 20)[..., 5:15]),
    "transposed": lambda: (torch.randn(4, 10, 6).mT, torch.randn(4, 6, 10)),
    "packed": lambda: (torch.randn(4, 6, 20), None),
    "packed transposed": lambda: (torch.randn(20, 6, 4).permute(2, 1, 0), None),
}


@needs_loops
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["number", "one", "last", "middle"])
def test_the_gated_pair_and_its_gradients_are_those_of_the_formulas(pair, approximate, dtype, kind):
    torch.manual_seed(0)
    gate, up = (None if each is None else each.to(dtype) for each in PAIRS[pair]())
    width = gate.shape[-1] // (2 if up is None else 1)
    sigma = {"number": 0.7, "one": torch.tensor(0.7), "last": torch.rand(width) + 0.2,
             "middle": torch.rand(gate.shape[1]) - 0.2}[kind]  # fmt: skip
    channel_dim = -1 if kind == "last" else 1
    shape = (*gate.shape[:-1], width)
    for grad in (torch.randn(shape), torch.tensor(0.5).expand(shape)):
        found = by_native_and_reference(
            iglu.iglu_glu, (gate, up, sigma), grad, approximate=approximate, channel_dim=channel_dim
        )
        assert_same(found, dtype)


@needs_loops
def test_incoming_gradients_may_have_every_layout():
    x = torch.randn(6, 8)
    for grad in (
        torch.randn(8, 6).t(),
        torch.randn(6, 16)[:, ::2],
        torch.tensor(2.0).expand(6, 8),
        torch.randn(6, 1).expand(6, 8),
        torch.randn(8).expand(6, 8),
    ):
        assert_same(by_native_and_reference(iglu.iglu, (x, 0.7), grad), torch.float32)


@needs_loops
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_sigma_gradient_does_not_depend_on_the_number_of_threads(approximate):
    x = torch.randn(3, 7, 40_000)
    found = []
    before = torch.get_num_threads()
    try:
        for threads, channels in itertools.product((1, 2), (False, True)):
            torch.set_num_threads(threads)
            sigma = torch.full((7,) if channels else (), 0.7, requires_grad=True)
            with native_only():
                y = iglu.iglu(x, sigma, approximate=approximate, channel_dim=1)
                found.append(torch.autograd.grad(y.sum(), sigma)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert found[1].sum().item() == pytest.approx(found[0].item(), rel=1e-6)


# -- autograd -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_of_every_backend_are_those_of_finite_differences(backend):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    up = torch.randn(5, dtype=torch.float64, requires_grad=True)
    with iglu.backend(backend):
        for approximate in FAMILIES:
            assert torch.autograd.gradgradcheck(
                lambda x, s, a=approximate: iglu.iglu(x, s, approximate=a), (x, sigma)
            )
            assert torch.autograd.gradgradcheck(
                lambda x, s, a=approximate: iglu.iglu_gate(x, s, approximate=a), (x, sigma)
            )
            assert torch.autograd.gradgradcheck(
                lambda x, u, s, a=approximate: iglu.iglu_glu(x, u, s, approximate=a), (x, up, sigma)
            )
            assert torch.autograd.gradgradcheck(
                lambda p, a=approximate: iglu.iglu_glu(p, approximate=a), (torch.cat([x, up]),)
            )


@needs_loops
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pair", [None, *PAIRS])
@pytest.mark.parametrize("kind", ["number", "one", "channels"])
def test_gradients_of_gradients_are_those_of_the_formulas(approximate, dtype, pair, kind):
    """Gradients of x, up and sigma of the gradients of x and up: one pass of the native kernels."""
    torch.manual_seed(0)
    tensors = (torch.randn(3, 5, 7),) if pair is None else PAIRS[pair]()
    x, *up = (None if each is None else each.to(dtype) for each in tensors)
    sigma = {"number": 0.7, "one": torch.tensor([0.7]), "channels": torch.rand(x.shape[1]) - 0.2}[kind]

    def second(*leaves):
        *inputs, scale = leaves
        recorded = [each for each in inputs if each is not None]
        function = iglu.iglu if pair is None else iglu.iglu_glu
        y = function(*inputs, scale, approximate=approximate, channel_dim=1)
        first = torch.autograd.grad(y, recorded, (y.detach() + 1), create_graph=True)
        return sum((each * (index + 0.5)).sum() for index, each in enumerate(first))

    found = by_native_and_reference(second, (x, *up, sigma))
    atol = {torch.float64: 1e-11, torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.6}[dtype]
    assert_same([each[1:] for each in found], dtype, atol=atol)


def test_forward_mode_derivatives_are_those_of_reverse_mode():
    x, tangent = torch.randn(2, 4)
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(iglu.iglu(leaf, 0.7), leaf, tangent)[0]
    _, derivative = torch.func.jvp(lambda x: iglu.iglu(x, 0.7), (x,), (tangent,))
    torch.testing.assert_close(derivative, expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        _, derivative = torch.autograd.forward_ad.unpack_dual(iglu.iglu(dual, 0.7))
    torch.testing.assert_close(derivative, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [iglu.iglu, iglu.iglu_gate, iglu.iglu_glu])
def test_a_tangent_of_a_gradient_has_the_dtype_of_x(function, dtype):
    x, tangent = torch.randn(2, 4, dtype=dtype)
    count = 2 if function is iglu.iglu_glu else 1

    def gradient(x):
        _, pull = torch.func.vjp(lambda *inputs: function(*inputs, sigma=0.7), *[x] * count)
        return pull(torch.ones_like(x))[0]

    value, change = torch.func.jvp(gradient, (x,), (tangent,))
    assert value.dtype == dtype
    assert change.dtype == dtype


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("function", [iglu.iglu, iglu.iglu_gate])
def test_dispatch_modes_see_the_operations_of_both_passes(function):
    x = torch.randn(3, requires_grad=True)
    with Watch() as watch:
        y = function(x, 0.7)
    assert torch.ops.aten.atan in watch.seen
    with Watch() as watch:
        y.sum().backward()
    assert torch.ops.aten.reciprocal in watch.seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_backward_pass_raises_unless_the_graph_is_retained(backend):
    x = torch.randn(3, requires_grad=True)
    with iglu.backend(backend):
        y = iglu.iglu(x, 0.7)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_overwriting_a_saved_input_raises(backend):
    x = torch.randn(3, requires_grad=True) * 1.0
    with iglu.backend(backend):
        y = iglu.iglu(x, 0.7)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("save", ["input", "output"])
def test_a_saved_tensor_hook_may_return_another_layout_or_a_subclass(save):
    class Sub(torch.Tensor):
        pass

    x = torch.full((4, 6), -0.3, requires_grad=True)
    expected = torch.autograd.grad(iglu.iglu(x, 0.7, approximate="rational", save=save).sum(), x)[0]
    for unpack in (
        lambda t: t[:1, :1].clone().expand(4, 6),
        lambda t: torch.stack([t, t], -1)[..., 0],
        lambda t: t.t().contiguous().t(),
        lambda t: t.as_subclass(Sub),
    ):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
            y = iglu.iglu(x, 0.7, approximate="rational", save=save)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0].as_subclass(torch.Tensor), expected)


def test_every_backend_saves_the_same_shapes_and_dtypes():
    """Otherwise activation checkpointing would fail, which compares what two forward passes save."""

    def saved(context):
        found = []
        x, up = torch.randn(2, 4, 6, requires_grad=True).unbind()
        leaves = [torch.tensor([0.7], requires_grad=True), torch.rand(6, requires_grad=True)]
        with context, torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(t) or t, lambda t: t):
            for sigma in leaves:
                iglu.iglu(x, sigma)
                iglu.iglu_gate(x, sigma)
                iglu.iglu_glu(x, up, sigma)
                iglu.iglu_glu(x.repeat(1, 2), None, sigma)
                iglu.iglu(x, sigma, approximate="rational", save="output")
        return [(tuple(each.shape), each.dtype) for each in found]

    expected = saved(iglu.backend("reference"))
    assert saved(contextlib.nullcontext()) == expected
    assert saved(Watch()) == expected


def test_the_graph_node_has_the_same_name_for_every_backend():
    x = torch.randn(3, requires_grad=True)
    names = set()
    for context in (contextlib.nullcontext(), iglu.backend("reference"), Watch()):
        with context:
            names.add(type(iglu.iglu(x, 0.7).grad_fn).__name__)
    assert names == {"IgluBackward"}


def test_inference_mode_and_parameters_are_supported():
    with torch.inference_mode():
        x = torch.randn(5)
        y = iglu.iglu(x, 0.7)
        assert y.is_inference()
        with iglu.backend("reference"):
            torch.testing.assert_close(y, iglu.iglu(x, 0.7))
    if native.loops is not None:
        found = by_native_and_reference(
            iglu.iglu, (torch.nn.Parameter(torch.randn(5)), torch.nn.Parameter(torch.ones(1)))
        )
        assert_same(found, torch.float32)


UNUSUAL = {
    "negated view": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor((4,)),
    "functional": lambda: torch._to_functional_tensor(torch.randn(4)),
    "copy on write": lambda: torch._lazy_clone(torch.randn(4)),
    "empty": lambda: torch.randn(0, 4),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensor_types_give_the_values_of_plain_tensors(kind):
    x = UNUSUAL[kind]()
    dense = torch._from_functional_tensor(x) if kind == "functional" else x.clone()
    y = iglu.iglu(x, 0.7)
    y = torch._from_functional_tensor(y) if kind == "functional" else y
    torch.testing.assert_close(y, iglu.iglu(dense, 0.7))


def test_a_tensor_that_outlives_its_transform_gives_the_values_of_a_plain_tensor():
    kept = []
    x = torch.randn(3)
    torch.func.grad(lambda x: kept.append(x) or x.sum())(x)
    torch.testing.assert_close(iglu.iglu(kept[0], 0.7), iglu.iglu(x, 0.7))


# -- in place -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_an_in_place_call_that_raises_changes_nothing(backend, approximate):
    leaf = torch.randn(4, 3, requires_grad=True)
    base = torch.randn(4, 3, requires_grad=True) * 1.0
    with torch.no_grad():
        made_without_grad = base[:2]
    sigma = torch.tensor(0.7, requires_grad=True)
    with torch.inference_mode():
        inference = torch.randn(4, 3)
    refused = (
        (leaf, 0.7, "leaf Variable"),
        (leaf[:2], 0.7, "view of a leaf Variable"),
        (base.unbind()[0], 0.7, "multiple views"),
        (torch.randn(4, 3).unbind()[0], sigma, "multiple views"),
        (made_without_grad, 0.7, "no_grad mode"),
        (torch.randn(3).expand(4, 3), 0.7, "single memory location"),
        (torch.randn(3).expand(4, 3), sigma, "single memory location"),
        (inference, 0.7, "[Ii]nference"),
    )
    for x, scale, message in refused:
        before = x.detach().clone()
        with iglu.backend(backend), pytest.raises(RuntimeError, match=message):
            iglu.iglu(x, scale, approximate=approximate, inplace=True)
        assert torch.equal(x.detach(), before), message


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_in_place_on_a_view_sends_gradients_to_its_base(backend, approximate):
    x = torch.randn(6, requires_grad=True)
    with iglu.backend(backend):
        base = x * 1.0
        iglu.iglu(base[:4], 0.7, approximate=approximate, inplace=True)
        (got,) = torch.autograd.grad(base.sum(), x)
        (derivative,) = torch.autograd.grad(iglu.iglu(x, 0.7, approximate=approximate).sum(), x)
    torch.testing.assert_close(got, torch.cat([derivative[:4], torch.ones(2)]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_without_gradients_a_leaf_may_be_overwritten(backend, approximate):
    leaf = torch.randn(5, requires_grad=True)
    expected = iglu.iglu(leaf.detach(), 0.7, approximate=approximate)
    with iglu.backend(backend), torch.no_grad():
        assert iglu.iglu(leaf, 0.7, approximate=approximate, inplace=True) is leaf
    torch.testing.assert_close(leaf.detach(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
def test_in_place_works_where_only_sigma_requires_grad(backend, approximate):
    sigma = torch.tensor(0.7, requires_grad=True)
    x = torch.randn(6)
    (expected,) = torch.autograd.grad(iglu.iglu(x, sigma, approximate=approximate).sum(), sigma)
    with iglu.backend(backend):
        y = iglu.iglu(x.clone(), sigma, approximate=approximate, inplace=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), sigma)[0], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_increments_the_version_and_writes_into_a_view_with_gaps(backend):
    x = torch.randn(3, 8)
    expected = x.clone()
    expected[:, ::2] = iglu.iglu(x[:, ::2], 0.7)
    before = x._version
    with iglu.backend(backend):
        iglu.iglu(x[:, ::2], 0.7, inplace=True)
    torch.testing.assert_close(x, expected)
    assert x._version == before + 1


def test_in_place_works_in_inference_mode():
    with torch.inference_mode():
        x = torch.randn(5)
        expected = iglu.iglu(x, 0.7)
        assert iglu.iglu(x, 0.7, inplace=True) is x
        assert torch.equal(x, expected)


def test_the_rational_form_in_place_saves_only_its_output():
    saved = []
    x = torch.randn(100, requires_grad=True) * 1.0
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.clone()) or t, lambda t: t):
        y = iglu.iglu(x, 0.5, approximate="rational", inplace=True)
    assert y is x
    assert len(saved) == 1
    assert torch.equal(saved[0], y)


@pytest.mark.parametrize("flag", [1, np.True_, "yes"])
def test_any_true_value_means_in_place(flag):
    x = torch.randn(5)
    expected = iglu.iglu(x, 0.7)
    assert iglu.iglu(x, 0.7, inplace=flag) is x
    torch.testing.assert_close(x, expected)


# -- sigma --------------------------------------------------------------------------------------------


@needs_loops
@pytest.mark.parametrize(
    "sigma", [np.float64(0.7), np.float32(0.5), 1, torch.tensor(0.7), torch.tensor([0.7])], ids=repr
)
def test_sigmas_of_every_number_and_tensor_type_reach_the_native_kernels(sigma):
    x = torch.randn(50)
    with native_only():
        y = iglu.iglu(x, sigma)
    torch.testing.assert_close(y, iglu.iglu(x, float(sigma)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sigma", [1e-38, 1e-33, 1e33, 1.2e38, 3e38])
def test_no_sigma_that_float32_holds_gives_nan(backend, approximate, dtype, sigma):
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, -largest, -3.0, 0.0, 3.0, largest, math.inf], dtype=dtype)
    with iglu.backend(backend):
        for scale in (sigma, torch.tensor(sigma)):
            leaf = x.clone().requires_grad_()
            y = iglu.iglu(leaf, scale, approximate=approximate)
            (derivative,) = torch.autograd.grad(y, leaf, torch.ones_like(y))
            gate = iglu.iglu_gate(x, scale, approximate=approximate)
            for each in (y, derivative, gate):
                assert not each.isnan().any()
            expected = x / 2 if sigma < 1 else x.clamp(min=0)
            torch.testing.assert_close(
                y[2:5], expected[2:5], rtol=0, atol=1e-6 if dtype != torch.bfloat16 else 1e-2
            )
            assert y[-1] == math.inf
            assert gate[3] == 0.5


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_sigma_may_be_infinite_or_nan(backend, approximate, dtype):
    x = torch.tensor([-math.inf, -3.0, 0.0, 2.0, math.inf], dtype=dtype)
    with iglu.backend(backend):
        y = iglu.iglu(x, torch.tensor([math.inf]), approximate=approximate)
        torch.testing.assert_close(y, x.clamp(min=0))
        gate = iglu.iglu_gate(x, torch.tensor([math.inf]), approximate=approximate)
        torch.testing.assert_close(gate, torch.tensor([0, 0, 0.5, 1, 1], dtype=dtype))
        rows = iglu.iglu(x.expand(3, 5), torch.tensor([math.inf, math.nan, 0.0]), approximate=approximate,
                         channel_dim=0)  # fmt: skip
        torch.testing.assert_close(rows[0], x.clamp(min=0))
        assert rows[1].isnan().all()
        torch.testing.assert_close(rows[2], x / 2)


def test_a_float16_output_with_too_few_digits_is_not_saved():
    x = torch.tensor([-2.0, -0.5, 1.0], dtype=torch.float16)
    for sigma, inplace in itertools.product((1e6, 1e8), (False, True)):
        leaf = x.clone().requires_grad_()
        y = iglu.iglu(leaf * 1, sigma, approximate="rational", save="output", inplace=inplace)
        (derivative,) = torch.autograd.grad(y.sum(), leaf)
        assert derivative.tolist() == [0, 0, 1]


@pytest.mark.parametrize(("sigma", "is_kept"), [(1.0, True), (8192.0, True), (8193.0, False)])
def test_a_float16_output_is_saved_as_long_as_its_floor_is_a_normal_number(sigma, is_kept):
    x = torch.ones(3, dtype=torch.float16, requires_grad=True)
    y = iglu.iglu(x, sigma, approximate="rational", save="output")
    saved = [tensor for tensor in y.grad_fn.saved_tensors if tensor is not None]
    assert [tensor.data_ptr() == y.data_ptr() for tensor in saved] == [is_kept]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_pair_at_a_sigma_of_zero_rounds_once(dtype):
    gate, up = torch.tensor([3 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps, 6e4]).to(dtype)
    expected = (gate.double() / 2 * up.double()).to(dtype)
    assert iglu.iglu_glu(gate, up, 0.0) == expected


# -- profiler and compiled autograd -------------------------------------------------------------------


@needs_loops
def test_the_profiler_shows_our_names():
    x = torch.randn(10, requires_grad=True)
    cpu_only = [torch.profiler.ProfilerActivity.CPU]
    with iglu.backend("native"), torch.profiler.profile(activities=cpu_only) as profile:
        iglu.iglu(x, 0.7).sum().backward()
        iglu.iglu_gate(x, 0.7)
        iglu.iglu_glu(x, x, 0.7)
    names = {event.key for event in profile.key_averages()}
    assert {"iglu::value", "iglu::gate", "iglu::glu", "IgluBackward"} <= names


def test_no_operators_are_registered_with_torch():
    assert not [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("iglu::")]


@needs_compiler
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"approximate": "rational", "save": "output"}])
def test_compiled_autograd_traces_the_backward_pass_in_one_graph(options):
    torch._dynamo.reset()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    x = torch.randn(8, requires_grad=True)
    sigma = torch.tensor(0.7, requires_grad=True)
    expected = torch.autograd.grad(iglu.iglu(x, sigma, **options).square().sum(), (x, sigma))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend=count, fullgraph=True)):
        iglu.iglu(x, sigma, **options).square().sum().backward()
    assert len(graphs) == 1
    torch.testing.assert_close((x.grad, sigma.grad), expected)


@needs_compiler
@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_also_traces_the_gradient_of_a_gradient():
    torch._dynamo.reset()
    x = torch.randn(8, requires_grad=True)
    sigma = torch.tensor(0.7, requires_grad=True)

    def penalty():
        return sum(
            each.square().sum()
            for each in torch.autograd.grad(iglu.iglu(x, sigma).sum(), (x, sigma), create_graph=True)
        )

    expected, loss = torch.autograd.grad(penalty(), (x, sigma)), penalty()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        loss.backward()
    torch.testing.assert_close((x.grad, sigma.grad), expected)


# -- choosing a backend -------------------------------------------------------------------------------


@needs_loops
def test_explain_gives_the_backend_and_the_reason():
    with iglu.backend("auto"):
        assert iglu.explain(torch.ones(3)) == f"native: {native.loops.capability()} loops"
        assert iglu.explain(torch.ones(4, 4)[:, ::2]).startswith("native: ")
        assert (
            iglu.explain(torch.ones(3, device="meta")) == "reference: expected a CPU tensor, got one on meta"
        )
        assert "int64" in iglu.explain(torch.ones(3, dtype=torch.int64))
        assert "layout torch.sparse_coo" in iglu.explain(torch.ones(3).to_sparse())
        assert "expected a Tensor, got list" in iglu.explain([1.0])
        assert torch.func.vmap(lambda x: x * ("transform" in iglu.explain(x)))(torch.ones(2)).min() == 1
    with iglu.backend("reference"):
        assert iglu.explain(torch.ones(3)) == "reference: selected by name"


class PassOn(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@needs_loops
@pytest.mark.parametrize(
    "context",
    [lambda: torch.device("cpu"), lambda: torch.device("meta"), PassOn, Watch, contextlib.nullcontext],
)
def test_explain_names_the_kernels_that_run_in_a_mode(context, monkeypatch):
    seen = []
    formulas = reference.forward
    monkeypatch.setattr(reference, "forward", lambda *call: seen.append(call) or formulas(*call))
    x = torch.ones(3)
    with iglu.backend("auto"), context():
        text = iglu.explain(x)
        iglu.iglu(x)
    assert text.partition(":")[0] == ("reference" if seen else "native")
    assert bool(seen) == (context is Watch)
    with iglu.backend("auto"), PassOn(), torch.device("cpu"):
        assert iglu.explain(x).startswith("native: ")
        assert "expected a Tensor, got list" in iglu.explain([1.0])


def test_a_call_is_offered_to_the_native_kernels_once(monkeypatch):
    offered = []
    decline = autograd.Kernels(*[lambda *call: offered.append(call)] * 3)
    monkeypatch.setitem(autograd.KERNELS, "native", decline)
    token = kernels.current.set(kernels.Backend("auto", decline.forward))
    try:
        for call in (iglu.iglu, iglu.iglu_gate, iglu.iglu_glu):
            call(torch.ones(4))
    finally:
        kernels.current.reset(token)
    assert [operation for operation, *_ in offered] == ["value", "gate", "glu"]


@needs_loops
def test_a_named_backend_that_does_not_support_a_call_raises():
    x = torch.randn(4, dtype=torch.complex64).conj().imag
    for options in ({}, {"inplace": True}, {"approximate": "rational", "save": "output"}):
        with (
            iglu.backend("native"),
            pytest.raises(RuntimeError, match="'native' does not support this call: expected a dense"),
        ):
            iglu.iglu(x, **options)


@needs_loops
def test_a_named_backend_supports_calls_that_need_no_kernel():
    with iglu.backend("native"):
        assert iglu.iglu(torch.ones(2), 0.0).tolist() == [0.5, 0.5]
        assert iglu.iglu(torch.ones(2), math.inf).tolist() == [1, 1]
        assert iglu.iglu(torch.ones(0, 3)).shape == (0, 3)


def test_an_unknown_backend_raises_with_the_known_ones():
    with (
        pytest.raises(ValueError, match="'auto', 'native', 'triton', 'reference', got 'cuda'"),
        iglu.backend("cuda"),
    ):
        pass


def test_an_unavailable_backend_raises_with_how_to_enable_it(monkeypatch):
    monkeypatch.setattr(native, "loops", None)
    monkeypatch.setattr(native, "unavailable_reason", "the loops (iglu._kernels) were not built: no compiler")
    with (
        pytest.raises(RuntimeError, match=r"no compiler\. To enable it: pip install"),
        iglu.backend("native"),
    ):
        pass
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.raises(RuntimeError, match="'triton' is not available: torch finds no GPU"),
        iglu.backend("triton"),
    ):
        pass


def test_the_previous_backend_is_restored_after_an_error():
    before = kernels.current.get()
    with pytest.raises(KeyError), iglu.backend("reference"):
        raise KeyError
    assert kernels.current.get() is before


def test_each_thread_has_its_own_backend():
    process = kernels.current.get().name
    found, inside, leave = {}, threading.Event(), threading.Event()

    def choose():
        found["new thread"] = kernels.current.get().name
        with iglu.backend("reference"):
            inside.set()
            leave.wait(10)
            found["chosen"] = kernels.current.get().name
        found["after"] = kernels.current.get().name

    with iglu.backend("reference"):
        thread = threading.Thread(target=choose)
        thread.start()
        inside.wait(10)
    found["here"] = kernels.current.get().name
    leave.set()
    thread.join()
    assert found == {"new thread": process, "chosen": "reference", "after": process, "here": process}


@needs_loops
def test_the_backward_pass_uses_the_backend_of_its_forward_pass(monkeypatch):
    x = torch.randn(3, requires_grad=True)
    with iglu.backend("reference"):
        by_formulas = iglu.iglu(x, 0.7)
    with iglu.backend("native"):
        by_loops = iglu.iglu(x, 0.7)
    monkeypatch.setattr(autograd, "differentiable_gradients", _fell_through)
    with iglu.backend("reference"):
        by_loops.sum().backward()
    with pytest.raises(AssertionError, match="not served"):
        by_formulas.sum().backward()


@needs_compiler
@pytest.mark.parametrize(("approximate", "dtype"), [("rational", torch.float32), ("none", torch.float64)])
def test_a_program_compiled_for_one_sigma_is_right_for_the_next(approximate, dtype):
    """No constant of the first sigma may remain in it: the bound at which |x| is cut depends on sigma."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, sigma: iglu.iglu(x, sigma, approximate=approximate), dynamic=True)
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, -largest, -1.0, 2.0], dtype=dtype)
    for sigma in (0.5, largest / 1e8, 3.0):
        floor = -1 / (math.pi * sigma) if approximate == "none" else -1 / (2 * sigma)
        found = compiled(x, sigma)
        torch.testing.assert_close(found[:2], torch.full((2,), floor, dtype=dtype), rtol=1e-6, atol=0)
        torch.testing.assert_close(found, iglu.iglu(x, sigma, approximate=approximate), rtol=1e-6, atol=0)
