"""Scripts, descriptors, forks and sanitizers.

With our recorder, and with ``--io-by dftracer``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import Act, Pair, Running, Trial
from tests.faults.programs import DATA
from tests.faults.rows import row
from tests.support.waiting import eventually

either_tracer = pytest.mark.parametrize("by", [RECORDER, DFTRACER])
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")


def same(trial: Trial, by: str, program: str | list[str], *arguments: str, act: Act | None = None) -> Pair:
    """Run a program bare and traced; its output, exit code and files are the same."""
    pair = trial.both(program, *arguments, options=["--io-by", by], act=act)
    pair.assert_same()
    return pair


def script(trial: Trial, by: str, text: str, shell: str = "bash") -> Pair:
    """Run a script of a shell; its output, exit code and files are the same, and nothing else is lost."""
    trial.files = {**DATA, "job.sh": text.encode()}
    pair = same(trial, by, [shell, "job.sh"])
    pair.assert_nothing_lost()
    told = any("programs that are not Python" in sentence for sentence in pair.told)
    assert told == (by == DFTRACER), pair.told
    return pair


def compiled(trial: Trial, source: str, *flags: str) -> list[str]:
    """Return the command that runs a program in C."""
    path = trial.directory / "program"
    path.with_suffix(".c").write_text(source)
    line = ["gcc", "-O1", "-g", "-pthread", *flags, "-o", str(path), f"{path}.c"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode and flags:
        pytest.skip(f"gcc has no {flags[0]} here: {done.stderr.splitlines()[-1]}")
    assert not done.returncode, done.stderr
    return [str(path)]


SCRIPTS = {
    "exec 3>file": """
exec 3>out.txt
for turn in 1 2 3 4 5; do echo "line $turn" >&3; wc -c < data.bin >&3; done
(echo of a subshell >&3; cat data.bin >&3)
exec 3>&-
cat out.txt
exit 7
""",
    "exec 3>&1": """
exec 3>&1 4>&2
found=$(echo captured; echo past it >&3; cat data.bin | wc -c >&4)
echo "found $found" 3>&-
exec 1>out.txt
echo into the file
echo to the old output >&3
""",
    "{fd}>file": """
exec {first}>first.txt {second}<data.bin
echo "numbers $first $second"
echo written >&$first
head -c 4 <&$second | od -c
ls /proc/$$/fd
exec {first}>&-
{ echo again; } {third}>third.txt >&$third
""",
    "a script that is read while descriptors change": """
for number in 3 4 5 6 7 8 9; do eval "exec $number>out-$number.txt"; done
for number in 3 4 5 6 7 8 9; do eval "echo line of $number >&$number"; done
cat data.bin >&5
for number in 9 8 7 6 5 4 3; do eval "exec $number>&-"; done
exec 3<"$0" 4>copy.txt
read line <&3; read line <&3
echo "second line: $line" >&4
ls >&4
cat <&3 >&4
exit 9
""",
}


@row(
    "scripts of bash and sh with `exec 3>file`, `exec 3>&1` and `{fd}>file`",
    kept="output, exit code, files byte for byte, the numbers of descriptors",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
    default=True,
)
@either_tracer
@pytest.mark.parametrize("name", SCRIPTS)
def test_descriptors_of_scripts(trial: Trial, name: str, by: str) -> None:
    pair = script(trial, by, SCRIPTS[name])
    assert len(pair.bare.files) > 2
    if "{" not in name:
        script(trial, by, SCRIPTS[name], shell="sh")


LOCKED = """
count() {
    for turn in 1 2 3 4 5; do
        OPENS
        flock $lock
        value=$(cat count.txt); echo $((value + 1)) > count.txt
        CLOSES
    done
}
echo 0 > count.txt
for job in 1 2 3 4; do count & done
wait
cat count.txt
"""


@row(
    "four jobs of a script that count under `flock`, on descriptor 9 and on `{fd}`",
    kept="the lock: the count",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@pytest.mark.skipif(shutil.which("flock") is None, reason="no flock")
@either_tracer
@pytest.mark.parametrize("number", ["9", "{lock}"])
def test_locks_of_scripts(trial: Trial, number: str, by: str) -> None:
    opens, closes = f"exec {number}>lock; lock=${{lock:-9}}", f"exec {number}>&-; unset lock"
    pair = script(trial, by, LOCKED.replace("OPENS", opens).replace("CLOSES", closes))
    assert pair.bare.stdout == "20\n"


@row(
    "a script of 500 short commands",
    kept="output, exit code, files",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@either_tracer
def test_many_commands(trial: Trial, by: str) -> None:
    text = (
        'for turn in $(seq 250); do /bin/true; head -c 1 data.bin >> "out-$((turn % 7))"; done; wc -c out-*\n'
    )
    pair = script(trial, by, text)
    if by == RECORDER:
        assert pair.calls("read", "data.bin") >= 250


OTHERS = {
    "perl": r"""
exec 3>three.txt 8>eight.txt
perl -e '
use POSIX ();
open(my $three, ">&=", 3) or die; print $three "by number\n"; close $three;
POSIX::dup2(8, $_) for 9 .. 40;
for my $number (9 .. 40) { open(my $file, ">&=", $number) or die; print $file "line of $number\n"; }
open(my $data, "<", "data.bin") or die; read($data, my $bytes, 4);
print fileno($data), " ", length($bytes), "\n";
'
cat three.txt eight.txt
""",
    "awk": """
exec 3>three.txt 7>seven.txt
awk 'BEGIN { for (turn = 0; turn < 50; turn++) { print turn > "/dev/fd/3"; print turn | "cat >&7" } exit 3 }'
echo $?
cat three.txt seven.txt
""",
}


@row(
    "perl and awk that write to descriptors by their numbers",
    kept="output, files",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@either_tracer
@pytest.mark.parametrize("language", OTHERS)
def test_other_languages(trial: Trial, language: str, by: str) -> None:
    if shutil.which(language) is None:
        pytest.skip(f"no {language}")
    script(trial, by, OTHERS[language])


NUMBERS_IN_C = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static void fill(const char *name) {
    char line[64];
    int file = open(name, O_CREAT | O_RDWR | O_APPEND, 0600), data;
    printf("%s is %d\\n", name, file);
    for (int number = 3; number <= 200; number++)
        if (number != file && dup2(file, number) != number) exit(2);
    for (int number = 3; number <= 200; number++)
        if (write(number, line, sprintf(line, "line of %d\\n", number)) <= 0) exit(3);
    data = open("data.bin", O_RDONLY);
    printf("data is %d, %zd bytes\\n", data, read(data, line, 60));
}
int main(void) {
    fill("one.txt");
    for (int number = 3; number < 400; number++) close(number);
    fill("two.txt");
    if (syscall(436, 3u, ~0u, 0u)) /* close_range */
        for (int number = 3; number < 400; number++) close(number);
    fill("three.txt");
    return 5;
}
"""


@row(
    "a program in C that closes all descriptors, also by close_range, and puts a file on 3 to 200 by dup2",
    kept="its files, byte for byte; the numbers that it gets",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@needs_gcc
@either_tracer
def test_numbers_in_c(trial: Trial, by: str) -> None:
    trial.files = DATA
    pair = same(trial, by, compiled(trial, NUMBERS_IN_C))
    pair.assert_nothing_lost()
    assert (pair.bare.code, len(pair.bare.files)) == (5, 4)
    if by == RECORDER:
        assert pair.calls("write", "one.txt") == 198


NUMBERS = """
import os, threading
def fill(name, numbers):
    file = os.open(name, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    for number in numbers:
        os.dup2(file, number)
    for number in numbers:
        os.write(number, b"line of %d\\n" % number)
    with open("data.bin", "rb", buffering=0) as data:
        for step in range(40):
            os.pread(data.fileno(), 4, step)
    with open(name, "rb") as written:
        print(name, len(written.read()), flush=True)
fill("one.txt", range(20, 200))
os.closerange(3, 200)
fill("two.txt", range(3, 200))
for number in range(3, 200):
    os.close(number)
all_numbers = [range(20 + n * 40, 60 + n * 40) for n in range(4)]
threads = [threading.Thread(target=fill, args=(f"file-{own[0]}", own)) for own in all_numbers]
for thread in threads:
    thread.start()
    thread.join()
"""


@row(
    "a Python program that puts its files on 3 to 200 by os.dup2, and closes all of them",
    kept="its files, byte for byte",
    lost="nothing",
)
@either_tracer
def test_numbers_in_python(trial: Trial, by: str) -> None:
    trial.files = DATA
    pair = same(trial, by, NUMBERS)
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 6 * 40


CHAIN = """
import os, subprocess, sys
depth = int(sys.argv[1])
if depth == 3:
    kept = [os.open(f"kept-{n}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for n in range(4)]
    for number in kept:
        os.set_inheritable(number, True)
else:
    kept = [int(number) for number in sys.argv[2:]]
with open("data.bin", "rb", buffering=0) as data:
    for step in range(30):
        os.pread(data.fileno(), 4, step)
for number in kept:
    os.write(number, b"python at %d on %d\\n" % (depth, number))
if depth:
    line = f'for n in "$@"; do echo "sh at {depth}" >&$n; done; exec "$0" {__file__} {depth - 1} "$@"'
    command = ["sh", "-c", line, sys.executable, *map(str, kept)]
    sys.exit(subprocess.call(command, close_fds=False) + 1)
"""


@row(
    "Python starts sh, which starts Python, and so on (`close_fds=False`): all write to what they inherit",
    kept="output, exit code, files",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@either_tracer
def test_inherited_descriptors(trial: Trial, by: str) -> None:
    trial.files = DATA
    pair = same(trial, by, CHAIN, "3")
    pair.assert_nothing_lost()
    assert pair.bare.code == 3
    assert pair.calls("pread64", "data.bin") == 4 * 30


FORKS = """
import os, threading
stop = False
def write(number):
    while not stop:
        with open(f"out-{number}", "ab", buffering=0) as file:
            file.write(b"x" * 10)
def fork():
    for _ in range(25):
        child = os.fork()
        if not child:
            with open("seen", "ab", buffering=0) as file:
                file.write(b"y")
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
forkers = [threading.Thread(target=fork) for number in range(4)]
for thread in writers + forkers: thread.start()
for thread in forkers: thread.join()
stop = True
for thread in writers: thread.join()
for number in range(3):
    with open(f"out-{number}", "rb") as file:
        found = file.read()
    assert found and not found.strip(b"x") and len(found) % 10 == 0, found[:200]
    os.remove(f"out-{number}")
print("forked 100 times")
"""


@row(
    "four threads fork 100 children that write and leave by os._exit, while three others write; three times",
    kept="each child ends; files",
    lost="nothing; with dftracer, calls of C's stdio in such children, reported",
)
@either_tracer
@pytest.mark.parametrize("turn", range(3))
def test_forks_beside_writers(trial: Trial, turn: int, by: str) -> None:
    pair = same(trial, by, FORKS)
    assert pair.bare.files["seen"] == b"y" * 100
    told = any("C's stdio in 100 forked processes" in sentence for sentence in pair.told)
    assert told == (by == DFTRACER), pair.told


LOADER = """
import logging, os, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
class Reads(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        with open("data.bin", "rb", buffering=0) as data:
            return float(sum(os.pread(data.fileno(), 16, index)))
logging.basicConfig(filename="log.txt", level=logging.INFO, format="%(asctime)s %(message)s")
stop = False
def logs():
    while not stop:
        logging.info("a line of a thread")
thread = threading.Thread(target=logs)
thread.start()
for epoch in range(6):
    loader = DataLoader(Reads(), batch_size=8, num_workers=4)
    print(epoch, sum(float(batch.sum()) for batch in loader), flush=True)
stop = True
thread.join()
with open("log.txt") as file:
    assert all(line.endswith("a line of a thread\\n") for line in file)
os.remove("log.txt")
"""


@row(
    "six epochs of a DataLoader with four forked workers, and a thread that logs",
    kept="losses, each worker's end, the log",
    lost="nothing; with dftracer, calls of C's stdio in the workers, reported",
)
@either_tracer
def test_a_loader_beside_a_log(trial: Trial, by: str) -> None:
    trial.files = DATA
    pair = same(trial, by, LOADER)
    assert pair.calls("pread64", "data.bin") == 6 * 64


SANITIZED = """
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *reads(void *name) {
    char *data = malloc(64);
    long total = 0;
    for (int step = 0; step < 200; step++) {
        int file = open("data.bin", O_RDONLY);
        total += pread(file, data, 64, step % 64) + data[1];
        close(file);
        FILE *stream = fopen(name, "a");
        fprintf(stream, "step %d\\n", step);
        fclose(stream);
    }
    free(data);
    return (void *)total;
}
int main(void) {
    pthread_t threads[3];
    char names[3][16];
    long total = 0;
    void *found;
    for (int number = 0; number < 3; number++) {
        sprintf(names[number], "out-%d.txt", number);
        pthread_create(&threads[number], NULL, reads, names[number]);
    }
    for (int number = 0; number < 3; number++) {
        pthread_join(threads[number], &found);
        total += (long)found;
    }
    int status = 0;
    if (!fork()) _exit(total % 100);
    wait(&status);
    printf("%ld %d\\n", total, WEXITSTATUS(status));
    return 4;
}
"""


@row(
    "programs built with `-fsanitize=address` and `-fsanitize=thread`, of gcc",
    kept="output, exit code, files; no report of the sanitizer",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@needs_gcc
@either_tracer
@pytest.mark.parametrize("kind", ["address", "thread"])
def test_sanitizers(trial: Trial, kind: str, by: str) -> None:
    trial.files = DATA
    pair = same(trial, by, compiled(trial, SANITIZED, f"-fsanitize={kind}"))
    assert (pair.bare.code, pair.bare.stderr) == (4, "")


DAEMONS = """
exec 3>daemon.txt 5<data.bin
(setsid sh -c 'exec >&- 2>&- <&-
    (cat <&5 >&3; echo done >&3; sleep 0.3; echo later >&3; mv daemon.txt done.txt) &' &)
exec 3>&- 3>after.txt
echo of the script >&3
"""


@row(
    "a script that starts a daemon by `setsid`, twice forked, which goes on with descriptors of the script",
    kept="output, files; the command is not held up",
    lost="what the daemon does after the command ended",
)
@pytest.mark.skipif(shutil.which("setsid") is None, reason="no setsid")
@either_tracer
def test_daemons_of_scripts(trial: Trial, by: str) -> None:
    def wait(running: Running) -> None:
        running.process.wait()
        eventually(lambda: (running.directory / "done.txt").exists())

    trial.files = {**DATA, "job.sh": DAEMONS.encode()}
    pair = same(trial, by, ["bash", "job.sh"], act=wait)
    assert pair.bare.files["done.txt"].endswith(b"done\nlater\n")


STARTS = """
import os, subprocess, sys, threading
data = os.open("data.bin", os.O_RDONLY)
stop = False
def reads():
    while not stop:
        with open("data.bin", "rb", buffering=0) as file:
            file.read()
for name in "missing-interpreter", "no-program":
    os.chmod(name, 0o700)
def start(*words, **settings):
    try:
        done = subprocess.run(words, capture_output=True, **settings)
        print(words[0][-20:], done.returncode, len(done.stdout), done.stderr)
    except (OSError, subprocess.SubprocessError) as error:
        print(words[0][-20:], error)
    for step in range(20):
        os.pread(data, 4, step)
threads = [threading.Thread(target=reads) for _ in range(3)]
for beside in False, True:
    for thread in threads if beside else ():
        thread.start()
    start("/not/there")
    start("not-on-the-path")
    start("./missing-interpreter")
    start("./no-program")
    start("./data.bin")
    start("/bin/true", cwd="/not/there")
    start("/bin/echo", "x" * 100000)
    start("/bin/echo", *["x" * 3000] * 4)
    start("/bin/echo", "close", close_fds=False)
    start("/bin/echo", "hooks", preexec_fn=lambda: None)
    start(sys.executable, "-c", "print(len(open('data.bin', 'rb').read()))")
stop = True
for thread in threads:
    thread.join()
"""


@row(
    "programs that cannot be started, in six ways, and some that can, also with three threads that read",
    kept="errors, output, all calls",
    lost="nothing; with dftracer, calls of programs that are not Python, reported",
)
@either_tracer
def test_starts(trial: Trial, by: str) -> None:
    trial.files = {**DATA, "missing-interpreter": b"#!/not/there\n", "no-program": b"\x7fELF" + bytes(99)}
    pair = same(trial, by, STARTS)
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == 22 * 20


LOG_OF_DFTRACER = """
import os
with open("data.bin", "rb", buffering=0) as data:
    for step in range(400):
        os.pread(data.fileno(), 4, step)
names = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit()
         and os.path.exists(f"/proc/self/fd/{name}")]
print([name for name in names if name.endswith(".pfw")])
"""


@row(
    "a program lists its descriptors, with `--io-by dftracer`",
    kept="dftracer's log is none of them",
    lost="nothing",
)
def test_the_log_has_no_descriptor(trial: Trial) -> None:
    trial.files = DATA
    pair = same(trial, DFTRACER, LOG_OF_DFTRACER)
    pair.assert_nothing_lost()
    assert pair.bare.stdout == "[]\n"
    assert pair.calls("pread64", "data.bin") == 400
    logs = list(Path(pair.session, "posix").glob("*.pfw"))
    assert [os.path.getsize(log) > 0 for log in logs] == [True]
