/* Ops of recurrent layers: the convolution before a recurrence, and linear attention.
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

/* --- linear attention ------------------------------------------------------------------------------ */

enum {
    MAX_KEY = 256,
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
    int length;   /* of a key */
    int each;     /* whether each element of a key has its own decay */
    int corrects; /* hotshoe_recurrence_params */
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

typedef void (*advance_fn)(const struct head *, const struct tokens *, int64_t, int64_t);

static advance_fn best_advance(void) {
#if defined(HOTSHOE_X86)
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX2) {
        return sets & CPU_AVX512 ? advance_avx512 : advance_avx2;
    }
#endif
    return advance_generic;
}

/* The numbers of a head of a sequence: row `token` of it is `step` floats further. */
static const float * at(const struct ggml_tensor * t, int64_t head, int64_t sequence, int64_t * step) {
    *step = (int64_t) (t->nb[2] / sizeof(float));
    return (const float *) ((const char *) t->data + head * t->nb[1] + sequence * t->nb[3]);
}

/* Where the states are. In floats, a head's is `head_size` after the one before, and a sequence's is at `old`, and then
 * at `new`. */
struct states {
    const float * old;
    float * new;
    int64_t old_step, old_head, old_sequence, head_size, sequence_size;
    const int32_t *reads, *writes; /* rows of a cache, or NULL */
    float * cache;
    int aside; /* whether new states wait in `new`, as a row is written before a later sequence reads it */
};

static int is_read_later(const struct ggml_tensor * reads, const struct ggml_tensor * writes) {
    for (int64_t j = 1; j < reads->ne[0]; ++j) {
        for (int64_t i = 0; i < j; ++i) {
            if (((const int32_t *) reads->data)[j] == ((const int32_t *) writes->data)[i]) {
                return 1;
            }
        }
    }
    return 0;
}

static struct states states_of(struct ggml_tensor * dst, const int64_t head_size) {
    const struct ggml_tensor *v = dst->src[2], *state = dst->src[5], *reads = dst->src[6], *writes = dst->src[7];
    struct states s = {.old = state->data, .head_size = head_size, .sequence_size = head_size * v->ne[1]};
    s.new = (float *) dst->data + v->ne[0] * v->ne[1] * v->ne[2] * v->ne[3];
    if (reads == NULL) {
        s.old_step = (int64_t) (state->nb[1] / sizeof(float));
        s.old_head = (int64_t) (state->nb[2] / sizeof(float));
        s.old_sequence = (int64_t) (state->nb[3] / sizeof(float));
        return s;
    }
    s.old_step = head_size / v->ne[0];
    s.old_head = head_size;
    s.reads = reads->data;
    s.writes = writes->data;
    s.cache = state->data;
    s.aside = is_read_later(reads, writes);
    return s;
}

static const float * old_state(const struct states * s, int64_t head, int64_t sequence) {
    const int64_t from = s->reads != NULL ? s->reads[sequence] * s->sequence_size : sequence * s->old_sequence;
    return s->old + from + head * s->old_head;
}

static float * row_in_cache(const struct states * s, int64_t head, int64_t sequence) {
    return s->cache + s->writes[sequence] * s->sequence_size + head * s->head_size;
}

static float * new_state(const struct states * s, int64_t head, int64_t sequence) {
    if (s->cache != NULL && !s->aside) {
        return row_in_cache(s, head, sequence);
    }
    return s->new + sequence * s->sequence_size + head * s->head_size;
}

/* Goes through all tokens of a head of a sequence, with some rows of its state. */
static void run(const struct ggml_tensor * dst, const struct head * h, int64_t head, int64_t sequence, int64_t row,
                int64_t end, const advance_fn advance) {
    const struct ggml_tensor *g = dst->src[3], *beta = dst->src[4];
    const int64_t t = g->ne[2];
    int64_t decay_step, beta_step;
    const float * const decays = at(g, head, sequence, &decay_step);
    const float * const betas = at(beta, head, sequence, &beta_step);
    struct tokens tokens;
    tokens.first = 0;
    do { /* without tokens too: the state is copied */
        tokens.n = min64(TOKENS, t - tokens.first);
        for (int64_t i = 0; i < tokens.n; ++i) {
            tokens.beta[i] = betas[(tokens.first + i) * beta_step];
            for (int64_t j = 0; j < g->ne[0]; ++j) {
                tokens.decay[i * g->ne[0] + j] = expf(decays[(tokens.first + i) * decay_step + j]);
            }
        }
        advance(h, &tokens, row, end);
        tokens.first += TOKENS;
    } while (tokens.first < t);
}

void hotshoe_linear_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_recurrence_params * const params = userdata;
    const struct ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *g = dst->src[3];
    const int64_t dk = k->ne[0], dv = v->ne[0], heads = v->ne[1], t = v->ne[2], k_heads = k->ne[1], n = v->ne[3];
    const int64_t blocks = ceil_div(dv, ITEM_ROWS);
    const advance_fn advance = best_advance();
    const struct states states = states_of(dst, dk * dv);
    int64_t item, last;
    share(heads * blocks, ith, nth, &item, &last); /* a thread has the same rows of all sequences: see `aside` */
    for (; item < last; ++item) {
        const int64_t row = item % blocks * ITEM_ROWS, head = item / blocks, end = min64(row + ITEM_ROWS, dv);
        const int64_t key_head = params->tiled ? head % k_heads : head * k_heads / heads;
        for (int64_t sequence = 0; sequence < n; ++sequence) {
            struct head h = {.length = (int) dk, .each = g->ne[0] > 1, .scale = params->scale, .y_step = heads * dv};
            h.corrects = params->corrects;
            h.q = at(q, key_head, sequence, &h.query_step);
            h.k = at(k, key_head, sequence, &h.key_step);
            h.v = at(v, head, sequence, &h.value_step);
            h.y = (float *) dst->data + (sequence * t * heads + head) * dv;
            h.old = old_state(&states, head, sequence);
            h.old_step = states.old_step;
            h.state = new_state(&states, head, sequence);
            run(dst, &h, head, sequence, row, end, advance);
        }
        for (int64_t sequence = 0; states.aside && sequence < n; ++sequence) {
            const float * const from = new_state(&states, head, sequence) + row * dk;
            memcpy(row_in_cache(&states, head, sequence) + row * dk, from, (size_t) ((end - row) * dk) * sizeof(float));
        }
    }
}
