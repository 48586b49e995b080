"""The recorder of POSIX calls, built for aarch64 and run by qemu."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.recorder_build import build_recorder
from tests.support.recorder_files import all_calls, read_all

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
LIBRARIES = "/usr/aarch64-linux-gnu"
GAP = next((f"{name} is missing" for name in (COMPILER, EMULATOR) if shutil.which(name) is None), "")

pytestmark = pytest.mark.skipif(bool(GAP), reason=GAP)

# Threads, children of vfork and fork, a system call by its number: all that is written in assembly.
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static const char *source;
static void *work(void *unused)
{
    char data[64];
    for (int time = 0; time < 50; time++) {
        int file = open(source, O_RDONLY);
        if (read(file, data, 64) != 64 || pread(file, data, 30, 7) != 30 || close(file))
            abort();
    }
    return unused;
}
int main(int count, char **words)
{
    pthread_t threads[4];
    struct stat status;
    int code;
    source = words[1];
    for (int number = 0; number < 4; number++)
        pthread_create(&threads[number], NULL, work, NULL);
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
    if (stat(source, &status) || status.st_size != 100)
        return 2;
    pid_t child = vfork();
    if (!child) {
        execl("/nonexistent", "nonexistent", (char *)0);
        _exit(7);
    }
    if (waitpid(child, &code, 0) != child || code != 7 << 8)
        return 3;
    child = fork();
    if (!child) {
        work(NULL);
        _exit(8);
    }
    if (waitpid(child, &code, 0) != child || code != 8 << 8)
        return 4;
    FILE *stream = fopen(source, "r");
    char line[40];
    if (fread(line, 1, 40, stream) != 40 || fclose(stream))
        return 5;
    if (syscall(SYS_close, dup(0)) || syscall(SYS_openat, AT_FDCWD, "/nonexistent", O_RDONLY, 0) != -1)
        return 6;
    puts("fine");
    return count == 0;
}
"""


def test_calls_are_counted_on_aarch64(tmp_path: Path) -> None:
    recorder = build_recorder(tmp_path, COMPILER)
    program, source, session = tmp_path / "program", tmp_path / "source", tmp_path / "session"
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run([COMPILER, "-O2", "-w", "-pthread", "-o", program, tmp_path / "program.c"], check=True)
    source.write_bytes(b"x" * 100)
    session.mkdir()
    settings = ["-E", f"LD_PRELOAD={recorder}", "-E", f"IOTRACE_POSIX={session}"]
    command = [EMULATOR, "-L", LIBRARIES, *settings, program, source]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"fine\n", b"")
    processes = read_all(session)
    of_work = Counter({"open": 50, "read": 50, "pread": 50, "close": 50})
    of_main = Counter({"stat": 1, "fopen": 1, "fread": 1, "fclose": 1})
    assert sorted(process.calls(str(source)).total() for process in processes) == [200, 804]
    of_all = of_main + Counter({kind: 5 * calls for kind, calls in of_work.items()})
    assert all_calls(processes, str(source)) == of_all
    assert not sum(process.lost_calls + process.lost_bursts for process in processes)
