/* Rows of events in JSON, and steps through its text: what `scan.c` shares with the columns and the writers. */
#ifndef IOTRACE_SCAN_H
#define IOTRACE_SCAN_H
#include "json.h"

/* In the order of `scan.py`. The first ones are written anew, the others are only found. */
enum { PH, PID, TID, TS, DUR, ID, BP, ID2, BIND_ID, CAT, NAME, ARGS, SCOPE, KEYS };
enum { REWRITTEN = BIND_ID + 1 };

/* `family` distinguishes flows that have one id: a hash of their category and name.
 * `others`: the event has keys that are none of these, or `id2` or `bind_id`.
 * `key`, `value` and `stop` are offsets in the text: of a key's quote, its value, and behind that. 0: absent. */
typedef struct {
    int64_t start_ns, duration_ns, id;
    int32_t begin, end, track, family;
    uint8_t phase, scope, has_duration, others;
    int32_t key[KEYS], value[KEYS], stop[KEYS];
} Row;

enum { STATUS_MORE, STATUS_END, STATUS_ODD, STATUS_FULL };
enum { ID_ABSENT = -1, ID_OTHER = -2 };

/* The integers in an event's `args` that figures are made of, in the order of `kineto/column_batch.py`. */
enum {
    CORRELATION, STREAM, DEVICE, EXTERNAL_ID, SEQUENCE, FORWARD_THREAD, BYTES, OLD_EXTERNAL_ID,
    MEMORY_BYTES, ALLOCATED, RESERVED, DEVICE_TYPE, DEVICE_ID, ADDRESS, SYCL_QUEUE, INTEGERS
};
/* Arguments that are kept as they are written, in the order of `kineto/column_batch.py`. */
enum { INPUT_DIMS, INPUT_TYPES, BLOCKS_PER_SM, WARPS_PER_SM, OCCUPANCY, TEXTS };

typedef struct {
    int64_t integers[INTEGERS]; /* -1: absent, or no integer */
    const uint8_t *texts[TEXTS], *text_stops[TEXTS]; /* NULL: absent */
    uint8_t is_collective;
} Arguments;

/* What may stand between two events. */
static inline const uint8_t *skip_between(const uint8_t *p, const uint8_t *end) {
    while (p < end && (is_space(*p) || *p == ',' || *p == 0)) p++;
    return p;
}

/* One event, from its brace. `arguments` may be NULL; of them, what the event lacks stays as it is. */
Verdict iotrace_read_event(const uint8_t *text, const uint8_t **at, const uint8_t *end, Row *row, Arguments *arguments);

#endif
