"""Processes, threads and descriptors."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import RUN, Running, Trial
from tests.faults.programs import DATA, READING, READS, WORKERS
from tests.faults.rows import row
from tests.support.waiting import eventually

FORKS = """
import os
data = os.open("data.bin", os.O_RDONLY)
total = 0
for number in range(200):
    child = os.fork()
    if child == 0:
        os._exit(os.pread(data, 1, number)[0] % 100)
    total += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(total)
"""


@row("200 forks, each child leaves by os._exit", kept="the exit codes, the child's calls", lost="nothing")
def test_forks(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(FORKS)
    pair.assert_same()
    pair.assert_nothing_lost()


THREADS = """
import os, threading
totals = []
def read(number):
    data = os.open("data.bin", os.O_RDONLY)
    totals.append(sum(os.pread(data, 1, (number + step) % 256)[0] for step in range(50)))
for turn in range(5):
    threads = [threading.Thread(target=read, args=(turn * 20 + number,)) for number in range(20)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(sorted(totals), threading.active_count())
"""


@row("100 threads that read", kept="the results, the number of Python's threads", lost="nothing")
def test_threads(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(THREADS)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 5000


WORKS = WORKERS + "train(40)\n"


@row("a pool of forked workers", kept="the results in order, all calls", lost="nothing")
def test_a_pool(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(WORKS)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 40


LEAVING = """
import os, signal, threading, time
import torch
read, write = os.pipe()
workers = []
for number in range(12):
    worker = os.fork()
    if not worker:
        torch._C._set_worker_signal_handlers()  # _exit at its parent's SIGTERM
        threading.Thread(target=time.sleep, args=(999,), daemon=True).start()  # else malloc takes no lock
        open("data.bin", "rb").read()
        os.write(write, b"x")
        while True:
            kept = [bytes(3000 + 64 * each) for each in range(200)]  # malloc's, not Python's own
    workers.append(worker)
for worker in workers: os.read(read, 1)
time.sleep(0.3)
for worker in workers: os.kill(worker, signal.SIGTERM)
print([os.waitpid(worker, 0)[1] for worker in workers])
"""


@row(
    "SIGTERM of twelve DataLoader workers that allocate memory: torch's handler calls `_exit` within malloc",
    kept="the end of each, its exit code",
    lost="nothing; with `--io-by dftracer` the end of its POSIX calls, reported, and seconds if it would "
    "have waited for its own lock",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_workers_that_leave_within_malloc(trial: Trial, by: str) -> None:
    trial.files = DATA
    trial.both(LEAVING, options=["--io-by", by]).assert_same()


KILLED_WORKER = """
import os, signal, sys, time
data = os.open("data.bin", os.O_RDONLY)
child = os.fork()
if child == 0:
    for step in range(60):
        os.pread(data, 64, step)
    print("ready", flush=True)
    while True:
        signal.pause()
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("child", code)
sys.exit(-code)
"""


@row(
    "SIGKILL of a forked worker",
    kept="the program's own outcome",
    lost="that worker's last second of records",
)
def test_a_killed_child(trial: Trial) -> None:
    def kill(running: Running) -> None:
        import psutil

        running.when("ready")
        (child,) = psutil.Process(running.pid).children()
        child.kill()

    trial.files = DATA
    pair = trial.both(KILLED_WORKER, act=kill)
    pair.assert_same()
    pair.assert_nothing_lost()  # it has no records but of its calls
    assert pair.calls("pread64", "data.bin") == 60


EXECS = """
import os, sys
data = os.open("data.bin", os.O_RDONLY)
number = int(sys.argv[1])
print(number, sum(os.pread(data, 1, number + step)[0] for step in range(20)), flush=True)
if number:
    os.execv(sys.executable, [sys.executable, __file__, str(number - 1)])
sys.exit(4)
"""


@row("five programs that execute each other", kept="descriptors, output, the last exit code", lost="nothing")
def test_execs(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(EXECS, "5")
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 6 * 20


DAEMON = """
import os, sys, time
print("starts", flush=True)
if os.fork():
    os._exit(3)
os.setsid()
if os.fork():
    os._exit(0)
os.closerange(0, 256)
assert os.open("/dev/null", os.O_RDWR) == 0
os.dup2(0, 1); os.dup2(0, 2)
with open("data.bin", "rb", buffering=0) as data, open("log", "w") as log:
    log.write(str(sum(data.read())))
os.rename("log", "done")
"""


@row(
    "a daemon that closes all descriptors and outlives the command",
    kept="its files, byte for byte; the command is not held up",
    lost="what it does after the command ended",
)
def test_a_daemon(trial: Trial) -> None:
    trial.files = DATA

    def wait(running: Running) -> None:
        running.process.wait()
        eventually(lambda: (running.directory / "done").exists())

    pair = trial.both(DAEMON, act=wait)
    pair.assert_same()


CLOSING = (
    READING
    + """
os.closerange(3, 4096)
with open("mine", "wb") as file:
    for step in range(40):
        file.write(bytes([step]) * 100)
        file.flush()
with open("data.bin", "rb", buffering=0) as data:
    print(sum(data.read()))
print(len(os.listdir("/proc/self/fd")) < 60)
"""
)


@row(
    "the program closes all descriptors but its own",
    kept="its files, byte for byte; its calls",
    lost="nothing",
)
def test_closed_descriptors(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(CLOSING)
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS


NESTED = (
    READING
    + """
import subprocess
inner = [sys.executable, "-c", "print(open('data.bin', 'rb').read(4)); raise SystemExit(5)"]
sys.exit(subprocess.call(inner))
"""
)


@row("`iotrace run` inside `iotrace run`", kept="both sessions, the inner exit code", lost="nothing")
def test_nested_runs(trial: Trial) -> None:
    trial.files = DATA
    inner = [*RUN, "-q", "-o", str(trial.directory / "inner"), "--"]
    command = [*inner, *trial.command(NESTED)]
    outer = trial.directory / "outer"
    bare = trial.start(command)
    shutil.rmtree(trial.directory / "inner")
    launcher = [*RUN, "-q", "-o", str(outer), "--"]
    traced = trial.start(command, line=[*launcher, *command])
    assert (traced.code, traced.stdout, traced.stderr) == (bare.code, bare.stdout, bare.stderr)
    assert bare.code == 5
    for session in outer, trial.directory / "inner":
        pair = trial.pair(bare, traced, session)
        assert pair.report["session"]["exit_code"] == 5
        assert pair.agent_logs() == ""
    assert pair.calls("pread64", "data.bin") == READS


@row("two runs into one directory", kept="the first session; the second is refused with 125", lost="nothing")
def test_two_runs_into_one_directory(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(READING)
    files = _files(pair.session)
    launcher = [*RUN, "-o", str(pair.session), "--"]
    command = trial.command(READING)
    again = trial.start(command, line=[*launcher, *command])
    assert again.code == 125
    assert again.stdout == ""
    assert "Traceback" not in again.stderr
    assert _files(pair.session) == files
    pair.assert_nothing_lost()


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


C_PROGRAM = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    char data[64];
    long total = 0;
    int file = open("data.bin", O_RDONLY);
    for (int step = 0; step < 60; step++)
        total += pread(file, data, 64, step) + data[0];
    printf("%ld\\n", total);
    return 11;
}
"""


@row(
    "a program in C, linked dynamically or statically",
    kept="its output and exit code",
    lost="all calls of a static program; the report says that no process was seen",
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("static", [False, True])
def test_a_program_in_c(trial: Trial, static: bool) -> None:
    trial.files = DATA
    source, program = trial.directory / "program.c", trial.directory / "program"
    source.write_text(C_PROGRAM)
    flags = ["-static"] if static else []
    subprocess.run(["cc", *flags, "-o", str(program), str(source)], check=True, capture_output=True)
    pair = trial.both([str(program)])
    pair.assert_same()
    assert pair.bare.code == 11
    assert pair.calls("pread64", "data.bin") == (0 if static else READS)  # pread goes by the same name
    assert any("no Python process" in sentence for sentence in pair.told), pair.told


FIXED_PROGRAM = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) static long sum(int (*done)(FILE *), ssize_t (*get)(int, void *, size_t)) {
    char data[64] = {0};
    FILE *file = fopen("data.bin", "r");
    long total = (long)fread(data, 1, 64, file) + done(file);
    int number = open("data.bin", O_RDONLY);
    return total + get(number, data, 64) + data[0];
}
int main(void) {
    printf("%ld\\n", sum(fclose, read));
    return 11;
}
"""


@row(
    "a program in C at fixed addresses (no PIE; nvcc is one) that takes the address of `read` and `fclose`",
    kept="its output, exit code and calls",
    lost="nothing",
    default=True,
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("hashes", ["gnu", "sysv"])
def test_a_program_at_fixed_addresses(trial: Trial, hashes: str) -> None:
    trial.files = DATA
    (trial.directory / "program.c").write_text(FIXED_PROGRAM)
    flags = ["-O1", "-fno-pie", "-no-pie", f"-Wl,--hash-style={hashes}"]
    subprocess.run(["cc", *flags, "-o", "program", "program.c"], cwd=trial.directory, check=True)
    pair = trial.both([str(trial.directory / "program")])
    pair.assert_same()
    assert pair.bare.code == 11
    assert pair.calls("read", "data.bin") == 1
    assert pair.calls("fclose", "data.bin") == 1


INTERPRETERS = {
    "-S": ["-S"],
    "-E": ["-E"],
    "-I": ["-I"],
    "-s -P": ["-s", "-P"] if sys.version_info >= (3, 11) else ["-s"],
    "-W error": ["-W", "error"],
    "-X dev": ["-X", "dev"],
    "-OO": ["-OO"],
    "-bb": ["-bb"],
    "-u": ["-u"],
}
SHIM = r"'[^']*/agent/shim', "


@row(
    "`python` with -S, -E, -I, -P, -W error, -X dev, -OO, -bb or -u",
    kept="sys.path (with -S it has one entry more), flags, warnings, output, all calls",
    lost="with -S all records of the agent; the report says that no process could load it",
)
@pytest.mark.parametrize("options", INTERPRETERS)
def test_interpreters(trial: Trial, options: str) -> None:
    trial.files = DATA
    normal = [(SHIM, "")] if options == "-S" else []
    program = READING + "print(sys.path, sys.flags, sys.warnoptions)\n"
    pair = trial.both(program, python=INTERPRETERS[options], normal=normal)
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS
    if options == "-S":
        assert any("no Python process" in sentence for sentence in pair.told), pair.told
    else:
        pair.assert_nothing_lost()


@row(
    "`env -i`: an emptied environment",
    kept="output and exit code",
    lost="all records; the report says that no process could load the agent",
)
def test_an_empty_environment(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(["env", "-i", *trial.command(READING + "print(sorted(os.environ))\n")])
    pair.assert_same()
    assert any("processes" in sentence for sentence in pair.told), pair.told


@row(
    "few descriptors are left (RLIMIT_NOFILE 64)",
    kept="output and exit code, all calls",
    lost="nothing",
)
def test_few_descriptors(trial: Trial) -> None:
    import resource

    trial.files = DATA
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    pair = trial.both(READING, prepare=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)))
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS


@row("RLIMIT_AS (`ulimit -v`) of 400 MB: MemoryError", kept="the traceback and exit code", lost="nothing")
def test_a_memory_limit(trial: Trial) -> None:
    import resource

    trial.files = DATA
    limit = 400 << 20
    pair = trial.both(
        READING + "bytearray(1 << 30)\n",
        prepare=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    pair.assert_same()
    assert "MemoryError" in pair.bare.stderr
    pair.assert_nothing_lost()
    assert os.path.isdir(pair.session)
