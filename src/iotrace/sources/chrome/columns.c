/* The columns of Kineto's events: times, numbers of strings, and the integers among the arguments. `scan.c` steps through
 * the text. `sources/kineto/columns.py` calls this; `sources/kineto/column_batch.py` does the same with
 * decoded events, and is what its meaning is measured by.
 */
#include "numbered_strings.h"
#include "scan.h"

enum { NAMES, CATEGORIES, THREADS, FLOW_CATEGORIES, DETAILS, TABLES };
enum { LONGEST_THREAD = 256, LONGEST_DETAILS = 2048, MOST_STRINGS = INT32_MAX - 1 };
enum { STATUS_NO_MEMORY = STATUS_FULL + 1 };

/* An event that lasted, an instant, or a begin or end. Numbers of strings count from 0; offsets are in the text. */
typedef struct {
    int64_t start_ns, duration_ns, integers[INTEGERS];
    int32_t thread, category, name, details, arguments, arguments_stop;
    uint8_t phase, is_collective;
} Event;

/* One end of a flow. `id` is a number, or a negative hash of what stands there instead. */
typedef struct {
    int64_t time_ns, id;
    int32_t thread, category;
    uint8_t phase;
} FlowEnd;

typedef struct {
    int32_t begin, end;
} Bounds;

typedef struct {
    Strings tables[TABLES];
} Tables;

typedef struct {
    int64_t events, flow_ends, metadata, consumed, status;
} Counts;

/* The number of a string, from 0; -1 without memory. What came last often comes again. */
static int32_t number(Strings *strings, int32_t last, const uint8_t *text, int64_t length) {
    if (last < strings->count) {
        int64_t known_length;
        const uint8_t *known = string_of(strings, last + 1, &known_length);
        if (known_length == length && !memcmp(known, text, (size_t)length)) return last;
    }
    return number_of(strings, MOST_STRINGS, text, length) - 1;
}

/* The number of a key's value as it is written, which is nothing where the event lacks the key. */
static int32_t number_of_value(Strings *strings, int32_t last, const uint8_t *text, const Row *row, int key) {
    return number(strings, last, text + row->value[key], row->stop[key] - row->value[key]);
}

/* A thread is known by its pid and tid, as they are written. */
static int32_t number_of_thread(Strings *strings, int32_t last, const uint8_t *text, const Row *row) {
    uint8_t key[LONGEST_THREAD];
    int64_t pid = row->stop[PID] - row->value[PID], tid = row->stop[TID] - row->value[TID];
    memcpy(key, text + row->value[PID], (size_t)pid);
    key[pid] = 0xFF; /* in no string that the scanner takes */
    memcpy(key + pid + 1, text + row->value[TID], (size_t)tid);
    return number(strings, last, key, pid + 1 + tid);
}

/* The arguments that are kept as they are written, behind each other; none where they are too long. */
static int32_t number_of_details(Strings *strings, int32_t last, const Arguments *arguments) {
    uint8_t key[LONGEST_DETAILS];
    int64_t length = 0, whole = TEXTS;
    for (int text = 0; text < TEXTS; text++)
        if (arguments->texts[text]) whole += arguments->text_stops[text] - arguments->texts[text];
    for (int text = 0; text < TEXTS && whole <= LONGEST_DETAILS; text++) {
        if (text) key[length++] = 0xFF; /* in no string that the scanner takes */
        if (!arguments->texts[text]) continue;
        int64_t own = arguments->text_stops[text] - arguments->texts[text];
        memcpy(key + length, arguments->texts[text], (size_t)own);
        length += own;
    }
    return number(strings, last, key, length);
}

static int thread_fits(const Row *row) {
    return (int64_t)(row->stop[PID] - row->value[PID]) + (row->stop[TID] - row->value[TID]) < LONGEST_THREAD;
}

/* FNV-1a, as `negative_hash` of decoded_columns.py. */
static int64_t negative_hash(const uint8_t *p, const uint8_t *stop) {
    uint64_t hash = UINT64_C(0xCBF29CE484222325);
    for (; p < stop; p++) hash = (hash ^ *p) * UINT64_C(0x100000001B3);
    return -1 - (int64_t)(hash >> 2);
}

Tables *iotrace_tables(void) { return calloc(1, sizeof(Tables)); }

void iotrace_tables_free(Tables *tables) {
    for (int table = 0; table < TABLES; table++) free_strings(&tables->tables[table]);
    free(tables);
}

/* How many strings a table holds; the strings themselves, and where each one ends in `bytes`. */
int64_t iotrace_table(const Tables *tables, int table, const uint8_t **bytes, const int64_t **stops) {
    *bytes = tables->tables[table].bytes;
    *stops = tables->tables[table].stops;
    return tables->tables[table].count;
}

/* The columns of the whole events at the front of `text`. There is room for `capacity` of each of the three kinds;
 * all others are only counted as consumed. */
void iotrace_columns(Tables *tables, const uint8_t *text, int64_t length, int64_t capacity, Event *events,
                     FlowEnd *flow_ends, Bounds *metadata, Counts *counts) {
    Strings *names = &tables->tables[NAMES], *categories = &tables->tables[CATEGORIES];
    Strings *details = &tables->tables[DETAILS];
    Strings *threads = &tables->tables[THREADS], *flow_categories = &tables->tables[FLOW_CATEGORIES];
    const uint8_t *p = text, *end = text + length;
    int32_t thread = 0, category = 0, name = 0, detail = 0, flow_category = 0;
    memset(counts, 0, sizeof *counts);
    for (;;) {
        if (counts->events == capacity || counts->flow_ends == capacity || counts->metadata == capacity) {
            counts->status = STATUS_FULL;
            break;
        }
        p = skip_between(p, end);
        if (p >= end || *p == ']') {
            counts->status = p >= end ? STATUS_MORE : STATUS_END;
            break;
        }
        Row row;
        Arguments arguments;
        memset(arguments.integers, 0xFF, sizeof arguments.integers);
        memset(arguments.texts, 0, sizeof arguments.texts);
        arguments.is_collective = 0;
        const uint8_t *after = p;
        Verdict verdict = iotrace_read_event(text, &after, end, &row, &arguments);
        if (verdict == FINE && !thread_fits(&row)) verdict = ODD;
        if (verdict != FINE) {
            counts->status = verdict == CUT ? STATUS_MORE : STATUS_ODD;
            break;
        }
        int is_made = 1;
        switch (row.phase) {
        case 'X': case 'i': case 'I': case 'B': case 'E': {
            Event *event = events + counts->events;
            thread = number_of_thread(threads, thread, text, &row);
            category = number_of_value(categories, category, text, &row, CAT);
            name = number_of_value(names, name, text, &row, NAME);
            detail = number_of_details(details, detail, &arguments);
            if (!(is_made = thread >= 0 && category >= 0 && name >= 0 && detail >= 0)) break;
            event->start_ns = row.start_ns;
            event->duration_ns = row.duration_ns;
            memcpy(event->integers, arguments.integers, sizeof event->integers);
            event->thread = thread;
            event->category = category;
            event->name = name;
            event->details = detail;
            event->arguments = row.value[ARGS];
            event->arguments_stop = row.stop[ARGS];
            event->phase = row.phase;
            event->is_collective = arguments.is_collective;
            counts->events++;
            break;
        }
        case 's': case 't': case 'f': {
            FlowEnd *flow_end = flow_ends + counts->flow_ends;
            thread = number_of_thread(threads, thread, text, &row);
            flow_category = number_of_value(flow_categories, flow_category, text, &row, CAT);
            if (!(is_made = thread >= 0 && flow_category >= 0)) break;
            flow_end->id = row.id >= 0 ? row.id : negative_hash(text + row.value[ID], text + row.stop[ID]);
            flow_end->time_ns = row.start_ns;
            flow_end->thread = thread;
            flow_end->category = flow_category;
            flow_end->phase = row.phase;
            counts->flow_ends++;
            break;
        }
        case 'M':
            metadata[counts->metadata].begin = row.begin;
            metadata[counts->metadata].end = row.end;
            counts->metadata++;
            break;
        }
        if (!is_made) {
            counts->status = STATUS_NO_MEMORY;
            break;
        }
        p = after;
    }
    counts->consumed = p - text;
}
