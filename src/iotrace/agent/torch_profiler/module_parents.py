"""Which modules of torch.nn hold others, noted as they are put together.

They could be found among all objects of the process when a window opens, but that writes a count of
references into every one of them: 30 ms, and where workers were forked before, a copy of most of the heap
(43 MiB and 60 to 160 ms with little more than torch imported).
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from iotrace.agent.patching import hide_frame, on_undo, patch
from iotrace.agent.recording import regions

_parents: WeakValueDictionary[int, Any] = WeakValueDictionary()


def alive() -> list[Any]:
    """The modules that hold others and still exist."""
    found = [reference() for reference in _parents.valuerefs()]
    return [module for module in found if module is not None]


def hook_modules(module: Any) -> None:
    """Follow ``torch.nn.modules.module``: what is put together, and what is copied or read from a file."""
    on_undo(module.register_module_module_registration_hook(_registered).remove)

    def make_set_state(original: Any) -> Any:
        def __setstate__(self: Any, state: Any) -> None:  # noqa: N807
            try:
                original(self, state)
            except BaseException as error:
                hide_frame(error)
                raise
            _note(self)

        return __setstate__

    patch(module.Module, "__setstate__", make_set_state)


def _registered(parent: Any, name: str, child: Any) -> None:
    """A hook of torch's, which leaves `child` as it is by returning None."""
    if not regions.compiling():  # a function that is compiled whole may put modules together
        _note(parent)


def _note(module: Any) -> None:
    try:
        _parents[id(module)] = module
    except TypeError:  # a subclass that allows no weak reference goes by its class
        pass
