/* Data that a trial replaces: who looks at a file or a store finds its copy instead. Nothing is replaced unless the
 * variable names a table, which iotrace writes (trying/copied.py).
 *
 * A file is known by device, inode, size and time of change, whatever its path is called: one that is not what was copied
 * is left alone. A store is known by its directory, found by its name in the path: a copy has entries that it lacks. Who
 * writes to either writes to the original, which from then on is no longer replaced. The table is shared by all processes:
 * each says in it what it was given. */
#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static const char VARIABLE[] = "IOTRACE_SERVED", SERVED_MAGIC[8] = "IOSERVE1";

/* Offsets are those of texts in the table that end with a zero; `name` is a store's alone. */
struct served { u64 device, inode, size, changed_ns, name, target, hits, written; };
struct served_head { char magic[8]; u64 files, stores, unused[5]; }; /* the files by their inodes, then the stores */

int serving;
static struct served *entries;
static u64 files, stores;
static char *texts;

static int is_sound(u64 bytes)
{
    const struct served_head *head = (const struct served_head *)texts;
    if (bytes < sizeof *head || memcmp(head->magic, SERVED_MAGIC, sizeof head->magic) || texts[bytes - 1])
        return 0;
    u64 most = (bytes - sizeof *head) / sizeof *entries;
    if (head->files > most || head->stores > most - head->files)
        return 0;
    entries = (struct served *)(texts + sizeof *head);
    files = head->files;
    stores = head->stores;
    for (u64 at = 0; at < files + stores; at++)
        if (entries[at].target >= bytes || entries[at].name >= bytes)
            return 0;
    return files + stores > 0;
}

void begin_serving(void)
{
    const char *path = getenv(VARIABLE);
    struct stat status;
    if (!path || !*path || is_confined())
        return;
    long table = SYS(openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (table < 0)
        return;
    if (!SYS(fstat, table, &status) && S_ISREG(status.st_mode) && status.st_size > 0) {
        long base = SYS(mmap, NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, table, 0);
        if (base > 0) {
            texts = (char *)base;
            serving = is_sound((u64)status.st_size);
        }
    }
    SYS(close, table);
}

static u64 changed_ns(const struct stat *status)
{
    return (u64)status->st_mtim.tv_sec * 1000000000u + (u64)status->st_mtim.tv_nsec;
}

static struct served *find_file(const struct stat *status)
{
    u64 low = 0, high = files;
    while (low < high) {
        u64 middle = (low + high) / 2;
        if (entries[middle].inode < status->st_ino)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < files && entries[low].inode == status->st_ino; low++)
        if (entries[low].device == status->st_dev)
            return &entries[low];
    return NULL;
}

/* Whether the copy is given; of an original that is written to from now on it never is. */
static int is_given(struct served *of, int how)
{
    if (how & CHANGES) {
        __atomic_store_n(&of->written, 1, __ATOMIC_RELAXED);
        return 0;
    }
    if (__atomic_load_n(&of->written, __ATOMIC_RELAXED))
        return 0;
    if (how & OPENS)
        __atomic_fetch_add(&of->hits, 1, __ATOMIC_RELAXED);
    return 1;
}

static int climbs(const char *rest)
{
    for (; *rest; rest++)
        if (rest[0] == '/' && rest[1] == '.' && rest[2] == '.' && (rest[3] == '/' || !rest[3]))
            return 1;
    return 0;
}

/* The store whose directory the first `length` bytes of the path name, by the last `named` of them. */
static struct served *store_at(int directory, const char *path, u64 length, u64 named, char *room)
{
    struct stat status;
    for (u64 at = files; at < files + stores; at++) {
        if (!is_same(texts + entries[at].name, path + length - named, named))
            continue;
        copy_bytes(room, path, length);
        room[length] = 0;
        if (!SYS(newfstatat, directory, room, &status, 0) && status.st_ino == entries[at].inode
            && status.st_dev == entries[at].device)
            return &entries[at];
    }
    return NULL;
}

static const char *in_store(int directory, const char *path, int how, char *room)
{
    u64 whole = length_of(path, LONGEST_PATH);
    for (u64 start = 0, end; start < whole && whole < LONGEST_PATH; start = end + 1) {
        for (end = start; end < whole && path[end] != '/'; end++)
            ;
        struct served *found = end > start ? store_at(directory, path, end, end - start, room) : NULL;
        if (!found)
            continue;
        const char *target = texts + found->target, *rest = path + end;
        u64 length = length_of(target, LONGEST_PATH);
        if (climbs(rest) || length + (whole - end) >= LONGEST_PATH || !is_given(found, how))
            return path;
        copy_bytes(room, target, length);
        copy_bytes(room + length, rest, whole - end);
        room[length + (whole - end)] = 0;
        return room;
    }
    return path;
}

/* The path to pass on: that of a copy, perhaps in `room` for LONGEST_PATH bytes, or the one that was asked for. */
const char *serve(int directory, const char *path, int how, char *room)
{
    struct stat status;
    long failed = SYS(newfstatat, directory, path, &status, how & ITSELF ? AT_SYMLINK_NOFOLLOW : 0);
    if (failed && failed != -ENOENT && failed != -ENOTDIR) /* also where the path cannot be read */
        return path;
    if (!failed && S_ISREG(status.st_mode)) {
        struct served *found = find_file(&status);
        if (found) {
            int is_copied = (u64)status.st_size == found->size && changed_ns(&status) == found->changed_ns;
            return is_copied && is_given(found, how) ? texts + found->target : path;
        }
    }
    return stores ? in_store(directory, path, how, room) : path;
}
