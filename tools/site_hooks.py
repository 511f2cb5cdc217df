"""The site's pages from outside docs/: MkDocs calls these functions (mkdocs.yml, `make docs`).

README.md becomes index.md, and each public module gets a page of the reference. Links between files of
the repository become links between pages; a link to a file that has no page becomes its text.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/README.md": "tests.md",
    "tests/data/README.md": "tests-data.md",
    "benchmarks/NOTES.md": "benchmarks.md",
    "examples/models/README.md": "examples/models.md",
    "examples/backends/torch/README.md": "examples/torch.md",
    "examples/backends/jax/README.md": "examples/jax.md",
    **{
        f"plugins/{path.parent.name}/README.md": f"plugins/{path.parent.name}.md"
        for path in ROOT.glob("plugins/*/README.md")
    },
}
SOURCES = ("engine", "loader", "core", *sorted(f"plugins/{p.parent.name}/src" for p in ROOT.glob("plugins/*/src")))
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def modules() -> dict[str, str]:
    """The file of each module of the reference, relative to the repository, and its dotted name.

    A module has a page if its name has no underscore or if it has an ``__all__``: public names may live in a private
    module, and their package exports them.
    """
    found = {}
    for source in SOURCES:
        for path in sorted((ROOT / source).glob("*/**/*.py")):
            text = path.read_text(encoding="utf-8")
            private = any(part.startswith("_") for part in path.parts[len(ROOT.parts) :] if part != "__init__.py")
            if ast.get_docstring(ast.parse(text)) and (not private or "\n__all__ " in text):
                dotted = ".".join(path.relative_to(ROOT / source).with_suffix("").parts).removesuffix(".__init__")
                found[path.relative_to(ROOT).as_posix()] = dotted
    return found


def on_config(config: Any) -> Any:
    """Add the reference to the navigation: a section for each package."""
    global _uris
    reference = modules()
    _uris = {**PAGES, **{file: f"reference/{dotted}.md" for file, dotted in reference.items()}}
    _uris |= {f"docs/{path.name}": path.name for path in (ROOT / "docs").glob("*.md")}
    packages: dict[str, list[dict[str, str]]] = {}
    for dotted in reference.values():
        packages.setdefault(dotted.partition(".")[0], []).append({dotted: f"reference/{dotted}.md"})
    config["nav"] = [*config["nav"], {"Reference": [{name: pages} for name, pages in packages.items()]}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    for file, uri in _uris.items():
        if uri.startswith("reference/"):
            dotted = uri.removeprefix("reference/").removesuffix(".md")
            files.append(File.generated(config, uri, content=f"# {dotted}\n\n`{file}`\n\n::: {dotted}\n"))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links of a page to other pages."""
    uri = page.file.src_uri
    name = next((name for name, other in _uris.items() if other == uri), f"docs/{uri}")
    folder = PurePosixPath(name).parent

    def lead(link: re.Match[str]) -> str:
        text, target, anchor = link[1], os.path.normpath(folder / link[2]), link[3] or ""
        if target in _uris:
            return f"[{text}]({os.path.relpath(_uris[target], PurePosixPath(uri).parent)}{anchor})"
        return text

    return markdown if uri.startswith("reference/") else _LINK.sub(lead, markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Replace the only script from another address, which the search needs in a page of a folder."""
    worker = (ROOT / "tools" / "site_worker.js").read_text(encoding="utf-8")
    return output.replace(
        '<script src="https://unpkg.com/iframe-worker/shim"></script>', f"<script>\n{worker}</script>"
    )


def on_post_template(output_content: str, **_: Any) -> str:
    """The same for the page of an address that does not exist."""
    return on_post_page(output_content)


_uris: dict[str, str] = {}
