"""Damaged inputs for every reader and for whole sessions: each is read, or refused with a sentence.

A case raises where a reader does, and where something was lost without a word.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.errors import IotraceError
from iotrace.merge.run import write_timeline
from iotrace.report.terminal import print_report
from iotrace.session import names
from iotrace.session.manifest import read_manifest
from iotrace.sources.byte_stream import blocks
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.dftracer.lines import LineReader
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.recorder.layout import read_file
from iotrace.sources.recorder.reader import read_recorded
from iotrace.sources.records import Record
from iotrace.sources.rows import each_record, read_rows
from iotrace.sources.samples import SidecarRecord
from iotrace.sources.session import open_session
from tests.support.growing import SECOND, Growing
from tests.support.mutate import ARRAY, DFTRACER, KINETO, mutated
from tests.support.recorded import PREAD, RecordedFile

MOST_BYTES = 16 << 10


def make_session(path: Path, steps: int = 12) -> Path:
    """Write a session by hand: a training process and two workers that read files."""
    growing = Growing(path, workers=2)
    growing.record(steps)
    growing.end()
    sidecar = path / names.TELEMETRY / "n1-0"
    sidecar.mkdir(parents=True)
    clock = [SECOND // 2, 1_700_000_000 * SECOND + SECOND // 2, 10]
    records: list[dict[str, Any]] = [
        {"type": "sampler", "pid": 7, "node": "n1", "host": "n1", "boot_id": "b", "clock": clock},
        {"type": "process", "number": 0, "pid": 1000, "start_ns": SECOND // 2, "name": "python"},
        {"type": "device", "device": 0, "index": 0, "library": "nvml", "name": "gpu", "uuid": "u"},
        {"type": "gpu", "device": 0, "mono_ns": SECOND, "util_pct": 10.0, "util_samples": [[1, 2.0]]},
        {"type": "system", "clock": clock, "sampler_cpu_ns": 5, "cpus": {"0": [1, 2, 3]}},
        {"type": "end", "mono_ns": 2 * SECOND},
    ]
    records[0]["interval_ns"] = SECOND // 5
    (sidecar / names.RECORDS).write_text("".join(json.dumps(each) + "\n" for each in records))
    trace = next((path / names.PROCESSES).glob("1000-*")) / names.TORCH_TRACE.format(0)
    trace.write_bytes(gzip.compress(KINETO, 1, mtime=0))
    return path


class Readers:
    """Seeds of each recorded format, and what reads them, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made = make_session(directory / "made", steps=3)
        self._given = directory / "given"
        self._given.mkdir()
        own = self._given / "posix"
        own.mkdir()
        kineto = [KINETO, ARRAY, gzip.compress(KINETO, 1, mtime=0), gzip.compress(ARRAY, 6, mtime=0)]
        logs = [DFTRACER, b"[\n" + DFTRACER, gzip.compress(DFTRACER, 1, mtime=0), *self._files("io-*.pfw")]
        self.kinds: dict[str, tuple[Sequence[bytes], Callable[[bytes], None]]] = {
            "records": (self._files(f"{names.PROCESSES}/*/{names.RECORDS}"), self._records),
            "telemetry": (self._files(f"{names.TELEMETRY}/*/{names.RECORDS}"), self._telemetry),
            "spans": (self._files(names.SPANS), self._spans),
            "posix": (logs, self._posix),
            "recorded": ([_recorded_calls()], self._recorded),
            "kineto": (kineto, self._kineto),
            "manifest": (self._files(names.MANIFEST), self._manifest),
        }

    def _files(self, pattern: str) -> list[bytes]:
        found = [path.read_bytes()[:MOST_BYTES] for path in sorted(self._made.rglob(pattern))]
        assert found, pattern
        return found

    def damaged(self, kind: str, seed: int) -> bytes:
        """Make the damaged input number `seed` of a kind, at most `MOST_BYTES` of it."""
        return mutated(seed, self.kinds[kind][0])[:MOST_BYTES]

    def read(self, kind: str, data: bytes) -> None:
        """Read `data`; raise where the reader does, and where it keeps a loss to itself."""
        self.kinds[kind][1](data)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._given / name
        path.write_bytes(data)
        return path

    def _records(self, data: bytes, kind: Any = Record) -> None:
        problems: list[str] = []
        found = list(each_record(self._write(names.RECORDS, data), kind, problems))
        # A record may go on in the next line, and two may stand in one.
        assert len(found) >= data.count(b'{"type"') or problems, "records were lost without a word"
        msgspec.json.encode(found)

    def _telemetry(self, data: bytes) -> None:
        self._records(data, SidecarRecord)

    def _spans(self, data: bytes) -> None:
        problems: list[str] = []
        rows = read_rows(self._write(names.SPANS, data), SPAN_DTYPE, "span", problems)
        assert len(rows) == len(data) // SPAN_DTYPE.itemsize
        assert bool(problems) == bool(len(data) % SPAN_DTYPE.itemsize)

    def _posix(self, data: bytes) -> None:
        path = self._write("posix/io.pfw", data)
        calls = read_posix(path.parent)
        msgspec.json.encode([calls.files, calls.nodes, calls.problems])
        problems: list[str] = []
        reader = LineReader()
        content = b"".join(blocks(path, problems))
        read = sum(len(batch.lines) for batch in reader.read(iter([content])))
        sound, damaged = 0, 0
        for line in content.split(b"\n"):
            text = line.translate(_BLANK_CONTROLS).decode(errors="replace").strip(" ,").lstrip("[] ,")
            if text:
                ok = _is_event(text)
                sound, damaged = sound + ok, damaged + (not ok)
        assert read + reader.lost_events >= sound, "sound lines were lost"
        assert not damaged or read > sound or reader.problems, "lines were lost without a word"

    def _recorded(self, data: bytes) -> None:
        directory = self._given / "recorded"
        directory.mkdir(exist_ok=True)
        path = self._write("recorded/1-2-n1.io", data)
        found = read_file(path)
        if isinstance(found, str):
            assert found, "it was refused without a sentence"
            return
        calls = read_recorded([directory])
        msgspec.json.encode([calls.files, calls.nodes, calls.problems, calls.names])
        assert calls.sums is not None
        calls.sums.where(calls.sums.group == 1)
        assert (calls.end_ns >= calls.start_ns).all(), "calls that end before they begin"

    def _kineto(self, data: bytes) -> None:
        path = self._write("trace.json", data)
        try:
            trace = read_kineto(path)
        except IotraceError as error:
            _refused(error)
            return
        msgspec.json.encode([trace.names, trace.threads, trace.problems])
        problems: list[str] = []
        content = b"".join(blocks(path, problems))
        reader = ChromeReader[Any]()
        read = sum(len(batch.events) for batch in reader.batches(iter([content])))
        wanted = _events_in(content)
        if wanted is not None:
            assert read + reader.lost_events >= wanted, "events were lost without a word"
        else:
            assert read >= content.count(b'"ph"') or reader.problems or problems, "a damage was not told"

    def _manifest(self, data: bytes) -> None:
        self._write(names.MANIFEST, data)
        try:
            msgspec.json.encode(read_manifest(self._given))
        except IotraceError as error:
            _refused(error)


def _recorded_calls() -> bytes:
    """A file of the recorder with each kind of record."""
    file = RecordedFile(1, 10**9, 10**18)
    for number in range(3, 6):
        file.name_file(number, f"/data/{number}.bin")
        file.row(number)
    file.thread(1, PREAD, 3, 2 * 10**9)
    for burst in range(300):
        file.burst(1, 10**9 + burst * 1000, 900, 3 + burst % 3)
    patched = bytearray(1 << 20)
    for at, piece in file.patches:
        patched[at : at + len(piece)] = piece
    return bytes(patched[: int.from_bytes(patched[8:16], "little")])


_BLANK_CONTROLS = bytes(0x20 if byte < 32 else byte for byte in range(256))


def _refused(error: IotraceError) -> None:
    if not str(error):
        raise AssertionError("it was refused without a sentence")


def _is_event(text: str) -> bool:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "ph" in value and isinstance(value.get("ts", 0), int)


def _events_in(content: bytes) -> int | None:
    """Count the events of a sound document; None where it is not sound."""
    try:
        document = json.loads(content, strict=False)
    except (ValueError, RecursionError):
        return None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    return len(events) if isinstance(events, list) else None


class Sessions:
    """Damaged copies of whole sessions, each opened, analysed, printed and drawn."""

    def __init__(self, directory: Path, originals: Iterable[Path] = ()) -> None:
        self._copy = directory / "copy"
        self._originals = list(originals) or [make_session(directory / "original")]
        self._told: dict[Path, tuple[int, frozenset[str]]] = {}

    def run(self, seed: int) -> None:
        """Damage one to three files of a session and read it; raise where a loss is kept quiet."""
        chance = random.Random(seed)
        original = chance.choice(self._originals)
        if original not in self._told:
            self._told[original] = _read(self._fresh(original))
        session = self._fresh(original)
        files = sorted(
            path.relative_to(session)
            for path in session.rglob("*")
            if path.is_file() and path.stat().st_size and path.name != names.FILES
        )
        victims = [chance.choice(files) for _ in range(chance.choice((1, 1, 1, 2, 3)))]
        for number, victim in enumerate(victims):
            path = session / victim
            damaged = _damaged(path.read_bytes(), seed + number, chance)
            path.unlink()
            path.write_bytes(damaged)
        try:
            count, told = _read(session)
        except IotraceError as error:
            _refused(error)
            return
        before, known = self._told[original]
        # A cut that joins two records to one sound line, with keys twice, is not to be seen.
        before -= sum(_joined(session / victim) for victim in set(victims))
        assert count >= before or told - known, f"{before - count} rows of {victims} were lost without a word"

    def _fresh(self, original: Path) -> Path:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(
            original, self._copy, ignore=shutil.ignore_patterns(names.OUT), copy_function=shutil.copy
        )
        return self._copy


def _joined(path: Path) -> int:
    """Count the lines of a session's records in which a key stands twice."""
    if path.name != names.RECORDS:
        return 0
    found = 0

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        found += len({key for key, _ in pairs}) < len(pairs)
        return dict(pairs)

    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError, RecursionError):
            json.loads(line, object_pairs_hook=keep)
    return found


def _damaged(data: bytes, seed: int, chance: random.Random) -> bytes:
    """Damage a piece of a file, which may be larger than what is damaged at once."""
    start = chance.randrange(max(1, len(data) - MOST_BYTES))
    end = start + MOST_BYTES
    if data[:2] == b"\x1f\x8b" and chance.random() < 0.5:  # else its checksum alone is tried
        with suppress(OSError, EOFError, zlib.error):  # it was damaged before
            return gzip.compress(mutated(seed, [gzip.decompress(data)]), 1)
    return data[:start] + mutated(seed, [data[start:end]]) + data[end:]


def _read(path: Path) -> tuple[int, frozenset[str]]:
    """Read a session to its end; return how many rows it holds, and what is said to be lost."""
    analysis = SessionAnalysis(open_session(path))
    report = analyse(analysis)
    if analysis.ranks:
        write_timeline(analysis, path / ".timeline.pftrace")
    from iotrace.report.console import make_console

    console = make_console(stderr=False)
    console.file = io.StringIO()
    print_report(report, console, verbose=True)
    msgspec.json.decode(msgspec.json.encode(report))
    for rank_report in report.ranks:
        wait = rank_report.data_wait
        if wait.raw_ms is not None:
            assert abs(sum(wait.causes_ms.values()) - wait.raw_ms) <= 1e-6 * max(1.0, wait.raw_ms)
    session = analysis.session
    count = len(session.calls) + sum(len(one.records) + len(one.spans) for one in session.processes)
    traces = sum(len(trace.events) for rank in analysis.ranks for trace in rank.rank.main.windows.traces)
    return count + traces, frozenset(f"{item.what}: {item.why}" for item in report.not_captured)
