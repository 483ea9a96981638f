"""``iglu sweep``: a whole table of the paper over seeds.

grid (which cells, which are left) -> estimate (how long) -> local (processes here) or cluster (Ray), each
cell by cell.carry_out -> runs in their folders -> means and differences.
"""

from iglu.lab.sweep.command import main

__all__ = ["main"]
