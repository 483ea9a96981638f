"""The worst error, in units in the last place, by precision, function, derivative and sigma:

python tools/accuracy.py [auto | native | reference]

Half precisions are checked over all their values, the others at a million points of all magnitudes,
against the extended-precision truth of tests/truth.py.  The last line is the claim of the README.

python tools/accuracy.py output

prints the accuracy cost of save="output": the relative error of the gradient in the negative tail.

python tools/accuracy.py inverse

prints the worst error of the inverse and of the logarithm of the derivative, against 60 digits.
"""

from __future__ import annotations

import pathlib
import sys

import torch

import iglu

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
import truth

SIGMAS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 100.0)
WHAT = {"value": "value", "gate": "gate", "df_dx": "d/dx", "df_dsigma": "d/dsigma"}


def main(backend: str) -> None:
    print(f"{'dtype':10}{'family':10}{'':10}" + "".join(f"{sigma:>8g}" for sigma in SIGMAS))
    worst: dict[tuple[torch.dtype, str], float] = {}  # over both families and all sigmas
    with iglu.backend(backend):
        print(iglu.explain(torch.ones(1)))
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            x = truth.spread(dtype, 250_000) if dtype.itemsize > 2 else truth.every_value(dtype)
            for approximate in ("none", "rational"):
                for kind, label in WHAT.items():
                    errors = [_worst(kind, x, sigma, approximate) for sigma in SIGMAS]
                    worst[dtype, kind] = max(*errors, worst.get((dtype, kind), 0.0))
                    name = str(dtype).removeprefix("torch.")
                    family = "exact" if approximate == "none" else approximate
                    print(f"{name:10}{family:10}{label:10}" + "".join(f"{error:8.2f}" for error in errors))
    value, gradient = (worst[torch.float32, kind] for kind in ("value", "df_dx"))
    print(f"worst error of value / gradient, float32: {value:.2f} / {gradient:.2f} ulp")


def from_output() -> None:
    points = (-1.0, -10.0, -100.0, -1000.0, -10_000.0)
    print(f"{'sigma x':10}" + "".join(f"{point:>10g}" for point in points))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        # the worst over a neighborhood, since a single point may be accurate by chance
        errors = []
        for point in points:
            x = (point * torch.linspace(0.9, 1.1, 1001, dtype=torch.float64)).to(dtype).requires_grad_()
            y = iglu.iglu(x, 1.0, approximate="rational", save="output")
            (grad,) = torch.autograd.grad(y.sum(), x)
            expected = truth.rational_df_dx(truth.extended(x), 1.0)
            errors.append(float(abs(truth.extended(grad) / expected - 1).max()))
        name = str(dtype).removeprefix("torch.")
        print(f"{name:10}" + "".join(f"{error:10.1e}" for error in errors))


def of_inverse() -> None:
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    print(f"{'':24}" + "".join(f"{str(dtype).removeprefix('torch.'):>10}" for dtype in dtypes))
    for approximate in ("none", "rational"):
        family = "exact" if approximate == "none" else approximate
        for label, function in (("inverse", _worst_inverse), ("log derivative", _worst_log_derivative)):
            worst = [max(function(dtype, sigma, approximate) for sigma in SIGMAS) for dtype in dtypes]
            print(f"{label + ', ' + family:24}" + "".join(f"{error:10.2f}" for error in worst))


def _worst_inverse(dtype: torch.dtype, sigma: float, approximate: str) -> float:
    y = truth.above_the_floor(dtype, sigma, approximate, 1000)
    x = iglu.iglu_inverse(y, sigma, approximate=approximate)
    scale = truth.as_computed(sigma, dtype)
    expected = [truth.inverse(each, scale, approximate) for each in y.double().tolist()]
    is_inside = torch.tensor([each is not None for each in expected])
    return truth.worst_ulp(x[is_inside], [each for each in expected if each is not None])


def _worst_log_derivative(dtype: torch.dtype, sigma: float, approximate: str) -> float:
    x = truth.spread(dtype, 250)
    x = x[x.isfinite()]
    scale = truth.as_computed(sigma, dtype)
    expected = [truth.log_derivative(each, scale, approximate) for each in x.double().tolist()]
    return truth.worst_ulp(iglu.iglu_log_derivative(x, sigma, approximate=approximate), expected)


def _worst(kind: str, x: torch.Tensor, sigma: float, approximate: str) -> float:
    if kind == "df_dsigma" and x.dtype != torch.float64:
        sigma = float(torch.tensor(sigma))  # a tensor sigma has the precision of the computation
    result = truth.evaluate(kind, x, sigma, approximate)
    return float(truth.ulp_errors(result, truth.TRUTH[approximate, kind](truth.extended(x), sigma)).max())


if __name__ == "__main__":
    if sys.argv[1:] == ["output"]:
        from_output()
    elif sys.argv[1:] == ["inverse"]:
        of_inverse()
    else:
        main(sys.argv[1] if len(sys.argv) > 1 else "auto")
