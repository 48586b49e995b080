"""Record compiled functions that the program's loop calls: those of ``jax.jit`` and of ``tf.function``.

Whether one trains is seen as it is traced, in its first call: gradients are taken then. What waits for its
results (``block_until_ready``, ``float``) belongs to the turn that has called it.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

from iotrace.agent import training
from iotrace.agent.patching import StandIn, WeakTable, hide_frame, observe, patch
from iotrace.agent.pools import queues
from iotrace.agent.pools.callers import PROGRAMS, whose_file
from iotrace.agent.recording.pauses import watch_jax
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.thread_clocks import current
from iotrace.agent.step_calls import AWAITS, COMPUTES, TRAINS, WHAT, Begun, Calls, calls_of
from iotrace.session.guard import ours

_KINDS = ("PjitFunction", "PmapFunction")  # what ``jax.jit`` and ``jax.pmap`` make
_AWAITING = ("block_until_ready", "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__")
_SHOWING = ("__format__", "__repr__", "__str__")  # these wait, too

gradients = 0  # taken so far
elsewhere = False  # some of them outside of the functions that the program's loop calls


def hook_jax(module: Any, recorder: Recorder) -> None:
    """Patch what compiles functions, takes gradients and waits for arrays."""
    calls = calls_of(recorder)
    watch_jax(recorder)
    for name in ("jit", "pmap"):
        patch(module, name, lambda original: _compiling(original, calls), "step")
    for owner in (module, sys.modules.get("jax._src.api")):
        for name in ("vjp", "_vjp"):
            observe(owner, name, recorder, WHAT, before=_noting_gradients(calls), layer="step")
    for name in ("block_until_ready", "device_get"):
        _hook_awaiting(module, name, calls)
    _hook_arrays(getattr(sys.modules.get("jax._src.array"), "ArrayImpl", None), calls)


def hook_optax(module: Any, recorder: Recorder) -> None:
    """Patch ``optax.apply_updates``, which ends an update."""
    calls = calls_of(recorder)
    observe(module, "apply_updates", recorder, WHAT, before=_noting_gradients(calls), layer="gradient")
    _hook_awaiting(module, "apply_updates", calls)


def hook_tf_functions(module: Any, recorder: Recorder) -> None:
    """Patch the class of what ``tf.function`` returns."""
    calls, functions = calls_of(recorder), WeakTable()

    def before(args: list[Any], _: dict[str, Any]) -> tuple[_Compiled, int, Begun | None]:
        known = functions.get(args[0])
        if known is None:
            known = _Compiled(getattr(args[0], "__name__", ""), calls)
            functions.put(args[0], known)
        return known, gradients, calls.begin(known.name, sys._getframe(1))

    def ended(seen: tuple[_Compiled, int, Begun | None] | None, *_: Any) -> None:
        if seen is not None:
            seen[0].ended(*seen[1:])

    observe(module.Function, "__call__", recorder, WHAT, before=before, ended=ended, layer="step")


def hook_tf_gradients(module: Any, recorder: Recorder) -> None:
    """Patch what takes gradients in TensorFlow."""
    noting = _noting_gradients(calls_of(recorder))
    observe(module.GradientTape, "gradient", recorder, WHAT, before=noting, layer="step")


def hook_tf_tensors(module: Any, recorder: Recorder) -> None:
    """Patch what waits for TensorFlow's tensors."""
    _hook_arrays(getattr(module, "_EagerTensorBase", None), calls_of(recorder))


def _noting_gradients(calls: Calls) -> Any:
    def before(*_: Any) -> None:
        global gradients, elsewhere
        is_main = queues.is_main(current.thread.tid)
        if calls.open and is_main:
            gradients += 1
            return
        elsewhere = True
        if is_main and calls.recorder.startup is not None:  # a library had imported torch
            training.end_startup(calls.recorder, with_torch=False)

    return before


def _hook_arrays(kind: Any, calls: Calls) -> None:
    for name in (*_AWAITING, *_SHOWING):
        if kind is not None and name in vars(kind):
            _hook_awaiting(kind, name, calls)


def _hook_awaiting(owner: Any, name: str, calls: Calls) -> None:
    def before(*_: Any) -> Begun | None:
        return calls.begin(name, sys._getframe(1), awaits=True)

    def ended(begun: Begun | None, *_: Any) -> None:
        if begun is not None:
            calls.end(begun, AWAITS)

    observe(owner, name, calls.recorder, WHAT, before=before, ended=ended, layer="step")


class _Compiled:
    """What is known of a compiled function."""

    def __init__(self, name: str, calls: Calls) -> None:
        self.name = name if name.isidentifier() else "a compiled function"
        self.calls = calls
        self.trains = False

    def ended(self, gradients_before: int, begun: Begun | None) -> None:
        """End a call; in one that traced the function, or one that it calls, gradients were taken or not."""
        self.trains = self.trains or gradients > gradients_before
        if begun is not None:
            self.calls.end(begun, TRAINS if self.trains else AWAITS if elsewhere else COMPUTES)


def _compiling(original: Any, calls: Calls) -> Any:
    def compiling(*args: Any, **kwargs: Any) -> Any:
        try:
            made = original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        if calls.recorder.over or whose_file(sys._getframe(1).f_code.co_filename) != PROGRAMS:
            return made
        return _stand_in(made, calls) if args else lambda function: _stand_in(made(function), calls)

    return compiling


def _stand_in(made: Any, calls: Calls) -> Any:
    if type(made).__name__ not in _KINDS:
        return made
    return Jitted(made, _Compiled(getattr(made, "__name__", ""), calls))


class Jitted(StandIn):
    """Stands for a function that JAX has compiled: its calls are recorded."""

    def __init__(self, of: Any, context: _Compiled) -> None:
        super().__init__(of, context)
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            if hasattr(of, name):
                setattr(self, name, getattr(of, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        known: _Compiled = self._context
        begun, before = None, gradients
        try:
            begun = known.calls.begin(known.name, sys._getframe(1))
        except ours(Exception) as error:
            known.calls.recorder.absorb(error, WHAT)
        try:
            return self._of(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            try:
                known.ended(before, begun)
            except ours(Exception) as error:
                known.calls.recorder.absorb(error, WHAT)

    def __get__(self, thing: Any, kind: Any = None) -> Any:
        return self if thing is None else MethodType(self, thing)

    def __repr__(self) -> str:
        return repr(self._of)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._of.__reduce_ex__(protocol)

    # `isinstance` of a protocol looks for these in the class.
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        return self._of.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        return self._of.trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        return self._of.eval_shape(*args, **kwargs)

    def clear_cache(self) -> None:
        self._of.clear_cache()
