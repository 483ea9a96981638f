"""Fit the polynomials of all implementations (needs mpmath; takes about a minute).

    python tools/polynomials.py --check   exit with 1 if the coefficients in a file differ from the fits
    python tools/polynomials.py --write   write them

They are in polynomials.h and tables.h of iglu/kernels/csrc, and between two comments in iglu/formulas.py,
from which the Triton kernels import theirs.

A polynomial is only part of a formula.  A change of the formula itself touches, in this order:

    iglu/formulas.py                    the reference
    iglu/kernels/csrc/formulas.h        the same in C
    iglu/kernels/csrc/avx512.h          the same once more, for the operations listed at its top
    iglu/kernels/triton_kernels.py      the same in Triton
    lab/iglu_lab/report/assets/formulas.js  the same for the curves of the report page
    tools/check_float32.c               the independent values in double, if the function itself changes

Each is a weighted minimax fit (Lawson's iteration on Chebyshev nodes).  The coefficients are then rounded to
their precision one by one, lowest order first, refitting the remaining ones each time.  A polynomial in
(x - center) instead of x does not accumulate rounding errors toward the end of the interval; its center is
moved by a few hundred ulp to where the first coefficient is nearly exact in its precision.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpmath import atan, cos, log, lu_solve, matrix, mp, mpf, pi, sqrt

mp.dps = 60
PACKAGE = pathlib.Path(__file__).parent.parent / "iglu"
Real = Callable[[mpf], mpf]


def arctan_over(z: mpf) -> mpf:
    """arctan(m)/m at z = m^2."""
    if z < mpf(10) ** -15:
        return 1 - z / 3 + z * z / 5
    return atan(sqrt(z)) / sqrt(z)


def tail(b: mpf) -> mpf:
    """The gate at -a, as a function of b = pi a; 1/b in the limit."""
    return atan(pi / b) / pi


def excess(z: mpf) -> mpf:
    """(arctan(m)/m - 1)/z, which is -1/3 at z = 0."""
    return (arctan_over(z) - 1) / z if z > mpf(10) ** -15 else -mpf(1) / 3 + z / 5


def far_df_dx(z: mpf) -> mpf:
    """g/t^3 = (arctan(t)/t - 1/(1+z))/(pi z), the tail of df/dx for |u| = 1/t > 1, z = t^2."""
    if z < mpf(10) ** -15:
        return (mpf(2) / 3 - 4 * z / 5) / pi
    return (arctan_over(z) - 1 / (1 + z)) / (pi * z)


def near_df_dx(a: mpf) -> mpf:
    """The tail of df/dx for a = |u| < 1."""
    return mpf(1) / 2 - (atan(a) + a / (1 + a * a)) / pi


def near_df_dx_over(z: mpf) -> mpf:
    """(1/2 - the tail of df/dx)/a at z = a^2."""
    return (arctan_over(z) + 1 / (1 + z)) / pi


class Fit(NamedTuple):
    name: str
    function: Real
    weight: Real  # the error that counts is weight * (polynomial - function)
    terms: int
    dtype: type[np.floating] | None  # None: do not round
    center: float = 0.0
    interval: tuple[mpf, mpf] = (mpf(0), mpf(1))
    first_in_two: bool = False  # the first coefficient as the sum of two numbers

    @property
    def digits(self) -> int:
        return 24 if self.dtype is np.float32 else 53


def relative(function: Real) -> Real:
    return lambda x: 1 / function(x)


def excess_weight(z: mpf) -> mpf:
    return z / arctan_over(z)


FITS = (
    Fit("excess_f32", excess, excess_weight, 9, np.float32),
    Fit("excess_f64", excess, excess_weight, 20, np.float64),
    Fit("far_df_dx_f32", far_df_dx, relative(far_df_dx), 11, np.float32, 0.498),
    Fit("far_df_dx_f64", far_df_dx, relative(far_df_dx), 23, np.float64, 0.498),
    Fit("near_df_dx_f32", near_df_dx, relative(near_df_dx), 13, np.float32, 0.729),
    Fit("near_df_dx_f64", near_df_dx, relative(near_df_dx), 27, np.float64, 0.729),
    Fit("far_df_dx_half", far_df_dx, relative(far_df_dx), 9, np.float32),
    Fit("near_df_dx_half", near_df_dx, relative(near_df_dx), 10, np.float32, 0.729),
)
# In t = 1/|u| where |u| > 1, in |u| elsewhere: one polynomial per piece around k/PIECES.
PIECES = 15
TABLES = {
    "NEAR_VALUE": lambda a: mpf(1) / 2 - atan(a) / pi,
    "FAR_VALUE": lambda t: arctan_over(t * t),
    "NEAR_DF_DX": near_df_dx,
    "FAR_DF_DX": lambda t: far_df_dx(t * t),
}
# For formulas.py, which evaluates them with torch; its coefficients of arctan are excess_f32.
DERIVATIVE_TAIL = {
    "float32": Fit("derivative_tail_f32", far_df_dx, relative(far_df_dx), 12, None),
    "float64": Fit("derivative_tail_f64", far_df_dx, relative(far_df_dx), 22, None),
}
NEAR_DF_DX_OVER = Fit(
    "near_df_dx_over", near_df_dx_over, lambda z: sqrt(z) / near_df_dx(sqrt(z)), 11, np.float32
)


def rounded(value: mpf, dtype: type[np.floating] | None) -> mpf:
    if dtype is None:
        return value
    with mp.workprec(24 if dtype is np.float32 else 53):
        return +value


def good_center(fit: Fit) -> mpf:
    """The point near fit.center at which the function's value rounds with the smallest error."""
    if fit.center == 0:
        return mpf(0)
    step = mpf(2) ** (-fit.digits - 1)
    start = rounded(mpf(fit.center), fit.dtype)

    def error(k: int) -> mpf:
        value = fit.function(start + k * step)
        return abs(rounded(value, fit.dtype) / value - 1)

    return start + min(range(-256, 257, 2), key=error) * step


def solve(design: list[list[mpf]], target: list[mpf], weights: list[mpf]) -> list[mpf]:
    """Weighted least squares by the normal equations; 60 digits compensate for their conditioning."""
    count = len(design[0])
    normal, right = matrix(count, count), matrix(count, 1)
    for row, value, weight in zip(design, target, weights, strict=True):
        for i in range(count):
            scaled = weight * row[i]
            right[i] += scaled * value
            for j in range(i, count):
                normal[i, j] += scaled * row[j]
    for i in range(count):
        for j in range(i):
            normal[i, j] = normal[j, i]
    return list(lu_solve(normal, right))


@functools.cache
def fitted(fit: Fit) -> tuple[mpf, list[mpf], mpf]:
    """The center, the coefficients and the largest weighted error."""
    center = good_center(fit)
    nodes = 4 * fit.terms
    low, high = fit.interval
    points = [low + (high - low) * (1 - cos(pi * (2 * k + 1) / (2 * nodes))) / 2 for k in range(nodes)]
    scale = [fit.weight(x) for x in points]
    powers = [[w * (x - center) ** i for i in range(fit.terms)] for x, w in zip(points, scale, strict=True)]
    left = [w * fit.function(x) for x, w in zip(points, scale, strict=True)]

    lawson = [mpf(1)] * nodes
    for _ in range(12):
        guess = solve(powers, left, lawson)
        errors = [
            abs(sum(p * c for p, c in zip(row, guess, strict=True)) - value)
            for row, value in zip(powers, left, strict=True)
        ]
        lawson = [weight * error for weight, error in zip(lawson, errors, strict=True)]
        total = sum(lawson)
        lawson = [weight / total for weight in lawson]

    coefficients: list[mpf] = []
    if fit.dtype is None:
        coefficients = guess
    while len(coefficients) < fit.terms:
        first = len(coefficients)
        exact = solve([row[first:] for row in powers], left, lawson)[0]
        coefficients.append(rounded(exact, fit.dtype))
        if fit.first_in_two and first == 0:
            coefficients[0] += rounded(exact - coefficients[0], fit.dtype)
        left = [value - row[first] * coefficients[-1] for row, value in zip(powers, left, strict=True)]

    def error(x: mpf) -> mpf:
        value = sum(c * (x - center) ** i for i, c in enumerate(coefficients))
        return abs(fit.weight(x) * (value - fit.function(x)))

    return center, coefficients, max(error(low + (high - low) * k / 500) for k in range(501))


@functools.cache
def fitted_fraction(function: Real, degree: int) -> tuple[list[mpf], list[mpf], mpf]:
    """N/D on [0, inf) with the smallest relative error, both monic, D of one degree more.

    N - f D = 0 is linear in the coefficients; dividing it by the last D makes it a fit of N/D.
    """
    nodes = 16 * degree
    # Chebyshev nodes in pi/(pi + b)
    points = [pi * (2 / (1 - cos(pi * (2 * k + 1) / (2 * nodes))) - 1) for k in range(nodes)]
    values = [function(b) for b in points]
    denominators = [(1 + b) ** (degree + 1) for b in points]
    lawson = [mpf(1)] * nodes
    for iteration in range(60):
        design, target = [], []
        for b, value, denominator in zip(points, values, denominators, strict=True):
            weight = 1 / (value * denominator)
            above = [weight * b**i for i in range(degree)]
            below = [-weight * value * b**i for i in range(degree + 1)]
            design.append(above + below)
            target.append(weight * (value * b ** (degree + 1) - b**degree))
        solution = solve(design, target, lawson)
        numerator, denominator = [*solution[:degree], mpf(1)], [*solution[degree:], mpf(1)]
        numerators = [sum(c * b**i for i, c in enumerate(numerator)) for b in points]
        denominators = [sum(c * b**i for i, c in enumerate(denominator)) for b in points]
        errors = [abs(n / d / v - 1) for n, d, v in zip(numerators, denominators, values, strict=True)]
        if iteration > 3:  # once the denominator has settled
            total = sum(weight * error for weight, error in zip(lawson, errors, strict=True))
            lawson = [weight * error / total for weight, error in zip(lawson, errors, strict=True)]
    return numerator, denominator, max(errors)


def short_hex(value: mpf) -> str:
    return re.sub("0+p", "p", float(value).hex())


def center_name(fit: Fit) -> str:
    stem, _, precision = fit.name.rpartition("_")
    return f"{stem.upper()}_CENTER_{precision}"


def horner(name: str, real: str, coefficients: list[mpf], dtype: type[np.floating] | None) -> list[str]:
    suffix = "f" if real == "float" else ""
    literals = [short_hex(rounded(c, dtype)) + suffix for c in coefficients]
    first, rest = f"{literals[-1]}", literals[-2::-1]
    if coefficients[-1] == 1:
        first, rest = f"x + {literals[-2]}", literals[-3::-1]
    terms = " ".join(f"TERM({literal})" for literal in rest)
    body = textwrap.fill(f"{terms})", 110, initial_indent="    ", subsequent_indent="    ")
    return [f"POLYNOMIAL({real}, {name}, {first},", body]


def as_c(fit: Fit) -> str:
    center, coefficients, worst = fitted(fit)
    real, suffix = ("float", "f") if fit.dtype is np.float32 else ("double", "")
    lines = [f"/* error 2^{float(log(worst, 2)):.1f} */"]
    if fit.center:
        lines.append(f"#define {center_name(fit)} {short_hex(center)}{suffix}")
    return "\n".join(lines + horner(fit.name, real, coefficients, fit.dtype))


def fraction_as_c() -> str:
    numerator, denominator, worst = fitted_fraction(tail, 4)
    lines = [f"/* error 2^{float(log(worst, 2)):.1f} */"]
    lines += horner("tail_numerator_half", "float", numerator, np.float32)
    lines += horner("tail_denominator_half", "float", denominator, np.float32)
    return "\n".join(lines)


def header() -> str:
    about = [
        "/* The polynomials of formulas.h, written by tools/polynomials.py: do not edit.",
        " *",
        " * With z = min(u^2, 1/u^2), m = sqrt(z), a = |u|:",
        " *   excess      (arctan(m)/m - 1)/z, in z",
        " *   far_df_dx   (arctan(m)/m - 1/(1+z))/(pi z), in z - center (half: in z)",
        " *   near_df_dx  1/2 - (arctan(a) + a/(1+a^2))/pi, in a - center, for a < 1",
        " *   tail        1/2 - arctan(a)/pi, a rational function of pi a, for every a; nothing cancels",
        " * Included once per instruction set. */",
        "",
        "#define POLYNOMIAL(real, name, first, terms) "
        "IGLU_INLINE real name(real x) { real p = first; terms return p; }",
        "#define TERM(coefficient) p = MADD(p, x, coefficient);",
    ]
    functions = [*map(as_c, FITS), fraction_as_c()]
    return "\n\n".join(["\n".join(about), *functions]) + "\n"


def piece_of(function: Real, k: int) -> Fit:
    """The function of (k + d)/PIECES, as a polynomial in d."""

    def of(d: mpf) -> mpf:
        return function((k + d) / PIECES)

    half = mpf(1) / 2
    interval = (-half if k > 0 else mpf(0), half if k < PIECES else mpf(0))
    return Fit(f"piece_{k}", of, relative(of), 5, np.float32, interval=interval, first_in_two=True)


def table_as_c(name: str, function: Real) -> str:
    columns, errors = [], []
    for k in range(PIECES + 1):
        _, coefficients, worst = fitted(piece_of(function, k))
        first = rounded(coefficients[0], np.float32)
        columns.append([first, *coefficients[1:], coefficients[0] - first])
        errors.append(worst)
    lines = [f"/* error 2^{float(log(max(errors), 2)):.1f} */", f"static const float {name}[6][16] = {{"]
    for row in zip(*columns, strict=True):
        literals = [short_hex(each) + "f" for each in row]
        row_text = "{" + ", ".join(literals) + "},"
        lines.append(textwrap.fill(row_text, 110, initial_indent="    ", subsequent_indent="     "))
    return "\n".join([*lines, "};"])


def tables() -> str:
    about = [
        "/* The tables of avx512.h, written by tools/polynomials.py: do not edit.",
        " *",
        " * Column k holds the coefficients, lowest first, of a polynomial in d = 15 m - k, |d| <= 1/2;",
        " * the last row holds the low part of the first coefficient:",
        " *   NEAR_VALUE  1/2 - arctan(m)/pi",
        " *   FAR_VALUE   arctan(m)/m",
        " *   NEAR_DF_DX  1/2 - (arctan(m) + m/(1+m^2))/pi",
        " *   FAR_DF_DX   (arctan(m)/m - 1/(1+m^2))/(pi m^2) */",
    ]
    return "\n".join(about) + "\n\n" + "\n\n".join(table_as_c(*each) for each in TABLES.items()) + "\n"


# -- Python ----------------------------------------------------------------------------------------


def as_floats(coefficients: list[mpf], indent: int) -> str:
    margin = " " * indent
    text = ", ".join(repr(float(c)) for c in coefficients) + ","
    return textwrap.fill(text, 100, initial_indent=margin, subsequent_indent=margin)


def error_of(fit: Fit) -> str:
    return f"2^{float(log(fitted(fit)[2], 2)):.1f}"


def in_formulas() -> str:
    """The coefficients of iglu/formulas.py, lowest order first."""
    single, double = DERIVATIVE_TAIL["float32"], DERIVATIVE_TAIL["float64"]
    excess_fit = next(fit for fit in FITS if fit.name == "excess_f32")
    tails = "".join(
        f"    torch.{name}: (\n{as_floats(fitted(fit)[1], 8)}\n    ),\n"
        for name, fit in DERIVATIVE_TAIL.items()
    )
    return f"""# Lowest order first, on [0, 1].  As a formula the first is 0/0 at z = 0; a polynomial is not.
# g/t^3 = (arctan(t)/t - 1/(1+z))/(pi z) in z = t^2: relative error {error_of(single)} and {error_of(double)}
DERIVATIVE_TAIL = {{
{tails}}}  # fmt: skip
# (arctan(m)/m - 1)/m^2 in m^2: {error_of(excess_fit)}
ARCTAN_EXCESS = (
{as_floats(fitted(excess_fit)[1], 4)}
)  # fmt: skip
# (1/2 - f'(-a))/a = (arctan(a)/a + 1/(1+z))/pi in z = a^2: {error_of(NEAR_DF_DX_OVER)}
NEAR_DERIVATIVE = (
{as_floats(fitted(NEAR_DF_DX_OVER)[1], 4)}
)  # fmt: skip
"""


BEGIN, END = "# -- coefficients: written by tools/polynomials.py, do not edit\n", "# -- end of coefficients\n"


def with_block(path: pathlib.Path, block: str) -> str:
    text = path.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + block + text[end:]


def files() -> dict[pathlib.Path, str]:
    """The expected text of every file that holds coefficients."""
    kernels = PACKAGE / "kernels"
    formulas = PACKAGE / "formulas.py"
    return {
        kernels / "csrc" / "polynomials.h": header(),
        kernels / "csrc" / "tables.h": tables(),
        formulas: with_block(formulas, in_formulas()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="exit with 1 if a file differs")
    what.add_argument("--write", action="store_true", help="write the files")
    is_check = parser.parse_args().check
    different = {path: text for path, text in files().items() if path.read_text() != text}
    for path, text in different.items():
        if not is_check:
            path.write_text(text)
        print(f"{path.relative_to(PACKAGE.parent)}: {'differs from the fits' if is_check else 'written'}")
    sys.exit(bool(different) and is_check)
