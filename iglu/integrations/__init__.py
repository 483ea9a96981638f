"""Register iglu's activation names with other libraries: one module per library, which imports that library
only when it is used."""

from __future__ import annotations

import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import nn

from iglu import zoo


class NameTable(dict[str, Any]):
    """A dict that also has every name of the zoo as a key, with the value ``value_of(name)``.

    Names that the dict already has keep their meaning.  Subclasses may override ``value_of``.
    """

    @staticmethod
    def value_of(name: str) -> Any:
        """By default a function that creates the activation."""
        return maker(name)

    def __missing__(self, name: str) -> Any:
        try:
            zoo.parse(name)
        except ValueError as error:
            if is_ours(name):
                raise  # ours, but malformed
            raise KeyError(str(error)) from None
        return self.value_of(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (is_ours(name) and bool(zoo.parse(str(name))))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (this is that get)


def is_ours(name: object) -> bool:
    """Whether the part before the colon is a name of the zoo."""
    return isinstance(name, str) and name.partition(":")[0] in zoo.ZOO


def maker(name: str) -> Callable[..., nn.Module]:
    """Return a callable that a library can use in place of an activation class."""
    return functools.partial(_make, name)


def _make(name: str, inplace: bool = False, **options: Any) -> nn.Module:
    """``inplace`` is ignored: it is meant for ReLU, whose gradient does not need the input; IGLU would have
    to save a copy."""
    return zoo.create(name, **options)


def require(library: str, *modules: str) -> list[Any]:
    """Import parts of a library; if that fails, raise an ImportError with the reason and a fix."""
    try:
        import_module(library)
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
        # timm needs torchvision; transformers uses it only if it is installed.
        otherwise = "" if library == "timm" else ", or uninstall it"
        return (
            f"{library} cannot be imported, because the installed torchvision cannot ({broken}). "
            f"Install the torchvision that was built for torch {torch.__version__}{otherwise}."
        )
    return f"{library} is installed but cannot be imported: {error}"


def register_on_import() -> None:
    """Register iglu's names with transformers, now if it is imported, otherwise as soon as it is.  A config
    that names ``iglu:5`` can then be loaded if iglu is imported; iglu itself never imports transformers."""
    for name in ("transformers.modeling_utils", "transformers.trainer"):
        if name in sys.modules:
            _register_with_transformers()
        else:
            sys.meta_path.insert(0, _RegisterOnImport(name))


def _register_with_transformers() -> None:
    from iglu.integrations import transformers

    try:
        transformers.register()
    except Exception as error:  # importing transformers must not fail; calling register() raises
        warnings.warn(f"transformers does not accept the names of iglu: {error}", stacklevel=2)


class _RegisterOnImport(MetaPathFinder):
    """Lets a module's own finder import it, then registers the names of iglu."""

    def __init__(self, module: str) -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # restores that of its class
                try:
                    execute(module)
                except BaseException:
                    sys.meta_path.insert(0, self)  # the import may be tried again
                    raise
                _register_with_transformers()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
