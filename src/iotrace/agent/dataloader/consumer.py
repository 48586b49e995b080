"""Record the consumer's side of a DataLoader: each batch from index sent to delivered.

The iterator classes are patched, never the user's loader. What is known of an iterator is an attribute of
the iterator itself and dies with it.

Note which line of the program makes each DataLoader, and the library that does it there.

Record the pin-memory thread between workers and consumer: when each batch came in and was pinned.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from iotrace.agent import handovers, training
from iotrace.agent.dataloader import fetch, held
from iotrace.agent.dataloader.cuda_events import CudaEvents
from iotrace.agent.dataloader.iterator_times import hook_ending, hook_making
from iotrace.agent.dataloader.worker import hook_worker_loop
from iotrace.agent.patching import StandIn, WeakTable, hide_frame, observe, patch
from iotrace.agent.recording.borders import find_border
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.torch_profiler import window
from iotrace.session.guard import ours
from iotrace.session.names import BATCH_ROW, EXPOSED_ROW

_sites = WeakTable()  # the lines that make loaders, and the library that does it there
_origins = WeakTable()  # by dataset: the line of the program that made a loader of it; "" of several
_BUILDERS = frozenset(("accelerate", "hydra", "lightning", "pytorch_lightning", "transformers"))
_WRAPPERS = ("__init__", "wrapper")  # a library that watches the program's own calls, as Lightning does
_PASSED_OVER = _BUILDERS | {"contextlib", "functools", "iotrace", "torch"}


def site_of(loader: Any) -> tuple[str | None, str | None]:
    """Return the line that made `loader`, and the library called there; None where they are not known."""
    return _sites.get(loader) or (None, None)


def hook_construction(loader_class: Any, recorder: Recorder) -> None:
    """Note which line makes each loader: those of one line are one loader, made anew for each epoch."""

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        site, builder = _building_site()
        dataset = args[0].__dict__.get("dataset")
        origin = _origins.get(dataset)
        if builder is None:
            _origins.put(dataset, "" if origin not in (None, site) else site)
        elif origin:  # a library makes the program's loader anew
            site, builder = origin, None
        _sites.put(args[0], (site, builder))

    observe(loader_class, "__init__", recorder, "noting where a loader is made", after=made)


def _building_site() -> tuple[str, str | None]:
    """Return the line of the program that makes a loader, as ``file:line``, and the library called there.

    The library is None where the line calls torch.
    """
    frame, builder = sys._getframe(2), None
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in _PASSED_OVER:
            break
        if module in _BUILDERS and frame.f_code.co_name not in _WRAPPERS:
            builder = module
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}", builder


# By the id of the thread's input queue: batch index -> (received_ns, pinned_ns).
_pin_stamps: dict[int, dict[int, tuple[int, int]]] = {}


def stamps_of(queue: Any) -> dict[int, tuple[int, int]]:
    """Return the stamps of the thread that reads `queue`, which may not have begun yet."""
    return _pin_stamps.setdefault(id(queue), {})


def hook_pin_memory_loop(module: Any, recorder: Recorder) -> None:
    """Patch ``_pin_memory_loop`` of ``torch.utils.data._utils.pin_memory``, the thread's target."""

    def starting(args: list[Any], _: dict[str, Any]) -> int:
        queue, stamps = args[0], stamps_of(args[0])
        args[0], args[1] = _PinSource(queue, stamps), _PinTarget(args[1], stamps)
        return id(queue)

    def ended(queue: int | None, *_: Any) -> None:
        if queue is not None:
            _pin_stamps.pop(queue, None)

    observe(
        module, "_pin_memory_loop", recorder, "recording the pin-memory thread", before=starting, ended=ended
    )


class _PinSource(StandIn):
    """Stands for the workers' queue, as the pin-memory thread reads it; its context are the stamps."""

    def get(self, *args: Any, **kwargs: Any) -> Any:
        item = self._of.get(*args, **kwargs)
        if isinstance(item[0], int):
            self._context[item[0]] = (monotonic_ns(), 0)
        return item


class _PinTarget(StandIn):
    """Stands for the queue of pinned batches, as the pin-memory thread fills it; its context as above."""

    def put(self, item: Any, *args: Any, **kwargs: Any) -> Any:
        stamp = self._context.get(item[0]) if isinstance(item[0], int) else None
        if stamp is not None:
            self._context[item[0]] = (stamp[0], monotonic_ns())
        return self._of.put(item, *args, **kwargs)


_STATE = "_iotrace_state"
_RECORDING_LOADER = "recording a loader"

_loaders = WeakTable()


class _Iterator:
    """What is known of one pass over a loader."""

    def __init__(self, iterator: Any, loader: Any, recorder: Recorder) -> None:
        self.number = training.number_iterator(recorder)
        self.recorder = recorder
        self.rewinding = False  # a restored StatefulDataLoader takes what had been delivered before
        self.generation = 0
        self.delivered = 0
        self.last_received = -1
        # By the batch's index, in ns: when it was sent, with its worker; received; received and pinned.
        self.sent: dict[int, tuple[int, int]] = {}
        self.received: dict[int, int] = {}
        self.pinned: dict[int, tuple[int, int]] = {}
        self.next_sent = 0
        self.loader: training.Loader = _loaders.get(loader) or training.Loader()
        _loaders.put(loader, self.loader)
        self.epoch = self.loader.epochs
        self.loader.epochs += 1
        site, builder = site_of(loader)
        self.description = {
            "type": "iterator",
            "iterator": self.number,
            "loader": self.loader.number,
            "dataset": fetch.dataset_name(loader.dataset),
            "iterable": iterator._dataset_kind == 1,
            "workers": iterator._num_workers,
            # A library's own kind of loader may lack these.
            "batch_size": getattr(loader, "batch_size", None),
            "prefetch_factor": getattr(loader, "prefetch_factor", None),
            "persistent_workers": bool(getattr(loader, "persistent_workers", False)),
            "pin_memory": bool(iterator._pin_memory),
            "in_order": getattr(loader, "in_order", None),  # since torch 2.6
            "site": site,
            "builder": builder,
            "fed_by": held.fed_by(loader.dataset),
            "sampler": held.sampler_of(loader),
            "torch_sampler": held.torch_sampler_of(loader),
            "shuffle": held.shuffle_of(loader.dataset) if iterator._dataset_kind == 1 else None,
            "tokenizer": held.tokenizer_of(getattr(loader, "collate_fn", None)),
            **fetch.item_source(loader.dataset, iterator._dataset_kind == 1),
            **fetch.collate_source(getattr(loader, "collate_fn", None)),
        }
        self.record_epoch()

    def record_epoch(self, workers: Sequence[Any] = ()) -> None:
        """Record that an epoch begins; once more when its `workers` have pids."""
        self.recorder.records.append(
            {
                **self.description,
                "epoch": self.epoch,
                "generation": self.generation,
                "pids": [worker.pid for worker in workers],
                "start_method": _start_method(workers),
                "phase": training.current_phase()[0],
                "tid": current.thread.tid,
                "mono_ns": monotonic_ns(),
            }
        )

    def next_epoch(self) -> None:
        """Begin a further epoch of the same iterator (persistent workers): its indices start at 0 again."""
        self.generation += 1
        self.epoch = self.loader.epochs
        self.loader.epochs += 1
        self.delivered = 0
        self.next_sent = 0
        self.sent.clear()
        self.received.clear()

    def deliver(self, iterator: Any, wait_start_ns: int, delivered_ns: int, grad: bool) -> int:
        """Record the batch that ``__next__`` has just returned, and return its index."""
        if not self.delivered:
            handovers.watch()
        phase_id, ahead = -1, 0
        recorder, thread = self.recorder, current.thread
        if training.ask_phase is not None:
            phase, ahead = training.ask_phase()
            phase_id = -1 if phase is None else recorder.text(phase)
        worker = pid = sent_ns = received_ns = pinned_ns = start_ns = end_ns = samples = -1
        if iterator._num_workers:
            # In order, the batch is the one before the next awaited; else the one received last.
            in_order = getattr(iterator, "_in_order", True)
            index = iterator._rcvd_idx - 1 if in_order else self.last_received
            sent_ns, worker = self.sent.pop(index, (-1, -1))
            received_ns = self.received.pop(index, -1)
            if self.pinned:
                received_ns, pinned_ns = self.pinned.pop(index, (received_ns, -1))
            if worker >= 0:
                pid = iterator._workers[worker].pid
        else:
            index = self.delivered
            start_ns, end_ns, samples = thread.ended
            if start_ns < wait_start_ns:
                # A program's own iterator may take the batch from another thread, or from memory.
                start_ns = end_ns = samples = -1
        self.delivered += 1
        recorder.append_row(
            (
                BATCH_ROW,
                self.number,
                self.epoch,
                self.generation,
                index,
                thread.tid,
                wait_start_ns,
                delivered_ns,
                grad,
                training.backward_count,
                phase_id,
                ahead,
                worker,
                pid,
                sent_ns,
                received_ns,
                pinned_ns,
                start_ns,
                end_ns,
                samples,
            )
        )
        if recorder.asleep:
            recorder.wake()
        if window.current is not None and not thread.depth:  # else a source that is asked now is the loop's
            window.current.delivered(self, grad)
        return index

    def end(self, error: BaseException, wait_start_ns: int) -> None:
        """Record that ``__next__`` raised `error` and returned no batch."""
        self.recorder.records.append(training.end_record(self.number, self.epoch, error, wait_start_ns))
        if not current.thread.depth:
            window.epoch_ended(self)


def _start_method(workers: Sequence[Any]) -> str | None:
    """Return ``fork``, ``spawn`` or ``forkserver``, by the workers' class; None without workers."""
    if not workers:
        return None
    method = getattr(workers[0], "_start_method", None)
    if method is None:  # the default context's own class
        import multiprocessing

        method = multiprocessing.get_start_method(allow_none=True)
    return method


def hook_loader(module: Any, recorder: Recorder) -> None:
    """Patch ``torch.utils.data.dataloader`` and the parts of ``_utils`` that it uses."""
    fetch.hook_fetchers(module._utils.fetch, recorder)
    hook_worker_loop(module._utils.worker, recorder)
    hook_pin_memory_loop(module._utils.pin_memory, recorder)
    hook_construction(module.DataLoader, recorder)
    hook_making(module.DataLoader, recorder, lambda iterator: number_of(iterator, recorder))
    _hook_iterator(module._BaseDataLoaderIter, recorder, module.torch.is_grad_enabled)
    hook_multiprocessing(module._MultiProcessingDataLoaderIter, recorder)


def state_of(iterator: Any, recorder: Recorder) -> _Iterator | None:
    """Return what is known of `iterator`; None where it was made before this session."""
    state: _Iterator | None = iterator.__dict__.get(_STATE)
    return state if state is not None and state.recorder is recorder else None


def number_of(iterator: Any, recorder: Recorder) -> int | None:
    """Return the number of `iterator`; None where it was made before this session, or is no DataLoader's."""
    state = state_of(iterator, recorder) if hasattr(iterator, "__dict__") else None
    return None if state is None else state.number


def _hook_iterator(base: Any, recorder: Recorder, is_grad_enabled: Callable[[], bool]) -> None:
    events = CudaEvents(recorder)
    recorder.before_close.append(events.close)

    def made(_: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        loader = args[1] if len(args) > 1 else kwargs["loader"]
        setattr(args[0], _STATE, _Iterator(args[0], loader, recorder))
        recorder.start_loop()

    border = find_border()

    def make_next(original: Any) -> Any:
        def __next__(self: Any) -> Any:  # noqa: N807
            state: _Iterator | None = self.__dict__.get(_STATE)  # `state_of`, without the call
            if state is not None and (state.recorder is not recorder or state.rewinding):
                state = None
            event = events.begin()
            wait_start_ns = border[0] = monotonic_ns()
            try:
                data = original(self)
            except BaseException as error:
                hide_frame(error)
                if state is not None:
                    state.end(error, wait_start_ns)
                raise
            delivered_ns = border[0] = monotonic_ns()
            pair = events.end(event) if event is not None else None
            if state is not None:
                try:
                    index = state.deliver(self, wait_start_ns, delivered_ns, is_grad_enabled())
                    if pair is not None:
                        events.keep(pair, (EXPOSED_ROW, state.number, state.epoch, index))
                except ours(Exception) as error:
                    recorder.absorb(error, "recording a batch")
            return data

        return __next__

    observe(base, "__init__", recorder, _RECORDING_LOADER, after=made)
    patch(base, "__next__", make_next)


def hook_multiprocessing(iterator_class: Any, recorder: Recorder) -> None:
    """Patch a class of iterators with workers: torch's, or a library's that has methods of its own."""

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        iterator = args[0]
        state = state_of(iterator, recorder)
        if state is not None:
            if iterator._pin_memory:  # the thread may have come first, or not yet
                state.pinned = stamps_of(iterator._worker_result_queue)
            state.record_epoch(iterator._workers)

    def resetting(args: list[Any], kwargs: dict[str, Any]) -> None:
        if args[2] if len(args) > 2 else kwargs.get("first_iter", False):
            return
        iterator, loader = args[0], args[1] if len(args) > 1 else kwargs["loader"]
        state = state_of(iterator, recorder)
        if state is None:  # persistent workers of before the session
            state = _Iterator(iterator, loader, recorder)
            setattr(iterator, _STATE, state)
            recorder.start()
        else:
            state.next_epoch()
        state.record_epoch(iterator._workers)

    def asked_to_send(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        iterator = args[0]
        state: _Iterator | None = iterator.__dict__.get(_STATE)  # not by state_of: each batch pays for a call
        if state is None or state.recorder is not recorder:
            return
        sent = iterator._send_idx
        if sent != state.next_sent:  # else no index is left, or no worker takes one
            state.next_sent = sent
            state.sent[sent - 1] = (monotonic_ns(), iterator._task_info[sent - 1][0])

    def looked_for_data(_: Any, result: Any, args: Sequence[Any], __: dict[str, Any]) -> None:
        state: _Iterator | None = args[0].__dict__.get(_STATE)
        if result[0] and state is not None and state.recorder is recorder:
            index = result[1][0]
            if isinstance(index, int):
                state.received[index] = monotonic_ns()
                state.last_received = index

    observe(iterator_class, "__init__", recorder, _RECORDING_LOADER, after=made)
    observe(iterator_class, "_reset", recorder, _RECORDING_LOADER, before=resetting)
    hook_ending(iterator_class, recorder, lambda iterator: number_of(iterator, recorder))
    observe(iterator_class, "_try_put_index", recorder, "recording an index", after=asked_to_send)
    observe(iterator_class, "_try_get_data", recorder, "recording a batch", after=looked_for_data)
