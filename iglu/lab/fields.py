"""Fields of a recipe as words: ``ratio=100`` read and checked, and words that choose among recipes."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from iglu import zoo
from iglu.functional import check_choice
from iglu.lab.recipes import RECIPES, Recipe

_KINDS: dict[str, Any] = get_type_hints(Recipe)


def check_field(name: str, known: Iterable[str] = _KINDS) -> None:
    """A ValueError with a suggestion if there is no such field."""
    names = list(known)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
        raise ValueError(f"Unknown field {name!r}. {hint}")


def checked(name: str, value: Any) -> Any:
    """``value`` as the field ``name`` takes it; a ValueError says what that would be."""
    check_field(name)
    kind = _KINDS[name]
    if get_origin(kind) is Literal:
        check_choice(name, value, get_args(kind))
        return value
    alternatives = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value in (None, "none") and types.NoneType in alternatives:
        return None
    for alternative in alternatives:
        if alternative is float and type(value) in (int, float):
            return float(value)
        if type(value) is alternative:
            return value
        if get_origin(alternative) is tuple and isinstance(value, list):
            numbers = get_args(alternative)
            if len(value) == len(numbers) and all(type(item) in (int, float) for item in value):
                return tuple(map(float, value))
    raise ValueError(f"{name} must be {_in_words(kind)}, got {value!r}")


def read_field(word: str) -> tuple[str, Any]:
    """
    >>> read_field("ratio=100")
    ('ratio', 100.0)
    """
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(f"Write field=value, got {word!r}")
    check_field(name)
    if _KINDS[name] is str or get_origin(_KINDS[name]) is Literal:
        return name, checked(name, text)
    try:
        value = json.loads(text.lower())
    except ValueError:
        value = text
    return name, checked(name, value)


def chooser(words: Sequence[str], recipes: Sequence[Recipe]) -> Callable[[Recipe], bool]:
    """Whether a recipe is meant by the words: activations (``iglu`` stands for every sigma), recipes, or
    ``field=value``.  Words of one kind are alternatives, kinds narrow each other down:
    ``iglu relu ratio=100`` is IGLU or ReLU, at 100:1.  A word that fits none of ``recipes`` is an error."""
    kinds: dict[str, list[Callable[[Recipe], bool]]] = {}
    for word in words:
        kind, fits = _reading(word, recipes)
        if not any(map(fits, recipes)):
            raise ValueError(f"{word!r} fits none of {len(recipes)} runs. {_what_there_is(recipes)}")
        kinds.setdefault(kind, []).append(fits)

    def is_meant(recipe: Recipe) -> bool:
        return all(any(fits(recipe) for fits in alternatives) for alternatives in kinds.values())

    if not any(map(is_meant, recipes)):
        raise ValueError(f"No run fits {' '.join(words)} together. {_what_there_is(recipes)}")
    return is_meant


def _reading(word: str, recipes: Sequence[Recipe]) -> tuple[str, Callable[[Recipe], bool]]:
    """Which field a word speaks of, and whether a recipe fits it."""
    name, equals, _ = word.partition("=")
    if equals and name.isidentifier():  # iglu:learnable=5 is an activation
        field, value = read_field(word)
        return field, lambda recipe: bool(getattr(recipe, field) == value)
    names = {recipe.name for recipe in recipes} | RECIPES.keys()
    if word in names:
        return "name", lambda recipe: recipe.name == word
    if word.partition(":")[0] not in zoo.ZOO:
        near = difflib.get_close_matches(word, [*zoo.ZOO, *names], n=1)
        hint = f"Did you mean {near[0]!r}?" if near else _what_there_is(recipes)
        raise ValueError(f"{word!r} is no activation, recipe or field=value. {hint}")
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


def _in_words(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word",
             types.NoneType: "none"}  # fmt: skip
    alternatives = get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return " or ".join(words.get(each, f"a list of {len(get_args(each))} numbers") for each in alternatives)
