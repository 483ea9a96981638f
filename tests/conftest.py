"""Runs before any test of the library is imported."""

import torchvision_operators  # noqa: F401

# Two files of this name: pytest would collect them as modules of doctests.
collect_ignore = ["conftest.py"]
