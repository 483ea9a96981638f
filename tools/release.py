#!/usr/bin/env python3
"""Whether everything says what a tag says, before it is published.  Usage: tools/release.py v1.2.3"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import address


def disagreements(tag: str) -> Iterator[str]:
    """What has to be mended before this tag is a release."""
    texts = {
        name: (address.ROOT / name).read_text(encoding="utf-8")
        for name in ("CHANGELOG.md", "CITATION.cff", "README.md")
    }
    version = address.version()
    if tag != f"v{version}":
        yield f"the tag must be v{version}, as in iglu/__init__.py, got {tag!r}"
    if not re.search(rf"^version: {re.escape(version)}$", texts["CITATION.cff"], re.MULTILINE):
        yield f"CITATION.cff must say version: {version}"
    first = re.findall(r"^## (.*)$", texts["CHANGELOG.md"], re.MULTILINE)[0]
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", first):
        yield f"CHANGELOG.md must begin with '## {version} (YYYY-MM-DD)', got '## {first}'"
    if not address.REPOSITORY:
        yield "REPOSITORY in tools/address.py must be filled in"
    for name in ("README.md", "CITATION.cff"):
        if texts[name] != address.filled(name, texts[name], address.REPOSITORY):
            yield f"{name} is not as tools/address.py would write it: run it"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    found = list(disagreements(arguments[0]))
    for line in found:
        print(f"not ready: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
