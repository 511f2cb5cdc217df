/* Ops of recurrent layers: the convolution before a recurrence, and the gated delta rule.
 *
 * The rows of a state are independent of each other. So a thread takes a few rows of a head, keeps them in registers,
 * and goes through the tokens.
 *
 * Reading order: hotshoe_recurrent.h (the ops), this file, hotshoe_recurrent_simd.h (rows and tokens). */
#include "hotshoe_recurrent.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "isa.h"
#include "tensor_rows.h"
#include "vector_sets.h"

/* --- the convolution ------------------------------------------------------------------------------- */

enum {
    CHANNELS = 256, /* of a piece: their weights are transposed once for all its tokens */
};

/* A piece of some channels: their weights, row i for the elements i of all kernels, and the last row for the bias. */
struct piece {
    int64_t n;
    float rows[HOTSHOE_MAX_TAPS + 1][CHANNELS];
};

ALWAYS_INLINE void transpose(struct piece * piece, const float * weight, const int taps) {
    for (int64_t c = 0; c < piece->n; ++c) {
        for (int i = 0; i < taps; ++i) {
            piece->rows[i][c] = weight[c * taps + i];
        }
    }
}

ALWAYS_INLINE void sum(float * y, const float * const * x, const struct piece * piece, const int taps) {
    for (int64_t c = 0; c < piece->n; ++c) {
        float sum = piece->rows[HOTSHOE_MAX_TAPS][c];
        for (int i = 0; i < taps; ++i) {
            sum += piece->rows[i][c] * x[i][c];
        }
        y[c] = sum;
    }
}

/* Nearly all kernels have 4 elements: with a constant, the compiler vectorises the loops over channels. */
#define CONVOLVE(isa, target)                                                                                \
    target static void transpose_##isa(struct piece * piece, const float * weight, int taps) {               \
        if (taps == 4) {                                                                                     \
            transpose(piece, weight, 4);                                                                     \
        } else {                                                                                             \
            transpose(piece, weight, taps);                                                                  \
        }                                                                                                    \
    }                                                                                                        \
    target static void sum_##isa(float * y, const float * const * x, const struct piece * piece, int taps) { \
        if (taps == 4) {                                                                                     \
            sum(y, x, piece, 4);                                                                             \
        } else {                                                                                             \
            sum(y, x, piece, taps);                                                                          \
        }                                                                                                    \
    }                                                                                                        \
    static const struct convolution convolution_##isa = {transpose_##isa, sum_##isa};

struct convolution {
    void (*transpose)(struct piece *, const float * weight, int taps);
    void (*sum)(float * y, const float * const * x, const struct piece *, int taps);
};

CONVOLVE(generic, )
#if defined(HOTSHOE_X86)
CONVOLVE(avx2, AVX2)
CONVOLVE(avx512, AVX512)
#endif

static const struct convolution * best_convolution(void) {
#if defined(HOTSHOE_X86)
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX2) {
        return sets & CPU_AVX512 ? &convolution_avx512 : &convolution_avx2;
    }
#endif
    return &convolution_generic;
}

void hotshoe_ssm_conv(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) userdata;
    const struct ggml_tensor *x = dst->src[0], *before = dst->src[1], *weight = dst->src[2], *bias = dst->src[3];
    const int64_t t = dst->ne[1];
    const int taps = (int) weight->ne[0];
    const struct convolution * const convolution = best_convolution();
    const struct rectangle part = share_of_rows(1, dst->ne[0], ith, nth); /* all threads share out the channels */
    struct piece piece = {0};
    for (int64_t from = part.first_column; from < part.last_column; from += CHANNELS) {
        piece.n = min64(CHANNELS, part.last_column - from);
        convolution->transpose(&piece, (const float *) weight->data + from * taps, taps);
        if (bias != NULL) {
            memcpy(piece.rows[HOTSHOE_MAX_TAPS], (const float *) bias->data + from, piece.n * sizeof(float));
        }
        for (int64_t row = 0; row < t * dst->ne[2]; ++row) {
            const int64_t token = row % t, sequence = row / t;
            const float * steps[HOTSHOE_MAX_TAPS];
            for (int i = 0; i < taps; ++i) {
                const int64_t step = token + i - (taps - 1); /* below 0: before x */
                const struct ggml_tensor * const of = step < 0 ? before : x;
                const int64_t place = step < 0 ? step + taps - 1 : step;
                steps[i] = (const float *) ((const char *) of->data + place * of->nb[1] + sequence * of->nb[2]) + from;
            }
            convolution->sum((float *) dst->data + row * dst->ne[0] + from, steps, &piece, taps);
        }
    }
}

/* --- the gated delta rule -------------------------------------------------------------------------- */

enum {
    MAX_KEY = 128,
    TOKENS = 32,    /* gone through at once: their keys and queries stay in the first cache */
    ITEM_ROWS = 32, /* rows of a state that are one work item */
};

/* One head of one sequence. The steps are in floats, from one token to the next. */
struct head {
    const float *q, *k, *v;
    const float * old; /* the state before the first token */
    int64_t old_step;  /* from one of its rows to the next */
    float *y, *state;
    int64_t query_step, key_step, value_step, y_step;
    int length; /* of a key: MAX_KEY or half of it */
    int each;   /* whether each element of a key has its own decay */
    float scale;
};

/* Some tokens in a row. */
struct tokens {
    int64_t first, n;
    float beta[TOKENS];
    float decay[TOKENS * MAX_KEY]; /* exp(g): one for each token, or one for each element of its key */
};

#define SUFFIX generic
#define ROWS 4
#define TARGET
#if defined(_MSC_VER) && !defined(__clang__)
#define VL 1
#define SUM(v) (v)
#else
#define VL 4
#define SUM(v) ((v)[0] + (v)[1] + ((v)[2] + (v)[3]))
#endif
#include "hotshoe_recurrent_simd.h"

#if defined(HOTSHOE_X86)
#define SUFFIX avx2
#define VL 8
#define ROWS 4
#define TARGET AVX2
#define SUM(v) sum8((__m256) (v))
#include "hotshoe_recurrent_simd.h"

#define SUFFIX avx512
#define VL 16
#define ROWS 3
#define TARGET AVX512
#define SUM(v) _mm512_reduce_add_ps((__m512) (v))
#include "hotshoe_recurrent_simd.h"
#endif

typedef void (*delta_fn)(const struct head *, const struct tokens *, int64_t, int64_t);

static delta_fn best_delta(void) {
#if defined(HOTSHOE_X86)
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX2) {
        return sets & CPU_AVX512 ? delta_avx512 : delta_avx2;
    }
#endif
    return delta_generic;
}

/* The numbers of a head of a sequence: row `token` of it is `step` floats further. */
static const float * at(const struct ggml_tensor * t, int64_t head, int64_t sequence, int64_t * step) {
    *step = (int64_t) (t->nb[2] / sizeof(float));
    return (const float *) ((const char *) t->data + head * t->nb[1] + sequence * t->nb[3]);
}

void hotshoe_gated_delta(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_delta_params * const params = userdata;
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *g = dst->src[3];
    const struct ggml_tensor *beta = dst->src[4], *state = dst->src[5];
    const int64_t dk = k->ne[0], dv = v->ne[0], heads = v->ne[1], t = v->ne[2], k_heads = k->ne[1];
    const int64_t blocks = ceil_div(dv, ITEM_ROWS);
    const delta_fn delta = best_delta();
    struct tokens tokens;
    int64_t item, last;
    share(heads * v->ne[3] * blocks, ith, nth, &item, &last);
    for (; item < last; ++item) {
        const int64_t row = item % blocks * ITEM_ROWS, head = item / blocks % heads, sequence = item / blocks / heads;
        const int64_t end = min64(row + ITEM_ROWS, dv);
        const int64_t key_head = params->tiled ? head % k_heads : head * k_heads / heads;
        float * const all_y = (float *) dst->data;
        struct head h = {.length = (int) dk, .each = g->ne[0] > 1, .scale = params->scale, .y_step = heads * dv};
        h.q = at(q, key_head, sequence, &h.query_step);
        h.k = at(k, key_head, sequence, &h.key_step);
        h.v = at(v, head, sequence, &h.value_step);
        h.y = all_y + (sequence * t * heads + head) * dv;
        h.state = all_y + v->ne[3] * t * heads * dv + (sequence * heads + head) * dv * dk;
        h.old = (const float *) ((const char *) state->data + head * state->nb[2] + sequence * state->nb[3]);
        h.old_step = (int64_t) (state->nb[1] / sizeof(float));
        int64_t decay_step, beta_step;
        const float * const decays = at(g, head, sequence, &decay_step);
        const float * const betas = at(beta, head, sequence, &beta_step);
        tokens.first = 0;
        do { /* without tokens too: the state is copied */
            tokens.n = min64(TOKENS, t - tokens.first);
            for (int64_t i = 0; i < tokens.n; ++i) {
                tokens.beta[i] = betas[(tokens.first + i) * beta_step];
                for (int64_t j = 0; j < g->ne[0]; ++j) {
                    tokens.decay[i * g->ne[0] + j] = expf(decays[(tokens.first + i) * decay_step + j]);
                }
            }
            delta(&h, &tokens, row, end);
            tokens.first += TOKENS;
        } while (tokens.first < t);
    }
}
