"""Adapt docstrings for the API reference of the documentation site.

Examples become code blocks, Sphinx roles are removed, and the default of sigma is shown as a number.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

from iglu.functional import DEFAULT_SIGMA

_EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|mod|meth):`~?")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = _ROLE.sub("`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            if str(parameter.default) == "DEFAULT_SIGMA":
                parameter.default = repr(DEFAULT_SIGMA)
