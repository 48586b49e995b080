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
