"""`iotrace run -- CMD` as a user meets it: the command behaves as without it, mistakes get a sentence."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from iotrace.launch import child
from iotrace.launch.child import _SAME_SIGNAL_NS
from tests.support.runs import after_announcement
from tests.support.waiting import eventually

IOTRACE = [sys.executable, "-m", "iotrace"]
RUN = [*IOTRACE, "run"]
LIMIT_S = 240
ESCAPE = b"\x1b"

needs_dftracer = pytest.mark.skipif(
    importlib.util.find_spec("dftracer") is None, reason="dftracer is not installed"
)

# Exits with 40 + the number of SIGINT it got before SIGTERM.
COUNTS_INTERRUPTS = """
import signal, sys, time
count = 0
def handler(*_):
    global count
    count += 1
    print("got", count, flush=True)
signal.signal(signal.SIGINT, handler)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + count))
print("ready", flush=True)
while True:
    time.sleep(0.1)  # a signal just before `signal.pause` would be waited for in vain
"""


def call(
    directory: Path, command: list[str], stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        cwd=directory,
        input=stdin,
        capture_output=True,
        env={**os.environ, **variables},
        timeout=LIMIT_S,
    )


def run(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return call(directory, [*RUN, *arguments], **variables)


def run_quietly(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A run without a report, where that is not the matter."""
    return call(directory, [*RUN, "-q", *arguments], **variables)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def start(
    directory: Path, command: list[str], prepare: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """`command` under iotrace in a session of its own, after it has written its line ``ready``."""
    process = subprocess.Popen(
        [*RUN, "--", *command],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=prepare,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def interrupts_until_terminated(process: subprocess.Popen[bytes]) -> int:
    """How many SIGINT a program that counts them got; the first is on its way."""
    assert process.stdout is not None
    assert process.stdout.readline() == b"got 1\n"
    # The launcher takes its signals one after another: what it sends on for the first, it sends before this.
    eventually(lambda: not is_pending(signal.SIGINT, process.pid))
    os.kill(process.pid, signal.SIGTERM)
    code, stderr = finish(process)
    assert "iotrace report" in stderr
    return code - 40


def is_pending(number: signal.Signals, pid: int) -> bool:
    """Whether a process has not taken a signal yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(mask, 16) for mask in re.findall(r"^(?:Sig|Shd)Pnd:\s*(\w+)$", status, re.MULTILINE)]
    assert len(masks) == 2
    return any(mask >> (number - 1) & 1 for mask in masks)


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code and standard error; kills what does not end."""
    try:
        _, stderr = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    return process.returncode, after_announcement(stderr.decode())


def assert_explains(stderr: bytes) -> str:
    """One sentence and one remedy, nothing else; returns the sentence."""
    lines = stderr.decode().splitlines()
    assert "Traceback" not in stderr.decode()
    assert len(lines) == 2, lines
    assert re.fullmatch(r"iotrace: \S.*", lines[0])
    assert re.fullmatch(r"  \S.*", lines[1])
    return lines[0]


# --- the command's streams, exit code and surroundings ---


def test_streams_pass_through_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 400 + b"no newline at the end"
    copies = python(
        "import sys; data = sys.stdin.buffer.read();"
        "sys.stdout.buffer.write(data); sys.stderr.buffer.write(data[::-1])"
    )
    done = call(tmp_path, [*RUN, "-o", "session", "--", *copies], stdin=data)
    assert done.stdout == data
    begin, _, report = done.stderr.partition(data[::-1])
    assert after_announcement(begin.decode()) == ""
    assert b"iotrace report session" in report
    assert done.returncode == 0


@pytest.mark.parametrize(
    "code", [0, 3, 255, *(pytest.param(code, marks=pytest.mark.slow) for code in (1, 126, 127))]
)
def test_exit_code_is_kept(tmp_path: Path, code: int) -> None:
    done = run_quietly(tmp_path, "-o", "session", "--", "sh", "-c", f"exit {code}")
    assert done.returncode == code
    outcome = json.loads((tmp_path / "session" / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["signal"]) == (code, None)


@pytest.mark.parametrize(("name", "code"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_death_by_a_signal_is_told_as_a_shell_tells_it(tmp_path: Path, name: str, code: int) -> None:
    assert run_quietly(tmp_path, "-o", "session", "--", "sh", "-c", f"kill -{name} $$").returncode == code
    outcome = json.loads((tmp_path / "session" / "outcome.json").read_text())
    assert (outcome["exit_code"], outcome["signal"]) == (code, code - 128)


@pytest.mark.parametrize("separator", [["--"], []])
def test_arguments_reach_the_command_unchanged(tmp_path: Path, separator: list[str]) -> None:
    arguments = ["--", "-o", "", "--help", "a b", "$HOME", "*", "é", "--"]
    done = run_quietly(tmp_path, *separator, "printf", "[%s]", *arguments)
    assert done.stdout.decode() == "".join(f"[{argument}]" for argument in arguments)


def test_an_argument_that_is_not_utf8_reaches_the_command(tmp_path: Path) -> None:
    argument = b"a\xff.h5"
    done = run(tmp_path, "--", "printf", "%s", os.fsdecode(argument))
    assert done.stdout == argument
    assert done.returncode == 0


def test_a_working_directory_that_is_not_utf8_is_no_error(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff"))
    directory.mkdir()
    done = run(directory, "-o", "session", "--", "sh", "-c", "exit 3")
    assert b"Traceback" not in done.stderr
    assert done.returncode == 3


def test_an_io_path_that_is_not_utf8_is_no_error(tmp_path: Path) -> None:
    done = run(tmp_path, "--io", os.fsdecode(b"d\xff"), "--", "sh", "-c", "exit 3")
    assert b"Traceback" not in done.stderr
    assert done.returncode == 3


def test_open_descriptors_are_inherited(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        subprocess.run(
            [*RUN, "-q", "--", *python(f"import os; os.write({writing}, b'through\\n')")],
            cwd=tmp_path,
            pass_fds=[writing],
            capture_output=True,
            timeout=LIMIT_S,
        )
        os.close(writing)
        assert os.read(reading, 100) == b"through\n"
    finally:
        os.close(reading)


@pytest.mark.parametrize("field", ["SigBlk", "SigIgn"])
def test_signal_dispositions_are_those_of_a_bare_run(tmp_path: Path, field: str) -> None:
    command = ["grep", field, "/proc/self/status"]

    def known(done: subprocess.CompletedProcess[bytes]) -> set[signal.Signals]:
        mask = int(done.stdout.split()[1], 16)
        return {number for number in signal.Signals if number < 32 and mask >> (number - 1) & 1}

    assert known(run_quietly(tmp_path, "--", *command)) == known(call(tmp_path, command))


def test_sigpipe_ends_the_command_silently(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "bash", "-c", "set -o pipefail; yes | head -1")
    assert done.stdout == b"y\n"
    assert done.returncode == 128 + signal.SIGPIPE
    assert b"Broken pipe" not in done.stderr


def test_without_a_directory_the_session_is_named_by_time(tmp_path: Path) -> None:
    run_quietly(tmp_path, "--", "true")
    run_quietly(tmp_path, "--", "true")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert all(re.fullmatch(r"iotrace-\d{8}-\d{6}(-\d+)?", name) for name in names)


def test_an_empty_directory_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    assert run_quietly(tmp_path, "-o", "session", "--", "true").returncode == 0
    assert (tmp_path / "session" / "manifest.json").is_file()


def test_missing_parents_of_the_session_are_made(tmp_path: Path) -> None:
    assert run_quietly(tmp_path, "-o", "a/b/session", "--", "true").returncode == 0
    assert (tmp_path / "a/b/session/manifest.json").is_file()


# --- the command's Python ---


def test_an_existing_ld_preload_stays_after_the_recorder(tmp_path: Path) -> None:
    show = python('import os; print(os.environ["LD_PRELOAD"])')
    done = run_quietly(tmp_path, "--", *show, LD_PRELOAD="libm.so.6")
    first, *others = done.stdout.decode().strip().split(":")
    assert first.endswith("/_posix_recorder.so")
    assert others == ["libm.so.6"]


def test_the_users_sitecustomize_and_path_still_work(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "sitecustomize.py").write_text(
        # In the command alone: the launcher is a Python program with a sitecustomize, too.
        'import os\nif "IOTRACE_AGENT" in os.environ:\n    print("user sitecustomize")\n'
    )
    (library / "users_module.py").write_text('NAME = "users_module"\n')
    show = python("import sitecustomize, users_module; print(users_module.NAME, sitecustomize.__file__)")
    done = run_quietly(tmp_path, "--", *show, PYTHONPATH=str(library))
    assert done.stdout.decode().splitlines() == [
        "user sitecustomize",
        f"users_module {library / 'sitecustomize.py'}",
    ]
    assert done.returncode == 0


def test_sys_path_is_that_of_a_bare_run(tmp_path: Path) -> None:
    show = python("import sys; print(sys.path)")
    traced = run_quietly(tmp_path, "--", *show, PYTHONPATH="/nowhere:")
    assert traced.stdout == call(tmp_path, show, PYTHONPATH="/nowhere:").stdout


@pytest.mark.parametrize(
    "interpreter",
    [
        [sys.executable],
        [sys.executable, "-I"],
        [sys.executable, "-E"],
        [sys.executable, "-S"],
        [sys.executable, "-I", "-S", "-B"],
        ["env", "-i", sys.executable],
    ],
    ids=lambda words: " ".join(word if word != sys.executable else "python" for word in words),
)
def test_isolated_interpreters_run_as_without_iotrace(tmp_path: Path, interpreter: list[str]) -> None:
    command = [*interpreter, "-c", "import sys; print('out', sys.argv); sys.exit(5)", "argument"]
    bare = call(tmp_path, command)
    traced = run_quietly(tmp_path, "--", *command)
    assert bare.returncode == 5
    assert (traced.returncode, traced.stdout) == (bare.returncode, bare.stdout)
    assert b"Traceback" not in traced.stderr


# --- signals ---


@pytest.mark.parametrize(
    "name",
    [
        "SIGTERM",
        "SIGINT",
        "SIGUSR1",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("SIGUSR2", "SIGHUP", "SIGQUIT")),
    ],
)
def test_a_signal_to_the_launcher_alone_reaches_the_command(tmp_path: Path, name: str) -> None:
    handles = f"""
import signal, sys, time
signal.signal(signal.{name}, lambda *_: sys.exit(77))
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
    process = start(tmp_path, python(handles))
    os.kill(process.pid, getattr(signal, name))
    code, stderr = finish(process)
    assert code == 77
    assert "iotrace report" in stderr


def test_a_signal_without_a_handler_ends_the_command_not_the_launcher(tmp_path: Path) -> None:
    process = start(tmp_path, ["sh", "-c", "echo ready; exec sleep 200"])
    os.kill(process.pid, signal.SIGTERM)
    code, stderr = finish(process)
    assert code == 128 + signal.SIGTERM
    assert "iotrace report" in stderr


def test_an_interrupt_to_the_process_group_is_delivered_once(tmp_path: Path) -> None:
    process = start(tmp_path, python(COUNTS_INTERRUPTS))
    os.killpg(process.pid, signal.SIGINT)
    assert interrupts_until_terminated(process) == 1


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_control_c_on_the_terminal_is_delivered_once(tmp_path: Path, terminal: tuple[int, int]) -> None:
    keyboard, end = terminal
    process = start(tmp_path, python(COUNTS_INTERRUPTS), lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0))
    os.write(keyboard, b"\x03")
    assert interrupts_until_terminated(process) == 1


def test_a_signal_for_the_launcher_reaches_the_command_after_control_c_did(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    keyboard, end = terminal
    process = start(tmp_path, python(COUNTS_INTERRUPTS), lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0))
    os.write(keyboard, b"\x03")
    assert process.stdout is not None
    assert process.stdout.readline() == b"got 1\n"
    # The launcher and its monitor have it behind them; a report of it that came late has lost its meaning.
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children())]
    eventually(lambda: not any(is_pending(signal.SIGINT, pid) for pid in family))
    time.sleep(_SAME_SIGNAL_NS / 1e9)
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout.readline() == b"got 2\n"
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process)[0] == 42


def test_a_command_that_catches_control_c_exits_with_its_own_code(
    tmp_path: Path, terminal: tuple[int, int]
) -> None:
    catches = """
import signal, sys, time
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
except KeyboardInterrupt:
    sys.exit(7)
"""
    keyboard, end = terminal
    process = start(tmp_path, python(catches), lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0))
    os.write(keyboard, b"\x03")
    assert finish(process)[0] == 7


# --- the command counts, whatever becomes of the report ---


def test_exit_code_is_kept_where_standard_error_is_full(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*RUN, "--", "sh", "-c", "exit 3"], cwd=tmp_path, stderr=full, timeout=LIMIT_S)
    assert done.returncode == 3


def test_exit_code_is_kept_where_nobody_reads_standard_error(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*RUN, "--", "sh", "-c", "exit 3"], cwd=tmp_path, stderr=writing, timeout=LIMIT_S
        )
    finally:
        os.close(writing)
    assert done.returncode == 3


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_exit_code_is_kept_where_a_standard_stream_is_closed(tmp_path: Path, closed: int) -> None:
    done = subprocess.run(
        [*RUN, "--", "sh", "-c", "exit 3"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.close(closed),
        timeout=LIMIT_S,
    )
    assert done.returncode == 3


def test_a_command_that_deletes_its_session_keeps_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "-o", "session", "--", "sh", "-c", "rm -r session; exit 3")
    assert done.returncode == 3
    assert b"iotrace: no report: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_deleted_working_directory_does_not_stop_the_command(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [*RUN, "-o", str(tmp_path / "session"), "--", "sh", "-c", "exit 3"],
        cwd=gone,
        preexec_fn=lambda: os.rmdir(gone),
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert b"Traceback" not in done.stderr
    assert done.returncode == 3


# --- the command was not started ---


def refused(directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and the sentence of a run that must not start ``touch started``."""
    done = run(directory, *arguments)
    assert not (directory / "started").exists()
    assert done.stdout == b""
    return done.returncode, assert_explains(done.stderr)


def test_a_command_that_is_not_found_is_127(tmp_path: Path) -> None:
    code, sentence = refused(tmp_path, "--", "no-such-program", "started")
    assert code == 127
    assert "no-such-program: command not found" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["./no-such-program", "/no/such/program", ""])
def test_a_path_that_is_not_found_is_127(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path, "--", name)[0] == 127


@pytest.mark.parametrize("options", [[], ["-u", "-X", "dev"], ["-Wignore", "-bB"]])
def test_a_script_that_does_not_exist_is_2_as_in_python(tmp_path: Path, options: list[str]) -> None:
    code, sentence = refused(tmp_path, "--", sys.executable, *options, "no-such-script.py", "started")
    assert code == 2
    assert "no-such-script.py does not exist" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options", [["-c", "pass"], ["-bc", "pass"], ["-m", "this"], ["-V"], ["-X", "dev", "-c", ""]]
)
def test_what_is_no_script_of_pythons_is_run(options: list[str]) -> None:
    assert child.find([sys.executable, *options, "no-such-script.py"], None) == sys.executable


def test_a_script_in_the_working_directory_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    done = run(tmp_path, "--", "train.py")
    assert done.returncode == 127
    assert b"python train.py" in done.stderr
    assert not (tmp_path / "started").exists()


def test_a_file_that_is_not_executable_is_126(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/bin/sh\ntouch started\n")
    code, sentence = refused(tmp_path, "--", "./script")
    assert code == 126
    assert "./script is not executable" in sentence


def test_a_file_on_the_path_that_is_not_executable_is_126(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "a-script").write_text("#!/bin/sh\ntouch started\n")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    assert call(tmp_path, ["env", "a-script"], PATH=path).returncode == 126
    done = run(tmp_path, "--", "a-script", PATH=path)
    assert not (tmp_path / "started").exists()
    assert done.returncode == 126
    assert_explains(done.stderr)


def test_a_directory_is_126(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    code, sentence = refused(tmp_path, "--", "./folder")
    assert code == 126
    assert "./folder is a directory" in sentence


def test_a_script_whose_interpreter_is_missing_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\ntouch started\n")
    script.chmod(0o755)
    done = run(tmp_path, "--", "./script")
    assert not (tmp_path / "started").exists()
    assert done.returncode in (126, 127)
    assert "./script" in assert_explains(after_announcement(done.stderr.decode()).encode())
    assert list(tmp_path.iterdir()) == [script]


def test_a_script_without_an_interpreter_line_runs_as_under_env(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo ran; exit 3\n")
    script.chmod(0o755)
    bare = call(tmp_path, ["env", "./script"])
    done = run_quietly(tmp_path, "--", "./script")
    assert (bare.returncode, bare.stdout) == (3, b"ran\n")
    assert (done.returncode, done.stdout) == (3, b"ran\n")


@pytest.mark.parametrize("arguments", [[], ["--"], ["-o", "session"], ["-o", "session", "--"]])
def test_no_command_is_125(tmp_path: Path, arguments: list[str]) -> None:
    code, sentence = refused(tmp_path, *arguments)
    assert code == 125
    assert "no command" in sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--no-such-option", "-x", "--output"])
def test_a_wrong_option_is_125(tmp_path: Path, option: str) -> None:
    arguments = [option] if option == "--output" else [option, "--", "touch", "started"]
    code, _ = refused(tmp_path, *arguments)
    assert code == 125
    assert list(tmp_path.iterdir()) == []


def test_an_existing_session_is_never_overwritten(tmp_path: Path) -> None:
    run_quietly(tmp_path, "-o", "session", "--", "true")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "session").rglob("*")}
    code, sentence = refused(tmp_path, "-o", "session", "--", "touch", "started")
    assert code == 125
    assert "session already holds a session" in sentence
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "session").rglob("*")} == before


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "model.pt").write_text("precious")
    code, sentence = refused(tmp_path, "-o", "results", "--", "touch", "started")
    assert code == 125
    assert "results exists and is not a session" in sentence
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["model.pt"]


@pytest.mark.parametrize("place", ["file", "file/below", "file/far/below", "/proc/session", "n" * 300])
def test_an_impossible_place_for_the_session_is_125(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("precious")
    code, sentence = refused(tmp_path, "-o", place, "--", "touch", "started")
    assert code == 125
    assert place in sentence
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_for_the_session_is_125(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    code, sentence = refused(tmp_path, "-o", "locked/session", "--", "touch", "started")
    assert code == 125
    assert "Permission denied" in sentence


def test_a_file_system_that_takes_no_data_is_125(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RUN, "-o", "session", "--", "touch", "started"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True,
        timeout=LIMIT_S,
    )
    assert not (tmp_path / "started").exists()
    assert_explains(done.stderr)
    assert done.returncode == 125


# --- iotrace report ---


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a program without a DataLoader."""
    directory = tmp_path_factory.mktemp("report")
    done = run(directory, "-o", "session", "--", *python("print('no loader')"))
    assert done.returncode == 0
    return directory / "session"


@pytest.fixture
def copy(session: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(session, tmp_path / "copy"))


def report(path: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return call(path.parent, [*IOTRACE, "report", *options, str(path)], **variables)


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_report_on_no_session_is_a_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "file":
        path.write_text("text")
    elif kind == "empty":
        path.mkdir()
    done = report(path)
    assert done.returncode == 1
    assert done.stdout == b""
    assert str(path) in assert_explains(done.stderr)


def test_a_newer_session_is_named_as_such(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "format": 99, "unheard_of": True}))
    done = report(copy)
    assert done.returncode == 1
    sentence = assert_explains(done.stderr)
    assert "newer iotrace" in sentence
    assert "99" in sentence


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[]", b"{}", b'{"format": 1}', b'{"format": "1"}', b"\0" * 100, b'{"a": "\xff"}'],
)
def test_a_damaged_manifest_is_named_as_such(copy: Path, data: bytes) -> None:
    (copy / "manifest.json").write_bytes(data)
    done = report(copy)
    assert done.returncode == 1
    sentence = assert_explains(done.stderr)
    assert "damaged" in sentence
    assert "manifest.json" in sentence


def test_a_truncated_manifest_is_named_as_such(copy: Path) -> None:
    data = (copy / "manifest.json").read_bytes()
    (copy / "manifest.json").write_bytes(data[: len(data) // 2])
    done = report(copy)
    assert done.returncode == 1
    assert "damaged" in assert_explains(done.stderr)


def test_a_session_without_an_outcome_is_incomplete_not_an_error(copy: Path) -> None:
    (copy / "outcome.json").unlink()
    done = report(copy, "--json")
    assert done.returncode == 0
    told = json.loads(done.stdout)["session"]
    assert told["exit_code"] is None
    assert told["complete"] is False


def test_unknown_figures_are_null_in_json_not_zero(session: Path) -> None:
    done = report(session, "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["session"]["exit_code"] == 0
    (rank,) = result["ranks"]
    assert rank["steps"]["count"] == 0
    assert rank["loaders"] == []
    unknown = {
        **{key: rank["steps"][key] for key in ("mean_ms", "p50_ms", "p95_ms", "per_second")},
        "samples_per_second": rank["steps"]["samples_per_second"],
        **{key: rank["data_wait"][key] for key in ("raw_ms", "exposed_ms", "raw_wait_fraction")},
        **{key: rank["data_wait"][key] for key in ("stall_fraction", "verdict", "too_few_workers")},
        **{key: rank[key] for key in ("breakdown_ms", "accelerator", "world_size")},
    }
    assert unknown == dict.fromkeys(unknown)
    assert rank["data_wait"]["causes_ms"] == {}


def test_wrong_usage_of_report_is_2(tmp_path: Path) -> None:
    done = call(tmp_path, [*IOTRACE, "report", "--no-such-option", "session"])
    assert done.returncode == 2
    assert_explains(done.stderr)


def test_output_into_a_pipe_has_no_escape_codes(tmp_path: Path) -> None:
    traced = run(tmp_path, "-o", "session", "--", "true", NO_COLOR="1")
    again = report(tmp_path / "session", NO_COLOR="1")
    assert b"session" in traced.stderr
    assert b"session" in again.stdout
    assert ESCAPE not in traced.stderr + again.stdout + again.stderr


def test_no_color_is_obeyed_on_a_terminal(session: Path, terminal: tuple[int, int]) -> None:
    keyboard, end = terminal
    done = subprocess.run(
        [*IOTRACE, "report", str(session)],
        stdout=end,
        stderr=subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"},
        timeout=LIMIT_S,
    )
    shown = os.read(keyboard, 65536)
    assert done.returncode == 0
    assert b"session" in shown
    colours = re.findall(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]", shown)
    assert colours == []


EARLY = """
import os, signal, sys
from iotrace.launch import child
spawn = child._spawn
def late(*arguments):
    os.killpg(0, signal.SIGINT)
    return spawn(*arguments)
child._spawn = late
print(child.run(["sleep", "1000"], dict(os.environ)))
"""


def test_a_key_that_comes_before_the_command_is_there_reaches_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, start_new_session=True, timeout=120
    )
    assert (done.stdout, done.stderr) == (f"{-signal.SIGINT}\n", "")
