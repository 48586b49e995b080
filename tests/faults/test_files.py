"""Files, directories and disks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from iotrace.session.liveness import RUNNING
from iotrace.session.names import DFTRACER, RECORDER
from iotrace.sources.session import open_session
from tests.faults.harness import RUN, Running, Trial
from tests.faults.programs import DATA, LOST, READING, READS
from tests.faults.rows import row
from tests.support.waiting import eventually, runs

NAMES = """
import os
total = 0
for name in sorted(os.listdir(b"data")):
    with open(b"data/" + name, "rb", buffering=0) as file:
        total += sum(file.read())
    for step in range(10):
        descriptor = os.open(b"data/" + name, os.O_RDONLY)
        total += os.pread(descriptor, 1, step)[0]
        os.close(descriptor)
print(float(total).hex())
"""
ODD = {
    "a newline": "new\nline.bin",
    "a quote": 'it\'s "quoted".bin',
    "an escape sequence": "\x1b[31mred\x1b]0;title\x07.bin",
    "no UTF-8": os.fsdecode(b"latin-\xe9\xff.bin"),
    "a reversed line": "‮nib.data.bin",
    "brackets of markup": "[bold]x[red] {0} %s.bin",
    "a backslash": "back\\slash\\u0041.bin",
    "255 bytes": "n" * 255,
    "blanks": "  two  blanks  .bin",
}


@row(
    "a file's name holds a newline, a quote, an escape sequence, bytes that are not UTF-8, 255 bytes",
    kept="the results; one line a file in the report, without control characters",
    lost="nothing",
)
@pytest.mark.parametrize("name", ODD)
def test_odd_names(trial: Trial, name: str) -> None:
    trial.files = {f"data/{ODD[name]}": bytes(range(200))}
    pair = trial.both(NAMES)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64") == 10
    text = pair.details()
    assert not [letter for letter in text if ord(letter) < 32 and letter != "\n"]
    assert "‮" not in text


@row(
    "files whose names differ only in a quote or a line break",
    kept="the results, all calls",
    lost="nothing; with `--io-by dftracer` which of them a call was on: it sees one file",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_colliding_names(trial: Trial, by: str) -> None:
    names = ["a b.bin", "a'b.bin", 'a"b.bin', "a\nb.bin", "a\tb.bin"]
    trial.files = {f"data/{name}": bytes(range(200)) for name in names}
    pair = trial.both(NAMES, options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64") == 10 * len(names)
    assert by == DFTRACER or all(pair.calls("pread64", name) == 10 for name in names)


SUFFIXES = """
import os
def total(name):
    with open(name, "wb") as file:
        file.write(bytes(range(100)))
    descriptor = os.open(name, os.O_RDONLY)
    return sum(os.pread(descriptor, 1, step)[0] for step in range(30))
print([total(name) for name in ("data.pfw", "data.pfw.gz", "data.py", "manifest.json", "data.so")])
"""


@row(
    "data in files that end in .pfw, .pfw.gz, .py or .so",
    kept="the files, the results; calls on a manifest.json of the program's",
    lost="POSIX calls on .py and .so (programs are no data), with `--io-by dftracer` on .pfw, too",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_data_with_the_names_of_ours(trial: Trial, by: str) -> None:
    pair = trial.both(SUFFIXES, options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "manifest.json") == 30
    assert pair.calls("pread64") == (30 if by == DFTRACER else 90)


MANY = """
import os
os.mkdir("data")
total = 0
for number in range(10000):
    descriptor = os.open(f"data/{number}", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, b"%d" % number)
    total += int(os.pread(descriptor, 8, 0))
    os.close(descriptor)
    os.unlink(f"data/{number}")
print(float(total).hex())
"""


@row("10,000 files, written, read and deleted", kept="the results, every read", lost="nothing")
def test_many_files(trial: Trial) -> None:
    pair = trial.both(MANY)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64") == 10000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=400", "tmpfs", str(directory)]
    mounted = subprocess.run(line, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


FILLS = (
    READING
    + """
filling = os.path.join(os.environ["SMALL"], "filling")
with open(filling, "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"0" * 1024)
    except OSError as error:
        print(error.strerror)
for step in range(3000):
    print(loss(step))
os.unlink(filling)
sys.exit(3)
"""
)


@row(
    "the session's disk fills up during the run",
    kept="output, standard error and exit code; what was written before",
    lost="what did not fit, reported",
)
def test_a_disk_that_fills_up(trial: Trial, small: Path) -> None:
    trial.files = DATA
    pair = trial.both(FILLS, session=small / "session", env={"SMALL": str(small)})
    pair.assert_same()
    assert pair.report["session"]["complete"] is False


@row(
    "the session's disk is full at the start",
    kept="a message and exit code 125; nothing has run",
    lost="the run: name another directory with -o",
)
def test_a_full_disk(trial: Trial, small: Path) -> None:
    try:
        with open(small / "filling", "wb", buffering=0) as file:
            while True:
                file.write(b"0" * 4096)
    except OSError:
        pass
    command = trial.command("open('started', 'w')")
    line = [*RUN, "-o", str(small / "session"), "--", *command]
    refused = trial.start(command, line=line)
    assert refused.code == 125
    assert refused.files == {}
    assert "Traceback" not in refused.stderr
    assert "No space left" in refused.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory on a read-only file system, with a data file."""
    directory = tmp_path / "read-only"
    directory.mkdir()
    line = ["mount", "-t", "tmpfs", "tmpfs", str(directory)]
    mounted = subprocess.run(line, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a read-only file system cannot be mounted here: {mounted.stderr.strip()}")
    (directory / "data.bin").write_bytes(DATA["data.bin"])
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


@row(
    "a read-only home and a read-only working directory",
    kept="output and exit code; the session where -o names it",
    lost="nothing",
)
def test_a_read_only_place(trial: Trial, read_only: Path) -> None:
    pair = trial.both(
        f"import os; os.chdir({str(read_only)!r})\n" + READING,
        prepare=lambda: os.chdir(read_only),
        env={"HOME": str(read_only), "XDG_CACHE_HOME": ""},
    )
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == READS


DELETES = (
    READING
    + """
import shutil
for name in sys.argv[1:]:
    shutil.rmtree(name, ignore_errors=True)
for step in range(200):
    print(loss(step))
sys.exit(3)
"""
)


@row(
    "the program deletes its session",
    kept="output, standard error and exit code",
    lost="the session; the report says that there is none",
)
def test_a_deleted_session(trial: Trial) -> None:
    trial.files = DATA
    session = trial.directory / "session"
    pair = trial.both(DELETES, str(session), session=session)
    pair.assert_same(session=False)
    assert not (session / "manifest.json").exists()


LEAVES = (
    READING
    + """
import shutil
here = os.getcwd()
os.chdir("/")
shutil.rmtree(here)
sys.exit(3)
"""
)


@row("the program deletes its working directory", kept="its exit code, all records", lost="nothing")
def test_a_deleted_directory(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(LEAVES)
    pair.assert_same()
    pair.assert_nothing_lost()


@row(
    "no /proc/PID/io, as in containers with a hidden /proc",
    kept="output and exit code, all calls",
    lost="bytes and coverage by the kernel's account: unknown, with the reason",
)
def test_without_the_kernels_account(trial: Trial) -> None:
    trial.files = DATA
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace cannot be made here")
    hide = (
        "import subprocess, os\nsubprocess.run(['mount', '--bind', '/dev/null', f'/proc/{os.getpid()}/io'])\n"
    )
    command = trial.command(hide + READING)
    pair = trial.both(["unshare", "-m", *command])
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS


@row("SIGKILL of the launcher, then of the program", kept="the session opens", lost=f"the exit code; {LOST}")
def test_a_killed_launcher(trial: Trial) -> None:
    import signal

    def kill(running: Running) -> None:
        program = running.when("ready").pid
        if running.traced:
            running.kill(signal.SIGKILL)
            running.process.wait()
        os.kill(program, signal.SIGKILL)
        if running.traced:  # the sidecar ends after the program
            eventually(lambda: not runs(program) and open_session(running.session).state != RUNNING)

    trial.files = DATA
    pair = trial.both(READING + "print('ready', flush=True)\nsignal.pause()\n", act=kill)
    assert (pair.traced.stdout, pair.traced.stderr) == (pair.bare.stdout, pair.bare.stderr)
    assert pair.report["session"]["exit_code"] is None
    pair.assert_lost("the exit code")
