/* What our products share: how threads divide one, and the way out of a tile. */
#ifndef HOTSHOE_LINEAR_PARTS_H
#define HOTSHOE_LINEAR_PARTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "activations.h"
#include "hotshoe_kernels.h"

#define WIDEST_PANEL 32

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Into how many parts, a divisor of nth, tokens are divided at least, so that nth threads are done soonest if each takes an equal
 * share of tokens by panels. Cost in units of one token by one panel: staging a token is `stage`, streaming a panel from memory
 * `stream`. */
static inline int token_parts(int64_t n, int64_t panels, int nth, double stage, double stream) {
    int best = 1;
    double lowest = INFINITY;
    for (int parts = 1; parts <= nth; ++parts) {
        if (nth % parts) {
            continue;
        }
        const double tokens = (double) ((n + parts - 1) / parts);
        const double width = (double) ((panels + nth / parts - 1) / (nth / parts));
        const double cost = tokens * (width + stage) + stream * width;
        if (cost < lowest) {
            lowest = cost;
            best = parts;
        }
    }
    return best;
}

/* What threads take from a node until nothing is left: so a core that is slower, or busy with something else, does less, and
 * nobody waits for it. The first of two numbers that lie in the node, behind what ggml keeps there, is where the next thread goes
 * on; the second counts those that found nothing, the last of which leaves both as they were. */
static inline int32_t * position_in(struct ggml_tensor * dst) {
    return dst->op_params + GGML_MAX_OP_PARAMS / sizeof(int32_t) - 2;
}
static inline int take_units(int32_t * position, int64_t total, int64_t least, int nth, int64_t * first,
                             int64_t * last) {
    const int64_t seen = __atomic_load_n(position, __ATOMIC_RELAXED);
    const int64_t share = (total - seen) / (2 * nth), size = share > least ? share : least; /* less and less */
    *first = seen < total ? __atomic_fetch_add(position, (int32_t) size, __ATOMIC_RELAXED) : total;
    *last = min64(*first + size, total);
    return *first < total;
}
static inline void leave(int32_t * position, int nth) {
    if (__atomic_add_fetch(position + 1, 1, __ATOMIC_ACQ_REL) == nth) {
        position[0] = position[1] = 0;
    }
}

/* A row's way out of a tile: bias, activation, residual. width: of a panel; cols: how many of its columns exist; bias: for
 * all of the panel. */
ALWAYS_INLINE void finish_row(int width, const float * tile, int cols, const float * bias, int gelu,
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
        for (int j = 0; j < cols; ++j) {
            y[j] += residual[j];
        }
    }
    if (cols == width) {
        memcpy(dst, y, (size_t) width * sizeof(float));
    } else {
        memcpy(dst, y, (size_t) cols * sizeof(float));
    }
}

#endif
