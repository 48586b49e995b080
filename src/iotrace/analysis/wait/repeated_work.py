"""What samples do again and again with files: list directories, read an index, decode videos, open files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from iotrace.analysis.intervals import Coverage, distinct
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import (
    ASKING,
    DATABASES,
    DECODING,
    LISTING,
    OPENING,
    READING_AGAIN,
    FileGroup,
    RepeatedWork,
)
from iotrace.analysis.storage.directories import group_of
from iotrace.analysis.storage.passes import passes_of
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.analysis.wait.cpus import replayed
from iotrace.analysis.wait.file_costs import FileNames
from iotrace.analysis.wait.gain_bound import MOST, RESIZED, Replayed, replayed_gain_ms
from iotrace.analysis.wait.rasters import of_rasters, rasters_of
from iotrace.analysis.wait.regions import share_of_making
from iotrace.analysis.wait.visit_lines import site_of
from iotrace.analysis.wait.visits import NEVER, Costs, Listings, Visits, listings_of, visits_of

_EACH = 0.9  # of the samples that touch it: a worker that left took some along
_AGAIN = 4  # times what each process, or each epoch, would need
_MANY_SAMPLES = 16
_MANY_FILES = 8
_MUCH = 0.25  # of a file, on average: what samples decode of it, to use less
_MOSTLY = 0.5  # of a visit: the opening of a file; of what is read of a database: what queries give
_MEMBERS = (".tar", ".zip")  # whose members need not be decoded together: kept open, they are found at once
_SOUGHT = 0.4  # of a file: what samples read of it to find their own; evenly spread, half on average
_DOTS = 3  # results of readdir that are no entries: ".", ".." and the end


class _Target(msgspec.Struct):
    """What all processes did with one file, or asked in one directory."""

    path: str
    asked: bool
    visits: int = 0
    samples: float = 0.0
    processes: int = 0
    read_bytes: int = 0
    given_bytes: int = 0
    by_library: bool = False
    spent_ns: int = 0
    opening_ns: int = 0

    def add(
        self,
        visits: int,
        samples: float,
        read_bytes: int,
        given_bytes: int,
        by_library: bool,
        spent_ns: int,
        opening_ns: int,
    ) -> None:
        """Count the visits of one more process, and the samples that these make."""
        self.visits += visits
        self.samples += samples
        self.processes += 1
        self.read_bytes += read_bytes
        self.given_bytes += given_bytes
        self.by_library |= by_library
        self.spent_ns += spent_ns
        self.opening_ns += opening_ns


def repeated_work(
    analysis: RankAnalysis, calls: Mapping[str, FileCalls], groups: Sequence[FileGroup]
) -> list[RepeatedWork]:
    """Find what the samples of the loop's loader do again and again, costliest first; `calls` are by path.

    Files of `groups` that are known as read whole are left out.
    """
    passes = passes_of(analysis.loaders)
    if analysis.source is None or passes is None or not len(analysis.kept):
        return []
    if analysis.source.description.pool:
        passes = max(passes, _usual_opens(calls))
    names, listings = FileNames(), listings_of(analysis)
    found = [visits_of(analysis, process, calls, names, listings) for process in analysis.rank.processes]
    if sum(visits.items for visits in found) < _MANY_SAMPLES:
        return []
    kinds: dict[str, dict[int, _Target]] = defaultdict(dict)
    whole = {group.path for group in groups if group.whole_reads is not None}
    for number, target in _targets(found, names).items():
        file = None if group_of(target.path, whole) else calls.get(target.path)
        kind = _kind_of(target, file, listings.get(target.path, (0, 0))[0])
        if kind == ASKING or (kind and target.visits >= _AGAIN * max(passes, target.processes)):
            kinds[kind][number] = target
    if ASKING in kinds and _asks(kinds[ASKING].values(), calls) < _EACH * sum(each.items for each in found):
        del kinds[ASKING]  # so few calls are not what each sample does
    work = [_work(kind, own, found, analysis, names, listings, calls) for kind, own in kinds.items()]
    return sorted((each for each in work if each.ms_per_sample), key=lambda each: -each.ms_per_sample)


def _asks(targets: Iterable[_Target], calls: Mapping[str, FileCalls]) -> int:
    """How many calls asked for something in these directories, or of them themselves."""
    asked = {each.path for each in targets}
    return sum(each.metadata for path, each in calls.items() if asked & {path, os.path.dirname(path)})


def _usual_opens(calls: Mapping[str, FileCalls]) -> int:
    """How often most files were opened: nothing tells where a queue's items begin another pass."""
    opens = sorted(each.opens for each in calls.values() if each.opens)
    return opens[len(opens) // 2] if len(opens) >= _MANY_FILES else 1


def _targets(found: Sequence[Visits], names: FileNames) -> dict[int, _Target]:
    """Sum up the visits to each target; files that a process visits seldom are left out."""
    targets: dict[int, _Target] = {}
    for visits in found:
        order = np.lexsort((visits.item, visits.target))
        order = order[visits.target[order] >= 0]
        target, item = visits.target[order], visits.item[order]
        if not len(order):
            continue
        new = np.append(True, target[1:] != target[:-1])
        first = np.flatnonzero(new)
        is_other = new | np.append(True, item[1:] != item[:-1])
        times = np.add.reduceat(is_other, first, dtype=np.int64)
        samples = np.add.reduceat(np.where(is_other, visits.samples[item], 0.0), first)
        read_bytes = np.add.reduceat(visits.read_bytes[order], first)
        given_bytes = np.add.reduceat(visits.given_bytes[order], first)
        by_library = np.logical_or.reduceat(visits.reading_ns[order] != NEVER, first)
        spent_ns, opening_ns = (
            np.add.reduceat(
                ((visits.opened_ns if kind == OPENING else visits.ends_ns) - visits.starts_ns)[order], first
            )
            for kind in (DECODING, OPENING)
        )
        again = (times >= _AGAIN) | (target[first] & 1 == 1)
        columns = (
            each[again].tolist()
            for each in (
                *(target[first], times, samples, read_bytes, given_bytes),
                *(by_library, spent_ns, opening_ns),
            )
        )
        for number, *sums in zip(*columns, strict=True):
            known = targets.setdefault(number, _Target(names.paths[number // 2], bool(number & 1)))
            known.add(*sums)
    return targets


def _kind_of(target: _Target, file: FileCalls | None, listings: int) -> str:
    """Tell what samples do with a file; empty: nothing that once would do."""
    if target.asked or (file is not None and listings and listings < _EACH * target.visits):
        return ASKING
    if listings:
        return LISTING
    if file is None or file.write_bytes >= file.read_bytes:
        return ""
    stays_open = file.opens < _EACH * target.visits
    times = target.visits if stays_open else _opened(target, file)
    read = target.read_bytes / (file.distinct_bytes * times) if file.distinct_bytes else 0.0
    if stays_open:
        is_scanned = target.path.endswith(DATABASES) and target.by_library and read >= _SOUGHT
        return _of_scans(target) if is_scanned else ""
    if not target.by_library:
        return READING_AGAIN if read >= _SOUGHT else ""
    # Of a map, as LMDB's, calls read no more than its head.
    is_kept = read < _MUCH or file.maps > 0 or target.path.endswith(_MEMBERS)
    if is_kept or target.opening_ns >= _MOSTLY * target.spent_ns:
        return OPENING
    return DECODING if read * times >= _AGAIN * target.processes else ""


def _opened(target: _Target, file: FileCalls) -> float:
    """How often it was opened to be read: in each visit, or there by each sample of a batch."""
    return max(target.visits, min(file.opens, target.samples))


def _of_scans(target: _Target) -> str:
    """Tell whether queries take what they read of a database, or scan it for little of that."""
    return READING_AGAIN if target.given_bytes >= _MOSTLY * target.read_bytes else DECODING


def _work(
    kind: str,
    targets: Mapping[int, _Target],
    found: Sequence[Visits],
    analysis: RankAnalysis,
    names: FileNames,
    listings: Listings,
    calls: Mapping[str, FileCalls],
) -> RepeatedWork:
    """Sum up what samples do again of one kind."""
    numbers = np.sort(np.array([*targets], np.int64))
    spent_ns, samples, waited_ns, gain_ms, most_ms = np.zeros(len(numbers)), 0, 0.0, None, None
    spares = None
    waits, source = analysis.source_waits, analysis.source
    makers = waits.deliveries.maker(analysis.rank.main.pid)
    deliveries = source.deliveries if source is not None else waits.deliveries
    less = np.zeros(len(deliveries))
    for visits in found:
        own = np.isin(visits.target, numbers)
        until_ns = visits.opened_ns if kind == OPENING else visits.ends_ns
        place = np.searchsorted(numbers, visits.target[own])
        spent_ns += np.bincount(place, (until_ns - visits.starts_ns)[own], len(numbers))
        samples += len(distinct(visits.item[own]))
        covered = Coverage(visits.starts_ns[own], until_ns[own])
        mine = waits[(makers == visits.process.pid) & waits.deliveries.made]
        waited_ns += float((share_of_making(covered, mine.deliveries) * mine.making_ns).sum())
        made = deliveries.made & (deliveries.maker(analysis.rank.main.pid) == visits.process.pid)
        less[made] = covered.within(deliveries["taken_ns"][made], deliveries["prepared_ns"][made])
    awaited = analysis.kept.awaited
    steps = len(analysis.kept)
    if source is not None and not source.description.wrapped and source.description.in_order is not False:
        measured = distinct(awaited["number"][awaited["loader"] == source.number])
        # A worker whose code holds the interpreter's lock sends no batch meanwhile, which no replay tells.
        held_ns = waited_ns / max(1.0, float(waits.making_ns.sum())) * float(waits.of_making_and_way.sum())
        gain_ms = max(replayed_gain_ms(deliveries, measured, steps, less), held_ns / steps / 1e6)
        replay = replayed(analysis, source)
        most_ns = _most_ns(kind, replay, less)
        most_ms, spares = replay.most_without_ms(most_ns), replay.spared(most_ns)
    items, made_samples = (
        sum(visits.items for visits in found),
        sum(float(each.samples.sum()) for each in found),
    )
    ordered = np.argsort(-spent_ns, kind="stable")
    paths = [names.paths[number // 2] for number in numbers[ordered].tolist()]
    reads = kind in (READING_AGAIN, DECODING)
    given = ((each.path, each.given_bytes / max(1, each.visits)) for each in targets.values())
    rasters = of_rasters(given, rasters_of(analysis.rank, analysis.session.paths)) if reads else {}
    results = [listings[path] for path in paths if path in listings]
    return RepeatedWork(
        kind=kind,
        paths=_costly(paths, spent_ns[ordered]),
        files=len(paths),
        read_fraction=_read_fraction(targets.values(), calls) if reads else None,
        kept_bytes=_kept_bytes(targets.values(), calls) if reads else None,
        stored_bytes=sum(calls[each.path].distinct_bytes for each in targets.values()) if reads else None,
        **rasters,
        entries=_entries(results) if kind == LISTING else None,
        samples_fraction=samples / items,
        ms_per_sample=float(spent_ns.sum()) / made_samples / 1e6,
        of_ms_per_sample=sum(visits.items_ns for visits in found) / made_samples / 1e6,
        site=site_of(analysis, found, numbers),
        wait_ms=waited_ns / steps / 1e6,
        gain_ms=gain_ms,
        most_ms=None if most_ms is None or gain_ms is None else max(gain_ms, most_ms),
        spares_fraction=spares,
    )


def _most_ns(kind: str, replay: Replayed, less: Costs) -> Costs:
    """What of the making goes at most: what is read once may be kept as the sample's own code made it."""
    own = less[:MOST]
    return np.maximum(own, replay.less_ns(RESIZED)) if kind in (READING_AGAIN, DECODING) else own


def _costly(paths: list[str], spent_ns: Costs) -> list[str]:
    """The first of them, which together are most of the cost."""
    within = np.cumsum(spent_ns) - spent_ns < _EACH * spent_ns.sum()
    return [path for path, is_costly in zip(paths, within.tolist(), strict=True) if is_costly]


def _read_fraction(targets: Iterable[_Target], calls: Mapping[str, FileCalls]) -> float:
    """What a reading takes of a file, the mean of all; a library reads on threads of its own, too.

    A file that stays open is read for each sample; the others are read as often as they are opened.
    """
    known = []
    for each in targets:
        file = calls[each.path]
        stays_open = file.opens < _EACH * each.visits
        times = max(each.visits, each.samples) if stays_open else _opened(each, file)
        read_bytes = max(each.read_bytes, file.read_bytes) if each.by_library else each.read_bytes
        known.append((max(file.distinct_bytes, file.extent_bytes) * times, read_bytes))
    whole_bytes, read_bytes = (sum(column) for column in zip(*known, strict=True))
    return float(min(1.0, read_bytes / whole_bytes))


def _kept_bytes(targets: Iterable[_Target], calls: Mapping[str, FileCalls]) -> int:
    """The bytes of the files, or what a library gave of each at a time, where that is more."""
    return sum(
        max(calls[each.path].distinct_bytes, round(each.given_bytes / each.visits)) for each in targets
    )


def _entries(listings: Sequence[tuple[int, int]]) -> int | None:
    """Entries of a directory, the mean of all; None where the results of a listing were not counted."""
    times, results = (sum(column) for column in zip(*listings, strict=True))
    return round(results / times) - _DOTS if times and results else None
