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
    MAX_DIM = HOTSHOE_MAX_HEAD,
    MAX_TILES = 64,            /* tiles of a run: the limit for what it stores of each row */
    MAX_ROWS = 8,              /* of a tile */
    CHUNK = 32,                /* hidden keys are skipped in multiples of this; a multiple of each panel */
    MAX_STEP = 128,            /* keys at once: a multiple of CHUNK */
    PART = HOTSHOE_KEY_PART,   /* keys with a softmax of their own: a multiple of each step */
    MIN_QUERIES_TOGETHER = 64, /* that have rows of a mask */
    MIN_ROWS_TO_PACK = 40,     /* rows that must see a key, on average, before a transposed copy of it pays */
    STEP_BYTES = 256 << 10,    /* keys and values of all heads in a step: the next step is prefetched into L2 */
    FETCH_AHEAD = 4096,        /* bytes */
    STEP_FLOATS = 37 << 10,    /* 148 KiB: the keys, values and scores of one step stay in L2 */
    SUM_FLOATS = 160 << 10,    /* 640 KiB: the sums of a part, for all rows of a run */
    QUERY_FLOATS = MAX_ROWS * (MAX_DIM + 16), /* queries of a tile with zeros behind them */
    MAX_TEXTS = HOTSHOE_MAX_TEXTS,
};
static const float zeros[MAX_DIM];
#define TIMES4(...) __VA_ARGS__, __VA_ARGS__, __VA_ARGS__, __VA_ARGS__
#define TIMES128(x) TIMES4(TIMES4(TIMES4(x, x)))
static const uint16_t hidden_f16[MAX_STEP] = {TIMES128(0xFC00)}; /* -inf */
static const uint32_t hidden_f32[MAX_STEP] = {TIMES128(0xFF800000)};

/* Queries that follow each other and read the same list of keys. */
struct text {
    int32_t first, n;       /* queries */
    int32_t list, from, to; /* the number of the list's first key; its keys that any of the queries reads */
    int32_t batch;
};

_Static_assert(4 * (STEP_FLOATS + SUM_FLOATS + QUERY_FLOATS) + sizeof(struct text) * MAX_TEXTS <= HOTSHOE_SCRATCH,
               "a thread's scratch memory has room for all of these");

/* One call of the op. Each thread computes it for itself. */
struct job {
    struct ggml_tensor * dst;
    const struct ggml_tensor *q, *k, *v, *mask; /* mask may be NULL */
    const int32_t * cells;                      /* the cell of each key; NULL if key i is in cell i */
    int64_t n_listed;                           /* with cells: their number */
    const struct ggml_tensor * ranges;          /* with cells: what each query reads */
    const float *sinks, *slopes;                /* may be NULL */
    float scale, softcap;
    int64_t n_parts; /* above 1: axis 3 of dst has parts, with each row's maximum and sum */
    int64_t group;   /* query heads that share a key/value head: row r is query r / group of head r % group */
    int64_t step;    /* keys at once */
};

/* What a tile sees of the keys m to m + cols. from, to and first count from m. Keys [first, to) contain all that a row
 * sees; from is first or less, in whole chunks. Both ends are 0 if no row sees a key. count: how many of these keys the
 * tile's last row sees, as an estimate for all of its rows. plain: all rows see all keys [from, to), and no mask
 * changes their scores. */
struct visible_range {
    int64_t from, to, first, count;
    int plain;
};

/* The rows of keys or values that are prefetched next, in the order of their numbers: those of all heads of a run,
 * which lie together. */
struct upcoming {
    const char * base;       /* of cell 0 */
    const int32_t * cells;   /* as in struct job */
    size_t stride, size, at; /* bytes from row to row, of a row, and of it prefetched already */
    int64_t next, stop;
};

/* What a thread does at once: tiles [first, last) of each of the key/value heads [first_head, last_head) of a text. */
struct run {
    const struct job * job;
    float *step_memory, *part_sums, *queries; /* STEP_FLOATS, SUM_FLOATS, QUERY_FLOATS */
    int64_t batch, first_query, n_queries;
    int64_t n_tiles;  /* of the text */
    int64_t list;     /* the first key of the text's list */
    int64_t from, to; /* its keys that this run reads */
    int64_t limit;    /* its last key, which a later run may read */
    int64_t element;  /* where the results go: the index of axis 3 of dst */
    int64_t first_head, last_head, first, last;
    int is_one_step; /* all keys are one step: rows are divided by their sum as they are written */
    /* of the keys of one step */
    struct visible_range visible_to_any, visible[MAX_TILES];
    int64_t seen_pairs; /* of rows and keys */
    struct upcoming keys, values;
    int unpacks_values;                      /* they are not multiplied in place: they are prefetched with the keys */
    int64_t prefetched, prefetched_heads[2]; /* the run before prefetched the step from this key on, for these heads */
    /* of each row, and of each tile, one head after the other: in this part, and in all parts before it */
    float highest[MAX_TILES * MAX_ROWS], total[MAX_TILES * MAX_ROWS];
    float highest_before[MAX_TILES * MAX_ROWS], total_before[MAX_TILES * MAX_ROWS];
    char begun[MAX_TILES], begun_before[MAX_TILES];
};

/* The first row of a tile, counted from the text's first one. */
ALWAYS_INLINE int64_t first_row(const struct run * run, int64_t tile) {
    return run->job->group * run->n_queries * tile / run->n_tiles;
}

/* The keys that a query reads: their numbers are [from, to) of a list that begins with number `list`. */
struct key_range {
    int32_t list, from, to;
};

ALWAYS_INLINE struct key_range keys_of(const struct job * job, int64_t query) {
    if (job->ranges == NULL) {
        return (struct key_range) {0, 0, (int32_t) job->k->ne[2]};
    }
    struct key_range range;
    memcpy(&range, (const char *) job->ranges->data + query * job->ranges->nb[1], sizeof range);
    /* A wrong range must not read elsewhere: it is limited, as core's definition of the op limits it. */
    const int32_t n = (int32_t) job->n_listed;
    range.from = range.from < 0 ? 0 : range.from > n ? n : range.from;
    range.to = range.to < range.from ? range.from : range.to > n ? n : range.to;
    range.list = range.list < 0 ? 0 : range.list > range.from ? range.from : range.list;
    return range;
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

/* The mask from column m on for row `row` of a head. */
ALWAYS_INLINE const char * mask_row_of(const struct run * run, int64_t m, int64_t kv_head, int64_t row) {
    const int64_t group = run->job->group;
    return mask_row(run->job->mask, m, run->first_query + row / group, kv_head * group + row % group, run->batch);
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

/* What a tile of a head sees, by the ranges of its queries, of `cols` keys from m on. */
static struct visible_range visible_by_ranges(const struct run * run, int64_t tile, int64_t m, int64_t cols) {
    const struct job * const job = run->job;
    const int64_t group = job->group;
    int64_t from = cols, to = 0, all_from = 0, all_to = cols; /* that any query sees, and that all see */
    struct key_range range = {0, 0, 0};
    for (int64_t n = first_row(run, tile) / group; n <= (first_row(run, tile + 1) - 1) / group; ++n) {
        range = keys_of(job, run->first_query + n);
        from = min64(range.from - m, from);
        to = max64(range.to - m, to);
        all_from = max64(range.from - m, all_from);
        all_to = min64(range.to - m, all_to);
    }
    from = max64(from, 0);
    to = min64(to, cols);
    if (from >= to) {
        return (struct visible_range) {0, 0, 0, 0, 0};
    }
    const int64_t chunk = from / CHUNK * CHUNK;
    const int64_t count = min64(range.to - m, to) - max64(range.from - m, from);
    return (struct visible_range) {chunk, to, from, max64(count, 0),
                                   job->slopes == NULL && all_from <= chunk && to <= all_to};
}

/* What a tile of a head sees of `cols` keys from m on. */
static struct visible_range visible_range_of(const struct run * run, int64_t kv_head, int64_t tile, int64_t m,
                                             int64_t cols) {
    const struct job * const job = run->job;
    if (job->ranges != NULL) {
        return visible_by_ranges(run, tile, m, cols);
    }
    if (job->mask == NULL) {
        return (struct visible_range) {0, cols, 0, cols, 1};
    }
    struct visible_range all = {cols, 0, 0, 0, 0};
    const char * last = NULL;
    for (int64_t row = first_row(run, tile); row < first_row(run, tile + 1); ++row) {
        const char * mask = mask_row_of(run, m, kv_head, row);
        if (mask == last) {
            continue;
        }
        last = mask;
        if (all_hidden(job->mask, mask, 0, cols)) { /* most steps, where a cache has many texts */
            continue;
        }
        int64_t from = 0, to = cols;
        while (from < all.from && all_hidden(job->mask, mask, from, min64(from + CHUNK, cols))) {
            from += CHUNK;
        }
        while (to > all.to && all_hidden(job->mask, mask, (to - 1) / CHUNK * CHUNK, to)) {
            to = (to - 1) / CHUNK * CHUNK;
        }
        all.from = min64(from, all.from);
        all.to = max64(to, all.to);
    }
    if (all.from >= all.to) {
        return (struct visible_range) {0, 0, 0, 0, 0};
    }
    all.first = all.from;
    all.plain = 1;
    last = NULL;
    for (int64_t row = first_row(run, tile); row < first_row(run, tile + 1) && all.plain; ++row) {
        const char * mask = mask_row_of(run, m, kv_head, row);
        all.plain = mask == last || all_zero(job->mask, mask, all.from, all.to);
        last = mask;
    }
    all.count = all.plain ? all.to - all.from : count_seen(job->mask, last, all.from, all.to);
    return all;
}

/* The index, among a run's rows, of row `row` of a head. */
ALWAYS_INLINE int64_t index_in_run(const struct run * run, int64_t kv_head, int64_t row) {
    const int64_t first = first_row(run, run->first), rows = first_row(run, run->last) - first;
    return (kv_head - run->first_head) * rows + row - first;
}

/* The index, among a run's tiles, of a tile of a head. */
ALWAYS_INLINE int64_t tile_in_run(const struct run * run, int64_t kv_head, int64_t tile) {
    return (kv_head - run->first_head) * (run->last - run->first) + tile - run->first;
}

/* The results of row `row` of a head, in dst. */
ALWAYS_INLINE float * result_of(const struct run * run, int64_t kv_head, int64_t row) {
    const struct ggml_tensor * const dst = run->job->dst;
    const int64_t n = run->first_query + row / run->job->group, h = kv_head * run->job->group + row % run->job->group;
    return (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + run->element * dst->nb[3]);
}

/* Cell `cell` of a head's keys or values. */
ALWAYS_INLINE const char * cached_row_of(const struct ggml_tensor * t, int64_t batch, int64_t kv_head, int64_t cell) {
    return (const char *) t->data + kv_head * t->nb[1] + cell * t->nb[2] + batch * t->nb[3];
}

ALWAYS_INLINE const char * upcoming_row(const struct upcoming * rows, int64_t i) {
    return rows->base + (rows->cells != NULL ? rows->cells[i] : i) * rows->stride;
}

/* Prefetches about `bytes` of the next rows, up to the end of the run's keys. */
ALWAYS_INLINE void prefetch(struct upcoming * rows, size_t bytes) {
    while (rows->next < rows->stop) {
        const size_t left = rows->size - rows->at, part = left < bytes ? left : bytes;
        const char * const row = upcoming_row(rows, rows->next) + rows->at;
        for (size_t i = 0; i < part; i += 64) {
            PREFETCH(row + i);
        }
        if (part < left) {
            rows->at += part;
            return;
        }
        rows->at = 0;
        ++rows->next;
        bytes -= part;
        if (bytes == 0) {
            return;
        }
    }
}

/* Brings the next n rows into the cache. A processor drops prefetches while many others are on their way, so nearly all
 * of a burst; therefore each line is read, too, except the last one of a row that does not begin with a line. */
static void fetch(struct upcoming * rows, int64_t n) {
    const int64_t lead = FETCH_AHEAD / (int64_t) rows->size + 1, end = min64(rows->next + n, rows->stop);
    for (; rows->next < end; ++rows->next) {
        const char * const row = upcoming_row(rows, rows->next);
        const char * const later = upcoming_row(rows, min64(rows->next + lead, end - 1));
        for (size_t i = 0; i < rows->size; i += 64) {
            PREFETCH(later + i);
            (void) *(const volatile char *) (row + i);
        }
    }
}

#endif
