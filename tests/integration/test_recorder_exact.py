"""The recorder of POSIX calls counts what the kernel counts: calls and bytes equal strace's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.recorder_build import RECORDER_GAP, compile_program, recorded
from tests.support.recorder_files import READING, WRITING, all_calls, all_moved, read_all

pytestmark = pytest.mark.skipif(bool(RECORDER_GAP), reason=RECORDER_GAP)
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing")

FILES, FILE_BYTES = 40, 2000
KINDS = {
    "openat": "open",
    "pread64": "pread",
    "pwrite64": "pwrite",
    "preadv2": "preadv",
    "copy_file_range": "copy_from",
}
READERS = {"read", "pread", "readv", "preadv", "sendfile", "copy_from"}
WRITERS = {"write", "pwrite", "writev", "pwritev"}
TRACED = "open,openat,close,read,pread64,readv,preadv,preadv2,write,pwrite64,writev,pwritev,sendfile"

READ_MANY = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <unistd.h>
static const char *folder;
static int rounds;
static void *work(void *number)
{
    char path[4096], data[4096];
    struct iovec parts[2] = {{data, 10}, {data + 10, 20}};
    for (int round = 0; round < rounds; round++) {
        snprintf(path, sizeof path, "%s/%ld.bin", folder, ((long)number * 7 + round) % FILES);
        int file = open(path, O_RDONLY);
        if (read(file, data, 500) != 500 || pread(file, data, atoi("700"), 9) != 700)
            abort();
        lseek(file, 2, SEEK_SET);
        if (readv(file, parts, 2) != 30 || preadv(file, parts, 2, 5) != 30)
            abort();
        if (preadv2(file, parts, 1, -1, 0) != 10)
            abort();
        close(file);
    }
    return NULL;
}
int main(int count, char **words)
{
    pthread_t threads[64];
    int most = atoi(words[3]);
    folder = words[1];
    rounds = atoi(words[2]);
    for (long thread = 0; thread < most; thread++)
        pthread_create(&threads[thread], NULL, work, (void *)thread);
    for (int thread = 0; thread < most; thread++)
        pthread_join(threads[thread], NULL);
    return count == 0;
}
"""

DESCRIPTORS = """
import fcntl, os, subprocess, sys
folder = sys.argv[1]
first = os.open(f"{folder}/0.bin", os.O_RDONLY)
os.read(first, 100)
for index in range(10):
    copy = os.dup(first)
    os.pread(copy, 50, 1)
    os.close(copy)
    copy = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 30)
    os.pread(copy, 60, 1)
    os.close(copy)
    other = os.open(f"{folder}/{index}.bin", os.O_RDONLY)
    os.dup2(first, other)
    os.pread(other, 70, 2)
    os.close(other)
    read, write = os.pipe()
    os.write(write, b"x" * 10)
    os.read(read, 10)
    os.close(read)
    os.close(write)
    child = os.fork()
    if not child:
        os.pread(first, 30, 7)
        os.close(first)
        os._exit(0)
    os.waitpid(child, 0)
subprocess.run(["/bin/true"], close_fds=True, check=True)
out = os.open(f"{folder}/out.bin", os.O_WRONLY | os.O_CREAT, 0o600)
os.write(out, b"y" * 123)
os.pwrite(out, b"z" * 45, 200)
os.writev(out, [b"1", b"22"])
os.set_inheritable(first, True)
os.execv("/bin/sh", ["sh", "-c", f"head -c 999 <&{first} >/dev/null; exec cat {folder}/1.bin >/dev/null"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        (made / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    return made


def _straced(log: Path, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Calls on files of the folder by kind, and their bytes, as strace tells them."""
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    begun: dict[str, str] = {}
    for line in log.read_text(errors="replace").splitlines():
        process, _, text = line.partition(" ")
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", text):
            text = begun.pop(process, "") + resumed[1]
        found = re.match(r"(\w+)\((.*)\) += (-?\d+)", text)
        if not found:
            continue
        name, arguments, result = found[1], found[2], int(found[3])
        is_open = name in ("open", "openat")
        of_file = f'"{folder}/' in arguments if is_open else f"<{folder}/" in arguments.split(",", 1)[0]
        if of_file:
            kind = KINDS.get(name, name)
            calls[kind] += 1
            moved[kind] += max(result, 0)
    return calls, moved


def _compare(tmp_path: Path, folder: Path, command: list[str]) -> None:
    log, session = tmp_path / "strace.txt", tmp_path / "session"
    session.mkdir()
    strace = ["strace", "-f", "-y", "-s", "1", "-e", f"trace={TRACED}", "-e", "signal=none", "-o", str(log)]
    settings = [f"{name}={value}" for name, value in recorded(session, {}).items()]
    done = subprocess.run([*strace, "env", *settings, *command], capture_output=True, timeout=60, check=False)
    if b"ptrace" in done.stderr:
        pytest.skip("processes may not be traced here")
    assert not done.returncode, done.stderr
    calls, moved = _straced(log, folder)
    processes = read_all(session)
    of_ours = all_calls(processes, f"{folder}/")
    assert calls["open"] > 0
    for kind in set(calls) | set(of_ours) & (READERS | WRITERS | {"open", "close"}):
        assert of_ours[kind] == calls[kind], kind
    assert all_moved(processes, READING, f"{folder}/") == sum(moved[kind] for kind in READERS)
    assert all_moved(processes, WRITING, f"{folder}/") == sum(moved[kind] for kind in WRITERS)
    assert sum(process.lost_calls + process.lost_bursts for process in processes) == 0
    for process in processes:
        assert process.burst_calls == process.calls().total()
        assert all(row.timed == sum(row.calls.values()) for row in process.rows)


@needs_strace
@pytest.mark.parametrize(
    ("threads", "flags"),
    [(1, []), (8, []), (2, ["-D_FORTIFY_SOURCE=2"]), (2, ["-no-pie", "-fno-pie"])],
    ids=["one", "eight", "fortified", "fixed address"],
)
def test_reads_of_threads_are_all_counted(
    tmp_path: Path, folder: Path, threads: int, flags: list[str]
) -> None:
    program = compile_program(tmp_path, READ_MANY, [f"-DFILES={FILES}", *flags])
    _compare(tmp_path, folder, [str(program), str(folder), "100", str(threads)])


@needs_strace
def test_copies_of_descriptors_forks_and_executed_programs_are_counted(tmp_path: Path, folder: Path) -> None:
    _compare(tmp_path, folder, [sys.executable, "-I", "-S", "-c", DESCRIPTORS, str(folder)])


@needs_strace
@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is missing")
def test_tar_reads_are_counted(tmp_path: Path, folder: Path) -> None:
    archive = folder / "all.tar"
    subprocess.run(["tar", "cf", archive, "--exclude=*.tar", "-C", folder, "."], check=True)
    _compare(tmp_path, folder, ["tar", "-xOf", str(archive)])


def test_a_killed_process_leaves_what_it_did(tmp_path: Path, folder: Path) -> None:
    code = f"""
import os, signal
for number in range(30):
    file = os.open(f"{folder}/{{number}}.bin", os.O_RDONLY)
    os.read(file, 100)
    os.close(file)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, env=recorded(tmp_path), timeout=30, check=False)
    assert done.returncode == -signal.SIGKILL
    (process,) = read_all(tmp_path)
    assert process.calls(f"{folder}/") == {"open": 30, "read": 30, "close": 30}
    assert process.moved(READING, f"{folder}/") == 3000
    assert not process.end_ns


COPIES = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/sendfile.h>
#include <unistd.h>
int main(int count, char **words)
{
    char line[100];
    off_t at = 5;
    int from = open(words[1], O_RDONLY), to = open(words[2], O_WRONLY | O_CREAT, 0600);
    if (sendfile(to, from, NULL, 100) != 100 || sendfile(to, from, &at, 50) != 50)
        return 1;
    if (copy_file_range(from, NULL, to, NULL, 30, 0) != 30)
        return 2;
    FILE *file = fopen(words[1], "r");
    if (fread(line, 1, 20, file) != 20 || fseek(file, 1, SEEK_SET) || fread(line, 2, 10, file) != 10)
        return 3;
    fclose(file);
    file = fopen(words[3], "r");
    if (!fgets(line, sizeof line, file) || fgets(line, sizeof line, file))
        return 4;
    fclose(file);
    return count == 0;
}
"""


def test_copies_within_the_kernel_and_buffered_reads_count_what_they_deliver(
    tmp_path: Path, folder: Path
) -> None:
    program, (out, text) = compile_program(tmp_path, COPIES), (tmp_path / "out.bin", tmp_path / "text")
    text.write_text("seven\n\n"[:6])
    command = [str(program), f"{folder}/3.bin", str(out), str(text)]
    done = subprocess.run(command, env=recorded(tmp_path), timeout=30, check=False)
    if done.returncode == 2:
        pytest.skip("this file system has no copy_file_range")
    assert not done.returncode
    (process,) = read_all(tmp_path)
    read = process.calls(f"{folder}/3.bin")
    assert (read["sendfile"], read["copy_from"], read["fread"], read["fseek"]) == (2, 1, 2, 1)
    assert process.moved(READING, f"{folder}/3.bin") == 100 + 50 + 30 + 40
    assert process.calls(str(out)) == {"open": 1, "copy_to": 3}
    assert process.moved(WRITING, str(out)) == 180
    assert process.calls(str(text)) == {"fopen": 1, "fgets": 2, "fclose": 1}
    assert process.moved(READING, str(text)) == 6


def test_paths_below_prefixes_are_left_out(tmp_path: Path, folder: Path) -> None:
    command = ["cat", f"{folder}/1.bin", "/etc/hostname"]
    (tmp_path / "skip").mkdir()
    (tmp_path / "only").mkdir()
    skipping = recorded(tmp_path / "skip", IOTRACE_POSIX_SKIP=f"/etc/:{folder}")
    subprocess.run(command, env=skipping, stdout=subprocess.DEVNULL, timeout=30, check=False)
    assert not all_calls(read_all(tmp_path / "skip"), f"{folder}/")
    assert not all_calls(read_all(tmp_path / "skip"), "/etc/hostname")
    one = recorded(tmp_path / "only", IOTRACE_POSIX_ONLY=str(folder))
    subprocess.run(command, env=one, stdout=subprocess.DEVNULL, timeout=30, check=False)
    assert all_calls(read_all(tmp_path / "only"), f"{folder}/")["read"] > 0
    assert not all_calls(read_all(tmp_path / "only"), "/etc/hostname")
