/* dftracer's log, without a descriptor in the program: it is mapped, and what dftracer writes is copied there.
 *
 * A descriptor of ours could be taken by the program at any time (a shell's `exec 3>file`, dup2, closerange), which would
 * get the log into its own file. So a window of the log is opened and mapped by a child that shares the program's memory,
 * but not its descriptors. Pages are written by the kernel first: a full disk is an error there, and would be SIGBUS here.
 * dftracer holds its lock while these functions run. */
#define _GNU_SOURCE
#include "posix_guard.h"

#ifdef IOTRACE_GUARDS
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WINDOW = 1 << 20, PAGE = 4096, WIPE_ON_FORK = 18, POPULATE_WRITE = 23 };

/* System calls by number: dftracer also changes what this library calls. */
static char path[PATH_MAX];
static char *window;
static off_t window_at, log_bytes;
static int given_up;
static volatile int *is_own; /* zero in a forked child, whose log is another one */
static char stack_of_child[16 << 10] __attribute__((aligned(16)));

struct asked { off_t at; int flags, mode; volatile int mapped; };

void tell_broken_log(void)
{
    char broken[PATH_MAX + 8];
    size_t length = strlen(path);
    given_up = 1;
    if (!length)
        return;
    memcpy(broken, path, length);
    memcpy(broken + length, ".broken", 8);
    syscall(SYS_mkdir, broken, 0700);
}

static int map_in_child(void *of)
{
    struct asked *asked = of;
    long log = syscall(SYS_open, path, O_RDWR | O_CLOEXEC | asked->flags, asked->mode);
    if (log < 0)
        return 0;
    long found = syscall(SYS_mmap, window, (size_t)WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, log, asked->at);
    asked->mapped = found == (long)window;
    return 0;
}

/* The child has a copy of the program's descriptors for these calls: what it opens is no number of the program's. No
 * signal is handled meanwhile, and a wait of the program's does not see the child. */
static int map_window(off_t at, int flags, int mode)
{
    sigset_t all, before;
    struct asked asked = {at, flags, mode, 0};
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    int child = clone(map_in_child, stack_of_child + sizeof stack_of_child, CLONE_VM | CLONE_VFORK, &asked);
    if (child > 0)
        syscall(SYS_wait4, child, NULL, __WALL, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (asked.mapped)
        window_at = at;
    return asked.mapped;
}

/* Beyond the limit of file sizes a longer file raises SIGXFSZ, which ends the program. */
static int set_length(off_t bytes)
{
    struct rlimit limit;
    if (syscall(SYS_getrlimit, RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (rlim_t)bytes)
        return 0;
    return syscall(SYS_truncate, path, bytes) == 0;
}

static int populate(char *from, char *end)
{
    enum { WAKE_OP_PRIVATE = 5 | 128, OR_ZERO = 2 << 28 };
    from -= (unsigned long)from % PAGE;
    if (syscall(SYS_madvise, from, (size_t)(end - from), POPULATE_WRITE) == 0)
        return 1;
    if (errno != EINVAL)
        return 0;
    for (; from < end; from += PAGE) /* before Linux 5.14 */
        if (syscall(SYS_futex, from, WAKE_OP_PRIVATE, 0, 0, from, OR_ZERO) < 0)
            return 0;
    return 1;
}

static int add(const char *data, size_t bytes)
{
    if (log_bytes < window_at || log_bytes >= window_at + WINDOW)
        if (!map_window(log_bytes - log_bytes % WINDOW, 0, 0))
            return 0;
    char *to = window + (log_bytes - window_at);
    if (!set_length(log_bytes + (off_t)bytes))
        return 0;
    if (!populate(to, to + bytes)) {
        set_length(log_bytes);
        return 0;
    }
    memcpy(to, data, bytes);
    log_bytes += (off_t)bytes;
    return 1;
}

static ssize_t write_log(void *cookie, const char *data, size_t size)
{
    int error = errno;
    (void)cookie;
    for (size_t done = 0, bytes; done < size && !given_up && *is_own; done += bytes) {
        size_t room = WINDOW - (size_t)log_bytes % WINDOW;
        bytes = size - done < room ? size - done : room;
        if (!add(data + done, bytes))
            tell_broken_log();
    }
    errno = error;
    return (ssize_t)size; /* dftracer is not told: it would complain */
}

/* dftracer asks for the size, and deletes a log that is empty. What is written is added to the end wherever it is. */
static int seek_log(void *cookie, off64_t *offset, int whence)
{
    static off64_t position;
    (void)cookie;
    position = *offset + (whence == SEEK_END ? log_bytes : whence == SEEK_CUR ? position : 0);
    *offset = position;
    return 0;
}

/* Without a buffer of stdio's: dftracer has one, and asks for one that is written line by line. */
int buffer_no_log(FILE *log, char *buffer, int mode, size_t bytes)
{
    (void)buffer, (void)mode, (void)bytes;
    return setvbuf(log, NULL, _IONBF, 0);
}

/* A program that this one executes has its pid, and its name of the log: what lies there stays, under another name. */
static void set_older_aside(void)
{
    struct timespec now;
    char aside[PATH_MAX + 32];
    size_t length = strlen(path);
    if (length < 4)
        return;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    snprintf(aside, sizeof aside, "%.*s-%lx.pfw", (int)length - 4, path, now.tv_sec * 1000000000L + now.tv_nsec);
    syscall(SYS_rename, path, aside);
}

/* A program may use dftracer itself: its log is as dftracer makes it, and goes on where it is. */
FILE *open_log(const char *name, const char *mode)
{
    struct stat status;
    const char *ours = getenv("DFTRACER_LOG_FILE");
    int is_ours = ours && !strncmp(name, ours, strlen(ours));
    (void)mode;
    if (strlen(name) >= sizeof path)
        return NULL;
    strcpy(path, name);
    *is_own = 1;
    given_up = 0;
    if (is_ours)
        set_older_aside();
    log_bytes = syscall(SYS_stat, path, &status) ? 0 : status.st_size;
    if (!map_window(log_bytes - log_bytes % WINDOW, O_CREAT, is_ours ? 0600 : 0666)) {
        tell_broken_log();
        return NULL;
    }
    return fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_log, .seek = seek_log});
}

void disown_log(void)
{
    *is_own = 0;
}

int begin_logs(void)
{
    window = mmap(NULL, WINDOW, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    is_own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (window == MAP_FAILED || is_own == MAP_FAILED)
        return 0;
    madvise((void *)is_own, PAGE, WIPE_ON_FORK); /* since Linux 4.14: also where no handler runs at a fork */
    return 1;
}
#endif
