"""A sidecar of a session that runs: its newest samples."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from iotrace.session import names
from iotrace.sources.clocks.anchors import AnchorSource
from iotrace.sources.live.tail import Tail, last_rows
from iotrace.sources.record_files import decode_lines
from iotrace.sources.samples import (
    SAMPLE_DTYPE,
    GpuRecord,
    SamplerEnd,
    SamplerRecord,
    Sidecar,
    SidecarRecord,
    SystemRecord,
)

SAMPLED_NS = 10_000_000_000  # samples so old are read, from the newest one on
_MOST_RECORD_BYTES = 4 << 20
_MOST_SAMPLE_BYTES = 1 << 20
_RARE = re.compile(rb'\n(?!\{"type": ?"(?:system|gpu)")[^\n]+')
_MOST_RECORDS = 4_000


class LiveSidecar:
    """A sidecar's directory, read as it grows."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tail = Tail(directory / names.RECORDS)
        self._records: dict[type, list[Any]] = defaultdict(list)

    @property
    def ended(self) -> bool:
        """Whether it has written its last record: no process of the command is left."""
        return bool(self._records[SamplerEnd])

    @property
    def newest_ns(self) -> int:
        """When its newest record was made, of CLOCK_MONOTONIC; 0 before it said who it is."""
        systems = self._records[SystemRecord] or self._records[SamplerRecord]
        return systems[-1].clock[0] if systems else 0

    @property
    def anchors(self) -> AnchorSource:
        """What its clock is made from; a host that is looked at while it runs keeps its own time."""
        found = Sidecar(self._directory, self._records, []).anchors
        found.exchanges = []
        return found

    def poll(self) -> bool:
        """Read what was appended to its records; return whether it has said who it is."""
        data, passed = self._tail.read(_MOST_RECORD_BYTES)
        rare = self._tail.search(_RARE, passed)
        for record in decode_lines(b"\n".join([*rare, data]), SidecarRecord)[0]:
            self._records[type(record)].append(record)
        for kind in (SystemRecord, GpuRecord):
            del self._records[kind][:-_MOST_RECORDS]
        return bool(self._records[SamplerRecord])

    def sidecar(self) -> Sidecar:
        """The records that are kept, and the newest samples."""
        since_ns = self.newest_ns - SAMPLED_NS
        rows, _ = last_rows(self._directory / names.SAMPLES, SAMPLE_DTYPE, since_ns, _MOST_SAMPLE_BYTES)
        return Sidecar(self._directory, self._records, [], rows)

    def forget(self, before_ns: int) -> None:
        """Give up what was sampled before `before_ns` of CLOCK_MONOTONIC, but for the newest."""
        before_ns = min(before_ns, self.newest_ns - SAMPLED_NS)
        systems, gpus = self._records[SystemRecord], self._records[GpuRecord]
        self._records[SystemRecord] = [record for record in systems if record.clock[0] >= before_ns]
        self._records[GpuRecord] = [record for record in gpus if record.mono_ns >= before_ns]
