"""``iglu compare``: compare activations in any training code, over paired seeds.

plan (written first) -> worker (one run per process) -> log (one line per finished run) -> judge -> output.
"""
