"""Arrows from a zarr array's ``__getitem__`` to its chunks: zarr 3 reads them on threads of its own."""

from __future__ import annotations

from bisect import bisect_left

from iotrace.timeline.model import Arrow, ProcessTracks, Slice

_ACCESS = "zarr.Array.__getitem__"


def chunk_arrows(process: ProcessTracks) -> list[Arrow]:
    """Per access an arrow to each chunk's file: to its first read (else its open) by another thread.

    Only calls within the access count, on files below the array's path.
    """
    accesses = [
        (item, track.tid)
        for track in process.tracks
        for item in track.slices
        if item.name == _ACCESS and item.args is not None and "file" in item.args
    ]
    if not accesses:
        return []
    # Perfetto binds no arrow to a slice without length.
    calls = sorted(
        (
            (item, track.tid)
            for track in process.tracks
            for item in track.slices
            if item.category == "POSIX" and item.end_ns > item.start_ns and _rank(item) is not None
        ),
        key=lambda call: call[0].start_ns,
    )
    arrows = []
    for access, tid in accesses:
        first = bisect_left(calls, access.start_ns, key=lambda call: call[0].start_ns)
        last = bisect_left(calls, access.end_ns, key=lambda call: call[0].start_ns)
        below = f"{(access.args or {})['file']}/"
        chosen: dict[str, Slice] = {}
        for call, call_tid in calls[first:last]:
            file = (call.args or {})["file"]
            if call_tid != tid and file.startswith(below):
                best = chosen.get(file)
                if best is None or (_rank(call) or 0) < (_rank(best) or 0):
                    chosen[file] = call
        arrows += [
            Arrow("chunk", [(access, access.start_ns), (call, call.start_ns)]) for call in chosen.values()
        ]
    return arrows


def _rank(call: Slice) -> int | None:
    """A read is better than an open; nothing else is an end for an arrow."""
    if "read" in call.name:
        return 0
    return 1 if "open" in call.name else None
