"""What a page of HTML holds: its text, its elements, whether each is closed in turn, what it would fetch."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

_VOID = {"meta", "br", "link", "img", "input", "hr", "wbr"}
_FETCHES = {"src", "href", "xlink:href", "action", "poster", "srcset", "data"}


class Page(HTMLParser):
    """A parsed page; `text` is what is read, `faults` what is not well-formed, `links` what it refers to."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = source
        self.text = ""
        self.faults: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.faults.append(f"{tag} has an attribute twice: {names}")
        self.links += [value or "" for name, value in attrs if name in _FETCHES]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if any(name.startswith("on") for name in names):
            self.faults.append(f"{tag} has a handler")
        if tag == "script":
            self.scripts.append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes {self._open[-1:]}")
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif not self._open or self._open[-1] != "style":
            self.text += data

    @property
    def words(self) -> str:
        """The text with each run of white space as one space."""
        return " ".join(self.text.split())

    @property
    def data(self) -> Any:
        """The JSON inside."""
        return json.loads(self.scripts[0])

    @property
    def sections(self) -> list[str]:
        """The ids of its sections, in order."""
        return re.findall(r'<section id="([a-z]+)"', self.source)
