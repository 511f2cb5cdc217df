/* Product of activations by weights in F32, F16 or BF16, packed or, until that is done, as the file has them.
 *
 * A packed W (m, k) is stored in panels of 32 rows, k-major: panel[k][32]. For BF16 it is panel[k / 2][32][2], because
 * vdpbf16ps multiplies pairs. A weight that is not packed is transposed into such panels piece by piece. Without
 * AVX-512 a piece is half a panel, which all tiles use before the next is transposed: 512 features of it are 32 KiB.
 * The rows of staged tokens have a constant distance, which gives every broadcast an immediate address, without cache
 * aliasing. Nothing is allocated, and no thread waits for another.
 *
 * The numbers of a sum are added in the order of the features, whatever else is computed. So a token has the same bits
 * alone and among others, and before and after the weight is packed; and with AVX2 as with AVX-512, except that AVX-512
 * may have a product of BF16.
 *
 * Reading order: hotshoe_linear.h (the ops), this file from hotshoe_linear upwards, work_items.h (threads),
 * hotshoe_linear_tiles.h (the inner loops), hotshoe_linear_pieces.h (what is done around them). */
#include "hotshoe_linear.h"

#include "isa.h"

#if defined(HOTSHOE_X86)

#include "hotshoe_linear_pieces.h"
#include "hotshoe_linear_tiles.h"
#include "work_items.h"

/* The format whose numbers have this ggml type. */
static int format_of(int type) {
    return type == GGML_TYPE_F32   ? HOTSHOE_LINEAR_F32
           : type == GGML_TYPE_F16 ? HOTSHOE_LINEAR_F16
                                   : HOTSHOE_LINEAR_BF16;
}
static int64_t element_size(int format) { return format == HOTSHOE_LINEAR_F32 ? 4 : 2; }
static int64_t padded_k(int format, int64_t k) { return format == HOTSHOE_LINEAR_BF16 ? (k + 1) & ~(int64_t) 1 : k; }
static int64_t panel_size(int format, int64_t k) { return PANEL * padded_k(format, k) * element_size(format); }

size_t hotshoe_packed_size(int format, int64_t k, int64_t m) {
    return (size_t) (ceil_div(m, PANEL) * panel_size(format, k));
}

int hotshoe_linear_has(void) { return hotshoe_cpu() & CPU_AVX2; }

int hotshoe_linear_pairs(void) { return hotshoe_cpu() & CPU_AVX512_BF16; }

/* --- packing ------------------------------------------------------------------------------------- */

void hotshoe_pack_rows(int format, int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                       void * packed) {
    n_rows = min64(n_rows, m - first_row);
    const int from = format_of(type);
    for (int64_t r = 0; r < n_rows; r += PANEL) {
        pack_panel[format][from](k, (int) min64(PANEL, n_rows - r), (const char *) rows + r * k * element_size(from),
                                 (char *) packed + (first_row + r) / PANEL * panel_size(format, k));
    }
}

int hotshoe_holds_bf16(const void * numbers, int64_t n) { return are_bf16((const char *) numbers, n); }

/* --- the product ---------------------------------------------------------------------------------- */

/* One product: x (n, k) by a weight (m, k). */
struct product {
    const struct ggml_tensor * x;
    const char *packed, *stored;  /* stored: the rows of the file, as long as they are not packed; else NULL */
    const float *bias, *residual; /* or NULL */
    float * y;
    int64_t k, m;
    int format;        /* of the weight: enum hotshoe_linear_format */
    int stored_format; /* of the rows of the file */
    int wide;          /* by AVX-512 */
    int pairs;         /* pairs of BF16 are multiplied */
    int gelu;
};

static struct product product_of(const struct ggml_tensor * dst, const struct hotshoe_linear_params * params) {
    struct ggml_tensor * const * others = dst->src + 1;
    struct product p = {.x = dst->src[0], .packed = (const char *) params->packed};
    p.stored = (const char *) params->rows;
    p.y = (float *) dst->data;
    p.k = params->k;
    p.m = params->m;
    p.bias = params->has_bias ? (const float *) others[0]->data : 0;
    p.residual = params->has_residual ? (const float *) others[params->has_bias ? 1 : 0]->data : 0;
    p.format = params->format;
    p.stored_format = format_of(params->rows_type);
    const int sets = hotshoe_cpu() & ~params->without;
    p.wide = sets & CPU_AVX512;
    p.pairs = p.format == HOTSHOE_LINEAR_BF16 && p.wide && sets & CPU_AVX512_BF16 && !params->in_f32;
    p.gelu = params->activation == HOTSHOE_LINEAR_GELU_ERF;
    return p;
}

/* How the product of a group of tokens is divided: into tiles of tokens, and depths of features. All tiles have nearly
 * one size, and so have all depths: the last one is not a small remainder. */
struct tiling {
    int64_t first_token, n_tokens;
    int64_t n_tiles;         /* of tokens */
    int64_t depth, n_depths; /* features of a depth, and how many depths */
    int64_t panels_at_once;  /* that go through the depths together */
    int tile_columns;        /* columns of a panel that a tile has: PANEL or HALF_PANEL */
    int two_panels;          /* a tile has two panels */
    int widen;               /* pieces of the weight are brought into another form first, once for all tiles */
    int all_staged;          /* all depths of the tokens are staged at once */
    int writes_result;       /* a tile goes straight into y, if all of its columns exist */
    const tile_table * tiles;
    finish_fn finish;
};

static struct tiling tiling_of(const struct product * p, int64_t first_token, int64_t n_tokens) {
    const int half_panels = p->stored && !p->wide;
    struct tiling t = {.first_token = first_token, .n_tokens = n_tokens};
    t.n_tiles = ceil_div(n_tokens, p->wide ? MAX_ROWS : MAX_ROWS_TWO);
    t.n_depths = ceil_div(p->k, p->pairs ? 2 * DEPTH_STORED : half_panels ? DEPTH_STORED : DEPTH);
    t.depth = (ceil_div(p->k, t.n_depths) + 7) & ~(int64_t) 7;
    t.tile_columns = half_panels ? HALF_PANEL : PANEL;
    t.two_panels = p->wide && !p->stored && n_tokens <= MAX_ROWS_TWO;
    t.widen = p->stored || (t.n_tiles > 1 && p->format != HOTSHOE_LINEAR_F32 && !p->pairs);
    t.all_staged = t.n_depths * n_tokens <= STAGED_DEPTHS * MAX_TOKENS_STORED;
    t.writes_result = t.n_depths == 1 && !p->bias && !p->gelu && !p->residual;
    /* With several depths: the panels of one tile where all depths are staged, else as many as have room for their
     * sums. */
    t.panels_at_once = t.n_depths == 1 ? ceil_div(p->m, PANEL)
                       : t.all_staged  ? t.two_panels + 1
                                       : SUMS / (n_tokens * PANEL);
    const int format = p->pairs                           ? HOTSHOE_LINEAR_BF16
                       : t.widen                          ? HOTSHOE_LINEAR_F32
                       : p->format == HOTSHOE_LINEAR_BF16 ? BF16_UNPAIRED
                                                          : p->format;
    t.tiles = p->wide ? tiles_512 + format : half_panels ? &half_tiles_256 : tiles_256 + format;
    t.finish = p->wide ? finish_512 : half_panels ? finish_half_256 : finish_256;
    return t;
}

/* A piece of the weight: the columns of one tile, or of two panels, by the features of a depth. */
struct piece {
    int64_t column;      /* the first one */
    int64_t start, stop; /* columns that go through the depths together */
    int64_t limit;       /* columns of this call */
    int64_t k0, n_k;     /* features */
    int64_t steps;       /* n_k, or pairs of them */
    int panels;          /* 1 or 2 */
    int n_columns;       /* those that exist */
    int is_last_depth;
};

/* Memory of one call. */
struct scratch {
    _Alignas(64) char staged[STAGED_DEPTHS * MAX_TOKENS_STORED * STRIDE];
    _Alignas(64) float widened[DEPTH_STORED * PANEL]; /* 64 KiB, as DEPTH_STORED = 512 */
    _Alignas(64) float sums[SUMS];
};
_Static_assert(sizeof(struct scratch) <= HOTSHOE_SCRATCH, "too small");

/* Stages the features of a piece, of all tokens. */
static inline void stage_tokens(const struct product * p, const struct tiling * t, const struct piece * piece,
                                char * staged) {
    const int64_t row_stride = (int64_t) p->x->nb[1];
    const char * x = (const char *) p->x->data + t->first_token * row_stride + piece->k0 * 4;
    if (p->pairs) {
        stage_bf16(x, row_stride, t->n_tokens, piece->n_k, staged);
        return;
    }
    stage_f32(x, row_stride, t->n_tokens, piece->n_k, staged);
    for (int64_t r = 0; r < t->n_tokens && piece->n_k % 2; ++r) { /* a panel of BF16 ends with a pair */
        memset(staged + r * STRIDE + piece->n_k * 4, 0, sizeof(float));
    }
}

static inline const char * stored_at(const struct product * p, int64_t column, int64_t k) {
    return p->stored + (column * p->k + k) * element_size(p->stored_format);
}

static inline const char * packed_at(const struct product * p, int64_t column, int64_t k) {
    return p->packed + column / PANEL * panel_size(p->format, p->k) + k * PANEL * element_size(p->format);
}

/* A piece of the weight as the tiles read it: in its packed panel, or in memory of `scratch`. */
static inline const char * unpack_panel(const struct product * p, const struct tiling * t, const struct piece * piece,
                                        struct scratch * scratch) {
    if (!p->stored) {
        const char * w = packed_at(p, piece->column, piece->k0);
        if (!t->widen) {
            return w;
        }
        (p->format == HOTSHOE_LINEAR_BF16 ? widen_pairs
         : p->wide                        ? widen_512
                                          : widen_256)(w, piece->steps, scratch->widened);
        return (const char *) scratch->widened;
    }
    const char * w = stored_at(p, piece->column, piece->k0);
    const int form = !p->pairs ? p->stored_format : p->stored_format == HOTSHOE_LINEAR_F16 ? F16_AS_PAIRS : UNCHANGED;
    transpose[form](w, p->k * element_size(p->stored_format), piece->n_columns, t->tile_columns, piece->steps,
                    scratch->widened);
    return (const char *) scratch->widened;
}

/* What tile number `tile` prefetches of the piece after this one, if that will be brought into another form: its share
 * of the rows, or of the lines of a packed panel. */
static inline struct upcoming upcoming_of(const struct product * p, const struct tiling * t, const struct piece * piece,
                                          int64_t tile) {
    int64_t column = piece->column + piece->panels * t->tile_columns, k = piece->k0;
    if (column >= piece->stop) {
        column = piece->is_last_depth ? piece->stop : piece->start;
        k = piece->is_last_depth ? 0 : piece->k0 + t->depth;
    }
    if (!t->widen || column >= piece->limit) {
        return (struct upcoming){0, 0, 0, 0};
    }
    if (!p->stored) { /* a line for each feature: the tiles together prefetch 16 lines in 16 steps */
        const int64_t lines = ceil_div(PREFETCH_STEPS, t->n_tiles);
        return (struct upcoming){
            .first = packed_at(p, column, k) + tile * lines * piece->steps * LINE / PREFETCH_STEPS,
            .row_stride = LINE,
            .n_rows = (int) lines,
            .bytes_in_step = (int) lines * LINE / PREFETCH_STEPS,
        };
    }
    const int64_t first = t->tile_columns * tile / t->n_tiles;
    const int64_t last = min64(t->tile_columns * (tile + 1) / t->n_tiles, piece->limit - column);
    return (struct upcoming){
        .first = stored_at(p, column + first, k),
        .row_stride = p->k * element_size(p->stored_format),
        .n_rows = (int) (last - first),
        .bytes_in_step = (int) element_size(p->stored_format) * (p->pairs ? 2 : 1),
    };
}

/* All tiles of tokens by a piece of the weight, w. After the last depth their results go to y. */
static inline void run_tiles(const struct product * p, const struct tiling * t, const struct piece * piece,
                             const char * staged, const char * w, float * sums) {
    const int width = piece->panels * t->tile_columns, writes_result = t->writes_result && piece->n_columns == width;
    if (t->n_depths > 1) { /* each piece has sums of its own */
        sums += (piece->column - piece->start) * t->n_tokens;
    }
    const tile_fn * tiles = (*t->tiles)[piece->panels - 1];
    for (int64_t i = 0; i < t->n_tiles; ++i) {
        const int64_t first = t->n_tokens * i / t->n_tiles; /* token of the group */
        const int rows = (int) (t->n_tokens * (i + 1) / t->n_tiles - first);
        const int64_t offset = (t->first_token + first) * p->m + piece->column; /* in y and the residual */
        float * out = p->y + offset;
        const float * residual = p->residual ? p->residual + offset : 0;
        for (int r = 0; r < rows && piece->is_last_depth; ++r) { /* they arrive while the tile is computed */
            __builtin_prefetch(out + r * p->m, 1);
            __builtin_prefetch(out + r * p->m + 16, 1);
            if (residual) {
                __builtin_prefetch(residual + r * p->m);
                __builtin_prefetch(residual + r * p->m + 16);
            }
        }
        float * tile = writes_result ? out : sums + (t->n_depths > 1 ? first * width : 0);
        const int64_t stride = writes_result ? p->m : width;
        const struct upcoming next = upcoming_of(p, t, piece, i);
        tiles[rows](staged + first * STRIDE, w, piece->steps, panel_size(p->format, p->k), tile, stride, piece->k0 != 0,
                    &next);
        for (int panel = 0; panel < piece->panels && piece->is_last_depth && !writes_result; ++panel) {
            const int64_t column = panel * t->tile_columns;
            t->finish(tile + column, stride, rows, (int) min64(t->tile_columns, p->m - piece->column - column),
                      p->bias ? p->bias + piece->column + column : 0, p->gelu, residual ? residual + column : 0,
                      out + column, p->m);
        }
    }
}

/* Tokens [first_token, last_token) by panels [first_panel, last_panel). are_staged: `scratch` holds these tokens
 * already, from the last call. */
static void multiply(const struct product * p, int64_t first_token, int64_t last_token, int64_t first_panel,
                     int64_t last_panel, struct scratch * scratch, int are_staged) {
    const struct tiling t = tiling_of(p, first_token, last_token - first_token);
    struct piece piece = {.limit = min64(last_panel * PANEL, p->m)};
    for (; first_panel < last_panel; first_panel += t.panels_at_once, are_staged = 1) {
        piece.start = first_panel * PANEL;
        piece.stop = min64(piece.start + t.panels_at_once * PANEL, piece.limit);
        for (piece.k0 = 0; piece.k0 < p->k; piece.k0 += t.depth) {
            piece.n_k = min64(t.depth, p->k - piece.k0);
            piece.steps = p->pairs ? ceil_div(piece.n_k, 2) : piece.n_k;
            piece.is_last_depth = piece.k0 + t.depth >= p->k;
            char * tokens = scratch->staged + (t.all_staged ? piece.k0 / t.depth * t.n_tokens * STRIDE : 0);
            if (!are_staged || !t.all_staged) {
                stage_tokens(p, &t, &piece, tokens);
            }
            for (piece.column = piece.start; piece.column < piece.stop; piece.column += piece.panels * t.tile_columns) {
                piece.panels = t.two_panels && piece.column + PANEL < piece.stop ? 2 : 1;
                piece.n_columns = (int) min64(piece.panels * t.tile_columns, p->m - piece.column);
                run_tiles(p, &t, &piece, tokens, unpack_panel(p, &t, &piece, scratch), scratch->sums);
            }
        }
    }
}

void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    /* The fewest panels that a thread takes: more with many tokens, so that staging stays a small part. */
    enum { MIN_PANELS = 2, MIN_PANELS_LARGE = 8, SMALL_GROUP = 16 };
    const struct hotshoe_linear_params * params = (const struct hotshoe_linear_params *) userdata;
    const struct product p = product_of(dst, params);
    /* Groups of tokens of nearly one size, each with all panels. */
    const int64_t n = p.x->ne[1], panels = ceil_div(p.m, PANEL), parts = token_parts(n, panels, nth, 0.2, 4.0);
    const int64_t room = !p.stored ? MAX_TOKENS : p.wide ? MAX_TOKENS_STORED / MAX_ROWS * MAX_ROWS : MAX_TOKENS_STORED;
    const int64_t group_tokens = min64(room, ceil_div(n, parts)), n_groups = n ? ceil_div(n, group_tokens) : 0;
    const int64_t min_items = group_tokens > SMALL_GROUP ? MIN_PANELS_LARGE : MIN_PANELS;
    int64_t item, end, next_item, staged_group = -1;
    int32_t * counter = work_counter(dst);
    while (take_items(counter, n_groups * panels, min_items, nth, &item, &end)) {
        for (; item < end; item = next_item) { /* an item is a panel of a group */
            const int64_t group = item / panels, before = group * panels;
            next_item = min64(end, before + panels);
            multiply(&p, n * group / n_groups, n * (group + 1) / n_groups, item - before, next_item - before,
                     scratch_of(params->scratch, ith), group == staged_group);
            staged_group = group;
        }
    }
    finish_thread(counter, nth);
}

#else /* no kernels for this CPU or compiler */

#include <math.h>

int hotshoe_linear_has(void) { return 0; }

int hotshoe_linear_pairs(void) { return 0; }

size_t hotshoe_packed_size(int format, int64_t k, int64_t m) {
    (void) format, (void) k, (void) m;
    return 0;
}

void hotshoe_pack_rows(int format, int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                       void * packed) {
    (void) format, (void) type, (void) k, (void) m, (void) first_row, (void) n_rows, (void) rows, (void) packed;
}

int hotshoe_holds_bf16(const void * numbers, int64_t n) {
    (void) numbers, (void) n;
    return 0;
}

void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    for (int64_t i = 0; ith == 0 && i < dst->ne[0] * dst->ne[1]; ++i) {
        ((float *) dst->data)[i] = NAN; /* the caller did not ask hotshoe_linear_has */
    }
}

#endif
