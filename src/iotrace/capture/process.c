/* The mapped file of a process, its threads, and what a fork makes of them. */
#include "recorder.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

/* madvise's, newer than some headers */
enum { DO_NOT_DUMP = 16, WIPE_ON_FORK = 18, POPULATE_WRITE = 23 };
enum { PAGE = 4096, LARGEST_PAGE = 65536 };
static const u64 SMALLEST = 64 << 10, LARGEST_STEP = 1 << 20, REFUSED_NS = 1000000000;
static const u64 ROOM = 8ull << 30, LEAST_ROOM = 1 << 20, LIMITED_ROOM = 16 << 20;
enum { MOST_FILES = 1 << 18, LIMITED_FILES = 1 << 13 };
static const char DIRECTORY_VARIABLE[] = "IOTRACE_POSIX", FILTERS_VARIABLE[] = "IOTRACE_POSIX_FILTERS";

__thread struct own_thread me __attribute__((tls_model("initial-exec"))) = {.generation = NO_GENERATION};
struct own_process here;

/* Raised by the agent where a span begins or ends: no burst crosses it. */
PUBLIC volatile u64 iotrace_border;

static char *directory; /* the variable's value, copied: programs overwrite their environment */
static struct own_thread *retired; /* what threads that ended leave to new ones: rows, record, scratch */
static char path_of_file[LONGEST_PATH + 128];

/* Weak: a linker that drops the section leaves each function to be looked up when it is called. */
#define EDGE __attribute__((weak, visibility("hidden")))
extern const struct next __start_iotrace_next[] EDGE, __stop_iotrace_next[] EDGE;

/* What an older libc lacks, a program that asked for it finds here: it fails as an older kernel's call does. */
long is_missing(void)
{
    errno = ENOSYS;
    return -1;
}

void *look_up_next(const char *name, void **function)
{
    void *found = dlsym(RTLD_NEXT, name);
    u64 length = strlen(name);
    char plain[32];
    if (!found && length > 2 && length < sizeof plain && name[length - 2] == '6') { /* libcs whose offsets all have 64 bits */
        memcpy(plain, name, length + 1);
        plain[length - 2] = 0;
        found = dlsym(RTLD_NEXT, plain);
    }
    return *function = found ? found : (void *)is_missing;
}

/* No huge pages: the tables are sparse. */
void *map_private(u64 bytes)
{
    long flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, found;
    found = SYS(mmap, NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (found < 0)
        return NULL;
    SYS(madvise, found, bytes, MADV_NOHUGEPAGE);
    if (here.locked) {
        SYS(munlock, found, bytes);
        SYS(madvise, found, bytes, MADV_DONTNEED);
    }
    return (void *)found;
}

/* No signal is handled while the lock is held: a handler may leave by a jump, or fork. */
void lock_process(void)
{
    u64 all = ~0ull;
    me.blocks_signals = !here.frozen;
    if (me.blocks_signals)
        SYS(rt_sigprocmask, SIG_SETMASK, &all, &me.signals, sizeof all);
    while (__atomic_exchange_n(&here.wiped->lock, 1, __ATOMIC_ACQUIRE))
        if (!here.frozen)
            SYS(sched_yield);
}

void unlock_process(void)
{
    __atomic_store_n(&here.wiped->lock, 0, __ATOMIC_RELEASE);
    if (me.blocks_signals)
        SYS(rt_sigprocmask, SIG_SETMASK, &me.signals, NULL, sizeof me.signals);
}

/* Whether a thread that is marked busy is not: its function was left by a jump out of a signal handler. A handler runs
 * below the function that it interrupts, with what the kernel puts between them, or on a stack of its own. */
static int was_left(void)
{
    enum { LEAST_BETWEEN = 512 };
    stack_t other;
    char *frame = __builtin_frame_address(0);
    if (me.busy != 1 || here.frozen || frame + LEAST_BETWEEN <= (char *)me.frame || SYS(sigaltstack, NULL, &other))
        return 0;
    return !(other.ss_flags & SS_ONSTACK);
}

/* A call of a busy thread, by a signal handler or a child of vfork. Not lost is what it does to a descriptor that is no
 * file's, and what such a child does until it executes its program: it lists and closes descriptors mostly. */
__attribute__((noinline)) int pass_by(int descriptor)
{
    if (was_left()) {
        if (me.taking && me.taking < here.head->used_bytes && !((u32 *)(here.base + me.taking))[1])
            ((u32 *)(here.base + me.taking))[1] = me.taking_bytes; /* a record that is never filled: readers pass it */
        me.taking = 0;
        me.busy = 0;
        return 1;
    }
    if (me.busy >= VFORK || (descriptor >= 0 && here.of_descriptor && here.of_descriptor[descriptor] == IGNORED))
        return 0;
    if (here.head && here.wiped->generation == me.generation)
        __atomic_fetch_add(&here.head->lost_calls, 1, __ATOMIC_RELAXED);
    return 0;
}

/* -- the file */

static u64 limit_of(int resource)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    SYS(prlimit64, 0, resource, NULL, &limit);
    return limit.rlim_cur;
}

/* Beyond the limit of file sizes a longer file raises SIGXFSZ, which ends the program. By its path: a descriptor of ours
 * may be taken by another thread's dup2. */
static int set_length(u64 bytes)
{
    return limit_of(RLIMIT_FSIZE) >= bytes && !SYS(truncate, path_of_file, bytes);
}

/* Pages are written by the kernel: a full disk is an error there, and would be SIGBUS here. */
static int populate(char *from, u64 bytes)
{
    enum { WAKE_OP_PRIVATE = 5 | 128, OR_ZERO = 2 << 28 };
    long failed = SYS(madvise, from, bytes, POPULATE_WRITE);
    if (failed != -EINVAL)
        return !failed;
    for (char *end = from + bytes; from < end; from += PAGE) /* before Linux 5.14 */
        if (SYS(futex, from, WAKE_OP_PRIVATE, 0, 0, from, OR_ZERO) < 0)
            return 0;
    return 1;
}

static int grow_to(u64 bytes)
{
    static u64 refused_until;
    if (here.frozen || (refused_until && now_ns() < refused_until)) /* a full disk is slow to say so */
        return 0;
    lock_process();
    int grown = bytes <= here.have_bytes;
    if (!grown && bytes <= here.room_bytes) {
        u64 step = here.have_bytes < LARGEST_STEP ? here.have_bytes : LARGEST_STEP;
        u64 wanted = here.have_bytes + step;
        while (wanted < bytes)
            wanted += step;
        if (wanted > here.room_bytes)
            wanted = here.room_bytes;
        grown = set_length(wanted) && populate(here.base + here.have_bytes, wanted - here.have_bytes);
        if (grown)
            __atomic_store_n(&here.have_bytes, wanted, __ATOMIC_RELEASE);
        else
            set_length(here.have_bytes);
        refused_until = grown ? 0 : now_ns() + REFUSED_NS;
    }
    unlock_process();
    return grown;
}

/* Room for a record; its type is set last, by whoever fills it. NULL: there is none. */
void *take(u32 type, u64 bytes)
{
    bytes = (bytes + 15) & ~15ull;
    u64 at = __atomic_load_n(&here.head->used_bytes, __ATOMIC_RELAXED);
    do {
        if (at + bytes > __atomic_load_n(&here.room_bytes, __ATOMIC_RELAXED))
            return NULL;
        if (at + bytes > __atomic_load_n(&here.have_bytes, __ATOMIC_ACQUIRE) && !grow_to(at + bytes))
            return NULL;
        me.taking = at;
        me.taking_bytes = (u32)bytes;
    } while (!__atomic_compare_exchange_n(&here.head->used_bytes, &at, at + bytes, 1, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    u32 *record = (u32 *)(here.base + at);
    record[1] = (u32)bytes;
    me.taking = 0;
    __atomic_store_n(record, type, __ATOMIC_RELEASE);
    return record;
}

static char *append(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    *to = 0;
    return to;
}

static char *append_number(char *to, u64 number, unsigned base)
{
    char digits[24], *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = "0123456789abcdef"[number % base];
    while (number /= base);
    return append(to, at);
}

static int is_own_file(int descriptor)
{
    struct stat named, opened;
    return !SYS(newfstatat, AT_FDCWD, path_of_file, &named, 0) && !SYS(fstat, descriptor, &opened)
        && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

/* The descriptor lives for these calls alone. Another thread's dup2 may take its number meanwhile: then it is not ours. */
static char *map_file(void)
{
    int descriptor = (int)SYS(openat, AT_FDCWD, path_of_file, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return NULL;
    long flags = MAP_SHARED | MAP_NORESERVE | (here.reserved ? MAP_FIXED : 0), base = -1;
    if (set_length(SMALLEST))
        base = SYS(mmap, here.reserved, here.room_bytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    int is_own = is_own_file(descriptor);
    if (is_own)
        SYS(close, descriptor);
    if (base > 0 && is_own && populate((char *)base, SMALLEST)) {
        SYS(madvise, base, here.room_bytes, DO_NOT_DUMP);
        return (char *)base;
    }
    if (base > 0) {
        SYS(munmap, base, here.room_bytes);
        here.reserved = NULL;
        here.parents = NULL;
    }
    SYS(unlinkat, AT_FDCWD, path_of_file, 0);
    return NULL;
}

/* Make and map the file of this process, which is the first time that it has something to record. */
static int begin_file(void)
{
    struct utsname uname;
    struct timespec real;
    u64 start_ns = now_ns(), pid = (u64)SYS(getpid);
    SYS(uname, &uname);
    here.clock(CLOCK_REALTIME, &real);
    char *end = append(append(path_of_file, directory), "/");
    end = append(append_number(end, pid, 10), "-");
    end = append(append_number(end, start_ns, 16), "-");
    append(append(end, uname.nodename), ".io");
    char *base = map_file();
    if (!base)
        return 0;
    here.reserved = here.base = base;
    here.parents = NULL;
    struct head *head = (struct head *)base;
    head->pid = pid;
    head->start_ns = start_ns;
    head->start_realtime_ns = (u64)real.tv_sec * 1000000000u + (u64)real.tv_nsec;
    head->used_bytes = HEAD_BYTES;
    memcpy(head->node, uname.nodename, strnlen(uname.nodename, NODE_BYTES - 1));
    memcpy(head->magic, MAGIC, 8);
    here.have_bytes = SMALLEST;
    __atomic_store_n(&here.head, head, __ATOMIC_RELEASE);
    return 1;
}

/* -- threads */

/* A key's destructor hands on what a thread had: programs start and end threads by the thousand. */
#ifdef OLDEST
__asm__(".symver dlsym, dlsym@" OLDEST);
__asm__(".symver dlopen, dlopen@" OLDEST);
__asm__(".symver pthread_key_create, pthread_key_create@" OLDEST);
__asm__(".symver pthread_setspecific, pthread_setspecific@" OLDEST);
#endif
#pragma weak pthread_key_create
#pragma weak pthread_setspecific
extern int pthread_key_create(unsigned *, void (*)(void *));
extern int pthread_setspecific(unsigned, const void *);
static unsigned key;
static int has_key;

static u64 rows_bytes(void)
{
    return (u64)here.most_files * GROUPS * sizeof(u32);
}

enum { SCRATCH_BYTES = 3 * LONGEST_PATH + 64 };
static u64 thread_bytes(void)
{
    return rows_bytes() + SCRATCH_BYTES + sizeof(struct own_thread);
}

static void retire(void *of)
{
    struct own_thread *kept = of;
    if (me.busy || here.wiped->generation != me.generation || kept->rows != me.rows)
        return;
    begin_busy();
    me.record->since_ns = 0;
    lock_process();
    *(struct own_thread **)kept->scratch = retired;
    retired = kept;
    unlock_process();
    me.rows = NULL;
    me.record = NULL;
    me.log = NULL;
    end_busy();
}

static struct own_thread *new_thread(void)
{
    char *room = here.frozen ? NULL : map_private(thread_bytes());
    if (!room)
        return NULL;
    struct own_thread *made = (struct own_thread *)(room + rows_bytes() + SCRATCH_BYTES);
    made->record = take(THREAD, sizeof *made->record);
    if (!made->record) {
        SYS(munmap, room, thread_bytes());
        return NULL;
    }
    made->rows = (u32 *)room;
    made->scratch = room + rows_bytes();
    made->slot = (u16)__atomic_fetch_add(&here.slots, 1, __ATOMIC_RELAXED);
    return made;
}

/* The process can have no file. Of a forked child its parent's file says so; else a directory, which needs no room below
 * a limit of file sizes. */
static void tell_refused(void)
{
    if (here.parents) {
        __atomic_fetch_add(&here.parents->refused_children, 1, __ATOMIC_RELAXED);
        return;
    }
    append(path_of_file + length_of(path_of_file, sizeof path_of_file), ".broken");
    SYS(mkdirat, AT_FDCWD, path_of_file, 0700);
}

char *room_for_path(void)
{
    return me.rows || begin_thread() ? me.scratch + SCRATCH_BYTES - LONGEST_PATH : NULL;
}

/* Give the calling thread its rows; 0 where there is no room for them. */
int begin_thread(void)
{
    lock_process();
    if (!here.head && (here.frozen || !begin_file())) {
        here.on = 0;
        if (!here.frozen)
            tell_refused();
    }
    struct own_thread *kept = here.head ? retired : NULL;
    if (kept)
        retired = *(struct own_thread **)kept->scratch;
    unlock_process();
    if (!here.head || (!kept && !(kept = new_thread())))
        return 0;
    me.tid = here.frozen ? 0 : (u32)SYS(gettid);
    me.rows = kept->rows;
    me.record = kept->record;
    me.scratch = kept->scratch;
    me.slot = kept->slot;
    me.log = NULL; /* bursts name one thread */
    me.record->slot = me.slot;
    me.record->tid = me.tid;
    me.record->since_ns = 0;
    if (has_key)
        pthread_setspecific(key, kept);
    return 1;
}

/* -- forks */

static void mark_child(void)
{
    here.wiped->lock = here.wiped->generation = 0;
}

/* A forked child has its parent's memory and shares its file: begin anew. Positions are common to both. */
static void begin_anew(void)
{
    if (here.head)
        here.parents = here.head; /* mapped until the child has a file of its own */
    here.base = NULL;
    here.head = NULL;
    here.slots = 0;
    here.generation++;
    if (here.read_ends && !here.frozen)
        SYS(madvise, here.read_ends, here.most_files * sizeof(u64), (long)MADV_DONTNEED);
    retired = NULL;
    if (here.frozen) {
        here.on = 0;
        if (here.parents)
            tell_refused();
    } else if (here.positions) {
        SYS(madvise, here.positions, MOST_DESCRIPTORS * sizeof(u64), MADV_DONTNEED);
    }
    for (int fd = 0; here.of_descriptor && fd < 3; fd++) /* daemon and forkpty put others there, within libc */
        here.of_descriptor[fd] = UNKNOWN_FILE;
    forget_directory();
}

/* The first call of a thread, also of one that was another process's: of the child's first, or of one that comes later. */
__attribute__((noinline)) int join_process(void)
{
    begin_busy();
    if (!here.wiped->generation) {
        lock_process();
        if (!here.wiped->generation) {
            begin_anew();
            __atomic_store_n(&here.wiped->generation, here.generation, __ATOMIC_RELEASE);
        }
        unlock_process();
    }
    if (me.rows && here.on) {
        SYS(munmap, me.rows, thread_bytes());
        if (has_key)
            pthread_setspecific(key, NULL);
    }
    me.rows = NULL;
    me.record = NULL;
    me.log = NULL;
    me.taking = 0;
    me.generation = here.wiped->generation;
    end_busy();
    return here.on;
}

/* -- start and end */

#pragma weak __register_atfork
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

static u64 memory_limit(void)
{
    u64 space = limit_of(RLIMIT_AS), data = limit_of(RLIMIT_DATA);
    return space < data ? space : data;
}

static int is_limited(void)
{
    return memory_limit() != RLIM_INFINITY;
}

/* Where memory is limited: a 64th of it. */
static u64 limited_room(void)
{
    u64 room = memory_limit() / 64 & ~(u64)(LARGEST_PAGE - 1);
    return room < LEAST_ROOM ? LEAST_ROOM : room > LIMITED_ROOM ? LIMITED_ROOM : room;
}

/* How many filters of system calls the process has; of an older kernel, whether it has one. That of a tracer (strace
 * --seccomp-bpf) only tells it of calls. */
static u64 filters(void)
{
    static const char mode[] = "\nSeccomp:\t", count[] = "\nSeccomp_filters:\t", untraced[] = "\nTracerPid:\t0\n";
    char status[4096];
    long file = SYS(openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC, 0);
    long length = file < 0 ? 0 : SYS(read, file, status, sizeof status - 1);
    if (file >= 0)
        SYS(close, file);
    status[length > 0 ? length : 0] = 0;
    const char *found = strstr(status, count);
    if (!strstr(status, untraced))
        return 0;
    found = found ? found + sizeof count - 1 : (found = strstr(status, mode)) ? found + sizeof mode - 1 : "0";
    return strtoul(found, NULL, 10);
}

/* Whether someone between the launcher and this program allows it some system calls only: one of ours may end it. The
 * loader has made those by which this is asked. */
int is_confined(void)
{
    const char *launchers = getenv(FILTERS_VARIABLE);
    return launchers && filters() > strtoul(launchers, NULL, 10);
}

/* libc's own clock: other libraries that wrap it may tell another time, and ask files for it. */
static void find_clock(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), *found = libc ? dlsym(libc, "clock_gettime") : NULL;
    here.clock = found ? (int (*)(clockid_t, struct timespec *))found : clock_gettime;
}

static int begin_recording(void)
{
    const char *asked = getenv(DIRECTORY_VARIABLE);
    u64 length = asked ? strlen(asked) + 1 : 0;
    if (length < 2 || length > LONGEST_PATH)
        return 0;
    if (is_confined())
        return 0;
    int limited = is_limited();
    here.room_bytes = limited ? limited_room() : ROOM;
    here.most_files = limited ? LIMITED_FILES : MOST_FILES;
    here.generation = 1;
    here.wiped = map_private(PAGE);
    directory = map_private(length); /* apart: pages may be large, and all of one is wiped */
    if (!here.wiped || !directory)
        return 0;
    memcpy(directory, asked, length);
    /* Linux before 4.14 knows nothing of it; emulators say yes and do nothing. */
    int is_wiped = !SYS(madvise, here.wiped, PAGE, WIPE_ON_FORK);
    int is_told = __register_atfork && !__register_atfork(NULL, NULL, mark_child, NULL);
    if (!is_wiped && !is_told)
        return 0;
    if (pthread_key_create && pthread_setspecific)
        has_key = !pthread_key_create(&key, retire);
    here.wiped->generation = 1;
    find_clock();
    begin_files();
    begin_interpreter();
    return 1;
}

__attribute__((constructor)) static void begin_process(void)
{
    int error = errno;
    for (const struct next *next = __start_iotrace_next; next < __stop_iotrace_next; next++)
        look_up_next(next->name, next->function);
    here.on = begin_recording();
    begin_serving();
    errno = error;
}

__attribute__((destructor)) static void end_process(void)
{
    if (!here.on || !here.head || here.wiped->generation != here.generation || here.frozen)
        return;
    here.head->end_ns = now_ns();
}

/* -- the program limits its memory: what was mapped ahead would take it */

static void shrink(void)
{
    if (!is_ready() || here.frozen)
        return;
    begin_busy();
    lock_process();
    if (!here.head && !here.of_descriptor)
        here.most_files = LIMITED_FILES;
    u64 kept = limited_room();
    if (here.head && kept < here.have_bytes)
        kept = here.have_bytes;
    kept = (kept + LARGEST_PAGE - 1) & ~(u64)(LARGEST_PAGE - 1);
    if (kept < here.room_bytes) {
        if (here.reserved)
            SYS(munmap, here.reserved + kept, here.room_bytes - kept);
        __atomic_store_n(&here.room_bytes, kept, __ATOMIC_RELAXED);
    }
    shrink_names();
    unlock_process();
    end_busy();
}

#define LIMIT(name, parameters, arguments) \
    NEXT(name); \
    PUBLIC int name parameters \
    { \
        int result = CALL(name) arguments; \
        if (!result && (resource == RLIMIT_AS || resource == RLIMIT_DATA) && is_limited()) \
            shrink(); \
        return result; \
    }
#ifdef __GLIBC__
typedef __rlimit_resource_t resource_t;
#else
typedef int resource_t;
#endif
LIMIT(setrlimit, (resource_t resource, const struct rlimit *to), (resource, to))
LIMIT(setrlimit64, (resource_t resource, const struct rlimit64 *to), (resource, to))
#ifdef __GLIBC__
typedef enum __rlimit_resource any_resource_t;
#else
typedef int any_resource_t;
#endif
LIMIT(prlimit, (pid_t pid, any_resource_t resource, const struct rlimit *to, struct rlimit *old), (pid, resource, to, old))
LIMIT(prlimit64, (pid_t pid, any_resource_t resource, const struct rlimit64 *to, struct rlimit64 *old), (pid, resource, to, old))

/* All memory of the process is to stay in memory: not ours, which is mapped ahead and sparse. */
NEXT(mlockall);
PUBLIC int mlockall(int flags)
{
    shrink();
    int result = CALL(mlockall)(flags);
    int error = errno;
    if (!result && is_ready() && !here.frozen) {
        here.locked = (flags & MCL_FUTURE) != 0;
        unlock_names();
        if (here.reserved)
            SYS(munlock, here.reserved, here.room_bytes);
        if (me.rows)
            SYS(munlock, me.rows, thread_bytes());
    }
    errno = error;
    return result;
}

/* -- seccomp: from now on a system call of ours may end the program */

/* Whether the clock is read without the kernel. */
static int has_cheap_clock(void)
{
    static const char *const cheap[] = {"tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n", "arch_sys_counter\n"};
    static const char path[] = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    char found[64];
    long file = SYS(openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0), length = 0;
    if (file >= 0) {
        length = SYS(read, file, found, sizeof found - 1);
        SYS(close, file);
    }
    found[length > 0 ? length : 0] = 0;
    for (u64 index = 0; index < sizeof cheap / sizeof *cheap; index++)
        if (!strcmp(found, cheap[index]))
            return 1;
    return 0;
}

static void prepare(void)
{
    begin_busy();
    if (!has_cheap_clock() || !begin_tables() || (!me.rows && !begin_thread())) {
        here.on = 0;
    } else {
        know_directory();
        grow_to(here.have_bytes + LARGEST_STEP);
    }
    here.frozen = 1;
    end_busy();
}

/* In the strict mode of Linux a thread cannot even read the clock: its calls are lost from then on. */
void freeze(int strictly)
{
    int error = errno;
    serving = 0;
    if (!here.frozen && is_ready())
        prepare();
    if (strictly && !me.busy)
        me.busy = FOR_GOOD;
    errno = error;
}

NEXT(prctl);
PUBLIC int prctl(int option, ...)
{
    __builtin_va_list list;
    __builtin_va_start(list, option);
    unsigned long a = __builtin_va_arg(list, unsigned long), b = __builtin_va_arg(list, unsigned long);
    unsigned long c = __builtin_va_arg(list, unsigned long), d = __builtin_va_arg(list, unsigned long);
    __builtin_va_end(list);
    if (option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS || option == PR_SET_TSC)
        freeze((option == PR_SET_SECCOMP && a == 1 /* SECCOMP_MODE_STRICT */) || (option == PR_SET_TSC && a == PR_TSC_SIGSEGV));
    return CALL(prctl)(option, a, b, c, d);
}
