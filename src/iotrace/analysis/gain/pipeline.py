"""DataLoader as a discrete-event model: what its consumer would wait, given what each batch costs.

Workers take indices from a queue of their own; the consumer sends an index with each batch that it takes.
Batches arrive through one pipe. To receive and unpickle one is work of the consumer, or of the thread that
pins. What computes shares the cores: where more is ready than there are cores, all of it slows down alike.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_CONSUMER, _PIN_THREAD = -1, -2  # who computes, beside the workers from 0 up
_UP, _MADE, _ARRIVED, _SLEPT = range(4)  # what happens at a time that is known ahead


class Epoch(msgspec.Struct, frozen=True):
    """Batches ``[first, behind)`` of one pass over the loader, in ns.

    From the making of its iterator to the first ask the consumer is busy for `setup_ns`; its workers take
    their first index `up_ns` after the making. At the end the consumer takes `shutdown_ns` to end them.
    """

    first: int
    behind: int
    setup_ns: float
    up_ns: float
    shutdown_ns: float = 0.0


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A loader, its consumer and the batches between them; one entry a batch, in ns.

    A batch is made in `blocked_ns`, asleep, and `cpu_ns` of one core. `latency_ns` later it lies in the pipe;
    `service_ns` is what it takes to receive it. The consumer then sleeps for `idle_ns` and computes for
    `compute_ns` on `threads` cores until it asks again. The job's tasks share `cores` with those of other
    programs, which keep `foreign` of them busy.
    """

    workers: int
    prefetch: int
    in_order: bool
    pinned: bool
    cores: float
    foreign: float = 0.0
    threads: float
    blocked_ns: Floats
    cpu_ns: Floats
    latency_ns: Floats
    service_ns: Floats
    idle_ns: Floats
    compute_ns: Floats
    epochs: tuple[Epoch, ...]

    def __len__(self) -> int:
        return len(self.cpu_ns)

    @property
    def busy_ns(self) -> float:
        """The CPU time that all batches take, of workers and consumer."""
        return float((self.cpu_ns + self.service_ns + self.compute_ns * self.threads).sum())


class Replay(msgspec.Struct, frozen=True):
    """When the consumer asked for each batch in turn, and when it had one, in ns."""

    asked_ns: Floats
    delivered_ns: Floats

    @property
    def wait_ns(self) -> Floats:
        """How long each ask took."""
        return self.delivered_ns - self.asked_ns


def replay(pipeline: Pipeline) -> Replay:
    """Run the loader's passes, one after the other."""
    found = Replay(np.zeros(len(pipeline)), np.zeros(len(pipeline)))
    now = 0.0
    for epoch in pipeline.epochs:
        now = _Pass(pipeline, epoch, now, found).end_ns
    return found


class _Pass:
    """One pass, run when it is made: workers, the pipe and the consumer, event by event."""

    def __init__(self, pipeline: Pipeline, epoch: Epoch, start_ns: float, found: Replay) -> None:
        self.pipeline, self.epoch, self.found, self.now = pipeline, epoch, found, start_ns
        own = slice(epoch.first, epoch.behind)
        costs = (pipeline.blocked_ns, pipeline.cpu_ns, pipeline.latency_ns, pipeline.service_ns)
        self.costs = [column[own].tolist() for column in costs]
        self.idle, self.compute = (c[own].tolist() for c in (pipeline.idle_ns, pipeline.compute_ns))
        self.count = epoch.behind - epoch.first
        self.timed: list[tuple[float, int, int, int]] = []  # when, what, who, batch
        self.computing: dict[
            int, list[float]
        ] = {}  # who: what is left at full speed, on how many cores, batch
        self.queues: list[deque[int]] = [deque() for _ in range(pipeline.workers)]
        self.idle_workers: set[int] = set()
        self.pending = [0] * pipeline.workers  # batches sent to each worker and not delivered yet
        self.worker_of = [0] * self.count
        self.sent = self.turn = self.delivered = 0
        self.pipe: deque[int] = deque()  # made, not received
        self.ready: deque[int] = deque()  # pinned
        self.stash: set[int] = set()  # received before its turn
        self.asking = False
        self._begin()
        self.end_ns = self._run() + epoch.shutdown_ns

    def _begin(self) -> None:
        epoch = self.epoch
        for worker in range(self.pipeline.workers):
            heappush(self.timed, (self.now + epoch.up_ns, _UP, worker, 0))
        for _ in range(min(self.count, self.pipeline.workers * self.pipeline.prefetch)):
            self._send()
        heappush(self.timed, (self.now + epoch.setup_ns, _SLEPT, _CONSUMER, -1))

    def _run(self) -> float:
        """Go from event to event until the last batch has been worked through."""
        timed, computing, cores = self.timed, self.computing, self.pipeline.cores
        while timed or computing:
            demand = self.pipeline.foreign
            for task in computing.values():
                demand += task[1]
            rate = cores / demand if demand > cores else 1.0
            who, next_ns = None, timed[0][0] if timed else float("inf")
            for each, task in computing.items():
                done_ns = self.now + task[0] / rate
                if done_ns <= next_ns:
                    who, next_ns = each, done_ns
            passed = (next_ns - self.now) * rate
            for task in computing.values():
                task[0] -= passed
            self.now = next_ns
            if who is None:
                _, what, worker, batch = heappop(timed)
                self._happened(what, worker, batch)
            else:
                self._computed(who, int(computing.pop(who)[2]))
            is_done = self.delivered == self.count and _CONSUMER not in computing
            if is_done and not any(what == _SLEPT for _, what, *_ in timed):
                break
        return self.now

    def _happened(self, what: int, who: int, batch: int) -> None:
        if what == _UP:
            self.idle_workers.add(who)
            self._take(who)
        elif what == _MADE:
            self._work(who, self.costs[1][batch], 1.0, batch)
        elif what == _ARRIVED:
            self.pipe.append(batch)
            self._receive()
        elif batch < 0:
            self._ask()
        else:
            self._work(_CONSUMER, self.compute[batch], self.pipeline.threads, -1)

    def _work(self, who: int, work_ns: float, cores: float, batch: int) -> None:
        self.computing[who] = [work_ns, cores, batch]

    def _computed(self, who: int, batch: int) -> None:
        if who >= 0:
            heappush(self.timed, (self.now + self.costs[2][batch], _ARRIVED, who, batch))
            self.idle_workers.add(who)
            self._take(who)
        elif who == _PIN_THREAD:
            self.ready.append(batch)
            self._receive()
        elif batch < 0:
            if self.delivered < self.count:
                self._ask()
        elif self.pipeline.workers == 0 or batch == self.delivered or not self.pipeline.in_order:
            self._deliver(batch)
        else:
            self.stash.add(batch)
            self._receive()

    def _send(self) -> None:
        """Send the next index to the worker whose turn it is; out of order to the next one with room."""
        workers, most = self.pipeline.workers, self.pipeline.prefetch
        if self.sent >= self.count or not workers:
            return
        for _ in range(workers):
            worker, self.turn = self.turn, (self.turn + 1) % workers
            if self.pipeline.in_order or self.pending[worker] < most:
                break
        self.pending[worker] += 1
        self.worker_of[self.sent] = worker
        self.queues[worker].append(self.sent)
        self.sent += 1
        self._take(worker)

    def _take(self, worker: int) -> None:
        if worker in self.idle_workers and self.queues[worker]:
            self.idle_workers.discard(worker)
            batch = self.queues[worker].popleft()
            heappush(self.timed, (self.now + self.costs[0][batch], _MADE, worker, batch))

    def _ask(self) -> None:
        self.found.asked_ns[self.epoch.first + self.delivered] = self.now
        self.asking = True
        if not self.pipeline.workers:
            heappush(self.timed, (self.now + self.costs[0][self.delivered], _MADE, _CONSUMER, self.delivered))
        elif self.delivered in self.stash:
            self.stash.discard(self.delivered)
            self._deliver(self.delivered)
        else:
            self._receive()

    def _receive(self) -> None:
        """Let who is free take the next batch out of the pipe."""
        if self.pipeline.pinned:
            if self.pipe and _PIN_THREAD not in self.computing:
                batch = self.pipe.popleft()
                self._work(_PIN_THREAD, self.costs[3][batch], 1.0, batch)
            while self.asking and self.ready:
                batch = self.ready.popleft()
                if batch == self.delivered or not self.pipeline.in_order:
                    self._deliver(batch)
                else:
                    self.stash.add(batch)
        elif self.asking and self.pipe and _CONSUMER not in self.computing:
            batch = self.pipe.popleft()
            self._work(_CONSUMER, self.costs[3][batch], 1.0, batch)

    def _deliver(self, batch: int) -> None:
        """Hand over a batch; the consumer works through what follows its n-th delivery, whichever it is."""
        turn = self.delivered
        self.found.delivered_ns[self.epoch.first + turn] = self.now
        self.asking = False
        self.delivered += 1
        if self.pipeline.workers:
            self.pending[self.worker_of[batch]] -= 1
            self._send()
        heappush(self.timed, (self.now + self.idle[turn], _SLEPT, _CONSUMER, turn))
