"""Which kernel serves a call; and that the entry, the pointers and the plain path are one function."""

import contextlib
import itertools
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import iglu
from iglu import kernels
from iglu.kernels import native, pointers

needs_loops = pytest.mark.skipif(native.loops is None, reason=native.why_no_loops)
needs_entry = pytest.mark.skipif(native.entry is None, reason=native.why_no_entry)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
FAMILIES = ("none", "rational")


@pytest.fixture(
    params=[pytest.param("entry", marks=needs_entry), pytest.param("pointers", marks=needs_loops)]
)
def native_path(request, monkeypatch):
    """Each way to the loops in turn."""
    if request.param == "pointers":
        for name in ("value", "gate", "glu"):
            monkeypatch.setattr(kernels, name, getattr(pointers, name))
    return request.param


def _served(function, *arguments, **options):
    """The result, and a check that the native kernels gave it."""
    with iglu.backend("plain"):
        expected = function(*arguments, **options)
    kernels._chosen, before = "native", kernels._chosen  # raises where the call falls through
    try:
        return function(*arguments, **options), expected
    finally:
        kernels._chosen = before


LAYOUTS = {
    "vector": lambda: torch.randn(1037),
    "contiguous": lambda: torch.randn(3, 5, 7, 4),
    "channels_last": lambda: torch.randn(3, 5, 7, 4).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.randn(6, 5).t(),
    "permuted": lambda: torch.randn(3, 4, 5, 6).permute(2, 0, 3, 1),
    "scalar": lambda: torch.randn(()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [iglu.iglu, iglu.iglu_gate])
@pytest.mark.parametrize("kind", ["number", "one", "channels"])
def test_native_values_and_gradients_are_those_of_the_formulas(
    native_path, layout, approximate, dtype, function, kind
):
    torch.manual_seed(0)
    x = (LAYOUTS[layout]() * 3).to(dtype)
    if kind == "channels" and x.dim() < 2:
        pytest.skip("no channels in this layout")
    sigma = {
        "number": lambda: 0.7,
        "one": lambda: torch.tensor([0.7]),
        "channels": lambda: torch.rand(x.shape[1]) + 0.2,
    }[kind]()
    tolerance = {"rtol": 16 * torch.finfo(dtype).eps, "atol": 1e-5 if dtype != torch.float64 else 1e-13}
    _served(function, x, sigma, approximate=approximate)
    results = []
    grad = torch.randn_like(x)
    for name in ("native", "plain"):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        leaves = [leaf]
        scale = sigma
        if isinstance(sigma, torch.Tensor):
            scale = sigma.clone().requires_grad_()
            leaves.append(scale)
        if name == "plain":
            with iglu.backend("plain"):
                y = function(leaf, scale, approximate=approximate)
        else:
            y = function(leaf, scale, approximate=approximate)
            assert y.stride() == torch.nn.functional.gelu(x).stride()
        results.append((y, *torch.autograd.grad(y, leaves, grad)))
    for got, expected in zip(*results, strict=True):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected, **tolerance)


@pytest.mark.parametrize("options", [{"save": "output"}, {"inplace": True}])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["number", "one", "channels"])
def test_native_gradients_from_the_output_are_the_formulas(native_path, options, layout, dtype, kind):
    torch.manual_seed(0)
    x = (LAYOUTS[layout]() * 3).to(dtype)
    sigma = {"number": 0.7, "one": torch.tensor(0.7), "channels": torch.rand(x.shape[1]) - 0.3}[kind]
    grad = torch.randn_like(x)
    results = []
    for backend in ("native", "plain"):
        leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_()]
        if isinstance(sigma, torch.Tensor):
            leaves.append(sigma.clone().requires_grad_())
        scale = leaves[1] if len(leaves) > 1 else sigma
        with iglu.backend(backend) if backend == "plain" else contextlib.nullcontext():
            y = iglu.iglu(leaves[0] * 1, scale, approximate="rational", **options)
        results.append((y, *torch.autograd.grad(y, leaves, grad)))
    rtol, atol = (1e-11, 1e-11) if dtype == torch.float64 else (64 * torch.finfo(dtype).eps, 2e-2)
    if dtype == torch.float32:
        atol = 1e-4
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=atol)


def test_the_output_is_kept_alone_and_a_leaf_is_protected(native_path):
    saved = []
    x = torch.randn(100, requires_grad=True) * 1.0
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        y = iglu.iglu(x, 0.5, approximate="rational", inplace=True)
    assert y is x
    assert saved == [x.data_ptr()]
    with pytest.raises(RuntimeError, match="leaf Variable"):
        iglu.iglu(torch.randn(3, requires_grad=True), 0.7, approximate="rational", inplace=True)
    base = torch.randn(6, requires_grad=True) * 1.0
    iglu.iglu(base[:4], 0.7, approximate="rational", inplace=True)
    assert torch.autograd.grad(base.sum(), base, retain_graph=True)[0].shape == (6,)


PAIRS = {
    "dense": lambda: (torch.randn(4, 6, 10), torch.randn(4, 6, 10)),
    "channels_last": lambda: tuple(
        torch.randn(2, 4, 3, 5).to(memory_format=torch.channels_last) for _ in range(2)
    ),
    "halves": lambda: torch.randn(4, 6, 20).chunk(2, -1),
    "unequal": lambda: (torch.randn(4, 6, 10), torch.randn(4, 6, 20)[..., 5:15]),
    "packed": lambda: (torch.randn(4, 6, 20), None),
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("approximate", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["number", "one", "last", "middle"])
def test_the_native_pair_is_that_of_the_formulas(native_path, pair, approximate, dtype, kind):
    torch.manual_seed(0)
    gate, up = (None if each is None else (each * 2).to(dtype) for each in PAIRS[pair]())
    width = gate.shape[-1] // (2 if up is None else 1)
    channel_dim = -1 if kind == "last" else 1
    sigma = {"number": 0.7, "one": torch.tensor(0.7), "last": torch.rand(width) + 0.2,
             "middle": torch.rand(gate.shape[1]) + 0.2}[kind]  # fmt: skip
    results = []
    for name in ("native", "plain"):
        leaves = [each.detach().requires_grad_() for each in (gate, up) if each is not None]
        arguments = leaves if up is not None else [leaves[0], None]
        scale = sigma
        if isinstance(sigma, torch.Tensor):
            scale = sigma.clone().requires_grad_()
            leaves = [*leaves, scale]
        if name == "plain":
            with iglu.backend("plain"):
                y = iglu.iglu_glu(*arguments, scale, approximate=approximate, channel_dim=channel_dim)
        else:
            _served(iglu.iglu_glu, *arguments, scale, approximate=approximate, channel_dim=channel_dim)
            y = iglu.iglu_glu(*arguments, scale, approximate=approximate, channel_dim=channel_dim)
        results.append((y, *torch.autograd.grad(y, leaves, torch.full((), 0.5, dtype=dtype).expand_as(y))))
    for got, expected in zip(*results, strict=True):
        atol = {torch.float64: 1e-13, torch.float32: 3e-6}.get(dtype, 2e-2)
        torch.testing.assert_close(got, expected, rtol=16 * torch.finfo(dtype).eps, atol=atol)


def test_strided_and_expanded_gradients_are_right(native_path):
    x = torch.randn(6, 8, requires_grad=True)
    y = iglu.iglu(x, 0.7)
    with iglu.backend("plain"):
        slope = torch.autograd.grad(iglu.iglu(x, 0.7), x, torch.ones(6, 8))[0]
    for grad in (
        torch.ones(()).expand(6, 8),
        torch.randn(8, 6).t(),
        torch.randn(6, 1).expand(6, 8),
        torch.randn(6, 16)[:, ::2],
    ):
        torch.testing.assert_close(torch.autograd.grad(y, x, grad, retain_graph=True)[0], grad * slope)


def test_double_backward_and_higher_go_through(native_path):
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    up = torch.randn(5, dtype=torch.float64, requires_grad=True)
    for approximate in FAMILIES:
        assert torch.autograd.gradgradcheck(
            lambda x, s, a=approximate: iglu.iglu(x, s, approximate=a), (x, sigma)
        )
        assert torch.autograd.gradgradcheck(
            lambda x, u, s, a=approximate: iglu.iglu_glu(x, u, s, approximate=a), (x, up, sigma)
        )
        assert torch.autograd.gradgradcheck(
            lambda p, a=approximate: iglu.iglu_glu(p, approximate=a), (torch.cat([x, up]),)
        )


def test_forward_mode_is_never_silently_zero(native_path):
    x, tangent = torch.randn(4), torch.ones(4)
    _, slope = torch.func.jvp(lambda x: iglu.iglu(x, 0.7), (x,), (tangent,))
    assert (slope > 0).all()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        _, slope = torch.autograd.forward_ad.unpack_dual(iglu.iglu(dual, 0.7))
    assert (slope > 0).all()


def test_dispatch_modes_see_what_is_computed(native_path):
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        iglu.iglu(torch.randn(3), 0.7)
    assert seen


def test_backward_twice_is_refused_unless_retained(native_path):
    x = torch.randn(3, requires_grad=True)
    y = iglu.iglu(x, 0.7)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)


def test_a_saved_input_that_is_overwritten_is_noticed(native_path):
    x = torch.randn(3, requires_grad=True) * 1.0
    y = iglu.iglu(x, 0.7)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_bumps_the_version(native_path):
    x = torch.randn(3)
    before = x._version
    iglu.iglu(x, 0.7, inplace=True)
    assert x._version == before + 1


def test_inference_mode_and_parameters_are_served(native_path):
    with torch.inference_mode():
        y, expected = _served(iglu.iglu, torch.randn(5), 0.7)
        torch.testing.assert_close(y, expected)
        assert y.is_inference()
    y, expected = _served(iglu.iglu, torch.nn.Parameter(torch.randn(5)), 0.7)
    torch.testing.assert_close(y, expected)


def test_negated_views_are_read_as_negative(native_path):
    x = torch.randn(4, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    torch.testing.assert_close(iglu.iglu(x, 0.7), iglu.iglu(x.clone(), 0.7))


@needs_loops
@pytest.mark.parametrize("approximate", FAMILIES)
def test_the_sigma_gradient_does_not_depend_on_the_number_of_threads(native_path, approximate):
    x = torch.randn(3, 7, 40_000)
    found = []
    before = torch.get_num_threads()
    try:
        for threads, channels in itertools.product((1, 2), (False, True)):
            torch.set_num_threads(threads)
            sigma = torch.full((7,) if channels else (), 0.7, requires_grad=True)
            found.append(torch.autograd.grad(iglu.iglu(x, sigma, approximate=approximate).sum(), sigma)[0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert found[1].sum().item() == pytest.approx(found[0].item(), rel=1e-6)


@needs_entry
def test_the_profiler_shows_our_names():
    x = torch.randn(10, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        iglu.iglu(x, 0.7).sum().backward()
        iglu.iglu_gate(x, 0.7)
        iglu.iglu_glu(x, x, 0.7)
    names = {event.key for event in profile.key_averages()}
    assert {"iglu::value", "iglu::gate", "iglu::glu", "IgluBackward"} <= names


@needs_entry
def test_the_registered_operation_refuses_what_it_does_not_serve():
    with pytest.raises(
        RuntimeError, match=r"iglu::value serves dense floating-point CPU tensors; call iglu\.iglu"
    ):
        torch.ops.iglu.value(torch.ones(3, dtype=torch.int64), None, None, 1.0, 1, 0)


@needs_entry
@pytest.mark.filterwarnings("ignore")
def test_compiled_autograd_traces_the_backward():
    torch._dynamo.reset()
    x = torch.randn(8, requires_grad=True)
    sigma = torch.tensor(0.7, requires_grad=True)
    expected = torch.autograd.grad(iglu.iglu(x, sigma).square().sum(), (x, sigma))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        iglu.iglu(x, sigma).square().sum().backward()
    torch.testing.assert_close((x.grad, sigma.grad), expected)


# -- choosing ---------------------------------------------------------------------------------------


@needs_loops
def test_explain_says_which_kernel_serves_and_why():
    assert iglu.explain(torch.ones(3)).startswith("native: ")
    assert (
        iglu.explain(torch.ones(3, device="meta"))
        == "plain: x is on meta, and the native kernels run on the CPU"
    )
    assert "gaps" in iglu.explain(torch.ones(4, 4)[:, ::2])
    assert "int64" in iglu.explain(torch.ones(3, dtype=torch.int64))
    assert torch.func.vmap(lambda x: x * len(iglu.explain(x)))(torch.ones(2)).min() > 0
    with iglu.backend("plain"):
        assert iglu.explain(torch.ones(3)) == "plain: asked for by name"


@needs_loops
def test_a_named_backend_that_cannot_serve_raises():
    with (
        iglu.backend("native"),
        pytest.raises(RuntimeError, match="cannot serve this call: the memory of x has gaps"),
    ):
        iglu.iglu(torch.ones(4, 4)[:, ::2])


def test_an_unknown_backend_is_named_with_the_choice():
    with (
        pytest.raises(ValueError, match="'auto', 'native', 'triton', 'plain', got 'cuda'"),
        iglu.backend("cuda"),
    ):
        pass


def test_a_missing_backend_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(native, "loops", None)
    monkeypatch.setattr(native, "why_no_loops", "the loops (iglu._kernels) were not built: no compiler")
    with pytest.raises(RuntimeError, match=r"no compiler\. To get it: pip install"), iglu.backend("native"):
        pass


def test_the_backend_returns_to_what_it_was_after_an_error():
    before = kernels._chosen
    with pytest.raises(KeyError), iglu.backend("plain"):
        raise KeyError
    assert kernels._chosen == before


@needs_loops
def test_special_sigmas_are_served_by_the_plain_path_even_where_native_is_named():
    with iglu.backend("native"):
        assert iglu.iglu(torch.ones(2), 0.0).tolist() == [0.5, 0.5]
        assert iglu.iglu(torch.ones(2), math.inf).tolist() == [1, 1]
