"""A native trace as text: what Perfetto's own importer makes of it, without the numbers of its tables."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.support.perfetto import ERRORS, query

# Of an integer the query keeps what a double holds: ns since 1970 would lose their last digits.
_SINCE = "ts - (select start_ts from trace_bounds)"
_QUERIES = {
    "processes": "select upid, pid, name, arg_set_id from process where upid > 0",
    "threads": "select utid, tid, name, upid from thread where utid > 0",
    "tracks": "select t.id, t.name, t.type, t.parent_id, t.source_arg_set_id, p.upid, th.utid from track t "
    "left join process_track p using(id) left join thread_track th using(id)",
    "start": "select cast(start_ts as text) from trace_bounds",
    "slices": f"select id, {_SINCE}, dur, name, category, depth, track_id, arg_set_id from slice",
    "flows": "select slice_out, slice_in, arg_set_id from flow",
    "counters": f"select {_SINCE}, value, track_id from counter",
    "args": "select arg_set_id, key, display_value from args order by arg_set_id, key, display_value",
    "metadata": "select name, str_value, int_value from metadata where name like 'cr-%'",
    "errors": ERRORS,
}
# Numbers of tracks in the file, which say nothing.
_NUMBERS = frozenset({"trace_id", "parent_track_uuid", "track_uuid"})


def decoded(trace: Path) -> str:
    """One line for each process, thread, track, slice, flow, counter value and error, sorted."""
    found = dict(zip(_QUERIES, query(trace, *_QUERIES.values()), strict=True))
    args: dict[Any, dict[str, Any]] = defaultdict(dict)
    for number, key, value in found["args"]:
        if key not in _NUMBERS:
            args[number][key] = value
    processes = {upid: f"{name} {pid}" for upid, pid, name, _ in found["processes"]}
    threads = {
        utid: f"{processes.get(upid, '')} / {name} {tid}" for utid, tid, name, upid in found["threads"]
    }
    tracks = _tracks(found["tracks"], processes, threads)
    slices = {
        number: [tracks[track], ts, duration, name, category, depth, args[arguments]]
        for number, ts, duration, name, category, depth, track, arguments in found["slices"]
    }
    lines: list[tuple[Any, ...]] = [
        ("process", name, pid, args[number]) for _, pid, name, number in found["processes"]
    ]
    lines += [("start", *row) for row in found["start"]]
    lines += [("thread", name) for name in threads.values()]
    lines += [("track", tracks[row[0]], row[2], args[row[4]]) for row in found["tracks"]]
    lines += [("slice", *row) for row in slices.values()]
    lines += [
        ("flow", slices[out][:4], slices[into][:4], args[number]) for out, into, number in found["flows"]
    ]
    lines += [("counter", tracks[track], ts, value) for ts, value, track in found["counters"]]
    lines += [("metadata", *row) for row in found["metadata"]]
    lines += [("error", *row) for row in found["errors"]]
    encode = json.JSONEncoder(sort_keys=True).encode
    return "\n".join(sorted(map(encode, lines))) + "\n"


def _tracks(rows: list[list[Any]], processes: dict[Any, str], threads: dict[Any, str]) -> dict[Any, str]:
    """The path of each track, from its process down, by its number."""
    by_number = {row[0]: row for row in rows}

    def path(row: list[Any]) -> str:
        _, name, _, parent, _, upid, utid = row
        if parent in by_number:
            return f"{path(by_number[parent])} / {name}"
        if utid is not None:
            return f"{threads.get(utid)} / {name}"
        return f"{processes.get(upid, 'whole trace')} / {name}"

    return {row[0]: path(row) for row in rows}
