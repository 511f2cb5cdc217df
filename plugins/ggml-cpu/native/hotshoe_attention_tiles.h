/* Tiles of attention for one instruction set: products of some query rows with keys or values, in packed panels or in
 * place. hotshoe_attention_simd.h includes this once for each set, with its macros. */

/* out[r][0..cols) = (out[r] * keep[r] + sum_i a[r][i] * b[index[i]][...]) * gain[r], for r < rows. keep NULL: out has
 * no values yet. index NULL: 0, 1, 2 and so on. b: panels of W columns, `panel` bytes from each other; the rows of a
 * panel are ldb bytes from each other; up to VL lanes beyond cols may be read. */
FN void NAME(columns)(const int rows, const int vectors, const int is_f16, const float * const * a, int64_t n,
                      const int32_t * index, const char * b, size_t ldb, float * const * out, int64_t from,
                      int64_t n_lanes, const float * keep, const float * gain) {
    vf acc[ROWS][4];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < vectors; ++c) {
            acc[r][c] = (vf) {0};
            if (keep != NULL) {
                const float * old = out[r] + from + c * VL;
                acc[r][c] = (n_lanes == VL ? NAME(load)(old) : LOAD_PART(old, n_lanes, 0.0f)) * keep[r];
            }
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const char * const x0 = b + (index != NULL ? index[i] : i) * ldb;
        vf row[4];
#pragma GCC unroll 4
        for (int c = 0; c < vectors; ++c) {
            row[c] = NAME(numbers)(x0 + c * VL * (is_f16 ? 2 : 4), is_f16);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const vf x = NAME(splat)(a[r][i]);
#pragma GCC unroll 4
            for (int c = 0; c < vectors; ++c) {
                acc[r][c] += x * row[c];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < vectors; ++c) {
            float * to = out[r] + from + c * VL;
            if (n_lanes == VL) {
                NAME(store)(to, acc[r][c] * gain[r]);
            } else {
                NAME(store_part)(to, acc[r][c] * gain[r], n_lanes);
            }
        }
    }
}

FN void NAME(tile)(const int rows, const float * const * a, int64_t n, const int32_t * index, const char * b,
                   size_t ldb, size_t panel, float * const * out, int64_t cols, const float * keep,
                   const float * gain) {
    int64_t from = 0;
    for (; from + W <= cols; from += W, b += panel) {
        NAME(columns)(rows, 2, 0, a, n, index, b, ldb, out, from, VL, keep, gain);
    }
    if (from + VL <= cols) {
        NAME(columns)(rows, 1, 0, a, n, index, b, ldb, out, from, VL, keep, gain);
        from += VL;
        b += VL * sizeof(float);
    }
    if (from < cols) {
        NAME(columns)(rows, 1, 0, a, n, index, b, ldb, out, from, cols - from, keep, gain);
    }
}

/* The same for rows of b that are not in panels. cols: a multiple of VL. */
FN void NAME(rows_in_place)(const int rows, const int is_f16, const float * const * a, int64_t n, const int32_t * index,
                            const char * b, size_t ldb, float * const * out, int64_t cols, const float * keep,
                            const float * gain) {
    const int wide = rows * 4 <= ROWS * 2 ? 4 : 2;
    const size_t vector = VL * (is_f16 ? 2 : 4);
    int64_t from = 0;
    for (; from + wide * VL <= cols; from += wide * VL, b += wide * vector) {
        NAME(columns)(rows, wide, is_f16, a, n, index, b, ldb, out, from, VL, keep, gain);
    }
    for (; from < cols; from += VL, b += vector) {
        NAME(columns)(rows, 1, is_f16, a, n, index, b, ldb, out, from, VL, keep, gain);
    }
}

/* Scores of at most DOT_ROWS rows for the keys index[0], index[1] and so on (NULL: all), without a transposed copy of
 * the keys. These are `stride` bytes from each other: floats, or half floats in whole vectors. run: prefetches the next
 * keys and values; NULL if they were prefetched already. */
FN void NAME(dots)(const int rows, const int is_f16, const float * const * q, int64_t dim, const int32_t * index,
                   const char * keys, size_t stride, int64_t cols, float * const * out, float gain, struct run * run) {
    for (int64_t j = 0; j < cols; j += 4) {
        const char * key[4];
        vf acc[DOT_ROWS][4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            /* After the last key it is computed again, up to a multiple of four: rows of scores have room. */
            const int64_t c = j + i < cols ? j + i : cols - 1;
            key[i] = keys + (index != NULL ? index[c] : c) * stride;
            if (run != NULL) {
                prefetch_row(&run->keys);
                prefetch_row(&run->values);
            }
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                acc[r][i] = (vf) {0};
            }
        }
        int64_t d = 0;
        for (; d + VL <= dim; d += VL) {
            vf y[DOT_ROWS];
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                y[r] = NAME(load)(q[r] + d);
            }
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const vf x = NAME(numbers)(key[i] + d * (is_f16 ? 2 : 4), is_f16);
#pragma GCC unroll 16
                for (int r = 0; r < rows; ++r) {
                    acc[r][i] += y[r] * x;
                }
            }
        }
        if (d < dim) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
                const vf x = LOAD_PART((const float *) key[i] + d, dim - d, 0.0f);
#pragma GCC unroll 16
                for (int r = 0; r < rows; ++r) {
                    acc[r][i] += LOAD_PART(q[r] + d, dim - d, 0.0f) * x;
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            SUM4(out[r] + j, acc[r][0], acc[r][1], acc[r][2], acc[r][3], gain);
        }
    }
}

/* One function for each number of rows, so that the accumulators stay in registers. */
typedef void (*NAME(tile_fn))(const float * const *, int64_t, const int32_t *, const char *, size_t, size_t,
                              float * const *, int64_t, const float *, const float *);
typedef void (*NAME(rows_fn))(const float * const *, int64_t, const int32_t *, const char *, size_t, float * const *,
                              int64_t, const float *, const float *);
typedef void (*NAME(dots_fn))(const float * const *, int64_t, const int32_t *, const char *, size_t, int64_t,
                              float * const *, float, struct run *);
#define ROWS_IN_PLACE(rows, name, is_f16)                                                                             \
    TARGET static void NAME(name##_##rows)(const float * const * a, int64_t n, const int32_t * index, const char * b, \
                                           size_t ldb, float * const * out, int64_t cols, const float * keep,         \
                                           const float * gain) {                                                      \
        NAME(rows_in_place)(rows, is_f16, a, n, index, b, ldb, out, cols, keep, gain);                                \
    }
#define DOTS(rows, name, is_f16)                                                                                \
    TARGET static void NAME(name##_##rows)(const float * const * q, int64_t dim, const int32_t * index,         \
                                           const char * keys, size_t stride, int64_t cols, float * const * out, \
                                           float gain, struct run * run) {                                      \
        NAME(dots)(rows, is_f16, q, dim, index, keys, stride, cols, out, gain, run);                            \
    }
#define TILE(rows)                                                                                                  \
    TARGET static void NAME(tile_##rows)(const float * const * a, int64_t n, const int32_t * index, const char * b, \
                                         size_t ldb, size_t panel, float * const * out, int64_t cols,               \
                                         const float * keep, const float * gain) {                                  \
        NAME(tile)(rows, a, n, index, b, ldb, panel, out, cols, keep, gain);                                        \
    }                                                                                                               \
    ROWS_IN_PLACE(rows, floats_in_place, 0)                                                                         \
    ROWS_IN_PLACE(rows, halves_in_place, 1)
#define DOTS_BOTH(rows) DOTS(rows, dots, 0) DOTS(rows, dots_of_halves, 1)
/* clang-format off */
TILE(1) TILE(2) TILE(3) TILE(4)
#if ROWS > 4
TILE(5) TILE(6)
#endif
#if ROWS > 6
TILE(7) TILE(8)
#endif
DOTS_BOTH(1) DOTS_BOTH(2) DOTS_BOTH(3)
#if DOT_ROWS > 3
DOTS_BOTH(4)
#endif
#if ROWS > 6
#define UP_TO_ROWS(f) \
    {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4), NAME(f##_5), NAME(f##_6), NAME(f##_7), NAME(f##_8)}
#elif ROWS > 4
#define UP_TO_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4), NAME(f##_5), NAME(f##_6)}
#else
#define UP_TO_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4)}
#endif
#if DOT_ROWS > 3
#define UP_TO_DOT_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4)}
#else
#define UP_TO_DOT_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3)}
#endif
static const NAME(tile_fn) NAME(tiles)[ROWS + 1] = UP_TO_ROWS(tile);
static const NAME(rows_fn) NAME(tiles_in_place)[2][ROWS + 1] = {
    UP_TO_ROWS(floats_in_place),
    UP_TO_ROWS(halves_in_place),
};
static const NAME(dots_fn) NAME(dot_tiles)[2][DOT_ROWS + 1] = {UP_TO_DOT_ROWS(dots), UP_TO_DOT_ROWS(dots_of_halves)};
/* clang-format on */

#undef TILE
#undef ROWS_IN_PLACE
#undef DOTS
#undef DOTS_BOTH
#undef UP_TO_ROWS
#undef UP_TO_DOT_ROWS
