"""The coefficients of every language are those of one tool."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from iglu import formulas

ROOT = Path(__file__).parent.parent
HEADER = (ROOT / "iglu/kernels/cpu/polynomials.h").read_text()
TRITON = (ROOT / "iglu/kernels/gpu_formulas.py").read_text()
_NUMBER = r"-?0x1[.\da-f]*p[-+]\d+"


def in_c(name: str) -> list[float]:
    """Highest order first; one that begins with x has 1 for its first."""
    found = re.search(rf"float {name}\(float x\)\n\{{(.*?)return", HEADER, re.DOTALL)
    assert found, name
    numbers = [float.fromhex(each) for each in re.findall(_NUMBER, found[1])]
    return [1.0, *numbers] if "p = x +" in found[1] else numbers


def in_triton(name: str) -> list[float]:
    found = re.search(rf'^{name} = _polynomial\("""(.*?)"""\)', TRITON, re.DOTALL | re.MULTILINE)
    assert found, name
    return [float.fromhex(each) for each in found[1].split()]


@pytest.mark.parametrize(
    ("c", "triton"),
    [
        ("excess_f32", "EXCESS"),
        ("far_slope_f32", "FAR_SLOPE"),
        ("near_slope_f32", "NEAR_SLOPE"),
        ("far_slope_half", "FAR_SLOPE_HALF"),
        ("near_slope_half", "NEAR_SLOPE_HALF"),
        ("tail_numerator_half", "TAIL_NUMERATOR_HALF"),
        ("tail_denominator_half", "TAIL_DENOMINATOR_HALF"),
    ],
)
def test_triton_has_the_polynomials_of_c(c: str, triton: str) -> None:
    assert in_c(c) == in_triton(triton)


def test_triton_has_the_centres_of_c() -> None:
    for name in ("FAR_SLOPE_CENTRE", "NEAR_SLOPE_CENTRE"):
        in_header = re.search(rf"{name}_f32 ({_NUMBER})f", HEADER)
        in_python = re.search(rf'{name} = tl.constexpr\(float.fromhex\("({_NUMBER})"\)\)', TRITON)
        assert in_header
        assert in_python
        assert float.fromhex(in_header[1]) == float.fromhex(in_python[1])


def test_torch_has_the_arctan_of_c() -> None:
    assert list(reversed(formulas._ARCTAN_EXCESS)) == in_c("excess_f32")


@pytest.mark.slow
def test_every_file_has_the_coefficients_that_the_tool_fits() -> None:
    command = [sys.executable, ROOT / "tools/polynomials.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
