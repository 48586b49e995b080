/* Events as Perfetto's packets: the two loops of native output. `iotrace_bodies` makes what is inside of a
 * TrackEvent from the rows of `scan.c`, `iotrace_packets` the packets, in order of time, from the rows of the spill.
 * `track_event.py` does the same as the first, byte for byte, and does what is refused here.
 */
#include "scan.h"
#include "numbered_strings.h"

enum { SLICE, FLOW, FLOW_NEXT, BEGIN, END, INSTANT };          /* kinds of rows, as in spill.py */
enum { UNBOUND = -1, STACKED = 1 << 20, NEXT = 1 << 21 }; /* lanes, as in lanes.py */

enum { NAMES, CATEGORIES, LABELS, STRINGS };

typedef struct {
    Strings kinds[STRINGS];
    int32_t most;
} Interned;

Interned *iotrace_interned(int32_t most) {
    Interned *made = calloc(1, sizeof *made);
    if (made) made->most = most;
    return made;
}

void iotrace_interned_free(Interned *interned) {
    for (int kind = 0; kind < STRINGS; kind++) free_strings(&interned->kinds[kind]);
    free(interned);
}

int32_t iotrace_number(Interned *interned, int kind, const uint8_t *text, int64_t length) {
    return number_of(&interned->kinds[kind], interned->most, text, length);
}

/* The string of a number; NULL behind the last one. */
const uint8_t *iotrace_string(const Interned *interned, int kind, int32_t number, int64_t *length) {
    const Strings *strings = &interned->kinds[kind];
    return number <= strings->count ? string_of(strings, number, length) : NULL;
}

/* Protobuf's wire format, as in protobuf.py. */

static uint8_t *write_varint(uint8_t *out, uint64_t number) {
    for (; number > 127; number >>= 7) *out++ = (uint8_t)(number | 128);
    *out++ = (uint8_t)number;
    return out;
}

static int varint_size(uint64_t number) {
    int size = 1;
    while (number >>= 7) size++;
    return size;
}

/* Puts the length before what was written behind `begin`, where one byte was left for it. */
static uint8_t *write_length(uint8_t *out, uint8_t *begin) {
    uint64_t length = (uint64_t)(out - begin - 1);
    int more = varint_size(length) - 1;
    if (more) memmove(begin + 1 + more, begin + 1, length);
    write_varint(begin, length);
    return out + more;
}

static uint8_t *write_unicode(uint8_t *out, unsigned code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else { /* halves of pairs were refused by the scanner */
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* The characters of a string that the scanner took, from behind its opening quote; `*at` is then behind the closing
 * one. Raw control characters become spaces. */
static uint8_t *write_string(uint8_t *out, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    for (;;) {
        const uint8_t *plain = p;
        p = skip_plain(p, end);
        memcpy(out, plain, (size_t)(p - plain));
        out += p - plain;
        if (*p == '"') break;
        if (*p >= 0x80) {
            *out++ = *p++;
        } else if (*p < 0x20) {
            *out++ = ' ';
            p++;
        } else if (p[1] == 'u') {
            unsigned code = 0;
            for (int i = 2; i < 6; i++) code = code * 16 + (unsigned)hex_digit(p[i]);
            out = write_unicode(out, code);
            p += 6;
        } else {
            static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
            const char *found = strchr(from, p[1]);
            *out++ = found ? (uint8_t)to[found - from] : p[1];
            p += 2;
        }
    }
    *at = p + 1;
    return out;
}

/* Fields of DebugAnnotation and TrackEvent: number << 3 | type. */
enum {
    LABEL_NUMBER = 1 << 3,
    BOOL = 2 << 3,
    INTEGER = 4 << 3,
    DOUBLE = 5 << 3 | 1,
    TEXT = 6 << 3 | 2,
    LABEL = 10 << 3 | 2,
    ENTRY = 11 << 3 | 2,
    ITEM = 12 << 3 | 2,
    ANNOTATION = 4 << 3 | 2,
    NAME_NUMBER = 10 << 3,
    CATEGORY_NUMBER = 3 << 3,
    LEGACY = 6 << 3 | 2,
};
enum { NAME_TEXT = 23 << 3 | 2, CATEGORY_TEXT = 22 << 3 | 2 };
enum { MOST_DIGITS = 18, EXACT_DIGITS = 15, EXACT_POWER = 22, MOST_ENTRIES = 64 };

static uint8_t *write_double(uint8_t *out, double value) {
    *out++ = DOUBLE;
    memcpy(out, &value, 8);
    return out + 8;
}

/* A number that the scanner took: an integer where it has neither point nor exponent. */
static uint8_t *write_number(uint8_t *out, const uint8_t **at) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const uint8_t *begin = *at, *p = begin;
    int negative = *p == '-', digits = 0, power = 0;
    uint64_t number = 0;
    p += negative;
    for (; is_digit(*p); p++) {
        digits += digits || *p != '0';
        if (digits <= MOST_DIGITS) number = number * 10 + (uint64_t)(*p - '0');
    }
    if (*p != '.' && (*p | 0x20) != 'e') {
        if (digits > MOST_DIGITS) return NULL;
        *at = p;
        *out++ = INTEGER;
        return write_varint(out, negative ? 0 - number : number);
    }
    if (*p == '.')
        for (p++; is_digit(*p); p++, power--) {
            digits += digits || *p != '0';
            if (digits <= MOST_DIGITS) number = number * 10 + (uint64_t)(*p - '0');
        }
    if ((*p | 0x20) == 'e') {
        int down = *++p == '-', exponent = 0;
        p += *p == '-' || *p == '+';
        for (; is_digit(*p); p++) exponent = exponent * 10 + (*p - '0'); /* of two digits at most */
        power += down ? -exponent : exponent;
    }
    *at = p;
    double value;
    if (digits <= EXACT_DIGITS && power >= -EXACT_POWER && power <= EXACT_POWER) {
        /* Both are doubles without an error, so that one rounding is left, as it should be. */
        value = power < 0 ? (double)number / powers[-power] : (double)number * powers[power];
        if (negative) value = -value;
    } else {
        char *stop;
        value = strtod((const char *)begin, &stop);
        if ((const uint8_t *)stop != p) return NULL; /* a locale with another point */
    }
    return write_double(out, value);
}

/* Whether the hash is new, which it notes; not, too, where there is no room for it. */
static int is_new(uint64_t *seen, int *count, uint64_t hash) {
    if (*count == MOST_ENTRIES) return 0;
    for (int i = 0; i < *count; i++)
        if (seen[i] == hash) return 0;
    seen[(*count)++] = hash;
    return 1;
}

/* A value, from its first byte, as fields of a DebugAnnotation; NULL where it is refused. */
static uint8_t *write_value(uint8_t *out, const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    switch (*p) {
    case 't':
    case 'f':
        *out++ = BOOL;
        *out++ = *p == 't';
        *at = p + (*p == 't' ? 4 : 5);
        return out;
    case 'n': /* within an array: others are left out */
        *at = p + 4;
        memcpy(out, "\x32\x04null", 6);
        return out + 6;
    case '"': {
        *out++ = TEXT;
        uint8_t *begin = out++;
        *at = p + 1;
        return write_length(write_string(out, at, end), begin);
    }
    case '[':
        for (p = skip_space(p + 1, end); *p != ']'; p = skip_space(p + (*p == ','), end)) {
            *out++ = ITEM;
            uint8_t *begin = out++;
            if (!(out = write_value(out, &p, end))) return NULL;
            out = write_length(out, begin);
            p = skip_space(p, end);
        }
        *at = p + 1;
        return out;
    case '{': {
        uint64_t seen[MOST_ENTRIES];
        int count = 0;
        for (p = skip_space(p + 1, end); *p != '}'; p = skip_space(p + (*p == ','), end)) {
            uint8_t *undone = out;
            *out++ = ENTRY;
            uint8_t *begin = out++;
            *out++ = LABEL;
            uint8_t *label = out++;
            p++;
            out = write_string(out, &p, end);
            if (!is_new(seen, &count, hash_of(label + 1, out - label - 1))) return NULL;
            out = write_length(out, label);
            p = skip_space(skip_space(p, end) + 1, end);
            if (*p == 'n') {
                out = undone;
                p += 4;
            } else {
                if (!(out = write_value(out, &p, end))) return NULL;
                out = write_length(out, begin);
            }
            p = skip_space(p, end);
        }
        *at = p + 1;
        return out;
    }
    default:
        return write_number(out, at);
    }
}

static uint8_t *write_label(uint8_t *out, Interned *interned, const uint8_t *text, int64_t length) {
    int32_t number = number_of(&interned->kinds[LABELS], interned->most, text, length);
    if (number) {
        *out++ = LABEL_NUMBER;
        return write_varint(out, (uint64_t)number);
    }
    *out++ = LABEL;
    out = write_varint(out, (uint64_t)length);
    memmove(out, text, (size_t)length);
    return out + length;
}

/* The arguments as annotations, one for each key of the object. */
static uint8_t *write_arguments(uint8_t *out, Interned *interned, const uint8_t *p, const uint8_t *end) {
    uint64_t seen[MOST_ENTRIES];
    int count = 0;
    for (p = skip_space(p + 1, end); *p != '}'; p = skip_space(p + (*p == ','), end)) {
        uint8_t *begin = out + 1;
        /* The key's characters stand where its number will, or behind the room for their own length. */
        uint8_t *key = begin + 1 + 1 + 10;
        p++;
        int64_t length = write_string(key, &p, end) - key;
        if (!is_new(seen, &count, hash_of(key, length))) return NULL;
        p = skip_space(skip_space(p, end) + 1, end);
        if (*p == 'n') {
            p += 4;
        } else {
            *out = ANNOTATION;
            out = write_label(begin + 1, interned, key, length);
            if (!(out = write_value(out, &p, end))) return NULL;
            out = write_length(out, begin);
        }
        p = skip_space(p, end);
    }
    return out;
}

/* One annotation of a key of ours. */
static uint8_t *write_own(uint8_t *out, Interned *interned, const char *key, const uint8_t *p, const uint8_t *end) {
    *out++ = ANNOTATION;
    uint8_t *begin = out++;
    out = write_label(out, interned, (const uint8_t *)key, (int64_t)strlen(key));
    if (!(out = write_value(out, &p, end))) return NULL;
    return write_length(out, begin);
}

/* A name, by its number or, where there are too many, as a text. `at`: of its opening quote; NULL for none. */
static uint8_t *write_name(uint8_t *out, Interned *interned, int kind, const uint8_t *at, const uint8_t *end) {
    uint8_t *text = out + 2 + 10;
    int64_t length = 0;
    if (at) {
        at++;
        length = write_string(text, &at, end) - text;
    }
    if (kind == CATEGORIES && !length) return out;
    int32_t number = number_of(&interned->kinds[kind], interned->most, text, length);
    if (number) {
        *out++ = kind == NAMES ? NAME_NUMBER : CATEGORY_NUMBER;
        return write_varint(out, (uint64_t)number);
    }
    out = write_varint(out, kind == NAMES ? NAME_TEXT : CATEGORY_TEXT);
    out = write_varint(out, (uint64_t)length);
    memmove(out, text, (size_t)length);
    return out + length;
}

/* The phase and the id of a flow, as Perfetto has them from Chrome. */
static uint8_t *write_legacy(uint8_t *out, const uint8_t *text, const Row *row, int64_t id) {
    *out++ = LEGACY;
    uint8_t *begin = out++;
    *out++ = 2 << 3;
    out = write_varint(out, row->phase);
    if (id >= 0) {
        *out++ = 6 << 3;
        out = write_varint(out, (uint64_t)id);
    }
    int to_enclosing = row->stop[BP] - row->value[BP] == 3 && text[row->value[BP] + 1] == 'e';
    if (to_enclosing || row->phase == 't' || row->phase == 'f') {
        *out++ = 12 << 3;
        *out++ = 1;
    }
    return write_length(out, begin);
}

static uint8_t *write_body(uint8_t *out, Interned *interned, const uint8_t *text, const Row *row, int kind, int64_t id) {
    const uint8_t *end = text + row->end;
    /* An end without a name ends what began last. */
    if (kind != END || row->stop[NAME] - row->value[NAME] > 2)
        out = write_name(out, interned, NAMES, row->stop[NAME] ? text + row->value[NAME] : NULL, end);
    out = write_name(out, interned, CATEGORIES, row->stop[CAT] ? text + row->value[CAT] : NULL, end);
    if (row->stop[ARGS]) {
        const uint8_t *args = text + row->value[ARGS];
        out = *args == '{' ? write_arguments(out, interned, args, end) : write_own(out, interned, "args", args, end);
        if (!out) return NULL;
    }
    if (row->phase == 'X' && row->stop[ID]) {
        out = write_own(out, interned, "id", text + row->value[ID], end);
        if (!out) return NULL;
    }
    return kind == FLOW || kind == FLOW_NEXT ? write_legacy(out, text, row, id) : out;
}

/* What is inside of the TrackEvents of rows, from `first` on, one behind another; `kinds` and `ids` by row. Returns
 * the row that it stopped at: `count`, or one that is refused. `out` has to hold 6 times the rows' text and 96 bytes
 * for each; `*written` says how much that became. */
int64_t iotrace_bodies(Interned *interned, const uint8_t *text, const Row *rows, int64_t first, int64_t count,
                       const int32_t *kinds, const int64_t *ids, int32_t *sizes, uint8_t *out, int64_t *written) {
    uint8_t *begin = out;
    int64_t i = first;
    for (; i < count; i++) {
        if (kinds[i] > INSTANT || rows[i].others) break;
        uint8_t *after = write_body(out, interned, text, rows + i, kinds[i], ids[i]);
        if (!after) break;
        sizes[i] = (int32_t)(after - out);
        out = after;
    }
    *written = out - begin;
    return i;
}

typedef struct {
    int64_t start, end, ordinal;
    int32_t kind, size;
} Placed; /* a row of the spill */

typedef struct {
    int64_t start, end;
} Open;

/* The open slices of a lane, the outermost first. */
typedef struct {
    Open *open;
    int64_t depth, room;
} Lane;

typedef struct {
    Lane *lanes;
    int64_t count;
} Thread;

enum { TYPE_BEGIN = 1, TYPE_END, TYPE_INSTANT };
enum { STAMP_BYTES = 9, FRAME_BYTES = 64 }; /* a packet without its body, and without the sequence */

typedef struct {
    const uint8_t *sequence;
    int64_t sequence_bytes;
    const int64_t *tracks; /* by lane */
    int64_t stacked;       /* the track of begin and end events */
    uint8_t *out;
    const uint8_t *out_end;
} Writer;

static int has_room(const Writer *writer, int64_t size) {
    return writer->out_end - writer->out >= size + writer->sequence_bytes + FRAME_BYTES;
}

/* A TracePacket with a TrackEvent; type 0 leaves the phase to the body. */
static void write_packet(Writer *writer, int64_t time, int type, int64_t lane, const uint8_t *body, int64_t size) {
    uint64_t track = (uint64_t)(lane == STACKED ? writer->stacked : writer->tracks[lane]);
    uint64_t inner = (uint64_t)((type ? 2 : 0) + 1 + varint_size(track) + size);
    uint64_t whole = 1 + STAMP_BYTES + (uint64_t)writer->sequence_bytes + 1 + (uint64_t)varint_size(inner) + inner;
    uint8_t *out = writer->out;
    *out++ = 1 << 3 | 2;
    out = write_varint(out, whole);
    *out++ = 8 << 3;
    /* Always of one width: padding is legal, and one width is simple to read. */
    for (int shift = 0; shift < 7 * STAMP_BYTES; shift += 7) *out++ = (uint8_t)((uint64_t)time >> shift | 128);
    out[-1] &= 127;
    memcpy(out, writer->sequence, (size_t)writer->sequence_bytes);
    out += writer->sequence_bytes;
    *out++ = 11 << 3 | 2;
    out = write_varint(out, inner);
    if (type) {
        *out++ = 9 << 3;
        *out++ = (uint8_t)type;
    }
    *out++ = 11 << 3;
    out = write_varint(out, track);
    if (size) memcpy(out, body, (size_t)size);
    writer->out = out + size;
}

/* Ends the innermost slice; 0 where there is no room. */
static int write_end(Writer *writer, Lane *lane, int64_t number) {
    if (!has_room(writer, 0)) return 0;
    write_packet(writer, lane->open[--lane->depth].end, TYPE_END, number, NULL, 0);
    return 1;
}

static int push(Lane *lane, int64_t start, int64_t end) {
    if (lane->depth == lane->room) {
        int64_t room = 2 * lane->room + 16;
        Open *open = realloc(lane->open, (size_t)room * sizeof *open);
        if (!open) return 0;
        lane->open = open;
        lane->room = room;
    }
    lane->open[lane->depth++] = (Open){start, end};
    return 1;
}

static Lane *lane_of(Thread *thread, int64_t number) {
    if (number >= thread->count) {
        Lane *lanes = realloc(thread->lanes, (size_t)(number + 1) * sizeof *lanes);
        if (!lanes) return NULL;
        memset(lanes + thread->count, 0, (size_t)(number + 1 - thread->count) * sizeof *lanes);
        thread->lanes = lanes;
        thread->count = number + 1;
    }
    return thread->lanes + number;
}

/* A flow's body without its phase: LegacyEvent is its last field. */
static int64_t without_legacy(const uint8_t *body, int64_t size) {
    for (int64_t at = size - 2; at > 0; at--)
        if (body[at] == LEGACY && at + 2 + body[at + 1] == size) return at;
    return size;
}

Thread *iotrace_thread(void) { return calloc(1, sizeof(Thread)); }

void iotrace_thread_free(Thread *thread) {
    for (int64_t i = 0; i < thread->count; i++) free(thread->lanes[i].open);
    free(thread->lanes);
    free(thread);
}

/* Packets of one thread's rows, in order, from `first` on, with the ends of slices where they are due; `placed` holds
 * their lanes, `tracks` the track of each lane. Returns the row that it stopped at, because of a full `out` where that
 * is not `count`, or -1 without memory. `*written` says how much of `out` was filled. */
int64_t iotrace_packets(Thread *thread, const Placed *rows, const int32_t *placed, int64_t first, int64_t count,
                        const int64_t *tracks, int64_t stacked, const uint8_t *bodies, const uint8_t *sequence,
                        int64_t sequence_bytes, int delete_unbound, uint8_t *out, int64_t out_bytes,
                        int64_t *written) {
    Writer writer = {sequence, sequence_bytes, tracks, stacked, out, out + out_bytes};
    Lane stack = {NULL, 0, 0}; /* begin and end events need none */
    int64_t i = first;
    for (; i < count; i++) {
        const Placed *row = rows + i;
        const uint8_t *body = bodies + row->ordinal;
        int to_next = placed[i] != UNBOUND && placed[i] & NEXT;
        int64_t number = placed[i] == UNBOUND ? 0 : placed[i] & ~NEXT;
        Lane *lane = number == STACKED ? &stack : lane_of(thread, number);
        if (!lane) return -1;
        if (placed[i] == UNBOUND) {
            if (delete_unbound) continue;
            if (!has_room(&writer, row->size)) break;
            write_packet(&writer, row->start, TYPE_INSTANT, 0, body, without_legacy(body, row->size));
            continue;
        }
        static const int types[] = {TYPE_BEGIN, 0, 0, TYPE_BEGIN, TYPE_END, TYPE_INSTANT};
        int is_shown = row->kind == SLICE || row->kind == INSTANT, full = 0;
        for (; lane->depth && !full; full = !write_end(&writer, lane, number)) {
            Open *inner = lane->open + lane->depth - 1;
            /* Slices of no length at one instant nest, as in Perfetto's import of JSON. A flow may end where
             * its slice ends: that one is still to be open. */
            if (is_shown ? inner->end > row->start || inner->start >= row->start : inner->end >= row->start) break;
        }
        if (full || !has_room(&writer, row->size)) break;
        if (row->kind == SLICE && !push(lane, row->start, row->end)) return -1;
        write_packet(&writer, row->start, types[row->kind], number, body, row->size);
        if (to_next && row->size) writer.out[-1] = 0; /* that it binds the slice around it: written last */
    }
    *written = writer.out - out;
    return i;
}

/* The ends of all that is open; returns whether that is all, and not only what `out` holds. */
int iotrace_close(Thread *thread, const int64_t *tracks, const uint8_t *sequence, int64_t sequence_bytes, uint8_t *out,
                  int64_t out_bytes, int64_t *written) {
    Writer writer = {sequence, sequence_bytes, tracks, 0, out, out + out_bytes};
    int done = 1;
    for (int64_t number = 0; number < thread->count && done; number++)
        while (thread->lanes[number].depth && done) done = write_end(&writer, thread->lanes + number, number);
    *written = writer.out - out;
    return done;
}
