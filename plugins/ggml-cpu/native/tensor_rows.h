/* Rows of a ggml tensor, and the share of them that one thread computes. */
#ifndef HOTSHOE_TENSOR_ROWS_H
#define HOTSHOE_TENSOR_ROWS_H

#include <stdint.h>

#include "hotshoe_kernels.h"

/* The memory of one thread: see HOTSHOE_SCRATCH. */
static inline void * scratch_of(void * memory, int ith) { return (char *) memory + (size_t) ith * HOTSHOE_SCRATCH; }

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

static inline int64_t n_rows(const struct ggml_tensor * t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

static inline char * row_of(const struct ggml_tensor * t, int64_t row) {
    const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2], i3 = row / t->ne[1] / t->ne[2];
    return (char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

/* The row of t that is broadcast to row `row` of `like`. */
static inline const char * row_like(const struct ggml_tensor * t, const struct ggml_tensor * like, int64_t row) {
    const int64_t i1 = row % like->ne[1];
    const int64_t i2 = row / like->ne[1] % like->ne[2];
    const int64_t i3 = row / like->ne[1] / like->ne[2];
    return (const char *) t->data + (t->ne[1] == 1 ? 0 : i1 * t->nb[1]) + (t->ne[2] == 1 ? 0 : i2 * t->nb[2]) +
           (t->ne[3] == 1 ? 0 : i3 * t->nb[3]);
}

/* Items [first, last) of n that thread ith computes. */
static inline void share(int64_t n, int ith, int nth, int64_t * first, int64_t * last) {
    const int64_t per_thread = ceil_div(n, nth);
    *first = min64(per_thread * ith, n);
    *last = min64(*first + per_thread, n);
}

/* Columns [first_column, last_column) of rows [first_row, last_row). */
struct rectangle {
    int64_t first_row, last_row, first_column, last_column;
};

/* Thread ith's part of a tensor of F32. With few rows, as in decoding, threads share out the 64-byte lines of each row,
 * otherwise whole rows. */
static inline struct rectangle share_of_rows(int64_t rows, int64_t width, int ith, int nth) {
    enum { LINE = 64 / sizeof(float) };
    int64_t first, last;
    if (rows >= 4 * (int64_t) nth) {
        share(rows, ith, nth, &first, &last);
        return (struct rectangle) {first, last, 0, width};
    }
    share(ceil_div(width, LINE), ith, nth, &first, &last);
    return (struct rectangle) {0, first < last ? rows : 0, first * LINE, min64(last * LINE, width)};
}

#endif
