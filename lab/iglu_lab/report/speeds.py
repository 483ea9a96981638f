"""The paper's claims about speed, decided by the sessions of ``iglu bench`` on the CPU."""

from __future__ import annotations

from iglu import zoo
from iglu_lab.bench.cases import DIRECT, TORCH
from iglu_lab.bench.timing import PASS_LABELS
from iglu_lab.bench.timing_tables import papers_rows, quotient, size_text
from iglu_lab.report.content import Claim
from iglu_lab.report.gather import Gathered
from iglu_lab.report.verdicts import INCONCLUSIVE, combined, judge_side
from iglu_lab.stats.statistics import Estimate

_AS_FAST = 1.10


def speed_claims(found: Gathered) -> list[Claim]:
    """The claims relative to GELU and ReLU, for our kernels and for the formula as the paper writes it."""
    _, timed = papers_rows(found.sessions, "cpu")
    has_gpu = papers_rows(found.sessions, "cuda")[0] is not None
    gpu = "decided on the CPU" if has_gpu else "not run on a GPU"
    claims = []
    for is_direct, how in ((False, "as this library computes it"), (True, "as the paper writes it")):
        for reference, text, bound, rule in (
            ("gelu", "IGLU-Approx is faster than GELU", 1.0, "below 1"),
            ("relu", "IGLU-Approx is as fast as ReLU", _AS_FAST, f"at most {_AS_FAST:g}"),
        ):
            verdicts, parts = [], []
            for name in ("forward", "loss_backward"):
                mine, other = (
                    timed.get(form, {}) for form in (("iglu_approx", is_direct), (reference, False))
                )
                if name in mine and name in other:
                    ratio = quotient(mine[name], other[name])
                    verdicts.append(judge_side(-ratio, -bound))
                    parts.append(f"{PASS_LABELS[name]} {ratio.span(3)} times {zoo.ZOO[reference].label}'s")
            evidence = "; ".join(parts) or "No rows of iglu bench for it: run iglu bench --threads 1"
            setting = " 10,000 elements, float32, CPU, one thread." if parts else ""
            sizes = _at_other_sizes(found, is_direct, reference)
            setting += f" At other sizes, not counted: {sizes}." if sizes else ""
            claims.append(
                Claim(
                    f"{text} ({how})",
                    combined(verdicts) if len(verdicts) == 2 else INCONCLUSIVE,
                    f"{evidence}.{setting}",
                    f"the 95% interval of the median ratio is {rule}, forward and backward; {gpu}.",
                )
            )
    return claims


def _at_other_sizes(found: Gathered, is_direct: bool, reference: str) -> str:
    """The forward ratios by size, on one CPU thread in float32, each from the newest session that has it."""
    ratios: dict[int, Estimate] = {}
    for session in sorted(found.sessions, key=lambda session: session.date):
        rows = {
            (row["activation"], row["kernel"], row["elements"]): row
            for row in session.rows
            if row["kind"] == "operation" and row["pass"] == "forward" and row["device"] == "cpu"
            and row["dtype"] == "float32" and row["threads"] == 1
        }  # fmt: skip
        for (name, kernel, elements), row in rows.items():
            other = rows.get((reference, TORCH, elements))
            is_meant = name == "iglu_approx" and kernel == (DIRECT if is_direct else "auto")
            if is_meant and other is not None and elements != 10_000:
                ratios[elements] = quotient(row, other)
    return ", ".join(f"{size_text(elements)}: {ratio.span()}" for elements, ratio in sorted(ratios.items()))
