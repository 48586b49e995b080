/* Strings and their numbers: each string is kept once, and numbered in the order in which it was first met. */
#ifndef IOTRACE_NUMBERED_STRINGS_H
#define IOTRACE_NUMBERED_STRINGS_H
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1024 };

/* The strings lie one behind another; a string's number is its position, from 1. */
typedef struct {
    uint8_t *bytes;
    int64_t used, bytes_room;
    int64_t *stops;
    int32_t count, stops_room;
    int32_t *slots; /* numbers by hash, 0 where free */
    int64_t slots_room;
} Strings;

static inline uint64_t hash_of(const uint8_t *text, int64_t length) {
    uint64_t hash = (uint64_t)length, word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, text, (size_t)length);
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

static inline const uint8_t *string_of(const Strings *strings, int32_t number, int64_t *length) {
    int64_t begin = number > 1 ? strings->stops[number - 2] : 0;
    *length = strings->stops[number - 1] - begin;
    return strings->bytes + begin;
}

/* Twice the slots, where half of them are taken; whether there is a free one. */
static inline int make_slots(Strings *strings) {
    if (2 * (int64_t)strings->count < strings->slots_room) return 1;
    int64_t room = strings->slots_room ? 2 * strings->slots_room : FIRST_SLOTS;
    int32_t *slots = calloc((size_t)room, sizeof *slots);
    if (!slots) return 0;
    for (int32_t number = 1; number <= strings->count; number++) {
        int64_t length;
        const uint8_t *text = string_of(strings, number, &length);
        uint64_t slot = hash_of(text, length) & (uint64_t)(room - 1);
        while (slots[slot]) slot = (slot + 1) & (uint64_t)(room - 1);
        slots[slot] = number;
    }
    free(strings->slots);
    strings->slots = slots;
    strings->slots_room = room;
    return 1;
}

static inline int make_room(Strings *strings, int64_t length) {
    if (strings->used + length >= strings->bytes_room) { /* there is a byte, even for an empty string */
        int64_t room = 2 * (strings->used + length) + 4096;
        uint8_t *bytes = realloc(strings->bytes, (size_t)room);
        if (!bytes) return 0;
        strings->bytes = bytes;
        strings->bytes_room = room;
    }
    if (strings->count == strings->stops_room) {
        int32_t room = 2 * strings->stops_room + 256;
        int64_t *stops = realloc(strings->stops, (size_t)room * sizeof *stops);
        if (!stops) return 0;
        strings->stops = stops;
        strings->stops_room = room;
    }
    return 1;
}

/* The number of a string; 0 where there are too many, or no memory. */
static inline int32_t number_of(Strings *strings, int32_t most, const uint8_t *text, int64_t length) {
    if (!make_slots(strings)) return 0;
    uint64_t mask = (uint64_t)strings->slots_room - 1, slot = hash_of(text, length) & mask;
    for (; strings->slots[slot]; slot = (slot + 1) & mask) {
        int64_t known_length;
        const uint8_t *known = string_of(strings, strings->slots[slot], &known_length);
        if (known_length == length && !memcmp(known, text, (size_t)length)) return strings->slots[slot];
    }
    if (strings->count >= most || !make_room(strings, length)) return 0;
    memcpy(strings->bytes + strings->used, text, (size_t)length);
    strings->used += length;
    strings->stops[strings->count++] = strings->used;
    strings->slots[slot] = strings->count;
    return strings->count;
}

static inline void free_strings(Strings *strings) {
    free(strings->bytes);
    free(strings->stops);
    free(strings->slots);
}

#endif
