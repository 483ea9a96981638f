"""Fit the polynomials of iglu/inverse.py: python tools/inverse_polynomial.py (needs mpmath)

For the exact IGLU with sigma = 1, f = u gate(u), the gate as a function of the value f:

- below 0, at the height h = 1/pi + f above the floor.  At u = -1/t this is (1 - arctan(t)/t)/pi, and the gate
  is arctan(t)/pi; for small t they are t^2/(3 pi) and t/pi, so gate/sqrt(h) is smooth in h;
- above 0, in s = (1 - f)/(1 + f), which runs from 1 at f = 0 to -1 at infinity; the gate is smooth there.
"""

from __future__ import annotations

from collections.abc import Callable

from mpmath import atan, chebyfit, findroot, mp, mpf, nstr, pi, polyval, sqrt

mp.dps = 50


def gate(u: mpf) -> mpf:
    return mpf(1) / 2 + atan(u) / pi


def solved(f: mpf, start: mpf) -> mpf:
    return gate(findroot(lambda u: u * gate(u) - f, start))


def below(h: mpf) -> mpf:
    """gate/sqrt(h)."""
    w = 3 * pi * h  # t^2 - 3 t^4/5 + ...; inverted:
    t = sqrt(w) * (1 + mpf(3) / 10 * w + mpf(141) / 1400 * w * w)
    if w > mpf(10) ** -12:
        f = h - 1 / pi
        return solved(f, 2 * f if f > -0.2 else -1 / t) / sqrt(h)
    return atan(t) / pi / sqrt(h) if h else sqrt(3 / pi)


def above(s: mpf) -> mpf:
    if s + 1 < mpf(10) ** -20:
        return 1 - (s + 1) / (2 * pi)
    f = (1 - s) / (1 + s)
    return solved(f, f + 1 / pi if f > 1 else 2 * f)


def show(function: Callable[[mpf], mpf], interval: tuple[mpf, mpf], terms: int) -> None:
    low, high = interval
    coefficients = chebyfit(function, interval, terms)
    points = [low + (high - low) * k / 500 for k in range(1, 501)]
    worst = max(abs(polyval(coefficients, x) / function(x) - 1) for x in points)
    print(f"{function.__name__}, relative error 2^{nstr(mp.log(worst, 2), 4)}:")
    print(", ".join(repr(float(c)) for c in reversed(coefficients)))


if __name__ == "__main__":
    for dtype, terms_below, terms_above in (("float32", 6, 13), ("float64", 13, 27)):
        print(dtype)
        show(below, (mpf(0), 1 / pi), terms_below)
        show(above, (mpf(-1), mpf(1)), terms_above)
