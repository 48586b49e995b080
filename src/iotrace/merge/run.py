"""The whole merge: inputs to plan, plan to parts, a process per source, parts to the result."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip

from iotrace import __version__
from iotrace.merge import chrome_out, native_out
from iotrace.merge.clocks import ClockLink, link
from iotrace.merge.events import KINDS
from iotrace.merge.inputs import DFTRACER, SESSION, MergeError, Source, expand, identify
from iotrace.merge.job import Job, Result
from iotrace.merge.pool import Watch, run_all
from iotrace.merge.recorded import foreign_traces, ranks_of
from iotrace.merge.rewrite import Selection
from iotrace.merge.summary import SCHEMA_VERSION, KindCount, SourceSummary, Summary
from iotrace.merge.survey import Survey
from iotrace.merge.titles import arrange, chrome_metadata
from iotrace.merge.tracks import PIDS_EACH, Raw

_DAY_NS = 86_400 * 10**9
_EXACT_SPAN_NS = 100 * _DAY_NS
_BROWSER_JSON_BYTES = 1_200_000_000
_open_gzip: Any = igzip.open
_FASTEST = 0
_SUFFIXES = (".json", ".json.gz", ".pftrace", ".pftrace.gz")


@dataclass(frozen=True)
class Options:
    """What the user asked for; `steps` and `seconds` are half-open, the latter from the merged start."""

    steps: tuple[int, int] | None = None
    seconds: tuple[float, float] | None = None
    ranks: frozenset[int] | None = None
    dropped: frozenset[str] = frozenset()
    per_rank: bool = False
    align_start: bool = False
    strict_clocks: bool = False
    processes: int | None = None


def merge(
    inputs: Sequence[str],
    output: Path,
    options: Options | None = None,
    watch: Callable[[Watch], None] | None = None,
) -> Summary:
    """Merge `inputs` into `output`; MergeError where nothing can be made of them."""
    options = options or Options()
    began = time.monotonic()
    suffix = _suffix_of(output)
    problems: list[str] = []
    notes: list[str] = []
    sources = _sources(inputs, output, problems, notes)
    _check_output(output, sources)
    cores = options.processes or len(os.sched_getaffinity(0))
    surveys = run_all("survey", _survey_tasks(sources, options), cores, watch)
    _adopt(sources, surveys)
    sources, surveys = _wanted(sources, surveys, options)
    links = link(sources, surveys, options.align_start, options.strict_clocks)
    with _workplace(output) as directory:
        jobs = _jobs(sources, surveys, links, options, directory, native=".pftrace" in suffix)
        results: list[Result] = run_all("merge", jobs, cores, watch)
        for result in results:
            problems += result.problems
        if not any(sum(result.read.values()) for result in results):
            raise MergeError(
                "the inputs hold no events" + (f": {(problems + notes)[0]}" if problems or notes else "")
            )
        written = []
        for path, places in _groups(output, suffix, surveys, options.per_rank):
            written.append(_write(path, places, jobs, sources, surveys, links, results, directory))
        for temporary, path in written:
            temporary.replace(path)
    return _summarise(
        [path for _, path in written],
        sources,
        surveys,
        links,
        results,
        problems,
        notes,
        time.monotonic() - began,
        suffix,
    )


def _sources(inputs: Sequence[str], output: Path, problems: list[str], notes: list[str]) -> list[Source]:
    sources: list[Source] = []
    for path, named in expand(inputs):
        if not named and output.exists() and output.samefile(path):
            notes.append(f"left out: {path}, which is the output")
            continue
        try:
            source = identify(path, problems, notes)
        except MergeError as error:
            if named:
                raise
            notes.append(f"left out: {error}")
            continue
        if source is None:
            continue
        if source.kind != SESSION:
            sources.append(source)
            continue
        ranks = ranks_of(path)
        for name, _, _ in ranks:
            label = path.name if len(ranks) == 1 else f"{path.name}/{name}"
            sources.append(Source(path, SESSION, label, session_rank=name))
        for foreign in foreign_traces(path):
            try:
                extra = identify(foreign, [], [])
            except MergeError:
                continue
            if extra is not None:
                sources.append(extra)
    if not sources:
        raise MergeError(
            "the inputs hold no events" + (f": {(problems + notes)[0]}" if problems or notes else "")
        )
    return sources


def _suffix_of(output: Path) -> str:
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if output.name.endswith(suffix):
            return suffix
    raise MergeError(f"{output.name}: the output's suffix says its kind", "one of " + ", ".join(_SUFFIXES))


def _check_output(output: Path, sources: list[Source]) -> None:
    if not output.parent.is_dir():
        raise MergeError(f"the directory {output.parent} does not exist")
    if output.exists():
        if not output.is_file():
            raise MergeError(f"{output} exists and is no regular file")
        for source in sources:
            if source.kind != SESSION and output.samefile(source.path):
                raise MergeError(f"the output {output} is one of the inputs")


def _survey_tasks(sources: list[Source], options: Options) -> list[Any]:
    foreign = [source for source in sources if source.kind not in (SESSION, DFTRACER)]
    return [(source, options.steps is not None, len(foreign) > 1) for source in sources]


def _adopt(sources: list[Source], surveys: list[Survey]) -> None:
    """A trace that names no rank has that of the session whose process it recorded."""
    ranks = {
        pid: found.rank
        for source, found in zip(sources, surveys, strict=True)
        if source.kind == SESSION
        for pid in found.pids
    }
    for source, found in zip(sources, surveys, strict=True):
        if source.kind not in (SESSION, DFTRACER) and found.rank is None and found.pids:
            found.rank = ranks.get(found.pids[0])


def _wanted(
    sources: list[Source], surveys: list[Survey], options: Options
) -> tuple[list[Source], list[Survey]]:
    """The sources of the wanted ranks; a log without a rank stays if it is a wanted process's."""
    if options.ranks is None:
        return sources, surveys
    ranks = options.ranks
    pids = {pid for found in surveys if found.rank in ranks for pid in found.pids}
    kept = [
        place
        for place, found in enumerate(surveys)
        if found.rank in ranks or (found.rank is None and pids.intersection(found.pids))
    ]
    if not kept:
        known = sorted({found.rank for found in surveys if found.rank is not None})
        told = ", ".join(map(str, known)) if known else "none that is known"
        raise MergeError(
            f"no input is of rank {', '.join(map(str, sorted(ranks)))}", f"ranks of the inputs: {told}"
        )
    return [sources[place] for place in kept], [surveys[place] for place in kept]


def _jobs(
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    options: Options,
    directory: Path,
    native: bool,
) -> list[Job]:
    starts = [
        found.first_ns + item.shift_ns
        for found, item in zip(surveys, links, strict=True)
        if found.first_ns is not None
    ]
    first = min(starts, default=0)
    # Small numbers that a double holds to the ns; a day of room before, as Perfetto drops negative times.
    base = max(0, first - first % _DAY_NS - _DAY_NS)
    pool = {key: value for found in surveys for key, value in found.hashes.items()}
    shared = _shared(sources, surveys)
    return [
        Job(
            source=source,
            place=place,
            sources=len(sources) + 1,  # the last block of numbers is for the shared processes
            shared=shared[place],
            from_clock_ns=links[place].shift_ns + surveys[place].stamps_base_ns,
            base_ns=base,
            selection=_selection(surveys[place], links[place], first, options, source),
            pool=pool if source.kind == DFTRACER else {},
            directory=directory,
            native=native,
        )
        for place, source in enumerate(sources)
    ]


def _shared(sources: list[Source], surveys: list[Survey]) -> list[dict[Raw, int]]:
    """Processes that several inputs speak of get one number: those of logs, and the one of each trace.

    A number that two traces of different ranks call their own means nothing.
    """
    claims = Counter(
        pid
        for source, found in zip(sources, surveys, strict=True)
        if source.kind != DFTRACER
        for pid in found.pids
    )
    numbers: dict[int, int] = {}
    shared: list[dict[Raw, int]] = []
    for source, found in zip(sources, surveys, strict=True):
        mine: dict[Raw, int] = {}
        for pid in found.pids:
            ambiguous = claims[pid] > 1 and not _one_of_session(sources, surveys, pid)
            if not ambiguous and (claims[pid] or source.kind == DFTRACER):
                mine[pid] = numbers.setdefault(pid, _shared_pid(len(numbers), len(sources)))
        shared.append(mine)
    return shared


def _one_of_session(sources: list[Source], surveys: list[Survey], pid: int) -> bool:
    """Whether at most one trace beside a session's record claims the process."""
    claimants = [source.kind for source, found in zip(sources, surveys, strict=True) if pid in found.pids]
    return (
        claimants.count(SESSION) <= 1
        and len([kind for kind in claimants if kind not in (SESSION, DFTRACER)]) <= 1
    )


def _shared_pid(number: int, place: int) -> int:
    block, offset = divmod(number, PIDS_EACH)
    return 1 + (block * (place + 1) + place) * PIDS_EACH + offset


def _selection(found: Survey, item: ClockLink, first_ns: int, options: Options, source: Source) -> Selection:
    windows: tuple[tuple[int, int], ...] = ()
    if options.seconds is not None:
        windows = (tuple(first_ns + round(second * 1e9) for second in options.seconds),)  # type: ignore[assignment]
    if options.steps is not None and found.steps:
        wanted = [span for step, span in found.steps.items() if options.steps[0] <= step < options.steps[1]]
        if wanted:
            shift = item.shift_ns + found.stamps_base_ns
            windows = ((min(span[0] for span in wanted) + shift, max(span[1] for span in wanted) + shift),)
        else:
            windows = ((0, 0),)
    return Selection(windows, options.dropped)


@contextmanager
def _workplace(output: Path) -> Iterator[Path]:
    """A directory beside the output, so that the result is renamed into place; removed whatever happens."""
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    except OSError as error:
        raise MergeError(f"{output.parent} cannot be written: {error.strerror}") from error
    try:
        yield directory
    except OSError as error:
        raise MergeError(
            f"the merge stopped: {error.strerror or error}",
            f"it needs about the inputs' uncompressed size in {output.parent}",
        ) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _groups(output: Path, suffix: str, surveys: list[Survey], per_rank: bool) -> list[tuple[Path, list[int]]]:
    """The files to write, and the places of the sources in each."""
    if not per_rank:
        return [(output, list(range(len(surveys))))]
    stem = output.name.removesuffix(suffix)
    owner = {pid: found.rank for found in surveys if found.rank is not None for pid in found.pids}
    groups: dict[str, list[int]] = {}
    for place, found in enumerate(surveys):
        rank = found.rank
        if rank is None:
            rank = next((owner[pid] for pid in found.pids if pid in owner), None)
        groups.setdefault("other" if rank is None else f"rank{rank}", []).append(place)
    return [(output.with_name(f"{stem}-{name}{suffix}"), places) for name, places in sorted(groups.items())]


def _write(
    path: Path,
    places: list[int],
    jobs: list[Job],
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    results: list[Result],
    directory: Path,
) -> tuple[Path, Path]:
    """One output from the parts of `places`, under a temporary name; returns that and the final one."""
    if path.exists() and not path.is_file():
        raise MergeError(f"{path} exists and is no regular file")
    processes = arrange(
        [sources[place] for place in places],
        [surveys[place] for place in places],
        [results[place] for place in places],
    )
    parts = [jobs[place].part for place in places]
    document = _document(jobs[places[0]].base_ns, places, sources, surveys, links, results)
    temporary = directory / f"result-{path.name}"
    opened: BinaryIO
    if path.name.endswith(".gz"):
        opened = _open_gzip(temporary, "wb", compresslevel=_FASTEST)
    else:
        opened = temporary.open("wb")
    with opened as out:
        if jobs[places[0]].native:
            native_out.join(parts, processes, document, out)
        else:
            chrome_out.join(parts, chrome_metadata(processes), document, out)
    return temporary, path


def _document(
    base_ns: int,
    places: list[int],
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    results: list[Result],
) -> dict[str, Any]:
    """What stands beside the events: where times begin, and each source's clock with its bound."""
    return {
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
        "iotrace_merge": {
            "version": __version__,
            "sources": [
                {
                    "file": sources[place].label,
                    "kind": sources[place].kind,
                    "rank": surveys[place].rank,
                    "clock": links[place].kind,
                    "clock_shift_ns": links[place].shift_ns,
                    "clock_bound_ns": links[place].bound_ns,
                    "clock_why": links[place].why,
                    "metadata": results[place].metadata,
                }
                for place in places
            ],
        },
    }


def _summarise(
    paths: list[Path],
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    results: list[Result],
    problems: list[str],
    notes: list[str],
    seconds: float,
    suffix: str,
) -> Summary:
    read, written = Counter[str](), Counter[str]()
    for result in results:
        for phase, count in result.read.items():
            read[KINDS.get(phase, "other")] += count
        for phase, count in result.written.items():
            written[KINDS.get(phase, "other")] += count
    kinds = [kind for kind in (*dict.fromkeys(KINDS.values()), "other") if read[kind] and kind != "metadata"]
    size = sum(path.stat().st_size for path in paths)
    largest = max(path.stat().st_size for path in paths)
    first = min((result.first_ns for result in results if result.first_ns is not None), default=None)
    last = max((result.last_ns for result in results if result.last_ns is not None), default=None)
    if (
        suffix.startswith(".json")
        and first is not None
        and last is not None
        and last - first > _EXACT_SPAN_NS
    ):
        notes.append(
            f"the inputs lie {(last - first) / _DAY_NS:.0f} days apart: Perfetto rounds times of JSON beyond "
            "100 days; .pftrace keeps every ns"
        )
    if suffix == ".json" and largest > _BROWSER_JSON_BYTES:
        notes.append(
            f"{largest / 1e9:.1f} GB of JSON is more than a browser opens: write .pftrace, "
            "or a part (--steps, --time, --drop)"
        )
    return Summary(
        schema_version=SCHEMA_VERSION,
        outputs=[str(path) for path in paths],
        bytes_read=sum(found.bytes for found in surveys),
        bytes_written=size,
        seconds=seconds,
        first_ns=first,
        last_ns=last,
        counts={kind: KindCount(read[kind], read[kind] - written[kind], written[kind]) for kind in kinds},
        processes=len({process.pid for result in results for process in result.tracks.processes.values()}),
        threads=sum(thread.used for result in results for thread in result.tracks.threads),
        lanes_moved=sum(result.moved for result in results),
        loose_arrow_ends=sum(result.unbound for result in results),
        arrows_backwards=sum(result.backwards for result in results),
        sources=[
            SourceSummary(
                path=str(source.path),
                kind=source.kind,
                rank=found.rank,
                clock=item.kind,
                clock_shift_ns=item.shift_ns,
                clock_bound_ns=item.bound_ns,
                clock_why=item.why,
                events=sum(result.read.values()),
                lost_events=result.lost_events,
            )
            for source, found, item, result in zip(sources, surveys, links, results, strict=True)
        ],
        problems=problems,
        notes=notes,
    )
