/* Rounds activations to 8 bits and stores them for the tiles of hotshoe_quants_tiles.h, by AVX2. */
#ifndef HOTSHOE_QUANTS_STAGE_H
#define HOTSHOE_QUANTS_STAGE_H

#include <math.h>

#include "hotshoe_quants_set.h"
#include "hotshoe_quants_vectors.h"

/* 16 numbers times `scale`, rounded to 8 bits. */
INLINE __m128i rounded(__m256 a, __m256 b, float scale) {
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256i both =
        _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(b, factor)));
    const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}

/* The largest magnitude of n numbers, a multiple of 16. */
INLINE float largest_of(const float * x, int n) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    UNROLL_FOR(int j = 0; j < n / 8; ++j) { /* as integers, NaN > infinity > all numbers */
        const __m256i v = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * j));
        largest[j % 2] = _mm256_max_epi32(largest[j % 2], _mm256_and_si256(v, magnitude));
    }
    largest[0] = _mm256_max_epi32(largest[0], largest[1]);
    __m128i top = _mm_max_epi32(_mm256_castsi256_si128(largest[0]), _mm256_extracti128_si256(largest[0], 1));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(top));
}

/* Rounds n numbers, a multiple of `scale_span`, and stores them as token number `token` of `tokens`. zero: the weights'
 * code for 0. */
INLINE void stage(int record_elements, int scale_span, int form, int zero, const float * x, int64_t n, int tokens,
                  int token, char * out) {
    const int record = tokens * STAGED_RECORD(record_elements, form), width = form == FORM_S16 ? 8 : 4;
    float scale = 0, inverse = 0;
    out += token * 4;
    for (int64_t i = 0; i < n; i += record_elements, x += record_elements, out += record) {
        if (i % scale_span == 0) {
            const float largest = largest_of(x, scale_span);
            scale = largest * (1.0f / 127);
            inverse = largest > 1e-36f ? 127 / largest : 0; /* finite; smaller numbers count as 0 */
        }
        __m128i codes[2], pairs = _mm_setzero_si128();
        UNROLL_FOR(int j = 0; j < record_elements / 16; ++j) {
            codes[j] = rounded(_mm256_loadu_ps(x + 16 * j), _mm256_loadu_ps(x + 16 * j + 8), inverse);
            pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(_mm_set1_epi8(1), codes[j]));
        }
        UNROLL_FOR(int j = 0; j < record_elements / 16; ++j) {
            const int wide = form == FORM_S16;
            const __m128i even = _mm_srai_epi16(_mm_slli_epi16(codes[j], 8), 8), odd = _mm_srai_epi16(codes[j], 8);
            int32_t quads[4], odd_quads[4]; /* one quad in each number */
            _mm_storeu_si128((__m128i *) quads, wide ? even : codes[j]);
            _mm_storeu_si128((__m128i *) odd_quads, odd);
            UNROLL_FOR(int q = 0; q < 4; ++q) {
                char * codes_out = out + (4 * j + q) * tokens * width;
                memcpy(codes_out, &quads[q], 4);
                if (wide) {
                    memcpy(codes_out + tokens * 4, &odd_quads[q], 4);
                }
            }
        }
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0x4e));
        /* The sum of elements 0 and 1 of each quad, and that of 2 and 3. */
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0xb1));
        const int32_t both = _mm_cvtsi128_si32(pairs), all = (int16_t) both + (both >> 16);
        const int32_t in_pairs = _mm_cvtsi128_si32(_mm_mullo_epi16(pairs, _mm_set1_epi16((short) -zero)));
        const int32_t start = form == FORM_DOT ? -zero * all : in_pairs;
        const float sum = scale * (float) all;
        char * numbers = out + record_elements / 4 * tokens * width;
        memcpy(numbers, &scale, 4);
        memcpy(numbers + tokens * 4, &start, 4);
        memcpy(numbers + tokens * 8, &sum, 4);
    }
}

/* Stages the rounding errors of one span. */
INLINE void stage_correction(int record_elements, int scale_span, int form, int zero, const float * x, int tokens,
                             int token, char * out) {
    float errors[SCALE_SPAN];
    const float largest = largest_of(x, scale_span), inverse = largest > 1e-36f ? 127 / largest : 0;
    const __m256 scale = _mm256_set1_ps(largest * (1.0f / 127));
    UNROLL_FOR(int i = 0; i < scale_span; i += 16) {
        const __m128i codes = rounded(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8), inverse);
        const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
        const __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
        _mm256_storeu_ps(errors + i, _mm256_fnmadd_ps(first, scale, _mm256_loadu_ps(x + i)));
        _mm256_storeu_ps(errors + i + 8, _mm256_fnmadd_ps(second, scale, _mm256_loadu_ps(x + i + 8)));
    }
    stage(record_elements, scale_span, form, zero, errors, scale_span, tokens, token, out);
}

ISA static float max_scale(const float * x, int64_t k) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < k; i += 32) { /* the same order for each instruction set */
        UNROLL_FOR(int j = 0; j < 4; ++j) {
            const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            sums[j] = _mm256_fmadd_ps(v, v, sums[j]);
        }
    }
    float eight[8], sum = 0;
    _mm256_storeu_ps(eight, _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    for (int j = 0; j < 8; ++j) {
        sum += eight[j];
    }
    return 10.0f / 127 * sqrtf(sum / (float) k);
}

#endif
