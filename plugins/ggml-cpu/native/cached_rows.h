/* Converts rows of keys and values, as a cache holds them, to floats: BF16, and the block types that a cache may have.
 * Their blocks have 32 elements, a scale in half precision, a minimum if the name ends with _1, and codes of 4, 5 or 8
 * bits. The layouts are ggml's. */
#ifndef HOTSHOE_CACHED_ROWS_H
#define HOTSHOE_CACHED_ROWS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "codebooks.h"
#include "ggml.h"
#include "isa.h"

/* out[16]: elements 16 * upper to 16 * upper + 15 of a block. */
AVX2 ALWAYS_INLINE void half_block(float * out, const char * block, enum ggml_type type, int upper) {
    const int has_min = type == GGML_TYPE_Q4_1 || type == GGML_TYPE_Q5_1;
    const int fifth = type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1;
    const char * const codes_at = block + 2 + 2 * has_min;
    uint16_t halves[2];
    memcpy(halves, block, has_min ? 4 : 2);
    __m128i codes;
    if (type == GGML_TYPE_Q8_0) {
        codes = _mm_loadu_si128((const __m128i *) (codes_at + 16 * upper));
    } else {
        const __m128i both = _mm_loadu_si128((const __m128i *) (codes_at + 4 * fifth));
        codes = _mm_and_si128(upper ? _mm_srli_epi16(both, 4) : both, _mm_set1_epi8(15));
        if (fifth) {
            uint16_t bits;
            memcpy(&bits, codes_at + 2 * upper, 2);
            const __m128i bit = _mm_set1_epi64x((int64_t) 0x8040201008040201);
            const __m128i spread =
                _mm_shuffle_epi8(_mm_set1_epi16((int16_t) bits), _mm_set_epi64x(0x0101010101010101, 0));
            const __m128i set = _mm_cmpeq_epi8(_mm_and_si128(spread, bit), bit);
            codes = _mm_or_si128(codes, _mm_and_si128(set, _mm_set1_epi8(16)));
        }
        if (type == GGML_TYPE_IQ4_NL) {
            codes = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *) iq4_codebook), codes);
        } else if (!has_min) {
            codes = _mm_sub_epi8(codes, _mm_set1_epi8(fifth ? 16 : 8));
        }
    }
    const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    const __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)));
    const __m256 scale = _mm256_set1_ps(_cvtsh_ss(halves[0]));
    const __m256 minimum = has_min ? _mm256_set1_ps(_cvtsh_ss(halves[1])) : _mm256_setzero_ps();
    _mm256_storeu_ps(out, has_min ? _mm256_fmadd_ps(first, scale, minimum) : _mm256_mul_ps(first, scale));
    _mm256_storeu_ps(out + 8, has_min ? _mm256_fmadd_ps(second, scale, minimum) : _mm256_mul_ps(second, scale));
}

#define BLOCKS(name, bytes)                                                        \
    case GGML_TYPE_##name:                                                         \
        for (int64_t i = 0; i < n; i += 32) {                                      \
            half_block(out + i, row + i / 32 * (bytes), GGML_TYPE_##name, 0);      \
            half_block(out + i + 16, row + i / 32 * (bytes), GGML_TYPE_##name, 1); \
        }                                                                          \
        break;

/* out[n]: the first n numbers of a row. n: a multiple of 32 if the type has blocks. */
AVX2 static void cached_row(float * out, const char * row, enum ggml_type type, int64_t n) {
    switch (type) {
        BLOCKS(Q8_0, 34)
        BLOCKS(Q4_0, 18)
        BLOCKS(Q4_1, 20)
        BLOCKS(Q5_0, 22)
        BLOCKS(Q5_1, 24)
        BLOCKS(IQ4_NL, 18)
        default: /* BF16 */
            for (int64_t i = 0; i < n; ++i) {
                uint16_t half;
                memcpy(&half, row + 2 * i, 2);
                const uint32_t bits = (uint32_t) half << 16;
                memcpy(out + i, &bits, 4);
            }
    }
}
#undef BLOCKS

#endif
