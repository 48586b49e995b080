"""Find the roots of models and time their calls: a root is a module that no other module's call holds.

Roots are found at their first call: ``Module._call_impl`` is replaced, which adds a frame to each module's
call, until calls bring no other root. A root that is known is timed by the ``_compiled_call_impl`` of the
instance, which ``Module.__call__`` asks for anyhow, and which no copy, pickle or state_dict takes along. So
no submodule pays, no hook is registered, no class stays changed, and torch's fast path stays.

torch.compile meets nothing of it: while dynamo traces, the class is as torch made it. Dynamo skips our
frames, as their code carries the name of torch's file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from iotrace.agent import patching
from iotrace.agent.patching import hide_frame
from iotrace.agent.phases.model_table import ModelTable
from iotrace.agent.phases.step_phases import Begun, begin, record, thread_state
from iotrace.agent.recording.pauses import compilation_begins, compilation_ended
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.regions import compiling
from iotrace.agent.recording.thread_clocks import current
from iotrace.session.guard import ours
from iotrace.session.names import FORWARD, FORWARD_NO_GRAD

_ATTRIBUTE = "_compiled_call_impl"
_LAYER = "root"
_CALLS_OF_SEARCH = 100  # of roots, none of them new
_MOST_SEARCHES = 64
_MOST_TABLES = 16  # roots whose modules are recorded
_FIRST_REPEAT = 16  # backward passes; the search begins anew after as many, twice as many, and so on

search: _Search | None = None


def hook_roots(module: Any, recorder: Recorder) -> None:
    """Find and time the roots, among all modules of ``torch.nn.modules.module``."""
    global search
    if not hasattr(module.Module, _ATTRIBUTE):  # torch before 2.1
        return
    patching.pass_for(_Root.__call__, module.Module._wrapped_call_impl)
    search = _Search(recorder, module)
    patching.on_undo(leave)
    patching.observe(module.Module, "compile", recorder, "timing a compiled module", after=_compiled)
    search.begin()


def _compiled(_: Any, __: Any, args: Sequence[Any], ___: dict[str, Any]) -> None:
    if search is not None:
        search.adopt(args[0])


def hook_compiler(module: Any, recorder: Recorder) -> None:
    """Patch ``torch._dynamo.callback``: where a compiler traces, the class is as torch made it."""

    if search is not None:
        in_compiled = sys.modules["torch"]._C._dynamo.eval_frame.get_eval_frame_callback
        search.is_in_compiled = in_compiled

    def begins(*_: Any) -> None:
        compilation_begins()
        if search is not None:
            search.compiles = True
            search.suspend()

    def ended(*_: Any) -> None:
        if search is not None:
            search.resume()
        compilation_ended(recorder)

    handler, what = module.CompilationCallbackHandler, "looking on at a compilation"
    patching.observe(handler, "run_start_callbacks", recorder, what, before=begins)
    patching.observe(handler, "run_end_callbacks", recorder, what, ended=ended)


def leave() -> None:
    """Time no modules any more: the session is over, or this process is a loader's worker."""
    global search
    left, search = search, None
    if left is not None:
        left.close()


class _Root:
    """Is called in a root's place, and calls it: ``Module.__call__`` finds it in the instance.

    Where a library copies the instance's dictionary as it is, the copy finds it too: the caller's frame tells
    which module was called. A pickle that takes it along holds None instead.
    """

    __slots__ = ("_of", "has_table", "inner")

    def __init__(self, module: Any, inner: Any) -> None:
        self._of: Callable[[], Any] = ref(
            module
        )  # no cycle: the model is freed as soon as the program drops it
        self.inner = inner  # what `Module.compile` had put there
        self.has_table = False

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if compiling():  # dynamo follows this line
            return (self.inner or self._of()._call_impl)(*args, **kwargs)
        call = self.inner
        if call is None:
            caller: Any = sys._getframe(1)
            is_torch = caller.f_code.co_name == "_wrapped_call_impl"
            call = (caller.f_locals["self"] if is_torch else self._of())._call_impl
        thread, looking = thread_state, search
        is_part = thread.in_root or thread.in_backward or current.thread.depth
        if looking is None or is_part or looking.is_in_compiled():
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
        grad = looking.is_grad_enabled()
        if grad and not self.has_table:
            self.has_table = True
            thread.table = looking.make_table()
        begun = begin()
        thread.in_root = True
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            thread.in_root = False
            looking.called(grad, begun)
            table, thread.table = thread.table, None
            if table is not None:
                table.record(self._of())


class _Search:
    """Looks for roots, by turns, and knows those that it has found."""

    def __init__(self, recorder: Recorder, module: Any) -> None:
        self._recorder = recorder
        self._module = module
        self._roots = patching.WeakTable()
        self._begun = self._passes = 0
        self._calls_left = 0
        self._tables = 0
        self.compiles = False
        self.is_in_compiled: Callable[[], Any] = bool  # no compiler is imported: it says no
        self._unpatch: Callable[[], None] | None = None
        self.is_grad_enabled: Callable[[], bool] = module.torch.is_grad_enabled

    def begin(self) -> None:
        """Look for roots from now on, unless that was done too often."""
        if not self._calls_left and self._begun < _MOST_SEARCHES:
            self._begun += 1
            self._calls_left = _CALLS_OF_SEARCH
            self.resume()

    def resume(self) -> None:
        """Replace ``Module._call_impl``, if roots are looked for and nobody else stands there for a while."""
        base = self._module.Module
        if self._calls_left and not hasattr(base._call_impl, patching.MARKER) and self._is_safe():
            self._unpatch = patching.patch(base, "_call_impl", self._make, _LAYER)

    def suspend(self) -> None:
        """Put ``Module._call_impl`` back; later, where somebody has patched on top."""
        if self._unpatch is not None:
            self._unpatch()
            if not patching.has_layer(self._module.Module._call_impl, _LAYER):
                self._unpatch = None

    def _is_safe(self) -> bool:
        """Whether a compilation would be seen: by old versions of torch it is not."""
        return "torch._dynamo.eval_frame" not in sys.modules or "torch._dynamo.callback" in sys.modules

    def _make(self, original: Any) -> Any:
        def _call_impl(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            thread, root = thread_state, None
            table = thread.table
            if not (thread.in_root or thread.in_backward or compiling() or self.is_in_compiled()):
                root = self.adopt(module) if self._calls_left else None
            try:
                result = original(module, *args, **kwargs) if root is None else root(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            if table is not None:
                table.note(module, args, kwargs, result)
            return result

        patching.pass_for(_call_impl, self._module.Module._wrapped_call_impl)
        return _call_impl

    def adopt(self, module: Any) -> _Root | None:
        """Time the calls of `module` from now on; None where they are a loader's, or cannot be timed."""
        held = module.__dict__
        inner = held.get(_ATTRIBUTE)
        # Dynamo calls a module with hooks as Python does, and would compile anew where it then finds us.
        is_traced = self.compiles and (held["_forward_hooks"] or held["_forward_pre_hooks"])
        if current.thread.depth or isinstance(inner, _Root) or (is_traced and inner is None):
            return None
        if not self._roots.put(module, True):
            return None
        root = held[_ATTRIBUTE] = _Root(module, inner)
        if self._calls_left:
            self._calls_left = _CALLS_OF_SEARCH
        return root

    def make_table(self) -> ModelTable | None:
        """Have the modules of the root that is called now noted, whose calls a search for roots sees."""
        if self._tables == _MOST_TABLES or not self._recorder.running:
            return None
        self._tables += 1
        if self._unpatch is None:
            self.begin()
        return ModelTable(self._recorder, self._module.torch)

    def called(self, grad: bool, begun: Begun) -> None:
        """Record the call of a root that has begun so."""
        try:
            if self._calls_left:
                self._calls_left -= 1
                if not self._calls_left:
                    self.suspend()
            thread_state.has_called |= grad
            if self._recorder.running:  # else nothing has been loaded or trained so far
                record(self._recorder, FORWARD if grad else FORWARD_NO_GRAD, begun)
        except ours(Exception) as error:
            self._recorder.absorb(error, "recording a forward pass")

    def trained(self, has_called: bool) -> None:
        """Look again after a backward pass through no known root, and ever more rarely after others."""
        self._passes += 1
        passes = self._passes
        if not has_called or (passes >= _FIRST_REPEAT and passes & (passes - 1) == 0):
            self.begin()
        if self._unpatch is not None and not self._calls_left:
            self.suspend()

    def close(self) -> None:
        """Leave all modules as they were."""
        self._calls_left = 0
        self.suspend()
        for module in self._roots.alive():
            root = module.__dict__.get(_ATTRIBUTE)
            if isinstance(root, _Root):
                del module.__dict__[_ATTRIBUTE]
                if root.inner is not None:
                    module.__dict__[_ATTRIBUTE] = root.inner
