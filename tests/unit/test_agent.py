"""The agent's parts, in this process: encoding, patches, import hooks, spans, the recorder."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import queue
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from contextvars import Context, copy_context
from mmap import mmap
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

import iotrace
from iotrace.agent import imports, patching
from iotrace.agent.dataloader import consumer
from iotrace.agent.dataloader.fetch import collate_source, item_source
from iotrace.agent.readpaths.memory_maps import MapAccesses
from iotrace.agent.readpaths.row_groups import RowGroupReads
from iotrace.agent.recording import spans
from iotrace.agent.recording.encode import encode
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.recording.spans import timed
from iotrace.session.append_file import Stream
from iotrace.session.names import KIND_ITEM, LOG, PROCESSES
from iotrace.sources.processes import read_processes
from tests.support.counting import instructions
from tests.support.texts import any_text

values = st.recursive(
    st.none() | st.booleans() | st.integers() | any_text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(any_text(), inner),
    max_leaves=10,
)


@given(values)
def test_encode_writes_json(value: object) -> None:
    assert json.loads(encode(value)) == value


def test_encode_has_no_nan() -> None:
    assert encode([float("nan"), float("inf")]) == "[null,null]"


def test_a_patch_is_made_once_keeps_the_name_and_is_undone() -> None:
    module = types.SimpleNamespace()

    def original() -> str:
        return "original"

    module.call = original
    for _ in range(2):
        patching.patch(module, "call", lambda before: lambda: "patched " + before())
    assert module.call() == "patched original"
    assert module.call.__qualname__ == original.__qualname__
    patching.patch(module, "missing", lambda before: before)
    patching.undo_all()
    assert module.call is original


def test_a_patched_builtin_may_be_held_by_a_class_and_pickled() -> None:
    undo = patching.patch(os, "getpgid", lambda before: lambda *args: before(*args))
    holder = type("Holder", (), {"group": os.getpgid})
    try:
        assert hasattr(os.getpgid, patching.MARKER)
        assert holder().group(0) == os.getpgid(0) == os.getpgrp()
        assert pickle.loads(pickle.dumps(os.getpgid)) is os.getpgid
    finally:
        undo()


def test_a_child_without_a_directory_writes_nothing_into_its_parents(tmp_path: Path) -> None:
    (tmp_path / PROCESSES).mkdir()
    recorder = Recorder(str(tmp_path))
    recorder.open({"pid": 1, "ppid": 0, "role": "main"})
    recorder.records.append({"type": "worker_up", "mono_ns": 1})
    recorder.flush()
    (records,) = tmp_path.glob("processes/*/records.jsonl")
    written = records.read_bytes()
    (tmp_path / PROCESSES).rename(tmp_path / "elsewhere")
    (tmp_path / PROCESSES).touch()  # what `open` makes a directory in
    with pytest.raises(OSError, match="Not a directory"):
        recorder.after_fork_in_child({"pid": 2, "ppid": 1, "role": "forked"})
    (tmp_path / PROCESSES).unlink()
    (tmp_path / "elsewhere").rename(tmp_path / PROCESSES)
    recorder.over = True
    recorder.records.append({"type": "worker_up", "mono_ns": 2})
    recorder.start()
    recorder.close()
    assert records.read_bytes() == written


def observed(module: types.SimpleNamespace, recorder: Recorder, **functions: Any) -> None:
    patching.observe(module, "call", recorder, "looking on", **functions)


def test_an_observed_call_is_seen_before_and_after(tmp_path: Path) -> None:
    seen: list[Any] = []

    def before(args: list[Any], kwargs: dict[str, Any]) -> str:
        seen.append((*args, kwargs))
        args[0] += 1
        return "token"

    module = types.SimpleNamespace(call=lambda number, by=1: number * by)
    observed(
        module,
        Recorder(str(tmp_path)),
        before=before,
        ended=lambda *found: seen.append(("ended", *found)),
        after=lambda *found: seen.append(("after", *found)),
    )
    assert module.call(2, by=10) == 30
    by_ten = {"by": 10}
    assert seen == [(2, by_ten), ("ended", "token", [3], by_ten), ("after", "token", 30, [3], by_ten)]
    patching.undo_all()


def test_an_observed_call_that_fails_fails_as_ever(tmp_path: Path) -> None:
    def fails(text: str) -> None:
        raise ValueError(text)

    ended: list[Any] = []
    after: list[Any] = []
    module = types.SimpleNamespace(call=fails)
    observed(
        module,
        Recorder(str(tmp_path)),
        ended=lambda *found: ended.append(found),
        after=lambda *found: after.append(found),
    )
    with pytest.raises(ValueError, match="no number") as caught:
        module.call("no number")
    assert ended == [(None, ["no number"], {})]
    assert after == []
    assert all("/iotrace/agent/" not in str(entry.path) for entry in caught.traceback)
    patching.undo_all()


def test_what_an_observer_raises_is_logged_and_no_more(tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug of ours")

    recorder = make_recorder(tmp_path)
    module = types.SimpleNamespace(call=int)
    observed(module, recorder, before=broken, ended=broken, after=broken)
    assert [module.call("7") for _ in range(50)] == [7] * 50
    patching.undo_all()
    lines = (Path(recorder.directory) / LOG).read_text().splitlines()
    assert all("looking on failed: RuntimeError('a bug of ours')" in line for line in lines)
    assert len(lines) == 100  # of 150: what fails at each call does not fill the disk
    recorder.close()


def test_what_fails_behind_the_last_record_is_no_loss(tmp_path: Path) -> None:
    """Python takes our modules down while the last objects of the program still call into them."""
    recorder = make_recorder(tmp_path)
    recorder.absorb(TypeError("before"), "recording")
    recorder.close()
    recorder.absorb(TypeError("'NoneType' object is not callable"), "timing workers")
    log = (Path(recorder.directory) / LOG).read_text()
    assert ("before" in log, "timing" in log) == (True, False)


def test_undo_leaves_a_later_patch_of_somebody_else() -> None:
    module = types.SimpleNamespace(call=lambda: 1)
    patching.patch(module, "call", lambda before: lambda: before() + 1)
    ours = module.call
    module.call = lambda: ours() + 10
    patching.undo_all()
    assert module.call() == 12


def test_a_traceback_does_not_show_the_agent(tmp_path: Path) -> None:
    def broken() -> None:
        raise ValueError("the program's own")

    recorder = Recorder(str(tmp_path))
    wrapped = timed(recorder, broken, "broken", KIND_ITEM)
    with pytest.raises(ValueError, match="own") as caught:
        wrapped()
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[-1] == "broken"
    assert "timed_call" not in frames
    assert len(recorder.spans) == 1


def test_hooks_run_after_an_import_and_their_errors_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hooked_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[int] = []
    log: list[str] = []

    def hook(module: types.ModuleType) -> None:
        seen.append(module.value)
        raise RuntimeError("a bug of ours")

    remove = imports.install({"hooked_module": hook}, lambda error, what: log.append(f"{what}: {error!r}"))
    try:
        import hooked_module  # type: ignore[import-not-found]
    finally:
        remove()
        sys.modules.pop("hooked_module", None)
    assert seen == [1]
    assert "a bug of ours" in log[0]
    assert type(hooked_module.__loader__).__name__ == "SourceFileLoader"
    assert hooked_module.__spec__.loader is hooked_module.__loader__


def make_recorder(session: Path) -> Recorder:
    (session / PROCESSES).mkdir(exist_ok=True)
    recorder = Recorder(str(session))
    recorder.open({"pid": os.getpid(), "ppid": 1, "role": "main"})
    return recorder


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    measure = timed(recorder, time.sleep, "sleep", KIND_ITEM)
    began_ns = time.thread_time_ns()
    measure(0.05)
    used_ns = time.thread_time_ns() - began_ns
    recorder.close()
    (process,) = read_processes(tmp_path)[0]
    assert process.ended
    assert not process.problems
    (span,) = process.spans
    assert process.texts[span["name"]] == "sleep"
    assert span["duration_ns"] >= 50_000_000
    assert span["cpu_ns"] <= used_ns + 10_000_000  # one tick of the kernel's account
    assert span["voluntary_switches"] >= 1
    assert abs(int(span["start_ns"]) + int(span["duration_ns"]) - time.time_ns()) < 10**9


def test_cpu_time_of_a_span_is_that_of_its_thread(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path))

    burnt_ns: list[int] = []

    def burn() -> None:
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() < began_ns + 30_000_000:
            pass
        burnt_ns.append(time.thread_time_ns() - began_ns)

    began_ns = time.thread_time_ns()
    timed(recorder, burn, "burn", KIND_ITEM)()
    most_ns = time.thread_time_ns() - began_ns
    # The kernel brings rusage up to date at its ticks, at most 10 ms apart.
    assert burnt_ns[0] - 10_000_000 <= recorder.spans[0][2] <= most_ns + 10_000_000


def test_parts_of_a_librarys_call_on_its_threads_are_not_recorded(tmp_path: Path) -> None:
    """They have no file; the call's own span holds their time. asyncio hands the context on, as zarr does."""
    recorder = make_recorder(tmp_path)
    part = timed(recorder, lambda file: None, "part", KIND_ITEM, lambda _, args, __: (1, args[0]), part=True)
    kept: list[Context] = []

    def aside(context: Context, file: str) -> None:
        thread = Thread(target=context.run, args=(part, file))
        thread.start()
        thread.join()

    def call() -> None:
        kept.append(copy_context())
        for file in ("", "a.gz"):
            aside(kept[0], file)
        part("")
        aside(Context(), "")  # of a thread of the program's

    timed(recorder, call, "call", KIND_ITEM, own_threads=True)()
    aside(kept[0], "")
    recorder.close()
    (process,), _ = read_processes(tmp_path)
    assert [process.texts[number] for number in process.spans["name"].tolist()] == [
        *("part", "part", "part", "call", "part")
    ]


@pytest.mark.parametrize("memory", [False, True])
def test_to_wait_for_threads_that_work_on_memory_is_no_reading(tmp_path: Path, memory: bool) -> None:
    recorder = make_recorder(tmp_path)
    timed(recorder, lambda: time.sleep(0.02), "convert", KIND_ITEM, own_threads=True, memory=memory)()
    recorder.close()
    (process,), _ = read_processes(tmp_path)
    assert (process.spans["voluntary_switches"][0] > 0) != memory


def test_a_librarys_call_may_end_while_its_part_begins(tmp_path: Path) -> None:
    class Ending(list):  # type: ignore[type-arg]
        """The caller of a part: its call ends on another thread as soon as somebody has looked at it."""

        def __len__(self) -> int:
            length = super().__len__()
            self.clear()
            return length

    recorder = make_recorder(tmp_path)
    part = timed(recorder, lambda: "read", "part", KIND_ITEM, lambda *_: (1, ""), part=True)
    context = copy_context()
    context.run(spans._caller.set, Ending([1]))
    assert context.run(part) == "read"


def test_single_elements_of_a_map_are_told_at_the_end_though_no_further_access_was() -> None:
    recorder: Any = SimpleNamespace(directory="d", closed=False, before_flush=[], records=[], start=bool)
    mapped: Any = SimpleNamespace(
        filename="a.bin", flags=SimpleNamespace(c_contiguous=True), base=mmap(-1, 1)
    )
    accesses = MapAccesses(recorder)
    accesses.add(mapped, 0, 4096)
    (tell,) = recorder.before_flush
    tell()
    accesses.elements += 1000
    recorder.closed = True
    for _ in range(2):
        tell()
    assert [(told["accesses"], told["elements"]) for told in recorder.records] == [(1, 0), (1, 1000)]


def test_of_many_parquet_files_the_first_are_known_and_no_others_kept() -> None:
    recorder: Any = SimpleNamespace(directory="d", closed=True, before_flush=[], records=[])
    group = SimpleNamespace(num_rows=5, column=lambda _: SimpleNamespace(compression="ZSTD"))
    metadata = SimpleNamespace(num_columns=1, num_rows=5, num_row_groups=1, row_group=lambda _: group)
    reads = RowGroupReads(recorder, "read")
    for number in range(100):
        result = SimpleNamespace(num_rows=5)
        assert reads.note(result, f"{number}.parquet", (SimpleNamespace(metadata=metadata),), {}, 40) == 40
    assert len(reads._known) == 64
    recorder.before_flush[0]()
    assert [told["read"] for told in recorder.records] == [[[0, 1, 5, 40]]] * 64


def test_a_span_of_a_call_that_raised_has_its_file(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)

    def read(name: str) -> None:
        raise OSError(name)

    def describe(result: Any, args: tuple[str, ...], _: dict[str, Any]) -> tuple[int, str]:
        return len(args[1]) if result else 7, args[0]

    for words in ("a.h5",), ():  # of the second call `describe` itself fails
        with pytest.raises((OSError, TypeError)):
            timed(recorder, read, "read", KIND_ITEM, describe)(*words)
    recorder.close()
    (process,) = read_processes(tmp_path)[0]
    assert [process.texts.get(span["file"]) for span in process.spans] == ["a.h5", None]
    assert process.spans["bytes"].tolist() == [-1, -1]
    assert not list(tmp_path.glob("processes/*/agent.log"))


def test_a_failed_write_keeps_whole_records_and_says_so(tmp_path: Path) -> None:
    recorder = make_recorder(tmp_path)
    recorder.records.append({"type": "text", "id": 99, "text": "kept"})
    recorder.flush()
    full = Stream("/dev/full")
    recorder._spans_stream = full
    timed(recorder, int, "int", KIND_ITEM)()
    recorder.close()
    (process,) = read_processes(tmp_path)[0]
    assert "No space left" in full.broken
    assert process.texts[99] == "kept"
    assert any("No space left" in problem for problem in process.problems)


def test_a_program_that_closes_every_descriptor_gets_nothing_of_ours(tmp_path: Path) -> None:
    stream = Stream(str(tmp_path / "stream"))
    stream.write(b"one")
    os.close(stream._descriptor)
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, stream._descriptor)
    stream.write(b"two")
    assert (tmp_path / "stream").read_bytes() == b"onetwo"
    assert (tmp_path / "theirs").read_bytes() == b""


def test_a_span_makes_few_calls_and_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least of many spans: a switch of the thread during one costs it further calls."""
    recorder = Recorder(str(tmp_path))
    monkeypatch.setattr(spans, "_FRESH_NS", 0)

    def nothing() -> None:
        pass

    measure = timed(recorder, nothing, "nothing", KIND_ITEM)
    calls = min((_calls_of(measure) for _ in range(200)), key=len)
    assert calls == ["monotonic_ns", "getrusage", "nothing", "monotonic_ns", "getrusage", "append"]
    assert min(instructions(measure) for _ in range(200)) <= 150
    monkeypatch.setattr(spans, "_FRESH_NS", 10**9)  # the next span begins at once
    measure()
    calls = _calls_of(measure)
    assert calls == ["monotonic_ns", "nothing", "monotonic_ns", "getrusage", "append"]


def _calls_of(call: Callable[[], None]) -> list[str]:
    """The names of the functions that `call` calls, in Python and in C."""
    found: list[str] = []

    def profile(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_name)
        elif event == "c_call":
            found.append(function.__name__)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found[1:-1]  # without `call` itself and the end of profiling


def test_the_pin_memory_thread_is_stamped_on_both_sides(tmp_path: Path) -> None:
    """A stand-in for torch's loop, which needs an accelerator: the wrapping is ours, the loop is not."""
    from iotrace.agent.dataloader.consumer import hook_pin_memory_loop, stamps_of

    def loop(in_queue: Any, out_queue: Any, device: str) -> None:
        for _ in range(2):
            index, data = in_queue.get(timeout=1)
            out_queue.put((index, f"{data} on {device}"))

    module = types.SimpleNamespace(_pin_memory_loop=loop)
    arrived: queue.Queue[Any] = queue.Queue()
    pinned: queue.Queue[Any] = queue.Queue()
    stamps = stamps_of(arrived)
    hook_pin_memory_loop(module, Recorder(str(tmp_path)))
    arrived.put((0, "a"))
    arrived.put((1, "b"))
    module._pin_memory_loop(arrived, pinned, "cuda")
    patching.undo_all()
    assert [pinned.get(), pinned.get()] == [(0, "a on cuda"), (1, "b on cuda")]
    assert sorted(stamps) == [0, 1]
    assert all(0 < received <= pinned_ns for received, pinned_ns in stamps.values())


def test_a_stream_that_cannot_be_reopened_leaves_the_programs_file_alone(tmp_path: Path) -> None:
    stream = Stream(str(tmp_path / "gone" / "stream"))
    (tmp_path / "gone").mkdir()
    stream.write(b"1")
    theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
    os.write(theirs, b"weights")
    os.dup2(theirs, stream._descriptor)
    (tmp_path / "gone" / "stream").unlink()
    (tmp_path / "gone").rmdir()
    stream.write(b"2")
    assert stream.broken
    assert (tmp_path / "theirs").read_bytes() == b"weights"


def test_a_function_that_a_package_holds_is_patched_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iotrace.agent.readpaths.hooks import hook
    from iotrace.agent.readpaths.table import Row

    package, module = types.ModuleType("library"), types.ModuleType("library.io")
    module.read = package.read = lambda path: b"data"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", package)
    recorder = make_recorder(tmp_path)
    hook(module, Row("library", "read", "0:path"), recorder)
    assert package.read is module.read
    assert package.read(path="a file") == b"data"
    ((_, _, _, size_bytes, _, _, file, *_),) = recorder.spans
    assert size_bytes == 4
    assert recorder.text("a file") == file
    recorder.close()
    patching.undo_all()
    assert not hasattr(package.read, patching.MARKER)
    assert package.read is module.read


def test_a_call_that_hands_what_it_read_to_the_program_is_not_recorded_whole(tmp_path: Path) -> None:
    """As Hugging Face's datasets do with `set_transform`: what they read has rows of its own."""
    from iotrace.agent.readpaths.hooks import hook
    from iotrace.agent.readpaths.table import Row

    class Rows:
        def __init__(self, transformed: bool) -> None:
            self.transformed = transformed

        def get(self) -> int:
            return 7

    recorder = make_recorder(tmp_path)
    module = types.ModuleType("library")
    module.Rows = Rows  # type: ignore[attr-defined]
    hook(module, Row("library", "Rows.get", size="", skip=lambda args: bool(args[0].transformed)), recorder)
    counts = []
    for transformed in (True, False):
        assert Rows(transformed).get() == 7
        counts.append(len(recorder.spans))
    assert counts == [0, 1]
    patching.undo_all()
    recorder.close()


def test_every_module_of_a_library_that_is_waited_for_has_its_hook() -> None:
    from iotrace.agent.bootstrap import READ_PATH_MODULES, STANDARD_MODULES
    from iotrace.agent.readpaths.table import ROWS

    assert sorted((*READ_PATH_MODULES, *STANDARD_MODULES)) == sorted(ROWS)


def test_every_module_of_the_loaders_table_is_hooked() -> None:
    from iotrace.agent.bootstrap import LOADER_MODULES
    from iotrace.agent.loaders.record import ROWS

    assert sorted(LOADER_MODULES) == sorted(ROWS)


def test_every_library_with_a_read_path_is_in_the_documents() -> None:
    from iotrace.agent.readpaths.table import ROWS

    table = (Path(__file__).parent.parent.parent / "docs" / "definitions.md").read_text()
    listed = table.split("| Library | Read paths |")[1].split("\n\n")[0]
    for rows in ROWS.values():
        for row in rows:
            for library in row.library.split(" or "):
                assert library.partition(".")[0] in listed


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3.Blob is new in Python 3.11")
def test_a_compiled_class_gets_its_methods_back(tmp_path: Path) -> None:
    import sqlite3

    from iotrace.agent.readpaths.hooks import hook
    from iotrace.agent.readpaths.table import Row

    original = sqlite3.Blob.__dict__["read"]
    recorder = make_recorder(tmp_path)
    base = sqlite3.connect(":memory:")
    base.execute("create table t (v blob)")
    base.execute("insert into t values (x'010203')")
    hook(sqlite3, Row("sqlite3", "Blob.read"), recorder)
    hook(sqlite3, Row("sqlite3", "Blob.read"), recorder)
    hook(sqlite3, Row("sqlite3", "Blob.__getitem__"), recorder)  # by a slot: cannot be hooked
    with base.blobopen("t", "v", 1) as blob:
        assert type(blob) is sqlite3.Blob
        assert blob.read() == b"\1\2\3"
        assert blob[0] == 1
    ((_, _, _, size_bytes, *_),) = recorder.spans
    assert size_bytes == 3
    recorder.close()
    patching.undo_all()
    assert sqlite3.Blob.__dict__["read"] is original


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 keeps the frame of a bare raise")
def test_an_error_of_a_compiled_function_shows_no_frame_of_ours(tmp_path: Path) -> None:
    import traceback

    from iotrace.agent.readpaths.hooks import hook
    from iotrace.agent.readpaths.table import Row

    module = types.ModuleType("library")
    module.small = module.plain = int  # type: ignore[attr-defined]
    recorder = make_recorder(tmp_path)
    hook(module, Row("library", "small", least=2), recorder)
    hook(module, Row("library", "plain"), recorder)
    for call, text in ((module.small, "x"), (module.small, "xyz"), (module.plain, "x")):
        with pytest.raises(ValueError, match="invalid literal") as raised:
            call(text)
        assert [frame.name for frame in traceback.extract_tb(raised.tb)] == [
            "test_an_error_of_a_compiled_function_shows_no_frame_of_ours"
        ]
    assert len(recorder.spans) == 2
    recorder.close()
    patching.undo_all()


def test_an_image_of_an_open_file_has_its_file_after_it_was_loaded(tmp_path: Path) -> None:
    """PIL forgets the file then, and knows the name of a path alone; a buffer has none."""
    from PIL import Image

    from iotrace.agent.readpaths import finders

    path = tmp_path / "a.png"
    Image.new("L", (4, 4)).save(path)
    with path.open("rb") as file:
        for source, found in ((file, str(path)), (path, str(path)), (io.BytesIO(path.read_bytes()), "")):
            image = Image.open(source)
            assert finders.path_of(finders.pil_opened(image, (source,), {})) == found
            image.load()
            assert finders.path_of(finders.pil_image(None, (image,), {})) == found


def test_a_path_of_an_array_of_text_is_recorded_as_text() -> None:
    import numpy as np

    from iotrace.agent.readpaths import finders
    from iotrace.agent.recording.encode import encode

    path = np.array(["data/a.npz"])[0]
    assert encode(finders.path_of(path)) == '"data/a.npz"'


def test_finders_say_where_a_call_has_its_file() -> None:
    from iotrace.agent.readpaths import finders

    class Reader:
        path = "a.bin"

        def name(self) -> str:
            return "b.bin"

    reader = Reader()
    finders.remember(reader, "c.bin")
    for text, found in (
        ("0:source", reader),
        ("0.path", "a.bin"),
        ("0.name()", "b.bin"),
        ("made 0", "c.bin"),
        ("result", "bytes"),
        ("result.1", "y"),
        ("result.9", None),
        ("1:source", "d.bin"),
        ("2:missing", None),
        ("0.missing.path", None),
    ):
        assert finders.compiled(text)("bytes", (reader,), {"source": "d.bin"}) == found
    key = id(reader)
    del reader
    assert key not in finders.made


def test_what_fsspec_reads_has_a_url() -> None:
    from iotrace.agent.readpaths.finders import fsspec_object

    class System:
        protocol = ("s3", "s3a")

        def fetch(self) -> None: ...

    system = System()

    def inner() -> None: ...

    for args, kwargs, url in (
        ((None, system.fetch, "bucket/key", 0, 5), {}, "s3://bucket/key"),
        ((None, system.fetch), {"path": "bucket/key"}, "s3://bucket/key"),
        ((None, system.fetch, "s3://bucket/key"), {}, "s3://bucket/key"),
        ((None, inner, system, "bucket", "key", None, 0, 5), {}, "s3://bucket/key"),  # a block of s3fs
        ((None, inner), {}, ""),
    ):
        assert fsspec_object(b"", args, kwargs) == url


class Volumes:
    def __getitem__(self, index: int) -> int:
        return index

    def __iter__(self) -> Any:
        return iter(())


def test_the_function_that_makes_items_is_found() -> None:
    line = Volumes.__getitem__.__code__.co_firstlineno
    known = {"item": "Volumes.__getitem__", "item_site": f"{__file__}:{line}"}
    assert item_source(Volumes(), iterable=False) == known
    assert item_source(Volumes(), iterable=True)["item"] == "Volumes.__iter__"
    subset = type("Subset", (), {"__module__": "torch.utils.data.dataset"})()
    subset.dataset = Volumes()
    assert item_source(subset, iterable=False) == known
    decorated = type("Volumes", (), {"__getitem__": iotrace.region("sample")(Volumes.__getitem__)})()
    assert item_source(decorated, iterable=False) == known
    assert item_source([1, 2], iterable=False) == {"item": "list.__getitem__"}
    installed = compile("def __getitem__(self, index): ...", "/x/site-packages/tv/data.py", "exec")
    exec(installed, space := {"__name__": "tv.data"})
    assert item_source(type("ImageFolder", (), space)(), iterable=False) == {
        "item": "ImageFolder.__getitem__",
        "item_library": "tv",
    }


def pad(samples: list[Any]) -> list[Any]:
    return samples


def test_the_function_that_puts_samples_together_is_found() -> None:
    known = {"collate": "pad", "collate_site": f"{__file__}:{pad.__code__.co_firstlineno}"}
    assert collate_source(pad) == collate_source(functools.partial(pad)) == known
    padder = type("Padder", (), {"__call__": lambda self, samples: samples, "pad": pad})()
    assert collate_source(padder)["collate"] == "Padder.__call__"
    assert collate_source(padder.pad) == known
    assert collate_source(None) == collate_source(len) == {}
    for library, found in (("torch_geometric", {"collate_library": "torch_geometric"}), ("torch", {})):
        installed = compile("def pad(samples): ...", f"/x/site-packages/{library}/data.py", "exec")
        exec(installed, space := {"__name__": f"{library}.data"})
        assert collate_source(space["pad"]) == found


def test_a_dataset_that_fails_when_looked_at_is_left_alone() -> None:
    class Odd(type):
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(name)

    assert item_source(Odd("Odd", (), {})(), iterable=False) == {}


@pytest.mark.parametrize(
    ("module", "function", "builder"),
    [
        ("transformers.trainer", "get_train_dataloader", "transformers"),
        ("lightning.fabric.utilities.data", "wrapper", None),  # around the program's own call
        ("torch.utils.data.dataloader", "__init__", None),
    ],
)
def test_a_loaders_line_is_the_programs_and_its_library_is_told(
    module: str, function: str, builder: str | None
) -> None:
    library: dict[str, Any] = {"__name__": module}
    exec(f"def {function}(make):\n    return make()", library)

    def observed() -> tuple[str, str | None]:
        return consumer._building_site()

    site, found = library[function](observed)
    assert (site.rpartition(":")[0], found) == (__file__, builder)


def test_a_table_is_asked_for_its_bytes_in_the_way_that_costs_little() -> None:
    from iotrace.agent.readpaths.finders import size_of

    class Table:
        nbytes = 7

    class OfPyarrow(Table):
        def get_total_buffer_size(self) -> int:
            return 8

    OfPyarrow.__name__ = "Table"
    assert (size_of(Table()), size_of(OfPyarrow())) == (7, 8)


@pytest.mark.parametrize("others", [0, 1])
def test_the_writer_ends_for_a_fork_unless_the_program_has_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    (tmp_path / "processes").mkdir()
    recorder = Recorder(str(tmp_path))
    recorder.open({})
    recorder.start()
    monkeypatch.setattr(threading, "_active", dict.fromkeys(range(1 + others)))
    recorder.before_fork()
    assert recorder.asleep == (not others)
    recorder._writing = True  # it may hold what the child needs
    recorder.before_fork()
    assert recorder.asleep
    recorder.close()
