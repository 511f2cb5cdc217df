/* Activations rounded to 8 bits, and tiles of the product of such with the records of hotshoe_quants_unpack.h.
 *
 * The tokens of a tile stand beside each other, record by record: [block / 4][tokens][4 codes], then for each token the
 * scale, what its sums of products start with, and scale * sum of codes, all of 4 bytes. In a tile for signed weights of 16
 * bits a group of codes is [2][tokens][2], elements 0 and 2, then 1 and 3.
 */
#ifndef HOTSHOE_QUANTS_TILES_H
#define HOTSHOE_QUANTS_TILES_H

#include "hotshoe_quants_unpack.h"

enum { TOKENS = 4, TOKENS_DOT = 8 }; /* of a tile at most; the second with 32 registers */

#define AVX512_VNNI __attribute__((target("avx512vnni,avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))

/* --- activations ----------------------------------------------------------------------------------- */

/* 16 numbers times `scale`, rounded. */
INLINE_AVX2 __m128i rounded(__m256 a, __m256 b, float scale) {
    const __m256 by = _mm256_set1_ps(scale);
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, by)), _mm256_cvtps_epi32(_mm256_mul_ps(b, by)));
    const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}

/* Rows of n numbers, a multiple of `block`, into the places of token `token` of `tokens`. zero: the weights' code for 0. */
INLINE_AVX2 void stage(int block, int form, int zero, const float * x, int64_t n, int tokens, int token, char * out) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    const int record = tokens * STAGED_RECORD(block, form), width = form == FORM_S16 ? 8 : 4;
    out += token * 4;
    for (int64_t i = 0; i < n; i += block, x += block, out += record) {
        __m256 v[4];
        __m256i most = _mm256_setzero_si256();
        UNROLL for (int j = 0; j < block / 8; ++j) {
            v[j] = _mm256_loadu_ps(x + 8 * j); /* as integers NaN is above infinity, which is above all numbers */
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(v[j]), magnitude));
        }
        __m128i top = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
        top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
        const float largest = _mm_cvtss_f32(_mm_castsi128_ps(top));
        const float scale = largest * (1.0f / 127);
        const float inverse = largest > 1e-36f ? 127 / largest : 0; /* finite; what is smaller counts as 0 */
        __m128i codes[2], pairs = _mm_setzero_si128();
        UNROLL for (int j = 0; j < block / 16; ++j) {
            codes[j] = rounded(v[2 * j], v[2 * j + 1], inverse);
            pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(_mm_set1_epi8(1), codes[j]));
        }
        UNROLL for (int j = 0; j < block / 16; ++j) {
            const int wide = form == FORM_S16;
            const __m128i even = _mm_srai_epi16(_mm_slli_epi16(codes[j], 8), 8), odd = _mm_srai_epi16(codes[j], 8);
            int32_t four[4], other[4]; /* a group each */
            _mm_storeu_si128((__m128i *) four, wide ? even : codes[j]);
            _mm_storeu_si128((__m128i *) other, odd);
            UNROLL for (int g = 0; g < 4; ++g) {
                char * to = out + (4 * j + g) * tokens * width;
                memcpy(to, &four[g], 4);
                if (wide) {
                    memcpy(to + tokens * 4, &other[g], 4);
                }
            }
        }
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0x4e));
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0xb1)); /* of elements 0 and 1 of each group, of 2 and 3 */
        const int32_t two = _mm_cvtsi128_si32(pairs), all = (int16_t) two + (two >> 16);
        const int32_t in_pairs = _mm_cvtsi128_si32(_mm_mullo_epi16(pairs, _mm_set1_epi16((short) -zero)));
        const int32_t start = form == FORM_DOT ? -zero * all : in_pairs;
        const float sum = scale * (float) all;
        char * numbers = out + block / 4 * tokens * width;
        memcpy(numbers, &scale, 4);
        memcpy(numbers + tokens * 4, &start, 4);
        memcpy(numbers + tokens * 8, &sum, 4);
    }
}

typedef void (*stage_fn)(int zero, const float * x, int64_t n, int tokens, int token, char * out);
#define STAGE_ARGS int zero, const float *x, int64_t n, int tokens, int token, char *out
AVX2 static void stage_u8_32(STAGE_ARGS) { stage(32, FORM_U8, zero, x, n, tokens, token, out); }
AVX2 static void stage_u8_16(STAGE_ARGS) { stage(16, FORM_U8, zero, x, n, tokens, token, out); }
AVX2 static void stage_dot_32(STAGE_ARGS) { stage(32, FORM_DOT, zero, x, n, tokens, token, out); }
AVX2 static void stage_dot_16(STAGE_ARGS) { stage(16, FORM_DOT, zero, x, n, tokens, token, out); }
AVX2 static void stage_s16_32(STAGE_ARGS) { stage(32, FORM_S16, zero, x, n, tokens, token, out); }

/* --- tiles: sums[token][0..16) += x @ record, for n records ---------------------------------------------------- */

INLINE_AVX2 void tile(int tokens, int block, int form, int mins, const char * x, const char * w, int64_t n, float * sums) {
    const int staged = tokens * STAGED_RECORD(block, form), wide = form == FORM_S16;
    const int steps = wide ? block / 2 : block / 4; /* vpmaddwd takes pairs: the even and the odd ones of a group by turns */
    __m256 total[TOKENS][2];
    UNROLL for (int t = 0; t < tokens; ++t) {
        UNROLL for (int h = 0; h < 2; ++h) {
            total[t][h] = _mm256_loadu_ps(sums + t * ROWS + h * HALF);
        }
    }
    for (int64_t i = 0; i < n; ++i, x += staged, w += RECORD(block, form, mins)) {
        const char * numbers = x + staged - tokens * 12;
        __m256i sum[TOKENS][2];
        UNROLL for (int t = 0; t < tokens; ++t) {
            sum[t][0] = sum[t][1] = wide ? _mm256_setzero_si256() : four_bytes(numbers + (tokens + t) * 4);
        }
        UNROLL for (int step = 0; step < steps; ++step) {
            const char * codes = wide ? w + step / 2 * 2 * GROUP + step % 2 * 32 : w + step * GROUP;
            const __m256i w0 = _mm256_load_si256((const __m256i *) codes);
            const __m256i w1 = _mm256_load_si256((const __m256i *) (codes + (wide ? 64 : 32)));
            UNROLL for (int t = 0; t < tokens; ++t) {
                const __m256i a = four_bytes(x + (step * tokens + t) * 4);
                sum[t][0] = wide ? add_s16(sum[t][0], w0, a) : add_u8(sum[t][0], w0, a);
                sum[t][1] = wide ? add_s16(sum[t][1], w1, a) : add_u8(sum[t][1], w1, a);
            }
        }
        const float * scales = (const float *) (w + CODE_BYTES(block, form));
        UNROLL for (int t = 0; t < tokens; ++t) {
            UNROLL for (int h = 0; h < 2; ++h) {
                const __m256 scale = _mm256_load_ps(scales + h * HALF);
                const __m256 least = mins ? _mm256_load_ps(scales + ROWS + h * HALF) : _mm256_setzero_ps();
                total[t][h] = close_sum(form, mins, total[t][h], sum[t][h], numbers + t * 4, tokens * 4, scale, least);
            }
        }
    }
    UNROLL for (int t = 0; t < tokens; ++t) {
        UNROLL for (int h = 0; h < 2; ++h) {
            _mm256_storeu_ps(sums + t * ROWS + h * HALF, total[t][h]);
        }
    }
}

/* The same by AVX-512 VNNI: a record's 16 rows are one register, and four products are added in 32 bits, where the largest
 * sum of 255 * 127 fits. Not run on such a CPU yet: only with its few intrinsics replaced by loops over their lanes. */
AVX512_VNNI ALWAYS_INLINE void tile_dot(int tokens, int block, int mins, const char * x, const char * w, int64_t n,
                                        float * sums) {
    const int staged = tokens * STAGED_RECORD(block, FORM_DOT);
    __m512 total[TOKENS_DOT];
    UNROLL for (int t = 0; t < tokens; ++t) {
        total[t] = _mm512_loadu_ps(sums + t * ROWS);
    }
    for (int64_t i = 0; i < n; ++i, x += staged, w += RECORD(block, FORM_DOT, mins)) {
        const int32_t * codes = (const int32_t *) x; /* staged in units of 4 bytes */
        const int32_t * starts = (const int32_t *) (x + staged) - 2 * tokens;
        const float *token_scales = (const float *) starts - tokens, *token_sums = (const float *) starts + tokens;
        __m512i sum[TOKENS_DOT];
        UNROLL for (int t = 0; t < tokens; ++t) {
            sum[t] = _mm512_set1_epi32(starts[t]);
        }
        UNROLL for (int g = 0; g < block / 4; ++g) {
            const __m512i group = _mm512_loadu_si512((const void *) (w + g * GROUP));
            UNROLL for (int t = 0; t < tokens; ++t) {
                sum[t] = _mm512_dpbusd_epi32(sum[t], group, _mm512_set1_epi32(codes[g * tokens + t]));
            }
        }
        const float * scales = (const float *) (w + CODE_BYTES(block, FORM_DOT));
        UNROLL for (int t = 0; t < tokens; ++t) {
            const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), _mm512_set1_ps(token_scales[t]));
            total[t] = _mm512_fmadd_ps(scaled, _mm512_loadu_ps(scales), total[t]);
            if (mins) {
                total[t] = _mm512_fmadd_ps(_mm512_loadu_ps(scales + ROWS), _mm512_set1_ps(token_sums[t]), total[t]);
            }
        }
    }
    UNROLL for (int t = 0; t < tokens; ++t) {
        _mm512_storeu_ps(sums + t * ROWS, total[t]);
    }
}

typedef void (*tile_fn)(const char * x, const char * w, int64_t n, float * sums);
#define TILE_ARGS const char *x, const char *w, int64_t n, float *sums
#define TILES(tokens)                                                                                                  \
    AVX2 static void u8_32_##tokens(TILE_ARGS) { tile(tokens, 32, FORM_U8, 0, x, w, n, sums); }                              \
    AVX2 static void u8_32_mins_##tokens(TILE_ARGS) { tile(tokens, 32, FORM_U8, 1, x, w, n, sums); }                         \
    AVX2 static void u8_16_##tokens(TILE_ARGS) { tile(tokens, 16, FORM_U8, 0, x, w, n, sums); }                              \
    AVX2 static void u8_16_mins_##tokens(TILE_ARGS) { tile(tokens, 16, FORM_U8, 1, x, w, n, sums); }                         \
    AVX2 static void s16_##tokens(TILE_ARGS) { tile(tokens, 32, FORM_S16, 0, x, w, n, sums); }
TILES(1) TILES(2) TILES(3) TILES(4)

#define TILES_DOT(tokens)                                                                                              \
    AVX512_VNNI static void dot_32_##tokens(TILE_ARGS) { tile_dot(tokens, 32, 0, x, w, n, sums); }                     \
    AVX512_VNNI static void dot_32_mins_##tokens(TILE_ARGS) { tile_dot(tokens, 32, 1, x, w, n, sums); }                \
    AVX512_VNNI static void dot_16_##tokens(TILE_ARGS) { tile_dot(tokens, 16, 0, x, w, n, sums); }                     \
    AVX512_VNNI static void dot_16_mins_##tokens(TILE_ARGS) { tile_dot(tokens, 16, 1, x, w, n, sums); }
TILES_DOT(1) TILES_DOT(2) TILES_DOT(3) TILES_DOT(4) TILES_DOT(5) TILES_DOT(6) TILES_DOT(7) TILES_DOT(8)

/* By form, whether blocks are of 16, whether there are minimums, and the number of tokens. */
#define TO_4(name) {0, name##_1, name##_2, name##_3, name##_4}
#define TO_8(name) {0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8}
static const tile_fn tiles_of[3][2][2][TOKENS_DOT + 1] = {
    [FORM_U8] = {{TO_4(u8_32), TO_4(u8_32_mins)}, {TO_4(u8_16), TO_4(u8_16_mins)}},
    [FORM_S16] = {{TO_4(s16)}},
    [FORM_DOT] = {{TO_8(dot_32), TO_8(dot_32_mins)}, {TO_8(dot_16), TO_8(dot_16_mins)}},
};
static const stage_fn stage_of[3][2] = {
    [FORM_U8] = {stage_u8_32, stage_u8_16},
    [FORM_S16] = {stage_s16_32},
    [FORM_DOT] = {stage_dot_32, stage_dot_16},
};

#endif
