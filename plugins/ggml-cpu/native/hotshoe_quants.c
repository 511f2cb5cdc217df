/* Product of activations by weights in ggml's quantized types, on CPUs with AVX2 or ARM's dot products.
 *
 * W (m, k) is stored in panels of 16 rows, one ggml block after the other, in as many bytes as in the file. A panel is
 * unpacked, some hundred elements at once, into memory that stays in the L1 cache, and there all tokens of a group are
 * multiplied by it. Few tokens, up to two or with AVX-512 four, are multiplied by the packed blocks without unpacking.
 * Nothing is allocated, and no thread waits for another.
 *
 * Reading order: hotshoe_quants.h (the ops), hotshoe_quants_set.h (the types), this file from hotshoe_quants upwards,
 * then the inner loops: hotshoe_quants_unpack.h (the layout of records), hotshoe_quants_records.h,
 * hotshoe_quants_tiles.h. hotshoe_quants_pack.c packs a weight. */
#include "hotshoe_quants.h"

#include "isa.h"

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)

#include <string.h>

#if defined(HOTSHOE_X86)
#include <immintrin.h>
#endif

#include "hotshoe_quants_set.h"
#include "prefetch_choice.h"
#include "work_items.h"

enum {
    UNPACKED = 24 << 10, /* bytes of a panel's records */
    STAGED = 384 << 10,  /* bytes of activations, which stay in the L2 cache */
    MAX_TOKENS = 128,    /* tokens of a group: 16 tiles, so that unpacking is a small part */
    /* A group has as many tokens as can be staged with all their elements: then their sums are computed in one go. If
     * those were fewer than MIN_TOKENS, unpacking would cost too much for each token: then the group has MAX_TOKENS,
     * and only some elements are staged at once. */
    MIN_TOKENS = 32,
    SUPERBLOCK = 256, /* the elements staged at once are a multiple of it */
    /* With up to SMALL_GROUP tokens memory is the limit. Elements are then unpacked in small steps, and the elements
     * at least PREFETCH_AHEAD bytes ahead are prefetched meanwhile. */
    SMALL_GROUP = 16,
    SMALL_STEP = 512, /* elements */
    PREFETCH_AHEAD = 8192,
    MAX_SPANS = STAGED / 2 / STAGED_RECORD(32, FORM_DOT), /* of all tokens, if corrections are staged too */
};

const struct quant_set * hotshoe_quants_best(void) {
#if defined(QUANTS_FORCED) /* in a test */
    return &QUANTS_FORCED;
#endif
    const int sets = hotshoe_cpu();
#if defined(HOTSHOE_ARM)
    /* ggml multiplies by I8MM, twice as many bytes at once. */
    return sets & CPU_DOTPROD && !(sets & CPU_I8MM) ? &hotshoe_quants_dotprod : 0;
#else
    if (sets & CPU_AVX512_VNNI) {
        return &hotshoe_quants_avx512_vnni;
    }
#if defined(HOTSHOE_AVX_VNNI)
    if (sets & CPU_AVX_VNNI) {
        return &hotshoe_quants_avx_vnni;
    }
#endif
    return sets & CPU_AVX2 ? &hotshoe_quants_avx2 : 0;
#endif
}

int hotshoe_quants_has(int type, int64_t k) {
    const struct quant_set * set = hotshoe_quants_best();
    const struct quant * q = set ? quant_of(set, type) : 0;
    return q && k > 0 && k % q->file_block_elements == 0;
}

/* Tokens, which are rows of x, and the weight that multiplies them. The rows of x and y may be anywhere. */
struct token_group {
    const struct quant_set * set;
    const struct quant * quant;
    const char * packed;
    const char * gate;            /* or NULL */
    const char *rows, *gate_rows; /* as a file has them, as long as they are not packed; else NULL */
    int64_t k, m, first_panel, last_panel;
    const float * bias; /* or NULL */
    int activation, separate_outliers;
    int64_t n_tokens; /* 1 to MAX_TOKENS */
    const float * x[MAX_TOKENS];
    const float * residual[MAX_TOKENS]; /* all of them NULL if there is no residual */
    float * y[MAX_TOKENS];
};

/* Tokens that are staged, tile by tile. With separate outliers, the corrections of all tiles follow: the rounding
 * errors of the spans that have outliers, rounded to 8 bits in turn. */
struct staged {
    _Alignas(64) char tokens[STAGED];
    uint8_t has_outliers[MAX_SPANS];            /* for each span, tile by tile */
    _Alignas(64) char panel[HOTSHOE_MAX_PANEL]; /* of a weight that is not packed yet */
};
_Static_assert(sizeof(struct staged) <= HOTSHOE_SCRATCH, "too small");

static int64_t scale_span_of(const struct quant * q) {
    return q->file_block_elements == SUPERBLOCK ? SCALE_SPAN : q->file_block_elements;
}

/* Bytes of n elements of a panel, packed. */
static int64_t packed_bytes(const struct quant * q, int64_t n) {
    return ROWS * (n / q->file_block_elements) * q->file_block_bytes;
}

/* Bytes of one token, staged with all its elements. */
static int64_t token_bytes_of(const struct token_group * g) {
    const struct quant * q = g->quant;
    return g->k / q->record_elements * STAGED_RECORD(q->record_elements, q->form) * (g->separate_outliers ? 2 : 1);
}
static int all_staged(const struct token_group * g) { return g->n_tokens * token_bytes_of(g) <= STAGED; }

static int64_t max_tokens(const struct token_group * g) {
    const int64_t n = STAGED / token_bytes_of(g);
    return n < MIN_TOKENS ? MAX_TOKENS : min64(n / g->set->in_tile * g->set->in_tile, MAX_TOKENS);
}

/* A product and its gate are computed in turn, panel by panel, for tokens that are staged once. */
int hotshoe_quants_gates(int type, int64_t k, int separate_outliers) {
    const struct quant_set * set = hotshoe_quants_best();
    const struct token_group g = {.quant = quant_of(set, type), .k = k, .separate_outliers = separate_outliers};
    return STAGED / token_bytes_of(&g) >= MIN_TOKENS;
}

/* How the product of a group is divided: into tiles of tokens, depths of elements that are staged at once, and steps of
 * elements that are unpacked, or multiplied without that, at once. */
struct tiling {
    int64_t n_tiles; /* of tokens, of nearly one size */
    int64_t depth, step;
    int64_t scale_span;   /* elements with one scale of a token */
    int64_t record_bytes; /* of one token, staged */
    int64_t panel_bytes;
    int without_unpacking; /* tokens are multiplied by the packed blocks themselves, a few at once */
    int lines; /* prefetched with each record of a tile: at least 1, and enough for all that is unpacked next */
};

static struct tiling tiling_of(const struct token_group * g) {
    const struct quant * q = g->quant;
    struct tiling t = {.scale_span = scale_span_of(q), .record_bytes = STAGED_RECORD(q->record_elements, q->form)};
    const int at_once = g->set->at_once, max_passes = at_once > 1 ? 1 : 2; /* through packed blocks */
    t.without_unpacking = g->n_tokens <= max_passes * at_once && !g->separate_outliers;
    t.n_tiles = ceil_div(g->n_tokens, t.without_unpacking ? at_once : g->set->in_tile);
    const int64_t token_superblock =
        SUPERBLOCK / q->record_elements * t.record_bytes * (g->separate_outliers ? 2 : 1); /* bytes */
    t.depth = all_staged(g) ? g->k : STAGED / (g->n_tokens * token_superblock) * SUPERBLOCK;
    const int64_t unpacked_superblock =
        SUPERBLOCK / q->record_elements * RECORD(q->record_elements, q->form, q->mins); /* bytes */
    t.step = g->n_tokens <= SMALL_GROUP ? SMALL_STEP : UNPACKED / unpacked_superblock * SUPERBLOCK;
    if (t.without_unpacking && t.n_tiles == 1) { /* no second pass finds a step in the cache */
        t.step = t.depth;
    }
    t.panel_bytes = packed_bytes(q, g->k);
    const int64_t record_lines =
        ceil_div(ROWS * q->record_elements * q->file_block_bytes / q->file_block_elements, CACHE_LINE);
    t.lines = (int) ceil_div(record_lines, t.n_tiles);
    return t;
}

/* Stages the corrections of a tile of `rows` tokens, for the spans with outliers in elements [k0, k1). The tokens are
 * staged. */
static void stage_corrections(const struct token_group * g, int64_t k0, int64_t k1, int64_t first_token, int rows,
                              const char * staged, char * corrections, uint8_t * has_outliers) {
    static const float zeros[SCALE_SPAN];
    const struct quant * q = g->quant;
    const int64_t scale_span = scale_span_of(q);
    const int64_t bytes = scale_span / q->record_elements * rows * STAGED_RECORD(q->record_elements, q->form);
    float max_scales[MAX_IN_TILE], scales[MAX_IN_TILE];
    for (int r = 0; r < rows; ++r) {
        max_scales[r] = g->set->max_scale(g->x[first_token + r], g->k);
    }
    for (int64_t k = k0; k < k1; k += scale_span, ++has_outliers) {
        staged += bytes;
        memcpy(scales, staged - rows * 12, (size_t) rows * sizeof(float));
        *has_outliers = 0;
        for (int r = 0; r < rows; ++r) {
            *has_outliers |= scales[r] > max_scales[r];
        }
        for (int r = 0; r < rows && *has_outliers; ++r) {
            const float * numbers = scales[r] > max_scales[r] ? g->x[first_token + r] + k : zeros;
            q->stage_correction(q->zero, numbers, scale_span, rows, r, corrections);
        }
        corrections += *has_outliers ? bytes : 0;
    }
}

/* Stages elements [k0, k1) of all tokens. */
static inline void stage_tokens(const struct token_group * g, const struct tiling * t, int64_t k0, int64_t k1,
                                struct staged * s) {
    const struct quant * q = g->quant;
    const int64_t token_bytes = (k1 - k0) / q->record_elements * t->record_bytes, n_spans = (k1 - k0) / t->scale_span;
    for (int64_t i = 0; i < t->n_tiles; ++i) {
        const int64_t first = g->n_tokens * i / t->n_tiles;
        const int rows = (int) (g->n_tokens * (i + 1) / t->n_tiles - first);
        char * tile = s->tokens + first * token_bytes;
        for (int r = 0; r < rows; ++r) {
            q->stage(q->zero, g->x[first + r] + k0, k1 - k0, rows, r, tile);
        }
        if (g->separate_outliers) {
            char * corrections = tile + g->n_tokens * token_bytes;
            stage_corrections(g, k0, k1, first, rows, tile, corrections, s->has_outliers + i * n_spans);
        }
    }
}

/* sums += a tile of n tokens by n_spans unpacked spans of a panel; spans with outliers are multiplied twice,
 * the second time by their corrections. Meanwhile it prefetches `lines` lines from `next` on for each record. */
static void multiply_tile(const struct token_group * g, int64_t n, const char * x, const char * w, int64_t n_spans,
                          const uint8_t * has_outliers, const char ** corrections, float * sums, const char ** next,
                          int lines) {
    const struct quant * q = g->quant;
    const int64_t span_records = scale_span_of(q) / q->record_elements;
    const int64_t x_bytes = span_records * n * STAGED_RECORD(q->record_elements, q->form);
    const int64_t w_bytes = span_records * RECORD(q->record_elements, q->form, q->mins);
    for (int64_t first = 0, stop; first < n_spans; first = stop) {
        stop = g->separate_outliers ? first + 1 : n_spans;
        while (stop < n_spans && !has_outliers[stop - 1]) {
            ++stop;
        }
        const int64_t n_records = (stop - first) * span_records;
        q->tiles[n](x + first * x_bytes, w + first * w_bytes, n_records, sums, *next, lines);
        *next += n_records * lines * CACHE_LINE;
        if (g->separate_outliers && has_outliers[stop - 1]) {
            q->tiles[n](*corrections, w + (stop - 1) * w_bytes, span_records, sums, *next, 0);
            *corrections += x_bytes;
        }
    }
}

/* Memory of one call, on its stack. */
struct scratch {
    _Alignas(64) char unpacked[UNPACKED];
    _Alignas(64) float sums[2][MAX_TOKENS * ROWS]; /* of the weight, and of the gate */
    const char * corrections[MAX_TOKENS];          /* of each tile: the next one */
};

/* Elements [k, k + n_elements) of a panel of the weight or its gate; those staged are [k0, k1). */
struct piece {
    const char * packed;
    int64_t k0, k1, k, n_elements;
    int64_t column; /* the panel's first */
    int n_columns;  /* those that exist */
    int is_gate;
};

/* Where the sums of tokens [first, last) begin: at 0, or at what y has of the depths before. */
static inline void begin_sums(const struct token_group * g, const struct piece * piece, int64_t first, int64_t last,
                              float * sums) {
    for (int64_t t = first; t < last; ++t) {
        if (piece->k0) {
            memcpy(sums + t * ROWS, g->y[t] + piece->column, (size_t) piece->n_columns * sizeof(float));
        } else {
            memset(sums + t * ROWS, 0, NUMBERS);
        }
    }
}

/* All tiles of tokens by a piece of a panel. After the last piece of a depth the sums go to y; after the last depth
 * with gate, bias, activation and residual. */
static inline void run_tiles(const struct token_group * g, const struct tiling * t, const struct piece * piece,
                             const struct prefetch_way * way, struct staged * s, struct scratch * scratch) {
    const struct quant * q = g->quant;
    const int64_t n_spans = piece->n_elements / t->scale_span, before = piece->k - piece->k0;
    const int64_t depth_spans = (piece->k1 - piece->k0) / t->scale_span;
    const int64_t token_bytes = (piece->k1 - piece->k0) / q->record_elements * t->record_bytes;
    const uint8_t * has_outliers = s->has_outliers + before / t->scale_span; /* of the first tile */
    const int begins = piece->k == piece->k0, ends = piece->k + piece->n_elements == piece->k1;
    const int writes = ends && !piece->is_gate, finishes = ends && piece->k1 == g->k;
    /* Prefetched: what follows, or follows later. After the end of a depth of this panel that is the next panel's. */
    const int64_t bytes = packed_bytes(q, piece->n_elements);
    const char * next = piece->packed + (bytes > PREFETCH_AHEAD ? bytes : PREFETCH_AHEAD);
    next += ends ? t->panel_bytes - packed_bytes(q, piece->k1 - piece->k0) : 0;
    const char * const last_line = next + bytes;
    for (int64_t i = 0; i < t->n_tiles; ++i, has_outliers += depth_spans) {
        const int64_t first = g->n_tokens * i / t->n_tiles, last = g->n_tokens * (i + 1) / t->n_tiles;
        const int64_t rows = last - first;
        const char * x = s->tokens + first * token_bytes + before / q->record_elements * rows * t->record_bytes;
        float * sums = scratch->sums[piece->is_gate] + first * ROWS;
        if (begins) {
            begin_sums(g, piece, first, last, scratch->sums[piece->is_gate]);
            scratch->corrections[i] = s->tokens + (g->n_tokens + first) * token_bytes;
        }
        for (int64_t r = first; r < last && writes; ++r) { /* they arrive while the tile is computed */
            __builtin_prefetch(g->y[r] + piece->column, 1);
            if (finishes && g->residual[r]) {
                __builtin_prefetch(g->residual[r] + piece->column);
            }
        }
        if (t->without_unpacking) {
            const multiply_fn by_blocks = q->multiply[rows - 1][way->every_line];
            by_blocks(piece->packed, piece->n_elements / q->file_block_elements, x, way->ahead, sums);
        } else {
            multiply_tile(g, rows, x, scratch->unpacked, n_spans, has_outliers, &scratch->corrections[i], sums, &next,
                          next < last_line ? t->lines : 0);
        }
        if (!writes) {
            continue;
        }
        if (g->gate) {
            g->set->gate(g->activation, scratch->sums[1] + first * ROWS, rows, sums);
        }
        const int adds = finishes && g->residual[first];
        g->set->finish(sums, rows, piece->n_columns, piece->column, finishes && g->bias ? g->bias + piece->column : 0,
                       finishes && g->activation == HOTSHOE_LINEAR_GELU_ERF, adds ? g->residual + first : 0,
                       g->y + first);
    }
}

/* The product of a group. are_staged: `s` holds all elements of its tokens already, from an earlier call. */
static void multiply(const struct token_group * g, struct staged * s, int are_staged) {
    struct scratch scratch;
    const struct quant * q = g->quant;
    const struct tiling t = tiling_of(g);
    const int n_weights = g->gate ? 2 : 1, is_packed = !g->rows && !g->gate_rows;
    const int64_t file_row_bytes = t.panel_bytes / ROWS;
    struct piece piece;
    for (piece.k0 = 0; piece.k0 < g->k; piece.k0 += t.depth) {
        piece.k1 = min64(piece.k0 + t.depth, g->k);
        if (!are_staged) {
            stage_tokens(g, &t, piece.k0, piece.k1, s);
        }
        /* Measured in a single pass: the next one finds the weights in the cache. So does what was just packed. */
        const int64_t panels = (g->last_panel - g->first_panel) * n_weights;
        const int n_at_once = (int) min64(g->n_tokens, g->set->at_once);
        struct prefetch_use prefetching = {.sample = -1};
        if (t.without_unpacking) {
            const int64_t bytes = panels * packed_bytes(q, piece.k1 - piece.k0);
            prefetching = begin_prefetch(q->type, n_at_once, is_packed && t.n_tiles == 1 ? bytes : 0);
        }
        for (int64_t turn = g->first_panel * n_weights; turn < g->last_panel * n_weights; ++turn) {
            const int64_t panel = turn / n_weights;
            piece.is_gate = g->gate && turn % 2 == 0; /* before its product */
            piece.column = panel * ROWS;
            piece.n_columns = (int) min64(ROWS, g->m - piece.column);
            const char * rows = piece.is_gate ? g->gate_rows : g->rows;
            if (rows) {
                rows += piece.column * file_row_bytes;
                hotshoe_quants_pack_piece(q, rows, g->k, piece.n_columns, piece.k0, piece.k1, s->panel);
                piece.packed = s->panel;
            } else {
                piece.packed = (piece.is_gate ? g->gate : g->packed) + panel * t.panel_bytes;
                piece.packed += packed_bytes(q, piece.k0);
            }
            for (piece.k = piece.k0; piece.k < piece.k1; piece.k += piece.n_elements) {
                piece.n_elements = min64(t.step, piece.k1 - piece.k);
                if (!t.without_unpacking) {
                    q->unpack(piece.packed, piece.n_elements / q->file_block_elements, scratch.unpacked);
                }
                run_tiles(g, &t, &piece, &prefetching.way, s, &scratch);
                piece.packed += packed_bytes(q, piece.n_elements);
            }
        }
        end_prefetch(q->type, n_at_once, &prefetching);
    }
}

static struct token_group token_group_of(const struct hotshoe_linear_params * params) {
#if defined(HOTSHOE_X86)
    const struct quant_set * set = params->without & CPU_AVX512 ? &hotshoe_quants_avx2 : hotshoe_quants_best();
#else
    const struct quant_set * set = hotshoe_quants_best();
#endif
    const struct token_group g = {
        .set = set,
        .quant = quant_of(set, params->format),
        .packed = (const char *) params->packed,
        .k = params->k,
        .m = params->m,
        .last_panel = ceil_div(params->m, ROWS),
        .activation = params->activation,
        .separate_outliers = params->separate_outliers,
    };
    return g;
}

/* The fewest panels that a thread takes: more with many tokens, so that staging stays a small part. */
enum { MIN_PANELS = 4, MIN_PANELS_LARGE = 16 };

/* One product of a node. An item is a panel of a group of tokens. */
struct product {
    const struct hotshoe_linear_params * params;
    struct token_group g;
    int64_t panels, group_tokens, n_groups; /* groups of tokens of nearly one size, each with all panels */
};

static struct product product_of(const struct hotshoe_linear_params * params, int64_t n, int nth) {
    struct product p = {.params = params, .g = token_group_of(params)};
    p.g.gate = (const char *) params->gate;
    p.g.rows = (const char *) params->rows;
    p.g.gate_rows = (const char *) params->gate_rows;
    p.panels = ceil_div(params->m, ROWS);
    p.group_tokens = min64(max_tokens(&p.g), ceil_div(n, token_parts(n, p.panels, nth, 1.5, 4.0)));
    p.n_groups = n ? ceil_div(n, p.group_tokens) : 0;
    return p;
}

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_linear_params * params = (const struct hotshoe_linear_params *) userdata;
    struct staged * staged = scratch_of(params->scratch, ith);
    const struct ggml_tensor * x = dst->src[0];
    const float * residual = params->has_residual ? (const float *) dst->src[params->has_bias ? 2 : 1]->data : 0;
    const int64_t n = x->ne[1];
    struct product p = product_of(params, n, nth);
    struct token_group * g = &p.g;
    int64_t total = p.n_groups * p.panels;
    for (const struct hotshoe_linear_params * other = params->next; other; other = other->next) {
        const struct product next = product_of(other, n, nth);
        total += next.n_groups * next.panels;
    }
    const int64_t min_items = p.group_tokens > SMALL_GROUP ? MIN_PANELS_LARGE : MIN_PANELS;
    const struct quant * staged_as = 0; /* the type of weights that tokens [staged_first, staged_last) are staged for */
    int64_t staged_first = 0, staged_last = 0, item, end;
    int64_t before = 0; /* items of the products before this one */
    int source = 1;
    float * y = (float *) dst->data;
    g->bias = params->has_bias ? (const float *) dst->src[source]->data : 0;
    int32_t * counter = work_counter(dst);
    while (take_items(counter, total, min_items, nth, &item, &end)) {
        for (; item < end; item += g->last_panel - g->first_panel) {
            while (item - before >= p.n_groups * p.panels) {
                before += p.n_groups * p.panels;
                y += n * g->m;
                source += p.params->has_bias;
                p = product_of(p.params->next, n, nth);
                g->bias = p.params->has_bias ? (const float *) dst->src[source]->data : 0;
            }
            const int64_t group = (item - before) / p.panels;
            const int64_t first = n * group / p.n_groups, last = n * (group + 1) / p.n_groups;
            for (int64_t t = first; t < last; ++t) {
                g->x[t - first] = (const float *) ((const char *) x->data + t * (int64_t) x->nb[1]);
                g->y[t - first] = y + t * g->m;
                g->residual[t - first] = residual ? residual + t * g->m : 0;
            }
            const int is_same = staged_as == g->quant && staged_first == first && staged_last == last;
            staged_as = g->quant;
            staged_first = first;
            staged_last = last;
            g->n_tokens = last - first;
            g->first_panel = (item - before) % p.panels;
            g->last_panel = min64(g->first_panel + end - item, p.panels);
            multiply(g, staged, is_same && all_staged(g));
        }
    }
    finish_thread(counter, nth);
}

/* The first index from i on, below n, with chosen[index] == expert; n if there is no such index. */
#if defined(HOTSHOE_X86)
AVX2
#endif
static int64_t next_of(const int32_t * chosen, int64_t i, int64_t n, int32_t expert) {
#if defined(HOTSHOE_X86)
    for (; i + 8 <= n; i += 8) {
        const __m256i numbers = _mm256_loadu_si256((const __m256i *) (chosen + i));
        const __m256i equal = _mm256_cmpeq_epi32(numbers, _mm256_set1_epi32(expert));
        const int found = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
        if (found) {
            return i + __builtin_ctz((unsigned) found);
        }
    }
#endif
    while (i < n && chosen[i] != expert) {
        ++i;
    }
    return i;
}

static int64_t count_of(const int32_t * chosen, int64_t n, int32_t expert) {
    int64_t count = 0;
    for (int64_t i = next_of(chosen, 0, n, expert); i < n; i = next_of(chosen, i + 1, n, expert)) {
        ++count;
    }
    return count;
}

/* Threads take panels, expert by expert, and for each expert group by group. Each thread searches for itself which rows
 * chose an expert. */
void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_linear_params * params = (const struct hotshoe_linear_params *) userdata;
    struct staged * staged = scratch_of(params->scratch, ith);
    const struct ggml_tensor *x = dst->src[0], *experts = dst->src[1];
    const int32_t * chosen = (const int32_t *) experts->data;
    const int64_t used = experts->ne[0], n = used * experts->ne[1];
    const size_t weight_bytes = hotshoe_quants_size(params->format, params->k, params->m);
    struct token_group g = token_group_of(params);
    const int64_t panels = ceil_div(g.m, ROWS), group_tokens = max_tokens(&g);
    const int64_t file_bytes = packed_bytes(g.quant, g.k) / ROWS * g.m; /* of one weight */
    int64_t total = 0;
    for (int32_t e = 0; e < params->n_experts; ++e) {
        total += ceil_div(count_of(chosen, n, e), group_tokens) * panels;
    }
    int32_t expert = -1; /* that of the panels [expert_begin, expert_end): */
    int64_t rows = 0, n_groups = 0, expert_begin = 0, expert_end = 0, staged_group = -1, item, end;
    int32_t * counter = work_counter(dst);
    const int64_t min_items = n * panels > total * SMALL_GROUP ? MIN_PANELS_LARGE : MIN_PANELS;
    while (take_items(counter, total, min_items, nth, &item, &end)) {
        for (; item < end; item += g.last_panel - g.first_panel) {
            while (item >= expert_end) {
                rows = count_of(chosen, n, ++expert);
                n_groups = ceil_div(rows, group_tokens);
                expert_begin = expert_end;
                expert_end += n_groups * panels;
                staged_group = -1;
            }
            const int64_t group = (item - expert_begin) / panels;
            const int64_t first = rows * group / n_groups, last = rows * (group + 1) / n_groups;
            const int is_same = group == staged_group;
            int64_t i = next_of(chosen, 0, n, expert);
            for (int64_t t = 0; t < last && !is_same; ++t, i = next_of(chosen, i + 1, n, expert)) {
                if (t >= first) {
                    const int64_t row = i / used, slot = x->ne[1] == 1 ? 0 : i % used;
                    const int64_t offset = row * (int64_t) x->nb[2] + slot * (int64_t) x->nb[1];
                    g.x[t - first] = (const float *) ((const char *) x->data + offset);
                    g.y[t - first] = (float *) dst->data + i * g.m;
                }
            }
            staged_group = group;
            g.n_tokens = last - first;
            g.packed = (const char *) params->packed + expert * weight_bytes;
            g.gate = params->gate ? (const char *) params->gate + expert * weight_bytes : 0;
            g.rows = params->rows ? (const char *) params->rows + expert * file_bytes : 0;
            g.gate_rows = params->gate_rows ? (const char *) params->gate_rows + expert * file_bytes : 0;
            g.first_panel = (item - expert_begin) % panels;
            g.last_panel = min64(g.first_panel + end - item, panels);
            multiply(&g, staged, is_same && all_staged(&g));
        }
    }
    finish_thread(counter, nth);
}

#else /* no kernels for this CPU or compiler */

#include <math.h>

int hotshoe_quants_has(int type, int64_t k) {
    (void) type, (void) k;
    return 0;
}

int hotshoe_quants_gates(int type, int64_t k, int separate_outliers) {
    (void) separate_outliers;
    return hotshoe_quants_has(type, k);
}

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    for (int64_t i = 0; ith == 0 && i < dst->ne[0] * dst->ne[1] * dst->ne[2]; ++i) {
        ((float *) dst->data)[i] = NAN; /* the caller did not ask hotshoe_quants_has */
    }
}

void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    hotshoe_quants(dst, ith, nth, userdata);
}

#endif
