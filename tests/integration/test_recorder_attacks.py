"""The recorder meets programs that do what libc does out of sight, or that leave it no room."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from iotrace.launch.posix import _filters
from tests.support.recorder_build import RECORDER_GAP, compile_program, recorded
from tests.support.recorder_files import READING, WRITING, Process, all_calls, all_moved, read_all

pytestmark = pytest.mark.skipif(bool(RECORDER_GAP), reason=RECORDER_GAP)

HEAD = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <grp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char data[4096];
static int failed(const char *what) { perror(what); return 1; }
static void read_some(const char *path, int times)
{
    for (int time = 0; time < times; time++) {
        int file = open(path, O_RDONLY);
        if (read(file, data, 10) != 10)
            _exit(9);
        close(file);
    }
}
static void have_read(const char *path, int children)
{
    for (int child = 0; child < children; child++)
        if (!fork()) {
            read_some(path, 100);
            _exit(0);
        }
    for (int status = 0; wait(&status) > 0;)
        if (status)
            _exit(8);
}
"""
BODIES = {
    # The path lies in the file that the call truncates.
    "truncate": r"""
        int file = open("table", O_CREAT | O_RDWR, 0600);
        if (ftruncate(file, 4096))
            return failed("ftruncate");
        char *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        strcpy(map, "table");
        return truncate(map, 0);
    """,
    # Another thread gives back the memory of the path while the call waits.
    "unmap": r"""
        pthread_t other;
        mkfifo("fifo", 0600);
        path = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        strcpy(path, "fifo");
        pthread_create(&other, NULL, give_back, NULL);
        int file = open(path, O_RDONLY);
        pthread_join(other, NULL);
        return file < 0;
    """,
    "streams": r"""
        FILE *pipe = popen("echo hi", "r");
        if (!fgets(data, 100, pipe) || pclose(pipe))
            return failed("popen");
        int file = mkstemp(strcpy(data + 500, "made.XXXXXX"));
        for (int time = 0; time < 100; time++)
            if (write(file, data, 10) != 10)
                return failed("write");
        return close(file);
    """,
    "numbers": r"""
        int file = open(words[1], O_RDONLY);
        for (int way = 0; way < 2; way++) {
            snprintf(data, 100, way ? "/dev/fd/%d" : "/proc/self/fd/%d", file);
            int again = open(data, O_RDONLY);
            if (read(again, data, 100) != 100)
                return failed("read");
            close(again);
        }
        return close(file);
    """,
    "walk": r"""
        mkdir("tree", 0700), mkdir("tree/a", 0700), mkdir("tree/b", 0700);
        for (int which = 0; which < 2; which++) {
            int file = open(which ? "tree/a/x" : "tree/b/x", O_CREAT | O_WRONLY, 0600);
            write(file, "0123456789", 10);
            close(file);
        }
        if (nftw("tree", look, 9, FTW_CHDIR | FTW_PHYS))
            return failed("nftw");
        char *roots[] = {"tree", NULL};
        FTS *tree = fts_open(roots, FTS_PHYSICAL, NULL);
        for (FTSENT *each; (each = fts_read(tree));)
            if (each->fts_info == FTS_F)
                read_some(each->fts_accpath, 1);
        return fts_close(tree);
    """,
    # Its descriptor 1 is a file; that of the daemon is none.
    "daemon": r"""
        if (write(1, data, 5) != 5 || daemon(1, 0))
            return failed("daemon");
        if (write(1, data, 100) != 100)
            return 1;
        return close(open("done", O_CREAT | O_WRONLY, 0600));
    """,
    "lock": r"""
        read_some(words[1], 3);
        if (mlockall(MCL_CURRENT | MCL_FUTURE))
            return failed("mlockall");
        read_some(words[1], 3);
        FILE *status = fopen("/proc/self/status", "r");
        while (fgets(data, sizeof data, status))
            if (!strncmp(data, "VmLck:", 6))
                puts(data);
        return 0;
    """,
    "privileges": r"""
        read_some(words[1], 100);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        have_read(words[1], 3);
        return 0;
    """,
    "user": r"""
        read_some(words[1], 100);
        if (setgid(65534) || setuid(65534))
            return failed("setuid");
        have_read(words[1], 2);
        return 0;
    """,
    "many": r"""
        for (int number = 0; number < 20000; number++) {
            snprintf(data, sizeof data, "/nonexistent/data/sample_%06d", number);
            open(data, O_RDONLY);
        }
        return 0;
    """,
    # A filter that ends the program at each system call that it and the loader do not make.
    "confined": r"""
        static const int few[] = {
            SYS_execve, SYS_brk, SYS_set_tid_address, SYS_set_robust_list, SYS_mprotect, SYS_munmap, SYS_mmap,
            SYS_prlimit64, SYS_getrandom, SYS_openat, SYS_read, SYS_pread64, SYS_write, SYS_close,
            SYS_newfstatat, SYS_fstat, SYS_exit_group, SYS_futex, SYS_faccessat, SYS_rseq,
        #ifdef SYS_arch_prctl
            SYS_arch_prctl, SYS_access,
        #endif
        };
        enum { FEW = sizeof few / sizeof *few };
        struct sock_filter filter[2 * FEW + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
        struct sock_fprog program = {2 * FEW + 2, filter};
        if (count > 2) {
            read_some(words[1], 5);
            return write(1, "fine", 4) != 4;
        }
        for (int index = 0; index < FEW; index++) {
            filter[2 * index + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, few[index], 0, 1);
            filter[2 * index + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        }
        filter[2 * FEW + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
            return failed("seccomp");
        execl(words[0], words[0], words[1], "again", (char *)0);
        return 7;
    """,
}
HELPERS = {
    "unmap": r"""
        static char *path;
        static void *give_back(void *unused)
        {
            sleep(1);
            munmap(path, 4096);
            close(open("fifo", O_WRONLY));
            return unused;
        }
    """,
    "walk": r"""
        static int look(const char *path, const struct stat *status, int kind, struct FTW *at)
        {
            if (kind == FTW_F)
                read_some(path + at->base, 1);
            return status == NULL;
        }
    """,
}


class Attack:
    """A program in C, run bare and with the recorder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.session = folder, folder / "session"
        self.session.mkdir(mode=0o777)
        self.source = folder / "source"
        self.source.write_bytes(b"0123456789" * 10)
        body = f"int main(int count, char **words) {{ {BODIES[name]} }}"
        self.program = compile_program(folder, HEAD + HELPERS.get(name, "") + body)

    def run(self, record: bool, **more: str) -> subprocess.CompletedProcess[bytes]:
        environment = recorded(self.session, **more) if record else {**os.environ, **more}
        work = self.folder / ("recorded" if record else "bare")
        work.mkdir()
        command = [str(self.program), str(self.source)]
        return subprocess.run(
            command, cwd=work, env=environment, capture_output=True, timeout=60, check=False
        )

    def both(self, **more: str) -> list[Process]:
        """Run it in both ways, which have to agree; return what was recorded of the second."""
        bare = self.run(False, **more)
        if bare.returncode > 0 and bare.stderr:
            pytest.skip(f"not here: {bare.stderr.decode().strip()}")
        assert not bare.returncode
        seen = self.run(True, **more)
        assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
        return read_all(self.session)


@pytest.mark.parametrize("name", ["truncate", "unmap"])
def test_a_path_whose_memory_is_gone_is_not_read(tmp_path: Path, name: str) -> None:
    assert Attack(tmp_path, name).both()


def test_descriptors_that_libc_itself_closed_are_not_those_of_later_files(tmp_path: Path) -> None:
    attack = Attack(tmp_path, "streams")
    (made,) = [process for process in attack.both() if process.calls(f"{tmp_path}/recorded/made.")]
    assert made.calls(f"{tmp_path}/recorded/made.") == {"open": 1, "write": 100, "close": 1}
    assert made.moved(WRITING, f"{tmp_path}/recorded/made.") == 1000


def test_reads_through_the_name_of_a_descriptor_are_its_files(tmp_path: Path) -> None:
    attack = Attack(tmp_path, "numbers")
    processes = attack.both()
    assert all_calls(processes, str(attack.source))["read"] == 2
    assert all_moved(processes, READING, str(attack.source)) == 200


def test_names_are_right_where_libc_changes_the_directory(tmp_path: Path) -> None:
    processes = Attack(tmp_path, "walk").both()
    root = f"{tmp_path}/recorded/tree"
    for name in ("a/x", "b/x"):
        assert all_calls(processes, f"{root}/{name}")["read"] == 2
    read = Counter(row.file for process in processes for row in process.rows if row.group == READING)
    assert set(read) == {f"{root}/a/x", f"{root}/b/x"}


def test_a_daemons_descriptors_are_not_its_parents(tmp_path: Path) -> None:
    attack = Attack(tmp_path, "daemon")
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    ended, held = os.pipe()  # the daemon, which is nobody's child here, holds one end until it is gone
    with out.open("wb") as file, os.fdopen(ended, "rb") as end:
        environment = recorded(attack.session)
        with os.fdopen(held, "wb"):
            subprocess.run(
                [attack.program],
                cwd=work,
                env=environment,
                stdout=file,
                pass_fds=[held],
                timeout=30,
                check=True,
            )
        assert select.select([end], [], [], 30)[0], "the daemon goes on"
    assert (work / "done").exists()
    assert out.stat().st_size == 5
    assert all_moved(read_all(attack.session), WRITING, str(out)) == 5


def test_locked_memory_is_the_programs_own(tmp_path: Path) -> None:
    attack = Attack(tmp_path, "lock")
    if attack.run(False).returncode:
        pytest.skip("memory cannot be locked here")
    done = attack.run(True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < 100_000  # kB; mapped ahead are 8 GiB
    assert all_calls(read_all(attack.session), str(attack.source))["read"] == 6


def test_children_that_can_have_no_file_are_counted() -> None:
    if os.geteuid():
        pytest.skip("needs root")
    with tempfile.TemporaryDirectory() as folder:  # whose parents any user may pass
        Path(folder).chmod(0o755)
        for name, refused in (("privileges", 3), ("user", 2)):
            (Path(folder) / name).mkdir(mode=0o755)
            attack = Attack(Path(folder) / name, name)
            attack.source.chmod(0o644)
            attack.session.chmod(0o700)
            (process,) = attack.both()
            assert process.calls(str(attack.source))["read"] == 100
            assert process.refused_children == refused


def test_thousands_of_names_that_end_alike_stay_apart(tmp_path: Path) -> None:
    """A hash of which their last digits say little would put them into one place of the table."""
    (process,) = Attack(tmp_path, "many").both()
    opened = Counter({row.file: row.calls["open"] for row in process.rows if "sample_" in row.file})
    assert (len(opened), opened.total()) == (20_000, 20_000)


def test_a_program_under_a_filter_of_others_makes_its_own_system_calls_alone(tmp_path: Path) -> None:
    attack = Attack(tmp_path, "confined")
    bare = attack.run(False)
    if bare.stdout != b"fine":
        pytest.skip("the filter ends the bare program here")
    done = attack.run(True, IOTRACE_POSIX_FILTERS=str(_filters()))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"fine", b"")


@pytest.mark.parametrize("code", ["exit 7", "sleep 0.3; exit 7"])
def test_a_launcher_whose_parent_ignores_the_end_of_children(tmp_path: Path, code: str) -> None:
    command = [sys.executable, "-m", "iotrace", "run", "-q", "--no-telemetry", "-o", str(tmp_path / "s")]
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    ignoring += "os.execv(sys.argv[1], sys.argv[1:])"
    whole = [sys.executable, "-c", ignoring, *command, "--", shutil.which("sh") or "sh", "-c", code]
    done = subprocess.run(whole, timeout=60, check=False, start_new_session=True)
    assert done.returncode == 7
    assert signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN
