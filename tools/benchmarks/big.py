"""Write a made-up session of any size, in the format of real ones: what a report of it takes.

A training loop of steps of 10 ms with `--workers` each loader; loaders take turns of equal length.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names
from iotrace.session.manifest import Manifest, Outcome, PosixState, write_document
from iotrace.sources.processes import SPAN_DTYPE

_STEP_NS, _WAIT_NS = 10_000_000, 3_000_000
_REAL_NS = 1_700_000_000_000_000_000  # CLOCK_REALTIME less CLOCK_MONOTONIC
_BEGIN_NS = 1_000_000_000
_NODE = "n1"


def write_session(
    path: Path,
    batches: int,
    loaders: int = 1,
    workers: int = 0,
    ranks: int = 1,
    files: int = 16,
    calls: int = 0,
) -> None:
    """Write a session of `ranks`, each of so many `batches`, read in `calls` POSIX calls each."""
    for directory in (names.PROCESSES, names.POSIX, names.OUT):
        (path / directory).mkdir(parents=True, exist_ok=True)
    end_ns = _BEGIN_NS + (batches + 2) * _STEP_NS
    manifest = Manifest(1, "0", ["python", "train.py"], "/w", _NODE, _REAL_NS, 8, PosixState(calls > 0))
    write_document(path / names.MANIFEST, manifest)
    for rank in range(ranks):
        _Rank(path, rank, ranks, batches, loaders, workers, files, calls).write()
    write_document(path / names.OUTCOME, Outcome(0, _REAL_NS + end_ns, end_ns - _BEGIN_NS))


class _Rank:
    def __init__(
        self,
        path: Path,
        rank: int,
        ranks: int,
        batches: int,
        loaders: int,
        workers: int,
        files: int,
        calls: int,
    ) -> None:
        self.path, self.rank, self.ranks, self.batches = path, rank, ranks, batches
        self.loaders, self.workers, self.files, self.calls = loaders, workers, files, calls
        self.pid = 1000 + 1000 * rank

    def write(self) -> None:
        main = self._process(self.pid, "main")
        pids = [self.pid + 1 + number for number in range(self.workers)]
        made = [self._process(pid, "forked") for pid in pids]
        for number, worker in enumerate(made):
            self._record(worker, {"type": "worker", "worker": number, "count": self.workers})
            self._record(worker, {"type": "worker_up"})
        for loader in range(self.loaders):
            first = loader * self.batches // self.loaders
            self._loader(main, made, pids, loader, first, (loader + 1) * self.batches // self.loaders)
        end_ns = _BEGIN_NS + (self.batches + 1) * _STEP_NS
        for pid, recorder in zip((self.pid, *pids), (main, *made), strict=True):
            for second in range((end_ns - _BEGIN_NS) // 1_000_000_000 + 1):
                at_ns = min(_BEGIN_NS + second * 1_000_000_000, end_ns)
                clock = [at_ns, _REAL_NS + at_ns, 10]
                recorder.records.append({"type": "tick", "clock": clock, "cpu_ns": at_ns // 2, "rchar": 0})
            recorder.records.append({"type": "end", "mono_ns": end_ns, "broken": ""})
            recorder.flush()
            self._spans(recorder, pid, pids.index(pid) if pid in pids else None)
            if self.calls:
                self._posix(pid, pids.index(pid) if pid in pids else None)

    def _process(self, pid: int, role: str) -> Recorder:
        recorder = Recorder(str(self.path))
        recorder.directory = str(self.path / names.PROCESSES / f"{pid}-1-{_NODE}")
        os.mkdir(recorder.directory)
        from iotrace.session.append_file import Stream

        recorder._records_stream = Stream(f"{recorder.directory}/{names.RECORDS}")
        recorder._spans_stream = Stream(f"{recorder.directory}/{names.SPANS}")
        identity = {
            "format": 1,
            "pid": pid,
            "ppid": 1 if role == "main" else self.pid,
            "role": role,
            "node": _NODE,
            "host": _NODE,
            "boot_id": "b",
            "rank": self.rank,
            "world_size": self.ranks,
            "clock": [_BEGIN_NS - 1, _REAL_NS + _BEGIN_NS - 1, 10],
            "python": "3.11.7",
            "cpus": 8,
        }
        Path(recorder.directory, names.PROCESS).write_text(json.dumps(identity))
        texts = ["Volumes.__getitem__", "collate", "load", *(f"d/{file}.h5" for file in range(self.files))]
        for text in texts:
            recorder.text(text)
        return recorder

    def _record(self, recorder: Recorder, record: dict[str, Any], at_ns: int = _BEGIN_NS) -> None:
        recorder.records.append({**record, "mono_ns": at_ns})

    def _loader(
        self, main: Recorder, made: list[Recorder], pids: list[int], loader: int, first: int, end: int
    ) -> None:
        start = {
            "type": "iterator",
            "iterator": loader,
            "loader": loader,
            "dataset": "Volumes",
            "iterable": False,
            "workers": self.workers,
            "batch_size": 1,
            "prefetch_factor": 2,
            "pin_memory": False,
            "in_order": True,
            "epoch": 0,
            "generation": 0,
            "pids": pids,
            "persistent_workers": False,
            "site": f"train.py:{loader}",
            "phase": None,
        }
        begin_ns = _BEGIN_NS + first * _STEP_NS
        self._record(main, start, begin_ns)
        for batch in range(first, end):
            index, wait_ns = batch - first, _BEGIN_NS + batch * _STEP_NS + 1_000
            taken_ns, prepared_ns = wait_ns - 4_000_000 * bool(made), wait_ns + _WAIT_NS - 100_000
            worker = index % self.workers if made else -1
            told = (self.pid, wait_ns, wait_ns + _WAIT_NS, True, batch, -1, 0, worker)
            fetched = (-1, taken_ns - 10_000, prepared_ns + 50_000, -1, -1, -1, -1)
            if made:
                fetched = (pids[worker], *fetched[1:])
                row = (names.PRODUCED_ROW, 0, index, 0, taken_ns, taken_ns, prepared_ns, prepared_ns, 1, 4096)
                made[worker].records.append(row)
            else:
                fetched = (-1, -1, -1, -1, taken_ns, prepared_ns, 1)
            main.records.append((names.BATCH_ROW, loader, 0, 0, index, *told, *fetched))
            for number, what_ns in enumerate((5_000_000, 8_000_000)):
                main.records.append(
                    (names.ROUND_ROW, number, 0, self.pid, wait_ns + what_ns, wait_ns // 2, 0)
                )
            if len(main.records) > 100_000:
                for recorder in (main, *made):
                    recorder.flush()
        over = {"type": "iterator_end", "iterator": loader, "epoch": 0, "outcome": "exhausted"}
        over |= {
            "wait_start_ns": _BEGIN_NS + end * _STEP_NS - 900_000,
            "backward_count": end,
            "tid": self.pid,
        }
        self._record(main, over, _BEGIN_NS + end * _STEP_NS - 800_000)

    def _own(self, worker: int | None) -> tuple[Any, Any]:
        """The batches that a process makes, and when it began each."""
        batch = np.arange(self.batches, dtype=np.int64)
        if self.workers:
            first = batch * self.loaders // max(self.batches, 1) * self.batches // self.loaders
            batch = batch[(batch - first) % self.workers == worker] if worker is not None else batch[:0]
        return batch, _BEGIN_NS + batch * _STEP_NS + 1_000 - 4_000_000 * bool(self.workers)

    def _spans(self, recorder: Recorder, pid: int, worker: int | None) -> None:
        batch, start_ns = self._own(worker)
        parts = [
            (names.KIND_ITEM, 0, 10_000, 2_500_000),
            (names.KIND_READ_PATH, 2, 20_000, 2_000_000),
            (names.KIND_COLLATE, 1, 2_600_000, 200_000),
        ]
        spans = np.zeros((len(batch), len(parts)), SPAN_DTYPE)
        for column, (kind, name, after_ns, long_ns) in enumerate(parts):
            own = spans[:, column]
            own["start_ns"], own["duration_ns"], own["kind"] = start_ns + after_ns, long_ns, kind
            own["cpu_ns"], own["tid"], own["name"], own["bytes"] = long_ns // 2, pid, name, -1
            own["file"] = 3 + batch % self.files if kind == names.KIND_READ_PATH else -1
            own["voluntary_switches"] = 1
        Path(recorder.directory, names.SPANS).write_bytes(spans.tobytes())

    def _posix(self, pid: int, worker: int | None) -> None:
        batch, start_ns = self._own(worker)
        with (self.path / names.POSIX / f"io-{pid}.pfw").open("w") as log:
            for file in range(self.files):
                log.write(
                    f'{{"name":"FH","ph":4,"pid":{pid},"args":{{"name":"d/{file}.h5","value":"f{file}"}}}}\n'
                )
            event = 0
            for number, begin_ns in zip(batch.tolist(), start_ns.tolist(), strict=True):
                for call in range(self.calls):
                    stamp = (begin_ns + 30_000 + call * 1_900_000 // self.calls + _REAL_NS) // 1000
                    event += 1
                    log.write(
                        f'{{"id":{event},"name":"pread64","cat":"POSIX","type":3,"pid":{pid},"tid":{pid},"ts":{stamp},'
                        f'"dur":100,"ph":1,"args":{{"hhash":"h","ret":4096,"offset":0,"count":4096,'
                        f'"fhash":"f{number % self.files}"}}}}\n'
                    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench big", description=__doc__.splitlines()[0])
    parser.add_argument("session", type=Path)
    for name, default in (("batches", 100_000), ("loaders", 1), ("workers", 0), ("ranks", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--calls", type=int, default=0, help="POSIX calls of each batch")
    chosen = parser.parse_args()
    write_session(
        chosen.session,
        chosen.batches,
        chosen.loaders,
        chosen.workers,
        chosen.ranks,
        chosen.files,
        chosen.calls,
    )


if __name__ == "__main__":
    main()
