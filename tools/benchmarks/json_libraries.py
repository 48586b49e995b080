"""JSON by msgspec, orjson and the standard library, for each job that iotrace gives such a library.

``tools/bench json TRACE SESSION``: a trace as torch.profiler exports it, and a session of ``iotrace run``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from tools.benchmarks.machine import machine
from tools.benchmarks.tables import table

from iotrace.session import names
from iotrace.sources.chrome.batch import Event
from iotrace.sources.processes import Record

try:
    import orjson
except ModuleNotFoundError:
    raise SystemExit("tools/bench json: pip install orjson into the environment first") from None

_CHUNK_BYTES = 4 << 20  # of a trace, as the reader takes it
_SMALLEST_BYTES = 2 << 20  # records are few: repeated up to this
_ROUNDS = 9
_Job = dict[str, Callable[[], object]]


class _Arguments(msgspec.Struct):
    ret: int | None = None
    offset: int | None = None
    count: int | None = None
    fhash: str | None = None
    hhash: str | None = None
    name: str | None = None
    value: str | None = None


class _Call(msgspec.Struct):
    """What is read of a line of dftracer's."""

    name: str
    cat: str
    pid: int
    tid: int
    ph: int | str
    ts: int = 0
    dur: int = 0
    id: int | None = None
    args: _Arguments | None = None


def main() -> None:
    """Print MB/s (of JSON, per second of CPU) of each job by library, and which are as they are today."""
    parser = argparse.ArgumentParser(prog="tools/bench json", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("session", type=Path)
    arguments = parser.parse_args()
    jobs = {
        **_trace_jobs(arguments.trace),
        "records of processes, read": _lines_read(
            b"".join(_repeated(arguments.session.glob(f"{names.PROCESSES}/*/{names.RECORDS}"))), Record
        ),
        "POSIX calls, read": _lines_read(
            b"".join(_repeated(arguments.session.glob(f"{names.POSIX}/*.pfw"), drop=b"[")), _Call
        ),
        "report --json, written": _report(arguments.session),
    }
    about = machine()
    print(f"{about['date']}, {about['cpu']}, Python {about['python']}, msgspec {msgspec.__version__}, "
          f"orjson {orjson.__version__}; MB/s, the best of {_ROUNDS}")  # fmt: skip
    libraries = ["msgspec, typed", "msgspec", "orjson", "json"]
    rows = []
    for name, (size, job) in jobs.items():
        shown = [f"{size / _best_s(job[key]) / 1e6:.0f}" if key in job else "" for key in libraries]
        rows.append([name, f"{size / 1e6:.2f}", *shown])
    print("\n".join(table(["job", "MB", *libraries], rows)))


def _best_s(job: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some rounds; what else runs only adds to it."""
    best_s = float("inf")
    for _ in range(_ROUNDS):
        before_s = time.process_time()
        job()
        best_s = min(best_s, time.process_time() - before_s)
    return best_s


def _repeated(paths: Any, drop: bytes = b"") -> list[bytes]:
    lines = [line for path in paths for line in path.read_bytes().splitlines(keepends=True)]
    lines = [line for line in lines if line.endswith(b"}\n") and line.strip() != drop]
    return lines * (1 + _SMALLEST_BYTES // max(1, sum(map(len, lines))))


def _trace_jobs(trace: Path) -> dict[str, tuple[int, _Job]]:
    data = gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes()
    events = json.loads(data)["traceEvents"]
    count = 1 + len(events) * _CHUNK_BYTES // len(data)
    events = events[:count]
    chunk = json.dumps(events).encode()
    read: _Job = {
        "msgspec, typed": partial(msgspec.json.Decoder(list[Event]).decode, chunk),
        "msgspec": partial(msgspec.json.decode, chunk),
        "orjson": partial(orjson.loads, chunk),
        "json": partial(json.loads, chunk),
    }
    written = _writers([msgspec.json.Encoder().encode, orjson.dumps, json.dumps], events)
    size = len(msgspec.json.encode(events))
    return {"events of a trace, read": (len(chunk), read), "events of a timeline, written": (size, written)}


def _writers(encoders: list[Callable[[Any], object]], events: list[Any]) -> _Job:
    def run(encode: Callable[[Any], object]) -> None:
        for event in events:  # one line each
            encode(event)

    return {
        name: partial(run, encode)
        for name, encode in zip(("msgspec", "orjson", "json"), encoders, strict=True)
    }


def _lines_read(text: bytes, kinds: Any) -> tuple[int, _Job]:
    lines = text.splitlines()

    def each(decode: Callable[[bytes], object]) -> None:
        for line in lines:
            decode(line)

    return len(text), {
        "msgspec, typed": partial(msgspec.json.Decoder(kinds).decode_lines, text),
        "msgspec": partial(msgspec.json.Decoder().decode_lines, text),
        "orjson": partial(each, orjson.loads),
        "json": partial(each, json.loads),
    }


def _report(session: Path) -> tuple[int, _Job]:
    command = [sys.executable, "-m", "iotrace", "report", str(session), "--json"]
    document = json.loads(subprocess.check_output(command))
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)

    def by_msgspec() -> object:
        return msgspec.json.format(msgspec.json.encode(document), indent=2)

    return len(text), {
        "msgspec": by_msgspec,
        "orjson": partial(orjson.dumps, document, option=orjson.OPT_INDENT_2),
        "json": partial(json.dumps, document, indent=2),
    }


if __name__ == "__main__":
    main()
