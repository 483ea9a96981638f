"""How this package is installed again, from where it came: an index, or a folder."""

from __future__ import annotations

import shlex

NAME = "iglu-torch"


def pip_install(extra: str = "", *, is_rebuilt: bool = False) -> str:
    """What to type for one of its extras, or for its loops to be built here."""
    folder, is_editable = _folder()
    words = ["pip", "install"]
    if is_rebuilt:
        words += ["--force-reinstall", "--no-deps", "--no-cache-dir"]
        words += [] if folder else ["--no-binary", NAME]
    words += ["--editable"] if is_editable else []
    return shlex.join([*words, (folder or NAME) + (f"[{extra}]" if extra else "")])


def _folder() -> tuple[str, bool]:
    """That it was installed from, and whether it is used in place; empty for an index.

    Installers note it in direct_url.json (PEP 610).  A checkout on the path has metadata without that note.
    """
    import json
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    for found in distributions(name=NAME):
        note = json.loads(found.read_text("direct_url.json") or "{}")
        if "dir_info" in note:
            folder = url2pathname(urlsplit(note["url"]).path)
            if Path(folder).is_dir():
                return folder, bool(note["dir_info"].get("editable"))
    return "", False
