/* How threads divide a matrix product (hotshoe_linear.c, hotshoe_quants.c) into work items. A work item is the product
 * of one panel of a weight and one group of tokens. */
#ifndef HOTSHOE_WORK_ITEMS_H
#define HOTSHOE_WORK_ITEMS_H

#include <math.h>
#include <stdint.h>

#include "hotshoe_kernels.h"
#include "tensor_rows.h"

/* The number of parts, a divisor of nth, into which n tokens are divided at least, so that nth threads finish soonest
 * if each takes an equal share of tokens by panels. The unit of cost is one token by one panel: `stage` is the cost of
 * staging a token, `stream` the cost of streaming a panel from memory. */
static inline int token_parts(int64_t n, int64_t panels, int nth, double stage, double stream) {
    int best = 1;
    double lowest = INFINITY;
    for (int parts = 1; parts <= nth; ++parts) {
        if (nth % parts) {
            continue;
        }
        const double tokens = (double) ceil_div(n, parts);
        const double width = (double) ceil_div(panels, nth / parts);
        const double cost = tokens * (width + stage) + stream * width;
        if (cost < lowest) {
            lowest = cost;
            best = parts;
        }
    }
    return best;
}

/* Threads take items of a node until no item remains: a core that is slower, or busy with something else, takes fewer,
 * and no thread waits for it. The counter is two numbers at the end of the node's op_params, behind what ggml stores
 * there. The first is the next item that no thread has taken; the second counts the threads that have finished. The
 * last of these threads sets both to 0 again. */
static inline int32_t * work_counter(struct ggml_tensor * dst) {
    return dst->op_params + GGML_MAX_OP_PARAMS / sizeof(int32_t) - 2;
}
/* Takes items [first, last) of `total`. Each call takes fewer items than the one before, but at least `min_items`, as
 * far as so many remain and each thread could have so many. Returns 0 if no item remains. */
static inline int take_items(int32_t * counter, int64_t total, int64_t min_items, int nth, int64_t * first,
                             int64_t * last) {
    const int64_t taken = __atomic_load_n(counter, __ATOMIC_RELAXED);
    const int64_t least = min64(min_items, ceil_div(total, nth)), size = max64(least, (total - taken) / (2 * nth));
    *first = taken < total ? __atomic_fetch_add(counter, (int32_t) size, __ATOMIC_RELAXED) : total;
    *last = min64(*first + size, total);
    return *first < total;
}
/* Call this once for each thread, after take_items has returned 0. */
static inline void finish_thread(int32_t * counter, int nth) {
    if (__atomic_add_fetch(counter + 1, 1, __ATOMIC_ACQ_REL) == nth) {
        counter[0] = counter[1] = 0;
    }
}

#endif
