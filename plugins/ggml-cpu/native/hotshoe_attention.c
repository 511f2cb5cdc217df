#include "hotshoe_attention.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER) && !defined(__clang__)
#define ALWAYS_INLINE static __forceinline
#define PER_THREAD __declspec(thread) __declspec(align(64))
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define PER_THREAD static _Thread_local __attribute__((aligned(64)))
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define PREFETCH(p) (void) (p)
#else
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* into the second-level cache */
#endif

#define MAX_DIM 576               /* DeepSeek's latent attention: 512 and 64 that rotate */
#define MAX_BLOCKS 64             /* row blocks a run: it bounds what is remembered of each row */
#define MAX_ROWS 8                /* a block */
#define CHUNK 32                  /* hidden keys are skipped in multiples of this; a multiple of each panel */
#define FEW_ROWS 12               /* as many rows must see a key, on average, before a transposed copy of it pays */
#define STEP_BYTES (64 << 10)     /* of all heads in a step of few rows: what is asked for ahead of them */
#define SCRATCH_FLOATS (37 << 10) /* 148 KiB: the keys, values and scores of one block stay in the second-level cache */
PER_THREAD float scratch[SCRATCH_FLOATS];
static const float zeros[MAX_DIM];
#define TIMES8(x) x, x, x, x, x, x, x, x
static const uint16_t hidden_f16[CHUNK] = {TIMES8(0xFC00), TIMES8(0xFC00), TIMES8(0xFC00), TIMES8(0xFC00)}; /* -inf */
static const uint32_t hidden_f32[CHUNK] = {TIMES8(0xFF800000), TIMES8(0xFF800000), TIMES8(0xFF800000),
                                           TIMES8(0xFF800000)};

/* What the threads share: computed by each for itself. */
struct job {
    struct ggml_tensor * dst;
    const struct ggml_tensor *q, *k, *v, *mask; /* mask may be NULL */
    const float * sinks;                        /* may be NULL */
    float scale, softcap;
    /* More than one: dst has them instead of batch elements, and a row's maximum and sum behind it. */
    int64_t parts_of_keys;
    int64_t group;  /* query heads that share a key/value head: row r is query r / group of its head r % group */
    int64_t blocks; /* tiles of rows */
    int64_t parts;  /* tiles of one query; 0: tiles go from one query to the next */
    int64_t step;   /* keys at once */
    int few;        /* rows, as in decoding: reading keys and values takes longer than computing with them */
};

/* Keys [from, to) of a batch element, and which element of dst they go to. */
struct part {
    int64_t batch, from, to, at;
};

/* What a tile of rows sees of the keys m to m + cols, from m on: all that lies between the first chunk that one of them
 * sees and the last. Nothing: 0 to 0. count: how many of these the last of them sees. plain: all see all of them, and the
 * mask need not be looked at again. */
struct span {
    int64_t from, to, count;
    int plain;
};

/* The rows of keys or values that are read next. */
struct ahead {
    const char * at;
    size_t size;
    int64_t heads, left, to_head, to_row;
};

/* What a thread does at once: row blocks [first, last) of each of the heads [first_head, last_head) of keys. */
struct run {
    const struct job * job;
    struct part part;
    int64_t first_head, last_head, first, last;
    int at_once; /* one step of keys: rows are divided by their sum as they are written */
    /* of the keys of one step */
    struct span all, spans[MAX_BLOCKS];
    int64_t seen_pairs; /* of rows and keys */
    struct ahead keys, values;
    /* of each row, and of each block, one head after the other */
    float most[MAX_BLOCKS * MAX_ROWS], total[MAX_BLOCKS * MAX_ROWS];
    char begun[MAX_BLOCKS];
};

struct kernels {
    void (*head)(struct run *, int64_t m, int64_t kv_head);
    void (*layer_row)(float *, const float *, const float *, const float *, int64_t, float);
    void (*rms_row)(float *, const float *, const float *, int64_t, float);
    int rows, panel;
};

/* Where tile `block` begins. All tiles together are all rows. */
ALWAYS_INLINE int64_t first_row(const struct job * job, int64_t block) {
    if (job->parts == 0) {
        return job->group * job->q->ne[2] * block / job->blocks;
    }
    return job->group * (block / job->parts) + job->group * (block % job->parts) / job->parts;
}

ALWAYS_INLINE size_t row_bytes(const struct ggml_tensor * t) {
    const int plain = t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
    return (plain ? t->ne[0] : t->ne[0] / 32) * t->nb[0];
}

/* The mask from column m on for one query of one head, or NULL. */
ALWAYS_INLINE const char * mask_row(const struct ggml_tensor * mask, int64_t m, int64_t n, int64_t h, int64_t batch) {
    if (mask == NULL) {
        return NULL;
    }
    return (const char *) mask->data + m * mask->nb[0] + (mask->ne[1] > 1 ? n * mask->nb[1] : 0) +
           (mask->ne[2] > 1 ? h * mask->nb[2] : 0) + (mask->ne[3] > 1 ? batch * mask->nb[3] : 0);
}

static int all_hidden(const struct ggml_tensor * mask, const char * row, int64_t from, int64_t to) {
    return memcmp(row + from * mask->nb[0],
                  mask->type == GGML_TYPE_F16 ? (const void *) hidden_f16 : (const void *) hidden_f32,
                  (to - from) * mask->nb[0]) == 0;
}

/* Whether nothing from..to is hidden or moved. */
static int all_zero(const struct ggml_tensor * mask, const char * row, int64_t from, int64_t to) {
    uint32_t any = 0;
    const char * const end = row + to * mask->nb[0];
    for (row += from * mask->nb[0]; row + 4 <= end; row += 4) {
        uint32_t bits;
        memcpy(&bits, row, 4);
        any |= bits;
    }
    return any == 0 && (row == end || (row[0] == 0 && row[1] == 0));
}

/* Counters as wide as what they count make vectors of one width. */
static int64_t count_seen(const struct ggml_tensor * mask, const char * row, int64_t from, int64_t to) {
    if (mask->type == GGML_TYPE_F16) {
        const uint16_t * const halves = (const uint16_t *) row;
        uint16_t n = 0;
        for (int64_t c = from; c < to; ++c) {
            n += halves[c] != 0xFC00;
        }
        return n;
    }
    uint32_t n = 0;
    for (int64_t c = from; c < to; ++c) {
        uint32_t bits;
        memcpy(&bits, row + 4 * c, sizeof bits);
        n += bits != 0xFF800000;
    }
    return n;
}

static struct span seen(const struct job * job, int64_t batch, int64_t kv_head, int64_t block, int64_t m,
                        int64_t cols) {
    if (job->mask == NULL) {
        return (struct span){0, cols, cols, 1};
    }
    struct span all = {cols, 0, 0, 0};
    const char * last = NULL;
    for (int64_t row = first_row(job, block); row < first_row(job, block + 1); ++row) {
        const char * mask = mask_row(job->mask, m, row / job->group, kv_head * job->group + row % job->group, batch);
        if (mask == last) {
            continue;
        }
        last = mask;
        struct span own = {0, cols, 0, 0};
        while (own.from < all.from &&
               all_hidden(job->mask, mask, own.from, own.from + CHUNK < cols ? own.from + CHUNK : cols)) {
            own.from += CHUNK;
        }
        if (own.from >= cols) {
            continue;
        }
        while (own.to > all.to && all_hidden(job->mask, mask, (own.to - 1) / CHUNK * CHUNK, own.to)) {
            own.to = (own.to - 1) / CHUNK * CHUNK;
        }
        all.from = own.from < all.from ? own.from : all.from;
        all.to = own.to > all.to ? own.to : all.to;
    }
    if (all.from >= all.to) {
        return (struct span){0, 0, 0, 0};
    }
    all.plain = 1;
    last = NULL;
    for (int64_t row = first_row(job, block); row < first_row(job, block + 1) && all.plain; ++row) {
        const char * mask = mask_row(job->mask, m, row / job->group, kv_head * job->group + row % job->group, batch);
        all.plain = mask == last || all_zero(job->mask, mask, all.from, all.to);
        last = mask;
    }
    all.count = all.plain ? all.to - all.from : count_seen(job->mask, last, all.from, all.to);
    return all;
}

/* Which of a run's rows is row `row` of a head. */
ALWAYS_INLINE int64_t place_of(const struct run * run, int64_t kv_head, int64_t row) {
    const int64_t first = first_row(run->job, run->first), each = first_row(run->job, run->last) - first;
    return (kv_head - run->first_head) * each + row - first;
}

/* Key or value i of a head. */
ALWAYS_INLINE const char * cached_at(const struct ggml_tensor * t, int64_t batch, int64_t kv_head, int64_t i) {
    return (const char *) t->data + kv_head * t->nb[1] + i * t->nb[2] + batch * t->nb[3];
}

/* Asks for the rows of the next step, one for each key that is computed with, in the order of memory. */
ALWAYS_INLINE void soon(struct ahead * ahead) {
    for (size_t i = 0; i < ahead->size; i += 64) {
        PREFETCH(ahead->at + i);
    }
    ahead->at += ahead->to_head;
    if (--ahead->left == 0) {
        ahead->left = ahead->heads;
        ahead->at += ahead->to_row;
    }
}

#define GLUE_(a, b) a##_##b
#define GLUE(a, b) GLUE_(a, b)
#define NAME(x) GLUE(x, SUFFIX)

#if defined(_MSC_VER) && !defined(__clang__)
#define SUFFIX generic
#define VL 1
#define ROWS 4
#define FEW 3
#define TARGET
#define VMAX(a, b) ((a) > (b) ? (a) : (b))
#define SUM(v) (v)
#define SUM4(p, a, b, c, d, x) ((p)[0] = (a) * (x), (p)[1] = (b) * (x), (p)[2] = (c) * (x), (p)[3] = (d) * (x))
#define MAX(v) (v)
#define LOAD_PART(p, n, rest) (*(p))
#include "hotshoe_attention_simd.h"
#else

typedef float v4 __attribute__((vector_size(16)));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE4(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t v4i __attribute__((vector_size(16)));
#define SHUFFLE4(a, b, ...) __builtin_shuffle(a, b, (v4i){__VA_ARGS__})
#endif
#define TRANSPOSE4(to, ld, p0, p1, p2, p3)                                             \
    do {                                                                               \
        v4 x0, x1, x2, x3;                                                             \
        memcpy(&x0, p0, 16);                                                           \
        memcpy(&x1, p1, 16);                                                           \
        memcpy(&x2, p2, 16);                                                           \
        memcpy(&x3, p3, 16);                                                           \
        const v4 a0 = SHUFFLE4(x0, x1, 0, 4, 1, 5), a1 = SHUFFLE4(x0, x1, 2, 6, 3, 7); \
        const v4 b0 = SHUFFLE4(x2, x3, 0, 4, 1, 5), b1 = SHUFFLE4(x2, x3, 2, 6, 3, 7); \
        x0 = SHUFFLE4(a0, b0, 0, 1, 4, 5), x1 = SHUFFLE4(a0, b0, 2, 3, 6, 7);          \
        x2 = SHUFFLE4(a1, b1, 0, 1, 4, 5), x3 = SHUFFLE4(a1, b1, 2, 3, 6, 7);          \
        memcpy(to, &x0, 16);                                                           \
        memcpy((to) + (ld), &x1, 16);                                                  \
        memcpy((to) + 2 * (ld), &x2, 16);                                              \
        memcpy((to) + 3 * (ld), &x3, 16);                                              \
    } while (0)

#define SUFFIX generic
#define VL 4
#define ROWS 4
#define FEW 3
#define TARGET
typedef int32_t v4mask __attribute__((vector_size(16)));
ALWAYS_INLINE v4 max4(v4 a, v4 b) {
    const v4mask more = a > b;
    return (v4) (((v4mask) a & more) | ((v4mask) b & ~more));
}
ALWAYS_INLINE v4 part4(const float * p, int64_t n, float rest) {
    return (v4){n > 0 ? p[0] : rest, n > 1 ? p[1] : rest, n > 2 ? p[2] : rest, n > 3 ? p[3] : rest};
}
#define VMAX(a, b) max4(a, b)
#define SUM(v) ((v)[0] + (v)[1] + ((v)[2] + (v)[3]))
#define SUM4(p, a, b, c, d, x) \
    ((p)[0] = SUM(a) * (x), (p)[1] = SUM(b) * (x), (p)[2] = SUM(c) * (x), (p)[3] = SUM(d) * (x))
#define MAX(v) \
    (max4(max4(v, SHUFFLE4(v, v, 1, 0, 3, 2)), max4(SHUFFLE4(v, v, 2, 3, 0, 1), SHUFFLE4(v, v, 3, 2, 1, 0)))[0])
#define LOAD_PART(p, n, rest) part4(p, n, rest)
#include "hotshoe_attention_simd.h"
#undef SUFFIX
#undef VL
#undef ROWS
#undef FEW
#undef TARGET
#undef VMAX
#undef SUM
#undef SUM4
#undef MAX
#undef LOAD_PART

#if defined(__x86_64__) || defined(__i386__)
#define HOTSHOE_X86 1
#include "cached_rows.h"
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))

AVX2 ALWAYS_INLINE float sum8(__m256 v) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

AVX2 ALWAYS_INLINE void sum_four(float * to, __m256 a, __m256 b, __m256 c, __m256 d, float by) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(to, _mm_mul_ps(sums, _mm_set1_ps(by)));
}

AVX512 ALWAYS_INLINE __m256 both_halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

AVX2 ALWAYS_INLINE float max8(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

AVX2 ALWAYS_INLINE __m256 part8(const float * p, int64_t n, float rest) {
    const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int) n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_blendv_ps(_mm256_set1_ps(rest), _mm256_maskload_ps(p, lanes), _mm256_castsi256_ps(lanes));
}

#define SUFFIX avx2
#define VL 8
#define ROWS 6
#define FEW 3
#define TARGET AVX2
#define VMAX(a, b) ((vf) _mm256_max_ps((__m256) (a), (__m256) (b)))
#define SUM(v) sum8((__m256) (v))
#define SUM4(p, a, b, c, d, x) sum_four(p, (__m256) (a), (__m256) (b), (__m256) (c), (__m256) (d), x)
#define MAX(v) max8((__m256) (v))
#define LOAD_PART(p, n, rest) ((vf) part8(p, n, rest))
#define LOAD_HALF(p) ((vf) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p))))
#include "hotshoe_attention_simd.h"
#undef SUFFIX
#undef VL
#undef ROWS
#undef FEW
#undef TARGET
#undef VMAX
#undef SUM
#undef SUM4
#undef MAX
#undef LOAD_PART
#undef LOAD_HALF

#define SUFFIX avx512
#define VL 16
#define ROWS 8
#define FEW 4
#define TARGET AVX512
#define VMAX(a, b) ((vf) _mm512_max_ps((__m512) (a), (__m512) (b)))
#define SUM(v) _mm512_reduce_add_ps((__m512) (v))
#define HALF(v) both_halves((__m512) (v))
#define SUM4(p, a, b, c, d, x) sum_four(p, HALF(a), HALF(b), HALF(c), HALF(d), x)
#define MAX(v) _mm512_reduce_max_ps((__m512) (v))
#define LOAD_PART(p, n, rest) ((vf) _mm512_mask_loadu_ps(_mm512_set1_ps(rest), (__mmask16) ((1u << (n)) - 1), p))
#define LOAD_HALF(p) ((vf) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (p))))
#include "hotshoe_attention_simd.h"
#endif
#endif

static const struct kernels * best(void) {
#if defined(HOTSHOE_X86)
    const char * isa = hotshoe_kernels_isa();
    if (strcmp(isa, "avx512") == 0) {
        return &kernels_avx512;
    }
    if (strcmp(isa, "avx2") == 0) {
        return &kernels_avx2;
    }
#endif
    return &kernels_generic;
}

/* How many keys this batch element sees, where the mask is one row for all its queries and heads: padding is at the end. */
static int64_t visible_keys(const struct job * job, int64_t batch) {
    int64_t m = job->k->ne[2];
    if (job->mask != NULL && job->mask->ne[1] == 1 && job->mask->ne[2] == 1) {
        const char * row = mask_row(job->mask, 0, 0, 0, batch);
        while (m > 0 && all_hidden(job->mask, row, m - 1, m)) {
            --m;
        }
    }
    return m;
}

/* Element `at` of dst: with one part of the keys a batch element, else the next part of one. visible: keys of that. */
static struct part part_at(const struct job * job, int64_t at, int64_t visible) {
    const int64_t n = job->parts_of_keys;
    struct part part = {at / n, visible * (at % n) / n, visible * (at % n + 1) / n, at};
    part.from = part.from / CHUNK * CHUNK;
    part.to = part.to == visible ? visible : part.to / CHUNK * CHUNK;
    return part;
}

/* Tiles of at most `most` rows. Rows that share a tile share the keys they see, so queries of different sequences, of
 * which there are few at a time, get tiles of their own. Where there are fewer tiles than threads, the heads of a query are
 * shared out too: keys are then read more than once, but side by side. */
static void cut(struct job * job, int64_t most, int nth) {
    const int64_t n = job->q->ne[2], rows = n * job->group, others = job->k->ne[1] * job->dst->ne[3];
    const int64_t wanted = (nth + others - 1) / others; /* tiles, so that each thread has one */
    if (job->mask != NULL && job->mask->ne[1] > 1 && n < 64) {
        job->parts = (job->group + most - 1) / most;
        if (n * job->parts < wanted) {
            job->parts = (wanted + n - 1) / n < job->group ? (wanted + n - 1) / n : job->group;
        }
        job->blocks = n * job->parts;
        return;
    }
    job->blocks = (rows + most - 1) / most;
    if (job->blocks < wanted) {
        job->blocks = wanted < rows ? wanted : rows;
    }
}

static int64_t clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x < most ? x : most; }

/* What the blocks of a run see of the keys from m on. Gives whether it is anything. */
static int look(struct run * run, int64_t m, int64_t kv_head) {
    const struct job * const job = run->job;
    const int64_t left = run->part.to - m, cols = left < job->step ? left : job->step;
    run->all = (struct span){cols, 0, 0, 0};
    run->seen_pairs = 0;
    for (int64_t block = run->first; block < run->last; ++block) {
        const struct span own = seen(job, run->part.batch, kv_head, block, m, cols);
        run->spans[block - run->first] = own;
        if (own.from < own.to) {
            run->all.from = own.from < run->all.from ? own.from : run->all.from;
            run->all.to = own.to > run->all.to ? own.to : run->all.to;
            run->seen_pairs += own.count * (first_row(job, block + 1) - first_row(job, block));
        }
    }
    return run->all.from < run->all.to;
}

/* Divides what was summed, and says what was not. */
static void end(const struct run * run, int64_t kv_head) {
    const struct job * const job = run->job;
    const struct ggml_tensor * const dst = job->dst;
    const int64_t v_dim = job->v->ne[0];
    for (int64_t block = run->first; block < run->last; ++block) {
        const int begun = run->begun[(kv_head - run->first_head) * (run->last - run->first) + block - run->first];
        if (begun && run->at_once && job->parts_of_keys == 1) {
            continue;
        }
        for (int64_t row = first_row(job, block); row < first_row(job, block + 1); ++row) {
            const int64_t n = row / job->group, h = kv_head * job->group + row % job->group,
                          place = place_of(run, kv_head, row);
            float * const out =
                (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + run->part.at * dst->nb[3]);
            const float nothing = job->sinks != NULL || job->parts_of_keys > 1 ? 0.0f : NAN;
            const float gain = begun && !run->at_once ? 1.0f / run->total[place] : 1.0f;
            for (int64_t d = 0; d < v_dim; ++d) {
                out[d] = begun ? out[d] * gain : nothing;
            }
            if (job->parts_of_keys > 1) {
                out[v_dim] = begun ? run->most[place] : -INFINITY;
                out[v_dim + 1] = begun ? run->total[place] : 0.0f;
            }
        }
    }
}

static struct ahead rows_from(const struct run * run, const struct ggml_tensor * t, int64_t i) {
    const int64_t heads = run->last_head - run->first_head;
    const char * const at = cached_at(t, run->part.batch, run->first_head, i);
    return (struct ahead){at, row_bytes(t), heads, heads, t->nb[1], t->nb[2] - heads * t->nb[1]};
}

/* What is asked for next: keys and values of the run's heads, from number i on. */
static void ask_from(struct run * run, int64_t i) {
    run->keys = rows_from(run, run->job->k, i);
    run->values = rows_from(run, run->job->v, i);
}

/* Step by step through the keys, and in each through all heads: their keys lie side by side in a cache. */
static void compute(struct run * run, void (*head)(struct run *, int64_t, int64_t)) {
    const struct job * const job = run->job;
    const struct part part = run->part;
    const int same_for_all = job->mask == NULL || job->mask->ne[2] == 1;
    run->at_once = part.to - part.from <= job->step;
    memset(run->begun, 0, sizeof run->begun);
    if (job->few) { /* nobody has asked for those of the first step */
        const int64_t left = part.to - part.from, keys = left < job->step ? left : job->step;
        ask_from(run, part.from);
        for (int64_t i = 0; i < keys * (run->last_head - run->first_head); ++i) {
            soon(&run->keys);
            soon(&run->values);
        }
    }
    for (int64_t m = part.from; m < part.to; m += job->step) {
        ask_from(run, m + job->step);
        for (int64_t h = run->first_head; h < run->last_head; ++h) {
            if ((h == run->first_head || !same_for_all) && !look(run, m, h)) {
                if (same_for_all) {
                    break;
                }
                continue;
            }
            head(run, m, h);
        }
    }
    for (int64_t h = run->first_head; h < run->last_head; ++h) {
        end(run, h);
    }
}

void hotshoe_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_attention_params * params = userdata;
    const struct kernels * kernels = best();
    struct job job = {.dst = dst, .q = dst->src[0], .k = dst->src[1], .v = dst->src[2]};
    job.mask = params->has_mask ? dst->src[3] : NULL;
    job.sinks = params->has_sinks ? dst->src[3 + (job.mask != NULL)]->data : NULL;
    job.parts_of_keys = dst->ne[3] / job.q->ne[3];
    job.softcap = params->softcap;
    job.scale = params->softcap != 0.0f ? params->scale / params->softcap : params->scale;
    const int64_t kv_heads = job.k->ne[1], n_parts = job.parts_of_keys, panel = kernels->panel;
    job.group = job.q->ne[1] / kv_heads;
    cut(&job, kernels->rows, nth);
    const int64_t width = job.q->ne[0] + (job.v->ne[0] + panel - 1) / panel * panel + 2 * kernels->rows;
    job.step = SCRATCH_FLOATS / width / CHUNK * CHUNK;
    job.step = job.step < 128 ? job.step : 128;
    job.few = job.group * job.q->ne[2] < FEW_ROWS;
    if (job.few) {
        const int64_t bytes = kv_heads * (row_bytes(job.k) + row_bytes(job.v)); /* of a key */
        const int64_t keys = STEP_BYTES / (bytes > 0 ? bytes : 1) / CHUNK * CHUNK;
        job.step = keys < CHUNK ? CHUNK : keys < job.step ? keys : job.step;
    }

    struct run run = {.job = &job};
    /* Each thread takes an equal part of the work, counted in keys: padded texts cost less than full ones. */
    const int64_t units = kv_heads * job.blocks, fixed = 16;
    int64_t total = 0;
    for (int64_t b = 0; b < job.q->ne[3]; ++b) {
        total += units * (visible_keys(&job, b) + n_parts * fixed);
    }
    const int64_t from = total * ith / nth, to = total * (ith + 1) / nth;
    int64_t before = 0, visible = 0;
    for (int64_t i = 0; i < dst->ne[3] && before < to; ++i) {
        visible = i % n_parts == 0 ? visible_keys(&job, i / n_parts) : visible;
        const struct part part = part_at(&job, i, visible);
        const int64_t cost = part.to - part.from + fixed;
        const int64_t stop = clamp((to - before + cost / 2) / cost, units);
        int64_t unit = from > before ? clamp((from - before + cost / 2) / cost, units) : 0;
        while (unit < stop) {
            run.part = part;
            run.first_head = unit / job.blocks;
            run.first = unit % job.blocks;
            const int64_t most = stop - unit < MAX_BLOCKS ? stop - unit : MAX_BLOCKS, heads = most / job.blocks;
            run.last_head = run.first == 0 && heads > 1 ? run.first_head + heads : run.first_head + 1;
            run.last = run.first + most < job.blocks ? run.first + most : job.blocks;
            compute(&run, kernels->head);
            unit += (run.last - run.first) * (run.last_head - run.first_head);
        }
        before += units * cost;
    }
}

static char * row_at(const struct ggml_tensor * t, int64_t row) {
    const int64_t i1 = row % t->ne[1], i2 = row / t->ne[1] % t->ne[2], i3 = row / t->ne[1] / t->ne[2];
    return (char *) t->data + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

void hotshoe_attention_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ggml_tensor * const of_parts = dst->src[0];
    const float * const sinks = *(const int32_t *) userdata ? dst->src[1]->data : NULL;
    const int64_t v_dim = dst->ne[0], heads = dst->ne[1], each = heads * dst->ne[2], n = of_parts->ne[3] / dst->ne[3];
    const int64_t rows = each * dst->ne[3];
    for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
        const float * const first = (const float *) row_at(of_parts, row / each * n * each + row % each);
        const int64_t stride = of_parts->nb[3] / sizeof *first;
        float * const out = (float *) row_at(dst, row);
        float most = sinks != NULL ? sinks[row % heads] : -INFINITY;
        for (int64_t p = 0; p < n; ++p) {
            most = first[p * stride + v_dim] > most ? first[p * stride + v_dim] : most;
        }
        float total = sinks != NULL ? expf(sinks[row % heads] - most) : 0.0f;
        memset(out, 0, v_dim * sizeof *out);
        for (int64_t p = 0; p < n; ++p) {
            const float * const part = first + p * stride;
            if (part[v_dim + 1] == 0.0f) {
                continue; /* it has seen no key */
            }
            const float weight = part[v_dim + 1] * expf(part[v_dim] - most);
            total += weight;
            for (int64_t d = 0; d < v_dim; ++d) {
                out[d] += weight * part[d];
            }
        }
        for (int64_t d = 0; d < v_dim; ++d) {
            out[d] /= total; /* 0 / 0 where no part has seen a key */
        }
    }
}

void hotshoe_layer_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_norm_params * params = userdata;
    const struct kernels * kernels = best();
    int next = 1;
    const float * weight = params->has_weight ? dst->src[next++]->data : NULL;
    const float * bias = params->has_bias ? dst->src[next++]->data : NULL;
    const int64_t rows = dst->ne[1] * dst->ne[2] * dst->ne[3];
    for (int64_t r = rows * ith / nth; r < rows * (ith + 1) / nth; ++r) {
        kernels->layer_row((float *) row_at(dst, r), (const float *) row_at(dst->src[0], r), weight, bias, dst->ne[0],
                           params->eps);
    }
}

void hotshoe_rms_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_norm_params * params = userdata;
    const struct kernels * kernels = best();
    const float * weight = params->has_weight ? dst->src[1]->data : NULL;
    const int64_t rows = dst->ne[1] * dst->ne[2] * dst->ne[3];
    for (int64_t r = rows * ith / nth; r < rows * (ith + 1) / nth; ++r) {
        kernels->rms_row((float *) row_at(dst, r), (const float *) row_at(dst->src[0], r), weight, dst->ne[0],
                         params->eps);
    }
}
