"""How long every activation takes, alone (Table 1 of the paper, and beyond) and in training.

subjects (what is timed) -> timing (rounds) or steps (of training) -> rows -> tables, pictures, JSON.
"""
