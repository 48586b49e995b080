"""Join the consumer's and the workers' records of each batch into loaders, deliveries and steps."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

import msgspec
from msgspec.structs import replace

from iotrace.analysis.loop.deliveries import PHASES, Delivery, LoaderRun, Step
from iotrace.sources.processes import Process
from iotrace.sources.records import BatchRecord, Exposed, IteratorEnd, IteratorStart, Produced, WorkerUp
from iotrace.sources.session import Rank

_NO_STEPS_OF_THEIRS = frozenset({"evaluation", *PHASES.values()} - {"training"})

_Pass = tuple[int, int]  # iterator and epoch


class _Draft(msgspec.Struct):
    """A delivery of which records that follow say more; `number` is its index in its loader.

    Its step is ``[step_start_ns, step_end_ns)`` and awaits the delivery `awaited`. It starts with its own
    delivery; later where Lightning takes batches in advance, None where it was taken so and never worked
    on. It ends with the next delivery, the end of the epoch or the beginning of a validation; None where the
    loop was left.
    """

    number: int
    record: BatchRecord
    wrapped: bool
    step_start_ns: int | None
    step_end_ns: int | None = None
    awaited: _Draft | None = None
    followed_by_backward: bool = False

    @property
    def of_pass(self) -> _Pass:
        return self.record.iterator, self.record.epoch


class _LoaderDraft(msgspec.Struct):
    """A loader while its records are read; `asked_ns` are the times at which it was asked for something."""

    number: int
    description: IteratorStart
    drafts: list[_Draft] = []
    failures: list[str] = []
    passes: set[_Pass] = set()
    asked_ns: list[int] = []


def loaders_of(rank: Rank) -> list[LoaderRun]:
    """Read the rank's loaders in the order they were first iterated, with their steps."""
    records = _Records(rank.main)
    produced = _productions(rank.workers)
    exposed = {
        (record.iterator, record.epoch, record.index): record.exposed_ns
        for record in rank.main.of_type(Exposed)
    }
    found = []
    for draft in records.loaders.values():
        deliveries = [_delivery(draft, each, rank.main, produced, exposed) for each in draft.drafts]
        run = LoaderRun(draft.number, draft.description, deliveries, [], draft.failures, len(draft.passes))
        found.append((run, draft))
    records.shift_steps_taken_ahead()
    _end_steps_at_validation(found)
    return [replace(run, steps=_steps(run, draft)) for run, draft in found]


def _steps(run: LoaderRun, loader: _LoaderDraft) -> list[Step]:
    """List the closed steps, in order; a step whose loop was left has no end and is none."""
    return [
        Step(
            run.deliveries[draft.number],
            draft.step_start_ns,
            draft.step_end_ns,
            () if draft.awaited is None else (run.deliveries[draft.awaited.number],),
        )
        for draft in loader.drafts
        if draft.step_start_ns is not None and draft.step_end_ns is not None
    ]


class _Records:
    """The loaders of a consumer, from its records in their order."""

    def __init__(self, main: Process) -> None:
        self.loaders: dict[int, _LoaderDraft] = {}
        self._clock = main.clock
        self._starts: dict[int, IteratorStart] = {}
        self._last: dict[_Pass, _Draft] = {}
        self._ahead: dict[_Pass, int] = {}
        self._exhausted_ns: dict[_Pass, int] = {}
        for record in main.records:
            if isinstance(record, IteratorStart):
                self._start(record)
            elif isinstance(record, BatchRecord) and record.iterator in self._starts:
                self._batch(record)
            elif isinstance(record, IteratorEnd) and record.iterator in self._starts:
                self._end(record)

    def _loader(self, iterator: int) -> _LoaderDraft:
        return self.loaders[self._starts[iterator].loader]

    def _start(self, record: IteratorStart) -> None:
        self._starts[record.iterator] = record
        loader = self.loaders.setdefault(record.loader, _LoaderDraft(record.loader, record))
        # An epoch's number counts from the program's start, which may be before the session's.
        loader.passes.add((record.iterator, record.epoch))
        loader.description = record
        loader.asked_ns.append(self._clock.to_session_ns(record.mono_ns))

    def _batch(self, record: BatchRecord) -> None:
        loader = self._loader(record.iterator)
        delivered_ns = self._clock.to_session_ns(record.delivered_ns)
        draft = _Draft(len(loader.drafts), record, self._starts[record.iterator].wrapped, delivered_ns)
        loader.drafts.append(draft)
        loader.asked_ns.append(self._clock.to_session_ns(record.wait_start_ns))
        self._ahead[draft.of_pass] = record.ahead
        before = self._last.get(draft.of_pass)
        if before is not None:
            before.step_end_ns, before.awaited = delivered_ns, draft
            before.followed_by_backward = record.backward_count > before.record.backward_count
        self._last[draft.of_pass] = draft

    def _end(self, record: IteratorEnd) -> None:
        of_pass = record.iterator, record.epoch
        last = self._last.get(of_pass)
        if last is not None:
            last.followed_by_backward = record.backward_count > last.record.backward_count
            if record.outcome == "exhausted" and last.step_end_ns is None:
                # The last call shuts the workers down; that belongs to no step.
                last.step_end_ns = self._clock.to_session_ns(record.wait_start_ns)
        if record.outcome == "exhausted":
            self._exhausted_ns[of_pass] = self._clock.to_session_ns(record.mono_ns)
        else:
            self._loader(record.iterator).failures.append(record.outcome)

    def shift_steps_taken_ahead(self) -> None:
        """Let each batch of a pass open the step that the batch `ahead` positions later was taken for.

        Lightning's loop works on a batch when it has taken the following ones. The last ones' steps begin
        when the loader has said that there is no more.
        """
        for loader in self.loaders.values():
            by_pass: dict[_Pass, list[_Draft]] = defaultdict(list)
            for draft in loader.drafts:
                by_pass[draft.of_pass].append(draft)
            for of_pass, drafts in by_pass.items():
                if self._ahead[of_pass] > 0:
                    _shift(drafts, self._ahead[of_pass], self._exhausted_ns.get(of_pass))


def _shift(drafts: list[_Draft], ahead: int, exhausted_ns: int | None) -> None:
    steps = [(draft.step_start_ns, draft.step_end_ns, draft.awaited) for draft in drafts[ahead:]]
    steps.append((exhausted_ns, None, None))
    for number, draft in enumerate(drafts):
        step = steps[number] if number < len(steps) else (None, None, None)
        draft.step_start_ns, draft.step_end_ns, draft.awaited = step


def _end_steps_at_validation(loaders: list[tuple[LoaderRun, _LoaderDraft]]) -> None:
    """End a training step where a loader of no training is first asked: what follows is no part of it.

    Lightning leaves an epoch without asking for the batch that is not there: its last step ends so, too.
    """
    with_steps = [loader for run, loader in loaders if run.kind not in _NO_STEPS_OF_THEIRS]
    asked = sorted(
        time_ns for run, loader in loaders if run.kind in _NO_STEPS_OF_THEIRS for time_ns in loader.asked_ns
    )
    for loader in with_steps:
        for number, draft in enumerate(loader.drafts):
            if draft.step_start_ns is None:
                continue
            found = bisect_right(asked, draft.step_start_ns)
            if found == len(asked):
                break
            end_ns = draft.step_end_ns
            if end_ns is None:
                if draft.record.phase is None:
                    continue  # a loop that was left: nobody knows when
                later = (item.step_start_ns for item in loader.drafts[number + 1 :])
                end_ns = next((start_ns for start_ns in later if start_ns is not None), None)
            if end_ns is None or asked[found] < end_ns:
                draft.step_end_ns, draft.awaited = asked[found], None


# By a worker's pid, the loader's generation and the batch's index: when the worker first asked for work,
# took the index, and had prepared the batch, in ns; how many samples it holds.
_Productions = dict[tuple[int, int, int], tuple[int | None, int, int, int | None]]


def _productions(workers: list[Process]) -> _Productions:
    """Every batch as its worker recorded it."""
    found: _Productions = {}
    for process in workers:
        real = process.clock.to_session_ns
        up_ns = next((real(up.mono_ns) for up in process.of_type(WorkerUp)), None)
        for record in process.of_type(Produced):
            made = up_ns, real(record.taken_ns), real(record.prepared_ns), record.samples
            found[process.pid, record.generation, record.index] = made
    return found


def _delivery(
    loader: _LoaderDraft,
    draft: _Draft,
    main: Process,
    produced: _Productions,
    exposed: dict[tuple[int, int, int], int],
) -> Delivery:
    record, real = draft.record, main.clock.to_session_ns
    wait_start_ns, samples = real(record.wait_start_ns), record.samples
    up_ns = taken_ns = prepared_ns = None
    if record.worker is None and record.fetch_end_ns:
        taken_ns, prepared_ns = wait_start_ns, real(record.fetch_end_ns)
    if record.pid is not None:
        made = produced.get((record.pid, record.generation, record.index))
        if made is not None:
            up_ns, taken_ns, prepared_ns, samples = made
    return Delivery(
        loader=loader.number,
        number=draft.number,
        iterator=record.iterator,
        epoch=record.epoch,
        index=record.index,
        wait_start_ns=wait_start_ns,
        delivered_ns=real(record.delivered_ns),
        grad=record.grad,
        followed_by_backward=draft.followed_by_backward,
        phase=record.phase,
        worker=record.worker,
        pid=record.pid,
        up_ns=up_ns,
        taken_ns=taken_ns,
        prepared_ns=prepared_ns,
        samples=samples,
        exposed_ns=exposed.get((record.iterator, record.epoch, record.index)),
        inline_tid=record.tid if draft.wrapped else None,
    )
