"""IGLU under torch.compile, export, ONNX, autocast and tracing, and with fake and distributed tensors."""

import contextlib
import copy
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import iglu

from truth import needs_compiler

FAMILIES = ("none", "rational")
both = pytest.mark.parametrize("approximate", FAMILIES)


def _model(approximate="none", **options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), iglu.IGLU(0.7, approximate=approximate, **options), nn.Linear(8, 3))


@needs_compiler
@both
@pytest.mark.parametrize(
    "options", [{}, {"learnable": True}, {"learnable": True, "channels": 8, "channel_dim": 1}]
)
def test_compile_gives_the_eager_values_and_gradients_in_one_graph(approximate, options):
    torch._dynamo.reset()
    eager = _model(approximate, **options)
    compiled_from = copy.deepcopy(eager)
    x = torch.cat([torch.randn(16, 6), torch.zeros(1, 6)])
    eager(x).square().sum().backward()
    torch.compile(compiled_from, fullgraph=True)(x).square().sum().backward()
    for expected, got in zip(eager.parameters(), compiled_from.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_compile_supports_sigma_as_an_argument_and_the_gated_pair():
    torch._dynamo.reset()

    @torch.compile(fullgraph=True)
    def function(gate, up, sigma):
        return iglu.iglu_glu(gate, up, sigma) + iglu.iglu_gate(gate, sigma) + iglu.gelu_scaled(up)

    gate, up = torch.randn(2, 32, requires_grad=True).unbind()
    for sigma in (0.5, 1.5, torch.tensor(0.3, requires_grad=True)):
        expected = iglu.iglu_glu(gate, up, sigma) + iglu.iglu_gate(gate, sigma) + iglu.gelu_scaled(up)
        torch.testing.assert_close(function(gate, up, sigma), expected)


@needs_compiler
@pytest.mark.parametrize("sigma", [1e-30, 3e38])
def test_compiled_values_are_accurate_for_extreme_x_and_sigma(sigma):
    def both(x):
        return [iglu.iglu(x, sigma, approximate=approximate) for approximate in ("none", "rational")]

    torch.compiler.reset()  # or sigma would become an argument of the last program
    x = torch.tensor([-math.inf, -3e38, -1e30, -1.0, -0.0, 0.0, 1.0, 1e30, 3e38, math.inf, math.nan])
    for y, expected in zip(torch.compile(both, fullgraph=True)(x), both(x.double()), strict=True):
        torch.testing.assert_close(y, expected.float(), rtol=1e-6, atol=1e-44, equal_nan=True)
        assert y.signbit()[4:6].tolist() == [True, False]


@needs_compiler
def test_compiled_gradient_at_zero_is_one_half():
    torch._dynamo.reset()
    for approximate in FAMILIES:
        x = torch.zeros(4, requires_grad=True)
        torch.compile(lambda x, a=approximate: iglu.iglu(x, 1.0, approximate=a), fullgraph=True)(
            x
        ).sum().backward()
        assert x.grad.tolist() == [0.5] * 4


@both
@pytest.mark.parametrize("options", [{}, {"learnable": True}])
@pytest.mark.parametrize("strict", [False, True])
def test_export_gives_plain_aten_operations(approximate, options, strict):
    model = _model(approximate, **options).eval()
    x = torch.randn(5, 6)
    program = torch.export.export(model, (x,), strict=strict)
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert targets
    assert all(isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" for target in targets)
    torch.testing.assert_close(program.module()(x), model(x))


@both
def test_a_trained_export_has_finite_gradients_at_zero(approximate):
    model = _model(approximate)
    program = torch.export.export(model, (torch.randn(5, 6),))
    x = torch.zeros(5, 6, requires_grad=True)
    with torch.no_grad():
        model[0].bias.zero_()
    program.module()(x).sum().backward()
    assert x.grad.isfinite().all()


@both
def test_a_trained_export_has_the_gradients_of_the_module_out_to_the_infinities(approximate):
    module = iglu.IGLU(0.7, learnable=True, approximate=approximate)
    x = torch.tensor([-math.inf, -3e38, -1e30, -1e15, -2.0, 2.0, 1e15, 1e30, 3e38, math.inf])
    program = torch.export.export(module, (x,)).module()

    def gradients(of):
        leaf = x.clone().requires_grad_()
        y = of(leaf)
        return torch.autograd.grad(y, [leaf, *of.parameters()], torch.ones_like(y))

    torch.testing.assert_close(gradients(program), gradients(module))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.filterwarnings("ignore")  # those of the exporter
def test_an_onnx_export_gives_the_same_values_in_onnxruntime(approximate, dtype, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    module = iglu.IGLU(0.7, approximate=approximate)
    x = torch.cat([torch.randn(200) * 5, torch.tensor([0.0, -3e4, 3e4])]).to(dtype)
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    file = tmp_path / "iglu.onnx"
    program.save(file)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), module(x), rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_export_with_a_fixed_sigma_has_six_nodes_and_the_right_limits(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    module = iglu.IGLU(0.7, approximate="rational")
    x = torch.tensor([-torch.inf, -1e30, -0.0, 0.0, 1e-38, 1e30, torch.inf])
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    assert sorted(node.op_type for node in program.model.graph) == [
        "Abs", "Add", "Div", "Reciprocal", "Relu", "Sub",
    ]  # fmt: skip
    program.save(tmp_path / "iglu.onnx")
    session = runtime.InferenceSession(tmp_path / "iglu.onnx", providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), module(x))


@both
def test_autocast_does_not_change_the_dtype(approximate):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(8, dtype=dtype)
            assert iglu.iglu(x, 0.5, approximate=approximate).dtype == dtype


@both
def test_autocast_trains_a_model_with_a_learnable_sigma(approximate):
    model = _model(approximate, learnable=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(4, 6)).float().square().sum()
    loss.backward()
    assert model[1].log_sigma.grad.dtype == torch.float32
    assert model[1].log_sigma.grad.abs() > 0


def test_symbolic_tracing_treats_the_function_as_a_leaf():
    traced = torch.fx.symbolic_trace(_model(learnable=True))
    assert [node.target for node in traced.graph.nodes if node.target is iglu.iglu] == [iglu.iglu]
    x = torch.randn(4, 6)
    torch.testing.assert_close(traced(x), _model(learnable=True)(x))


@pytest.mark.parametrize("options", [{}, {"learnable": True}, {"learnable": True, "channels": 4}])
def test_symbolic_tracing_supports_the_gated_module(options):
    for dim, layer, x in (
        (-1, nn.Linear(6, 8), torch.randn(4, 6)),
        (1, nn.Conv1d(6, 8, 3), torch.randn(2, 6, 5)),
    ):
        model = nn.Sequential(layer, iglu.IGLUGLU(0.7, dim=dim, **options))
        traced = torch.fx.symbolic_trace(model)
        assert iglu.iglu_glu in [node.target for node in traced.graph.nodes]
        torch.testing.assert_close(traced(x), model(x))


def test_torch_function_modes_see_the_function():
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        iglu.iglu(torch.randn(3))
        iglu.iglu_gate(torch.randn(3))
        iglu.iglu_glu(torch.randn(3), torch.randn(3))
        iglu.gelu_scaled(torch.randn(3))
    for function in (iglu.iglu, iglu.iglu_gate, iglu.iglu_glu, iglu.gelu_scaled):
        assert function in seen


def test_tensor_subclasses_are_preserved():
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(5).as_subclass(Tagged)
    y = iglu.iglu(x, 0.5)
    assert type(y) is Tagged
    torch.testing.assert_close(y.as_subclass(torch.Tensor), iglu.iglu(x.as_subclass(torch.Tensor), 0.5))


def test_meta_and_fake_tensors_have_the_right_shape_and_no_data():
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    y = iglu.iglu(x, torch.ones(3, device="meta", requires_grad=True))
    y.sum().backward()
    assert y.is_meta
    assert x.grad.shape == x.shape
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.randn(4, 5, dtype=torch.bfloat16))
        assert iglu.iglu(fake).shape == (4, 5)
        assert iglu.iglu(fake).dtype == torch.bfloat16


@both
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(approximate, reentrant):
    x = torch.randn(4, 6, requires_grad=True)
    model = _model(approximate, learnable=True)
    expected = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    model.zero_grad()
    leaf = x.detach().clone().requires_grad_()
    checkpoint(model, leaf, use_reentrant=reentrant).sum().backward()
    for got, want in zip([leaf.grad, *[p.grad for p in model.parameters()]], expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("first", ["mode", "no mode"])
def test_checkpointing_works_if_a_dispatch_mode_is_active_in_one_pass_only(first):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model = _model(learnable=True)
    x = torch.randn(4, 6, requires_grad=True)
    expected = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    with Watch() if first == "mode" else contextlib.nullcontext():
        y = checkpoint(model, x, use_reentrant=False).sum()
    with Watch() if first != "mode" else contextlib.nullcontext():
        got = torch.autograd.grad(y, [x, *model.parameters()])
    torch.testing.assert_close(got, expected)


SAVING_OUTPUT = [{"save": "output"}, {"inplace": True}]


@pytest.mark.parametrize("options", SAVING_OUTPUT)
@pytest.mark.parametrize("reentrant", [True, False])
def test_saving_the_output_works_under_checkpointing(options, reentrant):
    x = torch.randn(4, 6)
    plain, saving = _model("rational"), _model("rational", **options)
    plain(x).sum().backward()
    checkpoint(saving, x.clone().requires_grad_(), use_reentrant=reentrant).sum().backward()
    for got, want in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.parametrize("options", SAVING_OUTPUT)
def test_saving_the_output_works_under_autocast(options):
    plain, saving = _model("rational"), _model("rational", **options)
    x = torch.randn(4, 6)
    for model in (plain, saving):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().sum()
        loss.backward()
    for got, want in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=0.05, atol=0.05)


@needs_compiler
@pytest.mark.parametrize("options", SAVING_OUTPUT)
def test_saving_the_output_is_supported_by_the_compiler(options):
    torch._dynamo.reset()
    model = _model("rational", **options)
    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))


def test_dispatch_modes_see_aten_operations():
    from torch.utils._python_dispatch import TorchDispatchMode

    names = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func.namespace)
            return func(*args, **(kwargs or {}))

    x = torch.randn(3)
    with Watch():
        iglu.iglu(x)
    assert set(names) == {"aten"}


@pytest.fixture
def mesh(tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@both
def test_distributed_tensors_give_the_values_and_sigma_gradients_of_plain_tensors(approximate, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x = torch.randn(4, 6)
    sharded = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    y = iglu.iglu(sharded, 0.7, approximate=approximate)
    assert y.placements == (Shard(0),)
    torch.testing.assert_close(y.full_tensor(), iglu.iglu(x, 0.7, approximate=approximate))
    sigma = distribute_tensor(torch.rand(6) + 0.5, mesh, [Replicate()]).requires_grad_()
    iglu.iglu(sharded, sigma, approximate=approximate).sum().backward()
    x.requires_grad_()
    leaf = sigma.full_tensor().detach().requires_grad_()
    iglu.iglu(x, leaf, approximate=approximate).sum().backward()
    torch.testing.assert_close(sharded.grad.full_tensor(), x.grad)
    torch.testing.assert_close(sigma.grad.full_tensor(), leaf.grad)


@pytest.mark.parametrize("options", SAVING_OUTPUT)
def test_saving_the_output_works_in_data_parallel_training(options, mesh):
    plain, saving = _model("rational"), _model("rational", **options)
    x = torch.randn(4, 6)
    plain(x).sum().backward()
    nn.parallel.DistributedDataParallel(saving)(x).sum().backward()
    for got, want in zip(saving.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad)


@pytest.mark.filterwarnings("ignore")
def test_the_repr_of_a_sharded_module_shows_a_question_mark_instead_of_a_part_of_sigma(mesh):
    from torch.distributed.fsdp import fully_shard

    for options in ({}, {"channels": 8, "channel_dim": 1}):
        model = _model(learnable=True, **options)
        before = repr(model[1])
        fully_shard(model, mesh=mesh)
        assert repr(model[1]).removeprefix("FSDP") == before.replace("sigma=0.7", "sigma=?")
    alpha = fully_shard(iglu.create("xielu"), mesh=mesh)
    assert repr(alpha).removeprefix("FSDP") == "XIELU(alpha_p=?, alpha_n=?)"


@pytest.mark.filterwarnings("ignore")
def test_fully_sharded_data_parallel_trains_a_learnable_sigma(mesh):
    from torch.distributed.fsdp import fully_shard

    model = _model(learnable=True)
    before = model[1].sigma.item()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 6)).square().sum().backward()
    optimizer.step()
    assert model[1].log_sigma.full_tensor().exp().item() != before
