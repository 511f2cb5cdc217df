/* For files that include their kernels once for each instruction set: names with the set's suffix, the sum of lanes. */
#ifndef HOTSHOE_VECTOR_SETS_H
#define HOTSHOE_VECTOR_SETS_H

#include "isa.h"

/* NAME(x) is x with the suffix of the instruction set, which SUFFIX is defined as. */
#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define NAME(x) GLUE(x, SUFFIX)

#if defined(HOTSHOE_X86)
#include <immintrin.h>

AVX2 ALWAYS_INLINE float sum8(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
#endif

#endif
