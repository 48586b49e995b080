"""The bytes of a file, uncompressed on the way, as far as they go."""

from __future__ import annotations

import errno
import gc
import io
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from isal import isal_zlib

from iotrace.session.reading import BLANKS, MOST_BLANK_BYTES, open_regular
from iotrace.sources.xplane import is_xspace

CHUNK_BYTES = 4 << 20
_LOOK_BYTES = 1 << 12
_COMPRESSED_BYTES = 1 << 18
_CAREFUL_BYTES = 1 << 14
# Traces shrink to a tenth or a fiftieth: times differ. What shrinks to less says the same again and again.
_MOST_RATIO, _TRUSTED_BYTES = 200, 256 << 20
_GZIP = b"\x1f\x8b"
_HEAD_BYTES = 16
_inflater: Any = isal_zlib.decompressobj

_DAMAGED: Any = (isal_zlib.error, zlib.error)

Progress = Callable[[int], None]


@contextmanager
def without_collecting() -> Iterator[None]:
    """Leave out garbage collection: records are not cyclic, and looking through them halves the speed."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def silent(_: int) -> None:
    """The progress that nobody watches."""


def is_packed(path: Path) -> bool:
    """Whether the content is gzip or an XSpace, whatever the file is called: its end is no end of JSON."""
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        return head.startswith(_GZIP) or is_xspace(head)


def blocks(path: Path, problems: list[str], progress: Progress = silent) -> Iterator[bytes]:
    """The content in pieces of about `CHUNK_BYTES`; `progress` hears the position in the file on disk.

    A gzip stream that breaks off gives what it held up to there, and one line in `problems`. A profile of JAX
    or TensorFlow gives the JSON that torch.profiler would have written.
    """
    with open_regular(path) as file:
        head = file.read(_HEAD_BYTES)
        if is_xspace(head):
            from iotrace.sources.xplane.kineto_json import translate  # few read one

            yield from translate(file, problems)
            progress(file.seek(0, os.SEEK_END))
            return
        if head.startswith(_GZIP):
            file.seek(0)
            yield from _of_use(_inflated(file, path, problems, progress), problems)
            return
        file.seek(_first_data(file))
        yield from _of_use(_read(file, progress), problems)


def _first_data(file: BinaryIO) -> int:
    """Return where a file begins: where data follow a hole, at the hole's last byte, a NUL."""
    descriptor = file.fileno()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return max(0, os.lseek(descriptor, 0, os.SEEK_DATA) - 1)
    except OSError:  # an empty file, a file system that does not say
        return 0
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)  # `file` has read up to there


def _read(file: BinaryIO, progress: Progress) -> Iterator[bytes]:
    while block := file.read(CHUNK_BYTES):
        progress(file.tell())
        yield block


def _of_use(pieces: Iterator[bytes], problems: list[str]) -> Iterator[bytes]:
    """Pass on what is no long stretch of blanks: a gigabyte of them fits a megabyte of gzip."""
    made = blank = 0
    for piece in pieces:
        made += len(piece)
        # The first byte decides for almost every piece: `strip` copies what it is given.
        blank = 0 if piece[:_LOOK_BYTES].strip(BLANKS) or piece.strip(BLANKS) else blank + len(piece)
        if blank > MOST_BLANK_BYTES:
            problems.append(f"it holds nothing but blanks from byte {made - blank} on: the rest was left out")
            return
        yield piece


def _inflated(file: BinaryIO, path: Path, problems: list[str], progress: Progress) -> Iterator[bytes]:
    pieces: list[bytes] = []
    held = made = 0
    inflater = _inflater(31)
    began = True  # nothing of the current member was read yet
    member_at = member_made = 0  # where it begins in the file, and what it gave
    pending = b""
    try:
        while data := pending or file.read(_COMPRESSED_BYTES):
            pending = b""
            if inflater.eof:  # there may be several members, as dftracer writes them
                if not data.strip(b"\0"):
                    began = True
                    continue
                if not data.startswith(_GZIP[: len(data)]):
                    problems.append("what follows the gzip stream is not gzip; left out")
                    break
                inflater = _inflater(31)
                member_at, member_made = file.tell() - len(data), 0
            began = False
            piece = inflater.decompress(data, CHUNK_BYTES)
            while True:
                if piece:
                    pieces.append(piece)
                    held += len(piece)
                    made += len(piece)
                    member_made += len(piece)
                if held >= CHUNK_BYTES:
                    progress(file.tell())
                    if made > _TRUSTED_BYTES and made > _MOST_RATIO * file.tell():
                        problems.append(
                            f"the gzip stream holds more than {_MOST_RATIO} times its size: "
                            f"what follows its first {made} bytes was left out"
                        )
                        yield b"".join(pieces)
                        return
                    yield b"".join(pieces)
                    pieces.clear()
                    held = 0
                if inflater.eof or not inflater.unconsumed_tail:
                    break
                piece = inflater.decompress(inflater.unconsumed_tail, CHUNK_BYTES)
            if inflater.eof:
                pending = inflater.unused_data
    except _DAMAGED:
        rest = _up_to_damage(path, member_at, member_made)
        pieces.append(rest)
        problems.append(
            f"the gzip stream is damaged near byte {file.tell()}, after {made + len(rest)} bytes of content"
        )
    else:
        if not inflater.eof and not began:
            problems.append(f"the gzip stream breaks off after {made} bytes of content")
    progress(file.tell())
    if pieces:
        yield b"".join(pieces)


def _up_to_damage(path: Path, member_at: int, made: int) -> bytes:
    """What a damaged member gives after its first `made` bytes: isal keeps back all of its last piece."""
    inflater = zlib.decompressobj(31)
    pieces: list[bytes] = []
    seen = 0
    with path.open("rb") as file:
        file.seek(member_at)
        while data := file.read(_CAREFUL_BYTES):
            before = inflater.copy()
            try:
                piece = inflater.decompress(data)
            except zlib.error:
                piece = _by_bytes(before, data)
                data = b""
            pieces.append(piece[max(0, made - seen) :])
            seen += len(piece)
            if not data or inflater.eof:
                break
    return b"".join(pieces)


def _by_bytes(inflater: Any, data: bytes) -> bytes:
    pieces = []
    try:
        for index in range(len(data)):
            pieces.append(inflater.decompress(data[index : index + 1]))
    except zlib.error:
        pass
    return b"".join(pieces)


def append(part: Path, out: BinaryIO, skipped_bytes: int = 0) -> None:
    """Add the content of `part` after its first bytes; from file to file inside the kernel, where it can."""
    with part.open("rb") as file:
        file.seek(skipped_bytes)
        # A gzip stream has a descriptor, too: of its compressed file.
        if isinstance(out, io.BufferedWriter | io.BufferedRandom) and hasattr(os, "copy_file_range"):
            out.flush()
            try:
                while os.copy_file_range(file.fileno(), out.fileno(), 1 << 30):
                    pass
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
            file.seek(os.lseek(file.fileno(), 0, os.SEEK_CUR))
            out.seek(0, os.SEEK_END)
        while block := file.read(CHUNK_BYTES):
            out.write(block)
