"""The page at `/`: its files, and the headers with which a browser runs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["FOLDER", "is_page", "page_response", "routes"]

FOLDER = "/page/"
"""Where the files of the page are."""

_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_IMPORT_MAP = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


def is_page(path: str) -> bool:
    """Whether a path is the page or one of its files, which need no key: they tell nothing about the models."""
    return path == "/" or path.startswith(FOLDER)


@cache
def _files() -> dict[str, bytes]:
    """The files of the page by their path below its folder."""
    root = files("hotshoe.serve") / "page"
    found = {}
    for folder in ("", "vendor/"):
        for entry in (root / folder).iterdir() if folder else root.iterdir():
            if entry.is_file() and entry.name[entry.name.rfind(".") :] in _TYPES:
                found[folder + entry.name] = entry.read_bytes()
    return found


@cache
def _headers() -> dict[str, str]:
    """The policy: files of this server only. Import maps stand in the page, so theirs is allowed by its hash.

    Scripts cannot be made from strings, and HTML only by DOMPurify (trusted types), in browsers that know them.
    """
    inline = _IMPORT_MAP.findall(_files()["index.html"].decode())
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in inline
    )
    policy = (
        f"default-src 'self'; script-src 'self' {hashes}; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
    }


def page_response(name: str, request: Request) -> Response | None:
    """A file of the page; None if there is no such file. An unchanged one is not sent again."""
    content = _files().get(name)
    if content is None:
        return None
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = _headers() | {"etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name[name.rfind(".") :]], headers=headers)


def routes() -> list[Route]:
    """A route for each file of the page, except the one at `/`."""

    def route(name: str) -> Route:
        async def answer(request: Request) -> Response:
            response = page_response(name, request)
            assert response is not None
            return response

        return Route(FOLDER + name, answer, methods=["GET"])

    return [route(name) for name in _files() if name != "index.html"]
