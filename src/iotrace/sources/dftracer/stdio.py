"""C's buffered files (stdio) in dftracer's logs: what their calls moved, and the system calls inside them.

A call of stdio mostly copies from a buffer; libc fills it by reads that dftracer does not see. Where a
library's own reads show inside the call, they count and the call does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from iotrace.sources.posix_calls import PosixCalls

CATEGORY = "STDIO"
_BYTE_READS = frozenset({"fgetc", "getc", "getc_unlocked"})
_BYTE_WRITES = frozenset({"fputc", "putc", "putc_unlocked"})
READS = _BYTE_READS | {"fread", "fread_unlocked", "fgets", "getw", "getline", "getdelim", "fscanf", "vfscanf"}
WRITES = _BYTE_WRITES | {"fwrite", "fwrite_unlocked", "fputs", "putw", "fprintf", "vfprintf"}
SEEKS = frozenset({"fseek", "fseeko", "fseeko64", "rewind", "fsetpos", "fsetpos64"})
_OTHERS = {"fopen", "fopen64", "fdopen", "freopen", "freopen64", "fclose", "fflush", "ftell", "ftello"}
_NAMES = READS | WRITES | SEEKS | _OTHERS
_SET, _UNKNOWN = 0, -1
Mask = npt.NDArray[np.bool_]


def find_result(name: Any, args: Mapping[str, Any]) -> Any:
    """The bytes that a call moved, or the position that it set or returned; -1 where that is unknown."""
    returned = args.get("ret", _UNKNOWN)
    if name in ("fread", "fwrite", "fread_unlocked", "fwrite_unlocked"):
        size = args.get("size", _UNKNOWN)
        known = type(returned) is int and type(size) is int and returned >= 0 and size >= 0
        return returned * size if known else _UNKNOWN
    if name == "fgets":
        return args.get("ret_len", 0)  # absent at the end of the file
    if name in _BYTE_READS:
        return int(returned != _UNKNOWN)
    if name in ("fseek", "fseeko", "fseeko64"):
        done = returned == 0 and args.get("whence") == _SET
        return args.get("offset", _UNKNOWN) if done else _UNKNOWN
    if name in _BYTE_WRITES:
        return 1 if returned != _UNKNOWN else _UNKNOWN
    if name in ("fputs", "putw", "getw", "fscanf", "vfscanf"):
        return _UNKNOWN
    if name in SEEKS:
        return 0 if name == "rewind" else _UNKNOWN
    return returned


def nested(calls: PosixCalls) -> tuple[Mask, Mask]:
    """Mark calls of stdio in which their thread made a system call on the same file; and these calls."""
    holders, held = (np.zeros(len(calls), dtype=np.bool_) for _ in range(2))
    is_stdio = calls.named(_NAMES)
    chosen = np.flatnonzero(np.isin(calls.file, np.unique(calls.file[is_stdio])))
    if not is_stdio.any() or is_stdio[chosen].all():
        return holders, held
    _, thread = np.unique(
        np.stack([calls.node, calls.pid, calls.tid, calls.file])[:, chosen], axis=1, return_inverse=True
    )
    _, moment = np.unique(calls.start_ns[chosen], return_inverse=True)
    at = thread.reshape(-1) * np.int64(len(chosen)) + moment.reshape(-1)
    outer, inner = chosen[is_stdio[chosen]], chosen[~is_stdio[chosen]]
    outer_at, inner_at = at[is_stdio[chosen]], at[~is_stdio[chosen]]
    order = np.argsort(outer_at, kind="stable")
    last = np.searchsorted(outer_at[order], inner_at, side="right") - 1
    candidate = outer[order][np.maximum(last, 0)]
    same_thread = outer_at[order][np.maximum(last, 0)] // len(chosen) == inner_at // len(chosen)
    inside = (last >= 0) & same_thread & (calls.start_ns[inner] < calls.end_ns[candidate])
    inside &= calls.end_ns[inner] <= calls.end_ns[candidate]
    holders[candidate[inside]] = held[inner[inside]] = True
    return holders, held
