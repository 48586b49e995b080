/* What the parts of the recorder share: its state, and how a wrapper notes a call.
 *
 * A wrapper runs inside the program's call. It may not allocate by malloc, take a lock that the program may hold, change
 * errno, or need a descriptor afterwards. While it writes, the thread is `busy`: a signal handler's calls pass by
 * unrecorded then (and counted as lost). */
#ifndef IOTRACE_RECORDER_H
#define IOTRACE_RECORDER_H

#undef _FORTIFY_SOURCE    /* its inline functions, and those of large files, have the names of our own */
#undef _FILE_OFFSET_BITS
#ifndef __NO_INLINE__
#define __NO_INLINE__ 1   /* so have those of old headers */
#endif
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "format.h"

/* The version of functions of libdl and libpthread that any glibc has: before 2.34 these were other libraries. */
#ifdef __GLIBC__
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#endif
#endif

#define PUBLIC __attribute__((visibility("default")))
#define RARELY(condition) __builtin_expect(!!(condition), 0)

/* The kernel itself: errno stays, no other library's `syscall` takes part, and a failure is a negative result. */
static inline long ask_kernel(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long first __asm__("x0") = a, second __asm__("x1") = b, third __asm__("x2") = c, fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e, sixth __asm__("x5") = f, asked __asm__("x8") = number;
    __asm__ volatile("svc #0" : "+r"(first) : "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth), "r"(asked)
                     : "memory");
    return first;
#else
#error "the recorder knows x86_64 and aarch64"
#endif
}
#define ASK_KERNEL(number, a, b, c, d, e, f, ...) \
    ask_kernel(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define SYS(name, ...) ASK_KERNEL(SYS_##name, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum { MOST_DESCRIPTORS = 1 << 16, LONGEST_PATH = 4096 };
/* Numbers of files: 0 is a descriptor of which nothing is known yet, the first two have names of no file. */
enum { UNKNOWN_FILE = 0, IGNORED = 1, OTHERS = 2, FIRST_FILE = 3 };
#define UNKNOWN_OFFSET UINT64_MAX

struct own_thread {
    u32 *rows;              /* offset / 16 in the mapped file, by file and group; private, sparse */
    struct thread *record;
    struct bursts *log;
    char *scratch;          /* room for two paths: stacks of threads may be small */
    void *frame;            /* of the function that made it busy */
    u64 taking;             /* the record that it is about to take, 0: none */
    u32 taking_bytes;
    u64 signals;            /* blocked before it took the lock */
    int blocks_signals;
    u32 tid, generation;    /* of the process that the rows belong to: a forked child is another one */
    u16 slot;
    int busy;               /* 1, or FOR_GOOD, and a VFORK for each child of vfork that runs in its memory */
};
enum { FOR_GOOD = 2, VFORK = 256 };
#define NO_GENERATION UINT32_MAX /* 0 is that of a child as long as nothing knows of it */

struct own_process {
    int on;
    struct wiped { u32 lock, generation; } *wiped; /* zero in a forked child */
    char *base;             /* the mapped file; NULL until something is recorded */
    struct head *head;
    char *reserved;         /* where it was mapped first: a forked child maps its own there */
    u64 room_bytes, have_bytes;
    u32 most_files, slots, generation;
    int frozen;             /* no system call but the program's own may be made (seccomp) */
    int locked;             /* the program keeps all memory that it maps from being paged out */
    struct head *parents;   /* of the process that forked this one, until this one has a file of its own */
    u32 *of_descriptor;     /* file by descriptor */
    u64 *positions;         /* ~offset by descriptor: 0 is unknown */
    u64 *read_ends;         /* by file: 1 + the offset behind the process's last read of it; 0: it has none */
    int (*clock)(clockid_t, struct timespec *); /* libc's own */
};

/* Not libc's functions: a sanitizer stands before those, and takes what our lock orders for a race of the program's. */
static inline u64 word_at(const char *at)
{
    u64 word;
    __builtin_memcpy(&word, at, sizeof word); /* one load, no call */
    return word;
}

static inline void copy_bytes(char *to, const char *from, u64 count)
{
    for (u64 word; count >= sizeof word; to += sizeof word, from += sizeof word, count -= sizeof word) {
        word = word_at(from);
        __builtin_memcpy(to, &word, sizeof word);
        __asm__("" : : : "memory");
    }
    for (; count; count--) {
        *to++ = *from++;
        __asm__("" : : : "memory"); /* or the compiler makes it a call of memcpy again */
    }
}

static inline u64 length_of(const char *text, u64 most)
{
    u64 length = 0;
    while (length < most && text[length]) {
        length++;
        __asm__("" : "+r"(length));
    }
    return length;
}

static inline int begins_with(const char *text, const char *start)
{
    while (*start && *text == *start)
        text++, start++;
    return !*start;
}

/* Whether a text of this length is the one that ends with a zero; 7 bytes behind that zero are read, too. */
static inline int is_same(const char *ended, const char *text, u64 length)
{
    for (; length >= sizeof(u64); ended += sizeof(u64), text += sizeof(u64), length -= sizeof(u64))
        if (word_at(ended) != word_at(text))
            return 0;
    for (; length && *ended == *text; length--)
        ended++, text++;
    return !length && !*ended;
}

extern __thread struct own_thread me __attribute__((tls_model("initial-exec")));
extern struct own_process here;

void *take(u32 type, u64 bytes);
int begin_thread(void);
int join_process(void);
int pass_by(int descriptor);
void lock_process(void);
void unlock_process(void);
void *map_private(u64 bytes);
void freeze(int strictly);
int is_confined(void);
char *room_for_path(void);

static inline __attribute__((always_inline)) void begin_busy(void)
{
    me.frame = __builtin_frame_address(0);
    me.busy = 1;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void end_busy(void)
{
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    me.busy = 0;
}

/* Whether a call is to be recorded: one on a descriptor, or on a path (-1). */
static inline int is_ready_for(int descriptor)
{
    if (RARELY(!here.on))
        return 0;
    if (RARELY(me.busy) && !pass_by(descriptor))
        return 0;
    return !RARELY(here.wiped->generation != me.generation) || join_process();
}

static inline int is_ready(void)
{
    return is_ready_for(-1);
}

/* Whether what the thread does to descriptors and directories it does to its own process, not to a child of vfork. */
static inline int is_own(void)
{
    return here.on && me.busy < VFORK;
}

static inline u64 now_ns(void)
{
    struct timespec time;
    here.clock(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000u + (u64)time.tv_nsec;
}

/* files.c: names of files, and what descriptors stand for. */
void begin_files(void);
int begin_tables(void);
void shrink_names(void);
const char *name_of(u32 file);
u32 write_name(u32 file);
void write_name_later(u32 file);
u32 file_at(int directory, const char *path);
u32 look_up(int descriptor);
void forget_directory(void);
void know_directory(void);
void walk(int more);
void unlock_names(void);

static inline u32 file_of(int descriptor)
{
    if ((unsigned)descriptor >= MOST_DESCRIPTORS || !is_ready_for(descriptor))
        return IGNORED;
    if (RARELY(!here.of_descriptor))
        return look_up(descriptor);
    u32 file = __atomic_load_n(&here.of_descriptor[descriptor], __ATOMIC_RELAXED);
    return RARELY(file == UNKNOWN_FILE) ? look_up(descriptor) : file;
}

/* The number is forgotten before the kernel gives it away: another thread's open may get it at once. */
static inline void forget(int descriptor)
{
    if ((unsigned)descriptor < MOST_DESCRIPTORS && here.of_descriptor && is_own() && here.of_descriptor[descriptor])
        __atomic_store_n(&here.of_descriptor[descriptor], UNKNOWN_FILE, __ATOMIC_RELEASE);
}

static inline u64 position_of(int descriptor)
{
    return ~__atomic_load_n(&here.positions[descriptor], __ATOMIC_RELAXED);
}

static inline void move_to(int descriptor, u64 position)
{
    __atomic_store_n(&here.positions[descriptor], ~position, __ATOMIC_RELAXED);
}

/* serve.c: copies of data that a trial puts in the place of files. How a path is looked at: */
enum { LOOKS = 0, ITSELF = 1, OPENS = 2, CHANGES = 4 }; /* ITSELF: a link is not followed */
extern int serving;
void begin_serving(void);
const char *serve(int directory, const char *path, int how, char *room);
#define SERVED(directory, path, how) \
    (RARELY(serving) ? serve(directory, path, how, __builtin_alloca(LONGEST_PATH)) : (path))

static inline int opening(int flags)
{
    if ((flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)))
        return CHANGES;
    return OPENS | (flags & O_NOFOLLOW ? ITSELF : 0);
}

static inline int looking(int flags)
{
    return flags & AT_SYMLINK_NOFOLLOW ? ITSELF : LOOKS;
}

/* interpreter.c */
void begin_interpreter(void);

/* note.c */
void note(u32 file, enum kind kind, long result, u64 offset, u64 begin_ns, u64 end_ns);
void note_path(int directory, const char *path, enum kind kind, long result, u64 begin_ns, u64 end_ns);
void note_open(int directory, const char *path, enum kind kind, int descriptor, int flags, u64 begin_ns, u64 end_ns);

/* A call begins: whoever watches sees in the mapped file what the thread is in, and since when. */
static inline u64 begin_call(enum kind kind, u32 file)
{
    u64 begin_ns = now_ns();
    if (me.record) {
        me.record->kind = kind;
        me.record->file = file;
        me.record->since_ns = begin_ns;
    }
    return begin_ns;
}

static inline u64 end_call(void)
{
    if (me.record)
        me.record->since_ns = 0;
    return now_ns();
}

/* The next library's function of a name, so that other preloaded libraries stay in the chain. All are looked up before
 * the program begins: dlsym takes the loader's lock. */
struct next { const char *name; void **function; };
#if defined(__has_attribute)
#if __has_attribute(retain)
#define KEPT used, retain /* by linkers that collect what nothing names */
#endif
#endif
#ifndef KEPT
#define KEPT used
#endif
#define NEXT(name) \
    static __typeof__(name) *next_##name __attribute__((used)); \
    static const struct next entry_##name __attribute__((KEPT, section("iotrace_next"))) = {#name, (void **)&next_##name}
void *look_up_next(const char *name, void **function);
long is_missing(void);
#define CALL(name) (RARELY(!next_##name) ? (__typeof__(next_##name))look_up_next(#name, (void **)&next_##name) : next_##name)

#endif
