"""Run a function once a module has been imported, without ever importing it.

`wrapt` does the same and costs 110 ms of import in every process; its errors fail the user's import.
"""

from __future__ import annotations

import sys

from iotrace.agent.patching import StandIn
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Hook = Callable[[Any], None]
    Absorb = Callable[[Exception, str], None]  # `Recorder.absorb`

_package = sys.modules["iotrace"]
_loading: list[str] = []


def load(name: str) -> Any:
    """Import the module `name` of the agent in a process that has begun its program; return it.

    To take a module from a package, Python looks for the topmost one, too. `iotrace` is not installed in each
    interpreter, and may be a module of the program's: meanwhile, it is what the agent began with.
    """
    _loading.append(name)
    sys.modules.setdefault("iotrace", _package)
    try:
        return __import__(f"iotrace.agent.{name}", None, None, ["__name__"])
    finally:
        _loading.pop()
        # Without a file it is the one that the way in has made, and has taken back.
        if not _loading and sys.modules.get("iotrace") is _package and _package.__spec__ is None:
            del sys.modules["iotrace"]


class _Finder:
    """First on `sys.meta_path`: lets the others find, and attaches to the loader of a module with a hook."""

    def __init__(self, hooks: dict[str, Hook], absorb: Absorb) -> None:
        self._hooks = hooks
        self._absorb = absorb
        self._busy: set[str] = set()
        self._kinds: dict[type, type] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._hooks or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)
                if finder is self or find_spec is None:
                    continue
                spec = find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        self._attach(spec)
                    return spec
        finally:
            self._busy.discard(name)
        return None

    def _attach(self, spec: Any) -> None:
        """Have `loaded` called when the loader of `spec` has run its module.

        The loader stays the same object, as programs look at it (``find_spec(name).loader``). Only its class
        becomes a subclass of the same name, until it has run the module. A loader that allows no such change
        (a class that is its own loader, or one in C) gets a stand-in.
        """
        kind = type(spec.loader)
        try:
            if kind not in self._kinds:
                self._kinds[kind] = _hooked_class(kind, self)
                self._kinds[self._kinds[kind]] = self._kinds[kind]  # a loader of several modules (a zip)
            spec.loader.__class__ = self._kinds[kind]
        except ours(Exception):
            spec.loader = _Loader(spec.loader, self)

    def loaded(self, module: Any) -> None:
        hook = self._hooks.get(module.__name__)  # kept: a module may be reloaded
        if hook is not None:
            run_hook(hook, module, self._absorb)


def _hooked_class(kind: type, finder: _Finder) -> type:
    """Make a subclass of `kind` that calls `finder.loaded` with each module that it has run."""
    run: Any = kind.exec_module  # type: ignore[attr-defined]

    def exec_module(self: Any, module: Any) -> None:
        if getattr(self, "name", None) == module.__name__:  # the loader of only this module
            self.__class__ = kind
        run(self, module)
        finder.loaded(module)

    def reduce(self: Any, protocol: Any) -> Any:
        """Make copies of the loader's own class."""
        return object.__new__, (kind,), self.__dict__

    hide(exec_module)
    own = {"exec_module": exec_module, "__reduce_ex__": reduce, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), {**own, "__qualname__": kind.__qualname__})


class _Loader(StandIn):
    """Stands in for a module's loader during its import, and then puts the real one back; for a finder."""

    def create_module(self, spec: Any) -> Any:
        create_module = getattr(self._of, "create_module", None)
        return create_module(spec) if create_module else None

    def exec_module(self, module: Any) -> None:
        module.__loader__ = self._of
        if module.__spec__ is not None:
            module.__spec__.loader = self._of
        self._of.exec_module(module)
        self._context.loaded(module)


def hide(function: Any) -> None:
    """Take `function` out of tracebacks: Python leaves the import system's own frames out, by their file."""
    function.__code__ = function.__code__.replace(co_filename="<frozen importlib._bootstrap_external>")


hide(_Loader.exec_module)


def run_hook(hook: Hook, module: Any, absorb: Absorb) -> None:
    """Run one hook; what it raises goes to `absorb` and never reaches the program."""
    try:
        hook(module)
    except ours(Exception) as error:
        absorb(error, f"the hook of {module.__name__}")


def install(hooks: dict[str, Hook], absorb: Absorb) -> Callable[[], None]:
    """Arm `hooks`, by module name, and run those of modules already imported; return what takes it back."""
    for name, hook in hooks.items():
        module = sys.modules.get(name)
        if module is not None:
            run_hook(hook, module, absorb)
    finder: Any = _Finder(hooks, absorb)
    sys.meta_path.insert(0, finder)

    def remove() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return remove
