"""What a reader of a timeline sees first: a stretch of time, a selected slice, which groups are open.

What is shown below the tracks at first, as queries: Perfetto shows the rows of one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import msgspec

from iotrace.errors import UsageError
from iotrace.session.listing import session_title

if TYPE_CHECKING:
    from iotrace.analysis.device.activity import Activity
    from iotrace.analysis.rank import RankAnalysis, SessionAnalysis
    from iotrace.analysis.wait.waits import Explained, Waits

_MOST = 9
_ARGS = ("message", "at", "batch")
# How long each rank waited for its DataLoader, and was in collectives, where ranks wait for each other.
_RANKS = """
with recursive up(leaf, parent, name) as (
  select id, parent_id, name from track
  union all select up.leaf, track.parent_id, track.name from up join track on track.id = up.parent)
select up.name as rank,
  round(sum(iif(slice.name glob '*DataLoader*', dur, 0)) / 1e6, 1) as "waits for its DataLoader, ms",
  round(sum(iif(slice.name glob '*DataLoader*', 0, dur)) / 1e6, 1) as "in collectives, ms"
from slice join up on up.leaf = track_id
where (slice.name glob 'enumerate(DataLoader)*.__next__*' or slice.name glob 'gloo:*'
  or slice.name glob 'nccl*Kernel*') and up.name glob 'rank [0-9]*' and up.name not glob '*·*'
group by up.name order by 2 desc limit 64
"""


def of_failures() -> str:
    """List the timeline's failures; native timelines name arguments otherwise than JSON."""
    known = ", ".join(
        f"coalesce(extract_arg(arg_set_id, 'debug.{arg}'), extract_arg(arg_set_id, 'args.{arg}')) as {arg}"
        for arg in _ARGS
    )
    named = "name glob 'failed: *'"
    return f"select substr(name, 9) as failed, {known} from slice where {named} order by ts limit {_MOST}"


def of_ranks() -> str:
    """Compare the ranks of merged bare traces, the one that waits longest for data first."""
    return " ".join(_RANKS.split())


def of_rows(rows: Sequence[tuple[str, str]]) -> str:
    """Show some rows of two texts; empty where there are none."""
    if not rows:
        return ""
    (label, text), *others = [tuple(map(_quoted, row)) for row in rows]
    selects = [f"select {label} as iotrace, {text} as says"]
    return " union all ".join([*selects, *(f"select {label}, {text}" for label, text in others)])


def _quoted(text: str) -> str:
    return "'" + text.replace("\0", " ").replace("'", "''") + "'"


WORST, FAILURE = "worst", "failure"
_AT_HELP = "iotrace report --view gaps prints times to look at"
# Perfetto moves a selected slice to the middle. One that lies there, or is half as wide, it shows from afar.
_BEFORE_FAILURE_NS, _AFTER_FAILURE_NS = 5 * 10**9, 6 * 10**9
_LEAST_MARGIN_NS = 10**6
_NAMES_BYTES = 1 << 20
_MOST_PINNED = 8  # ranks whose waits are pinned
_OPEN, _PIN = "dev.perfetto.ExpandTracksByRegex", "dev.perfetto.PinTracksByRegex"
_QUERY = "dev.perfetto.RunQueryAndShowTab"
# Of a timeline whose session is not at hand: the groups and processes that our own names tell.
_ANY_GROUPS = r"\.json(\.gz)?$|^rank \d+| inputs$|^main|^process |^GPU \d+"
_PINNED = "(failure|steps|data wait|idle)$"
_PINNED_OF_ONE = "idle$"  # its failure, steps and waits are in the open group of its process
_IDLE_PINNED = "(failure|steps|data wait|idle|critical path|modules|launch queue length)$"
_DEVICE_GROUPS = (r"GPU \d+$", "torch.profiler$")
_LEAST_IDLE_MARGIN_NS = 50_000


class View(msgspec.Struct, frozen=True):
    """Times in ns as the trace has them; None where the whole trace is shown. `what` says it in words.

    Patterns name tracks; those of one of `pinned` are above those of the next.
    """

    what: str
    expanded: str
    pinned: Sequence[str]
    shown_ns: tuple[int, int] | None = None
    selected_ns: tuple[int, int] | None = None  # a slice's start and duration
    query: str = ""  # its rows are below the tracks

    def fragment(self, **more: str) -> str:
        """Return what follows the address of Perfetto's page."""
        commands = [{"id": _OPEN, "args": [self.expanded]}]
        commands += [{"id": _PIN, "args": [pattern]} for pattern in self.pinned]
        commands += [{"id": _QUERY, "args": [self.query]}] if self.query else []
        told = dict(more)
        if self.shown_ns is not None:
            told["visStart"], told["visEnd"] = map(str, self.shown_ns)
        if self.selected_ns is not None:
            told["ts"], told["dur"] = map(str, self.selected_ns)
        told["startupCommands"] = json.dumps(commands, separators=(",", ":"))
        return "#!/?" + urlencode(told, quote_via=quote)


def view_of_file(path: Path) -> View:
    """Look at all of a timeline where no more is known: its devices; if it has none, its processes.

    Below the tracks the ranks of bare traces are side by side.
    """
    names = _names(path)
    groups = _ANY_GROUPS if re.search(rb"GPU \d", names) else f"{_ANY_GROUPS}| · CPU$"
    several = len(set(re.findall(rb"rank (\d+)", names))) > 1 and b"data wait" not in names
    return View(
        f"all of {path.name}", groups, _pins(range(_MOST_PINNED)), query=of_ranks() if several else ""
    )


def _names(path: Path) -> bytes:
    """Read the names of tracks, with which a native timeline begins."""
    try:
        with path.open("rb") as file:
            return file.read(_NAMES_BYTES)
    except OSError:
        return b""


def of_interest(analysis: SessionAnalysis) -> str:
    """What one asks of a session first: why it failed, else what it waited for."""
    return FAILURE if analysis.session.exit_code and analysis.timed_failures else WORST


def view_of_session(analysis: SessionAnalysis, around: str = WORST, batch: int | None = None) -> View:
    """Look at a batch, at the longest wait, at the time before the failure, or at a step.

    Raises:
        UsageError: there is nothing of the kind.
    """
    if batch is not None:
        return _at_batch(analysis, batch)
    if around == FAILURE:
        return _before_failure(analysis)
    if around.isdecimal():
        return _at_step(analysis, int(around))
    if around != WORST:
        raise UsageError(f"--around is worst, failure or a step's number, not {around}", "--around worst")
    longest = _longest([(rank, rank.measured_waits or rank.waits) for rank in analysis.ranks])
    if longest is None:
        return _view(analysis, "all of the session", analysis.ranks[:1], None)
    return _at_wait(analysis, *longest, "the longest wait: ")


def view_of_part(analysis: SessionAnalysis, rank: int | None = None, file: str | None = None) -> View:
    """Look at the longest wait of a rank, or at the longest wait that a file has a part in.

    Raises:
        UsageError: there is nothing of the kind.
    """
    import numpy as np

    ranks = [each for each in analysis.ranks if rank is None or each.rank.number == rank]
    if not ranks:
        raise UsageError(f"the session has no rank {rank}", "")
    waits = [(each, each.measured_waits or each.waits) for each in ranks]
    if file is not None:
        waits = [(each, own[np.array([file in wait.files for wait in own], np.bool_)]) for each, own in waits]
    longest = _longest(waits)
    if longest is not None:
        return _at_wait(analysis, *longest, "the longest wait: " if file is None else f"{file}: ")
    if file is not None:
        raise UsageError(f"no wait was for {file}", "")
    return _view(analysis, f"rank {rank}", ranks, None)


def view_at(analysis: SessionAnalysis, at_s: float) -> View:
    """Look at a time of a session, in seconds from its start: at a device's idle time around it, if any."""
    at_ns = analysis.session.manifest.started_ns + round(at_s * 1e9)
    idle = [
        (rank, span) for rank in analysis.ranks for span in [_idle_around(rank.activities, at_ns)] if span
    ]
    if idle:
        rank, (start_ns, end_ns) = idle[0]
        margin_ns = _idle_margin_ns(start_ns, end_ns)
        shown = start_ns - margin_ns, end_ns + margin_ns
        view = _view(analysis, _idle_text(start_ns, end_ns), [rank], shown, more=_DEVICE_GROUPS)
        return msgspec.structs.replace(
            view,
            selected_ns=(start_ns, end_ns - start_ns),
            pinned=_pins(_numbers(analysis, [rank]), _IDLE_PINNED),
        )
    margin_ns = max(*(_step_ns(rank) for rank in analysis.ranks), _LEAST_MARGIN_NS)
    view = _view(analysis, f"at {at_s:.6f} s", analysis.ranks, (at_ns - margin_ns, at_ns + margin_ns))
    if view.shown_ns is None:
        raise UsageError(f"nothing was recorded {at_s:.6f} s after the start", _AT_HELP)
    return view


def view_of_trace(activity: Activity, at_s: float | None) -> View:
    """Look at a trace of torch.profiler: at all of it, or at a time in seconds from its first event."""
    path = activity.trace.path
    first_ns, last_ns = activity.trace.span_ns() or (0, 0)
    every = View(
        f"all of {path.name}",
        rf"^({re.escape(path.name)}|rank \d+|.* · CPU|GPU \d+)$",
        _pins((), _IDLE_PINNED),
    )
    if at_s is None:
        return every
    at_ns = first_ns + round(at_s * 1e9)
    if not first_ns <= at_ns <= last_ns:
        lasts = f"{path.name} lasts {(last_ns - first_ns) / 1e9:.6f} s: it holds nothing at {at_s:.6f} s"
        raise UsageError(lasts, _AT_HELP)
    start_ns, end_ns = _idle_around([activity], at_ns) or (at_ns, at_ns)
    margin_ns = _idle_margin_ns(start_ns, end_ns)
    what = _idle_text(start_ns, end_ns) if end_ns > start_ns else f"at {at_s:.6f} s"
    return msgspec.structs.replace(
        every,
        what=what,
        shown_ns=(max(first_ns, start_ns - margin_ns), min(last_ns, end_ns + margin_ns)),
        selected_ns=(start_ns, end_ns - start_ns) if end_ns > start_ns else None,
    )


def _idle_around(activities: Sequence[Activity], at_ns: int) -> tuple[int, int] | None:
    """Find the idle time of a device around a time, within a us: commands state times in us."""
    from iotrace.analysis.device.gaps import gaps_of

    for activity in activities:
        gaps = gaps_of(activity, activity.device.nonzero()[0])
        at = int(gaps.end_ns.searchsorted(at_ns - 1000))
        if at < len(gaps) and gaps.start_ns[at] <= at_ns + 1000:
            return int(gaps.start_ns[at]), int(gaps.end_ns[at])
    return None


def _idle_margin_ns(start_ns: int, end_ns: int) -> int:
    return max(end_ns - start_ns, _LEAST_IDLE_MARGIN_NS)


def _idle_text(start_ns: int, end_ns: int) -> str:
    return f"an idle time of the device: {(end_ns - start_ns) / 1e6:.3f} ms"


def _longest(waits: list[tuple[RankAnalysis, Waits]]) -> tuple[RankAnalysis, Explained] | None:
    """Find the longest of some waits, and its rank."""
    longest = [(rank, own[int(own.deliveries.wait_ns.argmax())]) for rank, own in waits if len(own)]
    return max(longest, key=lambda pair: pair[1].delivery.wait_ns, default=None)


def _at_batch(analysis: SessionAnalysis, batch: int) -> View:
    waits = [(rank, rank.waits[rank.waits.deliveries["index"] == batch]) for rank in analysis.ranks]
    longest = _longest(waits)
    if longest is None:
        numbers = [int(rank.waits.deliveries["index"].max()) for rank in analysis.ranks if rank.waits]
        held = f"batches 0 to {max(numbers)}" if numbers else "no batch"
        raise UsageError(f"the session has no batch {batch}", f"it has {held}")
    return _at_wait(analysis, *longest, "")


def _at_wait(analysis: SessionAnalysis, rank: RankAnalysis, wait: Explained, which: str) -> View:
    delivery = wait.delivery
    margin_ns = max(2 * delivery.wait_ns, 2 * _step_ns(rank), _LEAST_MARGIN_NS)
    shown = delivery.wait_start_ns - margin_ns, delivery.delivered_ns + margin_ns
    of_rank = f" of rank {rank.rank.number}" if len(analysis.ranks) > 1 else ""
    what = f"{which}batch {delivery.index}{of_rank}, {delivery.wait_ns / 1e6:.1f} ms, {wait.cause}"
    # Perfetto opens the group of the selected wait itself: who made the batch is open, too. Steps and waits
    # are pinned only where there are other ranks to compare with.
    view = _view(analysis, what, [rank], shown, [delivery.pid or rank.rank.main.pid])
    pinned = _pins((), _PINNED_OF_ONE) if len(analysis.ranks) == 1 else view.pinned
    return msgspec.structs.replace(
        view, selected_ns=(delivery.wait_start_ns, delivery.wait_ns), pinned=pinned
    )


def _at_step(analysis: SessionAnalysis, number: int) -> View:
    from iotrace.analysis.page.series import step_numbers

    steps = [
        (rank, step)
        for rank in analysis.ranks
        for step, own in zip(rank.loop.steps, step_numbers(rank.loop.steps), strict=True)
        if own == number
    ]
    if not steps:
        count = max((len(rank.loop.steps) for rank in analysis.ranks), default=0)
        raise UsageError(f"the session has no step {number}", f"it has {count} steps, from 0")
    rank, step = max(steps, key=lambda pair: pair[1].duration_ns)
    margin_ns = step.end_ns - step.start_ns
    return _view(analysis, f"step {number}", [rank], (step.start_ns - margin_ns, step.end_ns + margin_ns))


def _before_failure(analysis: SessionAnalysis) -> View:
    from iotrace.analysis.failures import shown_until

    failures = analysis.timed_failures
    if not failures:
        raise UsageError("no failure was recorded in this session", "--around worst shows the longest wait")
    at_ns, first = failures[0]
    failed = [rank for rank in analysis.ranks if rank.rank.number == first.rank] or analysis.ranks[:1]
    what = f"before the failure: {first.type}"
    pids = [first.process] if first.process is not None else [rank.rank.main.pid for rank in failed]
    if not math.isfinite(at_ns):  # a launcher reported it later
        return _view(analysis, what, failed, None, pids)
    until_ns, last_ns = shown_until(analysis.session, int(at_ns))
    shown = int(at_ns) - _BEFORE_FAILURE_NS, until_ns + _AFTER_FAILURE_NS
    view = _view(analysis, what, failed, None, pids)
    return msgspec.structs.replace(
        view,
        pinned=_pins((), _PINNED_OF_ONE) if len(analysis.ranks) == 1 else view.pinned,
        shown_ns=_within(analysis, shown, last_ns),
        selected_ns=(int(at_ns), until_ns - int(at_ns)),
        query=of_failures(),
    )


def _step_ns(rank: RankAnalysis) -> int:
    steps = sorted((rank.kept or rank.loop.steps).duration_ns.tolist())
    return steps[len(steps) // 2] if steps else 0


def _view(
    analysis: SessionAnalysis,
    what: str,
    ranks: list[RankAnalysis],
    shown: tuple[int, int] | None,
    pids: list[int] | None = None,
    more: Sequence[str] = (),
) -> View:
    """Open the groups of `ranks` and processes; pin the waits of all ranks, of many those of these."""
    pids = [rank.rank.main.pid for rank in ranks] if pids is None else pids
    path = analysis.session.path
    groups = [re.escape(name) + "$" for name in {session_title(path): 1, path.absolute().name: 1}]
    groups += [rf"rank {rank.rank.number}( \(.*)?$" for rank in ranks]
    groups += [*(rf".* · pid {pid}$" for pid in pids), *more]
    is_open = len(analysis.ranks) == 1 and analysis.ranks[0].rank.main.pid in pids
    pinned = _pins((), _PINNED_OF_ONE) if is_open else _pins(_numbers(analysis, ranks))
    return View(what, "^(" + "|".join(groups) + ")", pinned, _within(analysis, shown))


def _numbers(analysis: SessionAnalysis, ranks: Sequence[RankAnalysis]) -> list[int]:
    """List the ranks whose tracks are pinned: all, of many those of `ranks`."""
    chosen = analysis.ranks if len(analysis.ranks) <= _MOST_PINNED else ranks
    return [rank.rank.number for rank in chosen]


def _pins(ranks: Sequence[int], what: str = _PINNED) -> list[str]:
    """Return a pattern for each of `ranks`, in order: the tracks that one matches come in any order."""
    return [f"^{what}", *(rf"^rank {number}( .*)? · {what}" for number in ranks)]


def _within(
    analysis: SessionAnalysis, shown: tuple[int, int] | None, least_end_ns: int = 0
) -> tuple[int, int] | None:
    """Cut the stretch to what the timeline surely holds: Perfetto takes none that leads out of it."""
    starts = [rank.startup[0] for rank in analysis.ranks if rank.startup is not None]
    starts += [rank.waits[0].delivery.wait_start_ns for rank in analysis.ranks if rank.waits]
    starts += [rank.loop.steps[0].start_ns for rank in analysis.ranks if rank.loop.steps]
    ends = [least_end_ns]
    ends += [rank.waits[-1].delivery.delivered_ns for rank in analysis.ranks if rank.waits]
    ends += [rank.loop.steps[-1].end_ns for rank in analysis.ranks if rank.loop.steps]
    if shown is None or not starts:
        return None
    begin, end = max(shown[0], min(starts)), min(shown[1], max(ends))
    return (begin, end) if begin < end else None
