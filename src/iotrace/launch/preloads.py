"""Find libraries that are preloaded beside dftracer and wrap the same calls.

dftracer redirects the calls of every library, and what ``dlsym(RTLD_NEXT)`` returns. A library that looks
a call up when it is first used (Darshan does) gets dftracer's wrapper, which calls the library again: a
segmentation fault. Nothing tells such a library from one that looks it up as it is loaded, so neither meets
dftracer.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CALLS = frozenset(
    {b"open", b"open64", b"openat", b"openat64", b"close", b"read", b"write", b"pread", b"pread64", b"pwrite"}
    | {b"pwrite64", b"lseek", b"lseek64", b"fopen", b"fopen64", b"fread", b"fwrite", b"fclose"}
)
# Those of a run around this one, and what is wrapped.
_HARMLESS = ("libdftracer", "_posix_guard.", "libc.", "libpthread")
_FOR_ALL = Path("/etc/ld.so.preload")
# Of ELF, 64 bits, little-endian.
_HEADER = struct.Struct("<16x H H 20x Q 10x H H 2x")
_SECTION = struct.Struct("<4x I 16x Q Q I 12x Q")
_SYMBOL = struct.Struct("<I 2x H 16x")
_DYNAMIC_SYMBOLS = 11


def wraps_calls(inherited: str) -> str:
    """Return the first library of `inherited` (an LD_PRELOAD) or the system's that wraps dftracer's calls."""
    named = inherited
    with suppress(OSError):
        named += " " + _FOR_ALL.read_text(errors="surrogateescape")
    searched = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    for name in re.split(r"[ :\t\n]+", named):
        if os.path.basename(name).startswith(_HARMLESS):
            continue
        for path in [name] if "/" in name else [f"{directory}/{name}" for directory in searched]:
            with suppress(OSError, struct.error, ValueError):
                if _CALLS & set(_defined(Path(path).read_bytes())):
                    return name
    return ""


def _defined(library: bytes) -> Iterator[bytes]:
    """Yield the names of the functions and objects that a library exports."""
    if library[:6] != b"\x7fELF\x02\x01":
        return
    _, _, sections_at, size, count = _HEADER.unpack_from(library)
    sections = [_SECTION.unpack_from(library, sections_at + number * size) for number in range(count)]
    for kind, at, length, strings, each in sections:
        if kind != _DYNAMIC_SYMBOLS or not each:
            continue
        names_at = sections[strings][1]
        for symbol in range(at, at + length, each):
            name, section = _SYMBOL.unpack_from(library, symbol)
            if section:  # 0: it is imported
                begin = names_at + name
                yield library[begin : library.index(b"\0", begin)]
