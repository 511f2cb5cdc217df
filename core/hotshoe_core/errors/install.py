"""The pip commands that messages propose. They fit the way hotshoe was installed: from a checkout, or from wheels."""

from __future__ import annotations

import functools
import glob
import os
import shlex

__all__ = ["has_wheels", "pip_build", "pip_install"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_PLUGINS = ("ggml-cpu", "ggml-cuda", "ggml-metal", "ggml-rpc", "ggml-vulkan", "mlx")
_FOLDERS = {"hotshoe": "", "hotshoe-core": "/core"} | {f"hotshoe-{name}": f"/plugins/{name}" for name in _PLUGINS}
"""The folder of each of this project's distributions in a checkout."""


def pip_install(requirement: str, option: str = "", info: str = "") -> str:
    """Return the command that installs a distribution with pip: "pip install 'hotshoe[grammar]'".

    If hotshoe was installed from a checkout, no index has its distributions: the command names their folders. pip
    always installs a folder again, so ``option``, such as "--upgrade", is then omitted.

    Args:
        info: the ….dist-info of the distribution, if it is installed. It may say that it was installed from a folder.
    """
    folder, editable = _origin(info)
    if os.path.isdir(folder):
        return f"pip install {'-e ' if editable else ''}{shlex.quote(folder)}"
    name, bracket, extra = requirement.partition("[")
    root, place = _checkout(), _FOLDERS.get(name)
    here = root is not None and os.path.isdir(root)  # it may have been removed after the installation
    if root is None or place is None or (here and not os.path.isfile(f"{root}{place}/pyproject.toml")):
        return " ".join(["pip install", *option.split(), shlex.quote(requirement)])
    folders = [place]
    first = "" if here else "in a checkout of hotshoe: "
    if name.startswith("hotshoe-ggml-") and name != "hotshoe-ggml-cpu":
        folders = ["/plugins/ggml-cpu", *folders]  # pip would look for it in an index
    elif name == "hotshoe" and option == "--upgrade":
        folders = ["/core", ""]
        if os.path.exists(os.path.join(root, ".git")):
            first = f"git -C {shlex.quote(root)} pull && "
    editable = name in ("hotshoe", "hotshoe-core") and os.path.join(root, "core", "hotshoe_core") == _PACKAGE
    words = [shlex.quote(f"{root if here else '.'}{folder}{bracket}{extra}") for folder in folders]
    return f"{first}pip install {' '.join(f'-e {word}' if editable else word for word in words)}"


def pip_build(distribution: str) -> str:
    """Return the command that compiles an installed distribution for this machine, and installs the result."""
    return pip_install(distribution, f"--force-reinstall --no-deps --no-binary {shlex.quote(distribution)}")


def has_wheels() -> bool:
    """Whether pip installs this project's plugins from wheels. From a checkout, it compiles them."""
    return _checkout() is None


@functools.cache
def _checkout() -> str | None:
    """Return the folder of the checkout that hotshoe was installed from; None if it was installed from wheels."""
    site = os.path.dirname(_PACKAGE)
    root = os.path.dirname(site)
    if os.path.isfile(os.path.join(root, "plugins", "ggml-cpu", "pyproject.toml")):
        return root
    folders = (_origin(info)[0] for info in glob.glob(os.path.join(glob.escape(site), "hotshoe_core-*.dist-info")))
    return next((os.path.dirname(folder) for folder in folders if folder), None)


def _origin(info: str) -> tuple[str, bool]:
    """The folder that a distribution was installed from, and whether it is editable; "" if it is not from a folder.

    Source: PEP 610. direct_url.json: {"url": "file:///home/me/hotshoe/core", "dir_info": {"editable": true}}
    """
    path = os.path.join(info, "direct_url.json")
    if not info or not os.path.isfile(path):
        return "", False
    import json  # needed for what was installed from a folder or a file
    from urllib.parse import unquote, urlsplit

    try:
        with open(path, encoding="utf-8") as file:
            origin = json.loads(file.read(1 << 16))
        folder, editable = unquote(urlsplit(origin["url"]).path), bool(origin["dir_info"].get("editable"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", False
    return folder[1:] if folder[2:3] == ":" else folder, editable  # /C:/folder on Windows
