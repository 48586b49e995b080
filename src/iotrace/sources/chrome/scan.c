/* The events of Chrome's trace JSON as rows. No header of Python's: `scan.py` calls it with ctypes, and what
 * it refuses is read in Python.
 *
 * `iotrace_scan` takes what is plain JSON and an event that needs no mending. Everything else is STATUS_ODD,
 * and the caller reads that event in its own, tolerant way.
 */
#include "scan.h"

typedef struct {
    int64_t rows, consumed, status, tracks;
} Found;

enum { MOST_PS_US = 1 << 30 }; /* as in event.py */
enum { MOST_DIGITS = 18 }; /* of any number below 2^62 */
enum { MOST_TRACKS = 4096, SLOTS = 4 * MOST_TRACKS };

/* The bytes of a short key as memory has them. */
#if defined __BYTE_ORDER__ && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "scan.py describes rows in the order of little-endian machines"
#endif
#define BYTES(a, b, c, d, e, f, g)                                                                       \
    ((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 | (uint64_t)(d) << 24 | (uint64_t)(e) << 32 | \
     (uint64_t)(f) << 40 | (uint64_t)(g) << 48)

static inline int key_of(const uint8_t *text, int64_t length, const uint8_t *end) {
    uint64_t bytes = 0;
    if (length > 7) return -1;
    if (end - text >= 8) {
        memcpy(&bytes, text, 8);
        bytes &= (UINT64_C(1) << 8 * length) - 1;
    } else {
        memcpy(&bytes, text, (size_t)length);
    }
    switch (bytes) {
    case BYTES('p', 'h', 0, 0, 0, 0, 0): return PH;
    case BYTES('p', 'i', 'd', 0, 0, 0, 0): return PID;
    case BYTES('t', 'i', 'd', 0, 0, 0, 0): return TID;
    case BYTES('t', 's', 0, 0, 0, 0, 0): return TS;
    case BYTES('d', 'u', 'r', 0, 0, 0, 0): return DUR;
    case BYTES('i', 'd', 0, 0, 0, 0, 0): return ID;
    case BYTES('b', 'p', 0, 0, 0, 0, 0): return BP;
    case BYTES('i', 'd', '2', 0, 0, 0, 0): return ID2;
    case BYTES('b', 'i', 'n', 'd', '_', 'i', 'd'): return BIND_ID;
    case BYTES('c', 'a', 't', 0, 0, 0, 0): return CAT;
    case BYTES('n', 'a', 'm', 'e', 0, 0, 0): return NAME;
    case BYTES('a', 'r', 'g', 's', 0, 0, 0): return ARGS;
    case BYTES('s', 0, 0, 0, 0, 0, 0): return SCOPE;
    }
    return -1;
}
#undef BYTES

/* A time in us, as ns, rounded half to even as Python does, and the ps that rounding took away.
 * ODD where it is no plain number of less than 143 years. */
static Verdict nanoseconds(const uint8_t *p, const uint8_t *stop, int64_t *result, int *rest_ps) {
    int negative = *p == '-';
    p += negative;
    int64_t whole = 0;
    const uint8_t *begin = p;
    while (p < stop && is_digit(*p)) {
        if (p - begin == 16) return ODD;
        whole = whole * 10 + (*p++ - '0');
    }
    if (p == begin || whole >= INT64_C(1) << 52) return ODD;
    int64_t ns = whole * 1000;
    int ps = 0;
    if (p < stop && *p == '.') {
        p++;
        if (stop - p >= 3) {
            if (!is_digit(p[0]) || !is_digit(p[1]) || !is_digit(p[2])) return ODD;
            ns += (p[0] - '0') * 100 + (p[1] - '0') * 10 + (p[2] - '0');
            p += 3;
        } else {
            for (int scale = 100; p < stop && is_digit(*p); scale /= 10) ns += (*p++ - '0') * scale;
        }
        if (p < stop && is_digit(*p)) {
            uint8_t next = *p++;
            int beyond = 0, scale = 10;
            ps = (next - '0') * 100;
            for (; p < stop && is_digit(*p); p++, scale /= 10) {
                ps += (*p - '0') * scale;
                beyond |= *p != '0';
            }
            int is_up = next > '5' || (next == '5' && (beyond || (ns & 1)));
            ns += is_up;
            ps -= is_up * 1000;
        }
    }
    if (p != stop) return ODD; /* an exponent, or a string */
    *result = negative ? -ns : ns;
    *rest_ps = whole < MOST_PS_US ? negative ? -ps : ps : 0;
    return FINE;
}

/* A time as torch writes it, with no or three decimals: `*at` is then behind it. Other numbers are left alone. */
static inline int read_usual_time(const uint8_t **at, const uint8_t *end, int64_t *ns) {
    const uint8_t *p = *at, *begin = p;
    int64_t whole = 0;
    if (end - p < 24 || *p == '0') return 0;
    for (; is_digit(*p) && p - begin < 16; p++) whole = whole * 10 + (*p - '0');
    if (p == begin || whole >= INT64_C(1) << 52) return 0;
    *ns = whole * 1000;
    if (*p == '.') {
        if (!is_digit(p[1]) || !is_digit(p[2]) || !is_digit(p[3])) return 0;
        *ns += (p[1] - '0') * 100 + (p[2] - '0') * 10 + (p[3] - '0');
        p += 4;
    }
    if (is_digit(*p) || *p == '.' || (*p | 0x20) == 'e') return 0;
    *at = p;
    return 1;
}

/* What a duration gets so that the end is rounded, not start and duration apart: see `carried` of event.py. */
static int carried(int64_t end_ns, int start_ps, int duration_ps) {
    int rest = start_ps + duration_ps;
    if (!start_ps || (rest > -500 && rest < 500)) return 0;
    if (rest == 500 || rest == -500) return end_ns & 1 ? rest / 500 : 0;
    return rest > 0 ? 1 : -1;
}

/* Numbers as they are, texts as the hexadecimal numbers that Perfetto takes them for. */
static int64_t identity(const uint8_t *p, const uint8_t *stop) {
    int base = 10;
    if (*p == '"') {
        p++, stop--, base = 16;
        if (stop - p > 2 && p[0] == '0' && (p[1] | 0x20) == 'x') p += 2;
    }
    if (p == stop || stop - p > 13) return ID_OTHER;
    int64_t number = 0;
    for (; p < stop; p++) {
        int digit = hex_digit(*p);
        if (digit < 0 || digit >= base) return ID_OTHER;
        number = number * base + digit;
    }
    return number;
}

static int is_name_of_track(const uint8_t *p, const uint8_t *stop) {
    if (*p == '"') return 1;
    if (stop - p > 18) return 0;
    p += *p == '-';
    for (; p < stop; p++)
        if (!is_digit(*p)) return 0;
    return 1;
}

/* Of the values of two keys, as they are written (FNV-1a). */
static uint32_t hash_of(const uint8_t *text, const Row *row, int one, int two) {
    uint32_t hash = 2166136261u;
    const int keys[] = {one, two};
    for (int k = 0; k < 2; k++) {
        for (int32_t i = row->value[keys[k]]; i < row->stop[keys[k]]; i++) hash = (hash ^ text[i]) * 16777619u;
        hash = (hash ^ 0xFF) * 16777619u;
    }
    return hash ^ hash >> 15;
}

/* The integer of an argument, also one in quotes; fractions are cut off. What is no integer, or not below 2^62,
 * leaves -1. */
static Verdict read_integer(const uint8_t **at, const uint8_t *end, int64_t *value) {
    const uint8_t *p = *at;
    *value = -1;
    if (p >= end) return CUT;
    if (is_digit(*p) && *p != '0' && end - p > MOST_DIGITS) { /* most are nothing but digits */
        int64_t plain = 0;
        for (; is_digit(*p) && p - *at < MOST_DIGITS; p++) plain = plain * 10 + (*p - '0');
        if (!is_digit(*p) && *p != '.' && (*p | 0x20) != 'e') {
            *value = plain;
            *at = p;
            return FINE;
        }
        p = *at;
    }
    int is_quoted = *p == '"';
    Verdict verdict = skip_value(at, end);
    if (verdict != FINE) return verdict;
    const uint8_t *stop = *at - is_quoted;
    p += is_quoted;
    int is_negative = p < stop && *p == '-';
    p += is_negative;
    const uint8_t *digits = p;
    uint64_t number = 0;
    for (; p < stop && is_digit(*p) && p - digits < 19; p++) number = number * 10 + (uint64_t)(*p - '0');
    if (p == digits || number >= UINT64_C(1) << 62) return FINE;
    if (p < stop && *p == '.' && !is_quoted)
        for (p++; p < stop && is_digit(*p);) p++;
    if (p == stop) *value = is_negative ? -(int64_t)number : (int64_t)number;
    return FINE;
}

static int integer_of(const uint8_t *key, int64_t length) {
#define IS(word, number) \
    if (!memcmp(key, word, sizeof word - 1)) return number
    switch (length) {
    case 4: IS("Addr", ADDRESS); break;
    case 5: IS("bytes", BYTES); IS("Bytes", MEMORY_BYTES); break;
    case 6: IS("stream", STREAM); IS("device", DEVICE); break;
    case 9: IS("Device Id", DEVICE_ID); break;
    case 10: IS("sycl queue", SYCL_QUEUE); break;
    case 11: IS("External id", EXTERNAL_ID); IS("correlation", CORRELATION); IS("external id", OLD_EXTERNAL_ID);
        IS("Device Type", DEVICE_TYPE); break;
    case 13: IS("Fwd thread id", FORWARD_THREAD); break;
    case 14: IS("Total Reserved", RESERVED); break;
    case 15: IS("Sequence number", SEQUENCE); IS("Total Allocated", ALLOCATED); break;
    }
    return -1;
#undef IS
}

static int text_of(const uint8_t *key, int64_t length) {
#define IS(word, number) \
    if (!memcmp(key, word, sizeof word - 1)) return number
    switch (length) {
    case 10: IS("Input Dims", INPUT_DIMS); IS("Input type", INPUT_TYPES); break;
    case 12: IS("warps per SM", WARPS_PER_SM); break;
    case 13: IS("blocks per SM", BLOCKS_PER_SM); break;
    case 25: IS("est. achieved occupancy %", OCCUPANCY); break;
    }
    return -1;
#undef IS
}

static int is_collective_name(const uint8_t *key, int64_t length) {
    return length == 15 && !memcmp(key, "Collective name", 15);
}

/* The value of `args`; what it lacks stays as it is. */
static __attribute__((noinline)) Verdict read_arguments(const uint8_t **at, const uint8_t *end, Arguments *arguments) {
    const uint8_t *p = *at;
    Verdict verdict;
    if (p < end && *p != '{') return skip_value(at, end);
    p = skip_space(p + 1, end);
    if (p < end && *p == '}') {
        *at = p + 1;
        return FINE;
    }
    for (;;) {
        const uint8_t *key = p + 1, *behind;
        if ((verdict = pass_key(&p, end, NULL, &behind)) != FINE) return verdict;
        int64_t length = behind - 1 - key;
        int known = integer_of(key, length);
        const uint8_t *value = p;
        verdict = known < 0 ? skip_value(&p, end) : read_integer(&p, end, &arguments->integers[known]);
        if (verdict != FINE) return verdict;
        if (known < 0 && (known = text_of(key, length)) >= 0) {
            arguments->texts[known] = value;
            arguments->text_stops[known] = p;
        }
        if (is_collective_name(key, length)) arguments->is_collective = *value != 'n'; /* null */
        p = skip_space(p, end);
        if (p >= end) return CUT;
        if (*p == '}') break;
        if (*p != ',') return ODD;
        p = skip_space(p + 1, end);
    }
    *at = p + 1;
    return FINE;
}

/* With a copy, that is what the row's offsets are in: `text` is then its begin. */
static inline __attribute__((always_inline)) Verdict read_event(
    const uint8_t *text, const uint8_t **at, const uint8_t *end, Row *row, Arguments *arguments, Copy *copy) {
#define OFFSET(p) (int32_t)(copy ? copy->to - text + ((p) - copy->from) : (p) - text)
    const uint8_t *p = *at;
    Verdict verdict;
    int has_start = 0, has_duration = 0; /* read in passing */
    memset(row, 0, sizeof *row);
    row->begin = OFFSET(p);
    if (*p != '{') return ODD;
    p = skip_gap(p + 1, end, copy);
    for (;;) {
        const uint8_t *key = p, *behind;
        int32_t key_at = OFFSET(key);
        if ((verdict = pass_key(&p, end, copy, &behind)) != FINE) return verdict;
        int known = key_of(key + 1, behind - key - 2, end);
        if (known < 0 && memchr(key, '\\', (size_t)(behind - key))) return ODD; /* it may spell a known one */
        int32_t value_at = OFFSET(p);
        if (known == TS || known == DUR) {
            int *is_read = known == TS ? &has_start : &has_duration;
            *is_read = read_usual_time(&p, end, known == TS ? &row->start_ns : &row->duration_ns);
            verdict = *is_read ? FINE : pass_value(&p, end, copy);
        } else if (known == ARGS && arguments) {
            verdict = read_arguments(&p, end, arguments);
        } else {
            verdict = pass_value(&p, end, copy);
        }
        if (verdict != FINE) return verdict;
        row->others |= known < 0 || known == ID2 || known == BIND_ID;
        if (known >= 0) {
            if (row->stop[known]) return ODD; /* twice: which one holds is the tolerant reader's to say */
            row->key[known] = key_at;
            row->value[known] = value_at;
            row->stop[known] = OFFSET(p);
        }
        p = skip_gap(p, end, copy);
        if (p >= end) return CUT;
        if (*p == '}') break;
        if (*p != ',') return ODD;
        p = skip_gap(p + 1, end, copy);
    }
    *at = p + 1;
    if (copy) copy_up_to(copy, p + 1, end);
    row->end = OFFSET(p + 1);
#undef OFFSET

    const uint8_t *phase = text + row->value[PH];
    if (row->stop[PH] - row->value[PH] != 3 || phase[0] != '"' || phase[1] <= 0x20 || phase[1] == '\\') return ODD;
    row->phase = phase[1];
    int start_ps = 0, duration_ps = 0;
    if (row->stop[TS]) {
        const uint8_t *value = text + row->value[TS];
        if (!has_start && nanoseconds(value, text + row->stop[TS], &row->start_ns, &start_ps) != FINE) return ODD;
    } else if (row->phase != 'M') {
        return ODD;
    }
    row->has_duration = row->stop[DUR] != 0;
    if (row->has_duration) {
        const uint8_t *value = text + row->value[DUR];
        const uint8_t *stop = text + row->stop[DUR];
        if (!has_duration && nanoseconds(value, stop, &row->duration_ns, &duration_ps) != FINE) return ODD;
        row->duration_ns += carried(row->start_ns + row->duration_ns, start_ps, duration_ps);
    }
    for (int known = PID; known <= TID; known++)
        if (row->stop[known] && !is_name_of_track(text + row->value[known], text + row->stop[known])) return ODD;
    for (int known = BP; known <= NAME; known++)
        if (known != ID2 && known != BIND_ID && row->stop[known] && text[row->value[known]] != '"') return ODD;
    if (row->stop[SCOPE]) {
        if (text[row->value[SCOPE]] != '"') return ODD;
        if (row->stop[SCOPE] - row->value[SCOPE] == 3) row->scope = text[row->value[SCOPE] + 1];
    }
    if (row->phase == 's' || row->phase == 't' || row->phase == 'f')
        row->family = (int32_t)hash_of(text, row, CAT, NAME);
    row->id = ID_ABSENT;
    if (row->stop[ID]) {
        if (text[row->value[ID]] != '"' && !is_name_of_track(text + row->value[ID], text + row->stop[ID])) return ODD;
        row->id = identity(text + row->value[ID], text + row->stop[ID]);
    }
    return FINE;
}

Verdict iotrace_read_event(const uint8_t *text, const uint8_t **at, const uint8_t *end, Row *row, Arguments *arguments) {
    return read_event(text, at, end, row, arguments, NULL);
}

static inline int same_token(const uint8_t *text, const Row *one, const Row *two, int key) {
    int32_t length = one->stop[key] - one->value[key];
    return length == two->stop[key] - two->value[key] &&
           !memcmp(text + one->value[key], text + two->value[key], (size_t)length);
}

static inline int same_track(const uint8_t *text, const Row *one, const Row *two) {
    return same_token(text, one, two, PID) && same_token(text, one, two, TID);
}

/* What Python asks before it trusts the rest: raised with every change of what the two sides share. */
int64_t iotrace_interface(void) { return 7; }

/* Rows for the whole events at the front of `text`, up to `capacity` of them, and in `copied`, which has room for all
 * of `text`, the events without the space between tokens: the rows' offsets are in there. `firsts` gets the row that a track
 * (a pid and a tid, as they are written) was first met in; there is room for MOST_TRACKS. */
void iotrace_scan(const uint8_t *text, int64_t length, Row *rows, int64_t capacity, int32_t *firsts, uint8_t *copied,
                  Found *found) {
    int32_t slots[SLOTS];
    memset(slots, 0xFF, sizeof slots);
    const uint8_t *p = text, *end = text + length;
    int64_t count = 0, tracks = 0;
    Copy copy;
    found->status = STATUS_FULL;
    while (count < capacity && tracks < MOST_TRACKS) {
        p = skip_between(p, end);
        found->status = STATUS_MORE;
        if (p >= end) break;
        if (*p == ']') {
            found->status = STATUS_END;
            break;
        }
        Row *row = rows + count;
        const uint8_t *after = p;
        copy.from = p;
        copy.to = copied + (count ? row[-1].end : 0);
        Verdict verdict = read_event(copied, &after, end, row, NULL, &copy);
        if (verdict != FINE) {
            found->status = verdict == CUT ? STATUS_MORE : STATUS_ODD;
            break;
        }
        if (count && same_track(copied, row, row - 1)) {
            row->track = row[-1].track;
        } else {
            uint32_t slot = hash_of(copied, row, PID, TID) % SLOTS;
            while (slots[slot] >= 0 && !same_track(copied, row, rows + firsts[slots[slot]])) slot = (slot + 1) % SLOTS;
            if (slots[slot] < 0) {
                firsts[tracks] = (int32_t)count;
                slots[slot] = (int32_t)tracks++;
            }
            row->track = slots[slot];
        }
        count++;
        p = after;
        found->status = STATUS_FULL;
    }
    found->rows = count;
    found->tracks = tracks;
    found->consumed = p - text;
}
