"""The GPU backend where there is no GPU: selected or not, interpreted, and compiled ahead of time."""

from __future__ import annotations

import inspect
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest
import torch

import iglu
from iglu import kernels
from iglu.kernels import autograd, triton

TESTS = pathlib.Path(__file__).parent
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}


def test_the_kernels_pass_their_tests_in_the_interpreter():
    pytest.importorskip("triton")
    if torch.cuda.is_available() or IS_INTERPRETED:
        pytest.skip("test_triton_kernels.py runs by itself")
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    options = "-q -p no:cacheprovider -o addopts="
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(TESTS / "test_triton_kernels.py")],
        env=environment | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"\d{2,} passed", run.stdout), run.stdout


def test_importing_the_package_and_calling_it_on_the_cpu_does_not_import_triton():
    program = "import sys, torch, iglu; iglu.iglu(torch.ones(3)); print('triton' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], cwd=TESTS.parent, capture_output=True, text=True)
    assert run.stdout.strip() == "False", run.stderr


# -- selection, with the CPU as a fake GPU -----------------------------------------------------------


class FakeKernel:
    """Counts its launches and writes zeros."""

    def __init__(self):
        self.launches = 0

    def __getitem__(self, grid):
        def launch(y, *arguments, **options):
            self.launches += 1
            y.zero_()

        return launch


@pytest.fixture
def fake_gpu(monkeypatch):
    """Tensors on the CPU count as those of a GPU, and the CPU kernels support nothing."""
    kernel = FakeKernel()
    monkeypatch.setattr(triton, "device_type", "cpu")
    monkeypatch.setattr(triton, "load", lambda: (types.SimpleNamespace(iglu_forward=kernel), ""))
    monkeypatch.setattr(triton, "failure", lambda *_: "")
    token = kernels.current.set(kernels.Backend("auto", lambda *_: None))
    yield kernel
    kernels.current.reset(token)


def test_auto_runs_the_kernels_for_tensors_of_the_gpu(fake_gpu):
    assert not iglu.iglu(torch.ones(3)).any()
    assert fake_gpu.launches == 1
    assert iglu.explain(torch.ones(3)) == "triton: passed its check"


UNSUPPORTED = {
    "float64": lambda: (torch.ones(3, dtype=torch.float64), 1.0),
    "another device": lambda: (torch.ones(3, device="meta"), 1.0),
    "empty": lambda: (torch.ones(0), 1.0),
    "a subclass": lambda: (torch.ones(3).as_subclass(type("Sub", (torch.Tensor,), {})), 1.0),
    "sigma below the range": lambda: (torch.ones(3), 1e-35),
    "sigma on another device": lambda: (torch.ones(3, device="cpu"), torch.ones(3, device="meta")),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_call_launches_nothing_and_has_a_reason(fake_gpu, case):
    x, sigma = UNSUPPORTED[case]()
    kernel, reason = triton.select("forward", "value", x, None, sigma, "none")
    assert kernel is None
    assert reason
    assert triton.forward("value", x, None, sigma, "none", 0) is None
    assert fake_gpu.launches == 0


def test_transforms_and_forward_mode_use_the_formulas(fake_gpu):
    x = torch.linspace(-2, 2, 4)
    expected = autograd.call("value", x, None, 1.0, "none", 0)
    with torch.autograd.forward_ad.dual_level():
        assert torch.equal(iglu.iglu(x, 1.0), expected)
    assert torch.equal(torch.func.vmap(lambda x: iglu.iglu(x, 1.0))(x), expected)
    assert fake_gpu.launches == 0


def test_a_kernel_that_failed_its_check_is_not_launched(fake_gpu, monkeypatch):
    monkeypatch.setattr(triton, "failure", lambda *_: "wrong by a factor of 2")
    x = torch.ones(3)
    assert torch.equal(iglu.iglu(x, 1.0), autograd.call("value", x, None, 1.0, "none", 0))
    assert fake_gpu.launches == 0
    assert iglu.explain(x) == "reference: wrong by a factor of 2"


def test_under_graph_capture_an_unchecked_kernel_falls_back(monkeypatch):
    kernel = triton.Kernel("forward", "value", False, "none", torch.float32, None)
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(triton, "check", lambda *_: pytest.fail("checked under capture"))
    monkeypatch.setattr(triton, "_failures", {})
    assert "before it is captured" in triton.failure(kernel, device)
    assert triton._failures == {}
    triton._failures[kernel, device] = ""
    assert triton.failure(kernel, device) == ""


def test_all_kernels_are_checked_also_those_of_a_sigma_in_the_dtype_of_x(monkeypatch):
    monkeypatch.setattr(triton, "failure", lambda kernel, device: f"{kernel.dtype} on {device}")
    found = triton.check_all(torch.device("cuda", 1))
    half = torch.bfloat16
    for sigma_dtype in (None, torch.float32, half):
        kernel = triton.Kernel("backward", "glu", True, "rational", half, sigma_dtype)
        assert found[kernel] == "torch.bfloat16 on cuda:1"
    assert len(found) == 2 * 4 * 2 * (2 + 3 + 3)  # directions, forms, families, dtypes of x and sigma


def test_without_triton_the_formulas_run_and_the_reason_names_the_command(fake_gpu, monkeypatch):
    monkeypatch.setattr(triton, "load", lambda: (None, "No module named 'triton'; pip install triton"))
    x = torch.ones(4)
    assert torch.equal(iglu.iglu(x, 1.0), autograd.call("value", x, None, 1.0, "none", 0))
    assert "pip install triton" in iglu.explain(x)


@pytest.mark.parametrize("text", ["import no_such_module", "raise RuntimeError('no driver')", "jit = None"])
def test_a_broken_triton_gives_a_reason_instead_of_an_error(monkeypatch, tmp_path, text):
    (tmp_path / "triton.py").write_text(text)
    program = "from iglu.kernels import triton; print(*triton.load())"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.stdout.startswith("None Triton cannot be imported ("), run.stderr


@pytest.mark.parametrize(
    ("device", "name"),
    [("cuda", "triton"), ("mps", "reference"), ("xpu", "reference"), ("meta", "reference")],
)
def test_only_cuda_devices_have_gpu_kernels(device, name):
    token = kernels.current.set(kernels.Backend("auto", lambda *_: None))
    try:
        assert kernels.backend_for(torch.device(device)) == name
    finally:
        kernels.current.reset(token)


# -- compiled ahead of time --------------------------------------------------------------------------


class _Compiler:
    """In the place of a kernel: compiles what would have been launched."""

    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target
        self.names = list(inspect.signature(kernel.fn).parameters)
        self.compiled = None

    def __getitem__(self, _grid):
        return self._compile

    def _compile(self, *arguments, **options):
        package = pytest.importorskip("triton")
        constants, attributes = {}, {}
        signature = {
            name: self._type(value, (i,), constants, attributes)
            for i, (name, value) in enumerate(zip(self.names, arguments, strict=False))
        }
        for i, name in enumerate(self.names[len(arguments) :], len(arguments)):
            signature[name] = "constexpr"
            constants[(i,)] = options.pop(name)
        source = package.compiler.ASTSource(self.kernel, signature, constants, attributes)
        self.compiled = package.compile(source, target=self.target, options=options)

    def _type(self, value, path, constants, attributes):
        """How Triton specializes an argument: its type, and whether it is 1 or None or divisible by 16."""
        if value is None or (type(value) is int and value == 1):
            constants[path] = value
            return "constexpr"
        if isinstance(value, float):
            return "fp32"
        if isinstance(value, torch.Tensor) or value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        if isinstance(value, torch.Tensor):
            return f"*{TYPES[value.dtype]}"
        return "i32" if value < 2**31 else "i64"


TARGETS = {"sm_75": ("cuda", 75, 32), "sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32),
           "gfx942": ("hip", "gfx942", 64)}  # fmt: skip


@pytest.fixture
def compile_for(monkeypatch, tmp_path):
    """Make the backend compile its calls on CPU tensors for a target; returns the two compilers."""
    backends = pytest.importorskip("triton.backends.compiler")
    if IS_INTERPRETED:
        pytest.skip("the interpreter compiles nothing")
    module = triton.load()[0]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton, "device_type", "cpu")
    monkeypatch.setattr(triton, "failure", lambda *_: "")

    def prepare(target):
        gpu = backends.GPUTarget(*TARGETS[target])
        names = ("iglu_forward", "iglu_backward")
        found = types.SimpleNamespace(**{name: _Compiler(getattr(module, name), gpu) for name in names})
        monkeypatch.setattr(triton, "load", lambda: (found, ""))
        return found

    return prepare


def call(operation: str, x: torch.Tensor, sigma, approximate: str) -> torch.Tensor:
    return triton.forward(operation, x, None, sigma, approximate, -1 if operation == "glu" else 1)


@pytest.mark.parametrize("approximate", ["none", "rational"])
@pytest.mark.parametrize("operation", ["value", "gate", "glu"])
@pytest.mark.parametrize(
    ("dtype", "sigma"),
    [
        (torch.float32, 0.7),
        (torch.float16, torch.ones((), dtype=torch.float64)),
        (torch.bfloat16, torch.ones(32)),
    ],
)
def test_every_kernel_compiles_for_a_real_gpu(compile_for, operation, approximate, dtype, sigma):
    found = compile_for("sm_80")
    x = torch.ones(4, 64 if operation == "glu" else 32, dtype=dtype, requires_grad=True)
    if isinstance(sigma, torch.Tensor):
        sigma = sigma.clone().requires_grad_()
    call(operation, x, sigma, approximate).sum().backward()
    for kernel in (found.iglu_forward, found.iglu_backward):
        assert kernel.compiled.asm["cubin"]


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "gfx942"])
def test_the_kernels_compile_for_other_gpus_too(compile_for, target):
    found = compile_for(target)
    x = torch.ones(4, 64, dtype=torch.bfloat16, requires_grad=True)
    call("glu", x, torch.ones(32, requires_grad=True), "none").sum().backward()
    for kernel in (found.iglu_forward, found.iglu_backward):
        assert kernel.compiled.asm["hsaco" if target == "gfx942" else "cubin"]


def test_64_bit_indices_compile(compile_for, monkeypatch):
    found = compile_for("sm_80")
    monkeypatch.setattr(triton, "NARROW", 0)
    call("value", torch.ones(4, 33, 7, requires_grad=True), torch.ones(33), "none").sum().backward()
    assert "mul.lo.s64" in found.iglu_backward.compiled.asm["ptx"]


@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_a_float32_kernel_has_no_float64_no_flushing_and_no_inexact_division(compile_for, approximate):
    found = compile_for("sm_80")
    call("value", torch.ones(4, 256, requires_grad=True), 0.7, approximate).sum().backward()
    for kernel in (found.iglu_forward, found.iglu_backward):
        instructions = kernel.compiled.asm["ptx"]
        assert "div.rn.f32" in instructions or "rcp.rn.f32" in instructions
        for unwanted in (".f64", ".ftz", "div.full", "approx"):
            assert unwanted not in instructions


@pytest.mark.parametrize(
    ("shape", "sigma"),
    [((4, 1024), 0.7), ((64, 768), torch.ones(768)), ((2, 16, 32, 32), torch.ones(16))],
    ids=["one sigma", "channels innermost", "channels outside"],
)
def test_memory_is_read_and_written_in_vectors(compile_for, shape, sigma):
    found = compile_for("sm_80")
    call("value", torch.ones(shape, dtype=torch.bfloat16), sigma, "none")
    instructions = found.iglu_forward.compiled.asm["ptx"]
    assert re.search(r"ld.global.v4.b32", instructions)
    assert re.search(r"st.global.v4.b32", instructions)
