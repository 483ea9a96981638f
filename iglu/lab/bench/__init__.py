"""``iglu bench``: how long every activation takes, alone (Table 1 of the paper, and beyond) and in training.

subjects (what is timed) -> timing (rounds) or training (steps) -> rows -> tables, pictures, JSON.
"""

from iglu.lab.bench.command import main

__all__ = ["main"]
