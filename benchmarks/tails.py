"""The time of a tail-index estimate vs. tailestim, powerlaw and scipy: ``python benchmarks/tails.py``.

Student-t values with 3 degrees of freedom, so that the true index is alpha = 3.  Prints the median time and
the estimate.  A library is left out if it is not installed, and at sizes where it takes more than a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from iglu.tails import gpd, hill, moment

Row = tuple[str, int, Callable[[], float]]


def ours(x: torch.Tensor) -> list[Row]:
    n = x.numel()
    return [
        ("iglu hill, k = 100", n, lambda: hill(x, 100).alpha),
        ("iglu hill, k = 100, bfloat16", n, lambda: hill(x.bfloat16(), 100).alpha),
        ("iglu hill, 1%", n, lambda: hill(x, fraction=0.01).alpha),
        ("iglu hill, k by ks", n, lambda: hill(x, "ks").alpha),
        ("iglu moment, k = 100", n, lambda: moment(x, 100).alpha),
        ("iglu gpd, k = 100", n, lambda: gpd(x, 100).alpha),
        ("iglu gpd, 1%", n, lambda: gpd(x, fraction=0.01).alpha),
        ("iglu gpd, k by ks", n, lambda: gpd(x, "ks").alpha),
    ]


def peers(x: torch.Tensor, largest: dict[str, int]) -> list[Row]:
    values = x.abs().double().numpy()
    n = len(values)
    rows: list[Row] = []
    if importlib.util.find_spec("scipy"):
        from scipy.stats import genpareto

        def scipy_gpd() -> float:
            ranked = -np.partition(-values, n // 100)[: n // 100 + 1]
            return 1 / float(genpareto.fit(ranked[:-1] - ranked[-1], floc=0)[0])

        rows.append(("scipy genpareto.fit, 1%", n, scipy_gpd))
    if importlib.util.find_spec("tailestim") and n <= largest["tailestim"]:
        from tailestim import HillEstimator

        def tailestim_hill() -> float:
            estimator = HillEstimator()
            estimator.fit(values)
            return 1 / float(estimator.get_result().xi_star_)

        rows.append(("tailestim hill, k by bootstrap", n, tailestim_hill))
    if importlib.util.find_spec("powerlaw") and n <= largest["powerlaw"]:
        import powerlaw

        def powerlaw_fit() -> float:
            return float(powerlaw.Fit(values, verbose=0).power_law.alpha) - 1

        rows.append(("powerlaw, threshold by ks", n, powerlaw_fit))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tailestim-up-to", type=int, default=100_000)
    parser.add_argument("--powerlaw-up-to", type=int, default=10_000)
    arguments = parser.parse_args()
    largest = {"tailestim": arguments.tailestim_up_to, "powerlaw": arguments.powerlaw_up_to}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'what':32} {'values':>9} {'seconds':>9} {'alpha':>7}")
    for n in arguments.sizes:
        x = torch.from_numpy(np.random.default_rng(0).standard_t(3, n).astype(np.float32))
        for name, size, run in ours(x) + peers(x, largest):
            alpha, seconds = run(), []
            for _ in range(arguments.repeats if name.startswith("iglu") else 1):
                start = time.perf_counter()
                alpha = run()
                seconds.append(time.perf_counter() - start)
            print(f"{name:32} {size:9} {statistics.median(seconds):9.5f} {alpha:7.3f}", flush=True)


if __name__ == "__main__":
    main()
