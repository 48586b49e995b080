"""Record the asks of other libraries' loaders, by the rows of `table`.

The loaders of other libraries: which method returns the iterator of a pass, and what its user calls it.

A row is an outer source: what it asks of a torch DataLoader meanwhile has records of its own. `bootstrap`
names the modules; none is imported for its row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from iotrace.agent import training
from iotrace.agent.dataloader.fetch import dataset_name
from iotrace.agent.dataloader.wrapped_source import Pass, Recorded, ask
from iotrace.agent.patching import WeakTable, hide_frame, patch
from iotrace.agent.pools.callers import PROGRAMS, whose_file
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours


class Row(NamedTuple):
    """A method that returns an iterator. A row whose method is not there is of another version."""

    library: str
    method: str  # Class.method, in the module
    # Attributes that lead from the object to what its user calls the data: the first that exists, else the
    # object itself. An item of a list is a number; ``name*`` is followed as often as there is one.
    dataset: tuple[str, ...] = ("dataset",)
    workers: str = ""  # likewise to how many processes or threads make its batches
    # What a sweep overrides, where torch's own methods do not show it: the object itself (``self``), or the
    # attribute that torch's iterators take for the loader.
    sweep: str = ""
    own: bool = True  # whether an iteration that the library itself begins counts
    name: str = ""  # what its user calls it, where no object says that
    rows: bool = False  # its items are rows, of which a step takes any number


# Of grain's kinds of datasets, which it defines one by one.
GRAIN_DATASET = Row("grain", "IterDataset.__iter__", ("_parent*._source",))
_FABRIC = (Row("lightning", "_FabricDataLoader.__iter__"),)  # of Fabric.setup_dataloaders

ROWS: dict[str, tuple[Row, ...]] = {
    "accelerate.data_loader": (
        Row("accelerate", "DataLoaderShard.__iter__"),
        Row("accelerate", "DataLoaderDispatcher.__iter__"),
        Row("accelerate", "SkipDataLoader.__iter__"),
    ),
    "datasets.arrow_dataset": (
        Row("datasets", "Dataset.iter", (), own=False),
        Row("datasets", "Dataset.__iter__", (), own=False, rows=True),
    ),
    "datasets.iterable_dataset": (
        Row("datasets", "IterableDataset.iter", (), own=False),
        Row("datasets", "IterableDataset.__iter__", (), own=False, rows=True),
    ),
    "fastai.data.load": (Row("fastai", "DataLoader.__iter__", sweep="fake_l"),),
    "grain._src.python.data_loader": (
        Row("grain", "DataLoader.__iter__", ("_data_source",), "_multiprocessing_options.num_workers"),
    ),
    "keras.src.backend.jax.trainer": (
        Row(
            "keras",
            "JAXEpochIterator._get_iterator",
            ("data_adapter.py_dataset", "data_adapter.generator", "data_adapter"),
            "data_adapter.enqueuer.workers",
        ),
    ),
    "lightning.fabric.wrappers": _FABRIC,
    "lightning_fabric.wrappers": _FABRIC,
    "monai.data.thread_buffer": (Row("monai", "ThreadDataLoader.__iter__"),),
    "nvidia.dali.plugin.base_iterator": (Row("dali", "_DaliBaseIterator.__iter__", ()),),
    "ray.data.iterator": (Row("ray", "_IterableFromIterator.__iter__", (), name="Dataset"),),
    "spdl.dataloader._cache_dataloader": (Row("spdl", "CacheDataLoader.__iter__", ("dl",)),),
    "spdl.dataloader._dataloader": (Row("spdl", "DataLoader.__iter__", ("_src",), "_num_threads"),),
    "spdl.dataloader._pytorch_dataloader": (Row("spdl", "PyTorchDataLoader.__iter__"),),
    "spdl.pipeline._pipeline": (Row("spdl", "Pipeline.get_iterator", ()),),
    "spdl.pipeline._iter_utils._subprocess": (
        Row("spdl", "_SubprocessIterable.__iter__", (), name="Pipeline"),
    ),
    "streaming.base.dataset": (Row("streaming", "StreamingDataset.__iter__", (), own=False, rows=True),),
    "tensorflow.python.data.ops.dataset_ops": (
        Row("tensorflow", "DatasetV2.__iter__", ()),
        Row("tensorflow", "DatasetV2.as_numpy_iterator", ()),
    ),
    "torch_geometric.loader.link_loader": (Row("torch_geometric", "LinkLoader._get_iterator", ()),),
    "torch_geometric.loader.node_loader": (Row("torch_geometric", "NodeLoader._get_iterator", ()),),
    "torch_geometric.loader.prefetch": (
        Row("torch_geometric", "PrefetchLoader.__iter__", ("loader.dataset", "loader")),
    ),
    "torch_geometric.loader.zip_loader": (Row("torch_geometric", "ZipLoader._get_iterator", ()),),
    "torchdata.nodes.loader": (Row("torchdata", "Loader.__iter__", ("root",)),),
    "ultralytics.data.build": (Row("ultralytics", "InfiniteDataLoader.__iter__", sweep="self"),),
    "webdataset.pipeline": (Row("webdataset", "DataPipeline.__iter__", ("pipeline.0.dataset",)),),
}


_HEAP_TYPE = 1 << 9  # a class made by a `class` statement, which may be patched

# Iterators of Python classes that a loop was given, with their loaders and rows; the pass begins with the
# first ask.
_given = WeakTable()


def hook_loaders(module: Any, recorder: Recorder, name: str) -> None:
    """Patch the rows of the module called `name`."""
    for row in ROWS[name]:
        class_name, _, method = row.method.rpartition(".")
        owner = getattr(module, class_name, None)
        if owner is None:
            continue
        patch(owner, method, _passes_recorded(row, recorder))
        override = training.override
        if row.sweep and override is not None:
            override.hook_iteration(owner, method, "" if row.sweep == "self" else row.sweep)


def hook_grain(module: Any, recorder: Recorder) -> None:
    """Patch grain's datasets, of which each kind has an ``__iter__`` of its own.

    `module` is ``grain._src.python.dataset.dataset``: it defines kinds, and meets those that others define.
    """

    recorded = _passes_recorded(GRAIN_DATASET, recorder)

    def hook_kinds(kind: Any) -> None:
        for each in kind.__subclasses__():
            if "__iter__" in vars(each):
                patch(each, "__iter__", recorded)
            hook_kinds(each)

    def make(original: Any) -> Any:
        def output_dataset_injector(iterate: Any) -> Any:  # grain calls it for each new kind
            return recorded(original(iterate))

        return output_dataset_injector

    hook_kinds(module.IterDataset)
    patch(module, "output_dataset_injector", make)


def _passes_recorded(row: Row, recorder: Recorder) -> Callable[[Any], Any]:
    """Return what wraps a method that returns the iterator of a pass, so that passes are recorded."""

    def make(original: Any) -> Any:
        def iterate(*args: Any, **kwargs: Any) -> Any:
            current.thread.depth += 1
            try:
                iterator = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                current.thread.depth -= 1
            if current.thread.depth or recorder.over:
                return iterator
            try:
                if not row.own and _package(sys._getframe(1)) == row.library:
                    return iterator
                return _record(args[0], iterator, row, recorder)
            except ours(Exception) as error:
                recorder.absorb(error, f"recording a loader of {row.library}")
                return iterator

        return iterate

    return make


def _package(frame: Any) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _record(loader: Any, iterator: Any, row: Row, recorder: Recorder) -> Any:
    """Have the asks of `iterator` recorded; it stays the object that it is, unless that is a generator."""
    if not hasattr(iterator, "__next__") or isinstance(iterator, Recorded) or _in_worker(recorder):
        return iterator
    kind = type(iterator)
    if not kind.__flags__ & _HEAP_TYPE:  # a generator, or a class in C
        return Recorded(iterator, _pass(loader, iterator, row, recorder))
    if kind.__module__ != "torch.utils.data.dataloader":  # else it has records of its own
        _given.put(iterator, (loader, row, None))
        _hook_asks(kind, recorder)
    return iterator


def _in_worker(recorder: Recorder) -> bool:
    """Return whether this process loads for another one, which multiprocessing made.

    That is a daemon, or one in which only a library's code iterates. The first time it is recorded as a
    worker, so that readers know it for no rank.
    """
    if training.in_worker():
        return True
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    if not process.current_process().daemon and _of_program(sys._getframe(1)):
        return False
    from iotrace.agent.dataloader.worker import enter_daemon

    enter_daemon(recorder)
    return True


def _of_program(frame: Any) -> bool:
    """Whether code of the program is on the stack of this process."""
    while frame is not None and frame.f_code.co_name != "_bootstrap":  # below it is what a fork left
        if whose_file(frame.f_code.co_filename) == PROGRAMS:
            return True
        frame = frame.f_back
    return False


def _hook_asks(kind: Any, recorder: Recorder) -> None:
    """Patch ``__next__`` of a library's iterators: only those that a loop was given are recorded."""

    def make(original: Any) -> Any:
        def begin(iterator: Any, loader: Any, row: Row) -> Pass:
            begun = _pass(loader, iterator, row, recorder)
            begun.take = begun.timed(original)
            _given.put(iterator, (loader, row, begun))
            return begun

        def __next__(self: Any) -> Any:  # noqa: N807
            given = None if current.thread.depth or recorder.over else _given.get(self)
            begun = None
            if given is not None:
                try:
                    begun = given[2]
                    if begun is None or begun.over:
                        begun = begin(self, given[0], given[1])
                except ours(Exception) as error:
                    recorder.absorb(error, f"recording a loader of {given[1].library}")
            try:
                return original(self) if begun is None else ask(begun.take, begun, self)
            except BaseException as error:
                hide_frame(error)
                raise

        return __next__

    patch(kind, "__next__", make)


def _pass(loader: Any, iterator: Any, row: Row, recorder: Recorder) -> Pass:
    found = [each for each in (_follow(loader, path) for path in row.dataset) if each is not None]
    workers = _follow(loader, row.workers) if row.workers else 0
    name = row.name or dataset_name(found[0] if found else loader)
    count = workers if isinstance(workers, int) else 0
    return Pass(loader, iterator, name, recorder, row.library, count, rows=row.rows)


def _follow(start: Any, path: str) -> Any:
    """Return what the attributes of `path` lead to; None where there is none."""
    try:
        for step in path.split("."):
            if step.endswith("*"):
                start = _last(start, step[:-1])
            else:
                start = start[int(step)] if step.isdigit() else getattr(start, step)
    except ours(AttributeError, IndexError, KeyError, TypeError):
        return None
    return start


def _last(start: Any, attribute: str) -> Any:
    """Follow `attribute` as often as there is one."""
    try:
        while True:
            start = getattr(start, attribute)
    except ours(AttributeError, AssertionError):  # grain asserts that there is one
        return start
