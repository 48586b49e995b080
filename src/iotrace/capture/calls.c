/* The calls on descriptors and paths that are recorded: each calls the next library's, and notes how that went. */
#include "recorder.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>

/* What FORTIFY calls, and glibc before 2.33 for stat; headers declare them for some settings alone. */
#ifdef __GLIBC__
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstat(int, int, struct stat *);
int __fxstat64(int, int, struct stat64 *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
#endif
struct statx;
int statx(int, const char *, int, unsigned, struct statx *);
ssize_t copy_file_range(int, off64_t *, int, off64_t *, size_t, unsigned);
int close_range(unsigned, unsigned, int);
void closefrom(int);
int renameat2(int, const char *, int, const char *, unsigned);

/* -- bytes at a descriptor's position, and at one that is given */

#define AT_POSITION(name, kind, parameters, arguments) \
    NEXT(name); \
    PUBLIC ssize_t name parameters \
    { \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 position = position_of(fd), begin_ns = begin_call(kind, file); \
        ssize_t result = CALL(name) arguments; \
        u64 end_ns = end_call(); \
        if (result > 0 && position != UNKNOWN_OFFSET) \
            move_to(fd, position + (u64)result); \
        note(file, kind, result, position, begin_ns, end_ns); \
        return result; \
    }

#define AT_OFFSET(name, kind, parameters, arguments) \
    NEXT(name); \
    PUBLIC ssize_t name parameters \
    { \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(kind, file); \
        ssize_t result = CALL(name) arguments; \
        u64 end_ns = end_call(); \
        note(file, kind, result, (u64)offset, begin_ns, end_ns); \
        return result; \
    }

AT_POSITION(read, K_READ, (int fd, void *data, size_t size), (fd, data, size))
AT_POSITION(readv, K_READV, (int fd, const struct iovec *parts, int count), (fd, parts, count))
AT_POSITION(write, K_WRITE, (int fd, const void *data, size_t size), (fd, data, size))
AT_POSITION(writev, K_WRITEV, (int fd, const struct iovec *parts, int count), (fd, parts, count))
AT_OFFSET(pread, K_PREAD, (int fd, void *data, size_t size, off_t offset), (fd, data, size, offset))
AT_OFFSET(pread64, K_PREAD, (int fd, void *data, size_t size, off64_t offset), (fd, data, size, offset))
AT_OFFSET(preadv, K_PREADV, (int fd, const struct iovec *parts, int count, off_t offset), (fd, parts, count, offset))
AT_OFFSET(preadv64, K_PREADV, (int fd, const struct iovec *parts, int count, off64_t offset), (fd, parts, count, offset))
AT_OFFSET(pwrite, K_PWRITE, (int fd, const void *data, size_t size, off_t offset), (fd, data, size, offset))
AT_OFFSET(pwrite64, K_PWRITE, (int fd, const void *data, size_t size, off64_t offset), (fd, data, size, offset))
AT_OFFSET(pwritev, K_PWRITEV, (int fd, const struct iovec *parts, int count, off_t offset), (fd, parts, count, offset))
AT_OFFSET(pwritev64, K_PWRITEV, (int fd, const struct iovec *parts, int count, off64_t offset), (fd, parts, count, offset))
#ifdef __GLIBC__
AT_POSITION(__read_chk, K_READ, (int fd, void *data, size_t size, size_t room), (fd, data, size, room))
AT_OFFSET(__pread_chk, K_PREAD, (int fd, void *data, size_t size, off_t offset, size_t room), (fd, data, size, offset, room))
AT_OFFSET(__pread64_chk, K_PREAD, (int fd, void *data, size_t size, off64_t offset, size_t room), (fd, data, size, offset, room))
#endif

/* An offset of -1 stands for the position. */
#define AT_EITHER(name, kind, T) \
    ssize_t name(int, const struct iovec *, int, T, int); \
    NEXT(name); \
    PUBLIC ssize_t name(int fd, const struct iovec *parts, int count, T offset, int flags) \
    { \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name)(fd, parts, count, offset, flags); \
        u64 position = offset == -1 ? position_of(fd) : (u64)offset, begin_ns = begin_call(kind, file); \
        ssize_t result = CALL(name)(fd, parts, count, offset, flags); \
        u64 end_ns = end_call(); \
        if (offset == -1 && result > 0 && position != UNKNOWN_OFFSET) \
            move_to(fd, position + (u64)result); \
        note(file, kind, result, position, begin_ns, end_ns); \
        return result; \
    }
AT_EITHER(preadv2, K_PREADV, off_t)
AT_EITHER(preadv64v2, K_PREADV, off64_t)
AT_EITHER(pwritev2, K_PWRITEV, off_t)
AT_EITHER(pwritev64v2, K_PWRITEV, off64_t)

#define SEEK(name, T) \
    NEXT(name); \
    PUBLIC T name(int fd, T offset, int whence) \
    { \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name)(fd, offset, whence); \
        u64 begin_ns = begin_call(K_LSEEK, file); \
        T result = CALL(name)(fd, offset, whence); \
        u64 end_ns = end_call(); \
        if (result >= 0) \
            move_to(fd, (u64)result); \
        note(file, K_LSEEK, result < 0 ? -1 : 0, UNKNOWN_OFFSET, begin_ns, end_ns); \
        return result; \
    }
SEEK(lseek, off_t)
SEEK(lseek64, off64_t)

/* -- from one descriptor to another: the reading of one file, and the writing of the other */

static void note_copy(int from, int to, u32 read, u32 written, const off64_t *at, enum kind kind, ssize_t result, u64 begin_ns, u64 end_ns)
{
    if (read != IGNORED) {
        u64 position = at ? (u64)*at - (u64)(result > 0 ? result : 0) : position_of(from);
        if (!at && result > 0 && position != UNKNOWN_OFFSET)
            move_to(from, position + (u64)result);
        note(read, kind, result, position, begin_ns, end_ns);
    }
    if (written != IGNORED) {
        move_to(to, UNKNOWN_OFFSET);
        note(written, K_COPY_TO, result, UNKNOWN_OFFSET, begin_ns, end_ns);
    }
}

#define SENDFILE(name, T) \
    NEXT(name); \
    PUBLIC ssize_t name(int to, int from, T *offset, size_t size) \
    { \
        u32 read = file_of(from), written = file_of(to); \
        if (read == IGNORED && written == IGNORED) \
            return CALL(name)(to, from, offset, size); \
        u64 begin_ns = begin_call(K_SENDFILE, read); \
        ssize_t result = CALL(name)(to, from, offset, size); \
        u64 end_ns = end_call(); \
        note_copy(from, to, read, written, result < 0 ? NULL : offset, K_SENDFILE, result, begin_ns, end_ns); \
        return result; \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

NEXT(splice);
PUBLIC ssize_t splice(int from, off64_t *at, int to, off64_t *to_at, size_t size, unsigned flags)
{
    u32 read = file_of(from), written = file_of(to);
    if (read == IGNORED && written == IGNORED)
        return CALL(splice)(from, at, to, to_at, size, flags);
    u64 begin_ns = begin_call(K_SENDFILE, read);
    ssize_t result = CALL(splice)(from, at, to, to_at, size, flags);
    u64 end_ns = end_call();
    note_copy(from, to, read, written, result < 0 ? NULL : at, K_SENDFILE, result, begin_ns, end_ns);
    return result;
}

NEXT(copy_file_range);
PUBLIC ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *to_at, size_t size, unsigned flags)
{
    u32 read = file_of(from), written = file_of(to);
    if (read == IGNORED && written == IGNORED)
        return CALL(copy_file_range)(from, at, to, to_at, size, flags);
    u64 begin_ns = begin_call(K_COPY_FROM, read);
    ssize_t result = CALL(copy_file_range)(from, at, to, to_at, size, flags);
    u64 end_ns = end_call();
    note_copy(from, to, read, written, result < 0 ? NULL : at, K_COPY_FROM, result, begin_ns, end_ns);
    return result;
}

/* -- opening and closing */

static inline int has_mode(int flags)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

#define OPEN(name) \
    NEXT(name); \
    PUBLIC int name(const char *path, int flags, ...) \
    { \
        mode_t mode = 0; \
        if (has_mode(flags)) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        const char *from = SERVED(AT_FDCWD, path, opening(flags)); \
        if (!is_ready()) \
            return CALL(name)(from, flags, mode); \
        u64 begin_ns = begin_call(K_OPEN, UNKNOWN_FILE); \
        int fd = CALL(name)(from, flags, mode); \
        note_open(AT_FDCWD, path, K_OPEN, fd, flags, begin_ns, end_call()); \
        return fd; \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    NEXT(name); \
    PUBLIC int name(int directory, const char *path, int flags, ...) \
    { \
        mode_t mode = 0; \
        if (has_mode(flags)) { \
            va_list list; \
            va_start(list, flags); \
            mode = va_arg(list, mode_t); \
            va_end(list); \
        } \
        const char *from = SERVED(directory, path, opening(flags)); \
        if (!is_ready()) \
            return CALL(name)(directory, from, flags, mode); \
        u64 begin_ns = begin_call(K_OPEN, UNKNOWN_FILE); \
        int fd = CALL(name)(directory, from, flags, mode); \
        note_open(directory, path, K_OPEN, fd, flags, begin_ns, end_call()); \
        return fd; \
    }
OPENAT(openat)
OPENAT(openat64)

#define OPEN_PLAINLY(name, directory, opened_with, how, parameters, arguments) \
    NEXT(name); \
    PUBLIC int name parameters \
    { \
        const char *asked = path; \
        path = SERVED(directory, path, how); \
        if (!is_ready()) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(K_OPEN, UNKNOWN_FILE); \
        int fd = CALL(name) arguments; \
        note_open(directory, asked, K_OPEN, fd, opened_with, begin_ns, end_call()); \
        return fd; \
    }
OPEN_PLAINLY(creat, AT_FDCWD, 0, CHANGES, (const char *path, mode_t mode), (path, mode))
OPEN_PLAINLY(creat64, AT_FDCWD, 0, CHANGES, (const char *path, mode_t mode), (path, mode))
#ifdef __GLIBC__
OPEN_PLAINLY(__open_2, AT_FDCWD, flags, opening(flags), (const char *path, int flags), (path, flags))
OPEN_PLAINLY(__open64_2, AT_FDCWD, flags, opening(flags), (const char *path, int flags), (path, flags))
OPEN_PLAINLY(__openat_2, at, flags, opening(flags), (int at, const char *path, int flags), (at, path, flags))
OPEN_PLAINLY(__openat64_2, at, flags, opening(flags), (int at, const char *path, int flags), (at, path, flags))
#endif

/* The template holds the name afterwards. */
#define MAKE_UNIQUE(name, parameters, arguments) \
    NEXT(name); \
    PUBLIC int name parameters \
    { \
        if (!is_ready()) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(K_OPEN, UNKNOWN_FILE); \
        int fd = CALL(name) arguments; \
        note_open(AT_FDCWD, path, K_OPEN, fd, 0, begin_ns, end_call()); \
        return fd; \
    }
MAKE_UNIQUE(mkstemp, (char *path), (path))
MAKE_UNIQUE(mkstemp64, (char *path), (path))
MAKE_UNIQUE(mkostemp, (char *path, int flags), (path, flags))
MAKE_UNIQUE(mkostemp64, (char *path, int flags), (path, flags))
MAKE_UNIQUE(mkstemps, (char *path, int suffix), (path, suffix))
MAKE_UNIQUE(mkstemps64, (char *path, int suffix), (path, suffix))
MAKE_UNIQUE(mkostemps, (char *path, int suffix, int flags), (path, suffix, flags))
MAKE_UNIQUE(mkostemps64, (char *path, int suffix, int flags), (path, suffix, flags))

NEXT(close);
PUBLIC int close(int fd)
{
    u32 file = file_of(fd);
    forget(fd);
    if (file == IGNORED)
        return CALL(close)(fd);
    u64 begin_ns = begin_call(K_CLOSE, file);
    int result = CALL(close)(fd);
    note(file, K_CLOSE, result, UNKNOWN_OFFSET, begin_ns, end_call());
    return result;
}

static void forget_range(unsigned first, unsigned last)
{
    for (unsigned fd = first; fd <= last && fd < MOST_DESCRIPTORS; fd++)
        forget((int)fd);
}

NEXT(close_range);
PUBLIC int close_range(unsigned first, unsigned last, int flags)
{
    if (!(flags & 4 /* CLOSE_RANGE_CLOEXEC */))
        forget_range(first, last);
    return CALL(close_range)(first, last, flags);
}

NEXT(closefrom);
PUBLIC void closefrom(int first)
{
    unsigned from = first < 0 ? 0 : (unsigned)first, last = MOST_DESCRIPTORS;
    forget_range(from, last);
    CALL(closefrom)(first);
    if ((void *)next_closefrom == (void *)is_missing && SYS(close_range, from, ~0u, 0)) /* before glibc 2.34, before Linux 5.9 */
        for (; from < last; from++)
            SYS(close, from);
}

/* The copy shares the file and its position; from then on two positions are followed, and the last to move is right. */
static void copy_descriptor(int from, int to)
{
    if (to < 0 || from == to || !is_own() || !here.of_descriptor)
        return;
    forget(to);
    if ((unsigned)from < MOST_DESCRIPTORS && (unsigned)to < MOST_DESCRIPTORS) {
        move_to(to, UNKNOWN_OFFSET);
        move_to(from, UNKNOWN_OFFSET);
        __atomic_store_n(&here.of_descriptor[to], here.of_descriptor[from], __ATOMIC_RELEASE);
    }
}

NEXT(dup);
PUBLIC int dup(int fd)
{
    int copy = CALL(dup)(fd);
    copy_descriptor(fd, copy);
    return copy;
}

NEXT(dup2);
PUBLIC int dup2(int fd, int wanted)
{
    if (fd != wanted)
        forget(wanted);
    int copy = CALL(dup2)(fd, wanted);
    copy_descriptor(fd, copy);
    return copy;
}

NEXT(dup3);
PUBLIC int dup3(int fd, int wanted, int flags)
{
    if (fd != wanted)
        forget(wanted);
    int copy = CALL(dup3)(fd, wanted, flags);
    copy_descriptor(fd, copy);
    return copy;
}

/* -- what is asked of paths and descriptors */

#define OF_PATH(name, kind, directory, how, parameters, arguments) \
    NEXT(name); \
    PUBLIC int name parameters \
    { \
        const char *asked = path; \
        path = SERVED(directory, path, how); \
        if (!is_ready()) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(kind, UNKNOWN_FILE); \
        int result = CALL(name) arguments; \
        note_path(directory, asked, kind, result, begin_ns, end_call()); \
        return result; \
    }
#define OF_DESCRIPTOR(name, kind, parameters, arguments) \
    NEXT(name); \
    PUBLIC int name parameters \
    { \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(kind, file); \
        int result = CALL(name) arguments; \
        note(file, kind, result, UNKNOWN_OFFSET, begin_ns, end_call()); \
        return result; \
    }

OF_PATH(stat, K_STAT, AT_FDCWD, LOOKS, (const char *path, struct stat *to), (path, to))
OF_PATH(stat64, K_STAT, AT_FDCWD, LOOKS, (const char *path, struct stat64 *to), (path, to))
OF_PATH(lstat, K_STAT, AT_FDCWD, ITSELF, (const char *path, struct stat *to), (path, to))
OF_PATH(lstat64, K_STAT, AT_FDCWD, ITSELF, (const char *path, struct stat64 *to), (path, to))
OF_PATH(fstatat, K_STAT, at, looking(flags), (int at, const char *path, struct stat *to, int flags), (at, path, to, flags))
OF_PATH(fstatat64, K_STAT, at, looking(flags), (int at, const char *path, struct stat64 *to, int flags), (at, path, to, flags))
OF_PATH(statx, K_STAT, at, looking(flags), (int at, const char *path, int flags, unsigned mask, struct statx *to), (at, path, flags, mask, to))
OF_DESCRIPTOR(fstat, K_STAT, (int fd, struct stat *to), (fd, to))
OF_DESCRIPTOR(fstat64, K_STAT, (int fd, struct stat64 *to), (fd, to))
#ifdef __GLIBC__
OF_PATH(__xstat, K_STAT, AT_FDCWD, LOOKS, (int version, const char *path, struct stat *to), (version, path, to))
OF_PATH(__xstat64, K_STAT, AT_FDCWD, LOOKS, (int version, const char *path, struct stat64 *to), (version, path, to))
OF_PATH(__lxstat, K_STAT, AT_FDCWD, ITSELF, (int version, const char *path, struct stat *to), (version, path, to))
OF_PATH(__lxstat64, K_STAT, AT_FDCWD, ITSELF, (int version, const char *path, struct stat64 *to), (version, path, to))
OF_PATH(__fxstatat, K_STAT, at, looking(flags), (int version, int at, const char *path, struct stat *to, int flags), (version, at, path, to, flags))
OF_PATH(__fxstatat64, K_STAT, at, looking(flags), (int version, int at, const char *path, struct stat64 *to, int flags), (version, at, path, to, flags))
OF_DESCRIPTOR(__fxstat, K_STAT, (int version, int fd, struct stat *to), (version, fd, to))
OF_DESCRIPTOR(__fxstat64, K_STAT, (int version, int fd, struct stat64 *to), (version, fd, to))
#endif
OF_PATH(access, K_ACCESS, AT_FDCWD, LOOKS, (const char *path, int mode), (path, mode))
OF_PATH(faccessat, K_ACCESS, at, looking(flags), (int at, const char *path, int mode, int flags), (at, path, mode, flags))
OF_PATH(unlink, K_UNLINK, AT_FDCWD, CHANGES | ITSELF, (const char *path), (path))
OF_PATH(remove, K_UNLINK, AT_FDCWD, CHANGES | ITSELF, (const char *path), (path))
OF_PATH(unlinkat, K_UNLINK, at, CHANGES | ITSELF, (int at, const char *path, int flags), (at, path, flags))
OF_PATH(rename, K_RENAME, AT_FDCWD, CHANGES | ITSELF, (const char *path, const char *to), (path, to))
OF_PATH(renameat, K_RENAME, at, CHANGES | ITSELF, (int at, const char *path, int to_at, const char *to), (at, path, to_at, to))
OF_PATH(renameat2, K_RENAME, at, CHANGES | ITSELF, (int at, const char *path, int to_at, const char *to, unsigned flags), (at, path, to_at, to, flags))
OF_PATH(truncate, K_TRUNCATE, AT_FDCWD, CHANGES, (const char *path, off_t length), (path, length))
OF_PATH(truncate64, K_TRUNCATE, AT_FDCWD, CHANGES, (const char *path, off64_t length), (path, length))
OF_DESCRIPTOR(ftruncate, K_TRUNCATE, (int fd, off_t length), (fd, length))
OF_DESCRIPTOR(ftruncate64, K_TRUNCATE, (int fd, off64_t length), (fd, length))
OF_DESCRIPTOR(fsync, K_FSYNC, (int fd), (fd))
OF_DESCRIPTOR(fdatasync, K_FSYNC, (int fd), (fd))

NEXT(chdir);
PUBLIC int chdir(const char *path)
{
    int result = CALL(chdir)(path);
    if (is_own())
        forget_directory();
    return result;
}

NEXT(fchdir);
PUBLIC int fchdir(int fd)
{
    int result = CALL(fchdir)(fd);
    if (is_own())
        forget_directory();
    return result;
}

/* libc walks trees by changing the directory where no function of ours stands before it. */
#define WALK(name, T) \
    int name(const char *, T, int, int); \
    NEXT(name); \
    PUBLIC int name(const char *path, T each, int most, int flags) \
    { \
        int own = is_own(); \
        if (own) \
            walk(1); \
        int result = CALL(name)(path, each, most, flags); \
        if (own) \
            walk(-1); \
        return result; \
    }
WALK(nftw, void *)
WALK(nftw64, void *)

#define STEP(name, T, parameters, arguments) \
    T name parameters; \
    NEXT(name); \
    PUBLIC T name parameters \
    { \
        T found = CALL(name) arguments; \
        if (is_own()) \
            forget_directory(); \
        return found; \
    }
STEP(fts_read, void *, (void *tree), (tree))
STEP(fts64_read, void *, (void *tree), (tree))
STEP(fts_children, void *, (void *tree, int how), (tree, how))
STEP(fts64_children, void *, (void *tree, int how), (tree, how))
STEP(fts_close, int, (void *tree), (tree))
STEP(fts64_close, int, (void *tree), (tree))

int login_tty(int);
NEXT(login_tty);
PUBLIC int login_tty(int terminal)
{
    int result = CALL(login_tty)(terminal);
    if (!result)
        forget_range(0, 2);
    return result;
}

/* -- directories */

NEXT(opendir);
PUBLIC DIR *opendir(const char *path)
{
    const char *from = SERVED(AT_FDCWD, path, OPENS);
    if (!is_ready())
        return CALL(opendir)(from);
    u64 begin_ns = begin_call(K_OPENDIR, UNKNOWN_FILE);
    DIR *stream = CALL(opendir)(from);
    u64 end_ns = end_call();
    note_open(AT_FDCWD, path, K_OPENDIR, stream ? dirfd(stream) : -1, 0, begin_ns, end_ns);
    return stream;
}

/* closedir(NULL) is an error, though its header tells the compiler that there is none such. */
static int descriptor_of(DIR *stream)
{
    __asm__("" : "+r"(stream));
    return stream ? dirfd(stream) : -1;
}

#define READDIR(name, entry) \
    NEXT(name); \
    PUBLIC struct entry *name(DIR *stream) \
    { \
        u32 file = file_of(descriptor_of(stream)); \
        if (file == IGNORED) \
            return CALL(name)(stream); \
        u64 begin_ns = begin_call(K_READDIR, file); \
        struct entry *found = CALL(name)(stream); \
        note(file, K_READDIR, 0, UNKNOWN_OFFSET, begin_ns, end_call()); \
        return found; \
    }
READDIR(readdir, dirent)
READDIR(readdir64, dirent64)

NEXT(closedir);
PUBLIC int closedir(DIR *stream)
{
    int fd = descriptor_of(stream);
    u32 file = file_of(fd);
    forget(fd);
    if (file == IGNORED)
        return CALL(closedir)(stream);
    u64 begin_ns = begin_call(K_CLOSE, file);
    int result = CALL(closedir)(stream);
    note(file, K_CLOSE, result, UNKNOWN_OFFSET, begin_ns, end_call());
    return result;
}

/* -- memory maps: what they read later, by page faults, is not seen here. An allocator that begins before this library
 * maps memory within dlsym: it is not looked up then. */

#define MAP(name, T) \
    NEXT(name); \
    PUBLIC void *name(void *where, size_t size, int protection, int flags, int fd, T offset) \
    { \
        if (RARELY(!next_##name)) { \
            long result = SYS(mmap, where, size, protection, flags, fd, offset); \
            if (result >= 0 || result < -4095) \
                return (void *)result; \
            errno = (int)-result; \
            return MAP_FAILED; \
        } \
        u32 file = fd < 0 || (flags & MAP_ANONYMOUS) ? IGNORED : file_of(fd); \
        if (file == IGNORED) \
            return CALL(name)(where, size, protection, flags, fd, offset); \
        u64 begin_ns = begin_call(K_MMAP, file); \
        void *result = CALL(name)(where, size, protection, flags, fd, offset); \
        u64 end_ns = end_call(); \
        note(file, K_MMAP, result == MAP_FAILED ? -1 : (long)size, (u64)offset, begin_ns, end_ns); \
        return result; \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)
