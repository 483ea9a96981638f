"""The same equations, fast: which kernel serves a call."""
