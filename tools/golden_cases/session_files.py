"""A session's files as lines that two runs of a deterministic program share: times, pids and ids are masked.

Read as docs/session-format.md describes them, without iotrace.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.recorder_files import read_all

# Fields of rows, by their kind.
ROW_FIELDS = (
    (
        *("iterator", "epoch", "generation", "index", "tid", "wait_start_ns", "delivered_ns", "grad"),
        *("backward_count", "phase", "ahead", "worker", "pid", "sent_ns", "received_ns", "pinned_ns"),
        *("fetch_start_ns", "fetch_end_ns", "samples"),
    ),
    (
        *("generation", "index", "outcome", "taken_ns", "fetch_start_ns", "fetch_end_ns", "prepared_ns"),
        *("samples", "bytes"),
    ),
    ("what", "number", "tid", "mono_ns", "cpu_ns", "run_delay_ns"),
    ("tid", "start_ns", "end_ns", "by", "queue", "call"),
    ("iterator", "epoch", "index", "exposed_ns"),
    ("tid", "start_ns", "device_ns"),
    ("mono_ns",),
    ("pause", "tid", "start_ns", "end_ns"),
)
_SPAN = struct.Struct("<qqqqiiiiiiiiq")
_LEFT_OUT = frozenset({"text", "idle"})  # texts stand in the spans; how often a worker is idle is chance
_MASKED = re.compile(
    r"(_ns|pids?|tid|clock|rchar|wchar|syscr|syscw|read_bytes|write_bytes|cancelled_write_bytes|id|boot_id"
    r"|bytes|path|source|prefix|why|python|executable|prefixes|cpus|argv|cwd|node|host|iotrace_version"
    r"|launcher|by)$"
)
# Of these alone the fields are compared: what they hold is a matter of time.
_BY_TIME = frozenset({"tick", "imports", "startup_stacks", "row 3"})  # row 3: a thread was blocked
# Sums, of which each record replaces the one before: how many were written is a matter of time.
_SUMS = frozenset({"chunked", "mapped", "row_groups"})
_NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")


def lines_of(session: Path, mask: Callable[[str], str]) -> list[str]:
    """How often each file, field, record and span occurs, sorted; `mask` hides directories in texts."""
    counted: Counter[str] = Counter()
    by_time: set[str] = set()
    for name in ("manifest.json", "outcome.json"):
        counted[f"{name} {mask(_masked(json.loads((session / name).read_bytes())))}"] += 1
    counted.update(_tree(session))
    counted.update(f"posix: {line}" for line in _calls(session, mask))
    for directory in sorted(session.glob("**/processes/*")):
        process = json.loads((directory / "process.json").read_bytes())
        records = [
            record for line in _lines(directory / "records.jsonl") for record in _with_rows(json.loads(line))
        ]
        records = _without_earlier_sums(records)
        label = _label(process, records)
        counted[f"{label}: process.json {_masked(process)}"] += 1
        for record in records:
            if record["type"] in _BY_TIME:
                by_time.add(f"{label}: {_fields(record)}")
            elif record["type"] not in _LEFT_OUT:
                counted[f"{label}: {mask(_masked(record))}"] += 1
        counted.update(f"{label}: {mask(line)}" for line in _spans(directory, records))
        counted.update(f"{label}: {line}" for line in _ranges(directory))
        counted.update(f"{label}: agent.log {mask(line)}" for line in _lines(directory / "agent.log"))
    for path in session.glob("**/telemetry/*/records.jsonl"):
        by_time.update(f"telemetry: {_fields(json.loads(line))}" for line in _lines(path))
    found = [f"{count} x {line}" for line, count in counted.items()]
    return sorted([*found, *(f"some x {line}" for line in by_time)])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _tree(session: Path) -> Iterator[str]:
    """Every file, numbers masked, but dftracer's: each process that it meets has one; costs, of long runs."""
    for path in session.rglob("*"):
        relative = str(path.relative_to(session))
        if path.is_file() and not relative.startswith("posix/") and relative != "costs.json":
            yield f"file {_NUMBERS.sub('#', relative)}"


def _calls(session: Path, mask: Callable[[str], str]) -> Iterator[str]:
    """Each POSIX call of a main process on a file below the program's directory.

    Of a loader's worker, which is ended by its parent, dftracer may hold the last calls back.
    """
    described = [json.loads(path.read_bytes()) for path in session.glob("**/process.json")]
    mains = {process["pid"] for process in described if process["role"] == "main"}
    events = []
    for process in (each for folder in session.glob("**/posix") for each in read_all(folder)):
        for row in process.rows if process.pid in mains else ():
            file = mask(row.file)
            for name, count in row.calls.items() if file.startswith(("<work>/", "data/")) else ():
                yield from [f"{name} of {_NUMBERS.sub('#', file)}"] * count
    for path in session.glob("**/posix/*.pfw"):
        for line in _lines(path):
            try:
                events.append(json.loads(line.rstrip(",")))
            except ValueError:  # the brackets, a line that was cut
                pass
    files = {event["args"]["value"]: event["args"]["name"] for event in events if event.get("name") == "FH"}
    for event in events:
        file = mask(files.get(event.get("args", {}).get("fhash"), ""))
        if (
            event.get("pid") in mains
            and event.get("cat") in ("POSIX", "STDIO")
            and file.startswith(("<work>/", "data/"))
        ):
            yield f"{event['name']} of {_NUMBERS.sub('#', file)}"


def _with_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The record, or those that stand in its rows: their fields by position."""
    if record["type"] != "rows":
        return [record]
    data = base64.b64decode(record["rows"])
    width = 1 + len(ROW_FIELDS[record["kind"]])
    return [
        {"type": f"row {row[0]}", **dict(zip(ROW_FIELDS[row[0]], row[1:], strict=True))}
        for row in struct.iter_unpack(f"<{width}q", data)
    ]


def _without_earlier_sums(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of sums of one thing the last alone."""
    last: dict[str, int] = {}
    for position, record in enumerate(records):
        about = [record.get(key) for key in ("type", "path", "dataset", "call", "columns")]
        last[json.dumps(about) if record["type"] in _SUMS else str(position)] = position
    return [records[position] for position in sorted(last.values())]


def _label(process: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """What the process is, in words that two runs share."""
    workers = [str(record["worker"]) for record in records if record["type"] == "worker"]
    rank = "" if process["rank"] is None else f" of rank {process['rank']}"
    restart = f" restart {process['incarnation']}" if process["incarnation"] else ""
    return " ".join([process["role"], *(f"worker {number}" for number in workers)]) + rank + restart


def _masked(record: dict[str, Any]) -> str:
    """A record with the kinds of what changes from run to run, and the values of all else."""
    shown = {key: _kind(value) if _MASKED.search(key) else value for key, value in record.items()}
    return json.dumps(shown)


def _fields(record: dict[str, Any]) -> str:
    return json.dumps({key: record[key] if key == "type" else _kind(record[key]) for key in record})


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "list"
    return "empty" if value == "" else "null" if value is None else type(value).__name__


def _spans(directory: Path, records: list[dict[str, Any]]) -> Iterator[str]:
    """Kind, name, file and bytes of each span, and whether its faults and delays are known."""
    path = directory / "spans.bin"
    data = path.read_bytes() if path.exists() else b""
    if len(data) % _SPAN.size:
        yield "spans.bin is cut"
    texts = {record["id"]: record["text"] for record in records if record["type"] == "text"}
    for span in _SPAN.iter_unpack(data[: len(data) // _SPAN.size * _SPAN.size]):
        _, _, _, size, _, name, file, kind, minor, _, _, _, delay = span
        unknown = [text for text, value in (("faults", minor), ("delay", delay)) if value < 0]
        yield (
            f"span kind {kind} {texts.get(name)} file {texts.get(file)} bytes {size} "
            f"unknown {' '.join(unknown) or 'nothing'}"
        )


def _ranges(directory: Path) -> Iterator[str]:
    """The steps and modules in traces of torch.profiler."""
    for path in sorted(directory.glob("torch-*.json*")):
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        for event in document["traceEvents"]:
            name = str(event.get("name"))
            if name.startswith(("module:", "ProfilerStep#")):
                yield f"{path.name} {name}"
