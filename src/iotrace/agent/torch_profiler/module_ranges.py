"""Name a range for the forward of every nn.Module, while a window of the torch profiler is open.

``Module._call_impl`` is replaced on the class, which all calls look up: no hook is registered, so torch's
own fast path stays, and no module is touched. Backward has no ranges: a full backward hook would insert
functions into the autograd graph, and breaks modules that work in place. Its operators carry the sequence
number of their forward operator, which readers join.

Which modules hold others is noted as they are put together. They could be found among all objects of the
process when a window opens, but that writes a count of references into every one of them: 30 ms, and where
workers were forked before, a copy of most of the heap (43 MiB and 60 to 160 ms with little more than torch
imported).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from iotrace.agent.patching import WeakTable, hide_frame, observe, on_undo, patch
from iotrace.agent.recording import regions
from iotrace.agent.recording.recorder import Recorder
from iotrace.session.names import MODULE_RANGE

# They hold the model as their child `module`, and its names would all begin so.
_WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "_LightningModuleWrapperBase",
)


parents = WeakTable()  # the modules that hold others; one that allows no weak reference goes by its class


def hook_modules(module: Any, recorder: Recorder) -> None:
    """Patch ``torch.nn.modules.module`` to note what is put together, copied or read from a file."""
    on_undo(module.register_module_module_registration_hook(_registered).remove)

    def restored(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
        parents.put(args[0], True)

    observe(module.Module, "__setstate__", recorder, "noting a module", after=restored)


def _registered(parent: Any, name: str, child: Any) -> None:
    """A hook of torch's, which leaves `child` as it is by returning None."""
    if not regions.compiling():  # a function that is compiled whole may put modules together
        parents.put(parent, True)


def install() -> Callable[[], None]:
    """Emit a range for each module's call from here on; return what ends that.

    It does nothing where torch.compile is in use: a compiled program guards on what is patched here, and
    would compile anew.
    """
    torch: Any = sys.modules["torch"]
    if _compiles():
        return lambda: None
    base = torch.nn.Module
    record_range = torch._C._profiler._RecordFunctionFast
    named = names(base, parents.alive())
    on = True

    def make(original: Any) -> Any:
        def _call_impl(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not on:
                return original(self, *args, **kwargs)
            # An id may have passed to another module since; its class then mostly differs.
            kind, name = named.get(id(self), (None, ""))
            try:
                with record_range(name if kind is type(self) else f"{MODULE_RANGE}{type(self).__name__}"):
                    return original(self, *args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return _call_impl

    undo = patch(base, "_call_impl", make)

    def remove() -> None:
        nonlocal on
        on = False  # somebody may have patched on top of ours, and calls it still
        undo()

    return remove


def names(base: Any, parents: list[Any]) -> dict[int, tuple[Any, str]]:
    """Return each module's class and the name of its range, by the module's id.

    `parents` are the modules that hold others. Roots are modules that no other module holds; Lightning calls
    its modules' children, never the root. A module is named as in its root, a root by its class. Where there
    are several kinds of roots, all but the largest put their class before the names.
    """
    held = {id(child) for module in parents for child in module.__dict__.get("_modules", {}).values()}
    roots = []
    for module in parents:
        if id(module) not in held:
            while type(module).__name__ in _WRAPPERS and "module" in module._modules:
                module = module._modules["module"]
            roots.append((module, dict(base.named_modules(module))))
    roots.sort(key=lambda root: -len(root[1]))
    found: dict[int, tuple[Any, str]] = {}
    for root, inside in roots:
        kind = type(root).__name__
        before = "" if type(root) is type(roots[0][0]) else f"{kind}."
        for name, module in inside.items():
            shown = f"{before}{name}" if name else kind
            found.setdefault(id(module), (type(module), f"{MODULE_RANGE}{shown}"))
    return found


def _compiles() -> bool:
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(eval_frame, "cached_backends", {})
    return any(callable(backend) for backend in backends.values())
