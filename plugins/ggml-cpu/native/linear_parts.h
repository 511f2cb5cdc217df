/* What our products share: how threads divide one, and the way out of a tile. */
#ifndef HOTSHOE_LINEAR_PARTS_H
#define HOTSHOE_LINEAR_PARTS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "activations.h"

#define WIDEST_PANEL 32

/* How nth threads form a grid over tokens and panels: returns its number of token parts, a divisor of nth. weights: how many
 * the tokens are divided among. Cost in units of one token by one panel: staging a token is `stage`, streaming a panel from
 * memory `stream`. */
static inline int token_parts(int64_t n, int64_t weights, int64_t panels, int nth, double stage, double stream) {
    int best = 1;
    double lowest = INFINITY;
    for (int parts = 1; parts <= nth; ++parts) {
        if (nth % parts) {
            continue;
        }
        const double tokens = (double) ((n + parts - 1) / parts);
        const double width = (double) ((panels + nth / parts - 1) / (nth / parts));
        const double cost = tokens * (width + stage) + stream * width * (double) ((weights + parts - 1) / parts);
        if (cost < lowest) {
            lowest = cost;
            best = parts;
        }
    }
    return best;
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
