/* Names of files by number, which paths are recorded, and what descriptors stand for. */
#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char SKIP_VARIABLE[] = "IOTRACE_POSIX_SKIP", ONLY_VARIABLE[] = "IOTRACE_POSIX_ONLY";

struct prefix { const char *text; u64 length; };
struct prefixes { struct prefix *of; u32 count; };
static struct prefixes skipped, only;

/* Slots of hash << 32 | file. A name is looked for in a bucket, one cache line, and where that is full in the table, by
 * open addressing: a process of few files touches few pages. */
enum { BUCKETS = 1 << 11, PER_BUCKET = 8, MOST_TRIES = 1 << 10 };
static u64 *buckets, *table;
static char **names;
static u32 *written;         /* the generation of the process that wrote the name into its file */
static u32 files = FIRST_FILE;
static char *arena;
static u64 arena_used, arena_bytes, tables_bytes;
enum { BYTES_PER_NAME = 256 };
static char *cwd[2];         /* by turns: a reader may have the other */
static u64 cwd_length[2];
static int cwd_at, cwd_known, walks; /* nftw changes the directory by itself while it calls the program */

static struct prefixes split(const char *value)
{
    struct prefixes found = {NULL, 0};
    u64 length = value ? strlen(value) : 0, most = 1;
    if (!length)
        return found;
    for (const char *at = value; *at; at++)
        most += *at == ':';
    char *room = map_private(most * sizeof(struct prefix) + length + 1);
    if (!room)
        return found;
    char *text = memcpy(room + most * sizeof(struct prefix), value, length + 1);
    found.of = (struct prefix *)room;
    while (*text) {
        char *end = text + strcspn(text, ":");
        int last = !*end;
        u64 kept = (u64)(end - text);
        *end = 0;
        while (kept > 1 && text[kept - 1] == '/')
            text[--kept] = 0;
        if (kept)
            found.of[found.count++] = (struct prefix){text, kept};
        text = end + !last;
    }
    return found;
}

void begin_files(void)
{
    skipped = split(getenv(SKIP_VARIABLE));
    only = split(getenv(ONLY_VARIABLE));
}

/* Make the tables, when the first file is named: most processes of a shell script name none. */
int begin_tables(void)
{
    u64 descriptors = (u64)MOST_DESCRIPTORS * (sizeof(u64) + sizeof(u32)), most = here.most_files;
    lock_process();
    if (!here.of_descriptor && !here.frozen) {
        tables_bytes = descriptors + most * (sizeof(char *) + sizeof(u32) + 2 * sizeof(u64))
            + BUCKETS * PER_BUCKET * sizeof(u64) + 2 * LONGEST_PATH;
        char *room = map_private(tables_bytes);
        arena_bytes = most * BYTES_PER_NAME;
        here.read_ends = room ? map_private(most * sizeof(u64)) : NULL;
        arena = here.read_ends ? map_private(arena_bytes) : NULL;
        if (arena) {
            names = (char **)(room + descriptors);
            buckets = (u64 *)(names + most);
            table = buckets + BUCKETS * PER_BUCKET;
            written = (u32 *)(table + 2 * most);
            cwd[0] = (char *)(written + most);
            cwd[1] = cwd[0] + LONGEST_PATH;
            here.positions = (u64 *)room;
            __atomic_store_n(&here.of_descriptor, (u32 *)(here.positions + MOST_DESCRIPTORS), __ATOMIC_RELEASE);
        } else {
            here.on = 0;
        }
    }
    unlock_process();
    return here.on && here.of_descriptor;
}

const char *name_of(u32 file)
{
    return file >= FIRST_FILE ? names[file] : NULL;
}

/* Whether this process has yet to write the file's name; it is the caller's to do so. */
u32 write_name(u32 file)
{
    return file >= FIRST_FILE && __atomic_exchange_n(&written[file], here.generation, __ATOMIC_RELAXED) != here.generation;
}

/* It could not: whoever comes next tries again. */
void write_name_later(u32 file)
{
    written[file] = 0;
}

/* Give back what names do not need yet. The process is locked. */
void shrink_names(void)
{
    u64 kept = (__atomic_load_n(&arena_used, __ATOMIC_RELAXED) + (2 << 20)) & ~(u64)((1 << 20) - 1);
    if (arena && kept < arena_bytes) {
        SYS(munmap, arena + kept, arena_bytes - kept);
        __atomic_store_n(&arena_bytes, kept, __ATOMIC_RELAXED);
    }
}

/* The program locked all memory: not ours, whose tables are sparse. */
void unlock_names(void)
{
    if (!here.of_descriptor)
        return;
    SYS(munlock, here.positions, tables_bytes);
    SYS(munlock, here.read_ends, here.most_files * sizeof(u64));
    SYS(munlock, arena, arena_bytes);
}

static int lies_below(const struct prefixes *prefixes, const char *path)
{
    for (u32 index = 0; index < prefixes->count; index++) {
        const struct prefix *prefix = &prefixes->of[index];
        if (prefix->length == 1)
            return 1;
        if (path[1] == prefix->text[1] && begins_with(path, prefix->text)
            && (path[prefix->length] == '/' || !path[prefix->length]))
            return 1;
    }
    return 0;
}

/* A number and a copy of the name. No lock: a fork, a signal handler or the program's end may come at any moment. */
static u32 new_name(const char *path, u64 length)
{
    if (__atomic_load_n(&files, __ATOMIC_RELAXED) >= here.most_files)
        return OTHERS;
    u64 at = __atomic_fetch_add(&arena_used, length + 1, __ATOMIC_RELAXED);
    if (at + length + sizeof(u64) > __atomic_load_n(&arena_bytes, __ATOMIC_RELAXED)) {
        __atomic_fetch_sub(&arena_used, length + 1, __ATOMIC_RELAXED);
        return OTHERS;
    }
    u32 file = __atomic_fetch_add(&files, 1, __ATOMIC_RELAXED);
    if (file >= here.most_files)
        return OTHERS;
    names[file] = arena + at;
    copy_bytes(names[file], path, length);
    names[file][length] = 0;
    return file;
}

static u32 hash_of(const char *path, u64 length)
{
    u64 hash = length;
    for (; length >= sizeof(u64); path += sizeof(u64), length -= sizeof(u64)) {
        hash = (hash ^ word_at(path)) * 0x9E3779B97F4A7C15ull;
        hash ^= hash >> 32;
    }
    for (; length; length--)
        hash = (hash ^ (unsigned char)*path++) * 1099511628211ull;
    return (u32)(hash * 0x9E3779B97F4A7C15ull >> 32); /* the high bits: the low ones know little of a last word */
}

/* The file whose entry is in the slot, or a new one of this name, for which `made` is kept; 0: it is another's. */
static u32 file_in(u64 *slot, u32 hash, const char *path, u64 length, u32 *made)
{
    u64 entry = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
    if (!entry) {
        if (!*made)
            *made = new_name(path, length);
        if (*made == OTHERS
            || __atomic_compare_exchange_n(slot, &entry, (u64)hash << 32 | *made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return *made;
    }
    return entry >> 32 == hash && is_same(names[(u32)entry], path, length) ? (u32)entry : 0; /* another thread may be faster */
}

static u32 find_number(const char *path, u64 length)
{
    if (lies_below(&skipped, path) || (only.count && !lies_below(&only, path)))
        return IGNORED;
    u32 hash = hash_of(path, length), mask = 2 * here.most_files - 1, made = 0, file;
    u64 *bucket = &buckets[(hash & (BUCKETS - 1)) * PER_BUCKET];
    for (u32 at = 0; at < PER_BUCKET; at++)
        if ((file = file_in(&bucket[at], hash, path, length, &made)))
            return file;
    for (u32 at = hash >> 8, tries = 0; tries < MOST_TRIES; at++, tries++)
        if ((file = file_in(&table[at & mask], hash, path, length, &made)))
            return file;
    return OTHERS;
}

/* Where the number of a path is if it was asked for not long ago: programs ask for few paths again and again. */
static u32 *recent_of(const char *path, u64 length)
{
    static u32 recent[1 << 8];
    u64 last = length < sizeof(u64) ? length : word_at(path + length - sizeof(u64));
    return &recent[(last ^ length << 56) * 0x9E3779B97F4A7C15ull >> 56];
}

/* The number of an absolute path. */
static u32 number(const char *path, u64 length)
{
    for (; path[0] == '/' && path[1] == '/'; path++)
        length--;
    u32 *recent = recent_of(path, length), found = __atomic_load_n(recent, __ATOMIC_ACQUIRE);
    if (found && is_same(names[found], path, length))
        return found;
    found = find_number(path, length);
    if (found >= FIRST_FILE)
        __atomic_store_n(recent, found, __ATOMIC_RELEASE);
    return found;
}

void forget_directory(void)
{
    __atomic_store_n(&cwd_known, 0, __ATOMIC_RELEASE);
}

void walk(int more)
{
    __atomic_fetch_add(&walks, more, __ATOMIC_RELAXED);
    forget_directory();
}

static const char *current_directory(u64 *length)
{
    if (!__atomic_load_n(&cwd_known, __ATOMIC_ACQUIRE) || RARELY(walks)) {
        if (here.frozen)
            return NULL;
        lock_process();
        int other = !cwd_at;
        long found = SYS(getcwd, cwd[other], LONGEST_PATH);
        if (found > 1 && cwd[other][0] == '/') {
            cwd_length[other] = (u64)found - 1;
            cwd_at = other;
            __atomic_store_n(&cwd_known, 1, __ATOMIC_RELEASE);
        }
        unlock_process();
        if (found <= 1)
            return NULL;
    }
    *length = cwd_length[cwd_at];
    return cwd[cwd_at];
}

static void append_digits(char *to, u32 number)
{
    char digits[12], *at = digits + sizeof digits - 1;
    *at = 0;
    do
        *--at = (char)('0' + number % 10);
    while (number /= 10);
    copy_bytes(to, at, (u64)(digits + sizeof digits - at));
}

/* What a descriptor stands for that was not opened before our eyes: inherited, duplicated, received. */
static u32 find_descriptor(int descriptor)
{
    struct stat status;
    char link[32] = "/proc/self/fd/";
    u32 file = IGNORED, none = UNKNOWN_FILE;
    if (here.frozen || SYS(fstat, descriptor, &status))
        return IGNORED;
    if ((S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) && (me.rows || begin_thread())) {
        append_digits(link + length_of(link, sizeof link), (u32)descriptor);
        long length = SYS(readlinkat, AT_FDCWD, link, me.scratch, LONGEST_PATH);
        if (length > 0 && length < LONGEST_PATH && me.scratch[0] == '/') {
            me.scratch[length] = 0;
            file = number(me.scratch, (u64)length);
        }
        long position = S_ISREG(status.st_mode) ? SYS(lseek, descriptor, 0, SEEK_CUR) : -1;
        move_to(descriptor, position < 0 ? UNKNOWN_OFFSET : (u64)position);
    }
    if (!__atomic_compare_exchange_n(&here.of_descriptor[descriptor], &none, file, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return none; /* another thread opened or duplicated another file there */
    return file;
}

void know_directory(void)
{
    u64 length;
    current_directory(&length);
}

static u32 directory_at(int directory)
{
    u32 file = (unsigned)directory < MOST_DESCRIPTORS ? here.of_descriptor[directory] : OTHERS;
    return file == UNKNOWN_FILE ? find_descriptor(directory) : file;
}

/* The number of the file that `path`, which can be read, names seen from `directory`. The thread is busy. */
u32 file_at(int directory, const char *path)
{
    u64 length = 0, own = length_of(path, LONGEST_PATH);
    const char *start = NULL;
    if (!here.of_descriptor && !begin_tables())
        return IGNORED;
    if (own == LONGEST_PATH)
        return OTHERS;
    if (*path == '/')
        return number(path, own);
    if (!own) /* AT_EMPTY_PATH */
        return directory == AT_FDCWD ? OTHERS : directory_at(directory);
    if (!me.rows && !begin_thread())
        return IGNORED;
    if (directory == AT_FDCWD) {
        start = current_directory(&length);
    } else {
        u32 file = directory_at(directory);
        if (file == IGNORED)
            return IGNORED;
        start = name_of(file);
        length = start ? length_of(start, LONGEST_PATH) : 0;
    }
    if (!start || length >= LONGEST_PATH)
        return OTHERS;
    while (path[0] == '.' && path[1] == '/')
        for (path += 2, own -= 2; *path == '/'; path++)
            own--;
    copy_bytes(me.scratch, start, length);
    if (own && !(path[0] == '.' && !path[1])) {
        me.scratch[length++] = '/';
        copy_bytes(me.scratch + length, path, own);
        length += own;
    }
    me.scratch[length] = 0;
    return number(me.scratch, length);
}

u32 look_up(int descriptor)
{
    begin_busy();
    u32 file = here.of_descriptor || begin_tables() ? find_descriptor(descriptor) : IGNORED;
    end_busy();
    return file;
}
