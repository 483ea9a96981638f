"""Compare every speed ratio with the previous one on the same processor.  Usage: make nightly

The rows are kept in runs/nightly, one file per processor; the first time there is nothing to compare with.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from iglu.cli import main
from iglu_lab.runs import provenance

KEPT = Path("runs/nightly")
CASES = (
    "--activations iglu iglu_approx relu gelu silu --call function --sizes 10k 1M --rounds 100 --no-pictures"
)


def compare() -> int:
    previous = KEPT / (re.sub(r"\W+", "-", provenance.cpu_name()) + ".json")
    against = ["--against", str(previous)] if previous.exists() else []
    with tempfile.TemporaryDirectory() as out:
        status = main(["bench", *CASES.split(), "--out", out, *against])
        # Status 1: some ratio is outside its spread.  The next night is then compared with the same old rows.
        if status == 0:
            KEPT.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(out) / "bench.json", previous)
    return status


if __name__ == "__main__":
    sys.exit(compare())
