"""The normal form of what a command wrote: masks, and events as a sorted multiset."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

MASKED = """\
Masked, and nothing else:
  frames      of tracebacks (their last line stays)
  paths       of the working directory and the recorded inputs everywhere, of the checkout on standard error
  seconds     how long the command took: "seconds" and "others_pct" in --json of merge and sweep,
              and "in 0.1 s (23 MB/s)" in the text of merge
  versions    of iotrace in merged files
  order       of events in files of Chrome JSON, of lines in logs of dftracer
  tracks      their numbers in native traces
Of what agents record: times, pids, ids of threads and texts, sizes of files, directories, the machine; how
often a tick, imports, stacks of the start, blocked threads and telemetry are recorded, and idle workers; of
sums that replace each other all but the last; POSIX calls of workers and outside the program's directory.
"""
_WHY = re.compile(r'("clock_why\\?":\\?")[^"\\]*')
_VERSION = re.compile(r'("version\\?":\\?")[^"\\]*')
_FRAMES = re.compile(r"^(Traceback \(most recent call last\):\n)(?:[ ].*\n)+", re.MULTILINE)
_SECONDS = [
    (re.compile(r'("(?:seconds|others_pct)": ?)[0-9.e+-]+'), r"\1<seconds>"),
    (re.compile(r" in [0-9.]+ s \([0-9.,]+ [kKMG]?i?B/s\)"), " in <seconds>"),
]


def without_words(lines: list[str]) -> list[str]:
    """Lines of a merged file without the sentence that says why a clock is what it is."""
    return [_WHY.sub(r"\1", line) if "iotrace_merge" in line else line for line in lines]


def without_version(lines: list[str]) -> list[str]:
    """Lines of a merged file without the version of iotrace that wrote it."""
    return [_VERSION.sub(r"\1<version>", line) if "iotrace_merge" in line else line for line in lines]


class Masks:
    """Replaces directories by names, and hides how long a command took."""

    def __init__(self, directories: dict[str, Path]) -> None:
        self._directories = [(str(path), f"<{name}>") for name, path in directories.items()]
        self._directories.sort(key=lambda item: -len(item[0]))

    def paths(self, text: str) -> str:
        """`text` without the directories and without the frames of tracebacks."""
        text = _FRAMES.sub(r"\1", text)
        for path, name in self._directories:
            text = text.replace(path, name)
        return text

    def text(self, text: str) -> str:
        """`text` without the directories and the times of now."""
        text = self.paths(text)
        for pattern, shown in _SECONDS:
            text = pattern.sub(shown, text)
        return text


def events(data: bytes) -> str:
    """A file of Chrome JSON: what stands beside the events, then the events, sorted, one a line.

    27.0 and 27 are one number. Raises ValueError where it is no JSON.
    """
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        text = _lines(msgspec.json.decode(data), partial(msgspec.json.encode, order="sorted"))
    except (msgspec.DecodeError, OverflowError):  # NaN, numbers above 64 bits, lone surrogates
        text = _lines(json.loads(data), _encode)
    for end in (b",", b"}", b"]"):
        text = text.replace(b".0" + end, end)
    return text.decode()


def _lines(document: Any, encode: Callable[[Any], bytes]) -> bytes:
    found = document.pop("traceEvents", []) if isinstance(document, dict) else []
    beside = document.items() if isinstance(document, dict) else [("", document)]
    lines = [encode({key: value}) for key, value in sorted(beside)]
    return b"\n".join([*lines, *sorted(map(encode, found)), b""])


def _encode(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
