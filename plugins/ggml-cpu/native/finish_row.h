/* Turns a row of a finished tile of a matrix product into a row of the result. */
#ifndef HOTSHOE_FINISH_ROW_H
#define HOTSHOE_FINISH_ROW_H

#include <stdint.h>
#include <string.h>

#include "activation_math.h"

#define MAX_PANEL 32 /* columns */

/* dst[0..n_columns) = act(tile + bias) + residual for one row of a tile of `width` columns. n_columns: how many of them
 * the result has. bias: `width` numbers. residual: n_columns numbers, or NULL. */
ALWAYS_INLINE void finish_row(int width, const float * tile, int n_columns, const float * bias, int gelu,
                              const float * residual, float * dst) {
    float y[MAX_PANEL] = {0};
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
