/* Rows of `scan.c` as lines of Chrome's trace JSON, with new times, numbers and ids. */
#include "scan.h"

static inline uint8_t *write_bytes(uint8_t *out, const char *text, size_t length) {
    memcpy(out, text, length);
    return out + length;
}
#define WRITE(out, text) write_bytes(out, text, sizeof text - 1)

static uint8_t *write_integer(uint8_t *out, int64_t number) {
    static const char pairs[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748"
                                "495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596"
                                "979899";
    char digits[40];
    int at = 20;
    uint64_t rest = (uint64_t)number;
    for (; rest >= 100; rest /= 100) memcpy(digits + (at -= 2), pairs + 2 * (rest % 100), 2);
    memcpy(digits + (at -= 2), pairs + 2 * rest, 2);
    at += rest < 10;
    memcpy(out, digits + at, 20); /* of a fixed size, which takes no call */
    return out + 20 - at;
}

/* ns as us, with no more decimals than it has. */
static uint8_t *write_time(uint8_t *out, int64_t ns) {
    int decimals = (int)(ns % 1000);
    out = write_integer(out, ns / 1000);
    if (!decimals) return out;
    *out++ = '.';
    for (int scale = 100; decimals; scale /= 10) {
        *out++ = (uint8_t)('0' + decimals / scale);
        decimals %= scale;
    }
    return out;
}

/* Copies JSON; raw control characters, which are in its strings, become spaces. */
static inline uint8_t *write_text(uint8_t *out, const uint8_t *p, const uint8_t *end, const uint8_t *text_end) {
#ifdef __SSE2__
    const __m128i last = _mm_set1_epi8(0x1F);
    __m128i raw = _mm_setzero_si128();
    uint8_t *begin = out, *stop = out + (end - p);
    for (; p < end && text_end - p >= 16; p += 16, out += 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        _mm_storeu_si128((__m128i *)out, block);
        raw = _mm_or_si128(raw, _mm_cmpeq_epi8(_mm_min_epu8(block, last), block));
    }
    if (_mm_movemask_epi8(raw))
        for (; begin < out; begin++) *begin = *begin < 0x20 ? ' ' : *begin;
    if (p >= end) return stop;
#endif
    for (; p < end; p++) *out++ = *p < 0x20 ? ' ' : *p;
    return out;
}

/* One line for each row: the rewritten keys first, in a fixed order, and the others as they were.
 *
 * `start` and `duration` are ns since the result's base, `duration` and `id` negative where the row has none that
 * changes. `edits` holds (row, key, from, to) in order of rows: another value for a key, a piece of `values`.
 * `out` has to hold the text of the rows, `values`, and 224 bytes for each row; `sizes` gets the bytes of each line. Returns
 * the bytes written. */
int64_t iotrace_write(const uint8_t *text, const Row *rows, int64_t count, const int64_t *start,
                      const int64_t *duration, const int64_t *pid, const int64_t *tid, const int64_t *id,
                      const int64_t (*edits)[4], int64_t edit_count, const uint8_t *values,
                      uint8_t *out, int32_t *sizes) {
    static const char *const names[REWRITTEN] = {[ID2] = ",\"id2\":", [BIND_ID] = ",\"bind_id\":"};
    uint8_t *begin = out;
    const uint8_t *text_end = count ? text + rows[count - 1].end : text;
    for (int64_t i = 0; i < count; i++) {
        const Row *row = rows + i;
        uint8_t *line = out;
        int gone[REWRITTEN] = {[PH] = 1, [PID] = 1, [TID] = 1, [TS] = 1};
        out = WRITE(out, "{\"ph\":\"");
        *out++ = row->phase;
        out = write_integer(WRITE(out, "\",\"pid\":"), pid[i]);
        out = write_integer(WRITE(out, ",\"tid\":"), tid[i]);
        out = write_time(WRITE(out, ",\"ts\":"), start[i]);
        if (duration[i] >= 0) {
            gone[DUR] = 1;
            out = write_time(WRITE(out, ",\"dur\":"), duration[i]);
        }
        if (id[i] >= 0) {
            gone[ID] = 1;
            out = write_integer(WRITE(out, ",\"id\":"), id[i]);
        }
        if (row->phase == 't' || row->phase == 'f') { /* chrome_json.py takes it from those that mean the next slice */
            gone[BP] = 1;
            out = WRITE(out, ",\"bp\":\"e\"");
        }
        for (; edit_count && edits[0][0] == i; edits++, edit_count--) {
            int64_t key = edits[0][1];
            gone[key] = 1;
            out = write_bytes(out, names[key], strlen(names[key]));
            out = write_bytes(out, (const char *)values + edits[0][2], (size_t)(edits[0][3] - edits[0][2]));
        }
        int32_t from[REWRITTEN], to[REWRITTEN];
        int pieces = 0;
        for (int key = 0; key < REWRITTEN; key++) {
            if (!gone[key] || !row->stop[key]) continue;
            int at = pieces++;
            for (; at && from[at - 1] > row->key[key]; at--) {
                from[at] = from[at - 1];
                to[at] = to[at - 1];
            }
            from[at] = row->key[key];
            to[at] = row->stop[key];
        }
        int32_t at = row->begin + 1;
        for (int piece = 0; piece <= pieces; piece++) {
            const uint8_t *left = text + at, *right = text + (piece < pieces ? from[piece] : row->end - 1);
            left += left < right && *left == ',';
            right -= left < right && right[-1] == ',';
            if (left < right) {
                *out++ = ',';
                out = write_text(out, left, right, text_end);
            }
            if (piece < pieces) at = to[piece];
        }
        out = WRITE(out, "},\n");
        sizes[i] = (int32_t)(out - line);
    }
    return out - begin;
}
