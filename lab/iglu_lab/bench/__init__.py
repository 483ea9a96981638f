"""Benchmarks of activations, as single calls (Table 1 of the paper) and in training steps.

cases (what is timed) -> timing (rounds) or steps (training) -> rows -> tables, plots, JSON.
"""
