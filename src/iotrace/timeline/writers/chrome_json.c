/* Rows of `scan.c` as lines of Chrome's trace JSON, with new times, numbers and ids. */
#include "scan.h"

static inline uint8_t *write_bytes(uint8_t *out, const char *text, size_t length) {
    memcpy(out, text, length);
    return out + length;
}
#define WRITE(out, text) write_bytes(out, text, sizeof text - 1)

static uint8_t *write_integer(uint8_t *out, int64_t number) {
    uint8_t digits[20];
    int count = 0;
    do digits[count++] = (uint8_t)('0' + number % 10);
    while (number /= 10);
    while (count) *out++ = digits[--count];
    return out;
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

/* Copies JSON, without the space between its tokens. */
static uint8_t *write_text(uint8_t *out, const uint8_t *p, const uint8_t *end) {
    while (p < end) {
        if (*p != '"') {
            if (!is_space(*p)) *out++ = *p;
            p++;
            continue;
        }
        const uint8_t *begin = p++;
        int has_control = 0;
        for (;;) {
            p = skip_plain(p, end);
            if (*p == '"') break;
            has_control |= *p < 0x20;
            p += *p == '\\' ? 2 : 1;
        }
        p++;
        memcpy(out, begin, (size_t)(p - begin));
        if (has_control)
            for (int64_t i = 0; i < p - begin; i++)
                if (out[i] < 0x20) out[i] = ' ';
        out += p - begin;
    }
    return out;
}

/* One line for each row: the rewritten keys first, in a fixed order, and the others as they were.
 *
 * `start` and `duration` are ns since the result's base, `duration` and `id` negative where the row has none that
 * changes. `edits` holds (row, key, from, to) in order of rows: another value for a key, a piece of `values`.
 * `out` has to hold the text of the rows, `values`, and 192 bytes for each row. Returns the bytes written. */
int64_t iotrace_write(const uint8_t *text, const Row *rows, int64_t count, const int64_t *start,
                      const int64_t *duration, const int64_t *pid, const int64_t *tid, const int64_t *id,
                      const int64_t (*edits)[4], int64_t edit_count, const uint8_t *values, uint8_t *out) {
    static const char *const names[REWRITTEN] = {[ID2] = ",\"id2\":", [BIND_ID] = ",\"bind_id\":"};
    uint8_t *begin = out;
    for (int64_t i = 0; i < count; i++) {
        const Row *row = rows + i;
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
            int place = pieces++;
            for (; place && from[place - 1] > row->key[key]; place--) {
                from[place] = from[place - 1];
                to[place] = to[place - 1];
            }
            from[place] = row->key[key];
            to[place] = row->stop[key];
        }
        int32_t at = row->begin + 1;
        for (int piece = 0; piece <= pieces; piece++) {
            const uint8_t *left = text + at, *right = text + (piece < pieces ? from[piece] : row->end - 1);
            while (left < right && (is_space(*left) || *left == ',')) left++;
            while (left < right && (is_space(right[-1]) || right[-1] == ',')) right--;
            if (left < right) {
                *out++ = ',';
                out = write_text(out, left, right);
            }
            if (piece < pieces) at = to[piece];
        }
        out = WRITE(out, "},\n");
    }
    return out - begin;
}
