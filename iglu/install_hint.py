"""The pip command that installs a missing part from where iglu was installed: an index or a folder."""

from __future__ import annotations

import shlex

LIBRARY = "iglu-torch"
LAB = "iglu-lab"


def pip_install(extra: str = "", *, distribution: str = LIBRARY, rebuild: bool = False) -> str:
    """Return the command that installs an extra of a distribution, or that compiles its C kernels again."""
    folder, is_editable = _folder(distribution)
    words = ["pip", "install"]
    if rebuild:
        words += ["--force-reinstall", "--no-deps", "--no-cache-dir"]
        words += [] if folder else ["--no-binary", distribution]
    words += ["--editable"] if is_editable else []
    return shlex.join([*words, (folder or distribution) + (f"[{extra}]" if extra else "")])


def pip_install_lab() -> str:
    """Return the command that installs the lab; in a clone, together with the library, since the lab is not
    on PyPI yet."""
    folder, is_editable = _folder(LIBRARY)
    if not folder:
        return shlex.join(["pip", "install", f"{LIBRARY}[lab]"])
    flag = ["--editable"] if is_editable else []
    return shlex.join(["pip", "install", *flag, folder, *flag, f"{folder}/lab"])


def _folder(distribution: str) -> tuple[str, bool]:
    """Return the folder that a distribution was installed from ("" for an index), and whether it is editable.

    Installers write this into direct_url.json (PEP 610); metadata of a checkout on the path has no such file.
    """
    import json
    from importlib.metadata import distributions
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    for found in distributions(name=distribution):
        note = json.loads(found.read_text("direct_url.json") or "{}")
        if "dir_info" in note:
            folder = url2pathname(urlsplit(note["url"]).path)
            if Path(folder).is_dir():
                return folder, bool(note["dir_info"].get("editable"))
    return "", False
