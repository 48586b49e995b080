/* What a call takes of the thread's CPU time: posix_calls FILE ELSEWHERE LOOPS CALLS [NAME].
 *
 * FILE holds 1 MiB at least and is recorded, ELSEWHERE is left out. Prints a line for each kind of call: its name, and the
 * nanoseconds of the fastest of LOOPS loops of CALLS calls. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char data[4096];
static const char *path;
static int descriptor, elsewhere;

static int64_t cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int pread_4k(long call) { return pread(descriptor, data, 4096, (call & 255) << 12) == 4096; }
static int pread_64(long call) { return pread(descriptor, data, 64, (call * 7919 & 16383) << 6) == 64; }
static int pread_elsewhere(long call) { return pread(elsewhere, data, 64, call & 1023) == 64; }
static int seek(long call) { return lseek(descriptor, call & 65535, SEEK_SET) >= 0; }

static int open_close(long call)
{
    (void)call;
    return !close(open(path, O_RDONLY));
}

static int ask(long call)
{
    struct stat status;
    (void)call;
    return !stat(path, &status);
}

static const struct kind { const char *name; int (*call)(long); } kinds[] = {
    {"pread_4k", pread_4k}, {"pread_64", pread_64}, {"open_close", open_close},
    {"stat", ask}, {"lseek", seek}, {"pread_elsewhere", pread_elsewhere},
};

static int measure(const struct kind *kind, long loops, long calls)
{
    int64_t best_ns = INT64_MAX;
    for (long loop = 0; loop < loops; loop++) {
        int64_t begin_ns = cpu_ns(), taken_ns;
        for (long call = 0; call < calls; call++)
            if (!kind->call(call))
                return perror(kind->name), 0;
        taken_ns = cpu_ns() - begin_ns;
        best_ns = taken_ns < best_ns ? taken_ns : best_ns;
    }
    printf("%s %lld\n", kind->name, (long long)best_ns);
    return 1;
}

int main(int count, char **words)
{
    if (count < 5)
        return 2;
    path = words[1];
    descriptor = open(path, O_RDONLY);
    elsewhere = open(words[2], O_RDONLY);
    if (descriptor < 0 || elsewhere < 0)
        return perror("open"), 1;
    for (unsigned at = 0; at < sizeof kinds / sizeof *kinds; at++)
        if ((count == 5 || !strcmp(words[5], kinds[at].name)) && !measure(&kinds[at], atol(words[3]), atol(words[4])))
            return 1;
    return 0;
}
