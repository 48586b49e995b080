"""The whole merge: inputs to plan, plan to parts, a process per input, parts to the result.

``--strict-clocks``: refuse clocks that do not tell the order of what a timeline shows of several hosts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
from isal import igzip

from iotrace import compiled
from iotrace.merge.alignment import clocks_set, link
from iotrace.merge.convert import Result
from iotrace.merge.input_files import SESSION, InputFile, MergeError
from iotrace.merge.plan import (
    Input,
    Options,
    adopt_ranks,
    check_output,
    check_steps,
    far_apart,
    find_suffix,
    list_files,
    no_events,
    of_ranks,
    plan_jobs,
    survey_tasks,
)
from iotrace.merge.pool import Watch, run_all
from iotrace.merge.summary import Summary, described, summarise
from iotrace.merge.survey import Survey
from iotrace.merge.track_names import arrange, make_title
from iotrace.timeline.writers import chrome_json
from iotrace.units import duration
from iotrace.version import __version__

if TYPE_CHECKING:
    from iotrace.analysis.rank import SessionAnalysis
    from iotrace.cluster import Cluster

_MOST_NS = 100_000
# Spans of one collective overlap but for the clocks' errors; spans further apart are from other starts.
_APART_NS = 1_000_000


class Part(msgspec.Struct, frozen=True):
    """An input's part in a collective, on the merged clock, which knows it to ± `bound_ns`."""

    input: Input
    start_ns: int
    end_ns: int

    @property
    def bound_ns(self) -> int:
        return self.input.link.bound_ns or 0

    @property
    def clock(self) -> str | int:
        """What it shares with others of its host; a trace whose host is not known shares nothing."""
        return self.input.link.domain or id(self.input)


class Order(msgspec.Struct, frozen=True):
    """Of one collective: `end` cannot come before `start`, which is another host's."""

    key: tuple[str, ...]
    start: Part
    end: Part

    @property
    def interval_ns(self) -> int:
        """How long after the start the end is shown."""
        return self.end.end_ns - self.start.start_ns

    @property
    def bound_ns(self) -> int:
        """What that may be off by."""
        return self.start.bound_ns + self.end.bound_ns


def refuse_unsure_orders(inputs: Sequence[Input]) -> None:
    """Refuse a clock above 100 µs, or above the shortest interval that the timeline orders between hosts.

    Raises:
        MergeError: A clock is not known, or not well enough.
    """
    if len(inputs) < 2:
        return
    for item in inputs:
        link = item.link
        known = link.bound_ns is not None and link.kind not in ("assumed", "none")
        if not known or (link.bound_ns or 0) > _MOST_NS:
            what = f"known to ± {duration(link.bound_ns or 0)}" if known else link.kind
            raise MergeError(
                f"the clock of {item.file.label} is {what}: {link.why}",
                "leave --strict-clocks out to merge it with that note",
            )
    pair = least_sure(inputs)
    if pair is not None and pair.bound_ns > pair.interval_ns:
        raise MergeError(_refusal(pair, inputs), "leave --strict-clocks out to merge them all the same")


def least_sure(inputs: Sequence[Input]) -> Order | None:
    """Find the order between two hosts that the clocks tell worst; None where hosts share no collective.

    No rank ends an all-reduce, all-gather, reduce-scatter, all-to-all or barrier before every rank has begun
    it. Such an order has to be shown as it was, and the interval from the last start to the first end is the
    shortest one in which it can be seen.
    """
    holders: dict[tuple[str, ...], list[Input]] = defaultdict(list)
    for item in inputs:
        for key in item.survey.collectives:
            holders[key].append(item)
    orders = (order for key, items in holders.items() for order in _orders(key, items))
    return min(orders, key=lambda order: order.interval_ns - order.bound_ns, default=None)


def _orders(key: tuple[str, ...], inputs: Sequence[Input]) -> Iterator[Order]:
    """Yield the two orders of each collective called `key`; one of both is its least sure."""
    for parts in _together(_part(key, item) for item in inputs):
        last = max(parts, key=_latest_start)
        first = min(parts, key=_earliest_end)
        ends = [part for part in parts if part.clock != last.clock]
        starts = [part for part in parts if part.clock != first.clock]
        if ends:
            yield Order(key, last, min(ends, key=_earliest_end))
        if starts:
            yield Order(key, max(starts, key=_latest_start), first)


def _part(key: tuple[str, ...], item: Input) -> Part:
    start_ns, end_ns = item.survey.collectives[key]
    return Part(item, item.link.map.map_one(start_ns), item.link.map.map_one(end_ns))


def _latest_start(part: Part) -> int:
    return part.start_ns + part.bound_ns


def _earliest_end(part: Part) -> int:
    return part.end_ns - part.bound_ns


def _together(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Divide what has the same name by time: a restarted job counts its collectives from the start again."""
    together: list[Part] = []
    ended_ns = 0
    for part in sorted(parts, key=lambda part: part.start_ns):
        if together and part.start_ns > ended_ns + _APART_NS:
            yield together
            together = []
        ended_ns = max(ended_ns, part.end_ns) if together else part.end_ns
        together.append(part)
    if together:
        yield together


def _refusal(order: Order, inputs: Sequence[Input]) -> str:
    hosts = {item.link.domain: item.survey.host for item in inputs if item.link.domain and item.survey.host}

    def of(part: Part) -> str:
        rank = part.input.survey.rank
        host = hosts.get(part.input.link.domain) or part.input.survey.named_host
        known = [f"rank {rank}" if rank is not None else "", f"on {host}" if host else ""]
        about = " ".join(filter(None, known))
        return f"{part.input.file.label} ({about})" if about else part.input.file.label

    kind, number = order.key[0], order.key[-1]
    start, end = order.start.input.file.label, order.end.input.file.label
    apart = f"{duration(abs(order.interval_ns))} {'after' if order.interval_ns >= 0 else 'before'}"
    return (
        f"the clocks of {of(order.end)} and {of(order.start)} are known to ± {duration(order.bound_ns)} "
        "of each other, too coarse for an order that is certain: "
        f"{kind} {number} ends in {end} {apart} it begins in {start}"
    )


_open_gzip: Any = igzip.open
_FASTEST = 0


def merge(
    inputs: Sequence[str],
    output: Path,
    options: Options | None = None,
    watch: Callable[[Watch], None] | None = None,
    cluster: Cluster | None = None,
) -> Summary:
    """Merge `inputs` into `output`; `cluster` converts them in place of processes here.

    Raises:
        MergeError: Nothing can be made of the inputs, or the output cannot be written.
    """
    options = options or Options()
    began = time.monotonic()
    find_suffix(output)
    problems: list[str] = []
    notes: list[str] = []
    files = list_files(inputs, output, options.per_rank, problems, notes)
    check_output(output, options.per_rank, files)
    return _merge(files, output, options, watch, problems, notes, began, cluster)


def write_timeline(analysis: SessionAnalysis, output: Path) -> None:
    """Write the timeline of all ranks of a session that has been read, whole or not at all."""
    session = analysis.session
    files = [
        InputFile(session.path, SESSION, f"{session.path.name}/{rank.name}", rank.name, analysis)
        for rank in session.ranks
    ]
    _merge(files, output, Options(processes=1), None, [], [], time.monotonic())


def _merge(
    files: list[InputFile],
    output: Path,
    options: Options,
    watch: Callable[[Watch], None] | None,
    problems: list[str],
    notes: list[str],
    began: float,
    cluster: Cluster | None = None,
) -> Summary:
    suffix = find_suffix(output)
    native = ".pftrace" in suffix and compiled.available()
    cores = options.processes or len(os.sched_getaffinity(0))
    if cluster is not None:
        cluster.check_sees([file.path for file in files])
    surveys: list[Survey] = run_all("survey", survey_tasks(files, options), cores, watch, cluster)
    inputs = [Input(file, survey) for file, survey in zip(files, surveys, strict=True)]
    adopt_ranks(inputs)
    inputs = of_ranks(inputs, options.ranks)
    check_steps(inputs, options.steps, notes)
    notes += clocks_set(inputs)
    link(inputs, options.align_start)
    if options.strict_clocks:
        refuse_unsure_orders(inputs)
    notes += far_apart(inputs)
    with _workspace(output) as directory:
        plan_jobs(inputs, options, directory, native)
        if cluster is not None:
            cluster.check_sees([directory])
        results: list[Result] = run_all("merge", [item.job for item in inputs], cores, watch, cluster)
        for item, result in zip(inputs, results, strict=True):
            item.result = result
            problems += result.problems
            notes += result.notes
        notes += _nowhere(options.dropped, results)
        if not any(sum(result.read.values()) for result in results):
            raise no_events(problems + notes)
        if not any(sum(result.written.values()) for result in results):
            raise MergeError(
                "the selection matches no events",
                f"the inputs last {_seconds(inputs)} s from the merged start; see --steps, --time, --drop",
            )
        groups = _groups(output, suffix, inputs, options.per_rank)
        written = [(path, _write(path, members, directory)) for path, members in groups]
        for path, temporary in written:
            temporary.replace(path)
    paths = [path for path, _ in written]
    return summarise(paths, inputs, problems, notes, time.monotonic() - began, suffix)


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


def _seconds(inputs: list[Input]) -> str:
    """How long the inputs last on the merged clock."""
    firsts = [item.first_ns for item in inputs if item.first_ns is not None]
    lasts = [item.last_ns for item in inputs if item.last_ns is not None]
    return f"{(max(lasts) - min(firsts)) / 1e9:.3g}" if firsts and lasts else "some"


@contextmanager
def _workspace(output: Path) -> Iterator[Path]:
    """A directory next to the output, so that the result is renamed there; removed whatever happens."""
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
        try:
            shutil.rmtree(directory, ignore_errors=True)
        finally:  # Ctrl-C may come while it is removed, which takes time
            shutil.rmtree(directory, ignore_errors=True)


def _groups(output: Path, suffix: str, inputs: list[Input], per_rank: bool) -> list[tuple[Path, list[Input]]]:
    """The files to write, and the inputs in each."""
    if not per_rank:
        return [(output, inputs)]
    stem = output.name.removesuffix(suffix)
    owner = {
        pid: item.survey.rank for item in inputs if item.survey.rank is not None for pid in item.survey.pids
    }
    groups: dict[str, list[Input]] = {}
    for item in inputs:
        rank = item.survey.rank
        if rank is None:
            rank = next((owner[pid] for pid in item.survey.pids if pid in owner), None)
        groups.setdefault("other" if rank is None else f"rank{rank}", []).append(item)
    return [(output.with_name(f"{stem}-{name}{suffix}"), group) for name, group in sorted(groups.items())]


def _write(path: Path, inputs: list[Input], directory: Path) -> Path:
    """Make one output of the parts of `inputs`; return its temporary name."""
    if path.exists() and not path.is_file():
        raise MergeError(f"{path} exists and is no regular file")
    processes = arrange(inputs)
    parts = [item.job.part for item in inputs]
    document = {"iotrace_merge": {"version": __version__, "sources": [described(item) for item in inputs]}}
    temporary = directory / f"result-{path.name}"
    is_native, base_ns = inputs[0].job.native, inputs[0].job.base_ns
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
            from iotrace.timeline.writers import descriptors, native

            with_tables = inputs[0].job.process_tables
            tracks = descriptors.tree(make_title(inputs), processes)
            tracks = descriptors.tables(processes) if with_tables else tracks
            native.join(parts, tracks, base_ns, document, out)
            return temporary
        if path.name.endswith(".gz"):
            out.write(chrome_json.opening(base_ns))
        chrome_json.join(parts, processes, base_ns, document, out)
    return temporary
