#!/usr/bin/env python3
"""The one setting about where this project lives, and everything that follows from it.

An address is not invented before there is one.  Once REPOSITORY is filled in, ``python tools/address.py``
writes the badges of README.md and the line in CITATION.cff, the build (setup.py) puts addresses and a README
whose pictures and links are absolute into the package, and the site links to the source.  Until then there
are no badges and no links out, and the package's description names its pictures, none of which is broken.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = ""  # https://github.com/OWNER/NAME, without a slash at the end

ROOT = Path(__file__).parent.parent
_COLAB = "https://colab.research.google.com/github"  # where a notebook of GitHub opens with a click
_BADGES = re.compile(r"(?<=<!-- badges -->\n).*?(?=<!-- /badges -->)", re.DOTALL)
_CITED = re.compile(r"^repository-code: .*\n", re.MULTILINE)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<path>(?!\w+:|#)[^)\s]+)\)")


def urls(repository: str) -> dict[str, str]:
    """What an index shows beside the package."""
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
    }


def badges(repository: str) -> str:
    """One line a workflow that runs by itself, which leads to its runs; then the notebook."""
    if not repository:
        return ""
    workflows = (f"{repository}/actions/workflows/{name}.yml" for name in ("tests", "nightly", "wheels"))
    lines = [f"[![{Path(each).stem}]({each}/badge.svg)]({each})\n" for each in workflows]
    place = repository.partition("//github.com/")[2]
    if place:
        lines.append(f"[Open the tour as a notebook]({_COLAB}/{place}/blob/main/docs/notebooks/tour.ipynb)\n")
    return "".join(lines)


def description(readme: str, repository: str, version: str) -> str:
    """README.md for an index, which has no tree around it that a relative path could point into.

    Pictures become their words, and links their text, as long as there is no repository.
    """

    def outward(found: re.Match[str]) -> str:
        text, path = found["text"], found["path"]
        if not repository:
            return f"*(picture: {text})*" if found["picture"] else text
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{text}]({repository}/{kind}/v{version}/{path})"

    readme = re.sub(r"^<!--.*?-->\n+", "", readme, flags=re.DOTALL | re.MULTILINE)
    return _LINK.sub(outward, readme)


def filled(name: str, text: str, repository: str) -> str:
    """README.md or CITATION.cff as it must be for this address."""
    if name == "README.md":
        return _BADGES.sub(lambda _: badges(repository), text)
    line = f"repository-code: {repository}\n" if repository else ""
    return re.sub(r"^(?=license:)", line, _CITED.sub("", text), flags=re.MULTILINE)


def version() -> str:
    """That of iglu/__init__.py, without importing it."""
    text = (ROOT / "iglu/__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    return str(found)


def described() -> dict[str, object]:
    """What setup.py tells about the package beyond pyproject.toml."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return {
        "project_urls": urls(REPOSITORY),
        "long_description": description(readme, REPOSITORY, version()),
        "long_description_content_type": "text/markdown",
    }


def main() -> int:
    if REPOSITORY and not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]+", REPOSITORY):
        print(f"REPOSITORY must be like https://github.com/OWNER/NAME, got {REPOSITORY!r}", file=sys.stderr)
        return 2
    for name in ("README.md", "CITATION.cff"):
        text = (ROOT / name).read_text(encoding="utf-8")
        (ROOT / name).write_text(filled(name, text, REPOSITORY), encoding="utf-8")
    print(f"Filled in {REPOSITORY}" if REPOSITORY else "No address: no badges, no links out.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
