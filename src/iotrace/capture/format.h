/* The file that the recorder maps, one for each process: `posix/<pid>-<start hex>-<node>.io`. docs/session-format.md
 * describes it. iotrace/sources/recorder/layout.py reads it whole, iotrace/session/recorded.py while it grows. All
 * numbers are little-endian; times are CLOCK_MONOTONIC in ns. The file is a head and then records, each of which begins
 * with its type and its size in bytes (multiples of 16). A record whose type is 0 is not whole yet: readers stop there
 * only where the size is 0, too. */
#ifndef IOTRACE_FORMAT_H
#define IOTRACE_FORMAT_H

#include <stdint.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;

#define MAGIC "IOTPOSX1"
enum { HEAD_BYTES = 256, NODE_BYTES = 64 };
enum { NAME = 1, ROW = 2, BURSTS = 3, THREAD = 4, BLOCKS = 5 };

/* Kinds of calls: 16 in each group. Their names are in `KINDS` of iotrace/session/names.py, in this order. */
enum group { METADATA, READING, WRITING, GROUPS };
enum kind {
    K_OPEN = 0, K_CLOSE, K_LSEEK, K_STAT, K_ACCESS, K_MMAP, K_OPENDIR, K_READDIR,
    K_FOPEN, K_FCLOSE, K_FSEEK, K_FSYNC, K_RENAME, K_UNLINK, K_TRUNCATE, K_SEVERAL, /* of a burst alone: of the kinds before it that are quick */
    K_READ = 16, K_PREAD, K_READV, K_PREADV, K_FREAD, K_FGETS, K_GETLINE, K_SENDFILE, K_COPY_FROM,
    K_WRITE = 32, K_PWRITE, K_WRITEV, K_PWRITEV, K_FWRITE, K_FPUTS, K_COPY_TO,
    KINDS = 48
};

struct head {
    char magic[8];
    u64 used_bytes, pid, start_ns, start_realtime_ns;
    u64 lost_calls;  /* of which nothing is known but that they were made; without those of vfork's children */
    u64 lost_bursts; /* calls that stand in rows alone */
    u64 end_ns;      /* 0: the process did not end by exit() */
    char node[NODE_BYTES];
    u64 refused_children; /* forked children of which nothing is known: they could have no file of their own */
};

struct name { u32 type, size, file, length; char text[]; };

struct thread { u32 type, size, slot, tid; u32 kind, file; u64 since_ns; /* of the call that it is in; 0: in none */ };

/* What one thread (a slot: a thread that ended gives it on) did with one file. */
enum { BINS = 24, PER_GROUP = 16 };
struct row {
    u32 type, size, file;
    u16 group, slot;
    u64 bytes, in_call_ns, longest_ns, first_ns, last_ns;
    u64 last_end; /* offset behind the last bytes that moved; of reading the process's last */
    u32 calls[PER_GROUP];
    u32 failed, filled, small, sequential, after_another;
    u32 points, again; /* offsets that are multiples of 4096 and were read; those that had been read before */
    u32 border;        /* the agent's, when the burst began */
    u32 histogram[BINS]; /* calls by length: bin b holds those of 64 << b ns and less; the last all longer ones */
    u64 burst;         /* offset in the file of the burst that may go on; 0: none */
    u32 scattered;     /* bursts that ended as a read began elsewhere than the one before ended; 4096 at most */
    u32 unused;
};

/* Consecutive calls of one thread, kind and file: at most 1 ms, without a gap above 50 us, within borders of the agent.
 * Those of an open, its stat, seeks and close are one burst, too. */
struct burst { u64 start_ns, in_call_ns, bytes, offset; u32 length_ns, calls, file; u16 kind, flags; };
enum { FAILED = 1, NO_OFFSET = 2, SCATTERED = 4 }; /* the last: its reads are not one range */
enum { BURSTS_EACH = 340 };
struct bursts { u32 type, size, used, tid; struct burst of[BURSTS_EACH]; }; /* or fewer: its size tells */

/* Which multiples of 4096 of a file were read: 4096 of them from `first` on. */
enum { POINT_SHIFT = 12, POINTS_EACH = 4096 };
struct blocks { u32 type, size, file, unused; u64 first; u64 bits[POINTS_EACH / 64]; };

#endif
