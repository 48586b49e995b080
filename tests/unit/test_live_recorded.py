"""The recorder's files while they grow: each burst once and whole, names always, and a bounded look."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import iotrace
from iotrace.launch import capture_directory
from iotrace.session import names, recorded as layout
from iotrace.session.identity import boot_id
from iotrace.sources.clocks.anchors import AnchorSource, Clocks, relate_clocks
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.live import recorded, recorded as live_recorded
from iotrace.sources.live.recorded import Known, LiveRecorded
from iotrace.sources.posix_calls import PosixCalls
from iotrace.sources.recorder import layout as numpy_layout
from iotrace.sources.recorder.reader import read_recorded
from iotrace.sources.records import Identity
from tests.support.recorded import NODE, RecordedFile

MS, SECOND = 1_000_000, 1_000_000_000
PID, START_NS = 77, 5 * SECOND
ANCHOR = (START_NS, START_NS, 10)  # CLOCK_REALTIME is CLOCK_MONOTONIC here
CLOCK = Clock([ANCHOR])


@pytest.fixture
def file() -> RecordedFile:
    found = RecordedFile(PID, START_NS, START_NS)
    found.name_file(3, "/d/a.h5")
    found.thread(PID)
    return found


def look(live: LiveRecorded, directory: Path) -> PosixCalls:
    live.poll([directory])
    return live.calls(Clocks())


def known(live: LiveRecorded, boot: str = "elsewhere") -> Known:
    found = live.find_known(Identity(1, PID, 1, "main", ANCHOR, NODE, NODE, boot), CLOCK)
    assert found is not None
    return found


def test_each_burst_is_taken_once_and_when_it_grows_no_more(tmp_path: Path, file: RecordedFile) -> None:
    live = LiveRecorded()
    at = [file.burst(PID, START_NS + number * 10 * MS, MS // 2, 3) for number in range(3)]
    file.write(tmp_path)
    assert look(live, tmp_path).start_ns.tolist() == [START_NS, START_NS + 10 * MS]
    file.change(at[2], START_NS + 20 * MS, MS, 3, 3 * 4096, 3)
    file.write(tmp_path)
    assert len(look(live, tmp_path)) == 2  # it was another at the last look
    for _ in range(3):
        found = look(live, tmp_path)
        assert (found.made, found.result.tolist()[2]) == (5, 3 * 4096)
    assert found.sums is None
    assert known(live).until_ns == START_NS + 21 * MS


def test_what_is_read_in_pieces_is_what_is_read_as_a_whole(tmp_path: Path, file: RecordedFile) -> None:
    live = LiveRecorded()
    for number in range(1500):
        if number % 7 == 0:
            file.name_file(4 + number, f"/d/{number}.h5")
            file.row(4 + number)
        start_ns = START_NS + number * 4 * MS
        file.burst(PID + number % 3, start_ns, MS, 4 + number - number % 7, calls=1 + number % 2)
        if number % 90 == 0:
            file.write(tmp_path)
            look(live, tmp_path)
    file.write(tmp_path)
    look(live, tmp_path)
    found, whole = look(live, tmp_path), read_recorded([tmp_path])
    assert len(found) == 1500
    for name in ("start_ns", "end_ns", "tid", "result", "calls"):
        assert getattr(found, name).tolist() == getattr(whole, name).tolist()
    names = [found.files[number] for number in found.file.tolist()]
    assert names == [whole.files[number] for number in whole.file.tolist()]


def test_a_look_reads_the_newest_and_says_since_when(
    tmp_path: Path, file: RecordedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_recorded, "MOST_BYTES", 400 * layout.BURST_BYTES)
    for number in range(1000):
        file.burst(PID, START_NS + number * 5 * MS, MS, 3)
    file.burst(PID, START_NS + 9 * SECOND, MS, 3)  # those before grow no more
    file.write(tmp_path)
    live = LiveRecorded()
    found = look(live, tmp_path)
    assert len(found) == 399
    assert known(live).since_ns == START_NS + (1001 - 400 - 1) * 5 * MS + MS
    assert set(found.files) == {"/d/a.h5"}


def test_a_name_that_comes_behind_its_bursts_is_learnt(tmp_path: Path, file: RecordedFile) -> None:
    live = LiveRecorded()
    for number in range(3):
        file.burst(PID, START_NS + number * 10 * MS, MS, 9)
    file.write(tmp_path)
    assert len(look(live, tmp_path)) == 0
    file.name_file(9, "/d/late.h5")
    file.write(tmp_path)
    found = look(live, tmp_path)
    assert (len(found), found.files) == (3, ["/d/late.h5"])


def test_of_much_that_is_new_the_rest_is_seen_by_the_next_looks(
    tmp_path: Path, file: RecordedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_recorded, "_MOST_RECORDS", 100)
    for number in range(250):
        file.row(3 + number)
    file.burst(PID, START_NS, MS, 3)
    file.burst(PID, START_NS + SECOND, MS, 3)
    file.write(tmp_path)
    live = LiveRecorded()
    assert [len(look(live, tmp_path)) for _ in range(4)] == [0, 0, 1, 2]


def test_what_was_dropped_for_the_sessions_size_is_unknown(tmp_path: Path, file: RecordedFile) -> None:
    at = [file.burst(PID, START_NS + number * 10 * MS, MS, 3) for number in range(20)]
    path = file.write(tmp_path)
    with open(path, "r+b") as written:
        written.seek(at[4])
        written.write(bytes(10 * layout.BURST_BYTES))
    live = LiveRecorded()
    assert len(look(live, tmp_path)) == 9
    assert known(live).since_ns == START_NS + 14 * 10 * MS


def test_calls_of_this_host_are_known_until_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, begin_ns = os.uname().nodename, time.monotonic_ns()
    file = RecordedFile(PID, begin_ns, time.time_ns(), node)
    file.name_file(3, "/d/a.h5")
    file.burst(PID, begin_ns, 1000, 3)
    file.write(tmp_path)
    live = LiveRecorded()
    clock = Clock([(begin_ns, begin_ns, 10)])
    identity = Identity(1, PID, 1, "main", (begin_ns, begin_ns, 10), node, node, boot_id())
    while not len(look(live, tmp_path)):
        time.sleep(0.001)
    for _ in range(2):  # it makes no call any more
        before_ns = time.monotonic_ns()
        look(live, tmp_path)
        found = live.find_known(identity, clock)
        assert found is not None
        assert found.until_ns >= before_ns - recorded.GROWS_NS
    assert live.find_known(Identity(1, 5, 1, "main", ANCHOR, node, node, boot_id()), clock) is None


def test_no_more_is_kept_than_is_asked_for(
    tmp_path: Path, file: RecordedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_recorded, "_MOST_CALLS", 50)
    for number in range(101):
        file.name_file(3 + number, f"/d/{number}.h5")
        file.burst(PID, START_NS + number * 10 * MS, MS, 3 + number)
    file.write(tmp_path)
    live = LiveRecorded()
    assert len(look(live, tmp_path)) == 100
    clocks = relate_clocks([AnchorSource(NODE, NODE, "b", [ANCHOR], PID)])
    live.forget(clocks, 0)
    assert len(live.calls(clocks)) == 50
    assert known(live).since_ns == START_NS + 50 * 10 * MS + MS
    live.forget(clocks, START_NS + 90 * 10 * MS)
    assert live.calls(clocks).files == [f"/d/{number}.h5" for number in range(90, 100)]


def test_threads_by_the_thousand_leave_no_chunks_behind(tmp_path: Path, file: RecordedFile) -> None:
    live = LiveRecorded()
    for turn in range(6):
        for number in range(100):
            time_ns = START_NS + (turn * 100 + number) * 10 * MS
            file.burst(1000 + turn * 100 + number, time_ns, MS, 3)
        file.write(tmp_path)
        look(live, tmp_path)
    (found,) = live._files.values()
    assert len(found._chunks) <= recorded._MANY_CHUNKS + 100
    assert len(look(live, tmp_path)) == 600


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: bytes(len(data)),
        lambda data: data[:100],
        lambda data: data[:5000],
        lambda data: data.replace(b"IOTPOSX1", b"IOTPOSX2"),
        lambda data: data[:8] + b"\xff" * 8 + data[16:],
        lambda data: data[:300] + b"\xff" * 2000 + data[2300:],
        lambda data: data[:256] + os.urandom(len(data) - 256),
        lambda data: data[:1400] + b"\xff" * (len(data) - 1400),
    ],
)
def test_a_damaged_file_gives_what_it_gives(
    tmp_path: Path, file: RecordedFile, damage: Callable[[bytes], bytes]
) -> None:
    for number in range(400):
        file.burst(PID, START_NS + number * 10 * MS, MS, 3)
    path = file.write(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(whole))
    (tmp_path / "1-1-n.io").mkdir()
    os.mkfifo(tmp_path / "2-1-n.io")
    (tmp_path / "3-1-n.io").symlink_to(path)
    live = LiveRecorded()
    for _ in range(3):
        look(live, tmp_path)
    live.forget(Clocks(), START_NS)
    path.unlink()
    look(live, tmp_path)


def test_what_the_standard_library_reads_is_what_numpy_reads() -> None:
    assert layout.HEAD_BYTES == numpy_layout.HEAD_BYTES
    assert layout._HEAD.size == numpy_layout.HEAD.itemsize
    assert layout._THREAD.size == numpy_layout.THREADS.itemsize
    assert numpy_layout.BURST.itemsize == layout.BURST_BYTES
    format_h = (Path(iotrace.__file__).parent / "capture" / "format.h").read_text()
    assert f"BURSTS_EACH = {layout.BURSTS_EACH} " in format_h
    kinds = (layout.NAME, layout.ROW, layout.BURSTS, layout.THREAD, layout.BLOCKS)
    names_and_kinds = zip(("NAME", "ROW", "BURSTS", "THREAD", "BLOCKS"), kinds, strict=True)
    assert ", ".join(f"{name} = {kind}" for name, kind in names_and_kinds) in format_h
    assert [layout.name_of_kind(kind) for kind in (0, 17, 36, 99)] == ["open", "pread64", "fwrite", "a call"]


def on_a_network(monkeypatch: pytest.MonkeyPatch, session: Path, local: Path) -> Path:
    """Let a session be on a network file system: where its recorder's files are while the command runs."""
    (session / names.POSIX).mkdir(parents=True)
    local.mkdir()
    monkeypatch.setenv("TMPDIR", str(local))
    kinds = {session / names.POSIX: "nfs4"}
    monkeypatch.setattr(capture_directory, "find_file_system", lambda path: kinds.get(path, "ext4"))
    return capture_directory.begin(session / names.POSIX)


def test_files_on_a_disk_of_the_host_are_found_while_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: RecordedFile
) -> None:
    session = tmp_path / "session"
    local = on_a_network(monkeypatch, session, tmp_path / "local")
    places = [str(session / names.POSIX), str(local)]
    assert layout.list_directories(str(session)) == (places, False)
    for number in range(5):
        file.burst(PID, START_NS + number * 10 * MS, MS, 3)
    file.write(local)
    live = LiveRecorded()
    live.poll(map(Path, places))
    capture_directory.collect(local, session / names.POSIX)
    assert not local.exists()
    places, elsewhere = layout.list_directories(str(session))
    assert not elsewhere
    for _ in range(2):
        live.poll(map(Path, places))
        assert len(live.calls(Clocks())) == 5


@pytest.mark.parametrize("is_bad", ["gone", "of others", "named otherwise", "a link"])
def test_no_other_directory_is_taken_for_that_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_bad: str
) -> None:
    session = tmp_path / "session"
    local = on_a_network(monkeypatch, session, tmp_path / "local")
    pointer = session / names.POSIX / names.RECORDED_IN
    if is_bad == "gone":
        local.rmdir()
    if is_bad == "of others":
        local.chmod(0o755)
    if is_bad == "named otherwise":
        pointer.write_text(str(tmp_path))
    if is_bad == "a link":
        local.rename(tmp_path / "moved")
        local.symlink_to(tmp_path / "moved")
    assert layout.list_directories(str(session)) == ([str(session / names.POSIX)], True)


@pytest.mark.parametrize("seed", range(60))
def test_no_bytes_raise(tmp_path: Path, file: RecordedFile, seed: int) -> None:
    chosen = random.Random(seed)
    for number in range(30):
        file.name_file(4 + number, f"/d/{number}.h5")
        file.burst(PID + number % 2, START_NS + number * 10 * MS, MS, 3 + number)
    path = file.write(tmp_path)
    data = bytearray(path.read_bytes())
    live = LiveRecorded()
    for _ in range(4):
        for _ in range(chosen.choice((1, 5, 100))):
            at = chosen.randrange(8, chosen.choice((256, 1000, 6000)))
            data[at : at + 8] = chosen.choice((b"\xff" * 8, bytes(8), chosen.randbytes(8)))
        path.write_bytes(data)
        look(live, tmp_path)
        live.find_known(Identity(1, PID, 1, "main", ANCHOR, NODE, NODE, boot_id()), CLOCK)
        live.forget(Clocks(), START_NS + 50 * MS)
