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

#if defined(_MSC_VER) && !defined(__clang__)
#define SUFFIX generic
#define VL 1
#define ROWS 4
#define DOT_ROWS 3
#define TARGET
#define VMAX(a, b) ((a) > (b) ? (a) : (b))
#define SUM(v) (v)
#define SUM4(p, a, b, c, d, x) ((p)[0] = (a) * (x), (p)[1] = (b) * (x), (p)[2] = (c) * (x), (p)[3] = (d) * (x))
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
#define SUM4(p, a, b, c, d, x) \
    ((p)[0] = SUM(a) * (x), (p)[1] = SUM(b) * (x), (p)[2] = SUM(c) * (x), (p)[3] = SUM(d) * (x))
#define MAX(v) \
    (max4(max4(v, SHUFFLE4(v, v, 1, 0, 3, 2)), max4(SHUFFLE4(v, v, 2, 3, 0, 1), SHUFFLE4(v, v, 3, 2, 1, 0)))[0])
#define LOAD_PART(p, n, fill) load_first4(p, n, fill)
#include "hotshoe_attention_simd.h"

#if defined(HOTSHOE_X86)
#include "cached_rows.h"

AVX2 ALWAYS_INLINE void sum_four(float * to, __m256 a, __m256 b, __m256 c, __m256 d, float factor) {
    const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
    _mm_storeu_ps(to, _mm_mul_ps(sums, _mm_set1_ps(factor)));
}

AVX512 ALWAYS_INLINE __m256 both_halves(__m512 v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
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
#define SUM4(p, a, b, c, d, x) sum_four(p, (__m256) (a), (__m256) (b), (__m256) (c), (__m256) (d), x)
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
#define HALF(v) both_halves((__m512) (v))
#define SUM4(p, a, b, c, d, x) sum_four(p, HALF(a), HALF(b), HALF(c), HALF(d), x)
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

/* The number of keys that this batch element sees if the mask is one row for all its queries and heads: padding is at
 * the end. */
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

/* The keys that go to an element of axis 3 of dst: all keys of a batch element, or one split of them. visible: the
 * number of keys that the batch element sees. */
static struct key_range key_range_of(const struct job * job, int64_t element, int64_t visible) {
    const int64_t n = job->n_key_splits;
    struct key_range range = {element / n, visible * (element % n) / n, visible * (element % n + 1) / n, element};
    range.from = range.from / CHUNK * CHUNK;
    range.to = range.to == visible ? visible : range.to / CHUNK * CHUNK;
    return range;
}

/* Divides the rows of a head into tiles of at most `max_rows`. Rows that share a tile share the keys they see, so with
 * few queries, which may be of different sequences, each query has its own tiles. With fewer tiles than threads the
 * heads of a query are divided too: keys are then read more than once, but at the same time. */
static void choose_tiles(struct job * job, int64_t max_rows, int nth) {
    const int64_t n = job->q->ne[2], rows = n * job->group;
    const int64_t heads = job->k->ne[1] * job->dst->ne[3]; /* of all batch elements */
    const int64_t wanted = ceil_div(nth, heads);           /* tiles, so that each thread has one */
    if (job->mask != NULL && job->mask->ne[1] > 1 && n < 64) {
        job->tiles_per_query = ceil_div(job->group, max_rows);
        if (n * job->tiles_per_query < wanted) {
            job->tiles_per_query = min64(ceil_div(wanted, n), job->group);
        }
        job->n_tiles = n * job->tiles_per_query;
        return;
    }
    job->n_tiles = ceil_div(rows, max_rows);
    if (job->n_tiles < wanted) {
        job->n_tiles = min64(wanted, rows);
    }
}

static int64_t clamp(int64_t x, int64_t limit) { return x < 0 ? 0 : min64(x, limit); }

/* Finds what the tiles of a run see of the keys from m on. Returns 0 if they see nothing. */
static int find_visible_ranges(struct run * run, int64_t m, int64_t kv_head) {
    const struct job * const job = run->job;
    const int64_t cols = min64(run->range.to - m, job->step);
    run->visible_to_any = (struct visible_range){cols, 0, 0, 0};
    run->seen_pairs = 0;
    for (int64_t tile = run->first; tile < run->last; ++tile) {
        const struct visible_range tile_range = visible_range_of(job, run->range.batch, kv_head, tile, m, cols);
        run->visible[tile - run->first] = tile_range;
        if (tile_range.from < tile_range.to) {
            run->visible_to_any.from = min64(tile_range.from, run->visible_to_any.from);
            run->visible_to_any.to = tile_range.to > run->visible_to_any.to ? tile_range.to : run->visible_to_any.to;
            run->seen_pairs += tile_range.count * (first_row(job, tile + 1) - first_row(job, tile));
        }
    }
    return run->visible_to_any.from < run->visible_to_any.to;
}

/* Divides the sums of each row by its sum of weights, and fills rows that saw no key. */
static void finish(const struct run * run, int64_t kv_head) {
    const struct job * const job = run->job;
    const struct ggml_tensor * const dst = job->dst;
    const int64_t v_dim = job->v->ne[0];
    for (int64_t tile = run->first; tile < run->last; ++tile) {
        const int begun = run->begun[(kv_head - run->first_head) * (run->last - run->first) + tile - run->first];
        if (begun && run->is_one_step && job->n_key_splits == 1) {
            continue;
        }
        for (int64_t row = first_row(job, tile); row < first_row(job, tile + 1); ++row) {
            const int64_t n = row / job->group, h = kv_head * job->group + row % job->group;
            const int64_t index = index_in_run(run, kv_head, row);
            float * const out =
                (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + run->range.element * dst->nb[3]);
            const float nothing = job->sinks != NULL || job->n_key_splits > 1 ? 0.0f : NAN;
            const float gain = begun && !run->is_one_step ? 1.0f / run->total[index] : 1.0f;
            for (int64_t d = 0; d < v_dim; ++d) {
                out[d] = begun ? out[d] * gain : nothing;
            }
            if (job->n_key_splits > 1) {
                out[v_dim] = begun ? run->highest[index] : -INFINITY;
                out[v_dim + 1] = begun ? run->total[index] : 0.0f;
            }
        }
    }
}

static struct upcoming rows_from(const struct run * run, const struct ggml_tensor * t, int64_t i) {
    const int64_t heads = run->last_head - run->first_head;
    const char * const first = cached_row_of(t, run->range.batch, run->first_head, i);
    return (struct upcoming){first, row_bytes(t), heads, heads, t->nb[1], t->nb[2] - heads * t->nb[1]};
}

/* Lets the run prefetch the keys and values of its heads from number i on. */
static void prefetch_from(struct run * run, int64_t i) {
    run->keys = rows_from(run, run->job->k, i);
    run->values = rows_from(run, run->job->v, i);
}

/* Goes through the keys step by step, and in each step through all heads: a cache has their keys next to each other. */
static void compute(struct run * run, void (*head)(struct run *, int64_t, int64_t)) {
    const struct job * const job = run->job;
    const struct key_range range = run->range;
    const int same_for_all = job->mask == NULL || job->mask->ne[2] == 1;
    run->is_one_step = range.to - range.from <= job->step;
    memset(run->begun, 0, sizeof run->begun);
    if (job->is_memory_bound) { /* no step before the first one has prefetched its keys */
        const int64_t keys = min64(range.to - range.from, job->step);
        prefetch_from(run, range.from);
        for (int64_t i = 0; i < keys * (run->last_head - run->first_head); ++i) {
            prefetch_row(&run->keys);
            prefetch_row(&run->values);
        }
    }
    for (int64_t m = range.from; m < range.to; m += job->step) {
        prefetch_from(run, m + job->step);
        for (int64_t h = run->first_head; h < run->last_head; ++h) {
            if ((h == run->first_head || !same_for_all) && !find_visible_ranges(run, m, h)) {
                if (same_for_all) {
                    break;
                }
                continue;
            }
            head(run, m, h);
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
    job.mask = params->has_mask ? dst->src[3] : NULL;
    job.sinks = params->has_sinks ? dst->src[3 + (job.mask != NULL)]->data : NULL;
    job.n_key_splits = dst->ne[3] / job.q->ne[3];
    job.softcap = params->softcap;
    job.scale = params->softcap != 0.0f ? params->scale / params->softcap : params->scale;
    const int64_t kv_heads = job.k->ne[1], n_splits = job.n_key_splits, panel = kernels->panel;
    job.group = job.q->ne[1] / kv_heads;
    choose_tiles(&job, kernels->rows, nth);
    const int64_t width = job.q->ne[0] + ceil_div(job.v->ne[0], panel) * panel + 2 * kernels->rows;
    job.step = min64(SCRATCH_FLOATS / width / CHUNK * CHUNK, MAX_STEP);
    job.is_memory_bound = job.group * job.q->ne[2] < MIN_ROWS_TO_PACK;
    if (job.is_memory_bound) {
        const int64_t bytes = kv_heads * (row_bytes(job.k) + row_bytes(job.v)); /* of one key and value, all heads */
        const int64_t keys = STEP_BYTES / (bytes > 0 ? bytes : 1) / CHUNK * CHUNK;
        job.step = keys < CHUNK ? CHUNK : min64(keys, job.step);
    }

    struct run run = {.job = &job, .scratch = scratch_of(params->scratch, ith)};
    /* An item is one tile of one head, for one key range. Each thread computes an equal share of the items, and an item
     * costs as many keys as it has: padded texts cost less than full ones. */
    const int64_t items = kv_heads * job.n_tiles, fixed = 16;
    int64_t total = 0;
    for (int64_t b = 0; b < job.q->ne[3]; ++b) {
        total += items * (visible_keys(&job, b) + n_splits * fixed);
    }
    const int64_t from = total * ith / nth, to = total * (ith + 1) / nth;
    int64_t before = 0, visible = 0;
    for (int64_t i = 0; i < dst->ne[3] && before < to; ++i) {
        visible = i % n_splits == 0 ? visible_keys(&job, i / n_splits) : visible;
        const struct key_range range = key_range_of(&job, i, visible);
        const int64_t cost = range.to - range.from + fixed;
        const int64_t stop = clamp((to - before + cost / 2) / cost, items);
        int64_t item = from > before ? clamp((from - before + cost / 2) / cost, items) : 0;
        while (item < stop) {
            run.range = range;
            run.first_head = item / job.n_tiles;
            run.first = item % job.n_tiles;
            const int64_t n_tiles = min64(stop - item, MAX_TILES), heads = n_tiles / job.n_tiles;
            run.last_head = run.first == 0 && heads > 1 ? run.first_head + heads : run.first_head + 1;
            run.last = min64(run.first + n_tiles, job.n_tiles);
            compute(&run, kernels->head);
            item += (run.last - run.first) * (run.last_head - run.first_head);
        }
        before += items * cost;
    }
}

void hotshoe_attention_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct ggml_tensor * const splits = dst->src[0];
    const float * const sinks = *(const int32_t *) userdata ? dst->src[1]->data : NULL;
    const int64_t v_dim = dst->ne[0], heads = dst->ne[1], element_rows = heads * dst->ne[2];
    const int64_t n_splits = splits->ne[3] / dst->ne[3];
    const int64_t rows = element_rows * dst->ne[3];
    for (int64_t row = rows * ith / nth; row < rows * (ith + 1) / nth; ++row) {
        const float * const first =
            (const float *) row_of(splits, row / element_rows * n_splits * element_rows + row % element_rows);
        const int64_t stride = splits->nb[3] / sizeof *first;
        float * const out = (float *) row_of(dst, row);
        float highest = sinks != NULL ? sinks[row % heads] : -INFINITY;
        for (int64_t i = 0; i < n_splits; ++i) {
            highest = first[i * stride + v_dim] > highest ? first[i * stride + v_dim] : highest;
        }
        float total = sinks != NULL ? expf(sinks[row % heads] - highest) : 0.0f;
        memset(out, 0, v_dim * sizeof *out);
        for (int64_t i = 0; i < n_splits; ++i) {
            const float * const split = first + i * stride;
            if (split[v_dim + 1] == 0.0f) {
                continue; /* this split saw no key */
            }
            const float weight = split[v_dim + 1] * expf(split[v_dim] - highest);
            total += weight;
            for (int64_t d = 0; d < v_dim; ++d) {
                out[d] += weight * split[d];
            }
        }
        for (int64_t d = 0; d < v_dim; ++d) {
            out[d] /= total; /* 0 / 0 if no split saw a key */
        }
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
