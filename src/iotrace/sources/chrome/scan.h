/* Rows of events in JSON, and steps through its text: what `scan.c` shares with the writers. */
#ifndef IOTRACE_SCAN_H
#define IOTRACE_SCAN_H
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* In the order of `compiled_scan.py`. The first ones are written anew, the others are only found. */
enum { PH, PID, TID, TS, DUR, ID, BP, ID2, BIND_ID, CAT, NAME, ARGS, SCOPE, KEYS };
enum { REWRITTEN = BIND_ID + 1 };

/* `family` tells arrows apart that have one id: a hash of their category and name.
 * `others`: the event has keys that are none of these, or `id2` or `bind_id`.
 * `key`, `value` and `stop` are offsets in the text: of a key's quote, its value, and behind that. 0: absent. */
typedef struct {
    int64_t start_ns, duration_ns, id;
    int32_t begin, end, track, family;
    uint8_t phase, scope, has_duration, others;
    int32_t key[KEYS], value[KEYS], stop[KEYS];
} Row;

static inline int is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static inline int is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }

static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *end) {
    while (p < end && is_space(*p)) p++;
    return p;
}

/* Behind the next byte that ends a run of plain text: a quote, a backslash, a control character, no ASCII. */
static inline const uint8_t *skip_plain(const uint8_t *p, const uint8_t *end) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(0x20);
    while (end - p >= 16) {
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(block, quote), _mm_cmpeq_epi8(block, slash));
        /* Signed: bytes of 0x80 and above are below the space, too. */
        int mask = _mm_movemask_epi8(_mm_or_si128(stops, _mm_cmplt_epi8(block, space)));
        if (mask) return p + __builtin_ctz((unsigned)mask);
        p += 16;
    }
#endif
    while (p < end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') p++;
    return p;
}

static inline int hex_digit(uint8_t c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
