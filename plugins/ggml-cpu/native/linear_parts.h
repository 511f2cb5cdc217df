/* What our matrix products share (hotshoe_linear.c, hotshoe_quants*.c): how threads divide a product into units, and
 * how a row of a finished tile becomes a row of the result. */
#ifndef HOTSHOE_LINEAR_PARTS_H
#define HOTSHOE_LINEAR_PARTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "activations.h"
#include "hotshoe_kernels.h"
#include "tensor_rows.h"

#define WIDEST_PANEL 32

/* The number of parts, a divisor of nth, into which n tokens are divided at least, so that nth threads finish soonest
 * if each takes an equal share of tokens by panels. Costs count in units of one token by one panel: `stage` is the cost
 * of staging a token, `stream` that of streaming a panel from memory. */
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

/* Threads take units from a node until none is left: a core that is slower, or busy with something else, takes fewer,
 * and no thread waits for it. Two numbers at the end of the node's op_params, behind what ggml stores there, keep
 * count: the first is the unit where the next thread continues; the second counts the threads that found no unit left.
 * The last of these threads sets both to 0 again. */
static inline int32_t * position_in(struct ggml_tensor * dst) {
    return dst->op_params + GGML_MAX_OP_PARAMS / sizeof(int32_t) - 2;
}
/* Takes units [first, last) of `total`, at least `min_units` of them and fewer and fewer. Returns 0 if none is left. */
static inline int take_units(int32_t * position, int64_t total, int64_t min_units, int nth, int64_t * first,
                             int64_t * last) {
    const int64_t seen = __atomic_load_n(position, __ATOMIC_RELAXED);
    const int64_t share = (total - seen) / (2 * nth), size = share > min_units ? share : min_units;
    *first = seen < total ? __atomic_fetch_add(position, (int32_t) size, __ATOMIC_RELAXED) : total;
    *last = min64(*first + size, total);
    return *first < total;
}
static inline void leave(int32_t * position, int nth) {
    if (__atomic_add_fetch(position + 1, 1, __ATOMIC_ACQ_REL) == nth) {
        position[0] = position[1] = 0;
    }
}

/* dst[0..n_columns) = act(tile + bias) + residual for one row of a tile of `width` columns. n_columns: how many of them
 * the result has. bias: `width` numbers. residual: n_columns numbers, or NULL. */
ALWAYS_INLINE void finish_row(int width, const float * tile, int n_columns, const float * bias, int gelu,
                              const float * residual, float * dst) {
    float y[WIDEST_PANEL] = {0};
    for (int j = 0; j < width; ++j) {
        y[j] = tile[j] + bias[j];
    }
    if (gelu) {
        for (int j = 0; j < width; ++j) {
            y[j] = gelu_erf(y[j]);
        }
    }
    if (residual) {
        for (int j = 0; j < n_columns; ++j) {
            y[j] += residual[j];
        }
    }
    if (n_columns == width) { /* a constant size becomes vector stores instead of a call */
        memcpy(dst, y, (size_t) width * sizeof(float));
    } else {
        memcpy(dst, y, (size_t) n_columns * sizeof(float));
    }
}

#endif
