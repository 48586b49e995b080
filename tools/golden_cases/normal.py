"""The normal form of what a command wrote: masks, and events as a sorted multiset."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

MASKED = """\
Masked, and nothing else:
  paths       of the working directory and the recorded inputs everywhere, of the checkout on standard error
  seconds     how long the command took: "seconds" and "others_pct" in --json of merge and sweep,
              and "in 0.1 s (23 MB/s)" in the text of merge
"""
_SECONDS = [
    (re.compile(r'("(?:seconds|others_pct)": )[0-9.e+-]+'), r"\1<seconds>"),
    (re.compile(r" in [0-9.]+ s \([0-9.,]+ MB/s\)"), " in <seconds>"),
]


class Masks:
    """Puts names in the place of directories, and hides how long a command took."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = [(str(path), f"<{name}>") for name, path in directories.items()]
        self._directories.sort(key=lambda item: -len(item[0]))

    def paths(self, text: str) -> str:
        """`text` without the directories."""
        for path, name in self._directories:
            text = text.replace(path, name)
        return text

    def text(self, text: str) -> str:
        """`text` without the directories and the times of now."""
        text = self.paths(text)
        for pattern, shown in _SECONDS:
            text = pattern.sub(shown, text)
        return text


def _number(text: str) -> float | int:
    """27.0 and 27 are one number."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


def events(data: bytes) -> str:
    """A file of Chrome JSON: what stands beside the events, then the events, sorted, one a line.

    Raises ValueError where it is no JSON.
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    document: Any = json.loads(data, parse_float=_number)
    found = document.pop("traceEvents", []) if isinstance(document, dict) else []
    encode = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode
    lines = sorted(map(encode, found))
    return "\n".join([json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False), *lines]) + "\n"
