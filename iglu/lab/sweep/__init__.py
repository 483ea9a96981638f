"""A grid of runs, here or on a Ray cluster.

grid (which runs, which are left) -> estimate (how long) -> local (processes here) or cluster (Ray), each
run by work.carry_out -> runs in their folders -> means and differences.
"""
