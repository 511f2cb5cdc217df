/* Attention with the online softmax, the merging of its splits, and the norms, which use the same vectors.
 *
 * The rows of a key/value head are the queries of all heads that share it. They are divided into tiles; a tile goes
 * through the keys step by step: scores, weights, and the weighted sum of the values. A thread computes a run: some
 * tiles of some heads. This file includes the kernels of hotshoe_attention_simd.h once for each instruction set.
 *
 * Reading order: hotshoe_attention.h (the ops), hotshoe_attention_job.h (what a thread knows of its work), this file
 * from hotshoe_attention upwards, hotshoe_attention_simd.h (softmax), hotshoe_attention_tiles.h (the products). */
#include "hotshoe_attention.h"

#include "hotshoe_attention_job.h"
#include "vector_sets.h"

/* The kernels of one instruction set, and the rows of a tile and the columns of a panel that they have. */
struct kernels {
    void (*head)(struct run *, int64_t m, int64_t kv_head);
    void (*layer_row)(float *, const float *, const float *, const float *, int64_t, float);
    void (*rms_row)(float *, const float *, const float *, int64_t, float);
    int rows, panel;
};

/* The score of a row's attention sink, or NULL. */
ALWAYS_INLINE const float * sink_of(const struct job * job, int64_t kv_head, int64_t row) {
    return job->sinks != NULL ? job->sinks + kv_head * job->group + row % job->group : NULL;
}

/* These three are not inlined: their sums are rounded in the same way wherever they are called. */

/* The factor of a row's sum of values, which has the weights exp(score - highest) with the sum total. sink: takes part
 * in the sum of weights; may be NULL. */
NOINLINE static float gain_of(float highest, float total, const float * sink) {
    if (sink == NULL) {
        return 1.0f / total;
    }
    const float top = *sink > highest ? *sink : highest;
    const float factor = expf(highest - top);
    return factor / (total * factor + expf(*sink - top));
}

/* Adds a part of a row to the parts before it: their sums of values, highest scores, and sums of weights. */
NOINLINE static void add_part(float * sums, float * highest, float * total, const float * part, float part_highest,
                              float part_total, int64_t n) {
    if (part_total == 0.0f) {
        return; /* it saw no key */
    }
    if (*total == 0.0f) {
        memcpy(sums, part, n * sizeof *sums);
        *highest = part_highest;
        *total = part_total;
        return;
    }
    const float top = part_highest > *highest ? part_highest : *highest;
    const float old = expf(*highest - top), new = expf(part_highest - top);
    for (int64_t d = 0; d < n; ++d) {
        sums[d] = sums[d] * old + part[d] * new;
    }
    *total = *total * old + part_total * new;
    *highest = top;
}

/* Turns a row's sum of values into its result. A row that saw no key becomes NaN, as in NumPy, or 0 with a sink. */
NOINLINE static void finish_row(float * sums, float highest, float total, const float * sink, int64_t n) {
    if (total == 0.0f) {
        for (int64_t d = 0; d < n; ++d) {
            sums[d] = sink != NULL ? 0.0f : NAN;
        }
        return;
    }
    const float gain = gain_of(highest, total, sink);
    for (int64_t d = 0; d < n; ++d) {
        sums[d] *= gain;
    }
}

#if defined(_MSC_VER) && !defined(__clang__)
#define SUFFIX generic
#define VL 1
#define ROWS 4
#define DOT_ROWS 3
#define TARGET
#define VMAX(a, b) ((a) > (b) ? (a) : (b))
#define SUM(v) (v)
#define SUM_CLASSES(p, a, b, c, d, x) ((p)[0] = (a) * (x), (p)[1] = (b) * (x), (p)[2] = (c) * (x), (p)[3] = (d) * (x))
#define LOAD_FOUR(p) (*(p))
#define FOUR_BY_KEY(x, key, at, is_f16) ((x)[0] = *(const float *) ((key)[0] + (at)))
#define MAX(v) (v)
#define LOAD_PART(p, n, fill) (*(p))
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
#define DOT_ROWS 3
#define TARGET
typedef int32_t v4mask __attribute__((vector_size(16)));
ALWAYS_INLINE v4 max4(v4 a, v4 b) {
    const v4mask greater = a > b;
    return (v4) (((v4mask) a & greater) | ((v4mask) b & ~greater));
}
ALWAYS_INLINE v4 load_first4(const float * p, int64_t n, float fill) {
    return (v4){n > 0 ? p[0] : fill, n > 1 ? p[1] : fill, n > 2 ? p[2] : fill, n > 3 ? p[3] : fill};
}
#define VMAX(a, b) max4(a, b)
#define SUM(v) ((v)[0] + (v)[1] + ((v)[2] + (v)[3]))
ALWAYS_INLINE void sum_classes4(float * to, v4 a, v4 b, v4 c, v4 d, float factor) {
    const v4 ab0 = SHUFFLE4(a, b, 0, 4, 1, 5), ab2 = SHUFFLE4(a, b, 2, 6, 3, 7);
    const v4 cd0 = SHUFFLE4(c, d, 0, 4, 1, 5), cd2 = SHUFFLE4(c, d, 2, 6, 3, 7);
    v4 sum = SHUFFLE4(ab0, cd0, 0, 1, 4, 5) + SHUFFLE4(ab0, cd0, 2, 3, 6, 7);
    sum = (sum + SHUFFLE4(ab2, cd2, 0, 1, 4, 5) + SHUFFLE4(ab2, cd2, 2, 3, 6, 7)) * factor;
    memcpy(to, &sum, sizeof sum);
}
ALWAYS_INLINE v4 load4(const void * p) {
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
#define SUM_CLASSES(p, a, b, c, d, x) sum_classes4(p, a, b, c, d, x)
#define LOAD_FOUR(p) load4(p)
#define FOUR_BY_KEY(x, key, at, is_f16) ((x)[0] = load4((key)[0] + (at)))
#define MAX(v) \
    (max4(max4(v, SHUFFLE4(v, v, 1, 0, 3, 2)), max4(SHUFFLE4(v, v, 2, 3, 0, 1), SHUFFLE4(v, v, 3, 2, 1, 0)))[0])
#define LOAD_PART(p, n, fill) load_first4(p, n, fill)
#include "hotshoe_attention_simd.h"

#if defined(HOTSHOE_X86)
#include "cached_rows.h"

AVX2 ALWAYS_INLINE void sum_classes8(float * to, __m256 a, __m256 b, __m256 c, __m256 d, float factor) {
    const __m256 ab0 = _mm256_unpacklo_ps(a, b), ab2 = _mm256_unpackhi_ps(a, b);
    const __m256 cd0 = _mm256_unpacklo_ps(c, d), cd2 = _mm256_unpackhi_ps(c, d);
    __m256 sum = _mm256_add_ps(_mm256_shuffle_ps(ab0, cd0, 0x44), _mm256_shuffle_ps(ab0, cd0, 0xEE));
    sum = _mm256_add_ps(sum, _mm256_shuffle_ps(ab2, cd2, 0x44));
    sum = _mm256_add_ps(sum, _mm256_shuffle_ps(ab2, cd2, 0xEE));
    sum = _mm256_permutevar8x32_ps(sum, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_ps(to, _mm256_mul_ps(sum, _mm256_set1_ps(factor)));
}

AVX512 ALWAYS_INLINE void sum_classes16(float * to, __m512 a, __m512 b, __m512 c, __m512 d, float factor) {
    const __m512 ab0 = _mm512_unpacklo_ps(a, b), ab2 = _mm512_unpackhi_ps(a, b);
    const __m512 cd0 = _mm512_unpacklo_ps(c, d), cd2 = _mm512_unpackhi_ps(c, d);
    __m512 sum = _mm512_add_ps(_mm512_shuffle_ps(ab0, cd0, 0x44), _mm512_shuffle_ps(ab0, cd0, 0xEE));
    sum = _mm512_add_ps(sum, _mm512_shuffle_ps(ab2, cd2, 0x44));
    sum = _mm512_add_ps(sum, _mm512_shuffle_ps(ab2, cd2, 0xEE));
    sum = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sum);
    _mm512_storeu_ps(to, _mm512_mul_ps(sum, _mm512_set1_ps(factor)));
}

AVX2 ALWAYS_INLINE void two_by_key(__m256 * x, const char * a, const char * b, int is_f16) {
    if (is_f16) {
        const __m128i ha = _mm_loadu_si128((const __m128i *) a), hb = _mm_loadu_si128((const __m128i *) b);
        x[0] = _mm256_cvtph_ps(_mm_unpacklo_epi64(ha, hb));
        x[1] = _mm256_cvtph_ps(_mm_unpackhi_epi64(ha, hb));
        return;
    }
    const __m256 fa = _mm256_loadu_ps((const float *) a), fb = _mm256_loadu_ps((const float *) b);
    x[0] = _mm256_permute2f128_ps(fa, fb, 0x20);
    x[1] = _mm256_permute2f128_ps(fa, fb, 0x31);
}

AVX512 ALWAYS_INLINE void four_by_key(__m512 * x, const char * a, const char * b, const char * c, const char * d,
                                      int is_f16) {
    if (is_f16) {
        const __m256i ha = _mm256_loadu_si256((const __m256i *) a), hb = _mm256_loadu_si256((const __m256i *) b);
        const __m256i hc = _mm256_loadu_si256((const __m256i *) c), hd = _mm256_loadu_si256((const __m256i *) d);
        const __m256i ab0 = _mm256_unpacklo_epi64(ha, hb), ab1 = _mm256_unpackhi_epi64(ha, hb);
        const __m256i cd0 = _mm256_unpacklo_epi64(hc, hd), cd1 = _mm256_unpackhi_epi64(hc, hd);
        x[0] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab0, cd0, 0x20));
        x[1] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab1, cd1, 0x20));
        x[2] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab0, cd0, 0x31));
        x[3] = _mm512_cvtph_ps(_mm256_permute2x128_si256(ab1, cd1, 0x31));
        return;
    }
    const __m512 fa = _mm512_loadu_ps(a), fb = _mm512_loadu_ps(b), fc = _mm512_loadu_ps(c), fd = _mm512_loadu_ps(d);
    const __m512 ab0 = _mm512_shuffle_f32x4(fa, fb, 0x44), ab2 = _mm512_shuffle_f32x4(fa, fb, 0xEE);
    const __m512 cd0 = _mm512_shuffle_f32x4(fc, fd, 0x44), cd2 = _mm512_shuffle_f32x4(fc, fd, 0xEE);
    x[0] = _mm512_shuffle_f32x4(ab0, cd0, 0x88);
    x[1] = _mm512_shuffle_f32x4(ab0, cd0, 0xDD);
    x[2] = _mm512_shuffle_f32x4(ab2, cd2, 0x88);
    x[3] = _mm512_shuffle_f32x4(ab2, cd2, 0xDD);
}

AVX2 ALWAYS_INLINE float max8(__m256 v) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

AVX2 ALWAYS_INLINE __m256 load_first8(const float * p, int64_t n, float fill) {
    const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32((int) n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, lanes), _mm256_castsi256_ps(lanes));
}

#define SUFFIX avx2
#define VL 8
#define ROWS 6
#define DOT_ROWS 3
#define TARGET AVX2
#define VMAX(a, b) ((vf) _mm256_max_ps((__m256) (a), (__m256) (b)))
#define SUM(v) sum8((__m256) (v))
#define SUM_CLASSES(p, a, b, c, d, x) sum_classes8(p, (__m256) (a), (__m256) (b), (__m256) (c), (__m256) (d), x)
#define LOAD_FOUR(p) ((vf) _mm256_broadcast_ps((const __m128 *) (p)))
#define FOUR_BY_KEY(x, key, at, is_f16) two_by_key((__m256 *) (x), (key)[0] + (at), (key)[1] + (at), is_f16)
#define MAX(v) max8((__m256) (v))
#define LOAD_PART(p, n, fill) ((vf) load_first8(p, n, fill))
#define LOAD_HALF(p) ((vf) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (p))))
#include "hotshoe_attention_simd.h"

#define SUFFIX avx512
#define VL 16
#define ROWS 8
#define DOT_ROWS 4
#define TARGET AVX512
#define VMAX(a, b) ((vf) _mm512_max_ps((__m512) (a), (__m512) (b)))
#define SUM(v) _mm512_reduce_add_ps((__m512) (v))
#define SUM_CLASSES(p, a, b, c, d, x) sum_classes16(p, (__m512) (a), (__m512) (b), (__m512) (c), (__m512) (d), x)
#define LOAD_FOUR(p) ((vf) _mm512_broadcast_f32x4(_mm_loadu_ps(p)))
#define FOUR_BY_KEY(x, key, at, is_f16) \
    four_by_key((__m512 *) (x), (key)[0] + (at), (key)[1] + (at), (key)[2] + (at), (key)[3] + (at), is_f16)
#define MAX(v) _mm512_reduce_max_ps((__m512) (v))
#define LOAD_PART(p, n, fill) ((vf) _mm512_mask_loadu_ps(_mm512_set1_ps(fill), (__mmask16) ((1u << (n)) - 1), p))
#define LOAD_HALF(p) ((vf) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (p))))
#include "hotshoe_attention_simd.h"
#endif
#endif

static const struct kernels * best_kernels(void) {
#if defined(HOTSHOE_X86)
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX2) {
        return sets & CPU_AVX512 ? &kernels_avx512 : &kernels_avx2;
    }
#endif
    return &kernels_generic;
}

/* The number of keys up to the last one that this batch element sees, if the mask is one row for all its queries and
 * heads (padding is at the end), else all. */
static int64_t visible_keys(const struct job * job, int64_t batch) {
    int64_t m = job->k->ne[2];
    if (job->mask != NULL && job->mask->ne[1] == 1 && job->mask->ne[2] == 1) {
        const char * row = mask_row(job->mask, 0, 0, 0, batch);
        while (m >= MAX_STEP && all_hidden(job->mask, row, m - MAX_STEP, m)) {
            m -= MAX_STEP;
        }
        while (m > 0 && all_hidden(job->mask, row, m - 1, m)) {
            --m;
        }
    }
    return m;
}

struct keys {
    int64_t from, n;
};

/* The keys of a text that one part of dst gets: all of them if dst has no parts. They begin where a step does. */
static struct keys keys_of_part(const struct job * job, const struct text * text, int64_t part) {
    const int64_t first = text->list + (text->from - text->list) / job->step * job->step;
    if (job->n_parts == 1) {
        return (struct keys){first, text->to - first};
    }
    const int64_t from = max64(first, text->list + part * PART), to = min64(text->to, text->list + (part + 1) * PART);
    return (struct keys){from, max64(to - from, 0)};
}

/* Finds the texts of a call, and returns their number. With ranges these are queries that follow each other and have
 * one list. With a mask they are the batch elements, or single queries where few have rows of the mask: these may be of
 * different sequences, and see different keys. */
static int64_t find_texts(const struct job * job, struct text * texts) {
    const int64_t n = job->q->ne[2], batches = job->q->ne[3];
    int64_t found = 0;
    if (job->ranges == NULL) {
        const int apart =
            job->mask != NULL && job->mask->ne[1] > 1 && n < MIN_QUERIES_TOGETHER && n * batches <= MAX_TEXTS;
        for (int64_t b = 0; b < batches; ++b) {
            const int32_t visible = (int32_t) visible_keys(job, b);
            for (int64_t i = 0; i < n; i += apart ? 1 : n) {
                texts[found++] = (struct text){(int32_t) i, apart ? 1 : (int32_t) n, 0, 0, visible, (int32_t) b};
            }
        }
        return found;
    }
    for (int64_t i = 0; i < n; ++i) {
        const struct key_range range = keys_of(job, i);
        struct text * last = texts + found - 1;
        if (found == 0 || last->list != range.list) {
            texts[found++] = (struct text){(int32_t) i, 1, range.list, range.from, range.to, 0};
            continue;
        }
        ++last->n;
        last->from = range.from < last->from ? range.from : last->from;
        last->to = range.to > last->to ? range.to : last->to;
    }
    return found;
}

/* Divides the rows of a text into tiles. With few tiles the heads of a query are divided too, so that each thread has
 * work: keys are then read more than once, but at the same time. wanted: tiles of each head. */
static int64_t n_tiles_of(const struct job * job, const struct text * text, int64_t max_rows, int64_t wanted) {
    const int64_t rows = text->n * job->group, tiles = ceil_div(rows, max_rows);
    return tiles < wanted ? min64(wanted, rows) : tiles;
}

static int64_t clamp(int64_t x, int64_t limit) { return x < 0 ? 0 : min64(x, limit); }

/* Finds what the tiles of a run see of the keys from m on. Returns 0 if they see nothing. */
static int find_visible_ranges(struct run * run, int64_t m, int64_t stop, int64_t kv_head) {
    const int64_t cols = min64(stop - m, run->job->step);
    run->visible_to_any = (struct visible_range){cols, 0, 0, 0, 0};
    run->seen_pairs = 0;
    for (int64_t tile = run->first; tile < run->last; ++tile) {
        const struct visible_range seen = visible_range_of(run, kv_head, tile, m, cols);
        run->visible[tile - run->first] = seen;
        if (seen.from < seen.to) {
            run->visible_to_any.from = min64(seen.from, run->visible_to_any.from);
            run->visible_to_any.to = max64(seen.to, run->visible_to_any.to);
            run->seen_pairs += seen.count * (first_row(run, tile + 1) - first_row(run, tile));
        }
    }
    return run->visible_to_any.from < run->visible_to_any.to;
}

static struct upcoming upcoming_rows(const struct run * run, const struct ggml_tensor * t, int64_t key) {
    const size_t size = (run->last_head - run->first_head - 1) * t->nb[1] + row_bytes(t);
    const char * const base = cached_row_of(t, run->batch, run->first_head, 0);
    const int together = t->nb[1] <= t->nb[2]; /* the heads of a cell: without a cache they may be far apart */
    return (struct upcoming){base, run->job->cells, t->nb[2], size, 0, key, together ? run->limit : 0};
}

/* Lets the run prefetch the keys and values of its heads from number `key` on. */
static void prefetch_from(struct run * run, int64_t key) {
    run->keys = upcoming_rows(run, run->job->k, key);
    run->values = upcoming_rows(run, run->job->v, key);
}

/* Adds what was computed of one part to the parts before it. */
static void end_part(struct run * run) {
    const int64_t n = run->job->v->ne[0];
    for (int64_t h = run->first_head; h < run->last_head; ++h) {
        for (int64_t tile = run->first; tile < run->last; ++tile) {
            const int64_t in_run = tile_in_run(run, h, tile);
            if (!run->begun[in_run]) {
                continue;
            }
            const int64_t from = first_row(run, tile), to = first_row(run, tile + 1);
            for (int64_t row = from; row < to; ++row) {
                const int64_t i = index_in_run(run, h, row);
                if (run->begun_before[in_run]) {
                    add_part(result_of(run, h, row), run->highest_before + i, run->total_before + i,
                             run->part_sums + i * n, run->highest[i], run->total[i], n);
                } else {
                    run->highest_before[i] = run->highest[i];
                    run->total_before[i] = run->total[i];
                }
            }
            run->begun_before[in_run] = 1;
            run->begun[in_run] = 0;
        }
    }
}

/* Divides the sums of each row by its sum of weights, or writes both for hotshoe_attention_merge. */
static void finish(const struct run * run, int64_t kv_head) {
    const struct job * const job = run->job;
    const int64_t n = job->v->ne[0];
    for (int64_t tile = run->first; tile < run->last; ++tile) {
        const int begun = run->begun_before[tile_in_run(run, kv_head, tile)];
        if (begun && run->is_one_step) {
            continue;
        }
        for (int64_t row = first_row(run, tile); row < first_row(run, tile + 1); ++row) {
            const int64_t i = index_in_run(run, kv_head, row);
            float * const out = result_of(run, kv_head, row);
            const float highest = begun ? run->highest_before[i] : -INFINITY, total = begun ? run->total_before[i] : 0;
            if (job->n_parts > 1) {
                out[n] = highest;
                out[n + 1] = total;
            } else {
                finish_row(out, highest, total, sink_of(job, kv_head, row), n);
            }
        }
    }
}

/* Goes through the keys step by step, and in each step through all heads: a cache has their keys next to each other. */
static void compute(struct run * run, void (*head)(struct run *, int64_t, int64_t)) {
    const struct job * const job = run->job;
    const int same_for_all = job->mask == NULL || job->mask->ne[2] == 1;
    const int64_t step = job->step;
    run->is_one_step = run->to - run->from <= step && job->n_parts == 1;
    memset(run->begun, 0, sizeof run->begun);
    memset(run->begun_before, 0, sizeof run->begun_before);
    const int is_prefetched = run->prefetched == run->from && run->prefetched_heads[0] == run->first_head &&
                              run->prefetched_heads[1] == run->last_head;
    if (!is_prefetched && job->group * run->n_queries < MIN_ROWS_TO_PACK) { /* reading takes longer than computing */
        prefetch_from(run, run->from);
        fetch(&run->keys, min64(step, run->to - run->from));
        fetch(&run->values, min64(step, run->to - run->from));
    }
    run->prefetched = run->to < run->limit ? run->to : -1;
    run->prefetched_heads[0] = run->first_head;
    run->prefetched_heads[1] = run->last_head;
    for (int64_t m = run->from; m < run->to; m += step) {
        prefetch_from(run, m + step);
        for (int64_t h = run->first_head; h < run->last_head; ++h) {
            if ((h == run->first_head || !same_for_all) && !find_visible_ranges(run, m, run->to, h)) {
                if (same_for_all) {
                    break;
                }
                continue;
            }
            head(run, m, h);
        }
        if ((m + step - run->list) % PART == 0 || m + step >= run->to) {
            end_part(run);
        }
    }
    for (int64_t h = run->first_head; h < run->last_head; ++h) {
        finish(run, h);
    }
}

void hotshoe_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_attention_params * params = userdata;
    const struct kernels * kernels = best_kernels();
    struct job job = {.dst = dst, .q = dst->src[0], .k = dst->src[1], .v = dst->src[2]};
    int source = 3;
    job.mask = params->has_mask ? dst->src[source++] : NULL;
    job.n_listed = params->has_ranges ? dst->src[source]->ne[0] : 0;
    job.cells = params->has_ranges ? dst->src[source++]->data : NULL;
    job.ranges = params->has_ranges ? dst->src[source++] : NULL;
    job.slopes = params->has_slopes ? dst->src[source++]->data : NULL;
    job.sinks = params->has_sinks ? dst->src[source]->data : NULL;
    job.n_parts = dst->ne[3] / job.q->ne[3];
    job.softcap = params->softcap;
    job.scale = params->softcap != 0.0f ? params->scale / params->softcap : params->scale;
    const int64_t kv_heads = job.k->ne[1], v_dim = job.v->ne[0], panel = kernels->panel;
    job.group = job.q->ne[1] / kv_heads;
    /* The sizes below decide the order of sums. They depend on the heads, their types and the instruction set, not on
     * the numbers of queries, keys and threads. */
    const int64_t width = ceil_div(job.q->ne[0], 16) * 16 + ceil_div(v_dim, panel) * panel + 2 * MAX_ROWS;
    const int64_t bytes = kv_heads * (int64_t) (row_bytes(job.k) + row_bytes(job.v)); /* of all heads, for one cell */
    job.step = MAX_STEP;
    while (job.step > CHUNK && (job.step * width > STEP_FLOATS || job.step * bytes > STEP_BYTES)) {
        job.step /= 2;
    }
    const int64_t rows_with_sums = SUM_FLOATS / v_dim, max_tiles = clamp(rows_with_sums / kernels->rows, MAX_TILES);

    float * const memory = scratch_of(params->scratch, ith);
    struct run run = {.job = &job, .step_memory = memory, .part_sums = memory + STEP_FLOATS, .prefetched = -1};
    run.queries = run.part_sums + SUM_FLOATS;
    struct text * const texts = (struct text *) (run.queries + QUERY_FLOATS);
    const int64_t n_texts = find_texts(&job, texts), wanted = ceil_div(nth, kv_heads * n_texts);
    /* An item is one tile of one head, for the keys of a text or a part of them. Each thread computes an equal share of
     * the items, and an item costs as many keys as it has: short texts cost less than long ones. */
    const int64_t fixed = 16;
    int64_t total = 0;
    for (int64_t t = 0; t < n_texts; ++t) {
        const int64_t items = kv_heads * n_tiles_of(&job, texts + t, kernels->rows, wanted);
        for (int64_t part = 0; part < job.n_parts; ++part) {
            total += items * (keys_of_part(&job, texts + t, part).n + fixed);
        }
    }
    const int64_t from = total * ith / nth, to = total * (ith + 1) / nth;
    int64_t before = 0;
    for (int64_t i = 0; i < n_texts * job.n_parts && before < to; ++i) {
        const struct text * const text = texts + i / job.n_parts;
        const struct keys keys = keys_of_part(&job, text, i % job.n_parts);
        run.batch = text->batch;
        run.first_query = text->first;
        run.n_queries = text->n;
        run.n_tiles = n_tiles_of(&job, text, kernels->rows, wanted);
        run.list = text->list;
        run.from = keys.from;
        run.to = keys.from + keys.n;
        run.limit = text->to;
        run.element = text->batch * job.n_parts + i % job.n_parts;
        const int64_t items = kv_heads * run.n_tiles, cost = keys.n + fixed;
        const int64_t stop = clamp((to - before + cost / 2) / cost, items);
        int64_t item = from > before ? clamp((from - before + cost / 2) / cost, items) : 0;
        while (item < stop) {
            run.first_head = item / run.n_tiles;
            run.first = item % run.n_tiles;
            const int64_t n_tiles = min64(stop - item, max_tiles), heads = n_tiles / run.n_tiles;
            run.last_head = run.first == 0 && heads > 1 ? run.first_head + heads : run.first_head + 1;
            run.last = min64(run.first + n_tiles, run.n_tiles);
            compute(&run, kernels->head);
            item += (run.last - run.first) * (run.last_head - run.first_head);
        }
        before += items * cost;
    }
}

void hotshoe_attention_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ggml_tensor * const parts = dst->src[0];
    const float * const sinks = *(const int32_t *) userdata ? dst->src[1]->data : NULL;
    const int64_t n = dst->ne[0], heads = dst->ne[1], element_rows = heads * dst->ne[2];
    const int64_t n_parts = parts->ne[3] / dst->ne[3];
    const int64_t rows = element_rows * dst->ne[3];
    for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
        const float * part =
            (const float *) row_of(parts, row / element_rows * n_parts * element_rows + row % element_rows);
        float * const out = (float *) row_of(dst, row);
        float highest = -INFINITY, total = 0.0f;
        for (int64_t i = 0; i < n_parts; ++i, part += parts->nb[3] / sizeof *part) {
            add_part(out, &highest, &total, part, part[n], part[n + 1], n);
        }
        finish_row(out, highest, total, sinks != NULL ? sinks + row % heads : NULL, n);
    }
}

void hotshoe_layer_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_norm_params * params = userdata;
    const struct kernels * kernels = best_kernels();
    int next = 1;
    const float * weight = params->has_weight ? dst->src[next++]->data : NULL;
    const float * bias = params->has_bias ? dst->src[next++]->data : NULL;
    const int64_t rows = n_rows(dst);
    for (int64_t r = rows * ith / nth; r < rows * (ith + 1) / nth; ++r) {
        kernels->layer_row((float *) row_of(dst, r), (const float *) row_of(dst->src[0], r), weight, bias, dst->ne[0],
                           params->eps);
    }
}

void hotshoe_rms_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_norm_params * params = userdata;
    const struct kernels * kernels = best_kernels();
    const float * weight = params->has_weight ? dst->src[1]->data : NULL;
    const int64_t rows = n_rows(dst);
    for (int64_t r = rows * ith / nth; r < rows * (ith + 1) / nth; ++r) {
        kernels->rms_row((float *) row_of(dst, r), (const float *) row_of(dst->src[0], r), weight, dst->ne[0],
                         params->eps);
    }
}
