"""The Triton kernels where there is no GPU: interpreted, compiled ahead of time, and not in the way."""

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

from iglu.kernels import gpu, record

triton = pytest.importorskip("triton")
GPUTarget = pytest.importorskip("triton.backends.compiler").GPUTarget

TESTS = pathlib.Path(__file__).parent
is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
AMPERE = GPUTarget("cuda", 80, 32)
TYPES = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}


@pytest.mark.skipif(torch.cuda.is_available() or is_interpreted, reason="test_gpu.py runs by itself")
def test_the_kernels_pass_the_tests_of_the_gpu_in_the_interpreter():
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    options = "-q -p no:cacheprovider -o addopts="
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split(), str(TESTS / "test_gpu.py")],
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


def test_without_triton_the_kernels_say_so_and_serve_nothing(monkeypatch):
    monkeypatch.setattr(gpu, "device_type", "cpu")
    monkeypatch.setattr(gpu, "_load", lambda: (None, "Triton does not load: No module named 'triton'"))
    x = torch.ones(4)
    assert gpu.forward("value", x, None, 1.0, "none", 1) is None
    assert "No module named 'triton'" in gpu.why_not(x)


# -- tiles -----------------------------------------------------------------------------------------


def test_dense_tensors_of_every_order_become_one_long_row():
    shape, channels_last = (8, 64, 7, 7), (64 * 49, 1, 7 * 64, 64)
    tiling = gpu._tiling(shape, (channels_last, channels_last), None)
    assert tiling.sizes == (8 * 64 * 49,)
    assert tiling.strides == ((0, 1), (0, 1))


def test_a_packed_pair_becomes_rows_of_half_the_width():
    tiling = gpu._tiling((4, 5, 32), ((160, 32, 1), (320, 64, 1), (320, 64, 1)), None)
    assert tiling.sizes == (20, 32)
    assert tiling.strides == ((0, 32, 1), (0, 64, 1), (0, 64, 1))


def test_tiles_are_long_in_the_direction_of_the_memory():
    last = gpu._tiling((4096, 768), ((768, 1),) * 2, 1)
    assert (last.block_channels, last.block) == (128, 8)
    first = gpu._tiling((8, 64, 32, 32), ((64 * 1024, 1024, 32, 1),) * 2, 1)
    assert (first.block_channels, first.block) == (1, 1024)


@pytest.mark.parametrize(
    ("shape", "strides", "is_wide"),
    [
        ((2**20, 2**10), (2**10, 1), False),
        ((2**20, 2**11), (2**11, 1), True),
        ((3, 2), (2**30, 1), True),  # few elements, far apart
    ],
)
def test_what_32_bits_cannot_index_is_indexed_with_64(shape, strides, is_wide):
    assert gpu._tiling(shape, (strides, strides), None).is_wide is is_wide


# -- compiled for a true GPU -----------------------------------------------------------------------


class _Compiler:
    """In the place of a kernel: compiles what would have been launched."""

    def __init__(self, kernel, target):
        self.kernel, self.target = kernel, target
        self.names = list(inspect.signature(kernel.fn).parameters)
        self.compiled = None

    def __getitem__(self, _grid):
        return self._compile

    def _compile(self, *arguments, **options):
        constants, attributes = {}, {}
        signature = {
            name: self._type(value, (i,), constants, attributes)
            for i, (name, value) in enumerate(zip(self.names, arguments, strict=False))
        }
        for i, name in enumerate(self.names[len(arguments) :], len(arguments)):
            signature[name] = "constexpr"
            constants[(i,)] = options.pop(name)
        source = triton.compiler.ASTSource(self.kernel, signature, constants, attributes)
        self.compiled = triton.compile(source, target=self.target, options=options)

    def _type(self, value, path, constants, attributes):
        """What Triton makes of an argument: its type, and whether it is 1 or None or divisible by 16."""
        if isinstance(value, tuple):
            return tuple(self._type(each, (*path, i), constants, attributes) for i, each in enumerate(value))
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


@pytest.fixture
def compile_for(monkeypatch, tmp_path):
    """Make the module compile its calls on CPU tensors for a target; returns the three compilers."""
    if is_interpreted:
        pytest.skip("the interpreter compiles nothing")
    from iglu.kernels import gpu_kernels

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gpu, "device_type", "cpu")

    def prepare(target):
        names = ("forward", "backward", "twice")
        kernels = types.SimpleNamespace(
            **{name: _Compiler(getattr(gpu_kernels, name), target) for name in names}
        )
        monkeypatch.setattr(gpu, "_load", lambda: (kernels, ""))
        return kernels

    return prepare


def call(operation: str, x: torch.Tensor, sigma, approximate: str) -> torch.Tensor:
    return gpu.forward(operation, x, None, sigma, approximate, -1 if operation == "glu" else 1)


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
def test_every_kernel_compiles_for_a_true_gpu(compile_for, operation, approximate, dtype, sigma):
    kernels = compile_for(AMPERE)
    x = torch.ones(4, 64 if operation == "glu" else 32, dtype=dtype, requires_grad=True)
    if isinstance(sigma, torch.Tensor):
        sigma = sigma.clone().requires_grad_()
    call(operation, x, sigma, approximate).sum().backward()
    for kernel in (kernels.forward, kernels.backward):
        assert kernel.compiled.asm["cubin"]


@pytest.mark.parametrize(
    "target", [GPUTarget("cuda", 75, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)], ids=str
)
def test_the_kernels_compile_for_other_gpus_too(compile_for, target):
    kernels = compile_for(target)
    x = torch.ones(4, 64, dtype=torch.bfloat16, requires_grad=True)
    call("glu", x, torch.ones(32, requires_grad=True), "none").sum().backward()
    assert kernels.backward.compiled.asm


def test_the_backward_pass_from_the_output_compiles(compile_for):
    kernels = compile_for(AMPERE)
    x, sigma = torch.ones(4, 32, requires_grad=True), torch.ones(32, requires_grad=True)
    record.keep_output("triton", x, sigma, 1, False).sum().backward()
    assert kernels.backward.compiled.asm["cubin"]


@pytest.mark.parametrize("approximate", ["none", "rational"])
@pytest.mark.parametrize("operation", ["value", "glu"])
def test_the_gradients_of_gradients_compile(compile_for, operation, approximate):
    kernels = compile_for(AMPERE)
    grad, sigma = torch.ones(4, 32), torch.ones(32)
    x = torch.ones(4, 64) if operation == "glu" else grad
    assert gpu.twice(operation, x, None, grad, x, None, sigma, approximate, -1, True) is not None
    assert kernels.twice.compiled.asm["cubin"]


def test_64_bit_indices_compile(compile_for, monkeypatch):
    kernels = compile_for(AMPERE)
    monkeypatch.setattr(gpu, "_NARROW", 0)
    gpu._tiling.cache_clear()
    call("value", torch.ones(4, 33, 7, requires_grad=True), torch.ones(33), "none").sum().backward()
    gpu._tiling.cache_clear()
    assert "mul.lo.s64" in kernels.backward.compiled.asm["ptx"]


@pytest.mark.parametrize("approximate", ["none", "rational"])
def test_a_float32_kernel_has_no_float64_no_flushing_and_no_inexact_division(compile_for, approximate):
    kernels = compile_for(AMPERE)
    call("value", torch.ones(4, 256, requires_grad=True), 0.7, approximate).sum().backward()
    for kernel in (kernels.forward, kernels.backward):
        instructions = kernel.compiled.asm["ptx"]
        assert "div.rn.f32" in instructions
        assert not kernel.compiled.metadata.enable_fp_fusion
        for unwanted in (".f64", ".ftz", "div.full", "approx"):
            assert unwanted not in instructions


@pytest.mark.parametrize(
    ("shape", "sigma"),
    [((4, 1024), 0.7), ((64, 768), torch.ones(768)), ((2, 16, 32, 32), torch.ones(16))],
    ids=["one sigma", "channels innermost", "channels outside"],
)
def test_memory_is_read_and_written_in_vectors(compile_for, shape, sigma):
    kernels = compile_for(AMPERE)
    call("value", torch.ones(shape, dtype=torch.bfloat16), sigma, "none")
    instructions = kernels.forward.compiled.asm["ptx"]
    assert "ld.global.v4.b32" in instructions
    assert "st.global.v4.b32" in instructions
