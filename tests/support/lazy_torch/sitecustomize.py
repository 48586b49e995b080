"""Puts off the import of what of torch only compiling and exporting need, which programs here hardly ever do.

An optimizer imports torch._dynamo at its first call, for a decorator that changes nothing where nothing is
compiled: it costs more processor time than the rest of torch. torch itself imports the registrations of what
its operators make of tensors without data, and torch.export: a third of its import. As soon as another part
of one is asked for, it is loaded.

What importing torch makes stays to the end, and garbage is neither looked for in it meanwhile nor afterwards:
that takes a quarter of the processor time of a short program, most of it where Python ends.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

DYNAMO, WITHOUT_DATA, EXPORT = "torch._dynamo", "torch._meta_registrations", "torch.export"


class PutOff(types.ModuleType):
    """Stands for a module until more is asked of it than what its class has."""

    @property
    def __path__(self) -> PathOfWhole:
        return PathOfWhole(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspect asks every module for its file
            raise AttributeError(name)
        return getattr(whole(self.__name__), name)


class Part:
    """Has what is asked of a part of torch._dynamo where nothing is compiled, and of the whole the rest."""

    def __init__(self, name: str, **functions: Any) -> None:
        self.__dict__.update(functions, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(whole(DYNAMO), self._name), name)


class Dynamo(PutOff):
    """Has what is asked of torch._dynamo where nothing is compiled."""

    # Of torch.distributed's groups of processes, and of its DistributedDataParallel.
    trace_rules = Part("trace_rules", clear_lru_cache=lambda: None)
    utils = Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer")

    OptimizedModule = type("OptimizedModule", (), {})  # the class of compiled modules: nothing is one

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Leave `function` as it is: nothing compiles it."""
        return (lambda other: other) if function is None else function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: no graph is being made."""


class PathOfWhole:
    """Where submodules are looked for: whoever looks gets the whole package."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[str]:
        return iter(whole(self._name).__path__)


def whole(name: str) -> types.ModuleType:
    """Load what was put off; what compiles or exports looks at tensors without data."""
    if isinstance(sys.modules.get(name), PutOff):
        del sys.modules[name]
        if name != WITHOUT_DATA:
            whole(WITHOUT_DATA)
    return importlib.import_module(name)


class Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts off the registrations, but for one thing that torch.Generator needs and they do by the way.

    They are imported last, or nearly so: garbage is looked for again from then on.
    """

    paused = False

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name == "torch" and gc.isenabled():
            self.paused = True
            gc.disable()
        return importlib.machinery.ModuleSpec(name, self) if name == WITHOUT_DATA else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return PutOff(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        sys.meta_path.remove(self)
        torch: Any = sys.modules["torch"]
        if hasattr(torch._C, "_set_generator_metaclass"):
            torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)
        if self.paused:
            gc.freeze()
            gc.enable()


sys.modules[DYNAMO], sys.modules[EXPORT] = Dynamo(DYNAMO), PutOff(EXPORT)
sys.meta_path.insert(0, Loader())
