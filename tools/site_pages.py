"""Give the site the pages that stand beside docs/: README is its first page, CHANGELOG a page of its own.

mkdocs calls ``on_files`` (``hooks`` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_PROJECT = Path(__file__).parents[1]
_PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)([\w/.-]+)(#[\w-]+)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages, with links as they are seen from the site."""
    for source, page in _PAGES.items():
        text = _LINK.sub(_link, (_PROJECT / source).read_text())
        files.append(File.generated(config, page, content=text))
    return files


def _link(found: re.Match[str]) -> str:
    label, target, anchor = found[1], found[2], found[3] or ""
    if target.startswith("docs/") or target in _PAGES:
        return f"[{label}]({_PAGES.get(target, target.removeprefix('docs/'))}{anchor})"
    return label  # a file of the repository, which the site does not hold
