/* A child of vfork runs in its parent's memory, the calling thread's included, until it executes a program: the thread is
 * marked busy meanwhile, or the child's closing and opening would be taken for the parent's. vfork returns twice, so no
 * function of C can stand before it: the return address is kept in a register, for the child may use the stack below. */
#include "recorder.h"

__attribute__((used)) static void before_vfork(void)
{
    me.busy += VFORK;
}

__attribute__((used)) static long after_vfork(long pid)
{
    if (pid)
        me.busy -= VFORK;
    if (pid >= 0)
        return pid;
    errno = (int)-pid;
    return -1;
}

PUBLIC pid_t vfork(void);
#if defined(__x86_64__)
__asm__(".text\n.globl vfork\n.type vfork,@function\nvfork:\n"
        " endbr64\n"
        " sub $8,%rsp\n call before_vfork\n add $8,%rsp\n"
        " pop %rdx\n mov $58,%eax\n syscall\n push %rdx\n"
        " sub $8,%rsp\n mov %rax,%rdi\n call after_vfork\n add $8,%rsp\n"
        " ret\n.size vfork,.-vfork");
#elif defined(__aarch64__)
__asm__(".text\n.globl vfork\n.type vfork,%function\nvfork:\n"
        " str x30, [sp, #-16]!\n bl before_vfork\n ldr x30, [sp], #16\n"
        " mov x0, #0x4111\n mov x1, #0\n mov x2, #0\n mov x3, #0\n mov x4, #0\n mov x8, #220\n svc #0\n"
        " str x30, [sp, #-16]!\n bl after_vfork\n ldr x30, [sp], #16\n"
        " ret\n.size vfork,.-vfork");
#endif

/* System calls by number: those that matter here are looked at, and the next library's function does the rest. It finds
 * registers and stack as they were, as if this one did not stand before it. */
NEXT(syscall);

__attribute__((used)) static void *before_syscall(long number, long first, long second, long third)
{
    if (number == SYS_seccomp) {
        freeze(first == 0 /* SECCOMP_SET_MODE_STRICT */);
    } else if (number == SYS_prctl && first == 22 /* PR_SET_SECCOMP */) {
        freeze(second == 1 /* SECCOMP_MODE_STRICT */);
    } else if (number == SYS_chdir || number == SYS_fchdir) {
        if (is_own())
            forget_directory();
    } else if (number == SYS_close) {
        forget((int)first);
#ifdef SYS_dup2
    } else if (number == SYS_dup2) {
        forget((int)second);
#endif
    } else if (number == SYS_dup3) {
        forget((int)second);
    } else if (number == SYS_close_range && !(third & 4 /* CLOSE_RANGE_CLOEXEC */)) {
        for (u64 fd = (u32)first; fd <= (u32)second && fd < MOST_DESCRIPTORS; fd++)
            forget((int)fd);
    }
    return CALL(syscall);
}

#if defined(__x86_64__)
__asm__(".text\n.globl syscall\n.type syscall,@function\nsyscall:\n"
        " endbr64\n"
        " cmp $317,%rdi\n je 1f\n cmp $3,%rdi\n je 1f\n cmp $33,%rdi\n je 1f\n cmp $292,%rdi\n je 1f\n cmp $436,%rdi\n je 1f\n"
        " cmp $80,%rdi\n je 1f\n cmp $81,%rdi\n je 1f\n cmp $157,%rdi\n je 1f\n"
        " mov next_syscall(%rip),%r11\n test %r11,%r11\n je 1f\n jmp *%r11\n"
        "1: push %rax\n push %rdi\n push %rsi\n push %rdx\n push %rcx\n push %r8\n push %r9\n"
        " call before_syscall\n mov %rax,%r11\n"
        " pop %r9\n pop %r8\n pop %rcx\n pop %rdx\n pop %rsi\n pop %rdi\n pop %rax\n"
        " jmp *%r11\n.size syscall,.-syscall");
#elif defined(__aarch64__)
__asm__(".text\n.globl syscall\n.type syscall,%function\nsyscall:\n"
        " cmp x0, #277\n b.eq 1f\n cmp x0, #57\n b.eq 1f\n cmp x0, #24\n b.eq 1f\n cmp x0, #436\n b.eq 1f\n"
        " cmp x0, #49\n b.eq 1f\n cmp x0, #50\n b.eq 1f\n cmp x0, #167\n b.eq 1f\n"
        " adrp x16, next_syscall\n ldr x16, [x16, :lo12:next_syscall]\n cbz x16, 1f\n br x16\n"
        "1: stp x30, x0, [sp, #-80]!\n stp x1, x2, [sp, #16]\n stp x3, x4, [sp, #32]\n stp x5, x6, [sp, #48]\n"
        " str x7, [sp, #64]\n"
        " bl before_syscall\n mov x16, x0\n"
        " ldp x1, x2, [sp, #16]\n ldp x3, x4, [sp, #32]\n ldp x5, x6, [sp, #48]\n ldr x7, [sp, #64]\n"
        " ldp x30, x0, [sp], #80\n"
        " br x16\n.size syscall,.-syscall");
#endif
