/* The formulas of the activations as straight-line code without calls, to be inlined into the kernels of each
 * instruction set: the compiler vectorises the loops around them. NaN stays NaN in all of them. */
#ifndef HOTSHOE_ACTIVATION_MATH_H
#define HOTSHOE_ACTIVATION_MATH_H

#include <stdint.h>
#include <string.h>

#include "isa.h"

/* 2^y for y in [-126, 128). Adding 1.5 * 2^23 rounds y to the integer n and leaves n in the low bits; 2^(y - n) is a
 * polynomial. The result is off by a few units in the last place, which suffices here: y = x * log2(e) has lost some of
 * the digits of a large x. The exponential of attention (hotshoe_attention_simd.h) reduces x itself; it is exact
 * to 1 ulp. */
ALWAYS_INLINE float exp2_near(float y) {
    const float magic = 12582912.0f;
    const float shifted = y + magic;
    const float f = y - (shifted - magic);
    int32_t n;
    memcpy(&n, &shifted, sizeof n);
    float e = 1.3266979930006409e-3f;
    e = e * f + 9.675469400248875e-3f;
    e = e * f + 5.550742675436741e-2f;
    e = e * f + 2.402212157613892e-1f;
    e = e * f + 6.93146949069171e-1f;
    e = e * f + 1.0f;
    int32_t bits;
    memcpy(&bits, &e, sizeof bits);
    bits += (int32_t) ((uint32_t) n << 23);
    memcpy(&e, &bits, sizeof e);
    return e;
}

/* x * sigmoid(z), to a few units in the last place. Below z = -87, -inf included, the product is smaller than any float
 * that matters here, and the result is 0. */
ALWAYS_INLINE float times_sigmoid(float x, float z) {
    const float low = z < -87.0f ? -87.0f : z;
    const float near = low > 87.0f ? 87.0f : low;
    const float product = x / (1.0f + exp2_near(near * -1.4426950408889634f));
    return z < -87.0f ? 0.0f : product;
}

/* x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), because (1 + tanh(u))/2 = sigmoid(2u). */
ALWAYS_INLINE float gelu_tanh(float x) { return times_sigmoid(x, 1.5957691216057308f * (x + 0.044715f * x * x * x)); }

ALWAYS_INLINE float gelu_quick(float x) { return times_sigmoid(x, 1.702f * x); }

/* log(1 + e^x) = max(x, 0) + log1p(u) with u = e^-|x|, and log1p(u) = 2 atanh(s) with s = u / (2 + u), at most 1/3, as
 * a series. Nothing overflows, and small values keep their digits. */
ALWAYS_INLINE float softplus(float x) {
    const float t = x < 0.0f ? x : -x;
    const float u = t < -87.0f ? 0.0f : exp2_near((t < -87.0f ? -87.0f : t) * 1.4426950408889634f);
    const float s = u / (2.0f + u), w = s * s;
    float p = 1.0f / 13;
    p = p * w + 1.0f / 11;
    p = p * w + 1.0f / 9;
    p = p * w + 1.0f / 7;
    p = p * w + 1.0f / 5;
    p = p * w + 1.0f / 3;
    p = p * w + 1.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * p;
}

/* gelu(x) = x * Phi(x) = max(x, 0) - t * Phi(-t) with t = |x|, and Phi(-t) = exp(-t^2/2) * P(t)/Q(t).
 * In this form the tail keeps its relative precision; 1 + erf(x) cancels to 0 there.
 * P/Q fits 0.5 * erfcx(t / sqrt 2) on [0, 13] to 3.4e-7; beyond 13 the product is smaller than any float that matters.
 * -inf gives 0, the limit. */
ALWAYS_INLINE float gelu_erf(float x) {
    float t = x < 0.0f ? -x : x;
    const float positive = x > 0.0f ? x : 0.0f;
    const float keep = t < 13.0f ? 1.0f : 0.0f;
    t = t > 13.0f ? 13.0f : t;

    const float e = exp2_near(t * t * -0.7213475204444817f); /* exp(-t^2/2) */
    float p = 1.6780591283447777e-2f;
    p = p * t + 1.1840169573808712e-1f;
    p = p * t + 3.599986948943839e-1f;
    p = p * t + 4.9999983025131284e-1f;
    float q = 4.206835717819105e-2f;
    q = q * t + 2.965684434464081e-1f;
    q = q * t + 9.480206823540901e-1f;
    q = q * t + 1.5178649310115873f;
    q = q * t + 1.0f;
    return positive - keep * t * e * (p / q);
}

#endif
