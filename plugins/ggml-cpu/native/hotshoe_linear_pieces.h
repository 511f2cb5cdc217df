/* What a product with F32, F16 or BF16 weights does around its tiles: stages tokens, brings a piece of a weight into
 * the form that tiles read, and finishes tiles. Only hotshoe_linear.c includes this. */
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

/* Rounds the first k F16 of n rows to BF16, without gaps. */
AVX512_BF16 static void round_rows(const char * w, int64_t row_stride, int n, int64_t k, uint16_t * out) {
    for (int r = 0; r < n; ++r, out += k) {
        const uint16_t * row = (const uint16_t *) (w + r * row_stride);
        for (int64_t i = 0; i < k; i += 16) {
            const __mmask16 mask = (__mmask16) (k - i >= 16 ? 0xffff : (1 << (k - i)) - 1);
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + i)));
            _mm256_mask_storeu_epi16(out + i, mask, (__m256i) rounded);
        }
    }
}

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

AVX2 ALWAYS_INLINE __m256 load_256(int format, const char * numbers) {
    if (format == HOTSHOE_LINEAR_F32) {
        return _mm256_loadu_ps((const float *) numbers);
    }
    const __m128i half = _mm_loadu_si128((const __m128i *) numbers);
    return format == HOTSHOE_LINEAR_F16 ? _mm256_cvtph_ps(half)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

AVX2 ALWAYS_INLINE void store_transposed(const __m256 * v, float * out, int width) {
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
        _mm256_store_ps(out + i * width, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_store_ps(out + (i + 4) * width, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
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
                store_transposed(v, out + j * width + first, width);
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
