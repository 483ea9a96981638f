"""A grid of runs on this machine or on a Ray cluster.

grid (which runs, which are done) -> estimate (how long) -> local (processes) or cluster (Ray), where worker
executes each run in its folder.
"""
