"""Record what threads hand to each other behind a ``Condition``, an ``Event`` or a ``Semaphore``.

Nobody sees the item: it lies in a deque, a list, an attribute. A thread other than the loop's makes one until
it notifies, sets or releases; the loop's thread takes one where it waits for that. Items of a condition are
taken in the order of their making; what is at an event is the last one. That there is an item at all is told
by the places that the code of both threads uses (`places`): else they may take turns.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from time import monotonic_ns

from iotrace.agent.patching import has_layer, hide_frame, pass_for, patch
from iotrace.agent.pools import callers, places, queues, tasks
from iotrace.agent.pools.callers import PROGRAMS, making, whose_file
from iotrace.agent.pools.queues import LOOK_EVERY, Channel, maker_of, sample_beside
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import HANDED_ROW, MADE_ROW

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any

    from iotrace.agent.pools.tasks import Begun
    from iotrace.agent.recording.thread_clocks import Thread

    Site = tuple[CodeType, int]  # where a thread enters a condition

_WHAT = "recording a hand-over"
_LAYER, _MAKING = "meetings", "making"
_PASSED_NS = 1500  # to make a condition costs so much more, between other calls
_MOST_EARLY = 256
_LOOKS = 3  # at the code of a thread
_MOST = 256  # of a process that are followed: who makes one for each request makes any number

# By a thread's id and a meeting's number: the section in which the thread has the condition.
_open: dict[tuple[int, int], _Section] = {}
# By a class, a file and a function's first line there: code that is not the program's makes one.
_elsewhere: set[tuple[type, str, int]] = set()


class Meeting(Channel):
    """A condition, an event or a semaphore: how many items were put there and taken, and by which code."""

    def __init__(self, kind: str, permits: int = 0) -> None:
        super().__init__(f"threading.{kind}", 0)
        self.puts = self.takes = 0
        self.permits = permits  # of a semaphore, from the start: no items
        self.takers: set[Site] = set()
        self.early: dict[Site, list[_Section]] = {}  # of the loop's thread, which has not waited there yet
        self.is_mutual = False  # the same threads acquire and release it
        self.places: set[Any] = set()  # where threads other than the loop's put data
        self.reads: set[Any] = set()  # where they take something from
        self.is_asked = False
        self.looks = 0  # at what the loop takes from there
        self.hands_over = False


class _Section:
    """What a thread did while it had a condition: since when it asked, whether it waited or notified."""

    __slots__ = ("asked_ns", "begun", "lying", "next_put", "notifies", "site", "taken_ns", "waits")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.asked_ns, self.taken_ns, self.lying = monotonic_ns(), 0, -1
        self.waits = self.notifies = False
        self.next_put = -1  # where it waited: the item that it waited for
        self.begun: Begun | None = None


def watch(module: Any, recorder: Recorder) -> None:
    """Patch each of these classes of `module`, ``threading``, once the program makes one.

    Queues have conditions, too: each of their calls would pay.
    """
    left = [_MOST]
    ends: list[Any] = []
    take, put = partial(_take, recorder), partial(_put, recorder)
    enter, leave = partial(_enter, recorder), partial(_exit, recorder)
    of_condition = {"notify": _notify, "wait": _wait, "wait_for": _wait_for}
    for kind, patches in (
        (module.Condition, {"__enter__": enter, "__exit__": leave, **of_condition}),
        (module.Event, {"wait": take, "set": put}),
        (module.Semaphore, {"acquire": take, "__enter__": _same_as_acquire(take), "release": put}),
    ):
        made = partial(_made, recorder, (kind, patches, left, ends))
        ends.append(patch(kind, "__init__", partial(_noting, recorder, made), _MAKING))


def _noting(recorder: Recorder, made: Any, original: Any) -> Any:
    passes = recorder.own_times.passed(_PASSED_NS)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        passes()
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        try:
            caller = sys._getframe(1)
            place = type(self), caller.f_code.co_filename, caller.f_code.co_firstlineno
            if place not in _elsewhere:  # each future has one, made in the first lines of its class
                made(self, caller, place)
        except ours(Exception) as error:
            recorder.absorb(error, _WHAT)

    return init


def _made(recorder: Recorder, about: Any, of: Any, caller: FrameType, place: tuple[type, str, int]) -> None:
    kind, patches, left, ends = about
    frame = making(of, caller)
    if frame is None or whose_file(frame.f_code.co_filename) != PROGRAMS:
        if frame is caller and len(_elsewhere) < _MOST:
            _elsewhere.add(place)
        return
    if recorder.over or not left[0]:
        return
    left[0] -= 1
    if not left[0]:
        for end in ends:
            end()
    permits = getattr(of, "_value", 0)
    known = Meeting(kind.__name__, permits if isinstance(permits, int) else 0)
    queues.channels.put(of, known)
    for name, make in patches.items():
        if not has_layer(getattr(kind, name), _LAYER):
            patch(kind, name, make, _LAYER)


def _followed(thing: Any, recorder: Recorder) -> Meeting | None:
    """Return what is known of a condition, an event or a semaphore; of one that is used too often nothing."""
    meeting: Meeting | None = queues.channels.get(thing)
    if meeting is None or meeting.is_fast or recorder.over:
        return None
    meeting.counted += 1
    if not meeting.counted % LOOK_EVERY:
        meeting.look(monotonic_ns(), recorder)
    return meeting


def _enter(recorder: Recorder, original: Any) -> Any:
    def enter(self: Any) -> Any:
        meeting, section = _followed(self, recorder), None
        if meeting is not None:
            try:
                frame = sys._getframe(1)
                section = _Section((frame.f_code, frame.f_lineno))
                if not _is_loops(current.thread):
                    section.begun = tasks.begin_task()
                section.lying = max(0, meeting.puts - meeting.takes)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        try:
            result = original(self)
        except BaseException as error:
            hide_frame(error)
            raise
        if section is not None and meeting is not None:
            _open[current.thread.tid, meeting.number] = section
        return result

    pass_for(enter, original)
    return enter


def _exit(recorder: Recorder, original: Any) -> Any:
    def leave(self: Any, *args: Any) -> Any:
        if _open and (meeting := queues.channels.get(self)) is not None:
            try:
                section = _open.pop((current.thread.tid, meeting.number), None)
                if section is not None and args and args[0] is None:
                    _ended(meeting, section, recorder, sys._getframe(1))
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        try:
            return original(self, *args)
        except BaseException as error:
            hide_frame(error)
            raise

    pass_for(leave, original)
    return leave


def _notify(original: Any) -> Any:
    def notify(self: Any, n: int = 1) -> None:
        if (section := _section(self)) is not None:
            section.notifies = True
        try:
            original(self, n)
        except BaseException as error:
            hide_frame(error)
            raise

    return notify


def _wait(original: Any) -> Any:
    def wait(self: Any, timeout: float | None = None) -> Any:
        if (section := _section(self)) is not None:
            section.waits = True
            section.next_put = queues.channels.get(self).puts
        try:
            return original(self, timeout)
        except BaseException as error:
            hide_frame(error)
            raise

    pass_for(wait, original)
    return wait


def _wait_for(original: Any) -> Any:
    def wait_for(self: Any, predicate: Any, timeout: float | None = None) -> Any:
        if (section := _section(self)) is not None:
            section.waits = True
        try:
            return original(self, predicate, timeout)
        except BaseException as error:
            hide_frame(error)
            raise

    pass_for(wait_for, original)
    return wait_for


def _section(condition: Any) -> _Section | None:
    if not _open:
        return None
    meeting = queues.channels.get(condition)
    return None if meeting is None else _open.get((current.thread.tid, meeting.number))


def _is_loops(thread: Any) -> bool:
    return queues.is_main(thread.tid) or tasks.trains()


def _ended(meeting: Meeting, section: _Section, recorder: Recorder, frame: FrameType) -> None:
    """Record what a thread has put or taken, which still has the condition."""
    thread = current.thread
    if _is_loops(thread):
        section.taken_ns = monotonic_ns()
        if section.waits:
            meeting.takers.add(section.site)
        if section.site not in meeting.takers:
            early = meeting.early.setdefault(section.site, [])
            if len(early) < _MOST_EARLY:
                early.append(section)
            return
        for each in (*meeting.early.pop(section.site, ()), section):
            taken = each.next_put if each.next_put >= 0 else meeting.takes
            if taken < meeting.puts:
                meeting.takes = taken + 1
                _has_taken(meeting, taken, each.asked_ns, each.taken_ns, each.lying, recorder, frame)
    elif section.notifies:
        _has_put(meeting, section.site, section.begun, frame, recorder)


def _has_put(
    meeting: Meeting, site: Site | None, begun: Begun | None, frame: FrameType, recorder: Recorder
) -> None:
    """Record that this thread has made an item, until `begun`; it begins with the next one now."""
    thread = current.thread
    maker = maker_of(thread, meeting, frame)
    sample_beside(thread, frame, recorder)
    maker.site = maker.site or site
    if begun is None or maker.site != site:  # elsewhere it says that there are no more
        return
    if meeting.puts < _LOOKS or maker.begun is None:
        meeting.places |= places.left_by(frame)
        meeting.reads |= places.read_by(frame, whole=True)
    if maker.begun is not None:
        recorder.spans.append(tasks.span_of(recorder, maker.begun, begun, callers.name_of(frame)))
    row = (MADE_ROW, meeting.number, meeting.puts, thread.tid, maker.since_ns, begun[1], 0)
    recorder.records.append(row)
    meeting.puts += 1
    maker.begun = tasks.begin_task()
    maker.since_ns = maker.begun[1]


def _has_taken(
    meeting: Meeting,
    item: int,
    asked_ns: int,
    taken_ns: int,
    lying: int,
    recorder: Recorder,
    frame: FrameType,
) -> None:
    """Record that the loop has taken an item; within an ask of a source that is part of its making."""
    thread = current.thread
    if not meeting.described:
        tasks.describe(meeting, meeting.name, recorder)
    if not meeting.hands_over and meeting.looks < _LOOKS:
        meeting.looks += 1
        # Who is given data at each turn answers a request, as an evaluation of the weights.
        meeting.is_asked = meeting.is_asked or not meeting.reads.isdisjoint(
            places.left_by(frame, in_loop=True)
        )
        meeting.hands_over = not (meeting.is_asked or meeting.places.isdisjoint(places.read_by(frame)))
    asked_ns = meeting.asked.pop(thread.tid, asked_ns)
    if thread.depth and not meeting.hands_over:
        _has_waited(thread, asked_ns, taken_ns, recorder)
        return
    recorder.append_row((HANDED_ROW, meeting.number, item, thread.tid, asked_ns, taken_ns, lying, -1))
    if thread.depth:
        return
    tasks.deliver(meeting, meeting.name, asked_ns, taken_ns, (meeting.number, item, -1, -1), recorder)
    if meeting.looks == _LOOKS and not meeting.hands_over:
        tasks.note_doubt(meeting, tasks.UNSEEN, recorder)


def _has_waited(thread: Thread, asked_ns: int, taken_ns: int, recorder: Recorder) -> None:
    """Record a wait of this thread for something that is not followed."""
    recorder.append_row((HANDED_ROW, -1, -1, thread.tid, asked_ns, taken_ns, -1, -1))


def _take(recorder: Recorder, original: Any) -> Any:
    """Make ``Event.wait`` or ``Semaphore.acquire``."""
    of_event = original.__name__ == "wait"

    def take(self: Any, *args: Any, **kwargs: Any) -> Any:
        meeting = _followed(self, recorder)
        asked_ns = 0 if meeting is None else monotonic_ns()
        lying = 0 if meeting is None else max(0, meeting.puts - meeting.takes)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        if meeting is not None:
            try:
                if not _is_loops(current.thread):
                    meeting.is_mutual = meeting.is_mutual or not of_event
                elif not result:
                    meeting.asked.setdefault(current.thread.tid, asked_ns)
                elif meeting.permits:
                    meeting.permits -= 1
                elif not meeting.is_mutual:
                    item = meeting.puts - 1 if of_event else meeting.takes
                    if meeting.takes <= item < meeting.puts:
                        meeting.takes = item + 1
                        taken_ns, frame = monotonic_ns(), sys._getframe(1)
                        _has_taken(meeting, item, asked_ns, taken_ns, lying, recorder, frame)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        return result

    pass_for(take, original)
    return take


def _same_as_acquire(take: Any) -> Any:
    """Make ``Semaphore.__enter__``, which is ``acquire``: programs compare the two."""

    def make(original: Any) -> Any:
        replaced = sys.modules["threading"].Semaphore.acquire
        return replaced if getattr(replaced, "__wrapped__", None) is original else take(original)

    return make


def _put(recorder: Recorder, original: Any) -> Any:
    """Make ``Event.set`` or ``Semaphore.release``."""

    def put(self: Any, *args: Any, **kwargs: Any) -> None:
        meeting = _followed(self, recorder)
        if meeting is not None:
            try:
                frame = sys._getframe(1)
                if _is_loops(current.thread):
                    meeting.is_mutual = True  # permits, or turns
                else:
                    site = frame.f_code, frame.f_lineno
                    _has_put(meeting, site, tasks.begin_task(), frame, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, _WHAT)
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return put


def after_fork_in_child() -> None:
    """Forget the parent's threads."""
    _open.clear()
