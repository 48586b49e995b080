"""Run a function once a module has been imported, without ever importing it.

`wrapt` does the same and costs 110 ms of import in every process; its errors fail the user's import.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Hook = Callable[[Any], None]


class _Finder:
    """First on `sys.meta_path`; lets the others find, and wraps the loader of a module with hooks."""

    def __init__(self, hooks: dict[str, Hook], log: Callable[[str], None]) -> None:
        self._hooks = hooks
        self._log = log
        self._busy: set[str] = set()

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
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        finally:
            self._busy.discard(name)
        return None

    def loaded(self, module: Any) -> None:
        hook = self._hooks.get(module.__name__)  # kept: a module may be reloaded
        if hook is not None:
            run_hook(hook, module, self._log)


class _Loader:
    """Stands in for a module's loader during its import and then puts the real one back."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        create_module = getattr(self._loader, "create_module", None)
        return create_module(spec) if create_module else None

    def exec_module(self, module: Any) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._finder.loaded(module)


def run_hook(hook: Hook, module: Any, log: Callable[[str], None]) -> None:
    """Run one hook; what it raises is logged and never reaches the program."""
    try:
        hook(module)
    except Exception as error:
        log(f"hook for {module.__name__} failed: {error!r}")


def install(hooks: dict[str, Hook], log: Callable[[str], None]) -> Callable[[], None]:
    """Arm `hooks`, by module name; those already imported run now. Returns what takes it back."""
    for name, hook in hooks.items():
        module = sys.modules.get(name)
        if module is not None:
            run_hook(hook, module, log)
    finder: Any = _Finder(hooks, log)
    sys.meta_path.insert(0, finder)

    def remove() -> None:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)

    return remove
