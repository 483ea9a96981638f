"""Names of the zoo's grammar for the tables of other libraries: one short module a library, which
imports that library only when it is asked to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from iglu import zoo


class Grammar(dict[str, Any]):
    """A table that also answers every name of the grammar it does not hold, with ``answer(name)``.

    Names it holds keep their meaning.  A mixin for subclasses of dict that define ``answer``.
    """

    @staticmethod
    def answer(name: str) -> Any:
        """By default: something that makes the activation."""
        return maker(name)

    def __missing__(self, name: str) -> Any:
        try:
            zoo.parse(name)
        except ValueError as error:
            if is_ours(name):
                raise  # ours, but malformed
            raise KeyError(str(error)) from None
        return self.answer(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (is_ours(name) and bool(zoo.parse(str(name))))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (this is that get)


def is_ours(name: object) -> bool:
    """Whether the part before the colon is a name of the zoo."""
    return isinstance(name, str) and name.partition(":")[0] in zoo.ZOO


def maker(name: str) -> Callable[..., nn.Module]:
    """What a library may call in the place of an activation class."""
    return functools.partial(_make, name)


def _make(name: str, inplace: bool = False, **options: Any) -> nn.Module:
    """``inplace`` is a hint meant for ReLU, which needs no input for its gradient; IGLU would have to keep
    a copy, so it is not followed."""
    return zoo.create(name, **options)


def require(library: str, *modules: str) -> list[Any]:
    """Import parts of a library, or say what stands in the way."""
    try:
        return [import_module(f"{library}.{module}") for module in modules]
    except (ImportError, RuntimeError) as error:
        raise ImportError(_reason(library, error)) from error


def _reason(library: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == library:
        return f"{library} is not installed: pip install {library}"
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        pass
    except (ImportError, RuntimeError) as broken:
        return (
            f"{library} cannot be imported, because the torchvision beside it cannot ({broken}). "
            f"Install the torchvision that was built for torch {torch.__version__}, or uninstall torchvision."
        )
    return f"{library} is installed but cannot be imported: {error}"
