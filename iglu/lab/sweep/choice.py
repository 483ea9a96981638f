"""Fields of a recipe as words: ``ratio=100`` read and checked, and words that choose among recipes."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Sequence
from typing import Any

from iglu import zoo
from iglu.lab.mistakes import MistakeError
from iglu.lab.recipes import RECIPES, Recipe, check_field, checked


def read_field(word: str) -> tuple[str, Any]:
    """
    >>> read_field("ratio=100")
    ('ratio', 100.0)
    """
    name, equals, text = word.partition("=")
    name = name.replace("-", "_")  # as the flags are written
    if not equals:
        raise MistakeError(f"Write field=value, got {word!r}")
    check_field(name)
    with contextlib.suppress(MistakeError):
        return name, checked(name, text)  # a word is what some fields take
    try:
        value = json.loads(text.lower())
    except ValueError:
        value = text
    return name, checked(name, value)


def chooser(words: Sequence[str], recipes: Sequence[Recipe]) -> Callable[[Recipe], bool]:
    """Whether a recipe is meant by the words: activations (``iglu`` stands for every sigma), recipes, or
    ``field=value``.  Words of one kind are alternatives, kinds narrow each other down:
    ``iglu relu ratio=100`` is IGLU or ReLU, at 100:1.  A word that fits none of ``recipes`` is a mistake."""
    kinds: dict[str, list[Callable[[Recipe], bool]]] = {}
    for word in words:
        kind, fits = _reading(word, recipes)
        if not any(map(fits, recipes)):
            raise MistakeError(f"{word!r} fits none of {len(recipes)} runs. {_what_there_is(recipes)}")
        kinds.setdefault(kind, []).append(fits)

    def is_meant(recipe: Recipe) -> bool:
        return all(any(fits(recipe) for fits in alternatives) for alternatives in kinds.values())

    if not any(map(is_meant, recipes)):
        raise MistakeError(f"No run fits {' '.join(words)} together. {_what_there_is(recipes)}")
    return is_meant


def _reading(word: str, recipes: Sequence[Recipe]) -> tuple[str, Callable[[Recipe], bool]]:
    """Which field a word speaks of, and whether a recipe fits it."""
    name, equals, _ = word.partition("=")
    if equals and name.replace("-", "_").isidentifier():  # iglu:learnable=5 is an activation
        field, value = read_field(word)
        return field, lambda recipe: bool(getattr(recipe, field) == value)
    names = {recipe.name for recipe in recipes} | RECIPES.keys()
    if word in names:
        return "name", lambda recipe: recipe.name == word
    if word.partition(":")[0] not in zoo.ZOO:
        near = difflib.get_close_matches(word, [*zoo.ZOO, *names], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else _what_there_is(recipes)
        raise MistakeError(f"{word!r} is no activation, recipe or field=value. {hint}")
    wanted = zoo.parse(word)

    def fits(recipe: Recipe) -> bool:
        spec = zoo.parse(recipe.activation)
        is_any_start = wanted.learnable and wanted.sigma is None and spec.learnable
        return spec.name == wanted.name and (spec == wanted or ":" not in word or is_any_start)

    return "activation", fits


def _what_there_is(recipes: Sequence[Recipe]) -> str:
    """Names, activations, and the values of every other field in which the recipes differ."""
    words = [*dict.fromkeys(recipe.name for recipe in recipes)]
    words += dict.fromkeys(recipe.activation for recipe in recipes)
    for field in recipes[0].identity() if recipes else ():
        values = dict.fromkeys(getattr(recipe, field) for recipe in recipes)
        if field not in ("name", "activation", "dataset", "model") and len(values) > 1:
            words += [f"{field}={_plain(value)}" for value in values]
    return f"There are: {', '.join(words)}." if words else "There are none."


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
