/* Count a call in its thread's row of its file, and add it to a burst. */
#include "recorder.h"

#include <string.h>
#include <sys/uio.h>

static const u64 LONGEST_BURST_NS = 1000000, LONGEST_GAP_NS = 50000, SLOW_NS = 100000;
enum { FIRST_CALLS = 4, SMALL_BYTES = 65536, MOST_SCATTERED = 4096 };
extern volatile u64 iotrace_border;

static struct row *row_at(u64 units)
{
    return (struct row *)(here.base + units * 16);
}

static void new_name(u32 file)
{
    u64 length = length_of(name_of(file), 2 * LONGEST_PATH) + 1;
    struct name *name = take(NAME, sizeof *name + length);
    if (!name) {
        write_name_later(file);
        return;
    }
    copy_bytes(name->text, name_of(file), length);
    name->length = (u32)length - 1;
    __atomic_store_n(&name->file, file, __ATOMIC_RELEASE);
}

static __attribute__((noinline)) struct row *new_row(u32 file, enum group group, u64 begin_ns)
{
    if (!me.rows && !begin_thread())
        return NULL;
    if (write_name(file))
        new_name(file);
    struct row *row = take(ROW, sizeof *row);
    if (!row)
        return NULL;
    row->group = (u16)group;
    row->slot = me.slot;
    row->first_ns = begin_ns;
    row->last_end = UNKNOWN_OFFSET;
    __atomic_store_n(&row->file, file, __ATOMIC_RELEASE);
    me.rows[file * GROUPS + group] = (u32)(((char *)row - here.base) / 16);
    return row;
}

static u32 room_of(const struct bursts *log)
{
    return (log->size - (u32)offsetof(struct bursts, of)) / (u32)sizeof(struct burst);
}

/* The first room of a thread is small: some programs start threads by the thousand. */
static struct bursts *new_log(void)
{
    enum { FIRST = 16 };
    u32 count = me.log ? 4 * room_of(me.log) : FIRST;
    if (count > BURSTS_EACH)
        count = BURSTS_EACH;
    struct bursts *log = take(BURSTS, offsetof(struct bursts, of) + count * sizeof(struct burst));
    if (log)
        log->tid = me.tid;
    return log;
}

static __attribute__((noinline)) struct burst *new_burst(struct row *row, u64 begin_ns)
{
    row->burst = 0;
    if (!me.log || me.log->used >= room_of(me.log)) {
        struct bursts *log = new_log();
        if (!log)
            return NULL;
        me.log = log;
    }
    struct burst *burst = &me.log->of[me.log->used];
    burst->file = row->file;
    burst->start_ns = begin_ns;
    row->border = (u32)iotrace_border;
    row->burst = (u64)((char *)burst - here.base);
    return burst;
}

/* Blocks of points, by file and number: a table of this process alone, as rows are of a thread. */
enum { MOST_BLOCKS = 1 << 16 };
static u32 *block_table, blocks_of; /* and of which generation it is */

static __attribute__((noinline)) void begin_blocks(void)
{
    lock_process();
    if (blocks_of != here.generation) {
        if (block_table && !here.frozen)
            SYS(munmap, block_table, MOST_BLOCKS * sizeof(u32));
        block_table = here.frozen ? NULL : map_private(MOST_BLOCKS * sizeof(u32));
        __atomic_store_n(&blocks_of, here.generation, __ATOMIC_RELEASE);
    }
    unlock_process();
}

static struct blocks *new_blocks(u32 file, u64 first)
{
    struct blocks *made = take(BLOCKS, sizeof *made);
    if (made) {
        made->first = first;
        __atomic_store_n(&made->file, file, __ATOMIC_RELEASE);
    }
    return made;
}

static struct blocks *blocks_at(u32 file, u64 first)
{
    if (RARELY(__atomic_load_n(&blocks_of, __ATOMIC_ACQUIRE) != here.generation))
        begin_blocks();
    if (!block_table)
        return NULL;
    u64 hash = (file * 0x9E3779B97F4A7C15ull) ^ (first / POINTS_EACH * 0xC2B2AE3D27D4EB4Full);
    for (u32 at = (u32)(hash >> 40), tries = 0; tries < 64; at++, tries++) {
        u32 *slot = &block_table[at & (MOST_BLOCKS - 1)];
        u32 units = __atomic_load_n(slot, __ATOMIC_ACQUIRE);
        if (!units) {
            struct blocks *made = new_blocks(file, first);
            if (!made)
                return NULL;
            u32 own = (u32)(((char *)made - here.base) / 16);
            if (__atomic_compare_exchange_n(slot, &units, own, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
                units = own; /* else another thread made one: readers join the two */
        }
        struct blocks *found = (struct blocks *)(here.base + (u64)units * 16);
        if (found->file == file && found->first == first)
            return found;
    }
    return NULL;
}

/* A sample of the bytes: the offsets that are multiples of 4096. Reads that lie side by side share none of them. */
static void count_points(struct row *row, u64 offset, u64 bytes)
{
    u64 point = (offset + (1 << POINT_SHIFT) - 1) >> POINT_SHIFT, end = ((offset + bytes - 1) >> POINT_SHIFT) + 1;
    while (point < end) {
        u64 first = point & ~(u64)(POINTS_EACH - 1);
        struct blocks *in = blocks_at(row->file, first);
        if (!in)
            return;
        u64 until = end < first + POINTS_EACH ? end : first + POINTS_EACH;
        while (point < until) {
            u64 bit = point - first, left = 64 - bit % 64, count = until - point < left ? until - point : left;
            u64 mask = (count == 64 ? ~0ull : (1ull << count) - 1) << bit % 64;
            u64 before = __atomic_fetch_or(&in->bits[bit / 64], mask, __ATOMIC_RELAXED);
            row->points += (u32)count;
            row->again += (u32)__builtin_popcountll(before & mask);
            point += count;
        }
    }
}

/* An open, what is asked of the file, its close: programs do that by the thousand, and their sum is what counts. */
static int is_quick(enum kind kind)
{
    return kind <= K_FSEEK && kind != K_MMAP;
}

/* Whether a burst of one kind goes on with a call of another. */
static int goes_with(u16 of_burst, enum kind kind)
{
    return of_burst == kind || (is_quick(kind) && (of_burst == K_SEVERAL || is_quick((enum kind)of_burst)));
}

/* Whether a read ends the burst before: it begins elsewhere, and not yet thousands of the thread's on the file did. */
static int is_apart(struct row *row, struct burst *burst, u64 offset)
{
    if (offset == UNKNOWN_OFFSET || (burst->flags & (NO_OFFSET | SCATTERED)) || burst->offset + burst->bytes == offset)
        return 0;
    if (row->scattered < MOST_SCATTERED) {
        row->scattered++;
        return 1;
    }
    burst->flags |= SCATTERED;
    return 0;
}

/* A process that only asks for files and closes what it was given is not worth a file: most of a shell script's. */
static int begins_recording(enum kind kind)
{
    return here.head || (kind != K_STAT && kind != K_ACCESS && kind != K_CLOSE && kind != K_FCLOSE && kind != K_LSEEK);
}

/* The burst that may go on; not that of a thread that left its rows to this one. */
static struct burst *burst_of(const struct row *row)
{
    u64 log = me.log ? (u64)((char *)me.log - here.base) : 0;
    return log && row->burst > log && row->burst - log < me.log->size ? (struct burst *)(here.base + row->burst) : NULL;
}

/* The thread is busy. */
static void count(u32 file, enum kind kind, long result, u64 offset, u64 begin_ns, u64 end_ns)
{
    enum group group = (enum group)(kind / PER_GROUP);
    u32 units = me.rows ? me.rows[file * GROUPS + group] : 0;
    struct row *row = units ? row_at(units) : NULL;
    u64 taken_ns = end_ns - begin_ns;
    int failed = result < 0;
    if (RARELY(!row)) {
        if (!begins_recording(kind))
            return;
        row = new_row(file, group, begin_ns);
        if (!row) {
            if (here.head)
                __atomic_fetch_add(&here.head->lost_calls, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    u64 gap_ns = begin_ns - row->last_ns;
    u32 made = ++row->calls[kind % PER_GROUP];
    row->in_call_ns += taken_ns;
    row->last_ns = end_ns;
    if (taken_ns > row->longest_ns)
        row->longest_ns = taken_ns;
    int bin = taken_ns <= 64 ? 0 : 58 - __builtin_clzll(taken_ns - 1);
    row->histogram[bin < BINS ? bin : BINS - 1]++;
    if (RARELY(failed)) {
        row->failed++;
    } else if (group != METADATA) {
        row->bytes += (u64)result;
        row->filled += result > 0;
        row->small += result > 0 && result < SMALL_BYTES;
        if (offset != UNKNOWN_OFFSET) {
            if (group == READING) { /* no exchange: of two threads at once either may come first */
                row->last_end = __atomic_load_n(&here.read_ends[file], __ATOMIC_RELAXED) - 1;
                __atomic_store_n(&here.read_ends[file], offset + (u64)result + 1, __ATOMIC_RELAXED);
            }
            if (row->last_end != UNKNOWN_OFFSET) {
                row->after_another++;
                row->sequential += offset == row->last_end;
            }
            row->last_end = offset + (u64)result;
            if (group == READING && result > 0 && row->scattered == MOST_SCATTERED) /* before, bursts tell the ranges */
                count_points(row, offset, (u64)result);
        }
    }
    int is_first = made <= FIRST_CALLS && !is_quick(kind);
    struct burst *burst = burst_of(row);
    if (!burst || !goes_with(burst->kind, kind) || gap_ns > LONGEST_GAP_NS || row->border != (u32)iotrace_border
        || end_ns - burst->start_ns > LONGEST_BURST_NS || taken_ns > SLOW_NS || is_first
        || (burst->flags & FAILED) != (failed ? FAILED : 0) || (group == READING && is_apart(row, burst, offset))) {
        burst = new_burst(row, begin_ns);
        if (!burst) {
            __atomic_fetch_add(&here.head->lost_bursts, 1, __ATOMIC_RELAXED);
            return;
        }
        burst->kind = (u16)kind;
        burst->flags = (u16)((failed ? FAILED : 0) | (offset == UNKNOWN_OFFSET ? NO_OFFSET : 0));
        burst->offset = offset;
        burst->in_call_ns = taken_ns;
        burst->length_ns = taken_ns > UINT32_MAX ? UINT32_MAX : (u32)taken_ns;
        burst->bytes = result > 0 ? (u64)result : 0;
        burst->calls = 1;
        __atomic_store_n(&me.log->used, me.log->used + 1, __ATOMIC_RELEASE);
        if (taken_ns > SLOW_NS || is_first)
            row->burst = 0;
        return;
    }
    if (burst->kind != kind)
        burst->kind = K_SEVERAL;
    burst->calls++;
    burst->in_call_ns += taken_ns;
    burst->length_ns = (u32)(end_ns - burst->start_ns);
    if (result > 0)
        burst->bytes += (u64)result;
}

/* A signal handler may have forked, and this may be the child. */
void note(u32 file, enum kind kind, long result, u64 offset, u64 begin_ns, u64 end_ns)
{
    if (RARELY(here.wiped->generation != me.generation) && !join_process())
        return;
    begin_busy();
    count(file, kind, result, offset, begin_ns, end_ns);
    end_busy();
}

/* A copy of a path that may be none: a plain read of it could raise SIGSEGV or SIGBUS. NULL: there is none. */
static const char *copy_of(const char *path)
{
    char *copy = here.frozen ? NULL : room_for_path();
    u64 first = 4096 - ((u64)path & 4095);
    struct iovec to = {copy, LONGEST_PATH};
    struct iovec from[2] = {{(void *)path, first}, {(char *)path + first, LONGEST_PATH - first}};
    long self = copy ? SYS(getpid) : 0, got = copy ? SYS(process_vm_readv, self, &to, 1, from, 2, 0) : 0;
    if (copy && (got == -ENOSYS || got == -EPERM)) /* emulators, containers: whether the kernel could read it now */
        return SYS(readlinkat, AT_FDCWD, path, copy, 1) == -EFAULT ? NULL : path;
    return got > 0 && length_of(copy, (u64)got) < (u64)got ? copy : NULL;
}

/* The path as it can be read now. The kernel read it at the call's begin: in a long call another thread may have given
 * its memory back, and a truncated file may be the one that holds it. A call that failed may not have looked at it. */
static const char *readable(const char *path, enum kind kind, int failed, u64 taken_ns)
{
    if ((u64)path < 4096)
        return failed ? NULL : "";
    int looked = !failed || errno == ENOENT || errno == ENOTDIR || errno == EEXIST;
    return looked && kind != K_TRUNCATE && taken_ns < LONGEST_GAP_NS ? path : copy_of(path);
}

void note_path(int directory, const char *path, enum kind kind, long result, u64 begin_ns, u64 end_ns)
{
    begin_busy();
    path = readable(path, kind, result < 0, end_ns - begin_ns);
    u32 file = path ? file_at(directory, path) : OTHERS;
    end_busy();
    if (file != IGNORED)
        note(file, kind, result < 0 ? -1 : 0, UNKNOWN_OFFSET, begin_ns, end_ns);
}

/* Whether a path stands for what a descriptor has open. */
static int names_descriptor(const char *path)
{
    if (*path != '/')
        return 0;
    if (begins_with(path, "/dev/fd/") || begins_with(path, "/dev/std"))
        return 1;
    if (begins_with(path, "/proc/"))
        for (path += 5; *path; path++)
            if (begins_with(path, "/fd/"))
                return 1;
    return 0;
}

void note_open(int directory, const char *path, enum kind kind, int descriptor, int flags, u64 begin_ns, u64 end_ns)
{
    begin_busy();
    path = readable(path, kind, descriptor < 0, end_ns - begin_ns);
    u32 file = path ? file_at(directory, path) : OTHERS;
    if (descriptor >= 0 && descriptor < MOST_DESCRIPTORS && here.of_descriptor) {
        int is_other = (flags & O_TMPFILE) == O_TMPFILE || !path || names_descriptor(path); /* the path is not the file's */
        u32 opened = is_other ? UNKNOWN_FILE : file;
        move_to(descriptor, flags & O_APPEND ? UNKNOWN_OFFSET : 0);
        __atomic_store_n(&here.of_descriptor[descriptor], opened, __ATOMIC_RELEASE);
    }
    end_busy();
    if (file != IGNORED)
        note(file, kind, descriptor < 0 ? -1 : 0, UNKNOWN_OFFSET, begin_ns, end_ns);
}
