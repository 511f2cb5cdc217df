#include "hotshoe_kernels.h"

#include "gelu_erf.h"

ALWAYS_INLINE void gelu_row(float * dst, const float * a, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        dst[i] = gelu_erf(a[i]);
    }
}

typedef void (*row_fn)(float *, const float *, int64_t);

static void gelu_generic(float * dst, const float * a, int64_t n) { gelu_row(dst, a, n); }

/* Separate functions and a choice at run time, not target_clones: that needs ifunc, which musl and macOS lack. */
#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__))
#define HOTSHOE_X86 1
#define AVX2 __attribute__((target("avx2,fma")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")))
AVX2 static void gelu_avx2(float * dst, const float * a, int64_t n) { gelu_row(dst, a, n); }
AVX512 static void gelu_avx512(float * dst, const float * a, int64_t n) { gelu_row(dst, a, n); }
#endif

/* 0 generic, 1 avx2, 2 avx512. __builtin_cpu_supports also asks whether the system saves the registers. */
static int isa(void) {
#if defined(HOTSHOE_X86)
    static int chosen = -1; /* threads that race here all write the same value */
    int now = chosen;
    if (now < 0) {
        __builtin_cpu_init();
        const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
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

static row_fn gelu_best(void) {
#if defined(HOTSHOE_X86)
    const row_fn all[] = {gelu_generic, gelu_avx2, gelu_avx512};
    return all[isa()];
#else
    return gelu_generic;
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

void hotshoe_gelu_erf(struct ggml_tensor * dst, const struct ggml_tensor * a, int ith, int nth, void * userdata) {
    (void) userdata;
    const row_fn row = gelu_best();
    const int64_t rows = rows_of(a);
    int64_t first, last;
    if (rows < 4 * (int64_t) nth) { /* few rows, as in decoding: share out 64-byte lines of each row instead */
        share((a->ne[0] + 15) / 16, ith, nth, &first, &last);
        first *= 16;
        last = last * 16 < a->ne[0] ? last * 16 : a->ne[0];
        for (int64_t r = 0; r < rows && first < last; ++r) {
            row((float *) row_of(dst, r) + first, (const float *) row_of(a, r) + first, last - first);
        }
        return;
    }
    share(rows, ith, nth, &first, &last);
    for (int64_t r = first; r < last; ++r) {
        row((float *) row_of(dst, r), (const float *) row_of(a, r), a->ne[0]);
    }
}
