"""Follow what agents write of the batches that their processes got: how many, and how long ago the last."""

from __future__ import annotations

import json
import os
from binascii import Error, a2b_base64
from collections import deque
from contextlib import suppress

from iotrace.session import names

_ROWS = b'"type":"rows"'
_BATCH = f'"kind":{names.BATCH_ROW},'.encode()
# The base64 text of a row: 8 bytes for its kind, and for each field.
_ROW_BYTES = 8 * (1 + len(names.ROW_FIELDS[names.BATCH_ROW]))
_ROW_CHARACTERS = _ROW_BYTES * 4 / 3
_GRAD = 8 * (1 + names.ROW_FIELDS[names.BATCH_ROW].index("grad"))
_TOLD = (b'"type":"tick"', b'"type":"stacks"', b'"type":"worker"', b'"type":"iterator')
_MOST_BYTES = 1 << 20  # at a look
_GAPS = 100


class Progress:
    """One process: `batches` that it got, `gaps` between looks that saw some (ns), the `last` of them.

    `writer` is the thread of its agent, `exhausted` says that its last pass over a loader has ended.
    `rank` and `world_size` are as its launcher says, `evaluates`: it got its last batch under no_grad.
    Its Python stacks were asked for `dumps` times, and have `dumped` bytes.
    """

    def __init__(self, directory: str, pid: int) -> None:
        self.directory = directory
        self.pid = pid
        self.batches = 0
        self.gaps: deque[int] = deque(maxlen=_GAPS)
        self.last_ns = 0
        self.writer = 0
        self.worker: int | None = None
        self.exhausted = False
        self.rank: int | None = None
        self.world_size: int | None = None
        self.evaluates = False
        self.dumps = self.dumped = 0
        self._described = False
        self._rows = 0
        self.stacks: tuple[int, int] | None = None  # signal and descriptor
        self._offset = 0

    def look(self, now_ns: int) -> None:
        """Read what has been written since the last look."""
        if not self._described:
            self._describe()
        try:
            with open(f"{self.directory}/{names.RECORDS}", "rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_BYTES)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _MOST_BYTES:
            whole = len(data)  # a line longer than any of an agent's
        self._offset += whole
        batches = 0
        for line in data[:whole].split(b"\n"):
            if _ROWS in line[:32]:
                self._rows += 1
                batches += self._batches(line)
            elif line[:24].startswith(tuple(b"{" + start for start in _TOLD)):
                with suppress(ValueError, KeyError, TypeError):
                    self._learn(json.loads(line))
        if batches:
            if self.batches:
                self.gaps.append(now_ns - self.last_ns)
            self.batches += batches
            self.last_ns, self.exhausted = now_ns, False

    def _describe(self) -> None:
        with suppress(OSError, ValueError, TypeError):
            with open(f"{self.directory}/{names.PROCESS}", "rb") as file:
                document = json.loads(file.read())
            self._described = True
            if document.get("role") == "main":
                self.rank, self.world_size = document.get("rank"), document.get("world_size")

    @property
    def trains(self) -> bool:
        """Whether it is a training process: one that got batches, or a rank of a job."""
        return self.worker is None and (self.batches > 0 or self.rank is not None)

    def written(self) -> int:
        """Return a number that grows with each sample, pass or step that the process recorded."""
        try:
            return self._rows + os.stat(f"{self.directory}/{names.SPANS}").st_size
        except OSError:
            return self._rows

    def _batches(self, line: bytes) -> int:
        if _BATCH not in line[:48]:
            return 0
        with suppress(Error):
            last = a2b_base64(line.rpartition(b':"')[2].rstrip(b'"}'))[-_ROW_BYTES:]
            self.evaluates = last[_GRAD : _GRAD + 8] == bytes(8)
        return max(1, int(len(line) / _ROW_CHARACTERS))

    def _learn(self, record: dict[str, object]) -> None:
        kind = record["type"]
        if kind == "tick":
            self.writer = int(str(record.get("writer", 0)))
        elif kind == "stacks":
            self.stacks = int(str(record["signal"])), int(str(record["descriptor"]))
        elif kind == "worker":
            self.worker = int(str(record["worker"]))
        elif kind in ("iterator", "iterator_end"):
            self.exhausted = kind == "iterator_end"

    def longest_ns(self, least_ns: int, factor: int) -> int:
        """Return how long it may go without a batch: `factor` usual gaps, `least_ns` at least."""
        ordered = sorted(self.gaps)
        if not ordered:
            return least_ns
        usual_ns = ordered[int(0.95 * (len(ordered) - 1))] if self.batches >= 20 else ordered[-1]
        return max(least_ns, factor * usual_ns)


def find(launch: str, known: dict[str, Progress]) -> None:
    """Add the processes of `launch`, a directory laid out like a session, that are not in `known`."""
    root = f"{launch}/{names.PROCESSES}"
    with suppress(OSError):
        for name in os.listdir(root):
            directory = f"{root}/{name}"
            pid = name.partition("-")[0]
            if directory not in known and pid.isdecimal() and name.endswith(f"-{os.uname().nodename}"):
                known[directory] = Progress(directory, int(pid))
