"""The cost of a probe relative to a forward pass: ``python benchmarks/probe.py``.

Time: a ResNet-20 on 128 random images, new ones in each interleaved round, as the median of ratios; for
comparison, the same hooks with only a top-k in them.  Memory: the peak of a process that probes few batches,
and of one that probes many.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from iglu.probing import probe
from iglu.probing.observe import ActivationObserver
from iglu.probing.stream import Stream
from iglu_lab.models.resnet import resnet20

BATCH = (128, 3, 32, 32)


def seconds(call: Callable[[Tensor], object], x: Tensor) -> float:
    start = time.perf_counter()
    call(x)
    return time.perf_counter() - start


def watched(model: nn.Module, receive: Callable[[object, Tensor], None]) -> Callable[[Tensor], None]:
    observer = ActivationObserver(model, receive)

    def run(x: Tensor) -> None:
        with torch.no_grad(), observer.on():
            model(x)

    return run


def time_ratios(rounds: int) -> None:
    torch.manual_seed(0)
    model = resnet20().eval()
    streams: dict[object, Stream] = {}

    def stream(site: object, values: Tensor) -> None:
        if site not in streams:
            streams[site] = Stream(2048, 4096, seed=0)
        streams[site].add(values)

    def plain(x: Tensor) -> None:
        with torch.no_grad():
            model(x)

    ways = {
        "plain forward": plain,
        "watched, nothing done": watched(model, lambda site, values: None),
        "probe, a batch more": watched(model, stream),
        "probe of one batch, all in all": lambda x: probe(model, x),
        "plain topk(2048) instead": watched(model, lambda site, values: values.reshape(-1).abs().topk(2048)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        x = torch.randn(BATCH)
        # In another order each round: the first one pays for the caches.
        names = list(ways)
        for name in random.Random(number).sample(names, len(names)):
            took = seconds(ways[name], x)
            if number:  # the first round warms up
                times[name].append(took)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {rounds} interleaved rounds")
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["plain forward"], strict=True)]
        print(
            f"{name:32} {1e3 * statistics.median(values):8.1f} ms   "
            f"{statistics.median(ratios):5.2f} of the forward pass"
        )


def peak_after(count: int) -> None:
    def batches() -> Iterator[Tensor]:
        for _ in range(count):
            yield torch.randn(BATCH)

    found = probe(resnet20(), batches())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{count:4} batches, {sum(layer.n for layer in found.layers):>13,} values: peak {peak:6.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[1, 4, 16, 64], help="batches, for the memory"
    )
    parser.add_argument("--peak-after", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_after:
        peak_after(arguments.peak_after)
        return
    time_ratios(arguments.rounds)
    for count in arguments.counts:
        subprocess.run([sys.executable, __file__, "--peak-after", str(count)], check=True)


if __name__ == "__main__":
    main()
