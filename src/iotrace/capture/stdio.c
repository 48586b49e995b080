/* C's buffered files. The library's own reads inside them cannot be seen: what is delivered to the program counts. */
#include "recorder.h"

#include <stdio.h>
#include <string.h>

#undef fread_unlocked
#undef fwrite_unlocked
#undef fgets_unlocked
#undef fputs_unlocked
#ifdef __GLIBC__
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);
char *__fgets_chk(char *, size_t, int, FILE *);
ssize_t __getdelim(char **, size_t *, int, FILE *);
#endif

static int descriptor_of(FILE *stream)
{
    int error = errno, descriptor = stream ? fileno_unlocked(stream) : -1;
    errno = error; /* a stream in memory has none */
    return descriptor;
}

static void note_moved(int fd, u32 file, enum kind kind, size_t bytes, u64 begin_ns, u64 end_ns)
{
    u64 position = position_of(fd);
    if (position != UNKNOWN_OFFSET)
        move_to(fd, position + bytes);
    note(file, kind, (long)bytes, position, begin_ns, end_ns);
}

static int opening_by(const char *mode)
{
    return mode[0] != 'r' || strchr(mode, '+') ? CHANGES : OPENS;
}

#define FOPEN(name) \
    NEXT(name); \
    PUBLIC FILE *name(const char *path, const char *mode) \
    { \
        const char *from = SERVED(AT_FDCWD, path, opening_by(mode)); \
        if (!is_ready()) \
            return CALL(name)(from, mode); \
        u64 begin_ns = begin_call(K_FOPEN, UNKNOWN_FILE); \
        FILE *stream = CALL(name)(from, mode); \
        u64 end_ns = end_call(); \
        int flags = stream && mode[0] == 'a' ? O_APPEND : 0; \
        note_open(AT_FDCWD, path, K_FOPEN, descriptor_of(stream), flags, begin_ns, end_ns); \
        return stream; \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define FREOPEN(name) \
    NEXT(name); \
    PUBLIC FILE *name(const char *path, const char *mode, FILE *old) \
    { \
        const char *from = path ? SERVED(AT_FDCWD, path, opening_by(mode)) : path; \
        if (!is_ready()) \
            return CALL(name)(from, mode, old); \
        forget(descriptor_of(old)); \
        u64 begin_ns = begin_call(K_FOPEN, UNKNOWN_FILE); \
        FILE *stream = CALL(name)(from, mode, old); \
        u64 end_ns = end_call(); \
        if (path) \
            note_open(AT_FDCWD, path, K_FOPEN, descriptor_of(stream), mode[0] == 'a' ? O_APPEND : 0, begin_ns, end_ns); \
        return stream; \
    }
FREOPEN(freopen)
FREOPEN(freopen64)

NEXT(fclose);
PUBLIC int fclose(FILE *stream)
{
    int fd = descriptor_of(stream);
    u32 file = file_of(fd);
    forget(fd);
    if (file == IGNORED)
        return CALL(fclose)(stream);
    u64 begin_ns = begin_call(K_FCLOSE, file);
    int result = CALL(fclose)(stream);
    note(file, K_FCLOSE, result, UNKNOWN_OFFSET, begin_ns, end_call());
    return result;
}

/* Streams whose descriptors libc itself opens or closes. */
#define OPENED_INSIDE(name, parameters, arguments) \
    NEXT(name); \
    PUBLIC FILE *name parameters \
    { \
        FILE *stream = CALL(name) arguments; \
        if (stream) \
            forget(descriptor_of(stream)); \
        return stream; \
    }
OPENED_INSIDE(popen, (const char *command, const char *mode), (command, mode))
OPENED_INSIDE(tmpfile, (void), ())
OPENED_INSIDE(tmpfile64, (void), ())

NEXT(pclose);
PUBLIC int pclose(FILE *stream)
{
    forget(descriptor_of(stream));
    return CALL(pclose)(stream);
}

#define BLOCKS_OF(name, kind, parameters, arguments) \
    NEXT(name); \
    PUBLIC size_t name parameters \
    { \
        int fd = descriptor_of(stream); \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(kind, file); \
        size_t result = CALL(name) arguments; \
        u64 end_ns = end_call(); \
        note_moved(fd, file, kind, result * size, begin_ns, end_ns); \
        return result; \
    }
BLOCKS_OF(fread, K_FREAD, (void *data, size_t size, size_t count, FILE *stream), (data, size, count, stream))
BLOCKS_OF(fread_unlocked, K_FREAD, (void *data, size_t size, size_t count, FILE *stream), (data, size, count, stream))
BLOCKS_OF(fwrite, K_FWRITE, (const void *data, size_t size, size_t count, FILE *stream), (data, size, count, stream))
BLOCKS_OF(fwrite_unlocked, K_FWRITE, (const void *data, size_t size, size_t count, FILE *stream), (data, size, count, stream))
#ifdef __GLIBC__
BLOCKS_OF(__fread_chk, K_FREAD, (void *data, size_t room, size_t size, size_t count, FILE *stream), (data, room, size, count, stream))
BLOCKS_OF(__fread_unlocked_chk, K_FREAD, (void *data, size_t room, size_t size, size_t count, FILE *stream), (data, room, size, count, stream))
#endif

/* A line may hold zeros: what strlen finds of it is at least there. */
#define LINE_OF(name, parameters, arguments) \
    NEXT(name); \
    PUBLIC char *name parameters \
    { \
        int fd = descriptor_of(stream); \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(K_FGETS, file); \
        char *line = CALL(name) arguments; \
        u64 end_ns = end_call(); \
        note_moved(fd, file, K_FGETS, line ? strlen(line) : 0, begin_ns, end_ns); \
        return line; \
    }
LINE_OF(fgets, (char *to, int size, FILE *stream), (to, size, stream))
LINE_OF(fgets_unlocked, (char *to, int size, FILE *stream), (to, size, stream))
#ifdef __GLIBC__
LINE_OF(__fgets_chk, (char *to, size_t room, int size, FILE *stream), (to, room, size, stream))
#endif

#define DELIMITED(name, parameters, arguments) \
    NEXT(name); \
    PUBLIC ssize_t name parameters \
    { \
        int fd = descriptor_of(stream); \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name) arguments; \
        u64 begin_ns = begin_call(K_GETLINE, file); \
        ssize_t result = CALL(name) arguments; \
        u64 end_ns = end_call(); \
        note_moved(fd, file, K_GETLINE, result > 0 ? (size_t)result : 0, begin_ns, end_ns); \
        return result; \
    }
DELIMITED(getline, (char **line, size_t *room, FILE *stream), (line, room, stream))
DELIMITED(getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream))
#ifdef __GLIBC__
DELIMITED(__getdelim, (char **line, size_t *room, int end, FILE *stream), (line, room, end, stream))
#endif

#define PUT(name) \
    NEXT(name); \
    PUBLIC int name(const char *text, FILE *stream) \
    { \
        int fd = descriptor_of(stream); \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name)(text, stream); \
        u64 begin_ns = begin_call(K_FPUTS, file); \
        int result = CALL(name)(text, stream); \
        u64 end_ns = end_call(); \
        note_moved(fd, file, K_FPUTS, result < 0 ? 0 : strlen(text), begin_ns, end_ns); \
        return result; \
    }
PUT(fputs)
PUT(fputs_unlocked)

#define FSEEK(name, T) \
    NEXT(name); \
    PUBLIC int name(FILE *stream, T offset, int whence) \
    { \
        int fd = descriptor_of(stream); \
        u32 file = file_of(fd); \
        if (file == IGNORED) \
            return CALL(name)(stream, offset, whence); \
        u64 begin_ns = begin_call(K_FSEEK, file); \
        int result = CALL(name)(stream, offset, whence); \
        u64 end_ns = end_call(); \
        if (!result) \
            move_to(fd, whence == SEEK_SET ? (u64)offset : UNKNOWN_OFFSET); \
        note(file, K_FSEEK, result, UNKNOWN_OFFSET, begin_ns, end_ns); \
        return result; \
    }
FSEEK(fseek, long)
FSEEK(fseeko, off_t)
FSEEK(fseeko64, off64_t)

NEXT(rewind);
PUBLIC void rewind(FILE *stream)
{
    int fd = descriptor_of(stream);
    u32 file = file_of(fd);
    CALL(rewind)(stream);
    if (file != IGNORED)
        move_to(fd, 0);
}
