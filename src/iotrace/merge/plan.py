"""What is to be merged, and how: the sources, the wanted part of each, the numbers of their processes."""

from __future__ import annotations

import filecmp
import hashlib
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iotrace.merge.clocks.clock_map import ClockLink
from iotrace.merge.convert import Job
from iotrace.merge.inputs import DFTRACER, SESSION, MergeError, Source, UnreadableError, expand, identify
from iotrace.merge.selection import Selection
from iotrace.merge.session_input import foreign_traces, ranks_of
from iotrace.merge.survey import Survey, Wants
from iotrace.sources.byte_stream import size_of
from iotrace.timeline.writers.id_map import PIDS_EACH, Raw

_DAY_NS = 86_400 * 10**9
_LOOK_BYTES = 1 << 16
_RANK_OR_OTHER = re.compile(r"rank\d+|other")  # what --per-rank adds to the output's name
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


def is_output(path: Path, output: Path, per_rank: bool) -> bool:
    """Whether the merge would write `path`."""
    if not per_rank:
        return os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path)
    suffix = suffix_of(output)
    stem, name = output.name.removesuffix(suffix), path.name
    if not name.startswith(f"{stem}-") or not name.endswith(suffix):
        return False
    is_rank = _RANK_OR_OTHER.fullmatch(name[len(stem) + 1 : len(name) - len(suffix)]) is not None
    return is_rank and os.path.realpath(path.parent) == os.path.realpath(output.parent)


def sources_of(
    inputs: Sequence[str], output: Path, per_rank: bool, problems: list[str], notes: list[str]
) -> list[Source]:
    """What `inputs` name, sessions by rank and with the traces in them; what was left out is noted."""
    sources: list[Source] = []
    for path, named in expand(inputs):
        if not named and is_output(path, output, per_rank):
            notes.append(f"left out: {path}, an output of this merge")
            continue
        try:
            source = identify(path, problems, notes)
        except MergeError as error:
            if named:
                raise
            (problems if isinstance(error, UnreadableError) else notes).append(f"left out: {error}")
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
    sources = _each_once(sources, notes)
    if not sources:
        raise MergeError(
            "the inputs hold no events" + (f": {(problems + notes)[0]}" if problems or notes else "")
        )
    return sources


def _each_once(sources: list[Source], notes: list[str]) -> list[Source]:
    """Without files of the same content: a session holds copies of the traces that its program exported."""
    kept: list[Source] = []
    looks: dict[tuple[int, bytes], list[Source]] = {}
    for source in sources:
        if source.kind != SESSION:
            alike = looks.setdefault(_look_of(source.path), [])
            same = next(
                (other for other in alike if filecmp.cmp(other.path, source.path, shallow=False)), None
            )
            if same is not None:
                notes.append(f"left out: {source.path}, the same as {same.path}")
                continue
            alike.append(source)
        kept.append(source)
    return kept


def _look_of(path: Path) -> tuple[int, bytes]:
    """What files of the same content have in common, and few others."""
    with path.open("rb") as file:
        return size_of(path), hashlib.blake2b(file.read(_LOOK_BYTES), digest_size=16).digest()


def suffix_of(output: Path) -> str:
    """The suffix of `output`, which says its kind."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if output.name.endswith(suffix):
            return suffix
    raise MergeError(f"{output.name}: the output's suffix says its kind", "one of " + ", ".join(_SUFFIXES))


def check_output(output: Path, per_rank: bool, sources: list[Source]) -> None:
    """Refuse an output that is an input, no file, or nowhere."""
    try:
        if not output.parent.is_dir():
            raise MergeError(f"the directory {output.parent} does not exist")
        if output.exists() and not output.is_file():
            raise MergeError(f"{output} exists and is no regular file")
        for source in sources:
            if source.kind != SESSION and is_output(source.path, output, per_rank):
                raise MergeError(f"the output {source.path if per_rank else output} is one of the inputs")
    except OSError as error:
        raise MergeError(f"{output} cannot be written: {error.strerror}") from error


def survey_tasks(sources: list[Source], options: Options) -> list[tuple[Source, Wants]]:
    """What to survey of each source."""
    foreign = [source for source in sources if source.kind not in (SESSION, DFTRACER)]
    wants = Wants(
        steps=options.steps is not None,
        collectives=len(foreign) > 1,
        extent=options.seconds is not None or options.align_start,
    )
    return [(source, wants) for source in sources]


def adopt(sources: list[Source], surveys: list[Survey]) -> None:
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


def wanted(
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


def check_steps(sources: list[Source], surveys: list[Survey], options: Options, notes: list[str]) -> None:
    """Say which inputs have no steps to choose from; MergeError where none has one of those wanted."""
    if options.steps is None:
        return
    known = sorted({step for found in surveys for step in found.steps})
    if not any(options.steps[0] <= step < options.steps[1] for step in known):
        told = f"{known[0]} to {known[-1]}" if known else "none"
        raise MergeError(
            f"no input has a step from {options.steps[0]} up to {options.steps[1]}",
            f"steps of the inputs: {told}; --time A:B chooses by seconds",
        )
    for source, found in zip(sources, surveys, strict=True):
        if not found.steps:
            notes.append(f"{source.label} has no steps of its own: all of it is kept (see --time)")


def jobs_of(
    sources: list[Source],
    surveys: list[Survey],
    links: list[ClockLink],
    options: Options,
    directory: Path,
    native: bool,
) -> list[Job]:
    """What each source's process has to do."""
    starts = [
        item.map.one(found.first_ns)
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
            clock=links[place].map.behind(surveys[place].stamps_base_ns),
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
            ambiguous = claims[pid] > 1 and not _is_one(sources, surveys, pid)
            if not ambiguous and (claims[pid] or source.kind == DFTRACER):
                mine[pid] = numbers.setdefault(pid, _shared_pid(len(numbers), len(sources)))
        shared.append(mine)
    return shared


def _is_one(sources: list[Source], surveys: list[Survey], pid: int) -> bool:
    """Whether those that claim the process are a session's record with traces of one rank, or one trace."""
    claimants = [item for item in zip(sources, surveys, strict=True) if pid in item[1].pids]
    sessions = [source for source, _ in claimants if source.kind == SESSION]
    traces = [found.rank for source, found in claimants if source.kind not in (SESSION, DFTRACER)]
    return len(sessions) <= 1 and len(traces if not sessions else set(traces)) <= 1


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
            clock = item.map.behind(found.stamps_base_ns)
            first, last = min(span[0] for span in wanted), max(span[1] for span in wanted)
            windows = ((clock.one(first), clock.one(last)),)
        else:
            windows = ((0, 0),)
    return Selection(windows, options.dropped)
