"""A made-up session that grows as a run writes it, by a clock that a test turns; what a look has to show."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iotrace.analysis.loop.deliveries import Deliveries, LoaderRun
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results.top import Top
from iotrace.analysis.table import NONE
from iotrace.analysis.top import Watch
from iotrace.analysis.wait.data_wait import file_costs
from iotrace.analysis.wait.explain import explain
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.analysis.window import Window
from iotrace.session import names
from tests.support.recorded import RecordedFile, apply
from tests.support.tables import deliveries_of, waits_of

MS, SECOND = 1_000_000, 1_000_000_000
EPOCH_NS = 1_700_000_000 * SECOND  # CLOCK_REALTIME less CLOCK_MONOTONIC
MAIN, NODE = 1000, "n1"


class Growing:
    """A training loop of steps of `step_ns`: `workers` make its batches, which read a file and decode it.

    A batch takes 6 ms to read and 9 to decode, in `calls` read calls, so that with one worker the loop, which
    computes for 10 ms, waits.
    """

    by = names.DFTRACER

    def __init__(self, path: Path, workers: int = 1, calls: int = 1, rank: int = 0, files: int = 2) -> None:
        self.path = path
        self.workers, self.calls, self.rank, self.files = workers, calls, rank, files
        self.main = MAIN + 100 * rank
        self._flushes: list[tuple[int, Path, bytes | list[tuple[int, bytes]]]] = []
        self._written = 0
        (path / names.PROCESSES).mkdir(parents=True, exist_ok=True)
        (path / names.POSIX).mkdir(exist_ok=True)
        manifest = {
            "format": 1,
            "iotrace_version": "1",
            "argv": ["python", "train.py"],
            "cwd": "/w",
            "host": NODE,
            "started_ns": EPOCH_NS,
            "cpus": 8,
            "posix": {"on": True, "by": self.by},
        }
        (path / names.MANIFEST).write_text(json.dumps(manifest))

    def record(self, steps: int, until_ns: int | None = None) -> int:
        """Make up `steps` steps; return when the last one ended, in ns of CLOCK_MONOTONIC."""
        records: dict[int, list[tuple[int, dict[str, Any]]]] = {
            self.main: [],
            **{self._worker(number): [] for number in range(self.workers)},
        }
        spans: dict[int, list[tuple[int, bytes]]] = {pid: [] for pid in records}
        calls: dict[int, list[tuple[int, bytes]]] = {pid: [] for pid in records}
        begin = SECOND
        pids = [self._worker(number) for number in range(self.workers)]
        start = {
            "type": "iterator",
            "iterator": 0,
            "loader": 0,
            "dataset": "Volumes",
            "workers": self.workers,
            "epoch": 0,
            "generation": 0,
            "mono_ns": begin,
            "batch_size": 1,
            "pids": pids,
            "site": "train.py:1",
        }
        records[self.main] += [(begin, start)]
        for pid in pids:
            texts = [{"type": "text", "id": 0, "text": "Volumes.__getitem__"}]
            texts += [{"type": "text", "id": 1 + n, "text": f"d/{n}.h5"} for n in range(self.files)]
            told = {"type": "worker", "worker": pids.index(pid), "count": self.workers, "mono_ns": begin}
            up = {"type": "worker_up", "mono_ns": begin}
            records[pid] += [(begin, each) for each in (*texts, told, up)]
            calls[pid] += [(begin, line) for line in self._names(pid)]
        free = [begin] * self.workers
        now, tick = begin, dict.fromkeys(records, begin)
        for index in range(steps):
            number = index % self.workers
            pid, taken = pids[number], free[number]
            read_end, prepared = taken + 6 * MS, taken + 15 * MS
            file = index % self.files
            spans[pid] += [(prepared, self._span(taken, 15 * MS, pid, 0, -1, names.KIND_ITEM))]
            spans[pid] += [(prepared, self._span(taken, 15 * MS, pid, 0, 1 + file, names.KIND_READ_PATH))]
            for call in range(self.calls):
                length = 6 * MS // self.calls
                calls[pid].append(
                    (taken + (call + 1) * length, self._call(pid, taken + call * length, length, file))
                )
            produced = {
                "type": "produced",
                "generation": 0,
                "index": index,
                "outcome": "batch",
                "taken_ns": taken,
                "prepared_ns": prepared,
                "samples": 1,
            }
            records[pid].append((prepared, produced))
            delivered = max(now, prepared) + MS
            # At most two batches of a worker lie ready.
            free[number] = max(prepared, delivered - 30 * MS)
            batch = {
                "type": "batch",
                "iterator": 0,
                "epoch": 0,
                "generation": 0,
                "index": index,
                "tid": self.main,
                "wait_start_ns": now,
                "delivered_ns": delivered,
                "grad": True,
                "backward_count": index,
                "worker": number,
                "pid": pid,
            }
            records[self.main].append((delivered, batch))
            now = delivered + 10 * MS
            for what, at in (("backward", now - 5 * MS), ("optimizer", now)):
                told = {"what": what, "number": 0, "tid": self.main, "cpu_ns": 0, "run_delay_ns": 0}
                records[self.main].append((at, {"type": "round", "mono_ns": at, **told}))
            for each in records:
                if now - tick[each] > SECOND:
                    tick[each] = now
                    records[each].append((now, self._tick(now)))
            assert read_end <= prepared
        for pid in records:
            at = max(now, max(time_ns for time_ns, _ in records[pid])) + MS
            records[pid] += [(at, self._tick(at)), (at, {"type": "end", "mono_ns": at, "broken": ""})]
        self._schedule(records, spans, calls, now)
        return now

    def grow(self, until_ns: int) -> None:
        """Write all that the run has written by `until_ns` of CLOCK_MONOTONIC."""
        while self._written < len(self._flushes) and self._flushes[self._written][0] <= until_ns:
            _, path, data = self._flushes[self._written]
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(data, bytes):
                with open(path, "ab") as file:
                    file.write(data)
            else:
                apply(path, data)
            self._written += 1

    def end(self, exit_code: int = 0) -> None:
        """Write the rest, and how the command ended."""
        self.grow(1 << 62)
        outcome = {"exit_code": exit_code, "ended_ns": EPOCH_NS, "duration_ns": 1}
        (self.path / names.OUTCOME).write_text(json.dumps(outcome))

    def _schedule(self, records: Any, spans: Any, calls: Any, end_ns: int) -> None:
        """Put what was made into the writes of agents (each 0.5 s) and of dftracer (4 KiB)."""
        for number, pid in enumerate(records):
            directory = self.path / names.PROCESSES / f"{pid}-{number}-{NODE}"
            identity = {
                "format": 1,
                "pid": pid,
                "ppid": 1 if pid == self.main else self.main,
                "role": "main" if pid == self.main else "forked",
                "clock": [SECOND // 2 + number, EPOCH_NS + SECOND // 2 + number, 10],
                "node": NODE,
                "host": NODE,
                "boot_id": "b",
                "rank": self.rank,
                "world_size": 2,
            }
            self._flushes.append((SECOND // 2, directory / names.PROCESS, json.dumps(identity).encode()))
            lines = [
                (at, (json.dumps(each, separators=(",", ":")) + "\n").encode()) for at, each in records[pid]
            ]
            for stream, made in ((names.RECORDS, lines), (names.SPANS, spans[pid])):
                for at, data in _every(sorted(made, key=lambda each: each[0]), SECOND // 2, pid * 3 * MS):
                    self._flushes.append((at, directory / stream, data))
            self._schedule_calls(pid, calls[pid], end_ns)
        order = {names.PROCESS: 0, names.RECORDS: 1}  # texts are there before the spans that need them
        self._flushes.sort(key=lambda flush: (flush[0], order.get(flush[1].name, 2)))

    def _schedule_calls(self, pid: int, calls: list[tuple[int, bytes]], end_ns: int) -> None:
        log = self.path / names.POSIX / f"io-{pid}.pfw"
        held, at = b"", 0
        for at, line in calls:
            held += line
            if len(held) >= 4096:
                self._flushes.append((at, log, held))
                held = b""
        if held:
            self._flushes.append((max(at, end_ns) + MS, log, held))

    def _worker(self, number: int) -> int:
        return self.main + 1 + number

    def _names(self, pid: int) -> Iterator[bytes]:
        for number in range(self.files):
            line = {
                "name": "FH",
                "ph": 4,
                "pid": pid,
                "args": {"name": f"d/{number}.h5", "value": f"f{number}"},
            }
            yield (json.dumps(line, separators=(",", ":")) + "\n").encode()

    @staticmethod
    def _call(pid: int, start_ns: int, length_ns: int, file: int) -> bytes:
        args = {"fhash": f"f{file}", "ret": 4096, "hhash": "h"}
        stamp = (start_ns + EPOCH_NS) // 1000
        line = {"id": 1, "name": "pread64", "cat": "POSIX", "pid": pid, "tid": pid, "ts": stamp, "ph": 1}
        line |= {"dur": length_ns // 1000, "args": args}
        return _line(line)

    @staticmethod
    def _span(start_ns: int, length_ns: int, pid: int, name: int, file: int, kind: int) -> bytes:
        fields = (start_ns, length_ns, length_ns - 6 * MS, -1, pid, name, file, kind, 0, 0, 1, 0, 0)
        return struct.pack(names.SPAN_FORMAT, *fields)

    @staticmethod
    def _tick(now: int) -> dict[str, Any]:
        return {"type": "tick", "clock": [now, EPOCH_NS + now, 10], "cpu_ns": now, "rchar": 0}


class GrowingRecorded(Growing):
    """The same loop, whose calls our recorder keeps: they are in its files as soon as they have ended."""

    by = names.RECORDER

    def _schedule_calls(self, pid: int, calls: list[tuple[int, bytes]], end_ns: int) -> None:
        file = RecordedFile(pid, SECOND // 2, SECOND // 2 + EPOCH_NS, NODE)
        path = self.path / names.POSIX / file.name
        self._flushes.append((SECOND // 2, path, file.taken()))
        for at, line in calls:
            told = json.loads(line)
            if told["name"] == "FH":
                file.name_file(3 + int(told["args"]["value"][1:]), told["args"]["name"])
            else:
                start_ns, number = 1000 * told["ts"] - EPOCH_NS, int(told["args"]["fhash"][1:])
                file.burst(pid, start_ns, 1000 * told["dur"], 3 + number)
            self._flushes.append((at, path, file.taken()))


def _line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, separators=(",", ":")) + "\n").encode()  # compact, as the agent writes


def _every(made: list[tuple[int, bytes]], period_ns: int, phase_ns: int) -> Iterator[tuple[int, bytes]]:
    """Join what was made between two writes, a period apart."""
    held, due = b"", 0
    for at, data in made:
        while at >= due:
            if held:
                yield due, held
            held, due = b"", (at // period_ns + 1) * period_ns + phase_ns % period_ns
        held += data
    if held:
        yield due, held


def looked(watch: Watch) -> tuple[Top, list[Window]]:
    found = watch.look()
    return found, watch.windows


def _as_of(
    window: Window, whole: RankAnalysis, loader: LoaderRun, awaited: Deliveries
) -> Iterator[Explained]:
    """Explain waits for a loader by the batches whose making the window knows: a worker's next ones count."""
    if loader.number not in window.by_number:
        return
    shown, every = window.by_number[loader.number].deliveries, loader.deliveries
    known_ns = shown["delivered_ns"][shown.known("taken_ns")] - window.rank.main.clock.offset_ns
    unknown = ~np.isin(every["delivered_ns"] - whole.rank.main.clock.offset_ns, known_ns)
    fields = {name: np.where(unknown, NONE, every[name]) for name in ("up_ns", "taken_ns", "prepared_ns")}
    explained = explain(whole.session, whole.rank, every.changed(**fields))
    for number in awaited["number"][awaited["loader"] == loader.number].tolist():
        yield explained[number]


def agrees(found: Top, windows: list[Window], whole: list[RankAnalysis]) -> int:
    """Compare each window with the same steps of the whole session; return how many steps have causes."""
    explained = 0
    for shown, window, reported in zip(found.ranks, windows, whole, strict=True):
        own, other = window.rank.main.clock.offset_ns, reported.rank.main.clock.offset_ns
        by_start = {step.start_ns - other: step for step in reported.loop.steps}
        same = [by_start[step.start_ns - own] for step in window.kept]
        assert [step.start_ns for step in same] == [s.start_ns for s in reported.kept if s in same]
        if not same:
            continue
        assert shown.steps.mean_ms == pytest.approx(sum(step.duration_ns for step in same) / len(same) / 1e6)
        raw_ms = sum(step.wait_ns for step in same) / len(same) / 1e6
        assert shown.data_wait.raw_ms == pytest.approx(raw_ms)
        if shown.data_wait.causes_ms:
            explained += len(same)
            awaited = deliveries_of(each for step in same for each in step.awaited)
            waits = [wait for each in reported.loaders for wait in _as_of(window, reported, each, awaited)]
            causes = {cause: sum(wait.causes[cause] for wait in waits) / len(same) / 1e6 for cause in CAUSES}
            # The more anchors are known, the better the clock that calls are brought to: by less than 100 ns.
            assert shown.data_wait.causes_ms == pytest.approx(causes, abs=1e-4)
            files = {cost.path: cost.ms for cost in file_costs(waits_of(waits).files, len(same))}
            assert {cost.path: cost.ms for cost in shown.data_wait.files} == pytest.approx(files, abs=1e-4)
    return explained
