"""What a first look at an input finds: clock, rank, processes, steps, collectives. The look at traces."""

from __future__ import annotations

import math
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from iotrace.merge.input_files import DFTRACER, InputFile
from iotrace.sources.byte_stream import Progress, blocks, is_packed, silent
from iotrace.sources.chrome import json_text
from iotrace.sources.chrome.batch import us_to_ns
from iotrace.sources.chrome.lenient_decoder import make_event, objects
from iotrace.sources.chrome.reader import ChromeReader
from iotrace.sources.chrome.scan import text_scan
from iotrace.sources.clocks.anchors import HostLink
from iotrace.sources.clocks.session_clock import Clock, Recording
from iotrace.sources.dftracer.lines import DftracerReader, scan_hashes

_EDGE_BYTES = 1 << 20
_ROUGH_US = 1.0  # the most that a double of us since 1970 may be off
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(-?\d{1,19})\b')
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})')
_WORLD = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"world_size"\s*:\s*(\d{1,9})')
_TIME = re.compile(rb'"ts"\s*:\s*"?(-?\d[\d.]{0,30}(?:[eE][+-]?\d{1,3})?)')
_PID = re.compile(rb'"pid"\s*:\s*"?(\d{1,10})\b')
_NAMED_RANK = re.compile(r"(?<![a-z])rank[_-]?(\d{1,6})(?!\d)", re.IGNORECASE)
# iotrace's own timelines; what was merged may lie in them with keys of the same names.
_OWN_OPENING = re.compile(rb'\{"displayTimeUnit":"ms","baseTimeNanoseconds":-?\d+,')
# How unitrace calls its processes; its files say nothing else of rank and host.
_UNITRACE = re.compile(rb'"(?:RANK (\d{1,9}) )?HOST<([^<>"]{1,256})>"')
_HOST = re.compile(rb'"host_name"\s*:\s*"([^"\\]{1,256})"')
_STEP = re.compile(rb'"ProfilerStep\s?#(\d{1,12})"')
_LIBRARIES = (b'"n', b'"r', b'"one')  # how names of kernels begin: NCCL's, RCCL's, oneCCL's
_LONGEST_EVENT = 16384
_MOST_COLLECTIVES = 5_000
BY_ORDER = "#"  # begins the last part of a key where the trace has no sequence numbers
# What every rank ends together. The root of a broadcast, and who hands in to a reduction, may be through
# before others have begun; so may both sides of send and receive.
_TOGETHER = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
# Microseconds since 1970 of the years 2000 to 2100; less is the time since some machine's start.
_DAY_NS = 86_400 * 10**9
_FARTHEST_NS = 1 << 61
_YEAR_2000_US, _YEAR_2100_US = 946_684_800_000_000, 4_102_444_800_000_000
# A process number below is a GPU's in Kineto, or one of a container's first, which many hosts have.
_SMALLEST_SHARED_PID = 64


@dataclass(frozen=True)
class Wants:
    """What has to be known of inputs beyond what their ends hold, for which all of a file is read."""

    steps: bool = False
    collectives: bool = False
    extent: bool = False  # the first and the last time exactly


@dataclass
class Survey:
    """What is known of an input before it is read. Times in ns of its own clock."""

    stamps_base_ns: int = 0  # what the file says has to be added to its stamps
    absolute: bool = False
    by_kineto: bool = False  # torch.profiler wrote it
    merged: bool = False  # iotrace wrote it
    first_ns: int | None = None
    last_ns: int | None = None
    bound_ns: int | None = None  # where the input itself says how good its clock is
    host: str = ""
    named_host: str = ""  # what the file calls its host, whose clock it shares with nothing that is known
    clock_domain: str = ""  # inputs of one share a clock
    clock: Clock | None = None  # of a session, where CLOCK_REALTIME was set in it or is not the reference's
    host_link: HostLink | None = None  # how the session relates the clock of its host to the reference's
    recordings: dict[Path, Recording | None] = field(default_factory=dict)  # of traces in a session
    rank: int | None = None
    world_size: int | None = None
    pids: list[int] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    collectives: dict[tuple[str, ...], tuple[int, int]] = field(default_factory=dict)  # start, end
    bytes: int = 0


def make_reader(file: InputFile, hashes: dict[str, str]) -> ChromeReader[Any] | DftracerReader:
    """Return what reads a trace's events; `hashes` has the names that dftracer's logs shorten."""
    return DftracerReader(hashes) if file.kind == DFTRACER else ChromeReader(text_scan())


def survey(file: InputFile, wants: Wants, progress: Progress = silent) -> Survey:
    """Look at a trace's file; whole where that is needed, else at both ends."""
    look = _survey_dftracer if file.kind == DFTRACER else _survey_trace
    survey = look(file, wants, progress)
    if (wants.extent or survey.merged) and survey.first_ns is not None and survey.last_ns is not None:
        # What was merged may lie days apart; elsewhere a time so far from the others is damage.
        _measure(file, survey, _FARTHEST_NS if survey.merged else _DAY_NS, progress)
    return survey


def _measure(file: InputFile, survey: Survey, reach_ns: int, progress: Progress) -> None:
    """The first and last time exactly, of the events near those at the file's ends."""
    assert survey.first_ns is not None
    assert survey.last_ns is not None
    base_ns = survey.stamps_base_ns
    earliest, latest = survey.first_ns - base_ns - reach_ns, survey.last_ns - base_ns + reach_ns
    for batch in make_reader(file, {}).batches(blocks(file.path, [], progress)):
        starts = batch.start_ns
        near = (batch.phases != ord("M")) & (starts > earliest) & (starts < latest)
        if near.any():
            ends = (starts + np.maximum(batch.duration_ns, 0))[near]
            survey.first_ns = min(survey.first_ns, int(starts[near].min()) + base_ns)
            survey.last_ns = max(survey.last_ns, int(ends.max()) + base_ns)


def _survey_trace(file: InputFile, wants: Wants, progress: Progress) -> Survey:
    survey = Survey(bytes=file.path.stat().st_size)
    whole = wants.steps or wants.collectives or is_packed(file.path)
    head, tail = b"", b""
    finder = _Finder(survey, wants.steps, wants.collectives)
    for block in _blocks(file.path, whole, progress):
        head = head or block[:_EDGE_BYTES]
        tail = (tail[-_EDGE_BYTES:] + block)[-_EDGE_BYTES:]
        finder.feed(block)
    finder.finish()
    edges = head + tail
    own = _OWN_OPENING.match(head)
    survey.merged = own is not None
    keys = own[0] if own else edges
    base = _BASE.findall(keys)
    rank, world = _RANK.search(keys), _WORLD.search(keys)
    named = _NAMED_RANK.search(file.path.name)
    survey.rank = int(rank[1]) if rank else int(named[1]) if named else None
    survey.world_size = int(world[1]) if world else None
    named_host = _HOST.search(keys)
    survey.named_host = named_host[1].decode(errors="replace") if named_host else ""
    survey.by_kineto = not own and (b'"schemaVersion"' in keys or bool(base))
    unitrace = _UNITRACE.search(keys) if b"HOST<" in keys else None  # most lack it, which is seen at once
    if unitrace:
        survey.rank = int(unitrace[1]) if unitrace[1] else survey.rank
        survey.host = unitrace[2].decode(errors="replace")
    survey.first_ns, survey.last_ns = _typical_ends(edges)
    survey.pids = [pid for pid in map(int, _PID.findall(head[:65536])) if pid >= _SMALLEST_SHARED_PID][:1]
    if survey.first_ns is not None:
        first_us = survey.first_ns // 1000
        survey.absolute = _YEAR_2000_US < first_us < _YEAR_2100_US
        if base and not survey.absolute and abs(int(base[-1])) < _FARTHEST_NS:
            survey.stamps_base_ns = int(base[-1])
            survey.absolute = _YEAR_2000_US < first_us + survey.stamps_base_ns // 1000 < _YEAR_2100_US
    base_ns = survey.stamps_base_ns
    survey.first_ns = None if survey.first_ns is None else survey.first_ns + base_ns
    survey.last_ns = None if survey.last_ns is None else survey.last_ns + base_ns
    survey.collectives = {
        key: (start + base_ns, end + base_ns) for key, (start, end) in survey.collectives.items()
    }
    return survey


def _blocks(path: Path, whole: bool, progress: Progress) -> Iterator[bytes]:
    if whole:
        yield from blocks(path, [], progress)
        return
    with path.open("rb") as file:
        yield file.read(_EDGE_BYTES)
        if path.stat().st_size > 2 * _EDGE_BYTES:
            file.seek(-_EDGE_BYTES, 2)
        while block := file.read(_EDGE_BYTES):
            yield block


def _typical_ends(edges: bytes) -> tuple[int | None, int | None]:
    """The first and last time in the text within a day of most of its times, in ns; zeros are metadata's."""
    texts = _TIME.findall(edges)
    rough = np.array([_microseconds(text) for text in texts])
    known = np.flatnonzero((np.abs(rough) < _FARTHEST_NS / 1000) & (rough != 0))  # NaN is not below
    if not len(known):
        return None, None
    known = known[np.argsort(rough[known])]
    middle = rough[known[len(known) // 2]]
    near = known[np.abs(rough[known] - middle) < _DAY_NS / 1000]
    ends = rough[near[0]], rough[near[-1]]
    # Doubles are too coarse for times since 1970: what is closest to either end is read exactly.
    exact = [
        [us_to_ns(texts[index].decode()) for index in np.flatnonzero(np.abs(rough - end) < _ROUGH_US)]
        for end in ends
    ]
    return min(exact[0]), max(exact[1])


def _microseconds(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _survey_dftracer(file: InputFile, wants: Wants, progress: Progress) -> Survey:
    survey = Survey(absolute=True, bytes=file.path.stat().st_size)
    pids: dict[int, None] = {}
    rest = end = b""
    for block in blocks(file.path, [], progress):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        end = whole[-_EDGE_BYTES:] or end
        survey.hashes.update(scan_hashes(whole + newline))
        if len(pids) < 64:
            pids.update(dict.fromkeys(map(int, _PID.findall(whole[:_EDGE_BYTES]))))
        if survey.first_ns is None:
            survey.first_ns, _ = _typical_ends(whole[:_EDGE_BYTES])
    _, survey.last_ns = _typical_ends(end)
    survey.pids = list(pids)
    return survey


class _Finder:
    """Finds events by name in passing blocks, and parses these alone."""

    def __init__(self, survey: Survey, steps: bool, collectives: bool) -> None:
        self._survey = survey
        self._steps, self._collectives = steps, collectives
        self._rest = b""
        self._seen = 0  # how much of the rest was searched before
        self._orders: dict[tuple[str, ...], int] = {}
        self._mask = 0
        self._ranges: Counter[str] = Counter()  # of backends, around what they launched
        self._exchanges: list[tuple[int, int]] = []  # kernels of sends and receives, or of an all_to_all

    def feed(self, block: bytes) -> None:
        """One block after another."""
        if not self._steps and not self._collectives:
            return
        data = self._rest + block
        cut = max(self._seen, len(data) - 65536)  # an event begins before its name and ends after it
        if self._steps:
            for match in _STEP.finditer(data, self._seen, cut):
                self._step(data, match)
        at = data.find(b"ccl", self._seen, cut) if self._collectives else -1
        while at >= 0:
            if data[max(0, at - 4) : at].endswith(_LIBRARIES):
                self._collective(data, at)
            at = data.find(b"ccl", at + 1, cut)
        kept = max(0, cut - 512)
        self._rest, self._seen = data[kept:], cut - kept

    def finish(self) -> None:
        """No more blocks. Older NCCL calls an all_to_all SendRecv: the ranges tell them apart."""
        self.feed(b" " * 65536)
        if (
            len(self._exchanges) == self._ranges["all_to_all"]
            and not self._ranges["send"] + self._ranges["recv"]
        ):
            for order, span in enumerate(sorted(self._exchanges)):
                self._survey.collectives["all_to_all", "", "", f"{BY_ORDER}{order}"] = span

    def _event(self, data: bytes, at: int) -> tuple[dict[str, Any], int, int] | None:
        """Decode the event around `at` as the file's reader does: its keys, start and end in ns."""
        start = data.rfind(b'"ph"', max(0, at - 300), at)
        start = data.rfind(b"{", max(0, at - 400), start if start >= 0 else at)
        if start < 0:
            return None
        text = json_text.decode(data[start : start + _LONGEST_EVENT])
        try:
            item = next(objects(text, 0, final=False), None)
            if item is None or item.value is None or item.value["ph"] != "X":
                return None
            _, start_ns, duration_ns, _, _ = make_event(item.value)
        except (ValueError, msgspec.MsgspecError, RecursionError, TypeError, OverflowError):
            return None
        return item.value, start_ns, start_ns + duration_ns

    def _step(self, data: bytes, match: re.Match[bytes]) -> None:
        event = self._event(data, match.start())
        if event is not None and not str(event[0].get("cat", "")).startswith("gpu"):
            self._survey.steps[int(match[1])] = event[1:]

    def _collective(self, data: bytes, at: int) -> None:
        event_and_span = self._event(data, at)
        if event_and_span is None:
            return
        event, *span = event_and_span
        name = str(event.get("name", ""))
        if str(event.get("cat", "")).lower() != "kernel":
            self._ranges[name.partition(":")[2].partition(" ")[0]] += 1
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        kind = str(args.get("Collective name") or name.split("(")[0])
        if not any(word in kind.lower().replace("_", "") for word in _TOGETHER):
            if (
                "Collective name" not in args
                and "SendRecv" in kind
                and len(self._exchanges) < _MOST_COLLECTIVES
            ):
                self._exchanges.append((span[0], span[1]))
            return
        # Groups of other ranks may have the same name.
        group = f"{args.get('Process Group Name', '')} {args.get('Process Group Ranks', '')}"
        # One string for all of a kind: they are held, and sent, for each of thousands of ranks.
        key = tuple(map(sys.intern, (kind, group, str(args.get("In msg nelems", "")))))
        sequence = args.get("Seq")
        order = self._orders.get(key, 0)
        self._orders[key] = order + 1
        match = (*key, f"{BY_ORDER}{order}" if sequence is None else str(sequence))
        if self._keeps(match):
            self._survey.collectives[match] = span[0], span[1]
            while len(self._survey.collectives) > _MOST_COLLECTIVES:
                self._thin()

    def _keeps(self, key: tuple[str, ...]) -> bool:
        return not zlib.crc32("\0".join(key).encode(errors="replace")) & self._mask

    def _thin(self) -> None:
        """Half of them, the same ones on every rank, and from the whole of the trace."""
        self._mask = self._mask * 2 + 1
        kept = self._survey.collectives
        self._survey.collectives = {key: span for key, span in kept.items() if self._keeps(key)}
