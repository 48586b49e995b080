"""Record what a batch's production consists of: the fetch, each ``__getitem__`` or ``__next__``, the collate.

The fetchers run in the worker, or in the training process with ``num_workers=0``; both are hooked here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from iotrace.agent.dataloader.contents import Padding
from iotrace.agent.patching import StandIn, hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import KIND_COLLATE, KIND_ITEM

_PARTS = "_iotrace_parts"
_MOST_WRAPPERS = 4

state_is_asked_for = False  # StatefulDataLoader is imported


def hook_fetchers(module: Any, recorder: Recorder) -> None:
    """Patch the two fetcher classes of ``torch.utils.data._utils.fetch``."""

    def make_fetch(original: Any) -> Any:
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            thread = current.thread
            parts: _Parts | None = self.__dict__.get(_PARTS) if state_is_asked_for else None
            part = parts.swap_in(self.__dict__) if parts is not None else None
            start_ns = monotonic_ns()
            outer_samples, thread.samples = thread.samples, 0
            thread.depth += 1
            try:
                return original(self, possibly_batched_index)
            except BaseException as error:
                sample = _failed_sample(self, possibly_batched_index, thread.samples)
                recorder.failures.of_fetch = id(error), sample
                hide_frame(error)
                raise
            finally:
                # First what needs no call: a signal handler of the program may raise at each.
                samples, thread.samples = thread.samples, outer_samples
                thread.depth -= 1
                if parts is not None:
                    self.__dict__[parts.name] = part
                thread.ended = (start_ns, monotonic_ns(), samples if self.auto_collation else -1)

        return fetch

    def making(*_: Any) -> None:
        current.thread.depth += 1

    def ended(*_: Any) -> None:
        current.thread.depth -= 1

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        fetcher = args[0]
        collate = getattr(fetcher.collate_fn, "__name__", type(fetcher.collate_fn).__name__)
        function = fetcher.collate_fn
        # torch's own functions pad nothing, nor does a class such as `list`.
        plain = isinstance(function, type) or str(getattr(function, "__module__", "")).startswith(
            "torch.utils.data"
        )
        note = None if plain else Padding(recorder).note
        fetcher.collate_fn = timed(recorder, function, collate, KIND_COLLATE, note)
        parts = _Parts(fetcher, recorder)
        if state_is_asked_for:
            setattr(fetcher, _PARTS, parts)
        else:
            parts.swap_in(fetcher.__dict__)

    for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        observe(fetcher, "__init__", recorder, "timing a fetcher", before=making, ended=ended, after=made)
        patch(fetcher, "fetch", make_fetch)


def _failed_sample(fetcher: Any, index: Any, made: int) -> int | None:
    """Return the index with which the dataset was asked when it raised; None where that is not known."""
    try:
        if fetcher.auto_collation:
            if getattr(fetcher.dataset, "__getitems__", None):
                return None  # it makes all of them in one call
            index = index[made] if made < len(index) else None  # else collating them raised
        return index if type(index) is int else None
    except ours(Exception):  # a sampler may yield anything
        return None


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
    """Return the function that makes a dataset's items, and its ``file:line`` or library; as far as known.

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
        library, site = _origin(getattr(kind, name))
        found |= {"item_library": library} if library else {"item_site": site} if site else {}
        return found
    except ours(Exception):  # a class of the program may do anything
        return {}


def collate_source(collate: Any) -> dict[str, str]:
    """Return the function that puts samples together, with its ``file:line``; of a library that one alone."""
    try:
        for _ in range(_MOST_WRAPPERS):
            collate = getattr(collate, "func", collate)  # of functools.partial
        name = getattr(collate, "__qualname__", None)
        if name is None:  # an object that is called
            name, collate = f"{type(collate).__name__}.__call__", type(collate).__call__
        library, site = _origin(collate)
        if library and library != "torch":
            return {"collate_library": library}
        return {"collate": name.rpartition("<locals>.")[2], "collate_site": site} if site else {}
    except ours(Exception):
        return {}


def _origin(function: Any) -> tuple[str, str]:
    """Return the library that a function is of, or its ``file:line`` in the program; empty where unknown."""
    for _ in range(_MOST_WRAPPERS):  # of decorators: iotrace.region is one
        function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return "", ""
    if "/site-packages/" in code.co_filename:
        return function.__module__.partition(".")[0], ""
    return "", f"{code.co_filename}:{code.co_firstlineno}"


class _TimedDataset(StandIn):
    """Stands between the fetcher and the dataset; the dataset and its class stay untouched."""

    # The timed function itself, which the interpreter calls without a function of ours around it.
    __slots__ = ("__getitem__",)

    def __init__(self, dataset: Any, name: str, recorder: Recorder) -> None:
        super().__init__(dataset)
        self.__getitem__ = timed(recorder, dataset.__getitem__, f"{name}.__getitem__", KIND_ITEM, samples=1)
        many = getattr(dataset, "__getitems__", None)
        # The fetcher asks whether it is there, and is true: an error within `StandIn` would cost more.
        self.__getitems__ = many and _many(timed(recorder, many, f"{name}.__getitems__", KIND_ITEM))


def _many(timed_many: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    def getitems(indices: Sequence[Any]) -> Any:
        current.thread.samples += len(indices)
        try:
            return timed_many(indices)
        except BaseException as error:
            hide_frame(error)
            raise

    return getitems


class _TimedIterator(StandIn):
    """Stands between the fetcher and an IterableDataset's iterator."""

    __slots__ = ("__next__",)

    def __init__(self, iterator: Any, name: str, recorder: Recorder) -> None:
        super().__init__(iterator)
        self.__next__ = timed(recorder, iterator.__next__, f"{name}.__next__", KIND_ITEM, samples=1)

    def __iter__(self) -> _TimedIterator:
        return self
