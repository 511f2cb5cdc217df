/* Tiles of attention for one instruction set: products of some query rows with keys or values, in packed panels or in
 * place. hotshoe_attention_simd.h includes this once for each set, with its macros. */

/* out[r][0..cols) = (out[r] * keep[r] + sum_i a[r][i] * b[index[i]][...]) * gain[r], for r < rows. keep NULL: out has
 * no values yet. index NULL: 0, 1, 2 and so on. b: panels of W columns, `panel` bytes from each other; the rows of a
 * panel are ldb bytes from each other; up to VL lanes beyond cols may be read. run: prefetches the next values, as many
 * bytes as are read here; or NULL. */
FN void NAME(columns)(const int rows, const int vectors, const int is_f16, const float * const * a, int64_t n,
                      const int32_t * index, const char * b, size_t ldb, float * const * out, int64_t from,
                      int64_t n_lanes, const float * keep, const float * gain, struct run * run) {
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
        if (run != NULL) {
            prefetch(&run->values, vectors * VL * (is_f16 ? 2 : 4));
        }
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
        NAME(columns)(rows, 2, 0, a, n, index, b, ldb, out, from, VL, keep, gain, NULL);
    }
    if (from + VL <= cols) {
        NAME(columns)(rows, 1, 0, a, n, index, b, ldb, out, from, VL, keep, gain, NULL);
        from += VL;
        b += VL * sizeof(float);
    }
    if (from < cols) {
        NAME(columns)(rows, 1, 0, a, n, index, b, ldb, out, from, cols - from, keep, gain, NULL);
    }
}

/* The same for rows of b that are not in panels. cols: a multiple of VL. */
FN void NAME(rows_in_place)(const int rows, const int is_f16, const float * const * a, int64_t n, const int32_t * index,
                            const char * b, size_t ldb, float * const * out, int64_t cols, const float * keep,
                            const float * gain, struct run * run) {
    const int wide = rows * 4 <= ROWS * 2 ? 4 : 2;
    const size_t vector = VL * (is_f16 ? 2 : 4);
    int64_t from = 0;
    for (; from + wide * VL <= cols; from += wide * VL, b += wide * vector) {
        if (run != NULL) { /* here, not for each key: several queries are limited by computing */
            NAME(columns)(rows, wide, is_f16, a, n, index, b, ldb, out, from, VL, keep, gain, run);
        } else {
            NAME(columns)(rows, wide, is_f16, a, n, index, b, ldb, out, from, VL, keep, gain, NULL);
        }
    }
    for (; from < cols; from += VL, b += vector) {
        NAME(columns)(rows, 1, is_f16, a, n, index, b, ldb, out, from, VL, keep, gain, run);
    }
}

/* `scores` and `dots` give a score the same bits. A score is ((c0 + c1) + c2) + c3, where class c_j sums the products
 * of elements j, j + 4, j + 8 and so on, in this order. So a query's result does not depend on how many queries are
 * computed with it. (Where VL is 1 there is one class.) The compiler must fuse products and sums in both or in neither;
 * tests/ggml/test_attention_kernel.py compares them. */
#define CLASSES (VL > 1 ? 4 : 1)

/* out[r][from..from + VL * vectors) = gain * the scores of queries q[r] for the keys in a panel (dim, W). out also
 * holds the sum of the classes so far: there are no registers for it. */
FN void NAME(panel_scores)(const int rows, const int vectors, const float * const * q, int64_t dim, const float * panel,
                           float * const * out, int64_t from, float gain) {
    for (int j = 0; j < CLASSES; ++j) {
        vf acc[ROWS][2];
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int c = 0; c < vectors; ++c) {
                acc[r][c] = (vf) {0};
            }
        }
        for (int64_t d = j; d < dim; d += CLASSES) {
            vf key[2];
#pragma GCC unroll 4
            for (int c = 0; c < vectors; ++c) {
                key[c] = NAME(load)(panel + d * W + c * VL);
            }
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const vf x = NAME(splat)(q[r][d]);
#pragma GCC unroll 4
                for (int c = 0; c < vectors; ++c) {
                    acc[r][c] += x * key[c];
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
            for (int c = 0; c < vectors; ++c) {
                float * const to = out[r] + from + c * VL;
                const vf sum = j > 0 ? NAME(load)(to) + acc[r][c] : acc[r][c];
                NAME(store)(to, j == CLASSES - 1 ? sum * gain : sum);
            }
        }
    }
}

/* The same for `cols` keys in panels one behind the other. Rows of scores have room for a multiple of VL. */
FN void NAME(scores)(const int rows, const float * const * q, int64_t dim, const float * panels, int64_t cols,
                     float * const * out, float gain) {
    for (int64_t from = 0; from < cols; from += W, panels += W * dim) {
        if (from + VL < cols) {
            NAME(panel_scores)(rows, 2, q, dim, panels, out, from, gain);
        } else {
            NAME(panel_scores)(rows, 1, q, dim, panels, out, from, gain);
        }
    }
}

/* Scores of at most DOT_ROWS queries for keys that are not in panels: floats or half floats at keys[0], keys[1] and so
 * on. dim: a multiple of VL. KEYS keys at a time: `keys` is padded to a multiple of it, and rows of scores have room.
 * run: prefetches the next keys, as many bytes as are read here, and the values if they are not multiplied in place;
 * NULL if that was done already. A vector holds four elements of each of VL / 4 keys. */
FN void NAME(dots)(const int rows, const int is_f16, const float * const * q, int64_t dim, const char * const * keys,
                   int64_t cols, float * const * out, float gain, struct run * run) {
    const size_t width = is_f16 ? 2 : 4;
    for (int64_t j = 0; j < cols; j += KEYS, keys += KEYS) {
        vf acc[DOT_ROWS][4];
        /* Vectors: with more, sums wait less for each other, but lines of many keys evict each other. */
        const int at_once = rows == 1 ? 1 : 2;
#pragma GCC unroll 4
        for (int first = 0; first < 4; first += at_once) {
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                for (int e = first; e < first + at_once; ++e) {
                    acc[r][e] = (vf) {0};
                }
            }
            for (int64_t d = 0; d < dim; d += VL) {
                if (run != NULL) {
                    prefetch(&run->keys, at_once * KEYS / 4 * VL * width);
                    if (run->unpacks_values) {
                        prefetch(&run->values, at_once * KEYS / 4 * VL * width);
                    }
                }
#pragma GCC unroll 2
                for (int e = first; e < first + at_once; ++e) {
                    vf x[4];
                    FOUR_BY_KEY(x, keys + e * (KEYS / 4), d * width, is_f16);
#pragma GCC unroll 16
                    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
                        for (int u = 0; u < (VL + 3) / 4; ++u) {
                            acc[r][e] += LOAD_FOUR(q[r] + d + 4 * u) * x[u];
                        }
                    }
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            SUM_CLASSES(out[r] + j, acc[r][0], acc[r][1], acc[r][2], acc[r][3], gain);
        }
    }
}

/* One function for each number of rows, so that the accumulators stay in registers. */
typedef void (*NAME(tile_fn))(const float * const *, int64_t, const int32_t *, const char *, size_t, size_t,
                              float * const *, int64_t, const float *, const float *);
typedef void (*NAME(rows_fn))(const float * const *, int64_t, const int32_t *, const char *, size_t, float * const *,
                              int64_t, const float *, const float *, struct run *);
typedef void (*NAME(scores_fn))(const float * const *, int64_t, const float *, int64_t, float * const *, float);
typedef void (*NAME(dots_fn))(const float * const *, int64_t, const char * const *, int64_t, float * const *, float,
                              struct run *);
#define ROWS_IN_PLACE(rows, name, is_f16)                                                                             \
    TARGET static void NAME(name##_##rows)(const float * const * a, int64_t n, const int32_t * index, const char * b, \
                                           size_t ldb, float * const * out, int64_t cols, const float * keep,         \
                                           const float * gain, struct run * run) {                                    \
        NAME(rows_in_place)(rows, is_f16, a, n, index, b, ldb, out, cols, keep, gain, run);                           \
    }
#define DOTS(rows, name, is_f16)                                                                              \
    TARGET static void NAME(name##_##rows)(const float * const * q, int64_t dim, const char * const * keys,   \
                                           int64_t cols, float * const * out, float gain, struct run * run) { \
        NAME(dots)(rows, is_f16, q, dim, keys, cols, out, gain, run);                                         \
    }
#define TILE(rows)                                                                                                   \
    TARGET static void NAME(tile_##rows)(const float * const * a, int64_t n, const int32_t * index, const char * b,  \
                                         size_t ldb, size_t panel, float * const * out, int64_t cols,                \
                                         const float * keep, const float * gain) {                                   \
        NAME(tile)(rows, a, n, index, b, ldb, panel, out, cols, keep, gain);                                         \
    }                                                                                                                \
    TARGET static void NAME(scores_##rows)(const float * const * q, int64_t dim, const float * panels, int64_t cols, \
                                           float * const * out, float gain) {                                        \
        NAME(scores)(rows, q, dim, panels, cols, out, gain);                                                         \
    }                                                                                                                \
    ROWS_IN_PLACE(rows, floats_in_place, 0)                                                                          \
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
static const NAME(scores_fn) NAME(score_tiles)[ROWS + 1] = UP_TO_ROWS(scores);
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
#undef CLASSES
