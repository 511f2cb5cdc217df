/* What a product with F32, F16 or BF16 weights does around its tiles: stages tokens, brings a piece of a weight into
 * the form that tiles read, packs panels, and finishes tiles. Only hotshoe_linear.c includes this. */
#ifndef HOTSHOE_LINEAR_PIECES_H
#define HOTSHOE_LINEAR_PIECES_H

#include "finish_row.h"
#include "hotshoe_linear_tiles.h"
#include "tensor_rows.h"

/* --- staging: n features of some tokens, STRIDE bytes from each other -------------------------------- */

static void stage_f32(const char * x, int64_t row_stride, int64_t n_tokens, int64_t n, char * staged) {
    for (int64_t r = 0; r < n_tokens; ++r) {
        memcpy(staged + r * STRIDE, x + r * row_stride, (size_t) n * sizeof(float));
    }
}

AVX512_BF16 static void stage_bf16(const char * x, int64_t row_stride, int64_t n_tokens, int64_t n, char * staged) {
    for (int64_t r = 0; r < n_tokens; ++r) {
        const float * in = (const float *) (x + r * row_stride);
        char * out = staged + r * STRIDE;
        for (int64_t i = 0; i < n; i += 16) { /* an odd last number is paired with 0 */
            const __mmask16 mask = (__mmask16) (n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
            const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, in + i));
            _mm256_storeu_si256((__m256i *) (out + 2 * i), (__m256i) half);
        }
    }
}

/* --- a piece of a weight as F32, or as pairs of BF16, k-major, which several tiles read ---------------- */

/* Panels of F16 to F32, once for all tiles: 108 GFLOP/s a core instead of 102. */
AVX512 static void widen_512(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 16) {
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (w + 2 * i))));
    }
}
AVX2 static void widen_256(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 8) {
        _mm256_store_ps(out + i, _mm256_cvtph_ps(_mm_load_si128((const __m128i *) (w + 2 * i))));
    }
}

/* Panels of pairs of BF16 to F32, feature by feature. */
AVX2 static void widen_pairs(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 2 * PANEL) {
        UNROLL_FOR(int v = 0; v < PANEL; v += 8) {
            const __m256i pairs = _mm256_load_si256((const __m256i *) (w + 2 * i + 4 * v));
            _mm256_store_ps(out + i + v, first_of_pairs_256(pairs));
            _mm256_store_ps(out + i + PANEL + v, second_of_pairs_256(pairs));
        }
    }
}

AVX2 ALWAYS_INLINE __m256 load_256(int format, const char * numbers) {
    if (format == HOTSHOE_LINEAR_F32) {
        return _mm256_loadu_ps((const float *) numbers);
    }
    const __m128i half = _mm_loadu_si128((const __m128i *) numbers);
    return format == HOTSHOE_LINEAR_F16 ? _mm256_cvtph_ps(half)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* v[r]: 8 numbers of row r. Afterwards v[i] has number i of all 8 rows. */
AVX2 ALWAYS_INLINE void transpose_8(__m256 * v) {
    __m256 a[8], b[8];
    UNROLL_FOR(int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL_FOR(int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    UNROLL_FOR(int i = 0; i < 4; ++i) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* Transposes the first `steps` numbers of `width` rows of a weight as stored: out[steps][width], F32. Only n of the
 * rows exist; the other columns repeat the last row, and nothing reads them. It takes some features of all rows, then
 * the next features, and prefetches the lines that it will write, each as a whole. */
AVX2 ALWAYS_INLINE void transpose_rows(int format, const char * w, int64_t row_stride, int n, int width, int64_t steps,
                                       float * out) {
    enum { AT_ONCE = 32 };
    const int size = format == HOTSHOE_LINEAR_F32 ? 4 : 2;
    const char * row[PANEL];
    for (int r = 0; r < width; ++r) {
        row[r] = w + (r < n ? r : n - 1) * row_stride;
    }
    int64_t i = 0;
    for (; i + 8 <= steps; i += AT_ONCE) {
        const int64_t stop = min64(i + AT_ONCE, steps & ~(int64_t) 7);
        for (int64_t later = stop * width; later < min64(stop + AT_ONCE, steps) * width; later += 16) {
            __builtin_prefetch(out + later, 1);
        }
        for (int first = 0; first < width; first += 8) {
            for (int64_t j = i; j < stop; j += 8) {
                __m256 v[8];
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    v[r] = load_256(format, row[first + r] + j * size);
                }
                transpose_8(v);
                UNROLL_FOR(int s = 0; s < 8; ++s) {
                    _mm256_store_ps(out + (j + s) * width + first, v[s]);
                }
            }
        }
    }
    for (i = steps & ~(int64_t) 7; i < steps; ++i) {
        for (int r = 0; r < width; ++r) {
            char last[32] = {0};
            memcpy(last, row[r] + i * size, (size_t) size);
            out[i * width + r] = _mm256_cvtss_f32(load_256(format, last));
        }
    }
}
#define TRANSPOSE_ARGS const char *w, int64_t row_stride, int n, int width, int64_t steps, float *out
AVX2 static void transpose_f32(TRANSPOSE_ARGS) {
    transpose_rows(HOTSHOE_LINEAR_F32, w, row_stride, n, width, steps, out);
}
AVX2 static void transpose_f16(TRANSPOSE_ARGS) {
    transpose_rows(HOTSHOE_LINEAR_F16, w, row_stride, n, width, steps, out);
}
AVX2 static void transpose_bf16(TRANSPOSE_ARGS) {
    transpose_rows(HOTSHOE_LINEAR_BF16, w, row_stride, n, width, steps, out);
}
static void (*const transpose_as_f32[])(TRANSPOSE_ARGS) = {transpose_f32, transpose_f16, transpose_bf16};

/* --- packing: n rows of a weight as one panel, k-major ------------------------------------------------- */

/* Words 0, 2, 4, ... of pairs, then words 1, 3, 5, .... */
AVX2 ALWAYS_INLINE __m256i separate_words(__m256i pairs) {
    const __m256i order = _mm256_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0, 15, 14, 11, 10, 7, 6, 3,
                                          2, 13, 12, 9, 8, 5, 4, 1, 0);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, order), 0xd8);
}

/* A row of 16-bit numbers moves as pairs. Only F16 is separated again. */
AVX2 static void pack_panel(int format, int64_t k, int n, const char * rows, char * panel) {
    const int size = format == HOTSHOE_LINEAR_F32 ? 4 : 2, in_unit = 4 / size;
    const int64_t row_size = k * size, units = n == PANEL ? k / in_unit & ~(int64_t) 7 : 0;
    for (int64_t i = 0; i < units; i += 8) {
        UNROLL_FOR(int first = 0; first < PANEL; first += 8) {
            __m256 v[8];
            UNROLL_FOR(int r = 0; r < 8; ++r) {
                v[r] = _mm256_loadu_ps((const float *) (rows + (first + r) * row_size + 4 * i));
            }
            transpose_8(v);
            UNROLL_FOR(int s = 0; s < 8; ++s) {
                if (format != HOTSHOE_LINEAR_F16) {
                    _mm256_store_ps((float *) panel + (i + s) * PANEL + first, v[s]);
                    continue;
                }
                const __m256i words = separate_words(_mm256_castps_si256(v[s]));
                __m128i * out = (__m128i *) (panel + 2 * (2 * (i + s) * PANEL + first));
                _mm_store_si128(out, _mm256_castsi256_si128(words));
                _mm_store_si128(out + PANEL / 8, _mm256_extracti128_si256(words, 1));
            }
        }
    }
    for (int r = 0; r < n; ++r) {
        for (int64_t i = units * in_unit; i < k; ++i) {
            const int64_t at = format == HOTSHOE_LINEAR_BF16 ? i / 2 * 2 * PANEL + 2 * r + i % 2 : i * PANEL + r;
            memcpy(panel + at * size, rows + r * row_size + i * size, (size_t) size);
        }
    }
}

/* --- finishing --------------------------------------------------------------------------------------- */

/* dst = act(tile + bias) + residual, for `rows` rows of a tile and the `cols` columns of it that the result has. tile:
 * rows `stride` floats from each other; residual and dst: m floats. bias and residual: or NULL. */
#define FINISH_ARGS                                                                                            \
    const float *tile, int64_t stride, int rows, int cols, const float *bias, int gelu, const float *residual, \
        float *dst, int64_t m
typedef void (*finish_fn)(FINISH_ARGS);
ALWAYS_INLINE void finish(int width, FINISH_ARGS) {
    float padded_bias[PANEL] = {0};
    if (bias) {
        memcpy(padded_bias, bias, (size_t) cols * sizeof(float));
    }
    for (int r = 0; r < rows; ++r) {
        finish_row(width, tile + r * stride, cols, padded_bias, gelu, residual ? residual + r * m : 0, dst + r * m);
    }
}
AVX2 static void finish_half_256(FINISH_ARGS) {
    finish(HALF_PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m);
}
AVX2 static void finish_256(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }
AVX512 static void finish_512(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }

#endif
