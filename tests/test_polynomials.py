"""The coefficients in C, Triton and torch are those that tools/polynomials.py fits."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from iglu import formulas

ROOT = Path(__file__).parent.parent
HEADER = (ROOT / "iglu/kernels/csrc/polynomials.h").read_text()
_NUMBER = r"-?0x1[.\da-f]*p[-+]\d+"


def in_c(name: str) -> list[float]:
    """Highest order first; the leading coefficient of one that begins with x is 1."""
    found = re.search(rf"POLYNOMIAL\(float, {name},(.*?)\)\)", HEADER, re.DOTALL)
    assert found, name
    numbers = [float.fromhex(each) for each in re.findall(_NUMBER, found[1])]
    return [1.0, *numbers] if found[1].startswith(" x +") else numbers


def test_torch_has_the_arctan_of_c() -> None:
    assert list(reversed(formulas.ARCTAN_EXCESS)) == in_c("excess_f32")


@pytest.mark.slow
def test_every_file_has_the_coefficients_that_the_tool_fits() -> None:
    command = [sys.executable, ROOT / "tools/polynomials.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
