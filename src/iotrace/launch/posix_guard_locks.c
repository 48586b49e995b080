/* No lock of dftracer's is held over a fork: its child would wait for it for ever.
 *
 * dftracer's core takes its locks through the functions below. A fork waits until no other thread holds one, and none is
 * given meanwhile. What else dftracer's part of a forked child would wait for: libc's locks of the time zone and of the
 * environment, which another thread may hold at the fork. */
#define _GNU_SOURCE
#include "posix_guard.h"

#ifdef IOTRACE_GUARDS
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int forks, holders;
static __thread int held __attribute__((tls_model("initial-exec")));
char *no_stdio;
long own_pid;

static const char *single_threaded; /* libc's flag, since glibc 2.32 */
#ifdef __GLIBC__ /* what any glibc has: before 2.34 they lay in libraries of their own, which dftracer brings along */
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_rdlock, pthread_rwlock_rdlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_wrlock, pthread_rwlock_wrlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_unlock, pthread_rwlock_unlock@GLIBC_2.2.5");
#endif
#pragma weak __register_atfork
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

static void enter(void)
{
    while (!held) {
        while (__atomic_load_n(&forks, __ATOMIC_SEQ_CST))
            sched_yield();
        __atomic_fetch_add(&holders, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&forks, __ATOMIC_SEQ_CST))
            break;
        __atomic_fetch_sub(&holders, 1, __ATOMIC_SEQ_CST);
    }
    held++;
}

static int leave(int result)
{
    if (held && !--held)
        __atomic_fetch_sub(&holders, 1, __ATOMIC_SEQ_CST);
    return result;
}

static void begin_fork(void)
{
    __atomic_fetch_add(&forks, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&holders, __ATOMIC_SEQ_CST) > !!held)
        sched_yield();
}

static void end_fork(void)
{
    __atomic_fetch_sub(&forks, 1, __ATOMIC_SEQ_CST);
}

/* dftracer's table of C's streams has no lock: another thread may have been about to change it. */
static void begin_child(void)
{
    forks = 0;
    holders = !!held;
    own_pid = syscall(SYS_getpid);
    disown_log();
    if (single_threaded && *single_threaded)
        return;
    *no_stdio = 1;
    count_in("io-without-stdio");
}

static int take(pthread_mutex_t *lock)
{
    enter();
    int failed = pthread_mutex_lock(lock);
    return failed ? leave(failed) : 0;
}

static int release(pthread_mutex_t *lock)
{
    return leave(pthread_mutex_unlock(lock));
}

static int take_to_read(pthread_rwlock_t *lock)
{
    enter();
    int failed = pthread_rwlock_rdlock(lock);
    return failed ? leave(failed) : 0;
}

static int take_to_write(pthread_rwlock_t *lock)
{
    enter();
    int failed = pthread_rwlock_wrlock(lock);
    return failed ? leave(failed) : 0;
}

static int release_both(pthread_rwlock_t *lock)
{
    return leave(pthread_rwlock_unlock(lock));
}

/* For the date in the log, which nobody reads. */
static struct tm *no_time(const time_t *time)
{
    static struct tm epoch = {.tm_mday = 1, .tm_year = 70, .tm_wday = 4};
    (void)time;
    return &epoch;
}

/* A forked child sets what is set already. */
static int set_if_new(const char *name, const char *value, int replace)
{
    const char *found = getenv(name);
    return found && !strcmp(found, value) ? 0 : setenv(name, value, replace);
}

void *instead_of_lock(const char *name)
{
    static const struct { const char *name; void *ours; } all[] = {
        {"pthread_mutex_lock", take}, {"pthread_mutex_unlock", release},
        {"pthread_rwlock_rdlock", take_to_read}, {"pthread_rwlock_wrlock", take_to_write},
        {"pthread_rwlock_unlock", release_both}, {"localtime", no_time}, {"setenv", set_if_new},
    };
    for (size_t index = 0; index < sizeof all / sizeof *all; index++)
        if (!strcmp(all[index].name, name))
            return all[index].ours;
    return NULL;
}

/* Registered before dftracer registers its own: so ours comes last before a fork, and first in the child. */
int begin_locks(void)
{
    own_pid = syscall(SYS_getpid);
    single_threaded = dlsym(RTLD_DEFAULT, "__libc_single_threaded");
    return __register_atfork && !__register_atfork(begin_fork, end_fork, begin_child, NULL);
}
#endif
