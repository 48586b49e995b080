/* Keep the preloaded dftracer from harming its process. The library is preloaded behind dftracer's: its constructor
 * runs first. Where the program is not Python, or this dftracer is not one that it knows, it keeps dftracer out of the
 * process. Else it finds libdftracer_core and changes what that library alone calls (its global offset table):
 *
 *   fopen    the log has no descriptor (posix_guard_log.c)
 *   locks    none is held over a fork (posix_guard_locks.c)
 *   stderr   what dftracer complains of (a full disk, a buffer that overflows) is not the program's to show
 *   strcpy   it copies paths into buffers of PATH_MAX, whatever their length
 *   _exit    what it puts before the program's own: it writes its log and frees memory. A handler may call _exit (that of
 *            torch's workers does, at SIGTERM) where the process holds malloc's lock: it would wait for itself for ever
 *
 * and what the program itself says of libc's functions: a program at fixed addresses (no PIE) that takes the address of
 * one, say of fclose, stands for it in all libraries with its own jump to it. dftracer would take that jump for the
 * function and bend it onto itself: the program spins at its first fclose.
 *
 * A log that could not be written whole gets a directory LOG.broken beside it, which readers tell.
 * Without dftracer in the process nothing happens. */

#define _GNU_SOURCE
#include "posix_guard.h"

#ifdef IOTRACE_GUARDS
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#pragma weak dlsym /* before glibc 2.34 it lies in libdl, which dftracer brings along */
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5"); /* what any glibc has */
static void *(*real_dlsym)(void *, const char *);
static FILE *nowhere;
static int opens_by_us, locks_by_us; /* whether what they need was found */

static char *bounded_copy(char *to, const char *from)
{
    size_t length = strnlen(from, PATH_MAX - 1);
    memcpy(to, from, length);
    to[length] = 0;
    return to;
}

/* Each second the thread that leaves is looked at: without CPU time in two of them it waits for its own lock. */
enum { MOST_IDLE_SECONDS = 2, LEAST_CPU_NS = 100000 };
static void (*leave_by_dftracer)(int);
static clockid_t leaving_clock;
static volatile long leaving_cpu_ns;
static volatile int leaving_status, idle_seconds;

static long cpu_ns_of_leaving(void)
{
    struct timespec time = {0, 0};
    syscall(SYS_clock_gettime, leaving_clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void leave_if_stuck(int signal)
{
    long cpu_ns = cpu_ns_of_leaving();
    (void)signal;
    idle_seconds = cpu_ns - leaving_cpu_ns < LEAST_CPU_NS ? idle_seconds + 1 : 0;
    leaving_cpu_ns = cpu_ns;
    if (idle_seconds < MOST_IDLE_SECONDS) {
        alarm(1);
        return;
    }
    tell_broken_log();
    syscall(SYS_exit_group, leaving_status);
}

/* The program is at its end: its own alarm, and what it does at one, may be replaced. */
static void leave_in_time(int status)
{
    const struct sigaction look = {.sa_handler = leave_if_stuck};
    sigset_t one;
    if (syscall(SYS_getpid) != own_pid) /* a child of vfork: dftracer would end in its parent */
        syscall(SYS_exit_group, status);
    leaving_status = status;
    leaving_clock = (clockid_t)(~(unsigned)syscall(SYS_gettid) << 3 | 6); /* of this thread, as seen from any */
    leaving_cpu_ns = cpu_ns_of_leaving();
    sigemptyset(&one);
    sigaddset(&one, SIGALRM);
    sigaction(SIGALRM, &look, NULL);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    alarm(1);
    leave_by_dftracer(status);
}

static void *found_or_ours(void *library, const char *name)
{
    if (!strcmp(name, "fopen"))
        return open_log;
    if (!strcmp(name, "setvbuf"))
        return buffer_no_log;
    return real_dlsym(library, name);
}

static void put(uintptr_t slot, void *value)
{
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), page = slot & ~(size - 1);
    if (mprotect((void *)page, size, PROT_READ | PROT_WRITE) == 0)
        *(void **)slot = value; /* the page stays writable: other slots of it may be bound later */
}

static void change(ElfW(Addr) base, const ElfW(Rela) *row, size_t bytes, const ElfW(Sym) *symbols, const char *names)
{
    for (size_t index = 0; index < bytes / sizeof *row; index++) {
        unsigned long kind = ELF64_R_TYPE(row[index].r_info);
        if (kind != R_X86_64_GLOB_DAT && kind != R_X86_64_JUMP_SLOT)
            continue;
        const ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(row[index].r_info)];
        const char *name = names + symbol->st_name;
        uintptr_t slot = base + row[index].r_offset;
        void *instead = instead_of_lock(name);
        if (instead) {
            put(slot, instead);
            locks_by_us |= !strcmp(name, "pthread_rwlock_wrlock");
        } else if (!strcmp(name, "stderr"))
            put(slot, &nowhere);
        else if (!strcmp(name, "strcpy"))
            put(slot, bounded_copy);
        else if (!strcmp(name, "dlsym")) {
            put(slot, found_or_ours);
            opens_by_us = 1;
        } else if (!strcmp(name, "_Z13_exit_wrapperi") && symbol->st_value) {
            leave_by_dftracer = (void (*)(int))(base + symbol->st_value);
            put(slot, leave_in_time);
        }
    }
}

struct tables {
    const ElfW(Rela) *data, *calls;
    size_t data_bytes, calls_bytes;
    ElfW(Sym) *symbols;
    const char *names;
    ElfW(Addr) first, last; /* what is called as the library begins and ends, by their places */
    size_t first_bytes, last_bytes;
};

static struct tables tables_of(const struct dl_phdr_info *library)
{
    struct tables found = {0};
    const ElfW(Dyn) *entry = NULL;
    for (int index = 0; index < library->dlpi_phnum; index++)
        if (library->dlpi_phdr[index].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(library->dlpi_addr + library->dlpi_phdr[index].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        uintptr_t address = entry->d_un.d_ptr;
        if (entry->d_tag == DT_RELA) found.data = (const void *)address;
        if (entry->d_tag == DT_RELASZ) found.data_bytes = entry->d_un.d_val;
        if (entry->d_tag == DT_JMPREL) found.calls = (const void *)address;
        if (entry->d_tag == DT_PLTRELSZ) found.calls_bytes = entry->d_un.d_val;
        if (entry->d_tag == DT_SYMTAB) found.symbols = (void *)address;
        if (entry->d_tag == DT_STRTAB) found.names = (const void *)address;
        if (entry->d_tag == DT_INIT_ARRAY) found.first = address;
        if (entry->d_tag == DT_INIT_ARRAYSZ) found.first_bytes = entry->d_un.d_val;
        if (entry->d_tag == DT_FINI_ARRAY) found.last = address;
        if (entry->d_tag == DT_FINI_ARRAYSZ) found.last_bytes = entry->d_un.d_val;
    }
    return found;
}

static int guard_library(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!strstr(library->dlpi_name, "/libdftracer_core"))
        return 0;
    struct tables of = tables_of(library);
    if (!of.symbols || !of.names || !of.data || !of.calls)
        return 0;
    change(library->dlpi_addr, of.data, of.data_bytes, of.symbols, of.names);
    change(library->dlpi_addr, of.calls, of.calls_bytes, of.symbols, of.names);
    return 1;
}

static void nothing(void)
{
}

/* The loader calls these once the guard has begun. What dftracer is told in the environment stays for other programs. */
static int keep_out(struct dl_phdr_info *library, size_t size, void *unused)
{
    (void)size, (void)unused;
    if (!strstr(library->dlpi_name, "/libdftracer_preload"))
        return 0;
    struct tables of = tables_of(library);
    for (size_t at = 0; at < of.first_bytes; at += sizeof(ElfW(Addr)))
        put(library->dlpi_addr + of.first + at, nothing);
    for (size_t at = 0; at < of.last_bytes; at += sizeof(ElfW(Addr)))
        put(library->dlpi_addr + of.last + at, nothing);
    return 1;
}

static int is_libc_with(struct dl_phdr_info *library, size_t size, void *function)
{
    (void)size;
    if (!strstr(library->dlpi_name, "/libc.so") && !strstr(library->dlpi_name, "/libpthread.so"))
        return 0;
    for (int index = 0; index < library->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &library->dlpi_phdr[index];
        if (part->p_type == PT_LOAD && (uintptr_t)function - library->dlpi_addr - part->p_vaddr < part->p_memsz)
            return 1;
    }
    return 0;
}

static int is_of_libc(const char *name)
{
    return dl_iterate_phdr(is_libc_with, real_dlsym(RTLD_NEXT, name));
}

/* Libraries loaded so far keep what they were bound to; those loaded later find libc's own function. */
static int guard_program(struct dl_phdr_info *program, size_t size, void *unused)
{
    (void)size, (void)unused; /* the program is the first that is visited */
    struct tables of = tables_of(program);
    for (size_t index = 0; of.calls && of.symbols && of.names && index < of.calls_bytes / sizeof *of.calls; index++) {
        ElfW(Sym) *symbol = &of.symbols[ELF64_R_SYM(of.calls[index].r_info)];
        if (symbol->st_shndx == SHN_UNDEF && symbol->st_value && is_of_libc(of.names + symbol->st_name))
            put((uintptr_t)&symbol->st_value, NULL);
    }
    return 1;
}

static ssize_t drop(void *cookie, const char *data, size_t size)
{
    (void)cookie, (void)data;
    return (ssize_t)size;
}

void count_in(const char *name)
{
    char path[PATH_MAX];
    const char *log = getenv("DFTRACER_LOG_FILE"), *end = log ? strrchr(log, '/') : NULL;
    if (!end || snprintf(path, sizeof path, "%.*s/%s", (int)(end - log), log, name) >= (int)sizeof path)
        return;
    long file = syscall(SYS_open, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return;
    syscall(SYS_write, file, ".", (size_t)1);
    syscall(SYS_close, file);
}

/* Shells and other programs live on numbers of descriptors, forks and signals, and read no training data. */
static int is_python(void)
{
    char path[PATH_MAX];
    long length = syscall(SYS_readlink, "/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    const char *name = strrchr(path, '/');
    return name && (!strncmp(name, "/python", 7) || !strncmp(name, "/pypy", 5));
}

/* Whether all that the guard needs of this dftracer is there. */
static int can_guard(void)
{
    no_stdio = dlsym(RTLD_DEFAULT, "_ZN6brahma13STDIODFTracer10stop_traceE");
    nowhere = fopencookie(NULL, "w", (cookie_io_functions_t){.write = drop}); /* needs no descriptor */
    if (!no_stdio || !nowhere || !begin_logs() || !begin_locks())
        return 0;
    return dl_iterate_phdr(guard_library, NULL) && opens_by_us && locks_by_us;
}

__attribute__((constructor)) static void guard_dftracer(void)
{
    const char *enabled = getenv("DFTRACER_ENABLE");
    if (!dlsym || !enabled || strcmp(enabled, "1"))
        return;
    real_dlsym = dlsym;
    if (is_python() && can_guard())
        dl_iterate_phdr(guard_program, NULL);
    else if (dl_iterate_phdr(keep_out, NULL))
        count_in("io-left-out");
}
#endif
