/* The op of the activations: dst = act(a), or act(a) * up for a gated activation. The compiler vectorises one loop over
 * a row for each activation and instruction set.
 *
 * Reading order: hotshoe_activations.h (the op), activation_math.h (the formulas), this file. */
#include "hotshoe_activations.h"

#include "activation_math.h"
#include "tensor_rows.h"

#include <stddef.h>

typedef void (*row_fn)(float *, const float *, const float *, int64_t);

/* dst = act(a), or act(a) * up. */
#define ACTIVATION(name, isa, target)                                                            \
    target static void name##_##isa(float * dst, const float * a, const float * up, int64_t n) { \
        if (up == NULL) {                                                                        \
            for (int64_t i = 0; i < n; ++i) {                                                    \
                dst[i] = name(a[i]);                                                             \
            }                                                                                    \
            return;                                                                              \
        }                                                                                        \
        for (int64_t i = 0; i < n; ++i) {                                                        \
            dst[i] = name(a[i]) * up[i];                                                         \
        }                                                                                        \
    }
#define ACTIVATIONS(isa, target)        \
    ACTIVATION(gelu_erf, isa, target)   \
    ACTIVATION(gelu_tanh, isa, target)  \
    ACTIVATION(gelu_quick, isa, target) \
    ACTIVATION(softplus, isa, target)   \
    static const row_fn activations_##isa[] = {gelu_erf_##isa, gelu_tanh_##isa, gelu_quick_##isa, softplus_##isa};

ACTIVATIONS(generic, )
#if defined(HOTSHOE_X86)
ACTIVATIONS(avx2, AVX2)
ACTIVATIONS(avx512, AVX512)
#endif

static row_fn activation(int32_t kind) {
#if defined(HOTSHOE_X86)
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX2) {
        return (sets & CPU_AVX512 ? activations_avx512 : activations_avx2)[kind];
    }
#endif
    return activations_generic[kind];
}

void hotshoe_activation(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ggml_tensor * a = dst->src[0];
    const struct ggml_tensor * up = dst->src[1];
    const row_fn activate = activation(*(const int32_t *) userdata);
    const struct rectangle part = share_of_rows(n_rows(a), a->ne[0], ith, nth);
    const int64_t column = part.first_column;
    for (int64_t row = part.first_row; row < part.last_row; ++row) {
        const float * times = up == NULL ? NULL : (const float *) row_of(up, row) + column;
        activate((float *) row_of(dst, row) + column, (const float *) row_of(a, row) + column, times,
                 part.last_column - column);
    }
}
