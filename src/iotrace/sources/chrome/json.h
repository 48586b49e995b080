/* Steps through the text of JSON: what the scanner, the columns and the writers share. */
#ifndef IOTRACE_JSON_H
#define IOTRACE_JSON_H
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* CUT: the text ends before the value does. ODD: no plain JSON, or what a tolerant reader has to look at. */
typedef enum { FINE, CUT, ODD } Verdict;

enum { DEEPEST = 60, LONGEST_NUMBER = 300 };

static inline int is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
static inline int is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }

/* Most tokens have no space or one before them, or stand on a line of their own. */
static inline const uint8_t *skip_space(const uint8_t *p, const uint8_t *end) {
    if (p < end && *p > ' ') return p;
#ifdef __SSE2__
    if (end - p >= 17) {
        if (p[1] > ' ') return p + is_space(*p);
        __m128i block = _mm_loadu_si128((const __m128i *)p);
        __m128i line = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\r')));
        __m128i blank = _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\t')));
        unsigned others = (unsigned)_mm_movemask_epi8(_mm_or_si128(line, blank)) ^ 0xFFFF;
        if (others) return p + __builtin_ctz(others);
        p += 16;
    }
#endif
    while (p < end && is_space(*p)) p++;
    return p;
}

/* A copy of the text without the space between its tokens. What lies from `from` on is not yet copied. */
typedef struct {
    uint8_t *to;
    const uint8_t *from;
} Copy;

static inline void copy_up_to(Copy *copy, const uint8_t *stop, const uint8_t *end) {
    const uint8_t *from = copy->from;
    uint8_t *to = copy->to;
    for (; from < stop && end - from >= 32; from += 32, to += 32) memcpy(to, from, 32); /* most are shorter */
    if (from < stop) memcpy(to, from, (size_t)(stop - from));
    copy->to += stop - copy->from;
    copy->from = stop;
}

/* `skip_space`, which leaves the space out of the copy. `copy` may be NULL here and below. */
static inline __attribute__((always_inline)) const uint8_t *skip_gap(const uint8_t *p, const uint8_t *end, Copy *copy) {
    if (p < end && *p > ' ') return p;
    const uint8_t *after = skip_space(p, end);
    if (copy && after != p) {
        copy_up_to(copy, p, end);
        copy->from = after;
    }
    return after;
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

/* One character of UTF-8 beyond ASCII. */
static inline Verdict skip_character(const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    uint8_t first = *p;
    int more = first >= 0xC2 && first < 0xE0 ? 1 : (first & 0xF0) == 0xE0 ? 2 : first >= 0xF0 && first < 0xF5 ? 3 : 0;
    if (!more) return ODD;
    if (end - p <= more) return CUT;
    for (int i = 1; i <= more; i++)
        if ((p[i] & 0xC0) != 0x80) return ODD;
    if ((first == 0xE0 && p[1] < 0xA0) || (first == 0xED && p[1] > 0x9F) || (first == 0xF0 && p[1] < 0x90) ||
        (first == 0xF4 && p[1] > 0x8F))
        return ODD; /* longer than needed, half of a UTF-16 pair, beyond Unicode */
    *at = p + more + 1;
    return FINE;
}

/* From behind the opening quote to behind the closing one. Raw control characters, which real traces hold, pass:
 * `write_text` makes spaces of them. */
static __attribute__((noinline, unused)) Verdict skip_string_with_escapes(const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at;
    for (;;) {
        p = skip_plain(p, end);
        if (p >= end) return CUT;
        if (*p == '"') {
            *at = p + 1;
            return FINE;
        }
        if (*p == '\\') {
            if (end - p < 2) return CUT;
            if (p[1] == 'u') {
                if (end - p < 6) return CUT;
                int code = 0;
                for (int i = 2; i < 6; i++) {
                    int digit = hex_digit(p[i]);
                    if (digit < 0) return ODD;
                    code = code * 16 + digit;
                }
                if (code >= 0xD800 && code < 0xE000) return ODD; /* it may be half a pair */
                p += 6;
            } else if (strchr("\"\\/bfnrt", p[1]) && p[1]) {
                p += 2;
            } else {
                return ODD;
            }
        } else if (*p < 0x20) {
            p++;
        } else {
            Verdict verdict = skip_character(&p, end);
            if (verdict != FINE) return verdict;
        }
    }
}

static inline Verdict skip_string(const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = skip_plain(*at, end);
    if (p >= end || *p != '"') return skip_string_with_escapes(at, end);
    *at = p + 1;
    return FINE;
}

/* Exponents of three digits may be numbers that no double holds: Perfetto refuses a whole file for one. */
static inline Verdict skip_number(const uint8_t **at, const uint8_t *end) {
    const uint8_t *p = *at, *begin = p;
    if (p < end && *p == '-') p++;
    if (p >= end) return CUT;
    if (!is_digit(*p)) return ODD;
    if (*p == '0' && p + 1 < end && is_digit(p[1])) return ODD;
    while (p < end && is_digit(*p)) p++;
    if (p < end && *p == '.') {
        p++;
        if (p < end && !is_digit(*p)) return ODD;
        while (p < end && is_digit(*p)) p++;
    }
    if (p < end && (*p | 0x20) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        const uint8_t *exponent = p;
        while (p < end && is_digit(*p)) p++;
        if (p < end && (p == exponent || p - exponent > 2)) return ODD;
    }
    if (p >= end) return CUT;
    if (p - begin > LONGEST_NUMBER) return ODD;
    *at = p;
    return FINE;
}

static inline Verdict skip_word(const uint8_t **at, const uint8_t *end, const char *word, int length) {
    if (end - *at < length) return CUT;
    if (memcmp(*at, word, (size_t)length)) return ODD;
    *at += length;
    return FINE;
}

/* From a key, `behind` which its string has ended, to its value. */
static inline __attribute__((always_inline)) Verdict pass_key(const uint8_t **at, const uint8_t *end, Copy *copy,
                                                              const uint8_t **behind) {
    const uint8_t *p = *at;
    Verdict verdict;
    if (p >= end) return CUT;
    if (*p != '"') return ODD;
    p++;
    if ((verdict = skip_string(&p, end)) != FINE) return verdict;
    *behind = p;
    p = skip_gap(p, end, copy);
    if (p >= end) return CUT;
    if (*p != ':') return ODD;
    *at = skip_gap(p + 1, end, copy);
    return FINE;
}

/* One value of any kind; `*at` is at its first byte. */
static inline __attribute__((always_inline)) Verdict walk_value(const uint8_t **at, const uint8_t *end, Copy *copy) {
    const uint8_t *p = *at, *behind;
    uint64_t objects = 0; /* a bit for each level: 1 within an object, 0 within an array */
    int depth = 0;
    Verdict verdict;
value:
    if (p >= end) return CUT;
    switch (*p) {
    case '"':
        p++;
        if ((verdict = skip_string(&p, end)) != FINE) return verdict;
        break;
    case '{':
        if (depth == DEEPEST) return ODD;
        objects = objects << 1 | 1, depth++;
        p = skip_gap(p + 1, end, copy);
        if (p < end && *p == '}') goto close;
        goto key;
    case '[':
        if (depth == DEEPEST) return ODD;
        objects <<= 1, depth++;
        p = skip_gap(p + 1, end, copy);
        if (p < end && *p == ']') goto close;
        goto value;
    case 't':
        if ((verdict = skip_word(&p, end, "true", 4)) != FINE) return verdict;
        break;
    case 'f':
        if ((verdict = skip_word(&p, end, "false", 5)) != FINE) return verdict;
        break;
    case 'n':
        if ((verdict = skip_word(&p, end, "null", 4)) != FINE) return verdict;
        break;
    default:
        if ((verdict = skip_number(&p, end)) != FINE) return verdict;
    }
after:
    if (!depth) {
        *at = p;
        return FINE;
    }
    p = skip_gap(p, end, copy);
    if (p >= end) return CUT;
    if (*p == ',') {
        p = skip_gap(p + 1, end, copy);
        if (objects & 1) goto key;
        goto value;
    }
    if (*p != (objects & 1 ? '}' : ']')) return ODD;
close:
    p++, depth--, objects >>= 1;
    goto after;
key:
    if ((verdict = pass_key(&p, end, copy, &behind)) != FINE) return verdict;
    goto value;
}

static __attribute__((noinline, unused)) Verdict skip_any_value(const uint8_t **at, const uint8_t *end) {
    return walk_value(at, end, NULL);
}

static __attribute__((noinline, unused)) Verdict copy_any_value(const uint8_t **at, const uint8_t *end, Copy *copy) {
    return walk_value(at, end, copy);
}

static inline Verdict pass_value(const uint8_t **at, const uint8_t *end, Copy *copy) {
    const uint8_t *p = *at;
    if (p < end && *p == '"') {
        p++;
        if (skip_string(&p, end) == FINE) {
            *at = p;
            return FINE;
        }
    }
    if (p < end && is_digit(*p)) return skip_number(at, end);
    return copy ? copy_any_value(at, end, copy) : skip_any_value(at, end);
}

static inline Verdict skip_value(const uint8_t **at, const uint8_t *end) { return pass_value(at, end, NULL); }

#endif
