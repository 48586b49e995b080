/* Preloaded into all that runs on a host of a test: its clocks are not the kernel's. HOST_CLOCK names a file of three
   numbers in ns, which may change while the host runs: how far CLOCK_MONOTONIC is ahead, what it gains a second, and
   how far CLOCK_REALTIME is ahead beside that. Who sets the third sets the host's clock as NTP does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000L
#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

enum { AHEAD, GAINS, REALTIME };
static const volatile long *numbers;

static long number(int which) {
    const char *path;
    if (!numbers && (path = getenv("HOST_CLOCK"))) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        void *page = mmap(0, 3 * sizeof *numbers, PROT_READ, MAP_SHARED, file, 0);
        if (file < 0 || page == MAP_FAILED) abort();
        close(file);
        numbers = page;
    }
    return numbers ? numbers[which] : 0;
}

static int kernels(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    return next(clock, now);
}

/* By how much a clock of this host is ahead of the kernel's. */
static long ahead(clockid_t clock) {
    struct timespec now;
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
        kernels(CLOCK_MONOTONIC, &now);
        long gained = (long)((__int128)(now.tv_sec * SECOND + now.tv_nsec) * number(GAINS) / SECOND);
        int is_real = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
        return gained + number(AHEAD) + (is_real ? number(REALTIME) : 0);
    }
    return 0;
}

static struct timespec moved(struct timespec time, long by) {
    long ns = time.tv_sec * SECOND + time.tv_nsec + by;
    return (struct timespec){ns / SECOND, ns % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int found = kernels(clock, now);
    if (!found) *now = moved(*now, ahead(clock));
    return found;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec here;
    clock_gettime(CLOCK_REALTIME, &here);
    *now = (struct timeval){here.tv_sec, here.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *to) {
    struct timespec here;
    clock_gettime(CLOCK_REALTIME, &here);
    if (to) *to = here.tv_sec;
    return here.tv_sec;
}

/* Who waits until a time of a clock has the kernel wait, by its own. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    NEXT(clock_nanosleep);
    struct timespec true_ = flags & TIMER_ABSTIME ? moved(*until, -ahead(clock)) : *until;
    return next(clock, flags, &true_, left);
}

int pthread_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
    NEXT(pthread_cond_clockwait);
    struct timespec true_ = moved(*until, -ahead(clock));
    return next(condition, mutex, clock, &true_);
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    NEXT(pthread_cond_timedwait);
    /* Which clock, its attribute says: no machine has been up since 2001. */
    struct timespec true_ = moved(*until, -ahead(until->tv_sec < SECOND ? CLOCK_MONOTONIC : CLOCK_REALTIME));
    return next(condition, mutex, &true_);
}

int sem_clockwait(sem_t *restrict semaphore, clockid_t clock, const struct timespec *restrict until) {
    NEXT(sem_clockwait);
    struct timespec true_ = moved(*until, -ahead(clock));
    return next(semaphore, clock, &true_);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    NEXT(sem_timedwait);
    struct timespec true_ = moved(*until, -ahead(CLOCK_REALTIME));
    return next(semaphore, &true_);
}
