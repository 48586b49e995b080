"""What surrounds the launcher."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import iotrace_command
from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import Trial
from tests.faults.rows import row

UNUSABLE = b"raise RuntimeError('made for another Python')"
# What the launcher and the agent import: of others, of the standard library, and iotrace itself.
SHADOWED = ("msgspec", "click", "numpy", "iotrace", "re")
USED_BY_AGENT = ("_json", "_struct", "fcntl")
IMPORTS = """
import sys
for name in sys.argv[1:]:
    try:
        module = __import__(name)
        print(name, getattr(module, "OWN", None), flush=True)
    except RuntimeError as error:
        print(name, error)
print(sys.path[1:])
"""


@row(
    "PYTHONPATH holds unusable packages of another Python, and an iotrace",
    kept="what the program imports, its PYTHONPATH; the launcher and the agent use their own",
    lost="nothing",
    default=True,
)
def test_packages_of_another_python(trial: Trial) -> None:
    trial.files = {f"other/{name}.py": UNUSABLE for name in (*SHADOWED, *USED_BY_AGENT)}
    path = os.pathsep.join(filter(None, ["other", os.environ.get("PYTHONPATH", "")]))
    pair = trial.both(IMPORTS, *SHADOWED, env={"PYTHONPATH": path}, python=["-u"])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert len(pair.report["processes"]) == 1


@row(
    "the program has its own modules json, msgspec and iotrace next to it",
    kept="they are what it imports",
    lost="nothing",
)
def test_modules_of_the_same_name(trial: Trial) -> None:
    for name in ("json", "msgspec", "iotrace"):
        (trial.directory / f"{name}.py").write_text("OWN = __name__")
    pair = trial.both(IMPORTS, "json", "msgspec", "iotrace")
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "iotrace iotrace" in pair.traced.stdout


LEAVES_NOTHING = """
import os, shutil, sys
here = os.getcwd()
os.chdir("/")
shutil.rmtree(here)
print("done", flush=True)
sys.exit(int(sys.argv[1]))
"""


@row(
    "the program deletes its working directory, and the session in it",
    kept="the program's exit code",
    lost="the session",
    default=True,
)
@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.fault)])
def test_the_working_directory_is_deleted(trial: Trial, code: int) -> None:
    pair = trial.both(LEAVES_NOTHING, str(code), options=["-o", "session"])
    assert (pair.traced.code, pair.traced.stdout) == (pair.bare.code, pair.bare.stdout) == (code, "done\n")
    assert pair.traced.stderr == ""


@row(
    "the program deletes its working directory; the session is elsewhere",
    kept="the exit code, the session, the report",
    lost="nothing",
)
def test_the_session_lies_elsewhere(trial: Trial) -> None:
    pair = trial.both(LEAVES_NOTHING, "3")
    assert pair.traced.code == 3
    pair.assert_nothing_lost()
    here = trial.directory / "here"
    here.mkdir()
    line = [sys.executable, iotrace_command.__file__, "run", "-o", "../shown", "--"]
    shown = subprocess.run([*line, "sh", "-c", 'rm -r "$PWD"'], cwd=here, capture_output=True, text=True)
    assert (shown.returncode, "no report" in shown.stderr) == (0, False), shown.stderr


SECRET = "sk-4f1d9a"
STARTS_PROGRAMS = """
import os, subprocess, sys
for _ in range(40):
    open("data.bin").read()
line = ["true", "data.bin", "--api-key", sys.argv[2], f"--password={sys.argv[2]}"]
subprocess.run(line)
pid = os.fork()
if not pid:
    os.execvp("true", line)
os.waitpid(pid, 0)
os.system(" ".join(line))
print(len(sys.argv), os.umask(0o22))
"""


@row(
    "secrets on command lines and in variables; a umask of 0",
    kept="what the program gets; directories of mode 0700 and files of 0600 without the secrets",
    lost="the values of arguments and variables named like a token, key, secret or password",
    default=True,
)
def test_secrets_and_modes(trial: Trial) -> None:
    trial.files = {"data.bin": b"numbers"}
    arguments = ["--hf-token", SECRET, f"token={SECRET}", f"WANDB_API_KEY={SECRET}"]
    pair = trial.both(
        STARTS_PROGRAMS, *arguments, env={"WANDB_API_KEY": SECRET}, prepare=lambda: os.umask(0) and None
    )
    pair.assert_same()
    assert pair.report["session"]["argv"][-3:] == ["***", "token=***", "WANDB_API_KEY=***"]
    everything = [pair.session, *pair.session.rglob("*")]
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in everything}
    assert modes == {(True, 0o700), (False, 0o600)}
    assert [path for path in everything if path.is_file() and SECRET.encode() in path.read_bytes()] == []


@row(
    "two starts in the same second, without -o",
    kept="both runs; the later session gets a number",
    lost="nothing",
)
def test_two_starts_in_one_second(trial: Trial) -> None:
    line = [sys.executable, iotrace_command.__file__, "run", "-q", "--no-telemetry", "--", "true"]
    started = [subprocess.Popen(line, cwd=trial.directory) for _ in range(6)]
    assert [process.wait() for process in started] == [0] * 6
    sessions = [path.name for path in trial.directory.iterdir()]
    assert len(sessions) == 6
    assert all(re.fullmatch(r"iotrace-\d+-\d+(-\d)?", name) for name in sessions), sessions


READS_IN_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    char buffer[8], *path;
    int length = atoi(words[2]);
    for (int number = 0; number < atoi(words[1]); number++) {
        int file = open("data.bin", O_RDONLY);
        read(file, buffer, sizeof buffer);
        close(file);
    }
    path = calloc(length + 1, 1);
    memset(path, 'a', length);
    if (length && (open(path, O_RDONLY) >= 0 || mkdir(path, 0700) == 0 || fopen(path, "r")))
        return 1;
    if (length)
        perror("refused");
    printf("finished\n");
    return 7;
}
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in C: so many reads, then calls with a path of so many characters."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    directory = tmp_path_factory.mktemp("reader")
    (directory / "reader.c").write_text("#include <sys/stat.h>\n" + READS_IN_C)
    subprocess.run(["cc", "-o", "reader", "reader.c"], cwd=directory, check=True)
    return directory / "reader"


@row(
    "a path of 5,000 to 100,000 characters, in C",
    kept="ENAMETOOLONG, as without iotrace",
    lost="nothing",
    default=True,
)
@pytest.mark.parametrize("length", [5_000, pytest.param(100_000, marks=pytest.mark.fault)])
def test_a_long_path(trial: Trial, reader: Path, length: int) -> None:
    trial.files = {"data.bin": b"numbers"}
    pair = trial.both([str(reader), "100", str(length)])
    pair.assert_same()
    assert pair.traced.stderr == "refused: File name too long\n"
    pair.assert_nothing_lost()


LONG_PATHS = """
import os
path = "/tmp/" + "a" * 20000
for call in os.open, os.mkdir, os.listdir, os.stat, os.unlink, os.readlink, os.chdir, os.rmdir, open:
    try:
        call(path, 0) if call is os.open else call(path)
    except OSError as error:
        print(call.__name__, error.errno)
"""


@row(
    "a path of 20,000 characters, in Python",
    kept="ENAMETOOLONG from every call (with dftracer alone: a segfault)",
    lost="nothing",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_a_long_path_in_python(trial: Trial, by: str) -> None:
    pair = trial.both(LONG_PATHS, options=["--io-by", by])
    pair.assert_same()
    assert pair.traced.stdout.count("36") == 9


@row(
    "files are limited to 32 or 128 KiB (`ulimit -f` of sh), and a program in C does not ignore SIGXFSZ",
    kept="its output and exit code; of 128 KiB the sums of all calls",
    lost="with 128 KiB the times of some calls, with 32 KiB all calls (the recorder needs 64 KiB); reported",
    default=True,
)
@pytest.mark.parametrize("blocks", [64, 256])
def test_a_limit_of_file_sizes(trial: Trial, reader: Path, blocks: int) -> None:
    trial.files = {"data.bin": b"numbers"}
    pair = trial.both(["sh", "-c", f"ulimit -f {blocks}; {reader} 3000 0; echo $?"])
    pair.assert_same()
    assert pair.traced.stdout == "finished\n7\n"
    if blocks > 128:
        pair.assert_lost("have no times, only sums")
    else:
        pair.assert_lost("could record no call")
    assert pair.calls("read", "data.bin") == (3000 if blocks > 128 else 0)


NO_LARGER = """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
data = os.open("data.bin", os.O_RDONLY)
print(sum(len(os.pread(data, 4, 0)) for _ in range(3000)))
"""


@row(
    "files are limited to 32 KiB, and a Python program that does not ignore SIGXFSZ, with `--io-by dftracer`",
    kept="its output and exit code, the calls before",
    lost="its POSIX calls beyond 32 KiB of dftracer's log, reported",
)
def test_a_limit_of_dftracers_log(trial: Trial) -> None:
    trial.files = {"data.bin": b"numbers"}
    command = ["sh", "-c", 'ulimit -f 64; "$@"; echo $?', "sh", *trial.command(NO_LARGER)]
    pair = trial.both(command, options=["--io-by", DFTRACER])
    pair.assert_same()
    assert pair.traced.stdout == "12000\n0\n"
    pair.assert_lost("the limit of file sizes")
    assert 0 < pair.calls("pread64", "data.bin") < 3000


FILLS = """
import os, subprocess
def read(count):
    for _ in range(count):
        data = os.open("data.bin", os.O_RDONLY)
        os.read(data, 8)
        os.close(data)
read(300)
small = os.environ["SMALL"]
with open(f"{small}/filling", "wb") as file:
    try:
        while True:
            file.write(bytes(65536))
            file.flush()
    except OSError as error:
        print(error.errno)
read(2000)
done = subprocess.run(["cat", "data.bin", "missing"], capture_output=True)
print(done.stdout, done.stderr)
os.unlink(f"{small}/filling")
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    directory = tmp_path / "small"
    directory.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    mounted = subprocess.run(line, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@row(
    "the session's disk fills up during the run",
    kept="output, exit code, standard error, also a child's",
    lost="records from then on, reported",
    default=True,
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_a_full_disk(trial: Trial, small: Path, by: str) -> None:
    trial.files = {"data.bin": b"numbers"}
    own = {"session": small / "session", "options": ["--io-by", by]}
    pair = trial.both(FILLS, env={"SMALL": str(small)}, **own)
    assert (pair.traced.code, pair.traced.stdout) == (pair.bare.code, pair.bare.stdout)
    assert pair.traced.stderr == pair.bare.stderr == ""
    pair.assert_lost("the disk was full")


TRAINS_IN_A_THREAD = """
import threading, torch
from torch.utils.data import DataLoader, TensorDataset
def train():
    model = torch.nn.Linear(8, 1)
    for batch, in DataLoader(TensorDataset(torch.randn(24, 8)), 2):
        loss = model(batch).square().mean()
        loss.backward()
        print(loss.item().hex())
torch.manual_seed(0)
torch.set_num_threads(1)
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""


@row(
    "a loader is iterated on another thread than the one that imported torch",
    kept="losses bit by bit; standard error, on which Kineto would complain",
    lost="the window of torch's profiler, reported",
    limit_s=240,
)
def test_training_in_a_thread(trial: Trial) -> None:
    pair = trial.both(TRAINS_IN_A_THREAD, options=["--torch-steps", "3:2:4"])
    pair.assert_same()
    assert any("another thread" in told for told in pair.told), pair.told


NOBODY = 65534


def _without_privileges(*words: str) -> subprocess.CompletedProcess[str]:
    """Run iotrace as a user who may not read what belongs to others."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    dropped = "-dac_override,-dac_read_search"
    line = ["setpriv", f"--bounding-set={dropped}", f"--inh-caps={dropped}", sys.executable]
    return subprocess.run([*line, iotrace_command.__file__, *words], capture_output=True, text=True)


@row(
    "report, top, merge and export of another user's session, whole or in part",
    kept="a sentence that names the owner and what to ask for; what can be read is reported",
    lost="what cannot be read, reported",
)
def test_another_users_session(trial: Trial) -> None:
    trial.files = {"data.bin": b"numbers"}
    pair = trial.both(STARTS_PROGRAMS, "--some", "word")
    for path in (pair.session, *pair.session.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    for command in ("report", "top", "export", "merge"):
        output = [] if command in ("report", "top") else ["-o", str(trial.directory / "out.json")]
        output += ["--format", "dftracer"] if command == "export" else []
        done = _without_privileges(command, str(pair.session), *output)
        assert done.returncode == 1, done.stderr
        assert "cannot be read" in done.stderr
        assert "Traceback" not in done.stderr
    subprocess.run(["chmod", "-R", "go+rX", str(pair.session)], check=True)
    process = sorted(pair.session.glob("processes/*"))[0]
    for hidden in (process / "records.jsonl", process, pair.session / "posix"):
        hidden.chmod(0)
        done = _without_privileges("report", str(pair.session))
        assert done.returncode == 0, done.stderr
        assert "Not captured" in done.stdout


@row(
    "merge and report are interrupted, ended or killed at any stage",
    kept="what was there; the output is whole or absent, and the same command makes it",
    lost="nothing; SIGKILL may leave a hidden file that ends in .partial",
    limit_s=120,
)
def test_readers_are_interrupted(trial: Trial) -> None:
    trial.files = {"data.bin": b"numbers"}
    pair = trial.both(STARTS_PROGRAMS, "--some", "word")
    output = trial.directory / "merged.json"
    iotrace = [sys.executable, iotrace_command.__file__]
    commands = {"merge": ["-o", str(output)], "report": ["--json"]}
    for command, options in commands.items():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            for delay_s in (0.1, 0.4):  # whatever stage it has reached: each must hold
                line = [*iotrace, command, str(pair.session), *options]
                process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(delay_s)
                process.send_signal(number)
                _, stderr = process.communicate()
                assert not output.exists() or json.loads(output.read_bytes())["traceEvents"]
                output.unlink(missing_ok=True)
                if process.returncode == 130 and stderr:  # silent while it imports its modules
                    assert b"give the same command again" in stderr
        assert subprocess.run([*iotrace, command, str(pair.session), *options]).returncode == 0
    assert pair.report["session"]["exit_code"] == 0
