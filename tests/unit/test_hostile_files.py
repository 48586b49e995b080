"""Files of strangers: none hangs a reader, none fills the memory, and what is left out of them is told."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from iotrace.analysis.completeness.data_loss import data_loss
from iotrace.errors import IotraceError
from iotrace.session import names, reading
from iotrace.session.manifest import read_manifest, write_atomically
from iotrace.sources import byte_stream
from iotrace.sources.dftracer.call_reader import read_posix
from iotrace.sources.dftracer.lines import LineReader
from iotrace.sources.kineto.reader import read_kineto
from iotrace.sources.live.session import LiveSession
from iotrace.sources.session import open_session
from tests.support.fuzz import make_session
from tests.support.mutate import DFTRACER, KINETO
from tests.support.runs import in_process

_MAIN = "processes/1000-0-n1"
_FILES = (
    names.OUTCOME,
    names.COSTS,
    f"{_MAIN}/{names.PROCESS}",
    f"{_MAIN}/{names.RECORDS}",
    f"{_MAIN}/{names.SPANS}",
    f"{_MAIN}/torch-1.json",
    f"{_MAIN}/torch-program-0.json.gz",
    f"{names.POSIX}/io-1000.pfw",
    f"{names.POSIX}/io-1.pfw.gz",
    f"{names.TELEMETRY}/n1-0/{names.RECORDS}",
    f"{names.TELEMETRY}/n1-0/{names.SAMPLES}",
    f"{names.LAUNCHES}/1/{names.MANIFEST}",
    f"{names.OUT}/{names.VERDICT}",
)


@pytest.fixture(autouse=True)
def _never_for_ever() -> Iterator[None]:
    """A reader that waits for a pipe is ended; the deadline is of no test's interest otherwise."""
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _hangs(*_: object) -> None:
    raise AssertionError("it waits")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_session(tmp_path_factory.mktemp("strangers") / "session")


@pytest.fixture
def session(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "session"))


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:  # its path has to be short
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


_KINDS: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "link": lambda path: path.symlink_to("/etc/passwd"),
}


@pytest.mark.parametrize("kind", _KINDS)
def test_what_is_no_file_in_a_session_is_left_out_and_told(session: Path, kind: str) -> None:
    for name in _FILES:
        path = session / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        _KINDS[kind](path)
    told = list(reading.left_out(session, most=len(_FILES)))
    assert sorted(each.split(" is ")[0] for each in told) == sorted(_FILES)
    assert all(each.endswith("it was not read") for each in told)
    LiveSession(session).poll()
    opened = open_session(session)
    assert not opened.telemetry
    assert any("more links" in problem for problem in opened.problems)
    for words in (["report", "-v"], ["ls"], ["top", "--count=1"], ["merge", "-o", f"{session}.pftrace"]):
        done = in_process(words[0], str(session), *words[1:])
        assert done.stdout or done.stderr
        assert "root:" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", _KINDS)
def test_a_manifest_that_is_no_file_is_refused(session: Path, kind: str) -> None:
    (session / names.MANIFEST).unlink()
    _KINDS[kind](session / names.MANIFEST)
    for command in ("report", "ls", "top"):
        done = in_process(command, str(session))
        assert "root:" not in done.stdout + done.stderr
    with pytest.raises(IotraceError, match="cannot be read: it is"):
        read_manifest(session)


def test_directories_of_a_session_that_are_links_are_not_entered(session: Path, tmp_path: Path) -> None:
    for name in (names.PROCESSES, names.POSIX, names.TELEMETRY):
        (session / name).rename(tmp_path / name)
        (session / name).symlink_to(tmp_path / name)
    opened = open_session(session)
    assert not opened.processes
    assert not len(opened.calls)
    assert not opened.telemetry
    assert len([problem for problem in opened.problems if "is a link" in problem]) == 3


@pytest.mark.parametrize("kind", ["pipe", "socket", "zeros"])
def test_inputs_that_are_no_files_are_refused(original: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace.json"
    _KINDS[kind](path)
    (tmp_path / "sound.json").write_bytes(KINETO)
    for words in (
        ["report", str(path)],
        ["report", "--compat", "tb", str(path)],
        ["merge", str(path), "-o", str(tmp_path / "o.json")],
        ["compare", str(original), str(path)],
        ["check", str(original), "--baseline", str(path)],
        ["top", str(path)],
        ["ls", str(path)],
        ["export", str(path), "-o", str(tmp_path / "o.pfw")],
    ):
        done = in_process(*words)
        assert done.returncode in (1, 2), words
        assert done.stderr.startswith("iotrace: "), words
    in_process("merge", str(tmp_path), "-o", str(tmp_path / "out" / "all.json"))


def test_a_document_is_never_written_through_a_link(session: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_text("mine")
    (session / f".{names.FILES}.{os.getpid()}").symlink_to(target)
    write_atomically(session / names.FILES, b"{}")
    assert target.read_text() == "mine"
    assert (session / names.FILES).read_bytes() == b"{}"


_WORDS = (["report"], ["ls"], ["merge", "-o", "/nowhere/o.json"])
_DEEP = (b"[" * 10**6, b'{"a":' * 10**6, b'[{"ph":"X","args":' + b"[" * 10**6)


@pytest.mark.parametrize("deep", _DEEP)
def test_a_million_brackets_are_told(session: Path, tmp_path: Path, deep: bytes) -> None:
    for name in (f"{_MAIN}/{names.RECORDS}", f"{names.POSIX}/io-1000.pfw", f"{_MAIN}/torch-1.json"):
        with (session / name).open("ab") as file:
            file.write(b'{"traceEvents":[' + deep if "torch" in name else deep + b"\n")
    told = [item.why for item in data_loss(open_session(session))]
    assert any(names.RECORDS in why for why in told)
    assert any("io-1000.pfw" in why for why in told)
    for name in (names.OUTCOME, names.COSTS, names.FILES, f"{_MAIN}/{names.PROCESS}"):
        (session / name).write_bytes(deep)
    told = [item.why for item in data_loss(open_session(session))]
    assert any(names.PROCESS in why for why in told)
    assert any(names.OUTCOME in why for why in told)
    (session / names.MANIFEST).write_bytes(deep)
    for path in (session, session / names.MANIFEST):
        for words in _WORDS:
            assert in_process(words[0], str(path), *words[1:]).returncode in (0, 1)
    trace = tmp_path / "trace.json"
    trace.write_bytes(b'{"traceEvents":[{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"a"},' + deep)
    assert read_kineto(trace).problems


def _blanks(count: int, head: bytes) -> bytes:
    """Gzip of `head` and `count` MiB of blanks, made without holding them."""
    packer = zlib.compressobj(1, wbits=31)
    pieces = [
        packer.compress(head),
        *(packer.compress(b" " * (1 << 20)) for _ in range(count)),
        packer.flush(),
    ]
    return b"".join(pieces)


def test_blanks_that_gzip_hid_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "MOST_BLANK_BYTES", 8 << 20)
    path = tmp_path / "io.pfw.gz"
    path.write_bytes(_blanks(20, DFTRACER))
    problems: list[str] = []
    assert sum(len(block) for block in byte_stream.blocks(path, problems)) < 16 << 20
    assert any("nothing but blanks" in problem for problem in problems)
    calls = read_posix(tmp_path)
    assert len(calls) == 2
    assert any("nothing but blanks" in problem for problem in calls.problems)
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(_blanks(20, KINETO[: KINETO.rindex(b"]")]))
    found = read_kineto(trace)
    assert len(found.events)
    assert any("nothing but blanks" in problem for problem in found.problems)


def test_what_gzip_repeats_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_stream, "_TRUSTED_BYTES", 8 << 20)
    path = tmp_path / "io.pfw.gz"
    path.write_bytes(gzip.compress(DFTRACER + DFTRACER.splitlines(keepends=True)[2] * 200_000, 9))
    problems: list[str] = []
    made = sum(len(block) for block in byte_stream.blocks(path, problems))
    assert made < 36 << 20
    assert ["200 times its size" in problem for problem in problems] == [True]


def test_a_stream_of_blanks_in_a_session_is_cut(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_BLANK_BYTES", 8 << 20)
    path = session / _MAIN / names.RECORDS
    before = len(open_session(session).processes[0].records)
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + (1 << 40))  # of holes: nothing is written
    process = open_session(session).processes[0]
    assert len(process.records) == before
    assert any("nothing but blanks" in problem for problem in process.problems)


def test_a_line_without_an_end_is_given_up() -> None:
    sound = DFTRACER.splitlines(keepends=True)
    blocks = [DFTRACER, b'{"name":"', *([b"x" * (4 << 20)] * 4), b'"}\n' + sound[2], sound[3]]
    reader = LineReader()
    lines = [line for batch in reader.read(iter(blocks)) for line in batch.lines]
    assert len(lines) == len(sound) + 2
    assert reader.problems == ["1 line could not be read, the first is line 5"]


@pytest.mark.parametrize("inside", [b'"x"', b"[[],"])
def test_an_event_without_an_end_is_given_up(tmp_path: Path, inside: bytes) -> None:
    path = tmp_path / "trace.json"
    event = b'{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"a"}'
    with path.open("wb") as file:
        file.write(b'{"traceEvents":[' + event + b',{"ph":"X","ts":1,"args":[')
        for _ in range(5):
            file.write(inside * ((2 << 20) // len(inside)))
        file.write(b"1]}," + event + b"]}")
    found = read_kineto(path)
    assert len(found.events)
    assert found.problems


def test_odd_values_are_read_or_told(session: Path) -> None:
    """Numbers that are too large, negative times and keys that stand twice."""
    path = session / _MAIN / names.RECORDS
    odd = (
        '{"type":"tick","clock":[1e400,0,0],"cpu_ns":0}',
        '{"type":"tick","clock":[99999999999999999999,0,0],"cpu_ns":0}',
        '{"type":"tick","clock":[NaN,0,0],"cpu_ns":0}',
        '{"type":"tick","clock":[-5,0,0],"cpu_ns":-1,"cpu_ns":-2}',
        '{"type":"own_log","prefix":"a\\u0000b","mono_ns":1,"ended":false}',
        '{"type":"text","id":4611686018427387904,"text":"\\ud800"}',
    )
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in odd))
    process = next(each for each in open_session(session).processes if each.pid == 1000)
    assert any("unreadable lines" in problem for problem in process.problems)
    done = in_process("report", str(session), "--json")
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize("field", [b'"started_ns"', b'"ended_ns"', b'"duration_ns"'])
@pytest.mark.parametrize("time", [1 << 70, -(1 << 70)])
def test_a_time_beyond_64_bits_is_damage(session: Path, field: bytes, time: int) -> None:
    name = names.MANIFEST if field == b'"started_ns"' else names.OUTCOME
    path = session / name
    data, times = re.subn(field + rb": ?-?\d+", field + f": {time}".encode(), path.read_bytes())
    assert times == 1
    path.write_bytes(data)
    done = in_process("report", "--json", str(session))
    assert done.returncode == (1 if name == names.MANIFEST else 0), done.stderr
    assert "Traceback" not in done.stderr
