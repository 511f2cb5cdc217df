/* What hotshoe_attention.c and its kernels (hotshoe_attention_simd.h) share: the sizes of tiles and steps, one call of
 * the op as its threads see it, and what the mask shows to a tile of rows. Only hotshoe_attention.c includes this. */
#ifndef HOTSHOE_ATTENTION_JOB_H
#define HOTSHOE_ATTENTION_JOB_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "isa.h"
#include "tensor_rows.h"

#if defined(_MSC_VER) && !defined(__clang__)
#define PREFETCH(p) (void) (p)
#else
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* into L2 */
#endif

enum {
    MAX_DIM = 576,            /* DeepSeek's latent attention: 512, and 64 that rotate */
    MAX_TILES = 64,           /* tiles of a run: the limit for what it stores of each row */
    MAX_ROWS = 8,             /* of a tile */
    CHUNK = 32,               /* hidden keys are skipped in multiples of this; a multiple of each panel */
    MAX_STEP = 128,           /* keys at once: a multiple of CHUNK */
    MIN_ROWS_TO_PACK = 12,    /* rows that must see a key, on average, before a transposed copy of it pays */
    STEP_BYTES = 64 << 10,    /* keys and values of all heads in a step of few rows: they are prefetched */
    SCRATCH_FLOATS = 37 << 10 /* 148 KiB: the keys, values and scores of one step stay in L2 */
};
static const float zeros[MAX_DIM];
#define TIMES4(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define TIMES128(x) TIMES4(TIMES4(TIMES4(x, x)))
static const uint16_t hidden_f16[MAX_STEP] = {TIMES128(0xFC00)}; /* -inf */
static const uint32_t hidden_f32[MAX_STEP] = {TIMES128(0xFF800000)};

/* One call of the op. Each thread computes it for itself. */
struct job {
    struct ggml_tensor * dst;
    const struct ggml_tensor *q, *k, *v, *mask; /* mask may be NULL */
    const float * sinks;                        /* may be NULL */
    float scale, softcap;
    int64_t n_key_splits;    /* above 1: axis 3 of dst has splits, with each row's maximum and sum */
    int64_t group;           /* query heads that share a key/value head: row r is query r / group of head r % group */
    int64_t n_tiles;         /* tiles of rows */
    int64_t tiles_per_query; /* tiles of one query; 0 if tiles go from one query to the next */
    int64_t step;            /* keys at once */
    int is_memory_bound;     /* few rows, as in decoding: reading keys and values takes longer than computing */
};

/* Keys [from, to) of a batch element. element: where their results go, the index of axis 3 of dst. */
struct key_range {
    int64_t batch, from, to, element;
};

/* What a tile sees of the keys m to m + cols: from and to count from m, and contain all keys between the first and the
 * last chunk that a row sees. Both are 0 if no row sees a key. count: how many of these keys the tile's last row sees.
 * plain: all rows see all of these keys, and the mask adds 0 to their scores, so it need not be read again. */
struct visible_range {
    int64_t from, to, count;
    int plain;
};

/* The rows of keys or values that are prefetched next, in the order of memory. */
struct upcoming {
    const char * next;
    size_t size; /* bytes of a row */
    int64_t heads, heads_left, head_stride, row_stride;
};

/* What a thread does at once: tiles [first, last) of each of the key/value heads [first_head, last_head). */
struct run {
    const struct job * job;
    float * scratch; /* SCRATCH_FLOATS */
    struct key_range range;
    int64_t first_head, last_head, first, last;
    int is_one_step; /* all keys are one step: rows are divided by their sum as they are written */
    /* of the keys of one step */
    struct visible_range visible_to_any, visible[MAX_TILES];
    int64_t seen_pairs; /* of rows and keys */
    struct upcoming keys, values;
    /* of each row, and of each tile, one head after the other */
    float highest[MAX_TILES * MAX_ROWS], total[MAX_TILES * MAX_ROWS];
    char begun[MAX_TILES];
};

/* The first row of a tile. */
ALWAYS_INLINE int64_t first_row(const struct job * job, int64_t tile) {
    if (job->tiles_per_query == 0) {
        return job->group * job->q->ne[2] * tile / job->n_tiles;
    }
    return job->group * (tile / job->tiles_per_query) +
           job->group * (tile % job->tiles_per_query) / job->tiles_per_query;
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

/* Whether the mask hides all keys in [from, to), at most MAX_STEP. */
static int all_hidden(const struct ggml_tensor * mask, const char * row, int64_t from, int64_t to) {
    return memcmp(row + from * mask->nb[0],
                  mask->type == GGML_TYPE_F16 ? (const void *) hidden_f16 : (const void *) hidden_f32,
                  (to - from) * mask->nb[0]) == 0;
}

/* Whether the mask hides and moves no key in [from, to). */
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

/* The counters are as wide as the numbers of the mask: the loops become vectors of one width. */
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

/* What a tile of a head sees of `cols` keys from m on. */
static struct visible_range visible_range_of(const struct job * job, int64_t batch, int64_t kv_head, int64_t tile,
                                             int64_t m, int64_t cols) {
    if (job->mask == NULL) {
        return (struct visible_range) {0, cols, cols, 1};
    }
    struct visible_range all = {cols, 0, 0, 0};
    const char * last = NULL;
    for (int64_t row = first_row(job, tile); row < first_row(job, tile + 1); ++row) {
        const char * mask = mask_row(job->mask, m, row / job->group, kv_head * job->group + row % job->group, batch);
        if (mask == last) {
            continue;
        }
        last = mask;
        if (all_hidden(job->mask, mask, 0, cols)) { /* most steps, where a cache has many texts */
            continue;
        }
        struct visible_range row_range = {0, cols, 0, 0};
        while (row_range.from < all.from &&
               all_hidden(job->mask, mask, row_range.from, min64(row_range.from + CHUNK, cols))) {
            row_range.from += CHUNK;
        }
        while (row_range.to > all.to && all_hidden(job->mask, mask, (row_range.to - 1) / CHUNK * CHUNK, row_range.to)) {
            row_range.to = (row_range.to - 1) / CHUNK * CHUNK;
        }
        all.from = min64(row_range.from, all.from);
        all.to = row_range.to > all.to ? row_range.to : all.to;
    }
    if (all.from >= all.to) {
        return (struct visible_range) {0, 0, 0, 0};
    }
    all.plain = 1;
    last = NULL;
    for (int64_t row = first_row(job, tile); row < first_row(job, tile + 1) && all.plain; ++row) {
        const char * mask = mask_row(job->mask, m, row / job->group, kv_head * job->group + row % job->group, batch);
        all.plain = mask == last || all_zero(job->mask, mask, all.from, all.to);
        last = mask;
    }
    all.count = all.plain ? all.to - all.from : count_seen(job->mask, last, all.from, all.to);
    return all;
}

/* The index, among a run's rows, of row `row` of a head. */
ALWAYS_INLINE int64_t index_in_run(const struct run * run, int64_t kv_head, int64_t row) {
    const int64_t first = first_row(run->job, run->first), rows = first_row(run->job, run->last) - first;
    return (kv_head - run->first_head) * rows + row - first;
}

/* Key or value i of a head. */
ALWAYS_INLINE const char * cached_row_of(const struct ggml_tensor * t, int64_t batch, int64_t kv_head, int64_t i) {
    return (const char *) t->data + kv_head * t->nb[1] + i * t->nb[2] + batch * t->nb[3];
}

/* Prefetches a row of the next step. It is called once for each key that is computed with. */
ALWAYS_INLINE void prefetch_row(struct upcoming * rows) {
    for (size_t i = 0; i < rows->size; i += 64) {
        PREFETCH(rows->next + i);
    }
    rows->next += rows->head_stride;
    if (--rows->heads_left == 0) {
        rows->heads_left = rows->heads;
        rows->next += rows->row_stride;
    }
}

#endif
