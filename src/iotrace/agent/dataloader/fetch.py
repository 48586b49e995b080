"""Record what a batch's production consists of: the fetch, each ``__getitem__`` or ``__next__``, the collate.

The fetchers run in the worker, or in the training process with ``num_workers=0``; both are hooked here.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import StandIn, hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.session.names import KIND_COLLATE, KIND_ITEM


class Fetches(_local):
    """This thread's fetches: the samples made so far in the open one, and the last one that ended.

    Fetches nest, as a dataset may iterate a loader of its own.
    """

    samples = 0
    ended: tuple[int, int, int] = (0, 0, 0)  # start_ns, end_ns, samples


latest = Fetches()


def hook_fetchers(module: Any, recorder: Recorder) -> None:
    """Patch the two fetcher classes of ``torch.utils.data._utils.fetch``."""

    def make_fetch(original: Any) -> Any:
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            outer_samples, latest.samples = latest.samples, 0
            start_ns = monotonic_ns()
            try:
                return original(self, possibly_batched_index)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                latest.ended = (start_ns, monotonic_ns(), latest.samples)
                latest.samples = outer_samples

        return fetch

    def made(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        _time_parts(args[0], recorder)

    for fetcher in (module._MapDatasetFetcher, module._IterableDatasetFetcher):
        observe(fetcher, "__init__", recorder, "timing a fetcher", after=made)
        patch(fetcher, "fetch", make_fetch)


def _time_parts(fetcher: Any, recorder: Recorder) -> None:
    dataset = type(fetcher.dataset).__name__
    collate = getattr(fetcher.collate_fn, "__name__", type(fetcher.collate_fn).__name__)
    fetcher.collate_fn = timed(recorder, fetcher.collate_fn, collate, KIND_COLLATE)
    if hasattr(fetcher, "dataset_iter"):
        fetcher.dataset_iter = _TimedIterator(fetcher.dataset_iter, dataset, recorder)
    else:
        fetcher.dataset = _TimedDataset(fetcher.dataset, dataset, recorder)


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
