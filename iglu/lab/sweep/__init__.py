"""A grid of runs, here or on a Ray cluster.

grid (which cells, which are left) -> estimate (how long) -> local (processes here) or cluster (Ray), each
cell by cell.carry_out -> runs in their folders -> means and differences.
"""
