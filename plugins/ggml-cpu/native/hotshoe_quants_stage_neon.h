/* Rounds activations to 8 bits and stores them for the tiles of hotshoe_quants_tiles.h, by NEON. The results are those
 * of hotshoe_quants_stage.h. */
#ifndef HOTSHOE_QUANTS_STAGE_NEON_H
#define HOTSHOE_QUANTS_STAGE_NEON_H

#include <math.h>

#include "hotshoe_quants_set.h"
#include "hotshoe_quants_vectors.h"

/* 16 numbers times `scale`, rounded to 8 bits. */
INLINE int8x16_t rounded(const float * x, float scale) {
    int16x4_t fours[4];
    UNROLL_FOR(int i = 0; i < 4; ++i) {
        fours[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), scale)));
    }
    return vcombine_s8(vqmovn_s16(vcombine_s16(fours[0], fours[1])), vqmovn_s16(vcombine_s16(fours[2], fours[3])));
}

/* The largest magnitude of n numbers, a multiple of 16. */
INLINE float largest_of(const float * x, int n) {
    uint32x4_t largest[2] = {vdupq_n_u32(0), vdupq_n_u32(0)};
    UNROLL_FOR(int j = 0; j < n / 4; ++j) { /* as integers, NaN > infinity > all numbers */
        largest[j % 2] = vmaxq_u32(largest[j % 2], vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * j))));
    }
    const uint32_t top = vmaxvq_u32(vmaxq_u32(largest[0], largest[1]));
    float value;
    memcpy(&value, &top, 4);
    return value;
}

/* Rounds n numbers, a multiple of `scale_span`, and stores them as token number `token` of `tokens`. zero: the weights'
 * code for 0. */
INLINE void stage(int record_elements, int scale_span, int form, int zero, const float * x, int64_t n, int tokens,
                  int token, char * out) {
    const int record = tokens * STAGED_RECORD(record_elements, form);
    float scale = 0, inverse = 0;
    out += token * 4;
    for (int64_t i = 0; i < n; i += record_elements, x += record_elements, out += record) {
        if (i % scale_span == 0) {
            const float largest = largest_of(x, scale_span);
            scale = largest * (1.0f / 127);
            inverse = largest > 1e-36f ? 127 / largest : 0; /* finite; smaller numbers count as 0 */
        }
        int32_t all = 0;
        UNROLL_FOR(int j = 0; j < record_elements / 16; ++j) {
            const int8x16_t codes = rounded(x + 16 * j, inverse);
            all += vaddlvq_s8(codes);
            int32_t quads[4]; /* one quad in each number */
            vst1q_s32(quads, vreinterpretq_s32_s8(codes));
            UNROLL_FOR(int q = 0; q < 4; ++q) {
                memcpy(out + (4 * j + q) * tokens * 4, &quads[q], 4);
            }
        }
        const int32_t start = -zero * all;
        const float sum = scale * (float) all;
        char * numbers = out + record_elements * tokens;
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
    const float32x4_t scale = vdupq_n_f32(largest * (1.0f / 127));
    UNROLL_FOR(int i = 0; i < scale_span; i += 16) {
        const int8x16_t codes = rounded(x + i, inverse);
        const int16x8_t halves[2] = {vmovl_s8(vget_low_s8(codes)), vmovl_s8(vget_high_s8(codes))};
        UNROLL_FOR(int j = 0; j < 4; ++j) {
            const int16x4_t four = j % 2 ? vget_high_s16(halves[j / 2]) : vget_low_s16(halves[j / 2]);
            const float32x4_t numbers = vcvtq_f32_s32(vmovl_s16(four));
            vst1q_f32(errors + i + 4 * j, vfmsq_f32(vld1q_f32(x + i + 4 * j), numbers, scale));
        }
    }
    stage(record_elements, scale_span, form, zero, errors, scale_span, tokens, token, out);
}

ISA static float max_scale(const float * x, int64_t k) {
    float32x4_t sums[8]; /* two for each vector of 8 numbers */
    UNROLL_FOR(int j = 0; j < 8; ++j) {
        sums[j] = vdupq_n_f32(0);
    }
    for (int64_t i = 0; i < k; i += 32) { /* the same order for each instruction set */
        UNROLL_FOR(int j = 0; j < 8; ++j) {
            const float32x4_t v = vld1q_f32(x + i + 4 * j);
            sums[j] = vfmaq_f32(sums[j], v, v);
        }
    }
    float eight[8], sum = 0;
    UNROLL_FOR(int j = 0; j < 2; ++j) {
        vst1q_f32(eight + 4 * j, vaddq_f32(vaddq_f32(sums[j], sums[2 + j]), vaddq_f32(sums[4 + j], sums[6 + j])));
    }
    for (int j = 0; j < 8; ++j) {
        sum += eight[j];
    }
    return 10.0f / 127 * sqrtf(sum / (float) k);
}

#endif
