/* Tiles of products of few tokens with a weight that is not packed yet: some tokens by 16 rows of the weight, which are
 * transposed in registers. With many tokens it is faster to transpose them once for all tiles. Only hotshoe_linear.c
 * includes this.
 *
 * The functions take TILE_ARGS. w: the first of the rows; panel_stride: bytes from one row to the next; steps: as many
 * as fill whole cache lines of a row. */
#ifndef HOTSHOE_LINEAR_STORED_H
#define HOTSHOE_LINEAR_STORED_H

#include "hotshoe_linear_pieces.h"

/* v[i]: number i, or pair i of 16-bit numbers, of each of 16 rows. w: a cache line of the first row. */
AVX512 ALWAYS_INLINE void load_transposed(const char * w, int64_t row_stride, __m512 * v) {
    __m512 twos[16];
    UNROLL_FOR(int i = 0; i < 16; i += 2) {
        const __m512 row = _mm512_loadu_ps((const float *) (w + i * row_stride));
        const __m512 other = _mm512_loadu_ps((const float *) (w + (i + 1) * row_stride));
        twos[i] = _mm512_unpacklo_ps(row, other);
        twos[i + 1] = _mm512_unpackhi_ps(row, other);
    }
    __m512 fours[16]; /* fours[4 * g + c], lane j: number 4 * j + c of rows 4 * g to 4 * g + 3 */
    UNROLL_FOR(int i = 0; i < 16; i += 4) {
        UNROLL_FOR(int c = 0; c < 2; ++c) {
            const __m512d low = _mm512_castps_pd(twos[i + c]), high = _mm512_castps_pd(twos[i + c + 2]);
            fours[i + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            fours[i + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    UNROLL_FOR(int c = 0; c < 4; ++c) {
        const __m512 even_low = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0x88);
        const __m512 even_high = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0x88);
        const __m512 odd_low = _mm512_shuffle_f32x4(fours[c], fours[4 + c], 0xdd);
        const __m512 odd_high = _mm512_shuffle_f32x4(fours[8 + c], fours[12 + c], 0xdd);
        v[c] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
        v[4 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
        v[8 + c] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
        v[12 + c] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
}

AVX512 ALWAYS_INLINE void start_sums(int rows, const float * tile, int64_t tile_stride, int resume, __m512 * sums) {
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        sums[r] = resume ? _mm512_loadu_ps(tile + r * tile_stride) : _mm512_setzero_ps();
    }
}

AVX512 ALWAYS_INLINE void store_sums(int rows, const __m512 * sums, float * tile, int64_t tile_stride) {
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        _mm512_storeu_ps(tile + r * tile_stride, sums[r]);
    }
}

AVX512 ALWAYS_INLINE void add_products(int rows, const char * x, __m512 numbers, __m512 * sums) {
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(*(const float *) (x + r * STRIDE)), numbers, sums[r]);
    }
}

/* format: F32, F16, or BF16_ONE_BY_ONE */
AVX512 ALWAYS_INLINE void stored_512(int rows, int format, const char * x, const char * w, int64_t steps,
                                     int64_t row_stride, float * tile, int64_t tile_stride, int resume,
                                     const struct upcoming * next) {
    /* The first numbers of all pairs, then the second ones. */
    const __m512i apart = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                                           22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const int in_line = format == HOTSHOE_LINEAR_F32 ? 16 : 32;
    __m512 sums[MAX_ROWS], v[16];
    start_sums(rows, tile, tile_stride, resume, sums);
    for (int64_t i = 0; i < steps; i += in_line, w += LINE, x += in_line * 4) {
        prefetch_upcoming(next, i);
        load_transposed(w, row_stride, v);
        UNROLL_FOR(int s = 0; s < 16; ++s) {
            const __m512i pairs = _mm512_castps_si512(v[s]);
            if (format == HOTSHOE_LINEAR_F32) {
                add_products(rows, x + 4 * s, v[s], sums);
            } else if (format == HOTSHOE_LINEAR_F16) {
                const __m512i both = _mm512_permutexvar_epi16(apart, pairs);
                add_products(rows, x + 8 * s, _mm512_cvtph_ps(_mm512_castsi512_si256(both)), sums);
                add_products(rows, x + 8 * s + 4, _mm512_cvtph_ps(_mm512_extracti64x4_epi64(both, 1)), sums);
            } else {
                add_products(rows, x + 8 * s, first_of_pairs_512(pairs), sums);
                add_products(rows, x + 8 * s + 4, second_of_pairs_512(pairs), sums);
            }
        }
    }
    store_sums(rows, sums, tile, tile_stride);
}

AVX512_BF16 ALWAYS_INLINE void stored_bf16(int rows, const char * x, const char * w, int64_t steps, int64_t row_stride,
                                           float * tile, int64_t tile_stride, int resume,
                                           const struct upcoming * next) {
    __m512 sums[MAX_ROWS], v[16];
    start_sums(rows, tile, tile_stride, resume, sums);
    for (int64_t i = 0; i < steps; i += 16, w += LINE, x += 64) {
        prefetch_upcoming(next, i);
        load_transposed(w, row_stride, v);
        UNROLL_FOR(int s = 0; s < 16; ++s) {
            UNROLL_FOR(int r = 0; r < rows; ++r) {
                const __m512i pair = _mm512_set1_epi32(*(const int32_t *) (x + 4 * s + r * STRIDE));
                sums[r] = _mm512_dpbf16_ps(sums[r], (__m512bh) pair, (__m512bh) _mm512_castps_si512(v[s]));
            }
        }
    }
    store_sums(rows, sums, tile, tile_stride);
}

/* 8 rows of the weight, then 8 more. */
AVX2 ALWAYS_INLINE void stored_256(int rows, int format, const char * x, const char * w, int64_t steps,
                                   int64_t row_stride, float * tile, int64_t tile_stride, int resume,
                                   const struct upcoming * next) {
    const int size = format == HOTSHOE_LINEAR_F32 ? 4 : 2;
    for (int half = 0; half < 2; ++half, w += 8 * row_stride, tile += 8) {
        __m256 sums[MAX_ROWS_TWO], v[8];
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            sums[r] = resume ? _mm256_loadu_ps(tile + r * tile_stride) : _mm256_setzero_ps();
        }
        for (int64_t i = 0; i < steps; i += 8) {
            if (half) {
                prefetch_upcoming(next, i);
            }
            UNROLL_FOR(int r = 0; r < 8; ++r) {
                v[r] = load_256(format, w + r * row_stride + i * size);
            }
            transpose_8(v);
            UNROLL_FOR(int s = 0; s < 8; ++s) {
                UNROLL_FOR(int r = 0; r < rows; ++r) {
                    const __m256 value = _mm256_broadcast_ss((const float *) (x + 4 * (i + s) + r * STRIDE));
                    sums[r] = _mm256_fmadd_ps(value, v[s], sums[r]);
                }
            }
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            _mm256_storeu_ps(tile + r * tile_stride, sums[r]);
        }
    }
}

#define STORED_512(rows, unused)                                                                          \
    AVX512 static void stored_f32_512_##rows(TILE_ARGS) {                                                 \
        stored_512(rows, HOTSHOE_LINEAR_F32, x, w, steps, panel_stride, tile, tile_stride, resume, next); \
    }                                                                                                     \
    AVX512 static void stored_f16_512_##rows(TILE_ARGS) {                                                 \
        stored_512(rows, HOTSHOE_LINEAR_F16, x, w, steps, panel_stride, tile, tile_stride, resume, next); \
    }                                                                                                     \
    AVX512 static void stored_single_512_##rows(TILE_ARGS) {                                              \
        stored_512(rows, BF16_ONE_BY_ONE, x, w, steps, panel_stride, tile, tile_stride, resume, next);    \
    }                                                                                                     \
    AVX512_BF16 static void stored_bf16_512_##rows(TILE_ARGS) {                                           \
        stored_bf16(rows, x, w, steps, panel_stride, tile, tile_stride, resume, next);                    \
    }
#define STORED_OF_256(name, format, rows)                                                     \
    AVX2 static void stored_##name##_256_##rows(TILE_ARGS) {                                  \
        stored_256(rows, format, x, w, steps, panel_stride, tile, tile_stride, resume, next); \
    }
#define STORED_256(rows)                         \
    STORED_OF_256(f32, HOTSHOE_LINEAR_F32, rows) \
    STORED_OF_256(f16, HOTSHOE_LINEAR_F16, rows) \
    STORED_OF_256(single, HOTSHOE_LINEAR_BF16, rows)
EACH_TO_14(STORED_512)
STORED_256(1)
STORED_256(2)
STORED_256(3)
STORED_256(4)
STORED_256(5)
STORED_256(6)

/* [format][0][rows] */
#define STORED_F32_512(rows, unused) [rows] = stored_f32_512_##rows,
#define STORED_F16_512(rows, unused) [rows] = stored_f16_512_##rows,
#define STORED_BF16_512(rows, unused) [rows] = stored_bf16_512_##rows,
#define STORED_SINGLE_512(rows, unused) [rows] = stored_single_512_##rows,
static const tile_table stored_tiles_512[] = {
    {{EACH_TO_14(STORED_F32_512)}},
    {{EACH_TO_14(STORED_F16_512)}},
    {{EACH_TO_14(STORED_BF16_512)}},
    [BF16_ONE_BY_ONE] = {{EACH_TO_14(STORED_SINGLE_512)}},
};
static const tile_table stored_tiles_256[] = {
    {ROWS_256(stored_f32)}, {ROWS_256(stored_f16)}, [BF16_ONE_BY_ONE] = {ROWS_256(stored_single)}};

#endif
