/* The lanes of one thread's slices, as `lanes.py` explains them; it goes on where this one's room ends. */
#include <stdint.h>

enum { SLICE, FLOW, FLOW_NEXT, BEGIN, END }; /* kinds of rows, as in spill.py */
enum { MOST_LANES = 64, DEEPEST = 512, UNBOUND = -1, STACKED = 1 << 20, NEXT = 1 << 21 };

typedef struct {
    int64_t start, end, ordinal;
    int32_t kind, size;
} Row;

/* Per lane the slices that are open, the outermost first; `begins` are those of begin events. */
typedef struct {
    int64_t count, depth[MOST_LANES];
    int64_t starts[MOST_LANES][DEEPEST], ends[MOST_LANES][DEEPEST];
    int64_t begun, begins[DEEPEST];
} Lanes;

/* The first lane where the slice is alone or within another; -1 where there is no room for it. */
static int32_t lane_of_slice(Lanes *lanes, int64_t start, int64_t end) {
    for (int32_t lane = 0; lane < MOST_LANES; lane++) {
        if (lane == lanes->count) lanes->depth[lanes->count++] = 0;
        int64_t depth = lanes->depth[lane];
        while (depth && lanes->ends[lane][depth - 1] <= start) depth--;
        lanes->depth[lane] = depth;
        if (depth && end > lanes->ends[lane][depth - 1]) continue;
        if (depth == DEEPEST) return -1;
        lanes->starts[lane][depth] = start;
        lanes->ends[lane][depth] = end;
        lanes->depth[lane]++;
        return lane;
    }
    return -1;
}

/* The lane of the slice that began last of those that hold `time`, their ends included; and when it began. */
static int32_t lane_of_flow(const Lanes *lanes, int64_t time, int64_t *began) {
    int32_t best = UNBOUND;
    int64_t best_start = 0;
    for (int32_t lane = 0; lane < lanes->count; lane++) {
        int64_t at = lanes->depth[lane] - 1;
        while (at >= 0 && lanes->ends[lane][at] < time) at--;
        if (at >= 0 && (best == UNBOUND || lanes->starts[lane][at] > best_start)) {
            best = lane;
            best_start = lanes->starts[lane][at];
        }
    }
    if (lanes->begun && (best == UNBOUND || lanes->begins[lanes->begun - 1] > best_start)) {
        best = STACKED;
        best_start = lanes->begins[lanes->begun - 1];
    }
    *began = best_start;
    return best;
}

/* The lane of each row; returns how many rows were placed before there was no room. */
int64_t iotrace_place(Lanes *lanes, const Row *rows, int64_t count, int32_t *placed) {
    for (int64_t i = 0; i < count; i++) {
        const Row *row = rows + i;
        int64_t began;
        placed[i] = 0;
        switch (row->kind) {
        case SLICE:
            placed[i] = lane_of_slice(lanes, row->start, row->end);
            if (placed[i] < 0) return i;
            break;
        case FLOW:
        case FLOW_NEXT:
            placed[i] = lane_of_flow(lanes, row->start, &began);
            if (row->kind == FLOW_NEXT && placed[i] != UNBOUND && began != row->start) placed[i] |= NEXT;
            break;
        case BEGIN:
            if (lanes->begun == DEEPEST) return i;
            lanes->begins[lanes->begun++] = row->start;
            placed[i] = STACKED;
            break;
        case END:
            lanes->begun -= lanes->begun > 0;
            placed[i] = STACKED;
            break;
        }
    }
    return count;
}
