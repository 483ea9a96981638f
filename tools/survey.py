"""List the activation calls that iglu.swap leaves in models of transformers, timm and torchvision, and why:

nice python tools/survey.py [transformers | timm | torchvision | transformers:Whisper* ...]

Every model class is built on the meta device (no weights) with the default config of its type and few layers,
and swapped. A model whose module classes were all seen in other models is not swapped again. If calls of a
class were replaced, the swapped model and the original are run on the same input and must return the same
shapes. One line is printed per call and class, replaced or left, and at the end the number of models.
"""

from __future__ import annotations

import collections
import fnmatch
import functools
import importlib
import inspect
import pathlib
import pkgutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
import iglu

import torchvision_operators  # noqa: F401

_SECONDS = 120  # of processor time, for one model
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers")


def torchvision_models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    import torchvision

    for name in torchvision.models.list_models():
        options: dict[str, Any] = {"weights": None}
        if "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
            options["weights_backbone"] = None
        yield name, functools.partial(torchvision.models.get_model, name, **options)


def timm_models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    import timm

    for name in timm.list_models():
        yield name, functools.partial(timm.create_model, name)


def transformers_models() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    for package in pkgutil.iter_modules(transformers.models.__path__):
        folder = importlib.import_module(f"transformers.models.{package.name}")
        for file in pkgutil.iter_modules(folder.__path__):
            if not file.name.startswith("modeling_"):
                continue
            try:
                module = importlib.import_module(f"{folder.__name__}.{file.name}")
            except Exception:
                continue  # needs a library that is not installed
            for name, cls in list(vars(module).items()):
                is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
                if is_model and cls.__module__ == module.__name__ and cls.config_class is not None:
                    yield name, functools.partial(_small, cls)


def _small(cls: Any) -> nn.Module:
    config = cls.config_class()
    try:
        return cls(_with_few_layers(config))
    except Exception:  # some field is incompatible with few layers
        return cls(cls.config_class())


def _with_few_layers(config: Any) -> Any:
    for name, value in list(vars(config).items()):
        if name in _LAYERS and isinstance(value, int):
            setattr(config, name, min(value, 4))
        elif name == "layer_types" and isinstance(value, list):
            setattr(config, name, None)
        elif hasattr(value, "to_dict"):
            _with_few_layers(value)
    return config


def shapes(model: nn.Module) -> Any:
    """The shapes of the model's outputs; None if it accepts none of the inputs."""
    tokens = torch.zeros(1, 8, dtype=torch.long, device="meta")
    inputs: list[Any] = [
        {"input_ids": tokens, "decoder_input_ids": tokens},
        {"input_ids": tokens},
        {"input_features": torch.zeros(1, 80, 3000, device="meta"), "decoder_input_ids": tokens},
        {"pixel_values": torch.zeros(1, 3, 224, 224, device="meta")},
        torch.zeros(2, 3, 224, 224, device="meta"),
    ]
    for each in inputs:
        try:
            with torch.no_grad():
                given = model(**each) if isinstance(each, dict) else model(each)
        except Exception:
            continue
        return [value.shape for value in torch.utils._pytree.tree_leaves(given) if hasattr(value, "shape")]
    return None


def main(choices: list[str]) -> None:
    signal.signal(signal.SIGPROF, _stop)
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for choice in choices:
        library, _, pattern = choice.partition(":")
        seen: set[type] = set()
        run: set[type] = set()
        for name, build in globals()[f"{library}_models"]():
            if not fnmatch.fnmatchcase(name, pattern or "*"):
                continue
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            try:
                _examine(f"{library}:{name}", build, seen, run, counts)
            except Exception as error:
                counts["failed"] += 1
                print(f"failed {library}:{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


def _examine(
    name: str,
    build: Callable[[], nn.Module],
    seen: set[type],
    run: set[type],
    counts: collections.Counter[str],
) -> None:
    try:
        model = _on_meta(build).eval()
    except NotImplementedError:  # a constructor that needs the values of tensors
        model = build().eval()
    counts["built"] += 1
    classes = {place: type(module) for place, module in model.named_modules()}
    new = set(classes.values()) - seen
    if not new:
        return
    seen |= new
    counts["swapped"] += 1
    # Configs take most of the time, and matter only where a forward looks up a name in one.
    with mock.patch("iglu.integrations.transformers.update_configs", return_value=([], [])):
        record = iglu.swap(model, "iglu:5")
    if record.functional:
        record.undo()
        record = iglu.swap(model, "iglu:5")
    lines: dict[str, None] = {}
    called: set[type] = set()
    for each in record.replaced:
        cls = classes.get(each.place.rpartition(".")[0])
        if cls is not None and each.source and cls in new:
            called.add(cls)
            lines[f"replaced {_title(cls)} ({name}): {each.old} ({each.source})"] = None
    for left in record.functional:
        if classes[left.place] in new:
            lines[
                f"left {_title(classes[left.place])} ({name}): {left.call} ({left.source}): {left.reason}"
            ] = None
    counts["calls replaced"] += sum(line.startswith("replaced") for line in lines)
    counts["calls left"] += sum(line.startswith("left") for line in lines)
    for line in lines:
        print(line, flush=True)
    if not called - run:
        return
    run |= called
    after = shapes(model)
    record.undo()
    if {place: type(module) for place, module in model.named_modules()} != classes:
        raise AssertionError("undo does not restore the classes")
    before = shapes(model)
    counts["run before and after" if before is not None else "not run, no suitable input"] += 1
    if before != after:
        raise AssertionError(f"shapes {before} became {after}")


def _title(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    from transformers.initialization import meta_device_safe_creation_ops

    with torch.device("meta"), meta_device_safe_creation_ops():
        return build()


def _stop(*_: Any) -> None:
    raise TimeoutError(f"took more than {_SECONDS} s of processor time")


if __name__ == "__main__":
    main(sys.argv[1:] or ["transformers", "timm", "torchvision"])
