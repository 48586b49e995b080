"""The loaders of other libraries: where each hands a batch to its loop, and what its user calls it.

A row is an outer source: what it asks of a torch DataLoader meanwhile has records of its own. `bootstrap`
names the modules; none is imported for its row.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from iotrace.agent import training
from iotrace.agent.dataloader.fetch import dataset_name, latest
from iotrace.agent.dataloader.wrapped_source import Pass, Recorded, ask
from iotrace.agent.patching import hide_frame, observe, patch
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import names


class Row(NamedTuple):
    """A loader: a method that returns the iterator of a pass, or ``__next__`` of such iterators."""

    library: str
    method: str  # Class.method, in the module
    # Attributes that lead from the object to what its user calls the data: the first that exists, else the
    # object itself. An item of a list is a number.
    dataset: tuple[str, ...] = ("dataset",)
    loader: str = ""  # of an iterator: what made it; without one the line that iterates stands for the loader
    workers: tuple[str, ...] = ()
    # Class.method that returns the same iterator again for another pass
    restart: str = ""
    inner: str = ""  # what a sweep overrides: the attribute that torch's iterators take for the loader


ROWS: dict[str, tuple[Row, ...]] = {
    "accelerate.data_loader": (
        Row("accelerate", "DataLoaderShard.__iter__"),
        Row("accelerate", "DataLoaderDispatcher.__iter__"),
        Row("accelerate", "SkipDataLoader.__iter__"),
    ),
    "fastai.data.load": (Row("fastai", "DataLoader.__iter__", inner="fake_l"),),
    "monai.data.thread_buffer": (Row("monai", "ThreadDataLoader.__iter__"),),
    "torch_geometric.loader.base": (
        Row(
            "torch_geometric",
            "DataLoaderIterator.__next__",
            dataset=("transform_fn.__self__",),
            loader="transform_fn.__self__",
        ),
    ),
    "torch_geometric.loader.prefetch": (
        Row("torch_geometric", "PrefetchLoader.__iter__", dataset=("loader.dataset", "loader")),
    ),
    "torchdata.nodes.loader": (
        Row("torchdata", "LoaderIterator.__next__", ("root",), "loader", restart="Loader.__iter__"),
    ),
    "webdataset.pipeline": (
        Row("webdataset", "DataPipeline.__iter__", ("pipeline.0.dataset", "pipeline.0")),
    ),
}


def hook_loaders(module: Any, recorder: Recorder, name: str) -> None:
    """Patch the rows of the module called `name`; a row whose class is not there is of another version."""
    for row in ROWS[name]:
        class_name, _, method = row.method.rpartition(".")
        owner = getattr(module, class_name, None) if class_name else module
        if owner is None:
            continue
        if method == "__next__":
            _hook_asks(owner, row, recorder, module)
        else:
            _hook_passes(owner, method, row, recorder)
        if row.inner and os.environ.get(names.OVERRIDE_VARIABLE, ""):
            from iotrace.agent.sweep_override import in_force

            if in_force is not None:
                in_force.hook_iteration(owner, method, row.inner)


def _hook_passes(owner: Any, method: str, row: Row, recorder: Recorder) -> None:
    """Patch a method that returns the iterator of a pass: a stand-in takes the iterator's place."""

    def make(original: Any) -> Any:
        def iterate(*args: Any, **kwargs: Any) -> Any:
            try:
                iterator = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                if latest.depth or recorder.over or training.in_worker():
                    return iterator
                if isinstance(iterator, Recorded) or not hasattr(iterator, "__next__"):
                    return iterator  # of a base class's method, or an iterable that makes one
                return Recorded(iterator, _pass(args[0], iterator, row, recorder))
            except Exception as error:
                recorder.absorb(error, f"recording a loader of {row.library}")
                return iterator

        return iterate

    patch(owner, method, make)


def _hook_asks(owner: Any, row: Row, recorder: Recorder, module: Any) -> None:
    """Patch ``__next__`` of a library's iterators: they stay the objects that they are."""
    passes: WeakKeyDictionary[Any, tuple[Any, Pass]] = WeakKeyDictionary()

    def begin(iterator: Any, original: Any) -> tuple[Any, Pass]:
        loader = _follow(iterator, row.loader) if row.loader else iterator
        recording = _pass(loader, iterator, row, recorder)
        passes[iterator] = found = (recording.timed(original), recording)
        return found

    def make(original: Any) -> Any:
        def __next__(self: Any) -> Any:  # noqa: N807
            found: tuple[Any, Pass] | None = None
            if not (latest.depth or recorder.over or training.in_worker()):
                try:
                    found = passes.get(self)
                    if found is None or found[1].over:
                        found = begin(self, original)
                except Exception as error:
                    recorder.absorb(error, f"recording a loader of {row.library}")
            try:
                return original(self) if found is None else ask(found[0], found[1], self)
            except BaseException as error:
                hide_frame(error)
                raise

        return __next__

    def restarted(_: Any, iterator: Any, *__: Any) -> None:
        passes.pop(iterator, None)

    patch(owner, "__next__", make)
    if row.restart:
        class_name, _, method = row.restart.rpartition(".")
        observe(getattr(module, class_name), method, recorder, f"recording {row.library}", after=restarted)


def _pass(loader: Any, iterator: Any, row: Row, recorder: Recorder) -> Pass:
    named = loader if row.loader == "" else iterator
    found = [each for each in (_follow(named, path) for path in row.dataset) if each is not None]
    workers = [each for each in (_follow(named, path) for path in row.workers) if isinstance(each, int)]
    name = dataset_name(found[0]) if found else type(loader).__name__
    return Pass(loader, iterator, name, recorder, row.library, workers[0] if workers else 0)


def _follow(start: Any, path: str) -> Any:
    """Return what the attributes of `path` lead to; None where there is none."""
    try:
        for step in path.split("."):
            start = start[int(step)] if step.isdigit() else getattr(start, step)
    except (AttributeError, IndexError, KeyError, TypeError):
        return None
    return start
