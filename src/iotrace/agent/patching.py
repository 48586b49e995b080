"""Replace functions of other libraries: marked, never twice, and undoable.

`observe` is the usual way: it guards what we do before and after a call. What is called for each span, batch
or module is written out where it stands, as `observe` would add two calls to each.
"""

from __future__ import annotations

import sys
from _functools import partial  # type: ignore[import-not-found]  # `functools` is five files to read
from _weakref import ref
from itertools import count
from posix import getpid
from time import monotonic_ns, thread_time_ns

from iotrace.agent.unpatched import get_native_id
from iotrace.session import names
from iotrace.session.guard import ours

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    Keywords = dict[str, Any]
    # Called with the arguments, which it may change; what it returns is passed on to the other two.
    Before = Callable[[list[Any], Keywords], Any]
    Ended = Callable[[Any, Sequence[Any], Keywords], None]
    After = Callable[[Any, Any, Sequence[Any], Keywords], None]

    class Absorbs(Protocol):
        """A recorder, as far as it is asked here."""

        def absorb(self, error: Exception, what: str) -> None:
            """Log an error of ours."""


# Flags of a class: it is made anew for each interpreter; its attributes cannot be set.
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8
MARKER = "__iotrace_original__"
_LAYER = "__iotrace_layer__"

# Of so many calls of a hook one is timed, never the first, which makes ready: a prime, as programs call in
# turns of eight or sixteen.
TIMED_EVERY = 17

_undo: list[Callable[[], None]] = []
# Replacements in compiled classes: the interpreter's cache holds no reference of its own.
_kept: list[Any] = []


class OwnTimes:
    """CPU time that hooks take by themselves, by thread, beside the spans that they record: some are timed.

    Where nothing is recorded, as of what pools of libraries do, nothing else tells what tracing cost.
    """

    def __init__(self) -> None:
        self._ns: dict[int, int] = {}
        self._told: dict[int, int] = {}
        # Of calls that are passed on: what counts one more, how many were counted before, what each costs.
        self._passed: list[tuple[Callable[[], int], list[int], int]] = []

    def passed(self, each_ns: int) -> Callable[[], int]:
        """Return what counts a call that costs so much: C, as a clock would cost more than that.

        Which thread calls is not known: it counts as the main one.
        """
        counted = count().__next__
        self._passed.append((counted, [0], each_ns))
        return counted

    def add(self, begun_ns: int) -> None:
        """Add what was timed since `begun_ns`, by this thread's CPU clock; it stands for other calls, too."""
        self.add_ns((thread_time_ns() - begun_ns) * TIMED_EVERY)

    def add_ns(self, own_ns: int, tid: int = 0) -> None:
        """Add what a thread spent, this one unless another is named."""
        tid = tid or get_native_id()
        self._ns[tid] = self._ns.get(tid, 0) + own_ns

    def sampled(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a part of a hook that is called often: some of its calls are timed."""
        counted = 0

        def timed(*args: Any) -> Any:
            nonlocal counted
            counted += 1
            if counted % TIMED_EVERY:
                return call(*args)
            begun_ns = thread_time_ns()
            try:
                return call(*args)
            finally:
                self.add(begun_ns)

        return timed

    def rows(self) -> list[tuple[int, ...]]:
        """Make rows of the sums so far of the threads whose sums have changed."""
        for counted, known, each_ns in self._passed:
            so_far = counted()  # which counts this, too
            if so_far > known[0]:
                self.add_ns((so_far - known[0]) * each_ns, getpid())
            known[0] = so_far + 1
        now_ns, sums = monotonic_ns(), self._ns.copy()
        changed = [(tid, own_ns) for tid, own_ns in sums.items() if own_ns != self._told.get(tid)]
        self._told = sums
        return [(names.OWN_ROW, tid, now_ns, own_ns) for tid, own_ns in changed]

    def clear(self) -> None:
        """Begin anew, in a forked child."""
        self._ns, self._told = {}, {}
        for counted, known, _ in self._passed:
            known[0] = counted() + 1


class _Builtin(staticmethod):  # type: ignore[type-arg]
    """Stands in for a function written in C, which a class may hold without it becoming a method."""

    def __reduce__(self) -> str:
        return self.__name__


def patch(owner: Any, name: str, make: Callable[[Any], Any], layer: str = "record") -> Callable[[], None]:
    """Replace ``owner.name`` by ``make(original)``; do nothing where it is missing or has `layer` already.

    Return what takes this patch back.

    The replacement takes over the original's name, so that pickling by reference (spawned workers'
    targets) and tracebacks see what they saw before.
    """
    closed = isinstance(owner, type) and owner.__flags__ & (_IMMUTABLE | _HEAP) != _HEAP
    # Of a compiled class, what is looked up stays in the interpreter's cache, whatever takes its place.
    original = owner.__dict__.get(name) if closed else getattr(owner, name, None)
    if original is None or has_layer(original, layer):
        return lambda: None
    inherited = isinstance(owner, type) and name not in owner.__dict__
    replacement = make(original)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        value = getattr(original, attribute, 0)
        # nanobind's methods have an object of their own, or none, for their name.
        if isinstance(value, str) or (value is None and attribute in ("__module__", "__doc__")):
            setattr(replacement, attribute, value)
    replacement.__wrapped__ = original
    if type(original) is type(len) and not isinstance(owner, type):
        replacement = _Builtin(replacement)
        # os.close calls itself posix.close, which stays what it was.
        replacement.__module__ = getattr(owner, "__name__", replacement.__module__)
    setattr(replacement, MARKER, original)
    setattr(replacement, _LAYER, layer)
    if closed:
        return _patch_closed(owner, name, original, replacement)
    setattr(owner, name, replacement)

    def undo() -> None:
        # Somebody may have patched on top of us; their patch then stays and keeps calling ours.
        if getattr(owner, name, None) is replacement:
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

    return on_undo(undo)


def _patch_closed(owner: Any, name: str, original: Any, replacement: Any) -> Callable[[], None]:
    """Replace a method of a compiled class that refuses new attributes, in its dictionary of them.

    Objects and class stay what they are. Methods that the interpreter calls by a slot (``__getitem__``)
    cannot be replaced so. What has looked the method up before goes on calling what it found, unless ctypes
    is imported.
    """
    import gc  # few libraries need it, and every process imports this module

    (attributes,) = gc.get_referents(owner.__dict__)
    if name.startswith("__") or type(attributes) is not dict or attributes.get(name) is not original:
        return lambda: None
    _kept.append(replacement)
    attributes[name] = replacement
    _forget_lookups(owner)

    def undo() -> None:
        if attributes.get(name) is replacement:
            attributes[name] = original
            _forget_lookups(owner)

    return on_undo(undo)


def _forget_lookups(kind: type) -> None:
    """Have the interpreter look the methods of `kind` up anew, where ctypes is imported."""
    ctypes: Any = sys.modules.get("ctypes")
    api = getattr(ctypes, "pythonapi", None)
    if api is not None:
        api.PyType_Modified(ctypes.py_object(kind))


def observe(
    owner: Any,
    name: str,
    recorder: Absorbs,
    what: str,
    *,
    before: Before | None = None,
    ended: Ended | None = None,
    after: After | None = None,
    layer: str = "record",
) -> Callable[[], None]:
    """Patch ``owner.name`` to call ``before(args, kwargs)``, the original, then the other two.

    ``ended(seen, args, kwargs)`` follows every call, ``after(seen, result, args, kwargs)`` one that returned;
    `seen` is what `before` returned, None without one or where it failed. What `before` changes in the list
    `args`, also before it fails, is passed to the original. What the three raise is logged with
    `what`, and never reaches the program. Return what takes this patch back.
    """
    make = observing(recorder, what, before=before, ended=ended, after=after)
    return patch(owner, name, make, layer)


def observing(
    recorder: Absorbs,
    what: str,
    *,
    before: Before | None = None,
    ended: Ended | None = None,
    after: After | None = None,
) -> Callable[[Any], Any]:
    """Return what makes the replacement of a function that `observe` puts in its place."""

    def make(original: Any) -> Any:
        def observed(*args: Any, **kwargs: Any) -> Any:
            passed, seen = list(args), None
            if before is not None:
                try:
                    seen = before(passed, kwargs)
                except ours(Exception) as error:
                    recorder.absorb(error, what)
            try:
                result = original(*passed, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            finally:
                if ended is not None:
                    try:
                        ended(seen, passed, kwargs)
                    except ours(Exception) as error:
                        recorder.absorb(error, what)
            if after is not None:
                try:
                    after(seen, result, passed, kwargs)
                except ours(Exception) as error:
                    recorder.absorb(error, what)
            return result

        return observed

    def make_lean(original: Any) -> Any:  # what is called for each batch has nothing else
        assert after is not None

        def observed(*args: Any, **kwargs: Any) -> Any:
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise
            try:
                after(None, result, args, kwargs)
            except ours(Exception) as error:
                recorder.absorb(error, what)
            return result

        return observed

    lean = before is None and ended is None
    return make_lean if lean else make


class WeakTable:
    """What is known of objects, each as long as it lives; of one that allows no weak reference nothing.

    A signal handler of the program may raise in any Python code, and Python discards that in a weak
    reference's callback, such as ``weakref.WeakKeyDictionary`` has: here it is written in C.
    """

    def __init__(self) -> None:
        # By the id of an object: what refers to it, and what is known. Who is called often looks itself.
        self.held: dict[int, tuple[Callable[[], Any], Any]] = {}

    def get(self, thing: Any) -> Any:
        """Return what is known of `thing`; None without."""
        held = self.held.get(id(thing))
        return held[1] if held is not None and held[0]() is thing else None

    def put(self, thing: Any, known: Any) -> bool:
        """Know this of `thing`; return False where it allows no weak reference."""
        key = id(thing)
        try:
            self.held[key] = ref(thing, partial(self.held.pop, key)), known
        except ours(TypeError):
            return False
        return True

    def drop(self, thing: Any) -> None:
        """Know nothing of `thing` any more."""
        self.held.pop(id(thing), None)

    def alive(self) -> list[Any]:
        """Return the objects."""
        found = [refer() for refer, _ in list(self.held.values())]
        return [thing for thing in found if thing is not None]


class StandIn:
    """Stands for another object: a subclass changes some of its methods, the others are its own.

    `context` is what those methods work with.
    """

    def __init__(self, of: Any, context: Any = None) -> None:
        self._of = of
        self._context = context

    def __getattr__(self, name: str) -> Any:
        if name == "_of":  # of a copy in the making
            raise AttributeError(name)
        return getattr(self._of, name)


def has_layer(function: Any, layer: str) -> bool:
    """Whether `function` is a replacement of `layer`, or stands on top of one."""
    while hasattr(function, MARKER):
        if getattr(function, _LAYER, "") == layer:
            return True
        function = getattr(function, MARKER)
    return False


def on_undo(action: Callable[[], None]) -> Callable[[], None]:
    """Have `undo_all` run `action` too; return it."""
    _undo.append(action)
    return action


def pass_for(replacement: Any, original: Any) -> None:
    """Have the frames of `replacement` pass for those of `original`, where that is written in Python."""
    code = getattr(original, "__code__", None)
    if code is not None:
        replacement.__code__ = replacement.__code__.replace(
            co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
        )


def undo_all() -> None:
    """Take every patch back, last one first."""
    while _undo:
        _undo.pop()()


def hide_frame(error: BaseException) -> None:
    """Drop our own frame from a traceback that passes through, so the program prints what it always did.

    Call it in an ``except`` block of the wrapper, followed by a bare ``raise``.
    """
    traceback = error.__traceback__
    if traceback is not None:
        error.__traceback__ = traceback.tb_next
