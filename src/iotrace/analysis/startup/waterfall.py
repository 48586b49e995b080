"""From the launch to the end of the first step: what the main thread was in, instant by instant.

Parts are ranges, and each instant belongs to the innermost one. What lies in none has no name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from iotrace.analysis.intervals import Times, innermost
from iotrace.analysis.loop.step_phases import phase_spans
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import ImportedPackage, Startup, StartupPart
from iotrace.analysis.startup.imports import ImportTable, imports_of
from iotrace.analysis.wait.waits import CAUSES
from iotrace.session.names import KIND_READ_PATH, KIND_REGION
from iotrace.sources.records import IteratorStart

NOT_NAMED = "not named"
LAUNCH = "launch"
INTERPRETER = "interpreter"
IMPORTS = "imports"
TRACING = "iotrace"  # the package of the agent
READS = "reads"
WORKERS = "workers' start"
FIRST_BATCH = "first batch"
FIRST_STEP = "first step"
NO_IMPORTS = "imports were not recorded: by an older iotrace, or the process was killed early"
_PACKAGE = "import "


class Ranges:
    """Named ranges of time, in ns."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.names: list[str] = []

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        self.starts.append(start_ns)
        self.ends.append(end_ns)
        self.names.append(name)

    def painted(self, start_ns: int, end_ns: int) -> dict[str, tuple[int, int]]:
        """Return when each name begins between two instants, and how long it is the innermost one."""
        starts, ends = (
            np.clip(np.array(each, dtype=np.int64), start_ns, end_ns) for each in (self.starts, self.ends)
        )
        kept = np.flatnonzero(ends > starts)
        bounds: Times = np.unique(np.concatenate((starts[kept], ends[kept], [start_ns, end_ns])))
        within = innermost(starts[kept], ends[kept], bounds[:-1])
        found: dict[str, tuple[int, int]] = {}
        pieces = zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), within.tolist(), strict=True)
        for began_ns, length_ns, at in pieces:
            name = NOT_NAMED if at < 0 else self.names[kept[at]]
            first_ns, so_far_ns = found.get(name, (began_ns, 0))
            found[name] = first_ns, so_far_ns + length_ns
        return found


def startup_of(analysis: RankAnalysis) -> Startup | None:
    """Make the waterfall of a rank; None where launch or loop were not seen."""
    if analysis.startup is None:
        return None
    launched_ns, request_ns = analysis.startup
    seconds = (request_ns - launched_ns) / 1e9
    imports = imports_of(analysis.rank.main)
    if imports is None:
        return Startup(seconds=seconds, unknown_why=NO_IMPORTS)
    end_ns = max(request_ns, int(analysis.loop.steps["end_ns"][0]))
    painted = _ranges(analysis, imports, launched_ns, end_ns).painted(launched_ns, end_ns)
    whole_ns = end_ns - launched_ns
    unnamed_ns = painted.get(NOT_NAMED, (0, 0))[1]
    return Startup(
        seconds=seconds,
        first_step_seconds=whole_ns / 1e9,
        named_fraction=1 - unnamed_ns / whole_ns if whole_ns > 0 else None,
        parts=_parts(painted, launched_ns),
        imports=_packages(imports, painted, launched_ns, end_ns),
    )


def _ranges(analysis: RankAnalysis, imports: ImportTable, launched_ns: int, end_ns: int) -> Ranges:
    main, steps = analysis.rank.main, analysis.loop.steps
    tids = [main.pid] if analysis.loop.thread is None else [main.pid, analysis.loop.thread.tid]
    found = Ranges()
    began_ns = _began_ns(analysis, launched_ns, imports.begun_ns)
    found.add(LAUNCH, launched_ns, began_ns)
    found.add(INTERPRETER, began_ns, imports.begun_ns)
    found.add(FIRST_STEP, int(steps["start_ns"][0]), end_ns)
    starts: dict[tuple[int, int], int] = {}
    for record in main.of_type(IteratorStart):  # recorded again when its workers are up
        at_ns = main.clock.to_session_ns(record.mono_ns)
        begun_ns = starts.setdefault((record.iterator, record.generation), at_ns)
        if record.pids and begun_ns < end_ns:
            found.add(WORKERS, begun_ns, at_ns)
    for name, wait_ns in _waits(analysis, end_ns):
        found.add(name, *wait_ns)
    phases = phase_spans(analysis)
    spans = main.spans[
        np.isin(main.spans["kind"], (KIND_READ_PATH, KIND_REGION)) & np.isin(main.spans["tid"], tids)
    ]
    for span in (*phases[phases["start_ns"] < end_ns], *spans[spans["start_ns"] < end_ns]):
        name = READS if span["kind"] == KIND_READ_PATH else main.texts.get(int(span["name"]), "")
        prefix = {KIND_READ_PATH: "", KIND_REGION: "region "}.get(int(span["kind"]), f"{FIRST_STEP}: ")
        found.add(f"{prefix}{name}", int(span["start_ns"]), int(span["start_ns"] + span["duration_ns"]))
    own = np.isin(imports.rows["tid"], tids)
    for row, package in zip(imports.rows[own].tolist(), imports.package[own].tolist(), strict=True):
        found.add(f"{_PACKAGE}{imports.packages[package]}", row[0], row[0] + row[1])
    return found


def _waits(analysis: RankAnalysis, end_ns: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the waits for batches: the first one cause by cause, which are given as ranges in their order."""
    waits = analysis.waits
    deliveries = waits.deliveries
    for at in np.flatnonzero(deliveries["wait_start_ns"] < end_ns).tolist():
        start_ns, delivered_ns = int(deliveries["wait_start_ns"][at]), int(deliveries["delivered_ns"][at])
        if at:
            yield f"{FIRST_STEP}: data wait", (start_ns, delivered_ns)
            continue
        for cause in CAUSES:
            until_ns = min(delivered_ns, start_ns + int(waits.of_cause(cause)[at]))
            yield f"{FIRST_BATCH}: {cause}", (start_ns, until_ns)
            start_ns = until_ns


def _began_ns(analysis: RankAnalysis, launched_ns: int, begun_ns: int) -> int:
    """Return when the main process was started: as the kernel says, in ticks of 10 ms, else by its agent."""
    main = analysis.rank.main
    telemetry = analysis.session.telemetry_of(main)
    sampled = None if telemetry is None else telemetry.process_of(main)
    known_ns = main.began_ns if sampled is None else sampled.start_ns
    return min(max(launched_ns, known_ns), begun_ns)


def _parts(painted: dict[str, tuple[int, int]], launched_ns: int) -> list[StartupPart]:
    """Sum up imports as one part; what has no name is the last."""
    found: dict[str, tuple[int, int]] = {}
    for name, (first_ns, ns) in painted.items():
        if name.startswith(_PACKAGE):
            name = "tracing" if name == f"{_PACKAGE}{TRACING}" else IMPORTS
        begun_ns, so_far_ns = found.get(name, (first_ns, 0))
        found[name] = min(first_ns, begun_ns), so_far_ns + ns
    rows = [
        StartupPart(name=name, at_seconds=(first_ns - launched_ns) / 1e9, seconds=ns / 1e9)
        for name, (first_ns, ns) in found.items()
    ]
    return sorted(rows, key=lambda part: (part.name == NOT_NAMED, part.at_seconds))


def _packages(
    imports: ImportTable, painted: dict[str, tuple[int, int]], launched_ns: int, end_ns: int
) -> list[ImportedPackage]:
    """Make a row for each package that the main thread imported until `end_ns`, the longest first."""
    counts: dict[str, int] = defaultdict(int)
    for number in imports.package[imports.rows["start_ns"] < end_ns].tolist():
        counts[imports.packages[number]] += 1
    rows = [
        ImportedPackage(
            package=name.removeprefix(_PACKAGE),
            at_seconds=(first_ns - launched_ns) / 1e9,
            seconds=ns / 1e9,
            modules=counts[name.removeprefix(_PACKAGE)],
            directory=imports.directories.get(name.removeprefix(_PACKAGE)),
        )
        for name, (first_ns, ns) in painted.items()
        if name.startswith(_PACKAGE)
    ]
    return sorted(rows, key=lambda row: -row.seconds)
