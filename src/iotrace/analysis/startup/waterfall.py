"""From the start of a process to the end of its first step: what the main thread was in, instant by instant.

Parts are ranges, and each instant belongs to the innermost one. What lies in none has no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from iotrace.analysis.intervals import Times, innermost, length, union
from iotrace.analysis.loop.iterations import iterations_of
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import ImportedPackage, ImportMount, LoadedFile, Startup, StartupPart
from iotrace.analysis.startup.imports import (
    IMPORTS,
    ImportTable,
    Sampled,
    imports_of,
    outer_imports,
    own_cpu_ns,
    sampled_of,
)
from iotrace.analysis.storage.kernel_account import READS as READ_CALLS
from iotrace.analysis.wait.sampler_time import drawn
from iotrace.analysis.wait.waits import CAUSES
from iotrace.session.names import KIND_READ_PATH, KIND_REGION
from iotrace.sources.records import IteratorStart, Pickled

NOT_NAMED = "not named"
INTERPRETER = "interpreter"
TRACING = "iotrace"  # the package of the agent
READS = "reads"
WORKERS = "workers' start"
SAMPLING = "choosing samples"
PICKLING = "pickling"
FIRST_BATCH = "first batch"
FIRST_STEP = "first step"
NO_IMPORTS = "imports were not recorded: by an older iotrace, or the process was killed early"
_PACKAGE = "import "
_SAMPLED = "\0"  # before the names of what was sampled
_LOADERS = ("pickle.load", "torch.load", "numpy.load", "joblib.load", "pandas.read_pickle")
_MOSTLY = 0.75  # of the reads
_MOST_SAMPLED = 8  # names; the others are one
_OTHERS = "other functions of the program"


class Range(NamedTuple):
    """A named range of time, in ns; `detail`: which of those that have the name."""

    name: str
    start_ns: int
    end_ns: int
    detail: str = ""


def painted(
    ranges: Iterable[Range], start_ns: int, end_ns: int, sampled: Sampled | None = None
) -> dict[str, tuple[int, int]]:
    """Return when each name begins between two instants, and how long it is the innermost one.

    What is in no range was sampled, or has no name.
    """
    known = [each for each in ranges if min(each.end_ns, end_ns) > max(each.start_ns, start_ns)]
    starts, ends = np.array([each[1:3] for each in known], np.int64).reshape(-1, 2).clip(start_ns, end_ns).T
    sampled_ns = () if sampled is None else (*sampled.starts[:1], *sampled.ends)
    between = np.array([start_ns, end_ns, *sampled_ns], np.int64).clip(start_ns, end_ns)
    bounds: Times = np.unique(np.concatenate((starts, ends, between)))
    within = innermost(starts, ends, bounds[:-1])
    unnamed = within < 0
    names = np.full(len(within), NOT_NAMED, dtype=object)
    names[~unnamed] = [known[at].name for at in within[~unnamed]]
    if sampled is not None:
        texts = sampled.at(bounds[:-1][unnamed])
        names[unnamed] = [f"{_SAMPLED}{text}" if text else NOT_NAMED for text in texts]
    found: dict[str, tuple[int, int]] = {}
    for name, (began_ns, ended_ns) in zip(names.tolist(), pairwise(bounds.tolist()), strict=True):
        first_ns, so_far_ns = found.get(name, (began_ns, 0))
        found[name] = first_ns, so_far_ns + ended_ns - began_ns
    return found


def startup_of(analysis: RankAnalysis) -> Startup | None:
    """Make the waterfall of a rank; None where the loop was not seen."""
    if analysis.startup is None:
        return None
    began_ns, request_ns = analysis.startup
    seconds = (request_ns - began_ns) / 1e9
    launched_ns = analysis.launched_ns
    launched_seconds = None if launched_ns is None else (began_ns - launched_ns) / 1e9
    imports = imports_of(analysis.rank.main)
    if imports is None:
        return Startup(seconds=seconds, launched_seconds=launched_seconds, unknown_why=NO_IMPORTS)
    end_ns = max(request_ns, int(analysis.loop.steps["end_ns"][0]))
    sampled = sampled_of(analysis.rank.main)
    names = painted(ranges_of(analysis, imports, began_ns, end_ns), began_ns, end_ns, sampled)
    whole_ns = end_ns - began_ns
    packages = _packages(imports, names, began_ns, end_ns, analysis.rank.main.pid)
    unnamed_ns = names.get(NOT_NAMED, (0, 0))[1]
    return Startup(
        seconds=seconds,
        launched_seconds=launched_seconds,
        first_step_seconds=whole_ns / 1e9,
        named_fraction=1 - unnamed_ns / whole_ns if whole_ns > 0 else None,
        parts=_parts(names, began_ns),
        imports=packages,
        mounts=_by_mount(packages),
        imports_waiting_seconds=_waiting_seconds(analysis, imports, end_ns),
        worker_imports_seconds=_of_workers(analysis, end_ns),
        pickled_bytes=sum(record.bytes for record, _ in _pickled(analysis, end_ns)) or None,
        loaded=_loaded(analysis, request_ns, names.get(READS, (0, 0))[1]),
    )


def ranges_of(analysis: RankAnalysis, imports: ImportTable, began_ns: int, end_ns: int) -> Iterator[Range]:
    """Yield what main and training thread were in from `began_ns` to `end_ns`; ranges lie in each other."""
    main, steps = analysis.rank.main, analysis.loop.steps
    tids = _tids(analysis)
    yield Range(INTERPRETER, began_ns, imports.begun_ns)
    yield Range(FIRST_STEP, int(steps["start_ns"][0]), end_ns)
    starts: dict[tuple[int, int], int] = {}
    for record in main.of_type(IteratorStart):  # recorded again when its workers are up
        at_ns = main.clock.to_session_ns(record.mono_ns)
        begun_ns = starts.setdefault((record.iterator, record.generation), at_ns)
        if record.pids and begun_ns < end_ns:
            yield Range(WORKERS, begun_ns, at_ns)
    for start_ns, until_ns, *_ in drawn(analysis, iterations_of(analysis)).tolist():
        yield Range(SAMPLING, start_ns, until_ns)
    for record, at_ns in _pickled(analysis, end_ns):
        yield Range(PICKLING, at_ns, at_ns + record.duration_ns)
    yield from _waits(analysis, end_ns)
    phases = analysis.phase_spans
    spans = main.spans[
        np.isin(main.spans["kind"], (KIND_READ_PATH, KIND_REGION)) & np.isin(main.spans["tid"], tids)
    ]
    for span in (*phases[phases["start_ns"] < end_ns], *spans[spans["start_ns"] < end_ns]):
        name = READS if span["kind"] == KIND_READ_PATH else main.texts.get(int(span["name"]), "")
        prefix = {KIND_READ_PATH: "", KIND_REGION: "region "}.get(int(span["kind"]), f"{FIRST_STEP}: ")
        yield Range(f"{prefix}{name}", int(span["start_ns"]), int(span["start_ns"] + span["duration_ns"]))
    for at in np.flatnonzero(
        np.isin(imports.rows["tid"], tids) & (imports.rows["start_ns"] < end_ns)
    ).tolist():
        start_ns, package = int(imports.rows["start_ns"][at]), imports.packages[imports.package[at]]
        until_ns = start_ns + int(imports.rows["duration_ns"][at])
        yield Range(f"{_PACKAGE}{package}", start_ns, until_ns, f"{_PACKAGE}{imports.modules[at]}")


def _tids(analysis: RankAnalysis) -> list[int]:
    main, thread = analysis.rank.main, analysis.loop.thread
    return [main.pid] if thread is None else [main.pid, thread.tid]


def _pickled(analysis: RankAnalysis, end_ns: int) -> list[tuple[Pickled, int]]:
    """Return what the main process pickled before `end_ns`, and when."""
    main = analysis.rank.main
    timed = [(record, main.clock.to_session_ns(record.start_ns)) for record in main.of_type(Pickled)]
    return [(record, at_ns) for record, at_ns in timed if at_ns < end_ns]


def _loaded(analysis: RankAnalysis, until_ns: int, reads_ns: int) -> LoadedFile | None:
    """Find the one call that loads a stored result and takes most of the reads; None where none does."""
    main = analysis.rank.main
    numbers = [number for number, text in main.texts.items() if text in _LOADERS]
    spans = main.spans
    spans = spans[(spans["kind"] == KIND_READ_PATH) & np.isin(spans["name"], numbers)]
    spans = spans[(spans["start_ns"] < until_ns) & np.isin(spans["tid"], _tids(analysis))]
    if not len(spans):
        return None
    at = int(spans["duration_ns"].argmax())
    start_ns, duration_ns = int(spans["start_ns"][at]), int(spans["duration_ns"][at])
    if duration_ns < _MOSTLY * reads_ns:
        return None
    calls = analysis.session.calls_of(main).between(start_ns, start_ns + duration_ns)
    calls = calls.where(calls.named(READ_CALLS) & (calls.tid == int(spans["tid"][at])))
    reading_ns = length(union(calls.start_ns, calls.end_ns))
    return LoadedFile(
        call=main.texts[int(spans["name"][at])],
        file=main.texts.get(int(spans["file"][at])) or None,
        seconds=min(duration_ns, reads_ns) / 1e9,  # modules that it imports are none of it
        reading_seconds=reading_ns / 1e9 if analysis.session.posix_on else None,
    )


def _of_workers(analysis: RankAnalysis, end_ns: int) -> float | None:
    """Return the imports of the worker that has most before `end_ns`, in seconds; None without any."""
    lengths_ns = [
        int(outer_imports(imports, worker.pid, end_ns)["duration_ns"].sum())
        for worker in analysis.rank.workers
        if (imports := imports_of(worker)) is not None
    ]
    return max(lengths_ns, default=0) / 1e9 or None


def _waiting_seconds(analysis: RankAnalysis, imports: ImportTable, end_ns: int) -> float | None:
    """Return how long the main thread's imports neither computed nor were ready to: they waited for files.

    At least: its whole time of being ready for a CPU is taken off, which is sampled once a second.
    """
    main = analysis.rank.main
    rows = outer_imports(imports, main.pid, end_ns)
    delays = None if analysis.sampled is None else analysis.sampled.run_delay_ns
    if delays is None or not len(delays.time_ns) or not len(rows):
        return None
    last_ns = int((rows["start_ns"] + rows["duration_ns"]).max())
    at = min(int(np.searchsorted(delays.time_ns, last_ns)), len(delays.time_ns) - 1)
    delay_ns = float(delays.value[at]) + max(0, last_ns - int(delays.time_ns[at]))  # unsampled: all of it
    waited_ns = float((rows["duration_ns"] - rows["cpu_ns"]).sum()) - delay_ns
    return max(0.0, waited_ns) / 1e9


def _waits(analysis: RankAnalysis, end_ns: int) -> Iterator[Range]:
    """Yield the waits for batches: the first one cause by cause, in their order."""
    waits = analysis.waits
    deliveries = waits.deliveries
    for at in np.flatnonzero(deliveries["wait_start_ns"] < end_ns).tolist():
        start_ns, delivered_ns = int(deliveries["wait_start_ns"][at]), int(deliveries["delivered_ns"][at])
        if at:
            yield Range(f"{FIRST_STEP}: data wait", start_ns, delivered_ns)
            continue
        for cause in CAUSES:
            until_ns = min(delivered_ns, start_ns + int(waits.of_cause(cause)[at]))
            yield Range(f"{FIRST_BATCH}: {cause}", start_ns, until_ns)
            start_ns = until_ns


def _parts(names: dict[str, tuple[int, int]], began_ns: int) -> list[StartupPart]:
    """Sum up imports as one part, and what was sampled shortly; what has no name is the last."""
    found: dict[str, tuple[int, int]] = {}
    # Functions of the program, which end with their file.
    sampled = {name: ns for name, (_, ns) in names.items() if name[:1] == _SAMPLED and name[-1] == ")"}
    shown = sorted(sampled, key=lambda name: -sampled[name])[:_MOST_SAMPLED]
    for name, (first_ns, ns) in names.items():
        if name in sampled and name not in shown:
            name = f"{_SAMPLED}{_OTHERS}"
        if name.startswith(_PACKAGE):
            name = "tracing" if name == f"{_PACKAGE}{TRACING}" else IMPORTS
        begun_ns, so_far_ns = found.get(name, (first_ns, 0))
        found[name] = min(first_ns, begun_ns), so_far_ns + ns
    rows = [
        StartupPart(
            name=name.removeprefix(_SAMPLED),
            at_seconds=(first_ns - began_ns) / 1e9,
            seconds=ns / 1e9,
            sampled=name.startswith(_SAMPLED),
        )
        for name, (first_ns, ns) in found.items()
    ]
    return sorted(rows, key=lambda part: (part.name == NOT_NAMED, part.at_seconds))


def _packages(
    imports: ImportTable, names: dict[str, tuple[int, int]], began_ns: int, end_ns: int, tid: int
) -> list[ImportedPackage]:
    """Make a row for each package that the main thread imported until `end_ns`, the longest first."""
    own = (imports.rows["start_ns"] < end_ns) & (imports.rows["tid"] == tid)
    cpu_ns = np.bincount(imports.package[own], own_cpu_ns(imports.rows[own]), len(imports.packages))
    counts = np.bincount(imports.package[own], minlength=len(imports.packages))
    rows = []
    for number, package in enumerate(imports.packages):
        if counts[number] and f"{_PACKAGE}{package}" in names:
            first_ns, ns = names[f"{_PACKAGE}{package}"]
            rows.append(
                ImportedPackage(
                    package=package,
                    at_seconds=(first_ns - began_ns) / 1e9,
                    seconds=ns / 1e9,
                    cpu_seconds=float(cpu_ns[number]) / 1e9,
                    modules=int(counts[number]),
                    directory=imports.directories.get(package),
                    mount=imports.mounts.get(package),
                )
            )
    return sorted(rows, key=lambda row: -row.seconds)


def _by_mount(packages: list[ImportedPackage]) -> list[ImportMount]:
    """Sum packages up by the file system that holds them, the longest first."""
    found = {}
    for mount in {package.mount for package in packages}:
        own = [package for package in packages if package.mount == mount]
        found[mount] = ImportMount(
            mount=mount,
            seconds=sum(package.seconds for package in own),
            cpu_seconds=sum(package.cpu_seconds for package in own),
            modules=sum(package.modules for package in own),
            packages=len(own),
        )
    return sorted(found.values(), key=lambda row: (-row.seconds, row.mount or ""))
