"""Record what a batch's production consists of: the fetch, each ``__getitem__`` or ``__next__``, the collate.

The fetchers run in the worker, or in the training process with ``num_workers=0``; both are hooked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import StandIn, hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.agent.unpatched import _local
from iotrace.session.guard import ours
from iotrace.session.names import KIND_COLLATE, KIND_ITEM

_PARTS = "_iotrace_parts"
_MOST_WRAPPERS = 4


class Fetches(_local):
    """This thread's fetches: the samples made so far in the open one, and the last one that ended.

    Fetches nest, as a dataset may iterate a loader of its own. `depth` counts what is open on this thread:
    fetches, fetchers in the making, asks of sources that are no DataLoader. What is asked for within one is
    production.
    """

    samples = 0
    depth = 0
    # start_ns, end_ns, samples; -1 where the dataset makes batches itself (``batch_size=None``)
    ended: tuple[int, int, int] = (0, 0, 0)


latest = Fetches()
state_is_asked_for = False  # StatefulDataLoader is imported


def hook_fetchers(module: Any, recorder: Recorder) -> None:
    """Patch the two fetcher classes of ``torch.utils.data._utils.fetch``."""

    def make_fetch(original: Any) -> Any:
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            own, held = latest, self.__dict__
            parts: _Parts | None = held.get(_PARTS)
            part = parts.swap_in(held) if parts is not None else None
            start_ns = monotonic_ns()
            outer_samples, own.samples = own.samples, 0
            own.depth += 1
            try:
                return original(self, possibly_batched_index)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                # First what needs no call: a signal handler of the program may raise at each.
                samples, own.samples = own.samples, outer_samples
                own.depth -= 1
                if parts is not None:
                    held[parts.name] = part
                own.ended = (start_ns, monotonic_ns(), samples if self.auto_collation else -1)

        return fetch

    def making(*_: Any) -> None:
        latest.depth += 1

    def ended(*_: Any) -> None:
        latest.depth -= 1

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        fetcher = args[0]
        collate = getattr(fetcher.collate_fn, "__name__", type(fetcher.collate_fn).__name__)
        fetcher.collate_fn = timed(recorder, fetcher.collate_fn, collate, KIND_COLLATE)
        parts = _Parts(fetcher, recorder)
        if state_is_asked_for:
            setattr(fetcher, _PARTS, parts)
        else:
            parts.swap_in(fetcher.__dict__)

    for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        observe(fetcher, "__init__", recorder, "timing a fetcher", before=making, ended=ended, after=made)
        patch(fetcher, "fetch", make_fetch)


class _Parts:
    """What a fetcher takes samples from: its iterator, or its dataset. A timed stand-in takes its place.

    Where StatefulDataLoader may ask the fetcher's own part for its state, it does so in a fetch alone.
    """

    def __init__(self, fetcher: Any, recorder: Recorder) -> None:
        self.name = "dataset_iter" if hasattr(fetcher, "dataset_iter") else "dataset"
        self._dataset = dataset_name(fetcher.dataset)
        self._recorder = recorder
        self._part: Any = None
        self._timed: _TimedDataset | _TimedIterator | None = None

    def swap_in(self, held: dict[str, Any]) -> Any:
        """Put the stand-in into a fetcher that holds `held`; return what was there."""
        part = held[self.name]
        if part is not self._part:
            if isinstance(part, _TimedDataset | _TimedIterator):
                return part  # another thread is in a fetch
            make = _TimedIterator if self.name == "dataset_iter" else _TimedDataset
            self._part, self._timed = part, make(part, self._dataset, self._recorder)
        held[self.name] = self._timed
        return part


def dataset_name(dataset: Any) -> str:
    """Return the class name of what the user knows as the dataset; fastai passes one of its own instead."""
    kind = type(dataset)
    if kind.__module__ == "fastai.data.load":
        kind = type(getattr(getattr(dataset, "d", dataset), "dataset", dataset))
    return kind.__name__


def item_source(dataset: Any, iterable: bool) -> dict[str, str]:
    """Return the function that makes a dataset's items, and its ``file:line``; as far as they are known.

    Where torch's own class holds another dataset (``Subset``), the function is that one's.
    """
    try:
        for _ in range(_MOST_WRAPPERS):
            inner = getattr(dataset, "__dict__", {}).get("dataset")
            if inner is None or not type(dataset).__module__.startswith("torch."):
                break
            dataset = inner
        kind = type(dataset)
        many = hasattr(kind, "__getitems__")
        name = "__iter__" if iterable else "__getitems__" if many else "__getitem__"
        found = {"item": f"{kind.__name__}.{name}"}
        function = getattr(kind, name)
        for _ in range(_MOST_WRAPPERS):  # of decorators: iotrace.region is one
            function = getattr(function, "__wrapped__", function)
        code = getattr(function, "__code__", None)
        if code is not None and "/site-packages/" not in code.co_filename:
            found["item_site"] = f"{code.co_filename}:{code.co_firstlineno}"
        return found
    except ours(Exception):  # a class of the program may do anything
        return {}


class _TimedDataset(StandIn):
    """Stands between the fetcher and the dataset; the dataset and its class stay untouched."""

    def __init__(self, dataset: Any, name: str, recorder: Recorder) -> None:
        super().__init__(dataset)
        self._get = timed(recorder, dataset.__getitem__, f"{name}.__getitem__", KIND_ITEM)
        many = getattr(dataset, "__getitems__", None)
        if many:  # the fetcher asks whether it is there
            timed_many = timed(recorder, many, f"{name}.__getitems__", KIND_ITEM)

            def getitems(indices: Sequence[Any]) -> Any:
                latest.samples += len(indices)
                return timed_many(indices)

            self.__getitems__ = getitems

    def __getitem__(self, index: Any) -> Any:
        latest.samples += 1
        try:
            return self._get(index)
        except BaseException as error:
            hide_frame(error)
            raise


class _TimedIterator(StandIn):
    """Stands between the fetcher and an IterableDataset's iterator."""

    def __init__(self, iterator: Any, name: str, recorder: Recorder) -> None:
        super().__init__(iterator)
        self._next: Callable[[], Any] = timed(recorder, iterator.__next__, f"{name}.__next__", KIND_ITEM)

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        try:
            item = self._next()
        except BaseException as error:
            hide_frame(error)
            raise
        latest.samples += 1
        return item
