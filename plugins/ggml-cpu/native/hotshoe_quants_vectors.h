/* The vectors that the products with quantized weights are written in, for the instruction set that the including file
 * defines: QUANTS_AVX512_VNNI, QUANTS_AVX_VNNI, QUANTS_AVX2, or QUANTS_DOTPROD for ARM. */
#ifndef HOTSHOE_QUANTS_VECTORS_H
#define HOTSHOE_QUANTS_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "isa.h"

#if defined(QUANTS_DOTPROD)
#include "hotshoe_quants_neon.h"
#else
#include <immintrin.h>

#if defined(QUANTS_AVX512_VNNI)
#define ISA __attribute__((target("avx512vnni,avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))
#define V(op) _mm512_##op
#define LANES 16 /* numbers of 32 bits in a vector */
#define DPBUSD(sum, codes, x) _mm512_dpbusd_epi32(sum, codes, x)
typedef __m512i ints;
typedef __m512 floats;
#else
#define V(op) _mm256_##op
#define LANES 8
typedef __m256i ints;
typedef __m256 floats;
#if defined(QUANTS_AVX_VNNI) && defined(QUANTS_EVEX) /* in a test, on a CPU that has only the AVX-512 form */
#define ISA __attribute__((target("avx512vnni,avx512vl,avx2,fma,f16c")))
#define DPBUSD(sum, codes, x) _mm256_dpbusd_epi32(sum, codes, x)
#elif defined(QUANTS_AVX_VNNI)
#define ISA __attribute__((target("avxvnni,avx2,fma,f16c")))
#define DPBUSD(sum, codes, x) _mm256_dpbusd_avx_epi32(sum, codes, x)
#else
#define ISA AVX2
#define DPBUSD(sum, codes, x) (sum) /* never called */
#endif
#endif

#define INLINE ISA ALWAYS_INLINE
#define PREFETCH_L1(p) _mm_prefetch(p, _MM_HINT_T0)
#define PREFETCH_L2(p) _mm_prefetch(p, _MM_HINT_T1)

#endif

INLINE ints bytes(int value) { return V(set1_epi8)((char) value); }
INLINE ints low(ints v, int mask) { return v & bytes(mask); }
INLINE ints high(ints v, int shift, int mask) { return low(V(srli_epi16)(v, shift), mask); }
/* Bits `from` and the following ones of each 16 bits, moved to bit `to`. */
INLINE ints moved_16(ints v, int from, int to) {
    return from == to ? v : from > to ? V(srli_epi16)(v, from - to) : V(slli_epi16)(v, to - from);
}
INLINE ints left_32(ints v, int shift) { return shift ? V(slli_epi32)(v, shift) : v; }
INLINE floats byte_of(ints v, int i) { return V(cvtepi32_ps)(V(srli_epi32)(v, 8 * i) & V(set1_epi32)(255)); }
INLINE floats signed_byte_of(ints v, int i) { return V(cvtepi32_ps)(V(srai_epi32)(V(slli_epi32)(v, 24 - 8 * i), 24)); }
INLINE ints four_bytes(const char * p) {
    int32_t value;
    memcpy(&value, p, 4);
    return V(set1_epi32)(value);
}

#if !defined(QUANTS_DOTPROD)
/* Each 16 or 32 bits moved to the right. */
INLINE ints right_16(ints v, int shift) { return V(srl_epi16)(v, _mm_cvtsi32_si128(shift)); }
INLINE ints right_32(ints v, int shift) { return V(srl_epi32)(v, _mm_cvtsi32_si128(shift)); }
#endif

#if LANES == 16
INLINE ints zeros(void) { return _mm512_setzero_si512(); }
INLINE ints load_words(const char * p) { return _mm512_loadu_si512((const void *) p); }
INLINE void store_words(char * p, ints v) { _mm512_store_si512((void *) p, v); }
INLINE ints bytes_widened(const char * p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p)); }
INLINE ints shorts_widened(const char * p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p)); }
INLINE floats f16_floats(const char * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
INLINE floats as_floats(ints v) { return _mm512_castsi512_ps(v); }
/* The numbers that codes of 4 bits stand for, in each lane of 128 bits. */
INLINE ints table_of(const int8_t * numbers) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) numbers));
}
#elif LANES == 8
INLINE ints zeros(void) { return _mm256_setzero_si256(); }
INLINE ints load_words(const char * p) { return _mm256_loadu_si256((const __m256i *) p); }
INLINE void store_words(char * p, ints v) { _mm256_store_si256((__m256i *) p, v); }
INLINE ints bytes_widened(const char * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
INLINE ints shorts_widened(const char * p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p)); }
INLINE floats f16_floats(const char * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
INLINE floats as_floats(ints v) { return _mm256_castsi256_ps(v); }
INLINE ints table_of(const int8_t * numbers) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) numbers));
}
#endif

#endif
