"""The agent as a guest: it keeps no error of the program's signal handlers, and uses no patched name."""

from __future__ import annotations

import ast
import functools
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import iotrace
from iotrace.agent.patching import WeakTable
from iotrace.agent.recording.recorder import Recorder
from iotrace.session import guard
from iotrace.session.guard import ours

SOURCE = Path(iotrace.__file__).parent
# What runs in traced processes; the shim runs before any handler can be there, and in Python 2.7, too.
MODULES = [
    *sorted(path for path in (SOURCE / "agent").rglob("*.py") if path.parent.name != "shim"),
    *(SOURCE / "session" / f"{name}.py" for name in ("append_file", "guard", "identity")),
]
# What gevent and eventlet replace: modules that are imported nowhere as a whole, and names of `os`.
REPLACED = {"_thread", "time", "select", "selectors", "socket", "ssl", "subprocess", "_signal"}
OF_OS = {"fork", "forkpty", "open", "fdopen", "read", "write", "close", "wait", "waitpid", "popen", "sleep"}
# Functions of the standard library that keep errors of the kind OSError.
KEEP_ERRORS = {"exists", "lexists", "isdir", "isfile", "islink", "ismount", "realpath", "samefile"}


def nodes(path: Path, kind: Any) -> Iterator[Any]:
    """The nodes of one kind in a module's syntax tree."""
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind))


def asks(handler: ast.ExceptHandler) -> bool:
    """Whether an ``except`` asks by `ours`, or raises again whatever it is."""
    kind = handler.type
    if isinstance(kind, ast.Call):
        asked = kind.func.attr if isinstance(kind.func, ast.Attribute) else getattr(kind.func, "id", "")
        return asked == "ours"
    last = handler.body[-1]
    raises = isinstance(last, ast.Raise) and last.exc is None
    leaves = any(isinstance(node, ast.Return | ast.Continue | ast.Break) for node in ast.walk(handler))
    return isinstance(kind, ast.Name) and kind.id == "BaseException" and raises and not leaves


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_module_in_the_program_keeps_nothing_of_the_programs(path: Path) -> None:
    for handler in nodes(path, ast.ExceptHandler):
        assert asks(handler), f"{path}:{handler.lineno}: except without `ours`"
    for node in nodes(path, ast.Attribute):
        owner = getattr(node.value, "id", "")
        is_path = isinstance(node.value, ast.Attribute) and node.value.attr == "path"
        assert not (is_path and node.attr in KEEP_ERRORS), f"{path}:{node.lineno}: os.path.{node.attr}"
        assert not (owner == "os" and node.attr in OF_OS), f"{path}:{node.lineno}: os.{node.attr}"
        # Only what runs no bytecode: test_pauses.py.
        assert node.attr != "callbacks" or owner != "gc" or path.name == "pauses.py"
    for whole in nodes(path, ast.Import):  # whose names are looked up when they are used
        replaced = {alias.name for alias in whole.names} & REPLACED
        held = path.name == "bootstrap.py" and replaced == {"_signal"}  # it replaces a name there itself
        assert held or not replaced, f"{path}:{whole.lineno}: import {replaced}"
    for imported in nodes(path, ast.ImportFrom):
        names = {alias.name for alias in imported.names}
        early = path.name == "unpatched.py"
        assert early or imported.module != "_thread", f"{path}: _thread, not by `unpatched`"
        assert early or imported.module != "time" or "sleep" not in names, f"{path}: sleep"
        assert imported.module != "os" or not names & OF_OS, f"{path}: {names & OF_OS} of os"
        assert imported.module != "os.path" or not names & KEEP_ERRORS, f"{path}: {names & KEEP_ERRORS}"
        assert imported.module != "weakref" or names <= {"ref"}, f"{path}: {names} calls back in Python"
    for function in nodes(path, ast.FunctionDef):
        assert function.name != "__del__", f"{path}:{function.lineno}"
    for call in nodes(path, ast.Call):
        called = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if called == "ref" and len(call.args) > 1:
            assert getattr(getattr(call.args[1], "func", None), "id", "") == "partial", (
                f"{path}:{call.lineno}"
            )
        if called == "register_at_fork":
            assert [keyword.arg for keyword in call.keywords] == ["after_in_child"], f"{path}:{call.lineno}"


def raise_late(*_: Any) -> None:
    raise TimeoutError("late")


class Handler:
    """An object that is called, and one with a method for a handler."""

    def __call__(self, *_: Any) -> None:
        raise TimeoutError("late")

    def method(self, *_: Any) -> None:
        raise TimeoutError("late")


@functools.wraps(raise_late)
def wrapped(*args: Any) -> None:
    raise_late(*args)


HANDLERS: list[Any] = [
    raise_late,
    lambda *_: raise_late(),
    functools.partial(raise_late, 1),
    Handler(),
    Handler().method,
    functools.partial(Handler()),
    wrapped,
]


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler is known."""
    monkeypatch.setattr(guard, "_handlers", {})
    monkeypatch.setattr(guard, "handled", set())


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_is_not_ours(handler: Callable[..., None]) -> None:
    def guarded(call: Callable[..., None]) -> None:
        try:
            call(signal.SIGALRM, None)
        except ours(OSError):
            pass

    guarded(handler)  # nobody knows it yet
    guard.remember(signal.SIGALRM, handler)
    with pytest.raises(TimeoutError) as raised:
        guarded(handler)
    names = [entry.name for entry in raised.traceback]
    assert "guarded" not in names, names  # its frame is not the program's business


@pytest.mark.usefixtures("forgotten")
def test_errors_of_our_own_are_ours_and_no_exception_that_is_none() -> None:
    guard.remember(signal.SIGALRM, raise_late)

    def guarded(kind: type[BaseException]) -> bool:
        try:
            raise kind
        except ours(OSError, ValueError):
            return True

    assert guarded(ValueError)
    assert guarded(TimeoutError)
    for kind in (KeyError, KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(kind):
            guarded(kind)


@pytest.mark.usefixtures("forgotten")
def test_what_is_no_handler_is_not_remembered() -> None:
    for number, handler in [(signal.SIGALRM, signal.SIG_DFL), (99, raise_late), ("x", raise_late)]:
        guard.remember(number, handler)  # type: ignore[arg-type]
    assert guard.handled == set()


def records_of(directory: str) -> list[dict[str, Any]]:
    """The records in a process's directory."""
    return [json.loads(line) for line in (Path(directory) / "records.jsonl").read_text().splitlines()]


class Signalling:
    """A value that is interrupted by a signal as it is written."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __repr__(self) -> str:
        if self.times:
            self.times -= 1
            signal.raise_signal(signal.SIGALRM)
        return "written"


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    (tmp_path / "processes").mkdir()
    made = Recorder(str(tmp_path))
    made.open({"pid": 1, "ppid": 0, "role": "main"})
    return made


@pytest.fixture
def handle() -> Iterator[Callable[[Any], None]]:
    """Install a handler of SIGALRM for the test, and remember it as the agent does."""

    def install(handler: Any) -> None:
        signal.signal(signal.SIGALRM, handler)
        guard.remember(signal.SIGALRM, handler)

    yield install
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


@pytest.mark.usefixtures("forgotten")
def test_an_interrupted_write_loses_nothing_and_writes_nothing_twice(recorder: Recorder, handle: Any) -> None:
    handle(raise_late)
    recorder.records.extend({"type": "test", "number": number} for number in range(3))
    recorder.records.append({"type": "test", "number": 3, "value": Signalling(2)})
    for _ in range(2):
        with pytest.raises(TimeoutError):
            recorder.flush()
    recorder.close()
    recorder.close()
    written = records_of(recorder.directory)
    assert [record["number"] for record in written if record["type"] == "test"] == [0, 1, 2, 3]
    assert [record["type"] for record in written].count("end") == 1


@pytest.mark.usefixtures("forgotten")
def test_a_handler_that_records_within_our_own_write_does_not_hang(recorder: Recorder, handle: Any) -> None:
    def handler(*_: Any) -> None:
        recorder.records.append({"type": "test", "number": 1})
        recorder.flush()

    handle(handler)
    recorder.records.append({"type": "test", "number": 0, "value": Signalling(1)})
    recorder.flush()
    recorder.close()
    written = records_of(recorder.directory)
    assert [record["number"] for record in written if record["type"] == "test"] == [0, 1]


def test_a_lock_that_nobody_releases_does_not_keep_a_process_from_its_end(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Held:
        def acquire(self, *how: Any) -> bool:
            asked.append(how)
            return False

        def _is_owned(self) -> bool:
            return False

    monkeypatch.setattr(recorder, "_lock", Held())
    recorder.close()
    assert set(asked) == {(True, 2.0)}


def test_what_is_known_of_an_object_goes_with_it() -> None:
    class Thing:
        __hash__ = None  # type: ignore[assignment]

    table, thing, others = WeakTable(), Thing(), [Thing(), Thing()]
    assert table.put(thing, 1)
    assert table.put(thing, 2)
    assert not table.put(3, 3)  # an int allows no weak reference
    assert [table.put(other, 4) for other in others] == [True, True]
    assert (table.get(thing), table.get(3), len(table.alive())) == (2, None, 3)
    del thing, others[0]
    assert len(table.alive()) == 1
    assert len(table.held) == 1
