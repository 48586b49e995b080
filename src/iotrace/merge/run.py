"""The whole merge: inputs to plan, plan to parts, a process per source, parts to the result."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from isal import igzip

from iotrace import __version__, compiled
from iotrace.merge.clocks.alignment import clocks_set, link
from iotrace.merge.clocks.clock_map import ClockLink
from iotrace.merge.convert import Job, Result
from iotrace.merge.inputs import MergeError, Source
from iotrace.merge.plan import (
    Options,
    adopt,
    check_output,
    check_steps,
    jobs_of,
    sources_of,
    suffix_of,
    survey_tasks,
    wanted,
)
from iotrace.merge.pool import Watch, run_all
from iotrace.merge.summary import SCHEMA_VERSION, KindCount, SourceSummary, Summary
from iotrace.merge.survey import Survey
from iotrace.merge.track_names import arrange, chrome_metadata
from iotrace.sources.chrome.event import KINDS
from iotrace.timeline.writers import chrome_json, native

_DAY_NS = 86_400 * 10**9
_EXACT_SPAN_NS = 100 * _DAY_NS
_SLOWLY_BYTES = 100_000_000
_BROWSER_JSON_BYTES = 1_200_000_000
_open_gzip: Any = igzip.open
_FASTEST = 0


def merge(
    inputs: Sequence[str],
    output: Path,
    options: Options | None = None,
    watch: Callable[[Watch], None] | None = None,
) -> Summary:
    """Merge `inputs` into `output`; MergeError where nothing can be made of them."""
    options = options or Options()
    began = time.monotonic()
    suffix = suffix_of(output)
    problems: list[str] = []
    notes: list[str] = []
    sources = sources_of(inputs, output, options.per_rank, problems, notes)
    check_output(output, options.per_rank, sources)
    cores = options.processes or len(os.sched_getaffinity(0))
    surveys = run_all("survey", survey_tasks(sources, options), cores, watch)
    adopt(sources, surveys)
    sources, surveys = wanted(sources, surveys, options)
    check_steps(sources, surveys, options, notes)
    notes += clocks_set(surveys)
    links = link(sources, surveys, options.align_start, options.strict_clocks)
    with _workplace(output) as directory:
        jobs = jobs_of(sources, surveys, links, options, directory, native=".pftrace" in suffix)
        results: list[Result] = run_all("merge", jobs, cores, watch)
        for result in results:
            problems += result.problems
            notes += result.notes
        notes += _nowhere(options.dropped, results)
        if not any(sum(result.read.values()) for result in results):
            raise MergeError(
                "the inputs hold no events" + (f": {(problems + notes)[0]}" if problems or notes else "")
            )
        if not any(sum(result.written.values()) for result in results):
            raise MergeError(
                "nothing of the inputs is in what was chosen",
                f"they last {_seconds(surveys, links)} s from the merged start; see --steps, --time, --drop",
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


def _nowhere(dropped: frozenset[str], results: list[Result]) -> list[str]:
    """A sentence for the categories to leave out that no event has."""
    known = {category for result in results for category in result.categories}
    unknown = sorted(dropped - known)
    if not unknown:
        return []
    return [
        f"no event is of the category {' or '.join(unknown)}; categories of the inputs: "
        + (", ".join(sorted(known)) or "none")
    ]


def _seconds(surveys: list[Survey], links: list[ClockLink]) -> str:
    """How long the inputs last on the merged clock."""
    ends = [
        (item.map.one(found.first_ns), item.map.one(found.last_ns))
        for found, item in zip(surveys, links, strict=True)
        if found.first_ns is not None and found.last_ns is not None
    ]
    return (
        f"{(max(last for _, last in ends) - min(first for first, _ in ends)) / 1e9:.3g}" if ends else "some"
    )


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
    document = _document(places, sources, surveys, links, results)
    temporary = directory / f"result-{path.name}"
    is_native, base_ns = jobs[places[0]].native, jobs[places[0]].base_ns
    opened: BinaryIO
    if path.name.endswith(".gz"):
        opened = _open_gzip(temporary, "wb", compresslevel=_FASTEST)
    elif is_native:
        opened = temporary.open("wb")
    else:  # the largest part grows to the result: the others alone are copied
        largest = max(parts, key=lambda part: part.stat().st_size)
        parts.remove(largest)
        largest.rename(temporary)
        opened = temporary.open("r+b")
        opened.seek(0, os.SEEK_END)
    with opened as out:
        if is_native:
            native.join(parts, processes, base_ns, document, out)
            return temporary, path
        if path.name.endswith(".gz"):
            out.write(chrome_json.opening(base_ns))
        chrome_json.join(parts, chrome_metadata(processes), base_ns, document, out)
    return temporary, path


def _document(
    places: list[int],
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    results: list[Result],
) -> dict[str, Any]:
    """What stands behind the events: each source's clock with its bound."""
    return {
        "iotrace_merge": {
            "version": __version__,
            "sources": [
                {
                    "file": sources[place].label,
                    "kind": sources[place].kind,
                    "rank": surveys[place].rank,
                    "clock": links[place].kind,
                    "clock_shift_ns": links[place].map.shift_ns,
                    "clock_shift_at_ns": links[place].shift_at_ns,
                    "clock_drift_ppb": links[place].drift_ppb,
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
    read_bytes = sum(found.bytes for found in surveys)
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
    if read_bytes > _SLOWLY_BYTES and not compiled.available():
        notes.append(
            "iotrace was installed without a C compiler, or has changed since: it merges four to eight times "
            "slower; with a compiler, install iotrace again"
        )
    if suffix == ".json" and largest > _BROWSER_JSON_BYTES:
        notes.append(
            f"{largest / 1e9:.1f} GB of JSON is more than a browser opens: write .pftrace, "
            "or a part (--steps, --time, --drop)"
        )
    return Summary(
        schema_version=SCHEMA_VERSION,
        outputs=[str(path) for path in paths],
        bytes_read=read_bytes,
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
                clock_shift_ns=item.map.shift_ns,
                clock_shift_at_ns=item.shift_at_ns,
                clock_drift_ppb=item.drift_ppb,
                clock_bound_ns=item.bound_ns,
                clock_why=item.why,
                events=sum(result.read.values()),
                lost_events=result.lost_events,
                lanes_moved=result.moved,
                arrows_backwards=result.backwards,
            )
            for source, found, item, result in zip(sources, surveys, links, results, strict=True)
        ],
        problems=problems,
        notes=notes,
    )
