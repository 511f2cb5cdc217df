#include "hotshoe_kernels.h"

#include "activations.h"

#include <stddef.h>

typedef void (*row_fn)(float *, const float *, const float *, int64_t);

/* dst = act(a) or act(a) * up, for every activation that is straight-line code. */
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
    ACTIVATION(softplus, isa, target)

ACTIVATIONS(generic, )

/* Separate functions and a choice at run time, not target_clones: that needs ifunc, which musl and macOS lack. */
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define HOTSHOE_X86 1
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
ACTIVATIONS(avx2, AVX2)
ACTIVATIONS(avx512, AVX512)
#endif

/* 0 generic, 1 avx2, 2 avx512. __builtin_cpu_supports also asks whether the system saves the registers. */
static int isa(void) {
#if defined(HOTSHOE_X86)
    static int chosen = -1; /* threads that race here all write the same value */
    int now = chosen;
    if (now < 0) {
        __builtin_cpu_init();
        /* every CPU with AVX2 has F16C, which not every compiler can be asked for */
        const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
        now = avx512 ? 2 : avx2 ? 1 : 0;
        chosen = now;
    }
    return now;
#else
    return 0;
#endif
}

static row_fn activation(int32_t kind) {
#if defined(HOTSHOE_X86)
    static const row_fn all[][3] = {
        {gelu_erf_generic, gelu_erf_avx2, gelu_erf_avx512},
        {gelu_tanh_generic, gelu_tanh_avx2, gelu_tanh_avx512},
        {gelu_quick_generic, gelu_quick_avx2, gelu_quick_avx512},
        {softplus_generic, softplus_avx2, softplus_avx512},
    };
    return all[kind][isa()];
#else
    static const row_fn all[] = {gelu_erf_generic, gelu_tanh_generic, gelu_quick_generic, softplus_generic};
    return all[kind];
#endif
}

const char * hotshoe_kernels_isa(void) {
    const char * const names[] = {"generic", "avx2", "avx512"};
    return names[isa()];
}

void hotshoe_log_discard(enum ggml_log_level level, const char * text, void * user_data) {
    (void) level;
    (void) text;
    (void) user_data;
}

/* Thread ith's part of n units. */
static void share(int64_t n, int ith, int nth, int64_t * first, int64_t * last) {
    const int64_t each = (n + nth - 1) / nth;
    *first = each * ith < n ? each * ith : n;
    *last = *first + each < n ? *first + each : n;
}

static char * row_of(const struct ggml_tensor * t, int64_t row) {
    const int64_t i1 = row % t->ne[1];
    const int64_t i2 = row / t->ne[1] % t->ne[2];
    const int64_t i3 = row / t->ne[1] / t->ne[2];
    return (char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

static int64_t rows_of(const struct ggml_tensor * t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

void hotshoe_activation(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ggml_tensor * a = dst->src[0];
    const struct ggml_tensor * up = dst->src[1];
    const row_fn row = activation(*(const int32_t *) userdata);
    const int64_t rows = rows_of(a), width = a->ne[0];
    /* Few rows, as in decoding: share out 64-byte lines of each row instead. */
    const int narrow = rows < 4 * (int64_t) nth;
    int64_t first, last;
    share(narrow ? (width + 15) / 16 : rows, ith, nth, &first, &last);
    const int64_t from = narrow ? first * 16 : 0;
    const int64_t to = narrow && last * 16 < width ? last * 16 : width;
    if (first == last) {
        return;
    }
    for (int64_t r = narrow ? 0 : first; r < (narrow ? rows : last); ++r) {
        const float * times = up == NULL ? NULL : (const float *) row_of(up, r) + from;
        row((float *) row_of(dst, r) + from, (const float *) row_of(a, r) + from, times, to - from);
    }
}
