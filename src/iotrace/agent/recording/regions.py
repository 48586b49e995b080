"""Record what a program says of itself: ``iotrace.region``, parts that its author named; steps and batches.

``iotrace.step`` and ``iotrace.batches`` are for loops whose data comes from no torch DataLoader.
Training code imports this module, also where nothing is recorded: a use outside a run is a dictionary access
and two empty calls.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType
    from typing import Any, TypeVar

    from iotrace.agent.recording.recorder import Recorder
    from iotrace.agent.recording.spans import Begun

    Decorated = TypeVar("Decorated")
    Item = TypeVar("Item")

_GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x20, 0x80, 0x200  # flags of a code object
_MOST_NAMES = 4096

attached: Recorder | None = None  # what regions, steps and batches are recorded with
_wrap: Callable[[Any, Any, Recorder], Any] | None = None
_spans: ModuleType | None = None  # imported when the first region begins
# torch.compiler.is_compiling, once imported: whether torch.compile traces the calling function now.
_compiling: Callable[[], bool] | None = None


def attach(recorder: Recorder, wrap: Callable[[Any, Any, Recorder], Any]) -> None:
    """Record regions, steps and batches with `recorder` from now on.

    ``wrap(source, its iterator, recorder)`` makes an iterator whose items are recorded as batches.
    """
    global attached, _wrap
    attached, _wrap = recorder, wrap


def detach() -> None:
    """Record no regions, steps and batches from now on."""
    global attached
    attached = None
    for known in _regions.values():
        known.forget()  # a region that is open now would end in the next run, if there is one


def ask_compiler(compiling: Callable[[], bool] | None) -> None:
    """Ask `compiling` before each region: nothing may be timed in code that is being compiled."""
    global _compiling
    _compiling = compiling


def compiling() -> bool:
    """Return whether torch.compile traces the caller now; it can trace this function, and few others here."""
    return _compiling is not None and _compiling()


class Region:
    """A named part of the program: ``with`` it, or decorate a function with it. Reusable, by all threads."""

    __slots__ = ("_open", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._open: dict[int, list[Begun]] = {}  # by thread, each of which touches its own list alone

    def __enter__(self) -> Region:
        recorder = attached
        if recorder is not None and not compiling():
            self._begin(recorder)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        recorder = attached
        if recorder is not None and not compiling():
            self._end(recorder)

    def _begin(self, recorder: Recorder) -> None:
        global _spans
        try:
            if _spans is None:
                from iotrace.agent.recording import spans

                _spans = spans
            recorder.start()
            begun = _spans.begin()
            self._open.setdefault(begun[0].tid, []).append(begun)
        except recorder.ours(Exception) as problem:
            recorder.absorb(problem, f"recording the region {self.name!r}")

    def _end(self, recorder: Recorder) -> None:
        # Entered before the run began, or on another thread (a generator that wandered): no span.
        try:
            if self._open and _spans is not None:
                tid = _spans.current.thread.tid
                begun = self._open.get(tid)
                if begun:
                    _spans.end_region(recorder, begun.pop(), str(self.name))
                    if not begun:
                        self._open.pop(tid, None)
        except recorder.ours(Exception) as problem:
            recorder.absorb(problem, f"recording the region {self.name!r}")

    def forget(self) -> None:
        """Drop what is open: it gets no span."""
        self._open.clear()

    def __call__(self, call: Decorated) -> Decorated:
        """Decorate a function: each of its calls is a region, of a generator function each resumption."""
        function: Any = call
        if isinstance(function, staticmethod | classmethod):
            wrapped: Any = type(function)(self(function.__func__))
            return wrapped  # type: ignore[no-any-return]
        flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
        if isinstance(function, type) or not callable(function) or flags & (_COROUTINE | _ASYNC_GENERATOR):
            raise TypeError(
                f"iotrace.region({self.name!r}) decorates functions, methods and generator functions, not "
                f"{function!r}: name a part of it with a `with` statement instead"
            )
        from functools import update_wrapper  # a program that only begins regions does not need it

        made: Any = self._generator_function(function) if flags & _GENERATOR else self._function(function)
        wrapped = update_wrapper(made, function)
        return wrapped  # type: ignore[no-any-return]

    def _function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def in_region(*args: Any, **kwargs: Any) -> Any:
            try:
                if attached is None or compiling():
                    return call(*args, **kwargs)
                with self:
                    return call(*args, **kwargs)
            except BaseException as error:
                hide_frame(error)
                raise

        return in_region

    def _generator_function(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def in_region(*args: Any, **kwargs: Any) -> Any:
            generator = call(*args, **kwargs)
            resumed = generator if attached is None else _Resumed(generator, self)
            try:
                return (yield from resumed)
            except BaseException as error:
                if resumed is not generator:
                    hide_frame(error)  # the method of `_Resumed`
                hide_frame(error)
                raise

        return in_region


def hide_frame(error: BaseException) -> None:
    """`patching.hide_frame`, imported when it is needed."""
    from iotrace.agent import patching

    patching.hide_frame(error)


class _Resumed:
    """A generator whose resumptions are regions: the time between them is its consumer's."""

    def __init__(self, generator: Any, region: Region) -> None:
        self._generator = generator
        self._region = region

    def __iter__(self) -> _Resumed:
        return self

    def _resume(self, how: Callable[..., Any], *what: Any) -> Any:
        try:
            with self._region:
                return how(*what)
        except BaseException as error:
            hide_frame(error)
            raise

    def __next__(self) -> Any:
        return self._resume(self._generator.__next__)

    def send(self, value: Any) -> Any:
        return self._resume(self._generator.send, value)

    def throw(self, *error: Any) -> Any:
        return self._resume(self._generator.throw, *error)

    def close(self) -> None:
        self._resume(self._generator.close)


class _Regions(dict[str, Region]):
    """Regions by name. Making one anew at each use would cost more than the use."""

    def __missing__(self, name: str) -> Region:
        made = Region(name)
        if len(self) < _MOST_NAMES:  # names that count up shall not fill the memory
            self[name] = made
        return made


_regions = _Regions()


def region(name: str) -> Region:
    """Return the part of the program called `name`: ``with iotrace.region("decode"):``, or a decorator.

    Outside a traced run it does nothing, in less than 0.2 us.
    """
    return _regions[name]


def step() -> None:
    """Begin the loop's next step. Outside a traced run it does nothing, in less than 0.2 us."""
    recorder = attached
    if recorder is not None:
        _begin_step(recorder)


def _begin_step(recorder: Recorder) -> None:
    from time import monotonic_ns

    from iotrace.session.names import MARK_ROW

    mono_ns = monotonic_ns()
    try:
        recorder.start()
        recorder.records.append((MARK_ROW, mono_ns))
    except recorder.ours(Exception) as error:
        recorder.absorb(error, "recording a step")


def batches(iterable: Iterable[Item]) -> Iterator[Item]:
    """Return ``iter(iterable)``, with each item recorded as a batch that the loop waited for.

    It is plain ``iter(iterable)`` outside a traced run, and for a torch DataLoader, which is recorded anyway.
    """
    recorder, wrap = attached, _wrap
    iterator = iter(iterable)
    if recorder is None or wrap is None:
        return iterator
    try:
        wrapped: Iterator[Item] = wrap(iterable, iterator, recorder)
        return wrapped
    except recorder.ours(Exception) as error:
        recorder.absorb(error, f"recording iotrace.batches({type(iterable).__name__})")
        return iterator
