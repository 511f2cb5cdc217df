#include "hotshoe_quants.h"

#include "isa.h"
#include "linear_parts.h"

#if defined(HOTSHOE_X86)

#include <immintrin.h>

#include "hotshoe_quants_set.h"

/* W (m, k) is stored in panels of 16 rows, one ggml block after the other, in as many bytes as in the file. A panel is
 * unpacked, some hundred elements at once, into memory that stays in the L1 cache, and there all tokens of a block are
 * multiplied by it. Nothing is allocated, and no thread waits for another. */
enum {
    UNPACKED = 24 << 10, /* bytes of a panel's records */
#if defined(__GLIBC__)
    STAGED = 384 << 10, /* bytes of activations, which stay in the L2 cache */
    MAX_TOKENS = 128,   /* tokens of a block: 16 tiles, so that unpacking is a small part */
#elif defined(__linux__)
    /* musl gives a thread 128 KiB of stack. */
    STAGED = 40 << 10,
    MAX_TOKENS = 24,
#else
    /* macOS gives a thread 512 KiB of stack. */
    STAGED = 160 << 10,
    MAX_TOKENS = 96,
#endif
    /* A block of tokens has as many as can be staged with all their elements: then their sums are computed in one go.
     * Fewer than LEAST_TOKENS would use too little of what is unpacked for them. */
    LEAST_TOKENS = 32,
    SUPERBLOCK = 256, /* the elements staged at once are a multiple of it */
    /* Up to SMALL_BLOCK tokens memory is the limit. Elements are then unpacked in small steps, so that those that come
     * next are on their way meanwhile: at least PREFETCH_AHEAD bytes ahead. */
    SMALL_BLOCK = 16,
    SMALL_STEP = 512, /* elements */
    PREFETCH_AHEAD = 8192,
    MAX_SPANS = STAGED / 2 / STAGED_RECORD(32, FORM_DOT), /* of all tokens that are staged with their rests */
};

int hotshoe_quants_has(int type, int64_t k) {
    const struct quant * q = quant_of(&hotshoe_quants_avx2, type);
    return q && k > 0 && k % q->elements == 0 && hotshoe_cpu() & CPU_AVX2;
}

/* The fastest set that this CPU has. */
static const struct quant_set * best_set(void) {
#if defined(QUANTS_FORCED) /* in a test */
    return &QUANTS_FORCED;
#endif
    const int sets = hotshoe_cpu();
    if (sets & CPU_AVX512_VNNI) {
        return &hotshoe_quants_avx512_vnni;
    }
#if defined(HOTSHOE_AVX_VNNI)
    if (sets & CPU_AVX_VNNI) {
        return &hotshoe_quants_avx_vnni;
    }
#endif
    return &hotshoe_quants_avx2;
}

/* Rows of x by one weight. The rows of x and of the result may be anywhere. */
struct block {
    const struct quant_set * set;
    const struct quant * quant;
    const char * packed;
    const char * gate; /* or NULL */
    int64_t k, m, first_panel, last_panel;
    const float * bias; /* or NULL */
    int activation, separate_outliers;
    int64_t n_tokens; /* 1 to MAX_TOKENS */
    const float * x[MAX_TOKENS];
    const float * residual[MAX_TOKENS]; /* all of them NULL if there is no residual */
    float * y[MAX_TOKENS];
};

/* Tokens that are staged, tile by tile. With separate outliers, each tile's rests follow them: what rounding leaves of
 * the spans that have outliers. */
struct staged {
    _Alignas(64) char tokens[STAGED];
    uint8_t has_outliers[MAX_SPANS]; /* for each span, tile by tile */
};

static int64_t span_of(const struct quant * q) { return q->elements == SUPERBLOCK ? SPAN : q->elements; }

/* Bytes of n elements of a panel, packed. */
static int64_t packed_bytes(const struct quant * q, int64_t n) { return ROWS * (n / q->elements) * q->bytes; }

/* Bytes of one token, staged with all its elements. */
static int64_t token_bytes_of(const struct block * b) {
    const struct quant * q = b->quant;
    return b->k / q->block * STAGED_RECORD(q->block, q->form) * (b->separate_outliers ? 2 : 1);
}
static int all_staged(const struct block * b) { return b->n_tokens * token_bytes_of(b) <= STAGED; }

static int64_t max_tokens(const struct block * b) {
    const int64_t n = STAGED / token_bytes_of(b);
    return n < LEAST_TOKENS ? MAX_TOKENS : min64(n / b->set->in_tile * b->set->in_tile, MAX_TOKENS);
}

/* A product and its gate are computed in turn, panel by panel, for tokens that are staged once. */
int hotshoe_quants_gates(int type, int64_t k, int separate_outliers) {
    const struct quant_set * set = best_set();
    const struct block b = {.quant = quant_of(set, type), .k = k, .separate_outliers = separate_outliers};
    return STAGED / token_bytes_of(&b) >= LEAST_TOKENS;
}

/* How the product of a block is divided: into tiles of tokens, depths of elements that are staged at once, and steps of
 * elements that are unpacked at once. */
struct tiling {
    int64_t n_tiles; /* of tokens, of nearly one size */
    int64_t depth, step;
    int64_t span;         /* elements with one scale of a token */
    int64_t record_bytes; /* of one token, staged */
    int64_t panel_bytes;
    int direct; /* tokens are multiplied by the packed blocks themselves, one by one */
    int lines;  /* prefetched with each record of a tile: at least 1, and enough for all that is unpacked next */
};

static struct tiling tiling_of(const struct block * b) {
    const struct quant * q = b->quant;
    struct tiling t = {.span = span_of(q), .record_bytes = STAGED_RECORD(q->block, q->form)};
    t.direct = b->n_tokens <= b->set->direct && !b->separate_outliers;
    t.n_tiles = ceil_div(b->n_tokens, t.direct ? 1 : b->set->in_tile);
    const int64_t token_superblock =
        SUPERBLOCK / q->block * t.record_bytes * (b->separate_outliers ? 2 : 1); /* bytes */
    t.depth = all_staged(b) ? b->k : STAGED / (b->n_tokens * token_superblock) * SUPERBLOCK;
    const int64_t unpacked_superblock = SUPERBLOCK / q->block * RECORD(q->block, q->form, q->mins); /* bytes */
    t.step = b->n_tokens <= SMALL_BLOCK ? SMALL_STEP : UNPACKED / unpacked_superblock * SUPERBLOCK;
    t.panel_bytes = packed_bytes(q, b->k);
    const int64_t record_lines = ceil_div(ROWS * q->block * q->bytes / q->elements, GROUP);
    t.lines = (int) ceil_div(record_lines, t.n_tiles);
    return t;
}

/* Stages the rests of a tile's spans with outliers: of elements [k0, k1) of `rows` tokens, which are staged. */
static void stage_rests(const struct block * b, int64_t k0, int64_t k1, int64_t first_token, int rows,
                        const char * staged, char * rests, uint8_t * has_outliers) {
    static const float zeros[SPAN];
    const struct quant * q = b->quant;
    const int64_t span = span_of(q), bytes = span / q->block * rows * STAGED_RECORD(q->block, q->form);
    float max_scales[MAX_IN_TILE], scales[MAX_IN_TILE];
    for (int r = 0; r < rows; ++r) {
        max_scales[r] = b->set->max_scale(b->x[first_token + r], b->k);
    }
    for (int64_t k = k0; k < k1; k += span, ++has_outliers) {
        staged += bytes;
        memcpy(scales, staged - rows * 12, (size_t) rows * sizeof(float));
        *has_outliers = 0;
        for (int r = 0; r < rows; ++r) {
            *has_outliers |= scales[r] > max_scales[r];
        }
        for (int r = 0; r < rows && *has_outliers; ++r) {
            const float * numbers = scales[r] > max_scales[r] ? b->x[first_token + r] + k : zeros;
            q->stage_rest(q->zero, numbers, span, rows, r, rests);
        }
        rests += *has_outliers ? bytes : 0;
    }
}

/* Stages elements [k0, k1) of all tokens. */
static inline void stage_tokens(const struct block * b, const struct tiling * t, int64_t k0, int64_t k1,
                                struct staged * s) {
    const struct quant * q = b->quant;
    const int64_t token_bytes = (k1 - k0) / q->block * t->record_bytes, n_spans = (k1 - k0) / t->span;
    for (int64_t i = 0; i < t->n_tiles; ++i) {
        const int64_t first = b->n_tokens * i / t->n_tiles;
        const int rows = (int) (b->n_tokens * (i + 1) / t->n_tiles - first);
        char * tile = s->tokens + first * token_bytes;
        for (int r = 0; r < rows; ++r) {
            q->stage(q->zero, b->x[first + r] + k0, k1 - k0, rows, r, tile);
        }
        if (b->separate_outliers) {
            char * rests = tile + b->n_tokens * token_bytes;
            stage_rests(b, k0, k1, first, rows, tile, rests, s->has_outliers + i * n_spans);
        }
    }
}

/* sums += a tile of n tokens by n_spans unpacked spans of a panel; spans with outliers count twice, the second time
 * with their rests. `next` is prefetched meanwhile, `lines` of it for each record. */
static void multiply_tile(const struct block * b, int64_t n, const char * x, const char * w, int64_t n_spans,
                          const uint8_t * has_outliers, const char ** rests, float * sums, const char ** next,
                          int lines) {
    const struct quant * q = b->quant;
    const int64_t span_records = span_of(q) / q->block;
    const int64_t x_bytes = span_records * n * STAGED_RECORD(q->block, q->form);
    const int64_t w_bytes = span_records * RECORD(q->block, q->form, q->mins);
    for (int64_t first = 0, stop; first < n_spans; first = stop) {
        stop = b->separate_outliers ? first + 1 : n_spans;
        while (stop < n_spans && !has_outliers[stop - 1]) {
            ++stop;
        }
        const int64_t n_records = (stop - first) * span_records;
        q->tiles[n](x + first * x_bytes, w + first * w_bytes, n_records, sums, *next, lines);
        *next += n_records * lines * GROUP;
        if (b->separate_outliers && has_outliers[stop - 1]) {
            q->tiles[n](*rests, w + (stop - 1) * w_bytes, span_records, sums, *next, 0);
            *rests += x_bytes;
        }
    }
}

/* Memory of one call, on its stack. */
struct scratch {
    _Alignas(64) char unpacked[UNPACKED];
    _Alignas(64) float sums[2][MAX_TOKENS * ROWS]; /* of the weight, and of the gate */
    const char * rests[MAX_TOKENS];                /* of each tile: the next of its rests */
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
static inline void begin_sums(const struct block * b, const struct piece * piece, int64_t first, int64_t last,
                              float * sums) {
    for (int64_t t = first; t < last; ++t) {
        if (piece->k0) {
            memcpy(sums + t * ROWS, b->y[t] + piece->column, (size_t) piece->n_columns * sizeof(float));
        } else {
            memset(sums + t * ROWS, 0, NUMBERS);
        }
    }
}

/* All tiles of tokens by a piece of a panel. After the last piece of a depth the sums go to y; after the last depth
 * with gate, bias, activation and residual. */
static inline void run_tiles(const struct block * b, const struct tiling * t, const struct piece * piece,
                             struct staged * s, struct scratch * scratch) {
    const struct quant * q = b->quant;
    const int64_t n_spans = piece->n_elements / t->span, before = piece->k - piece->k0;
    const int64_t depth_spans = (piece->k1 - piece->k0) / t->span;
    const int64_t token_bytes = (piece->k1 - piece->k0) / q->block * t->record_bytes;
    const uint8_t * has_outliers = s->has_outliers + before / t->span; /* of the first tile */
    const int begins = piece->k == piece->k0, ends = piece->k + piece->n_elements == piece->k1;
    const int writes = ends && !piece->is_gate, finishes = ends && piece->k1 == b->k;
    /* Prefetched: what follows, or follows later. After the end of a depth of this panel that is the next panel's. */
    const int64_t bytes = packed_bytes(q, piece->n_elements);
    const char * next = piece->packed + (bytes > PREFETCH_AHEAD ? bytes : PREFETCH_AHEAD);
    next += ends ? t->panel_bytes - packed_bytes(q, piece->k1 - piece->k0) : 0;
    const char * const last_line = next + bytes;
    for (int64_t i = 0; i < t->n_tiles; ++i, has_outliers += depth_spans) {
        const int64_t first = b->n_tokens * i / t->n_tiles, last = b->n_tokens * (i + 1) / t->n_tiles;
        const int64_t rows = last - first;
        const char * x = s->tokens + first * token_bytes + before / q->block * rows * t->record_bytes;
        float * sums = scratch->sums[piece->is_gate] + first * ROWS;
        if (begins) {
            begin_sums(b, piece, first, last, scratch->sums[piece->is_gate]);
            scratch->rests[i] = s->tokens + (b->n_tokens + first) * token_bytes;
        }
        for (int64_t r = first; r < last && writes; ++r) { /* they arrive while the tile is computed */
            __builtin_prefetch(b->y[r] + piece->column, 1);
            if (finishes && b->residual[r]) {
                __builtin_prefetch(b->residual[r] + piece->column);
            }
        }
        if (t->direct) {
            q->multiply(piece->packed, piece->n_elements / q->elements, x, sums);
        } else {
            multiply_tile(b, rows, x, scratch->unpacked, n_spans, has_outliers, &scratch->rests[i], sums, &next,
                          next < last_line ? t->lines : 0);
        }
        if (!writes) {
            continue;
        }
        if (b->gate) {
            b->set->gate(b->activation, scratch->sums[1] + first * ROWS, rows, sums);
        }
        const int adds = finishes && b->residual[first];
        b->set->finish(sums, rows, piece->n_columns, piece->column, finishes && b->bias ? b->bias + piece->column : 0,
                       finishes && b->activation == HOTSHOE_LINEAR_GELU_ERF, adds ? b->residual + first : 0,
                       b->y + first);
    }
}

/* The product of a block. are_staged: `s` holds all elements of its tokens already, from an earlier call. */
static void multiply(const struct block * b, struct staged * s, int are_staged) {
    struct scratch scratch;
    const struct quant * q = b->quant;
    const struct tiling t = tiling_of(b);
    const int n_weights = b->gate ? 2 : 1;
    struct piece piece;
    for (piece.k0 = 0; piece.k0 < b->k; piece.k0 += t.depth) {
        piece.k1 = min64(piece.k0 + t.depth, b->k);
        if (!are_staged) {
            stage_tokens(b, &t, piece.k0, piece.k1, s);
        }
        for (int64_t turn = b->first_panel * n_weights; turn < b->last_panel * n_weights; ++turn) {
            const int64_t panel = turn / n_weights;
            piece.is_gate = b->gate && turn % 2 == 0; /* before its product */
            piece.column = panel * ROWS;
            piece.n_columns = (int) min64(ROWS, b->m - piece.column);
            piece.packed = (piece.is_gate ? b->gate : b->packed) + panel * t.panel_bytes + packed_bytes(q, piece.k0);
            for (piece.k = piece.k0; piece.k < piece.k1; piece.k += piece.n_elements) {
                piece.n_elements = min64(t.step, piece.k1 - piece.k);
                if (!t.direct) {
                    q->unpack(piece.packed, piece.n_elements / q->elements, scratch.unpacked);
                }
                run_tiles(b, &t, &piece, s, &scratch);
                piece.packed += packed_bytes(q, piece.n_elements);
            }
        }
    }
}

static struct block block_of(const struct hotshoe_linear_params * params) {
    const struct quant_set * set = params->avx2_only ? &hotshoe_quants_avx2 : best_set();
    const struct block b = {
        .set = set,
        .quant = quant_of(set, params->format),
        .packed = (const char *) params->packed,
        .k = params->k,
        .m = params->m,
        .last_panel = ceil_div(params->m, ROWS),
        .activation = params->activation,
        .separate_outliers = params->separate_outliers,
    };
    return b;
}

/* Panels that a thread takes at least: more of them with many tokens, so that staging stays a small part. */
enum { LEAST_PANELS = 4, LEAST_PANELS_LARGE = 16 };

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    struct staged staged;
    (void) ith;
    const struct hotshoe_linear_params * params = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor * x = dst->src[0];
    const float * residual = params->has_residual ? (const float *) dst->src[params->has_bias ? 2 : 1]->data : 0;
    struct block b = block_of(params);
    b.gate = (const char *) params->gate;
    b.bias = params->has_bias ? (const float *) dst->src[1]->data : 0;
    /* Blocks of tokens of nearly one size, as their tiles are; each with all panels. */
    const int64_t n = x->ne[1], panels = ceil_div(b.m, ROWS), parts = token_parts(n, panels, nth, 1.5, 4.0);
    const int64_t block_tokens = min64(max_tokens(&b), ceil_div(n, parts)), blocks = n ? ceil_div(n, block_tokens) : 0;
    const int64_t min_units = block_tokens > SMALL_BLOCK ? LEAST_PANELS_LARGE : LEAST_PANELS;
    int64_t staged_block = -1, unit, end;
    int32_t * position = position_in(dst);
    while (take_units(position, blocks * panels, min_units, nth, &unit, &end)) {
        for (; unit < end; unit += b.last_panel - b.first_panel) { /* a unit is a panel of a block */
            const int64_t block = unit / panels;
            const int is_same = block == staged_block;
            const int64_t first = n * block / blocks, last = n * (block + 1) / blocks;
            for (int64_t t = first; t < last && !is_same; ++t) {
                b.x[t - first] = (const float *) ((const char *) x->data + t * (int64_t) x->nb[1]);
                b.y[t - first] = (float *) dst->data + t * b.m;
                b.residual[t - first] = residual ? residual + t * b.m : 0;
            }
            staged_block = block;
            b.n_tokens = last - first;
            b.first_panel = unit % panels;
            b.last_panel = min64(b.first_panel + end - unit, panels);
            multiply(&b, &staged, is_same && all_staged(&b));
        }
    }
    leave(position, nth);
}

/* The first index from i on, below n, with chosen[index] == expert; n if there is no such index. */
AVX2 static int64_t next_of(const int32_t * chosen, int64_t i, int64_t n, int32_t expert) {
    for (; i + 8 <= n; i += 8) {
        const __m256i numbers = _mm256_loadu_si256((const __m256i *) (chosen + i));
        const __m256i equal = _mm256_cmpeq_epi32(numbers, _mm256_set1_epi32(expert));
        const int found = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
        if (found) {
            return i + __builtin_ctz((unsigned) found);
        }
    }
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

/* Threads take panels, expert by expert, and of each expert block by block. Each thread searches for itself which rows
 * chose an expert. */
void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    struct staged staged;
    (void) ith;
    const struct hotshoe_linear_params * params = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor *x = dst->src[0], *experts = dst->src[1];
    const int32_t * chosen = (const int32_t *) experts->data;
    const int64_t used = experts->ne[0], n = used * experts->ne[1];
    const size_t weight_bytes = hotshoe_quants_size(params->format, params->k, params->m);
    struct block b = block_of(params);
    const int64_t panels = ceil_div(b.m, ROWS), block_tokens = max_tokens(&b);
    int64_t total = 0;
    for (int32_t e = 0; e < params->n_experts; ++e) {
        total += ceil_div(count_of(chosen, n, e), block_tokens) * panels;
    }
    int32_t expert = -1; /* that of the panels [expert_begin, expert_end): */
    int64_t rows = 0, blocks = 0, expert_begin = 0, expert_end = 0, staged_block = -1, unit, end;
    int32_t * position = position_in(dst);
    const int64_t min_units = n * panels > total * SMALL_BLOCK ? LEAST_PANELS_LARGE : LEAST_PANELS;
    while (take_units(position, total, min_units, nth, &unit, &end)) {
        for (; unit < end; unit += b.last_panel - b.first_panel) {
            while (unit >= expert_end) {
                rows = count_of(chosen, n, ++expert);
                blocks = ceil_div(rows, block_tokens);
                expert_begin = expert_end;
                expert_end += blocks * panels;
                staged_block = -1;
            }
            const int64_t block = (unit - expert_begin) / panels;
            const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
            const int is_same = block == staged_block;
            int64_t i = next_of(chosen, 0, n, expert);
            for (int64_t t = 0; t < last && !is_same; ++t, i = next_of(chosen, i + 1, n, expert)) {
                if (t >= first) {
                    const int64_t row = i / used, slot = x->ne[1] == 1 ? 0 : i % used;
                    const int64_t offset = row * (int64_t) x->nb[2] + slot * (int64_t) x->nb[1];
                    b.x[t - first] = (const float *) ((const char *) x->data + offset);
                    b.y[t - first] = (float *) dst->data + i * b.m;
                }
            }
            staged_block = block;
            b.n_tokens = last - first;
            b.packed = (const char *) params->packed + expert * weight_bytes;
            b.gate = params->gate ? (const char *) params->gate + expert * weight_bytes : 0;
            b.first_panel = (unit - expert_begin) % panels;
            b.last_panel = min64(b.first_panel + end - unit, panels);
            multiply(&b, &staged, is_same && all_staged(&b));
        }
    }
    leave(position, nth);
}

#else /* no kernels for this CPU or compiler */

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
