"""Find what a dataset and a collate function hold that tells how their batches can be made.

Looked at are attributes, and the names that their functions take from modules and closures; nothing of the
program is called.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import CodeType
from typing import Any

from iotrace.session.guard import ours

_QUEUES = {"queue", "_queue", "multiprocessing.queues"}
_PIPES = {"multiprocessing.connection", "_multiprocessing", "socket"}
_TAKE = {"get", "get_nowait", "recv", "recv_bytes", "poll"}
_TOKENIZERS = {"tokenizers", "transformers", "sentencepiece", "tiktoken"}
_ONLY_PADS = {"pad"}
_ENCODE = {"encode", "encode_batch", "batch_encode_plus", "encode_plus", "tokenize", "__call__"}
_MOST_WRAPPERS = 4
_MOST_STAGES = 32
_MANY_SAMPLES = 16  # that a buffer holds before it gives one
_SOURCES = ("datapipe", "source_datapipe", "main_datapipe", "_ex_iterable", "ex_iterable", "source_dataset")
_WDS_SHUFFLE = (1000, 100)  # webdataset's own defaults


def fed_by(dataset: Any) -> str | None:
    """Name the queue, pipe or thread of this process that gives the dataset its samples; None: none is seen.

    A queue or pipe counts where the dataset's code takes from one, a thread where it runs a function of the
    dataset, or is handed it.
    """
    try:
        own = dict(getattr(dataset, "__dict__", {}))
        for name, value in own.items():
            if isinstance(value, threading.Thread) and value.is_alive():
                return f"the thread {name}"
        for thread in list(threading.enumerate()):
            target = getattr(thread, "_target", None)
            given = (*getattr(thread, "_args", ()), *getattr(thread, "_kwargs", {}).values())
            if target is not None and (
                getattr(target, "__self__", None) is dataset or any(each is dataset for each in given)
            ):
                return f"the thread of {getattr(target, '__qualname__', thread.name)}"
        functions = [each for each in vars(type(dataset)).values() if hasattr(each, "__code__")]
        if not any(_TAKE & {*_names(each.__code__)} for each in functions):
            return None
        for name, value in (*own.items(), *(pair for each in functions for pair in _taken(each))):
            modules = {kind.__module__ for kind in type(value).__mro__}
            if modules & _QUEUES:
                return f"the queue {name}"
            if modules & _PIPES:
                return f"the pipe {name}"
    except ours(Exception):  # a class of the program may do anything
        pass
    return None


def tokenizer_of(collate: Any) -> str | None:
    """Name the class of the tokenizer that a collate function of the program uses; None: none is seen."""
    try:
        held: dict[str, Any] = {}
        for _ in range(_MOST_WRAPPERS):
            if hasattr(collate, "func"):  # functools.partial
                held.update(collate.keywords)
                held.update({str(number): each for number, each in enumerate(collate.args)})
                collate = collate.func
            collate = getattr(collate, "__wrapped__", collate)
        owner = getattr(collate, "__self__", collate)
        held.update(getattr(owner, "__dict__", {}))
        function = collate if hasattr(collate, "__code__") else vars(type(owner)).get("__call__")
        function = getattr(function, "__func__", function)
        if not hasattr(function, "__code__") or function.__module__.partition(".")[0] in _TOKENIZERS:
            return None
        names = {*_names(function.__code__)}
        if names & _ONLY_PADS and not names & _ENCODE:
            return None
        held.update(_taken(function))
        for value in held.values():
            for kind in type(value).__mro__:
                library = kind.__module__.partition(".")[0]
                if library in _TOKENIZERS and any(
                    word in kind.__name__ for word in ("Token", "Encod", "Piece")
                ):
                    return f"{library}.{type(value).__name__}"
    except ours(Exception):
        pass
    return None


def sampler_of(loader: Any) -> str | None:
    """Name the class of the program that chooses a loader's samples; None: one of torch does."""
    try:
        for sampler in (loader.batch_sampler, loader.sampler):
            if sampler is not None and type(sampler).__module__.partition(".")[0] != "torch":
                return type(sampler).__name__
    except ours(Exception):
        pass
    return None


def torch_sampler_of(loader: Any) -> str | None:
    """Name torch's own class that chooses a loader's samples, with its `replacement`; None: it is another."""
    try:
        sampler = loader.sampler
        if type(sampler).__module__.partition(".")[0] == "torch":
            how = getattr(sampler, "replacement", None)
            return f"{type(sampler).__name__}({'' if how is None else f'replacement={bool(how)}'})"
    except ours(Exception):
        pass
    return None


def shuffle_of(dataset: Any) -> str | None:
    """Write the shuffle buffer of an iterable dataset as the program may have; None: none is seen.

    Of webdataset, of torch's data pipes and of Hugging Face's datasets; of several the largest one.
    """
    try:
        found: list[tuple[int, str]] = []
        for stage in _stages(dataset):
            own = vars(stage)
            function = getattr(own.get("f"), "__name__", "")  # of webdataset's stages
            if function.startswith("tar"):
                found.clear()  # what was shuffled before are names of shards
            elif function == "_shuffle":
                most = (*own.get("args", ()), *_WDS_SHUFFLE[len(own.get("args", ())) :])[:2]
                of = dict(zip(("bufsize", "initial"), most, strict=False))
                of.update({key: value for key, value in own.get("kw", {}).items() if key in of})
                initial = min(of["bufsize"], of["initial"])
                found.append((initial, f"shuffle({of['bufsize']}, initial={initial})"))
            elif "buffer_size" in own and "Shuffle" in type(stage).__name__:
                found.append((own["buffer_size"], f"shuffle(buffer_size={own['buffer_size']})"))
        return max(found)[1] if found and max(found)[0] >= _MANY_SAMPLES else None
    except ours(Exception):
        return None


def _stages(dataset: Any) -> Iterator[Any]:
    """Yield a dataset's stages, each the source of the one before."""
    for _ in range(_MOST_STAGES):
        own = getattr(dataset, "__dict__", None)
        if own is None:
            return
        yield dataset
        if type(pipeline := own.get("pipeline")) is list:  # webdataset's
            yield from (each for each in pipeline if hasattr(each, "__dict__"))
        dataset = next((own[name] for name in _SOURCES if name in own), None)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that code names, and those of the functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _taken(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function takes from its module and from the functions around it."""
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ours(ValueError):  # not filled yet
            continue
