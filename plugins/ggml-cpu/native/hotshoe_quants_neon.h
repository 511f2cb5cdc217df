/* The vectors of hotshoe_quants_vectors.h for ARM: 4 numbers of 32 bits. V(op) has the names of x86. */
#ifndef HOTSHOE_QUANTS_NEON_H
#define HOTSHOE_QUANTS_NEON_H

#include <arm_neon.h>

#include "isa.h"

#define ISA /* of the whole file: kernels.cmake */
#define INLINE ALWAYS_INLINE
#define V(op) neon_##op
#define LANES 4
#define PREFETCH_L1(p) __builtin_prefetch(p, 0, 3)
#define PREFETCH_L2(p) __builtin_prefetch(p, 0, 2)
typedef int32x4_t ints;
typedef float32x4_t floats;

/* The products of four signed bytes, added to `sum`. */
INLINE ints dot_products(ints sum, ints codes, ints x) {
    return vdotq_s32(sum, vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
}
#define DPBUSD(sum, codes, x) dot_products(sum, codes, x)

/* The same with number t of x for all lanes. The instruction needs a constant, which t is when its loop is unrolled. */
INLINE ints dot_products_by(ints sum, ints codes, ints x, int t) {
    const int8x16_t a = vreinterpretq_s8_s32(codes), b = vreinterpretq_s8_s32(x);
    switch (t) {
        case 0: return vdotq_laneq_s32(sum, a, b, 0);
        case 1: return vdotq_laneq_s32(sum, a, b, 1);
        case 2: return vdotq_laneq_s32(sum, a, b, 2);
        default: return vdotq_laneq_s32(sum, a, b, 3);
    }
}

INLINE int16x8_t as_16(ints v) { return vreinterpretq_s16_s32(v); }
INLINE ints of_16(int16x8_t v) { return vreinterpretq_s32_s16(v); }

INLINE ints neon_set1_epi8(char value) { return vreinterpretq_s32_s8(vdupq_n_s8((int8_t) value)); }
INLINE ints neon_set1_epi32(int value) { return vdupq_n_s32(value); }
INLINE ints neon_slli_epi16(ints v, int n) { return of_16(vshlq_s16(as_16(v), vdupq_n_s16((int16_t) n))); }
INLINE ints neon_srli_epi16(ints v, int n) {
    return vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(v), vdupq_n_s16((int16_t) -n)));
}
INLINE ints neon_slli_epi32(ints v, int n) { return vshlq_s32(v, vdupq_n_s32(n)); }
INLINE ints neon_srai_epi32(ints v, int n) { return vshlq_s32(v, vdupq_n_s32(-n)); }
INLINE ints neon_srli_epi32(ints v, int n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v), vdupq_n_s32(-n)));
}
INLINE ints neon_sllv_epi32(ints v, ints n) { return vshlq_s32(v, n); }
INLINE ints neon_sub_epi32(ints a, ints b) { return vsubq_s32(a, b); }
INLINE ints neon_min_epi32(ints a, ints b) { return vminq_s32(a, b); }
INLINE ints neon_max_epi32(ints a, ints b) { return vmaxq_s32(a, b); }
INLINE ints neon_shuffle_epi8(ints table, ints indices) { /* indices from 0 to 15 */
    return vreinterpretq_s32_s8(vqtbl1q_s8(vreinterpretq_s8_s32(table), vreinterpretq_u8_s32(indices)));
}
INLINE floats neon_cvtepi32_ps(ints v) { return vcvtq_f32_s32(v); }
INLINE floats neon_set1_ps(float value) { return vdupq_n_f32(value); }
INLINE floats neon_setzero_ps(void) { return vdupq_n_f32(0); }
INLINE floats neon_add_ps(floats a, floats b) { return vaddq_f32(a, b); }
INLINE floats neon_sub_ps(floats a, floats b) { return vsubq_f32(a, b); }
INLINE floats neon_mul_ps(floats a, floats b) { return vmulq_f32(a, b); }
INLINE floats neon_fmadd_ps(floats a, floats b, floats c) { return vfmaq_f32(c, a, b); }
INLINE floats neon_fmsub_ps(floats a, floats b, floats c) { return vfmaq_f32(vnegq_f32(c), a, b); }
INLINE floats neon_load_ps(const float * p) { return vld1q_f32(p); }
INLINE floats neon_loadu_ps(const float * p) { return vld1q_f32(p); }
INLINE void neon_store_ps(float * p, floats v) { vst1q_f32(p, v); }
INLINE void neon_storeu_ps(float * p, floats v) { vst1q_f32(p, v); }

INLINE ints right_16(ints v, int shift) { return neon_srli_epi16(v, shift); }
INLINE ints right_32(ints v, int shift) { return neon_srli_epi32(v, shift); }
INLINE ints zeros(void) { return vdupq_n_s32(0); }
INLINE ints load_words(const char * p) { return vreinterpretq_s32_s8(vld1q_s8((const int8_t *) p)); }
INLINE void store_words(char * p, ints v) { vst1q_s8((int8_t *) p, vreinterpretq_s8_s32(v)); }
INLINE ints shorts_widened(const char * p) {
    return vreinterpretq_s32_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *) p))));
}
INLINE ints bytes_widened(const char * p) {
    uint8_t eight[8] = {0};
    __builtin_memcpy(eight, p, 4);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(eight)))));
}
INLINE floats f16_floats(const char * p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *) p))); }
INLINE floats as_floats(ints v) { return vreinterpretq_f32_s32(v); }
INLINE ints table_of(const int8_t * numbers) { return vreinterpretq_s32_s8(vld1q_s8(numbers)); }

#endif
