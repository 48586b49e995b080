"""Debuggers, profilers, test runners and other preloads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import Running, Trial
from tests.faults.programs import DATA, READING, READS
from tests.faults.rows import row
from tests.support.waiting import eventually

HOOKS = {
    "sys.settrace": "sys.settrace(hook); threading.settrace(hook)",
    "sys.setprofile": "sys.setprofile(hook); threading.setprofile(hook)",
}
COUNTS = """
import collections, os, sys, threading
seen = collections.Counter()
def hook(frame, event, argument):
    seen[frame.f_code.co_name, event, type(argument).__name__] += 1
    return hook
def work():
    with open("data.bin", "rb", buffering=0) as file:
        return sum(file.read())
HOOK
print(work())
thread = threading.Thread(target=work)
thread.start()
thread.join()
sys.settrace(None)
sys.setprofile(None)
print(sorted(item for item in seen.items() if item[0][0] in ("work", "run", "start")))
"""


@row("sys.settrace, sys.setprofile", kept="the program's events, in all threads", lost="nothing")
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_the_interpreter(trial: Trial, hook: str) -> None:
    trial.files = DATA
    pair = trial.both(COUNTS.replace("HOOK", HOOKS[hook]))
    pair.assert_same()
    pair.assert_nothing_lost()


FAULTHANDLER = (
    READING
    + """
import faulthandler, ctypes
faulthandler.enable()
faulthandler.register(signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR1)
def deeper():
    ctypes.string_at(0)
deeper()
"""
)


@row(
    "faulthandler: a signal that dumps, then a segfault",
    kept="both dumps, without a frame of iotrace",
    lost="the program's last second of records",
)
def test_faulthandler(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(FAULTHANDLER, normal=[(r"Extension modules: .*\n", "")])
    pair.assert_same()
    assert "Segmentation fault" in pair.bare.stderr
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == READS


@row("coverage.py", kept="every line and branch that it counts", lost="nothing")
def test_coverage(trial: Trial) -> None:
    trial.files = DATA
    program = trial.command(READING + "import json, zipfile, tarfile\n")[-1]
    command = [sys.executable, "-m", "coverage", "run", "--branch", "--include", program, program]
    pair = trial.both(command)
    pair.assert_same(files=False)
    pair.assert_nothing_lost()
    shown = []
    for number in 1, 2:
        here = trial.directory / f"run-{number}" / "cwd"
        line = [sys.executable, "-m", "coverage", "report", "-m"]
        shown.append(subprocess.run(line, cwd=here, capture_output=True, text=True, check=True).stdout)
    assert shown[0] == shown[1]
    assert pair.calls("pread64", "data.bin") == READS


TESTS = """
import os, pytest, warnings
def reads():
    with open("data.bin", "rb", buffering=0) as file:
        return sum(file.read())
def test_passes(tmp_path, capfd):
    (tmp_path / "x").write_bytes(b"1")
    os.system("echo shown")
    assert capfd.readouterr().out == "shown\\n"
    assert reads() == 32640
def test_fails():
    value = reads()
    assert value == 1
def test_warns(recwarn):
    warnings.warn("mine", UserWarning)
    assert len(recwarn) == 1
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.xfail
def test_expected(): raise OSError
"""


@row("pytest", kept="outcomes, captured output, assertion texts, exit code", lost="nothing")
def test_pytest(trial: Trial) -> None:
    trial.files = {**DATA, "test_mine.py": TESTS.encode()}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-rA",
        "test_mine.py",
    ]
    # As many signs fill the line of the time as it leaves.
    time = (r"=+ (.*) in \d+\.\d+s.*? =+", r"\1 in TIME")
    pair = trial.both(command, normal=[time, (r"pytest-\d+/", "pytest-N/")])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed" in pair.bare.stdout


DEBUGGED = """
import os, sys
def total():
    with open("data.bin", "rb", buffering=0) as file:
        read = sum(file.read())
        return read
print(total())
"""
STEPS = b"b total\nc\nn\nn\nwhere\np read\nn\nr\nc\nq\n"


@row("pdb: break, next, where, return", kept="every line that it shows", lost="nothing")
def test_pdb(trial: Trial) -> None:
    trial.files = DATA
    program = trial.command(DEBUGGED)[-1]
    pair = trial.both([sys.executable, "-m", "pdb", program], stdin=STEPS)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "read = sum(file.read())" in pair.bare.stdout


INTERACTIVE = b"""
data = open("data.bin", "rb", buffering=0).read()
sum(data)
1 / 0
%timeit -n1 -r1 None
exit()
"""


@row("IPython, and a notebook by nbclient", kept="cells, outputs, tracebacks", lost="nothing", limit_s=250)
@pytest.mark.parametrize("how", ["IPython", "nbclient"])
def test_ipython(trial: Trial, how: str) -> None:
    trial.files = DATA
    home = {
        "IPYTHONDIR": str(trial.directory / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(trial.directory / "runtime"),
    }
    if how == "IPython":
        command = [
            sys.executable,
            "-m",
            "IPython",
            "--simple-prompt",
            "--no-banner",
            "--HistoryManager.enabled=False",
        ]
        normal = [(r"[\d.]+ .s ± .*", "TIME"), (r"[\d.]+ [nµm]s .*", "TIME")]
        pair = trial.both(command, stdin=INTERACTIVE, env=home, normal=normal)
        assert "ZeroDivisionError" in pair.bare.stdout
    else:
        pair = trial.both(NOTEBOOK, env=home)
        assert "32640" in pair.bare.stdout
        assert "ZeroDivisionError" in pair.bare.stdout
    pair.assert_same()
    pair.assert_nothing_lost()


NOTEBOOK = """
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config
patient = Config({"KernelManager": {"shutdown_wait_time": 120.0}})  # else a kernel is killed after 5 s
cells = ["data = open('data.bin', 'rb', buffering=0).read()", "sum(data)", "print('shown')", "1 / 0"]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
client = NotebookClient(book, timeout=60, allow_errors=True, kernel_name="python3", config=patient)
client.create_kernel_manager()
client.km.kernel_spec.interrupt_mode = "message"  # a SIGINT as it is shut down can hang any kernel
client.execute()
for cell in book.cells:
    for output in cell.outputs:
        print(output.get("text"), output.get("data"), output.get("ename"), output.get("evalue"))
"""


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long long stepped;
void step_clock(long long seconds) { stepped += seconds; }
int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, at);
    if (clock == CLOCK_REALTIME) at->tv_sec += stepped;
    return result;
}
int gettimeofday(struct timeval *at, void *zone) {
    static int (*next)(struct timeval *, void *);
    if (!next) next = dlsym(RTLD_NEXT, "gettimeofday");
    int result = next(at, zone);
    at->tv_sec += stepped;
    return result;
}
"""


def compiled(directory: Path, source: str) -> Path:
    """Compile a library to preload."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (directory / "shim.c").write_text(source)
    line = ["cc", "-shared", "-fPIC", "-O1", "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run(line, check=True, cwd=directory)
    return directory / "shim.so"


@pytest.fixture
def shim(tmp_path: Path) -> Path:
    """A library to preload that sets the clock which the process sees."""
    return compiled(tmp_path, SHIM)


@row("another library in LD_PRELOAD, of time", kept="its place for the program, all calls", lost="nothing")
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_another_preload(trial: Trial, shim: Path, by: str) -> None:
    trial.files = DATA
    program = READING + "print(os.environ['LD_PRELOAD'].split(':')[-1])"
    pair = trial.both(program, env={"LD_PRELOAD": str(shim)}, options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == READS


# As Darshan does it: the call is looked up when it is first used.
WRAPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
static long reads;
ssize_t pread64(int file, void *data, size_t size, off64_t at) {
    static ssize_t (*next)(int, void *, size_t, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "pread64");
    reads++;
    return next(file, data, size, at);
}
long preads(void) { return reads; }
"""
COUNTED = READING + "import ctypes; print(ctypes.CDLL(None).preads())\n"


@row(
    "another I/O tracer in LD_PRELOAD, as Darshan",
    kept="what it counts, all calls; no crash",
    lost="nothing; with `--io-by dftracer` POSIX calls, reported (the two call each other without end)",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_another_tracer(trial: Trial, by: str) -> None:
    trial.files = DATA
    library = compiled(trial.directory, WRAPPER)
    pair = trial.both(COUNTED, env={"LD_PRELOAD": str(library)}, options=["--io-by", by])
    pair.assert_same()
    assert pair.bare.stdout.endswith(f"\n{READS}\n")
    told = any("wraps calls as dftracer does" in sentence for sentence in pair.told)
    assert told == (by == DFTRACER), pair.told
    assert pair.calls("pread64", "data.bin") == (0 if told else READS)


STEPPED = (
    READING
    + """
import ctypes, tarfile
def unpack():
    with tarfile.open("data.tar", "w") as archive:
        archive.add("data.bin")
    with tarfile.open("data.tar") as archive:
        print(len(archive.extractfile("data.bin").read()))
unpack()
ctypes.CDLL(None).step_clock(int(sys.argv[1]))
for step in range(60):
    print(loss(step))
unpack()
os.unlink("data.tar")
"""
)


@row(
    "the host's clock is set by an hour, forwards or backwards, during the run",
    kept="the results, all calls; durations, and the order of calls",
    lost="nothing where the agent recorded; else calls have the times of the clock that was set",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_clock_that_is_set(trial: Trial, shim: Path, seconds: int, by: str) -> None:
    trial.files = DATA
    pair = trial.both(STEPPED, str(seconds), env={"LD_PRELOAD": str(shim)}, options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 2 * READS
    calls = pair.opened.calls
    # All calls lie within the run, although half of them were stamped an hour away.
    assert int(calls.end_ns.max() - calls.start_ns.min()) < 600e9


@row("strace", kept="the program's output and exit code", lost="nothing")
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_strace(trial: Trial, by: str) -> None:
    trial.files = DATA
    command = ["strace", "-f", "-qq", "-o", "/dev/null", *trial.command(READING + "sys.exit(4)\n")]
    pair = trial.both(command, options=["--io-by", by])
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS


@row("gdb: run, continue to the end", kept="the program's output", lost="nothing")
@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb")
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_gdb(trial: Trial, by: str) -> None:
    trial.files = DATA
    inner = trial.command(READING + "sys.exit(4)\n")
    command = ["gdb", "-q", "-nx", "-batch", "-ex", "run", "--args", *inner]
    normal = [(r"\[.*\]\n", ""), (r"process \d+", "process")]
    pair = trial.both(command, normal=normal, options=["--io-by", by])
    assert pair.traced.code == pair.bare.code
    assert pair.normal(pair.traced.stdout) == pair.normal(pair.bare.stdout)
    assert pair.calls("pread64", "data.bin") == READS


STOPS = READING + "print('ready', flush=True)\nwhile True:\n    time.sleep(0.1)\n"


@row("a debugger attaches and leaves (SIGSTOP, SIGCONT to the program)", kept="it goes on", lost="nothing")
def test_a_stop_and_a_continuation(trial: Trial) -> None:
    import signal

    def stop(running: Running) -> None:
        running.asleep("ready").kill_program(signal.SIGSTOP)
        program = psutil.Process(running.pid)
        eventually(lambda: program.status() == psutil.STATUS_STOPPED)
        running.kill_program(signal.SIGCONT)
        running.asleep("ready").kill(signal.SIGINT)

    trial.files = DATA
    pair = trial.both(STOPS, act=stop)
    pair.assert_same()
    pair.assert_nothing_lost()
