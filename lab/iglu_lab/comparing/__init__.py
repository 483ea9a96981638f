"""``iglu compare``: would another activation help this model?  Of any training code, over paired seeds.

plan (written first) -> worker (one run per process) -> log (a line per finished run) -> judge -> output.
"""
