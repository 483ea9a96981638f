"""Print the learning rates that a pilot chose, as lines for the file of its grid.

    python tools/pilot.py plasticity-labels
    python tools/pilot.py learning-rate --within 0.3 --also-fixed

The highest mean over the pilot's seeds decides; of rates within ``--within`` of it, the one nearest to 1e-3.
With ``--also-fixed`` each activation is run at 1e-3 as well.
"""

from __future__ import annotations

import argparse
import pathlib

from iglu_lab.report.gather import gather
from iglu_lab.report.planned import FIXED_RATE, chosen_rate, pilot_means
from iglu_lab.storage import RESULTS


def grid_lines(folder: pathlib.Path, title: str, within: float = 0.0, also_fixed: bool = False) -> list[str]:
    """The table ``by_activation``, with the means in a comment."""
    pilots = {planned.grid.title: planned for planned in gather([folder]).planned}
    pilot = pilots[f"{title}-pilot"]
    remaining = len(pilot.grid.runs) - len(pilot.recorded)
    if remaining:
        raise SystemExit(f"{title}-pilot is not complete: {remaining} runs are not recorded in {folder}")
    lines = ["[by_activation]"]
    for activation, means in pilot_means(pilot).items():
        chosen = chosen_rate(means, within)
        rates = sorted({FIXED_RATE, chosen}) if also_fixed else [chosen]
        shown = f"{rates[0]:g}" if len(rates) == 1 else f"[{', '.join(f'{rate:g}' for rate in rates)}]"
        seen = ", ".join(f"{mean:.2f} at {rate:g}" for rate, mean in sorted(means.items()))
        edge = "; at the edge" if len(means) > 2 and chosen in (min(means), max(means)) else ""
        lines.append(f'"{activation}" = {{ lr = {shown} }}  # pilot: {seen}{edge}')
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid", help="the grid without -pilot, such as plasticity-labels")
    parser.add_argument("--within", type=float, default=0.0, help="difference that counts as a tie")
    parser.add_argument("--also-fixed", action="store_true", help="run each activation at 1e-3 as well")
    flags = parser.parse_args()
    print("\n".join(grid_lines(RESULTS / "evidence", flags.grid, flags.within, flags.also_fixed)))


if __name__ == "__main__":
    main()
