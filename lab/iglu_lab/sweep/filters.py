"""Parse ``field=value``, and filter recipes by activation, name and field."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from iglu import zoo
from iglu_lab.errors import UserError, unknown
from iglu_lab.recipes import RECIPES, Recipe, check_field, checked, spec_of


def read_field(word: str) -> tuple[str, Any]:
    """
    >>> read_field("ratio=100")
    ('ratio', 100.0)
    """
    name, equals, text = word.partition("=")
    name = name.replace("-", "_")  # flags have hyphens
    if not equals:
        raise UserError(f"expected field=value, got {word!r}")
    check_field(name)
    with contextlib.suppress(UserError):
        return name, checked(name, text)
    try:
        value = json.loads(text.lower())
    except ValueError:
        value = text
    return name, checked(name, value)


def make_filter(words: Sequence[str], recipes: Sequence[Recipe]) -> Callable[[Recipe], bool]:
    """A filter from words: activations (``iglu`` matches every sigma), recipe names, or ``field=value``.

    Filters of the same kind are OR-ed, different kinds are AND-ed: ``iglu relu ratio=100`` is IGLU or ReLU,
    at 100:1.  A word that matches none of ``recipes`` raises a UserError."""
    kinds: dict[str, list[Callable[[Recipe], bool]]] = {}
    for word in words:
        kind, is_match = _parse(word, recipes)
        if not any(map(is_match, recipes)):
            raise UserError(f"{word!r} matches none of {len(recipes)} runs. {_available(recipes)}")
        kinds.setdefault(kind, []).append(is_match)

    def matches(recipe: Recipe) -> bool:
        return all(any(is_match(recipe) for is_match in alternatives) for alternatives in kinds.values())

    if not any(map(matches, recipes)):
        raise UserError(f"No run matches {' '.join(words)} together. {_available(recipes)}")
    return matches


def _parse(word: str, recipes: Sequence[Recipe]) -> tuple[str, Callable[[Recipe], bool]]:
    """The field that a word filters, and the filter."""
    name, equals, _ = word.partition("=")
    if equals and name.replace("-", "_").isidentifier():  # iglu:learnable=5 is an activation
        field, value = read_field(word)
        return field, lambda recipe: bool(getattr(recipe, field) == value)
    names = {recipe.name for recipe in recipes} | RECIPES.keys()
    if word in names:
        return "name", lambda recipe: recipe.name == word
    activations = {*zoo.ZOO, *(recipe.activation.partition(":")[0] for recipe in recipes)}
    if word.partition(":")[0] not in activations:
        raise unknown("activation, recipe or field=value", word, [*activations, *names])
    wanted = spec_of(word)

    def is_match(recipe: Recipe) -> bool:
        if ":" not in word:
            return recipe.activation.partition(":")[0] == word
        spec = spec_of(recipe.activation)
        is_any_start = wanted.learnable and wanted.sigma is None and spec.learnable
        return spec == wanted or (spec.name == wanted.name and is_any_start)

    return "activation", is_match


def _available(recipes: Sequence[Recipe]) -> str:
    """Names, activations, and the values of every other field that varies."""
    words = [*dict.fromkeys(recipe.name for recipe in recipes)]
    words += dict.fromkeys(recipe.activation for recipe in recipes)
    for field in recipes[0].identity() if recipes else ():
        values = dict.fromkeys(getattr(recipe, field) for recipe in recipes)
        if field not in ("name", "activation", "dataset", "model") and len(values) > 1:
            words += [f"{field}={_plain(value)}" for value in values]
    return f"Available: {', '.join(words)}." if words else "There are no runs."


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
