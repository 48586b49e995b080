"""What is to be merged, and how: the inputs, the wanted part of each, the numbers of their processes.

What a merge knows of one of its inputs, and how its clock leads to the merged one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

from iotrace.merge.convert import Job, Result
from iotrace.merge.input_files import (
    DFTRACER,
    SESSION,
    InputFile,
    MergeError,
    UnreadableError,
    each_once,
    expand,
    identify,
)
from iotrace.merge.selection import Selection
from iotrace.merge.survey import Survey, Wants
from iotrace.sources.clocks.session_clock import ClockMap
from iotrace.timeline.writers.id_map import PIDS_EACH, Raw


@dataclass
class ClockLink:
    """`map` brings an input to the merged clock, to within `bound_ns` (None: not known).

    `kind` is exact (the host's own clock), measured (by datagrams between sidecars), inferred (from
    collectives that several ranks made together), assumed (time since 1970, of a host that is not known) or
    none (a clock that nothing relates). Sources of one `domain` share a clock; `own_bound_ns` is how far each
    may be from that. Those of one `island` are related to each other, if to nothing else.
    """

    kind: str
    map: ClockMap = field(default_factory=ClockMap)
    bound_ns: int | None = None
    why: str = ""
    domain: str = ""
    own_bound_ns: int = 0
    island: int = 0


@dataclass
class Input:
    """One input on its way through the merge. Each step fills in its own field."""

    file: InputFile
    survey: Survey
    link: ClockLink = field(init=False)
    job: Job = field(init=False)
    result: Result = field(init=False)

    @property
    def is_trace(self) -> bool:
        """Whether it is a profiler's trace, and no session or log of system calls."""
        return self.file.kind not in (SESSION, DFTRACER)

    @property
    def first_ns(self) -> int | None:
        """Its first time on the merged clock; None where it holds none."""
        first_ns = self.survey.first_ns
        return None if first_ns is None else self.link.map.map_one(first_ns)

    @property
    def last_ns(self) -> int | None:
        """Its last time on the merged clock; None where it holds none."""
        last_ns = self.survey.last_ns
        return None if last_ns is None else self.link.map.map_one(last_ns)


_DAY_NS = 86_400 * 10**9
_APART_NS = 60 * 10**9
_RANK_OR_OTHER = re.compile(r"rank\d+|other")  # what --per-rank adds to the output's name
_SUFFIXES = (".json", ".json.gz", ".pftrace", ".pftrace.gz")


@dataclass(frozen=True)
class Options:
    """What the user asked for; ranges are half-open, `seconds` from the merged start, `span_ns` absolute."""

    steps: tuple[int, int] | None = None
    seconds: tuple[float, float] | None = None
    span_ns: tuple[int, int] | None = None
    ranks: frozenset[int] | None = None
    dropped: frozenset[str] = frozenset()
    per_rank: bool = False
    align_start: bool = False
    strict_clocks: bool = False
    processes: int | None = None
    process_tables: bool = False
    device_tracks: bool = False


def is_output(path: Path, output: Path, per_rank: bool) -> bool:
    """Whether the merge would write `path`."""
    if not per_rank:
        return os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path)
    suffix = find_suffix(output)
    stem, name = output.name.removesuffix(suffix), path.name
    if not name.startswith(f"{stem}-") or not name.endswith(suffix):
        return False
    is_rank = _RANK_OR_OTHER.fullmatch(name[len(stem) + 1 : len(name) - len(suffix)]) is not None
    return is_rank and os.path.realpath(path.parent) == os.path.realpath(output.parent)


def list_files(
    inputs: Sequence[str], output: Path, per_rank: bool, problems: list[str], notes: list[str]
) -> list[InputFile]:
    """What `inputs` name, sessions by rank and with the traces in them; what was left out is noted."""
    files: list[InputFile] = []
    job = uuid4().hex
    for path, named in expand(inputs, notes):
        if not named and is_output(path, output, per_rank):
            notes.append(f"left out: {path}, an output of this merge")
            continue
        try:
            file = identify(path, problems, notes)
        except MergeError as error:
            if named:
                raise
            (problems if isinstance(error, UnreadableError) else notes).append(f"left out: {error}")
            continue
        if file is None:
            continue
        if file.kind != SESSION:
            files.append(file)
            continue
        from iotrace.merge.analysed_input import foreign_traces, list_ranks  # it imports the analysis

        ranks = list_ranks(path, job)
        for name in ranks:
            label = file.label if len(ranks) == 1 else f"{file.label}/{name}"
            files.append(InputFile(path, SESSION, label, session_rank=name, job=job))
        for foreign in foreign_traces(path):
            try:
                extra = identify(foreign, [], [])
            except MergeError:
                continue
            if extra is not None:
                files.append(replace(extra, of_session=True))
    files = each_once(files, notes)
    if not files:
        raise no_events(problems + notes)
    return files


def no_events(why: list[str]) -> MergeError:
    """Say that nothing can be merged, and the first of the reasons that are known."""
    return MergeError("the inputs hold no events" + (f": {why[0]}" if why else ""))


def find_suffix(output: Path) -> str:
    """The suffix of `output`, which says its kind."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if output.name.endswith(suffix):
            return suffix
    raise MergeError(f"{output.name}: the output's suffix says its kind", "one of " + ", ".join(_SUFFIXES))


def check_output(output: Path, per_rank: bool, files: list[InputFile]) -> None:
    """Refuse an output that is an input, no file, or nowhere."""
    try:
        if not output.parent.is_dir():
            raise MergeError(f"the directory {output.parent} does not exist")
        if output.exists() and not output.is_file():
            raise MergeError(f"{output} exists and is no regular file")
        for file in files:
            if file.kind != SESSION and is_output(file.path, output, per_rank):
                raise MergeError(f"the output {file.path if per_rank else output} is one of the inputs")
    except OSError as error:
        raise MergeError(f"{output} cannot be written: {error.strerror}") from error


def survey_tasks(files: list[InputFile], options: Options) -> list[tuple[InputFile, Wants]]:
    """What to survey of each input."""
    traces = [file for file in files if file.kind not in (SESSION, DFTRACER)]
    wants = Wants(
        steps=options.steps is not None,
        collectives=len(traces) > 1,
        extent=options.seconds is not None or options.align_start,
    )
    return [(file, wants) for file in files]


def adopt_ranks(inputs: list[Input]) -> None:
    """Give a trace that names no rank that of the session whose process it recorded."""
    ranks = {
        pid: item.survey.rank for item in inputs if item.file.kind == SESSION for pid in item.survey.pids
    }
    recorded = {path: item.survey.rank for item in inputs for path in item.survey.recordings}
    for item in inputs:
        if item.is_trace and item.survey.rank is None and item.survey.pids:
            item.survey.rank = recorded.get(item.file.path, ranks.get(item.survey.pids[0]))


def of_ranks(inputs: list[Input], ranks: frozenset[int] | None) -> list[Input]:
    """The inputs of `ranks` (None: all); a log without a rank stays if it is a wanted process's."""
    if ranks is None:
        return inputs
    pids = {pid for item in inputs if item.survey.rank in ranks for pid in item.survey.pids}
    kept = [
        item
        for item in inputs
        if item.survey.rank in ranks or (item.survey.rank is None and pids.intersection(item.survey.pids))
    ]
    if not kept:
        known = sorted({item.survey.rank for item in inputs if item.survey.rank is not None})
        raise MergeError(
            f"no input is of rank {', '.join(map(str, sorted(ranks)))}",
            f"ranks of the inputs: {', '.join(map(str, known)) or 'none that is known'}",
        )
    return kept


def check_steps(inputs: list[Input], steps: tuple[int, int] | None, notes: list[str]) -> None:
    """Note which inputs have no steps to choose from; MergeError where no input has a step that is wanted."""
    if steps is None:
        return
    known = sorted({step for item in inputs for step in item.survey.steps})
    if not any(steps[0] <= step < steps[1] for step in known):
        held = f"{known[0]} to {known[-1]}" if known else "none"
        raise MergeError(
            f"no input has a step from {steps[0]} up to {steps[1]}",
            f"steps of the inputs: {held}; --time A:B chooses by seconds",
        )
    notes += [
        f"{item.file.label} has no steps of its own: all of it is kept (see --time)"
        for item in inputs
        if not item.survey.steps
    ]


def far_apart(inputs: list[Input]) -> list[str]:
    """Note a gap in which no input holds anything, where it is longer than all that they hold."""
    spans = sorted(
        (item.first_ns, item.last_ns, item.file.label)
        for item in inputs
        if item.first_ns is not None and item.last_ns is not None
    )
    notes: list[str] = []
    for before, after in pairwise(spans):
        last_ns = max(end for start, end, _ in spans if start <= before[0])
        gap_ns = after[0] - last_ns
        if gap_ns > max(_APART_NS, spans[-1][1] - spans[0][0] - gap_ns):
            notes.append(
                f"{after[2]} begins {gap_ns / 6e10:.1f} min after {before[2]} ended: most of the timeline "
                "is empty; merge what ran together, or compare two sessions: iotrace compare"
            )
    return notes


def plan_jobs(inputs: list[Input], options: Options, directory: Path, native: bool) -> None:
    """Give each input its job."""
    first = min((item.first_ns for item in inputs if item.first_ns is not None), default=0)
    # Small numbers that a double holds to the ns; a day of room before, as Perfetto drops negative times.
    base = max(0, first - first % _DAY_NS - _DAY_NS)
    pool = {key: value for item in inputs for key, value in item.survey.hashes.items()}
    for index, (item, shared) in enumerate(zip(inputs, _shared(inputs), strict=True)):
        item.job = Job(
            file=item.file,
            index=index,
            inputs=len(inputs) + 1,  # the last block of numbers is for the shared processes
            shared=shared,
            clock=item.link.map.with_base(item.survey.stamps_base_ns),
            base_ns=base,
            selection=_selection(item, first, options),
            pool=pool if item.file.kind == DFTRACER else {},
            directory=directory,
            native=native,
            process_tables=options.process_tables,
            device_tracks=item.survey.by_kineto and (options.device_tracks or item.file.of_session),
        )


def _shared(inputs: list[Input]) -> list[dict[Raw, int]]:
    """Processes that several inputs speak of get one number: those of logs, and the one of each trace.

    A number that two traces of different ranks call their own means nothing.
    """
    claims = Counter(pid for item in inputs if item.file.kind != DFTRACER for pid in item.survey.pids)
    numbers: dict[int, int] = {}
    shared: list[dict[Raw, int]] = []
    for item in inputs:
        mine: dict[Raw, int] = {}
        for pid in item.survey.pids:
            ambiguous = claims[pid] > 1 and not _is_one(inputs, pid)
            if not ambiguous and (claims[pid] or item.file.kind == DFTRACER):
                mine[pid] = numbers.setdefault(pid, _shared_pid(len(numbers), len(inputs)))
        shared.append(mine)
    return shared


def _is_one(inputs: list[Input], pid: int) -> bool:
    """Whether those that claim the process are a session's record with traces of one rank, or one trace."""
    claimants = [item for item in inputs if pid in item.survey.pids]
    sessions = [item for item in claimants if item.file.kind == SESSION]
    ranks = [item.survey.rank for item in claimants if item.is_trace]
    return len(sessions) <= 1 and len(ranks if not sessions else set(ranks)) <= 1


def _shared_pid(number: int, inputs: int) -> int:
    block, offset = divmod(number, PIDS_EACH)
    return 1 + (block * (inputs + 1) + inputs) * PIDS_EACH + offset


def _selection(item: Input, first_ns: int, options: Options) -> Selection:
    """What is wanted of an input; `first_ns` is the merged start."""
    windows: tuple[tuple[int, int], ...] = () if options.span_ns is None else (options.span_ns,)
    if options.seconds is not None:
        begin, end = options.seconds
        windows = ((first_ns + round(begin * 1e9), first_ns + round(end * 1e9)),)
    if options.steps is not None and item.survey.steps:
        first, last = options.steps
        wanted = [span for step, span in item.survey.steps.items() if first <= step < last]
        windows = ((0, 0),)
        if wanted:
            clock = item.link.map.with_base(item.survey.stamps_base_ns)
            begins, ends = zip(*wanted, strict=True)
            windows = ((clock.map_one(min(begins)), clock.map_one(max(ends))),)
    return Selection(windows, options.dropped)
