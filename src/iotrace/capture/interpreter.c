/* How long each thread has waited for the lock of Python's interpreter: the agent asks where an item has been made.
 *
 * The interpreter waits for it at a condition, with a limit; for its other locks it waits at semaphores. Behind the
 * limit, of 5 ms, it asks the thread that has the lock for it. A thread that samples another one asks at once: else it
 * would get the lock where that one next lets it go by itself, which is seldom where it was when the sample was due. */
#include "recorder.h"

#include <link.h>
#include <pthread.h>

static __thread u64 waited_ns __attribute__((tls_model("initial-exec")));
static __thread enum { PATIENT, ASKS, HAS_ASKED } asking __attribute__((tls_model("initial-exec")));
static u64 code, code_bytes; /* of the interpreter; none in other programs */

static int find_code(struct dl_phdr_info *object, size_t size, void *inside)
{
    (void)size;
    for (int index = 0; index < object->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[index];
        u64 first = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (u64)inside - first < part->p_memsz) {
            code = first;
            code_bytes = part->p_memsz;
            return 1;
        }
    }
    return 0;
}

NEXT(pthread_cond_timedwait);
#pragma weak dlvsym /* of glibc alone */
#ifdef OLDEST
__asm__(".symver dlsym, dlsym@" OLDEST);
__asm__(".symver dlvsym, dlvsym@" OLDEST);
#endif

void begin_interpreter(void)
{
    void *inside = dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    void *newest = dlvsym ? dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2") : NULL; /* dlsym: maybe older */
    if (newest)
        next_pthread_cond_timedwait = (__typeof__(next_pthread_cond_timedwait))newest;
    if (inside)
        dl_iterate_phdr(find_code, inside);
}

/* Where this thread's sum lies; NULL where it would stay 0. */
PUBLIC u64 *iotrace_interpreter_waits(void)
{
    return code_bytes ? &waited_ns : NULL;
}

/* From now on this thread asks for the lock at once, or waits for it like any other one; returns whether it can. */
PUBLIC int iotrace_interpreter_asks(int at_once)
{
    asking = at_once ? ASKS : PATIENT;
    return code_bytes != 0;
}

PUBLIC int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    if ((u64)__builtin_return_address(0) - code >= code_bytes || RARELY(me.busy || !here.on))
        return CALL(pthread_cond_timedwait)(condition, mutex, until);
    if (RARELY(asking == ASKS)) { /* every other time: each thread that takes the lock has to be asked */
        asking = HAS_ASKED;
        return ETIMEDOUT;
    }
    if (RARELY(asking == HAS_ASKED))
        asking = ASKS;
    u64 begin_ns = now_ns();
    int result = CALL(pthread_cond_timedwait)(condition, mutex, until);
    waited_ns += now_ns() - begin_ns;
    return result;
}
