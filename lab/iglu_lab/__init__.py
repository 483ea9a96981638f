"""iglu-lab: compares activations, in your model and in those of the paper.  It imports the library, never the
other way round."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iglu_lab.comparing.api import compare

__all__ = ["compare"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import ``compare`` on first use: it needs torch and other large packages."""
    if name == "compare":
        from iglu_lab.comparing.api import compare

        return compare
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
