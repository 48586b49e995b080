/* What the parts of the guard share: see posix_guard.c. */
#ifndef IOTRACE_POSIX_GUARD_H
#define IOTRACE_POSIX_GUARD_H

#include <stdio.h>

#if defined(__linux__) && defined(__x86_64__) && defined(__GLIBC__)
#define IOTRACE_GUARDS
#endif

#define INSIDE __attribute__((visibility("hidden")))

/* posix_guard_log.c */
INSIDE int begin_logs(void);
INSIDE FILE *open_log(const char *path, const char *mode);
INSIDE int buffer_no_log(FILE *log, char *buffer, int mode, size_t bytes);
INSIDE void tell_broken_log(void);
INSIDE void disown_log(void);

/* posix_guard_locks.c: what takes the place of a function that takes a lock; NULL: nothing does. */
INSIDE int begin_locks(void);
INSIDE void *instead_of_lock(const char *name);
INSIDE extern char *no_stdio; /* dftracer's switch: it forgets the streams of C that it knows of */
INSIDE extern long own_pid; /* another one's where a child of vfork runs in the program's memory */

/* posix_guard.c: a file of that name, beside the logs, grows by a byte. While the process has one thread only. */
INSIDE void count_in(const char *name);

#endif
