"""Puts off the import of torch._dynamo, which programs of the suite hardly ever use.

An optimizer imports it at its first call, for a decorator that changes nothing where nothing is compiled: it
costs more processor time than the rest of torch. As soon as another part of it is asked for, it is loaded.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

NAME = "torch._dynamo"


class PutOff(types.ModuleType):
    """Stands for the module until more is asked of it than what this class has."""

    OptimizedModule = type("OptimizedModule", (), {})  # the class of compiled modules: nothing is one

    @property
    def __path__(self) -> PathOfWhole:
        return PathOfWhole()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspect asks every module for its file
            raise AttributeError(name)
        return getattr(whole(), name)

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Leave `function` as it is: nothing compiles it."""
        return (lambda other: other) if function is None else function

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: no graph is being made."""


class PathOfWhole:
    """Where submodules are looked for: whoever looks gets the whole package."""

    def __iter__(self) -> Iterator[str]:
        return iter(whole().__path__)


def whole() -> types.ModuleType:
    """Load what was put off."""
    if isinstance(sys.modules.get(NAME), PutOff):
        del sys.modules[NAME]
    return importlib.import_module(NAME)


sys.modules[NAME] = PutOff(NAME)
