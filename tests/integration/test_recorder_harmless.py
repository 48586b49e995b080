"""Programs with the recorder of POSIX calls in them do what they do without it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.recorder_build import RECORDER_GAP, compile_program, recorded
from tests.support.recorder_files import READING, all_calls, all_moved, read_all

pytestmark = pytest.mark.skipif(bool(RECORDER_GAP), reason=RECORDER_GAP)

LINE = "0123456789" * 10


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file that programs read."""
    path = tmp_path / "source"
    path.write_text(LINE)
    return path


@pytest.fixture
def session(tmp_path: Path) -> Path:
    folder = tmp_path / "session"
    folder.mkdir()
    return folder


def _run(command: list[str | Path], session: Path | None, **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = dict(os.environ, **more) if session is None else recorded(session, **more)
    words = [str(word) for word in command]
    return subprocess.run(words, env=environment, capture_output=True, timeout=50, check=False)


# Each prints its result and errno, which is 77 before. NULL and 1 are no addresses of paths.
ODD_CALLS = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#define SHOW(call) \
    do { errno = 77; long r = (long)(call); printf("%s: %ld %d\n", #call, r > 0 ? 1 : r, errno); } while (0)
int main(int count, char **words)
{
    struct stat s;
    struct statx x;
    char b[100], deep[5000], gone[4096];
    void *none = NULL;
    const char *bad = (char *)1, *nul = NULL;
    __asm__("" : "+r"(none), "+r"(bad), "+r"(nul));
    SHOW(open(nul, O_RDONLY));
    SHOW(open(bad, O_RDONLY));
    SHOW(openat(-5, "x", 0));
    SHOW(stat(bad, &s));
    SHOW(stat("/etc", (void *)1));
    SHOW(fstatat(0, nul, &s, AT_EMPTY_PATH));
    SHOW(fstatat(0, "", &s, AT_EMPTY_PATH));
    SHOW(statx(0, bad, 0x40000000, STATX_ALL, &x));
    SHOW(statx(0, nul, AT_EMPTY_PATH, STATX_ALL, &x));
    SHOW(unlinkat(AT_FDCWD, bad, 0x40000));
    SHOW(renameat2(AT_FDCWD, bad, AT_FDCWD, bad, 0x40000));
    SHOW(truncate(bad, -1));
    SHOW(faccessat(AT_FDCWD, bad, 0x100, 0));
    SHOW(access("", R_OK));
    SHOW(rename(nul, nul));
    SHOW(fopen(words[1], "zz"));
    SHOW(opendir(""));
    SHOW(closedir(none));
    SHOW(chdir(nul));
    SHOW(fchdir(-1));
    SHOW(read(-1, b, 1));
    SHOW(read(70000, b, 1));
    SHOW(read(50, b, 1));
    SHOW(close(50));
    SHOW(close(70000));
    SHOW(dup2(50, 51));
    SHOW(dup3(0, 0, 0));
    SHOW(lseek(0, -5, 99));
    SHOW(sendfile(1, 50, 0, 4));
    int file = open(words[1], O_RDONLY);
    SHOW(read(file, (void *)1, 10));
    SHOW(pread(file, b, 10, -1));
    SHOW(write(file, b, 1));
    SHOW(sendfile(1, file, (off_t *)1, 4));
    SHOW(mmap(0, 0, 1, 2, file, 0));
    SHOW(ftruncate(file, 0));
    FILE *memory = fmemopen(b, 100, "w+");
    SHOW(fwrite("abc", 1, 3, memory));
    SHOW(fclose(memory));
    FILE *pipe_of = popen("echo hi", "r");
    SHOW(fgets(b, 50, pipe_of));
    SHOW(pclose(pipe_of));
    FILE *stream = fopen(words[1], "r");
    SHOW(fgets(b, 50, stream));
    SHOW(freopen(0, "r", stream) != 0);
    SHOW(fclose(stream));
    int unnamed = memfd_create("m", 0);
    SHOW(write(unnamed, "abcd", 4));
    SHOW(close(unnamed));
    memset(deep, 'a', sizeof deep);
    deep[4999] = 0;
    SHOW(open(deep, 0));
    deep[0] = '/';
    SHOW(stat(deep, &s));
    snprintf(gone, sizeof gone, "%s.\xff\xfe\nline", words[1]);
    int odd = open(gone, O_CREAT | O_RDWR, 0600);
    SHOW(write(odd, "xyz", 3));
    SHOW(close(odd));
    SHOW(unlink(gone));
    mkdir(gone, 0700);
    SHOW(chdir(gone));
    SHOW(rmdir(gone));
    SHOW(open("relative", O_RDONLY));
    SHOW(stat(".", &s));
    SHOW(chdir("/"));
    SHOW(stat(".//etc", &s));
    int ends[2];
    SHOW(pipe(ends));
    SHOW(write(ends[1], b, 5));
    SHOW(read(ends[0], b, 5));
    SHOW(lseek(ends[0], 0, 0));
    SHOW(dup2(file, ends[0]));
    SHOW(syscall(SYS_close, ends[0]));
    SHOW(syscall(SYS_openat, AT_FDCWD, "/none", 0, 0));
    SHOW(syscall(SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) > 0);
    return count == 0;
}
"""


@pytest.mark.parametrize("flags", [[], ["-D_FORTIFY_SOURCE=2"]], ids=["plain", "fortified"])
def test_results_and_errors_are_those_of_the_program(
    tmp_path: Path, source: Path, session: Path, flags: list[str]
) -> None:
    program = compile_program(tmp_path, ODD_CALLS, flags)
    bare, seen = _run([program, source], None), _run([program, source], session)
    assert (seen.returncode, seen.stdout.decode()) == (bare.returncode, bare.stdout.decode())
    assert all_calls(read_all(session))["open"] > 5


# Of four threads that fork beside three that write: children with threads and children of their own.
FORKS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static const char *source;
static int stop;
static void *reads(void *unused)
{
    char data[64];
    for (int time = 0; time < 5; time++) {
        int file = open(source, O_RDONLY);
        if (read(file, data, 64) != 64)
            _exit(9);
        close(file);
    }
    return unused;
}
static void *forks(void *unused)
{
    for (int time = 0; time < 15; time++) {
        int status;
        pid_t child = fork();
        if (!child) {
            if (time % 3 == 0) { /* a thread may be the first to do something */
                pthread_t thread;
                pthread_create(&thread, NULL, reads, NULL);
                pthread_join(thread, NULL);
            }
            reads(NULL);
            if (time % 5 == 0) {
                if (!fork()) {
                    reads(NULL);
                    _exit(0);
                }
                wait(NULL);
            }
            if (time % 2)
                _exit(0);
            execl("/bin/true", "true", (char *)0);
            _exit(7);
        }
        if (waitpid(child, &status, 0) != child || status)
            exit(3);
    }
    return unused;
}
static void *writes(void *number)
{
    char path[4096], data[4096];
    snprintf(path, sizeof path, "%s.%ld", source, (long)number);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        int file = open(path, O_CREAT | O_RDWR, 0600);
        if (write(file, data, 100) != 100)
            exit(4);
        close(file);
    }
    return NULL;
}
int main(int count, char **words)
{
    pthread_t writers[3], forkers[4];
    source = words[1];
    alarm(40);
    for (long number = 0; number < 3; number++)
        pthread_create(&writers[number], NULL, writes, (void *)number);
    for (int number = 0; number < 4; number++)
        pthread_create(&forkers[number], NULL, forks, NULL);
    for (int number = 0; number < 4; number++)
        pthread_join(forkers[number], NULL);
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int number = 0; number < 3; number++)
        pthread_join(writers[number], NULL);
    return count == 0;
}
"""


def test_forks_beside_busy_threads_end_and_are_counted(tmp_path: Path, source: Path, session: Path) -> None:
    assert _run([compile_program(tmp_path, FORKS), source], session).returncode == 0
    processes = [process for process in read_all(session) if process.calls(str(source))]
    reading = 4 * 5 * (15 + 5 + 3)
    of_source = [row for process in processes for row in process.rows if row.file == str(source)]
    assert sum(row.calls.get("read", 0) for row in of_source) == reading
    assert sum(row.calls.get("open", 0) for row in of_source) == reading
    assert sum(row.bytes for row in of_source) == 64 * reading


# Children of vfork run in the memory of the thread that made them: also in each other's.
VFORKS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static char **words;
static void *work(void *unused)
{
    char data[64];
    for (int time = 0; time < 20; time++) {
        int status, file = open(words[1], O_RDONLY);
        pid_t child = vfork();
        if (!child) {
            char *const program[] = {words[0], words[1], "child", 0};
            close(file);
            if (time % 3 == 0 && !vfork())
                _exit(0);
            if (time % 2)
                _exit(3);
            execve(words[0], program, environ);
            _exit(4);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            exit(5);
        if (WEXITSTATUS(status) != (time % 2 ? 3 : 7))
            exit(6);
        if (read(file, data, 64) != 64 || close(file))
            exit(7);
    }
    return unused;
}
int main(int count, char **given)
{
    pthread_t threads[4];
    words = given;
    if (count > 2)
        return 7;
    for (int number = 0; number < 4; number++)
        pthread_create(&threads[number], NULL, work, NULL);
    for (int number = 0; number < 4; number++)
        pthread_join(threads[number], NULL);
    return 0;
}
"""


def test_children_of_vfork_do_not_touch_what_their_parent_has_open(
    tmp_path: Path, source: Path, session: Path
) -> None:
    assert _run([compile_program(tmp_path, VFORKS), source], session).returncode == 0
    (process,) = [process for process in read_all(session) if process.calls(str(source))]
    assert process.calls(str(source)) == {"open": 80, "read": 80, "close": 80}
    assert not process.lost_calls


# A handler that opens and reads every 100 us: also one that leaves by a jump, or has a stack of its own.
SIGNALS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static const char *source;
static volatile long wrong, opened, jumps;
static sigjmp_buf back;
static void on_alarm(int signal)
{
    char data[64];
    struct stat status;
    int file = open(source, O_RDONLY);
    if (file < 0 || read(file, data, 64) != 64 || stat(source, &status))
        wrong++;
    close(file);
    (void)signal;
}
static void leave(int signal)
{
    jumps++;
    (void)signal;
    siglongjmp(back, 1);
}
int main(int count, char **words)
{
    static char path[4096];
    char data[256];
    struct timespec begin, now;
    static volatile int number;
    int jumping = words[2][0] == 'j', apart = words[2][0] == 'a';
    stack_t stack = {.ss_sp = malloc(16384), .ss_size = 16384};
    struct sigaction action = {.sa_handler = jumping ? leave : on_alarm};
    action.sa_flags = SA_RESTART | (apart ? SA_ONSTACK : 0);
    struct itimerval every = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
    source = words[1];
    if (apart)
        sigaltstack(&stack, NULL);
    sigaction(SIGALRM, &action, NULL);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    setitimer(ITIMER_REAL, &every, NULL);
    sigsetjmp(back, 1);
    do {
        snprintf(path, sizeof path, "%s.%d", source, number++ % 500);
        int file = open(path, O_CREAT | O_RDWR, 0600);
        opened++;
        if (file >= 0 && (write(file, data, 100) != 100 || pread(file, data, 50, 3) != 50))
            wrong++;
        close(file);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 500);
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%ld", opened);
    return wrong || count == 0;
}
"""


@pytest.mark.parametrize("how", ["same", "apart"])
def test_signal_handlers_may_read_at_any_moment(
    tmp_path: Path, source: Path, session: Path, how: str
) -> None:
    done = _run([compile_program(tmp_path, SIGNALS), source, how], session)
    assert done.returncode == 0
    (process,) = [process for process in read_all(session) if process.calls(f"{source}.")]
    opened = int(done.stdout)
    calls = process.calls(f"{source}.")
    assert (calls["open"], calls["write"], calls["pread"], calls["close"]) == (opened,) * 4
    assert process.moved(READING, f"{source}.") == 50 * opened
    assert all(row.timed == sum(row.calls.values()) for row in process.rows)


def test_a_handler_that_leaves_by_a_jump_ends_no_recording(
    tmp_path: Path, source: Path, session: Path
) -> None:
    done = _run([compile_program(tmp_path, SIGNALS), source, "jump"], session)
    assert done.returncode == 0
    (process,) = [process for process in read_all(session) if process.calls(f"{source}.")]
    assert process.calls(f"{source}.")["open"] > 0.8 * int(done.stdout)


# A filter that ends the process at each call that the program itself does not make.
SECCOMP = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static const int few[] = {SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_close, SYS_newfstatat};
enum { FEW = sizeof few / sizeof *few };
static void install(int how)
{
    struct sock_filter filter[2 * FEW + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    struct sock_fprog program = {2 * FEW + 2, filter};
    for (int index = 0; index < FEW; index++) {
        filter[2 * index + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, few[index], 0, 1);
        filter[2 * index + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    }
    filter[2 * FEW + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    if (how != 's' && how != 'r')
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    long failed = how == 's'   ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)
                  : how == 'f' ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                               : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (failed)
        _exit(8);
}
int main(int count, char **words)
{
    char data[64], path[] = "/aa";
    struct stat status;
    int first = open(words[1], O_RDONLY), last = words[3][0] == 'l' ? -1 : open(words[1], O_RDONLY);
    if (last >= 0)
        read(first, data, 64);
    install(words[2][0]);
    for (int time = 0; time < 5000; time++)
        if (read(first, data, 1) < 0)
            syscall(SYS_exit, 9);
    if (words[2][0] != 's')
        for (int time = 0; time < 3000; time++) {
            path[1] = 'a' + time % 26;
            path[2] = 'a' + time / 26 % 26;
            fstatat(AT_FDCWD, path, &status, 0);
            fstatat(AT_FDCWD, path + 1, &status, 0);
        }
    write(1, "fine", 4);
    syscall(SYS_exit, count == 0);
}
"""


@pytest.mark.parametrize("how", ["strict", "filter", "syscall", "raw"])
@pytest.mark.parametrize("begun", ["early", "late"])
def test_a_filter_of_system_calls_meets_none_of_the_recorder(
    tmp_path: Path, source: Path, session: Path, how: str, begun: str
) -> None:
    program = compile_program(tmp_path, SECCOMP)
    if _run([program, source, how, begun], None).stdout != b"fine":
        pytest.skip("this system refuses the filter")
    done = _run([program, source, how, begun], session)
    assert (done.returncode, done.stdout) == (0, b"fine")
    (process,) = read_all(session)
    read = process.calls(str(source)).get("read", 0)
    assert read + process.lost_calls >= 5000


LIMITS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words)
{
    char data[100], path[64];
    for (int time = 0; time < 10; time++) {
        int file = open(words[1], O_RDONLY);
        read(file, data, 10);
        close(file);
    }
    struct rlimit limit = {200 << 20, 200 << 20};
    if (setrlimit(count > 2 ? RLIMIT_DATA : RLIMIT_AS, &limit) || !malloc(50 << 20))
        return 2;
    for (int time = 0; time < 3000; time++) {
        snprintf(path, sizeof path, "/nonexistent%d", time);
        int file = open(time % 2 ? words[1] : path, O_RDONLY);
        read(file, data, 10);
        close(file);
    }
    int status;
    pid_t child = fork();
    if (!child) {
        read(open(words[1], O_RDONLY), data, 10);
        execlp("true", "true", NULL);
        _exit(9);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status;
}
"""


@pytest.mark.parametrize("which", [[], ["data"]], ids=["address space", "data"])
def test_a_program_may_limit_its_own_memory(
    tmp_path: Path, source: Path, session: Path, which: list[str]
) -> None:
    assert _run([compile_program(tmp_path, LIMITS), source, *which], session).returncode == 0
    processes = read_all(session)
    assert all_calls(processes, str(source))["read"] == 10 + 1500 + 1
    assert not sum(process.lost_calls for process in processes)


READ_OFTEN = """
import os, sys
for number in range(3000):
    file = os.open(sys.argv[1], os.O_RDONLY)
    os.read(file, 10)
    os.close(file)
    try:
        os.stat(f"/nonexistent/{number}")
    except OSError:
        pass
print("fine")
"""


@pytest.mark.parametrize("limit", ["-v 200000", "-f 100", "-f 0", "-n 8", "-d 100000"])
def test_limits_of_a_shell_are_kept(source: Path, session: Path, limit: str) -> None:
    line = f'exec 5<{source}; read -r x <&5; ulimit {limit}; exec "$@"'
    python = [sys.executable, "-I", "-S", "-c", READ_OFTEN, source]
    done = _run(["bash", "-c", line, "bash", *python], session)
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done.stderr
    for process in read_all(session):
        if calls := process.calls(str(source)).get("read", 0):
            assert calls <= 3001


def test_a_full_disk_ends_no_program_and_losses_are_told(tmp_path: Path, source: Path, session: Path) -> None:
    mount = f"mount -t tmpfs -o size=300k none {session}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    kept = tmp_path / "kept"
    line = f'{mount} && "$@"; code=$?; cp -r {session} {kept}; exit $code'
    settings = [f"{name}={value}" for name, value in recorded(session, {}).items()]
    python = ["env", *settings, sys.executable, "-I", "-S", "-c", READ_OFTEN, source]
    done = _run(["unshare", "-m", "sh", "-c", line, "sh", *python], None)
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done.stderr
    (process,) = read_all(kept)
    calls = process.calls()
    assert calls["read"] >= 3000
    lost = process.lost_calls + process.lost_bursts
    assert lost > 0
    assert calls.total() + process.lost_calls >= 4 * 3000


@pytest.mark.parametrize("folder", ["/nonexistent", "/proc", "/dev/null", ""])
def test_no_place_for_files_harms_nothing(source: Path, folder: str) -> None:
    done = _run(["cat", source], Path("/"), IOTRACE_POSIX=folder)
    assert (done.returncode, done.stdout.decode()) == (0, LINE)


def test_a_folder_that_goes_away_harms_nothing(source: Path, session: Path) -> None:
    code = f"import shutil; open({str(source)!r}).read(); shutil.rmtree({str(session)!r})\n{READ_OFTEN}"
    done = _run([sys.executable, "-I", "-S", "-c", code, source], session)
    assert (done.returncode, done.stdout) == (0, b"fine\n")


SHORT_THREADS = r"""
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static const char *source;
static void *work(void *unused)
{
    char data[64];
    int file = open(source, O_RDONLY);
    if (read(file, data, 64) != 64 || close(file))
        abort();
    return unused;
}
int main(int count, char **words)
{
    pthread_attr_t smallest;
    source = words[1];
    pthread_attr_init(&smallest);
    pthread_attr_setstacksize(&smallest, PTHREAD_STACK_MIN);
    for (int number = 0; number < 3000; number++) {
        pthread_t thread;
        if (pthread_create(&thread, &smallest, work, NULL))
            abort();
        pthread_join(thread, NULL);
    }
    return count == 0;
}
"""


def test_thousands_of_short_threads_hand_on_what_they_had(
    tmp_path: Path, source: Path, session: Path
) -> None:
    assert _run([compile_program(tmp_path, SHORT_THREADS), source], session).returncode == 0
    (process,) = [process for process in read_all(session) if process.calls(str(source))]
    assert process.calls(str(source)) == {"open": 3000, "read": 3000, "close": 3000}
    assert process.threads <= 8
    assert sum(path.stat().st_size for path in session.iterdir()) < 8 << 20


SHELL = r"""
exec 3>f; echo hi >&3; exec 4>&1; echo four >&4; exec {v}>g; echo v >&$v; exec {v}>&-; exec 3>&-; cat f g
exec 7<f; read -r line <&7; echo "$line"; exec 7<&-
for i in 1 2 3; do echo $i; done | sort -n | tail -1; cat <<< here
(setsid sh -c '(sleep 0.1; echo daemon > d) &'); sleep 0.5; cat d
mkdir x; echo 1 > x/1; tar cf x.tar x; rm -r x; tar xf x.tar; cat x/1; ls
env -i /bin/echo clear
"""


def test_shell_scripts_keep_their_descriptors(tmp_path: Path, session: Path) -> None:
    shown = []
    for place in (None, session):
        folder = tmp_path / ("bare" if place is None else "recorded")
        folder.mkdir()
        done = _run(["bash", "-c", f"cd {folder}; {SHELL}"], place)
        shown.append((done.returncode, done.stdout, done.stderr))
    assert shown[0] == shown[1]


PYTHON = r"""
import os, subprocess, sys, tempfile, threading
source, stop = sys.argv[1], []
def work():
    while not stop:
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 1000)
            file.seek(0)
            assert len(file.read()) == 1000
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(20):
    out = subprocess.run(["/bin/echo", str(number)], capture_output=True, close_fds=bool(number % 2)).stdout
    assert out == b"%d\n" % number
    child = os.fork()
    if not child:
        os.closerange(3, 1000)
        file = os.open(source, os.O_RDONLY)
        os.dup2(file, 9)
        os._exit(len(os.read(9, 10)))
    assert os.waitpid(child, 0)[1] == 10 << 8
    spawned = os.posix_spawn("/bin/true", ["true"], os.environ)
    assert os.waitpid(spawned, 0)[1] == 0
stop.append(1)
for thread in threads:
    thread.join()
os.environ.clear()
assert subprocess.run(["/bin/echo", "cleared"], capture_output=True).stdout == b"cleared\n"
print("fine")
"""


def test_python_starts_processes_beside_threads(source: Path, session: Path) -> None:
    done = _run([sys.executable, "-I", "-c", PYTHON, source], session)
    assert (done.returncode, done.stdout) == (0, b"fine\n"), done.stderr
    assert all_moved(read_all(session), READING, str(source)) == 200


@pytest.mark.parametrize("kind", ["address", "thread", "undefined"])
def test_sanitizers_find_nothing_new(tmp_path: Path, source: Path, session: Path, kind: str) -> None:
    try:
        program = compile_program(tmp_path, SHORT_THREADS.replace("3000", "20"), [f"-fsanitize={kind}"])
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no sanitizer of kind {kind}")
    options = {"ASAN_OPTIONS": "verify_asan_link_order=0"}
    bare, seen = _run([program, source], None, **options), _run([program, source], session, **options)
    assert (seen.returncode, seen.stderr) == (bare.returncode, bare.stderr)
    if not bare.returncode:
        assert all_calls(read_all(session), str(source))["read"] == 20


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="musl-gcc is missing")
def test_programs_of_another_libc_run(tmp_path: Path, source: Path, session: Path) -> None:
    (tmp_path / "program.c").write_text(SHORT_THREADS.replace("3000", "20"))
    command = ["musl-gcc", "-w", "-o", str(tmp_path / "program"), str(tmp_path / "program.c")]
    subprocess.run(command, check=True)
    assert _run([tmp_path / "program", source], session).returncode == 0


def test_waits_for_the_interpreters_lock_are_counted(session: Path, tmp_path: Path) -> None:
    program = """
import ctypes, sys, threading
find = ctypes.PyDLL(None).iotrace_interpreter_waits
find.restype = ctypes.POINTER(ctypes.c_uint64)
begun, over, waited = threading.Event(), threading.Event(), []
def compute():
    begun.set()
    while not over.is_set():
        sum(range(1000))
if len(sys.argv) > 1:
    threading.Thread(target=compute).start()
    begun.wait()
before = find().contents.value
for _ in range(300):
    sum(range(100000))
over.set()
print(find().contents.value - before)
"""
    alone, beside = (
        int(_run([sys.executable, "-c", program, *more], session).stdout) for more in ([], ["beside"])
    )
    assert beside > 0
    assert alone < beside


def test_a_thread_may_ask_for_the_interpreters_lock_at_once(session: Path) -> None:
    program = """
import ctypes, sys, threading
asks = ctypes.PyDLL(None).iotrace_interpreter_asks
assert asks(0)
begun, over = threading.Event(), threading.Event()
def compute():
    begun.set()
    while not over.is_set():
        sum(range(1000))
sys.setswitchinterval(100)  # as long as this program may take: nobody gets the lock but by asking at once
lock = threading.Lock()
lock.acquire()
asks(1)
threading.Thread(target=compute, daemon=True).start()
for _ in range(100):
    asks(1)
    lock.acquire(True, 0.001)
asks(0)
over.set()
print("got it")
"""
    assert _run([sys.executable, "-c", program], session).stdout == b"got it\n"


CONDITION = r"""
#include <pthread.h>
#include <stdio.h>
#include <time.h>
int main(void)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    pthread_mutex_lock(&mutex);
    printf("%d\n", pthread_cond_timedwait(&condition, &mutex, &until));
    printf("%d\n", pthread_mutex_unlock(&mutex));
    return 0;
}
"""


def test_a_condition_of_another_program_is_waited_for_as_ever(session: Path, tmp_path: Path) -> None:
    program = compile_program(tmp_path, CONDITION)
    assert _run([program], session).stdout == _run([program], None).stdout
