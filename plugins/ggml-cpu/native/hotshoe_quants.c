#include "hotshoe_quants.h"

#include "linear_parts.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include "hotshoe_quants_tiles.h"

/* W (m, k) lies in panels of 16 rows, block after block of ggml's, in as many bytes as in the file. A panel is unpacked, some
 * hundred elements at once, into memory that stays in the first-level cache, and multiplied there by all tokens of a block.
 * Nothing is allocated, and no thread waits for another. */
enum {
    UNPACKED = 24 << 10, /* bytes of a panel's records */
#if defined(__linux__) && !defined(__GLIBC__)
    STAGED = 40 << 10, /* bytes of activations; musl gives a thread 128 KiB of stack */
    MAX_TOKENS = 24,
#else
    STAGED = 160 << 10,
    MAX_TOKENS = 96, /* of a block of tokens: 24 tiles, so that unpacking is a small part */
#endif
    SUPERBLOCK = 256, /* depths are multiples of it */
    DIRECT = 2,        /* tokens up to which each is multiplied by the packed blocks themselves, without VNNI */
    FEW = 16,          /* tokens up to which memory is the limit: */
    FEW_AT_ONCE = 512, /* elements are then unpacked in small steps, so that what comes is on its way meanwhile */
};

struct field {
    uint8_t n, bytes; /* elements, and the size of each */
};

struct quant {
    int type; /* enum ggml_type */
    int elements, bytes; /* of a block of the file */
    int block, form, zero, mins; /* of a record: see hotshoe_quants_unpack.h */
    void (*unpack)(const char * in, int64_t n, char * out);
    void (*multiply)(const char * in, int64_t n, const char * x, float * sums);
    struct field fields[2]; /* of a block of the file, in its order */
    void (*unpack_dot)(const char * in, int64_t n, char * out); /* for FORM_DOT, where unpack does not do */
};

static const struct quant quants[] = {
    {GGML_TYPE_Q4_0, 32, 18, 32, FORM_U8, 8, 0, unpack_q4_0, multiply_q4_0, {{1, 2}, {4, 4}}, 0},
    {GGML_TYPE_Q4_1, 32, 20, 32, FORM_U8, 8, 1, unpack_q4_1, multiply_q4_1, {{2, 2}, {4, 4}}, 0},
    {GGML_TYPE_Q5_0, 32, 22, 32, FORM_U8, 16, 0, unpack_q5_0, multiply_q5_0, {{1, 2}, {5, 4}}, 0},
    {GGML_TYPE_Q5_1, 32, 24, 32, FORM_U8, 16, 1, unpack_q5_1, multiply_q5_1, {{2, 2}, {5, 4}}, 0},
    {GGML_TYPE_Q8_0, 32, 34, 32, FORM_S16, 0, 0, unpack_q8_0, multiply_q8_0, {{1, 2}, {8, 4}}, unpack_q8_0_dot},
    {GGML_TYPE_IQ4_NL, 32, 18, 32, FORM_S16, 0, 0, unpack_iq4_nl, multiply_iq4_nl, {{1, 2}, {4, 4}}, unpack_iq4_nl_dot},
    {GGML_TYPE_MXFP4, 32, 17, 32, FORM_U8, 12, 0, unpack_mxfp4, multiply_mxfp4, {{1, 1}, {4, 4}}, 0},
    {GGML_TYPE_Q2_K, 256, 84, 16, FORM_U8, 0, 1, unpack_q2_k, multiply_q2_k, {{20, 4}, {2, 2}}, 0},
    {GGML_TYPE_Q3_K, 256, 110, 16, FORM_U8, 4, 0, unpack_q3_k, multiply_q3_k, {{27, 4}, {1, 2}}, 0},
    {GGML_TYPE_Q4_K, 256, 144, 32, FORM_U8, 8, 1, unpack_q4_k, multiply_q4_k, {{2, 2}, {35, 4}}, 0},
    {GGML_TYPE_Q5_K, 256, 176, 32, FORM_U8, 16, 1, unpack_q5_k, multiply_q5_k, {{2, 2}, {43, 4}}, 0},
    {GGML_TYPE_Q6_K, 256, 210, 16, FORM_U8, 32, 0, unpack_q6_k, multiply_q6_k, {{52, 4}, {1, 2}}, 0},
    {GGML_TYPE_IQ4_XS, 256, 136, 32, FORM_S16, 0, 0, unpack_iq4_xs, multiply_iq4_xs, {{2, 2}, {33, 4}}, unpack_iq4_xs_dot},
};

static const struct quant * quant_of(int type) {
    for (size_t i = 0; i < sizeof quants / sizeof quants[0]; ++i) {
        if (quants[i].type == type) {
            return &quants[i];
        }
    }
    return 0;
}

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t n_panels(int64_t m) { return (m + ROWS - 1) / ROWS; }

int hotshoe_quants_has(int type, int64_t k) {
    __builtin_cpu_init();
    const struct quant * q = quant_of(type);
    return q && k > 0 && k % q->elements == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

size_t hotshoe_quants_size(int type, int64_t k, int64_t m) {
    const struct quant * q = quant_of(type);
    return (size_t) (n_panels(m) * ROWS * (k / q->elements) * q->bytes);
}

/* The element of a field for each of n rows, which are `apart` bytes from each other. */
ALWAYS_INLINE void gather(const char * rows, int64_t apart, int64_t n, int bytes, char * out) {
    for (int64_t r = 0; r < n; ++r) {
        memcpy(out + r * bytes, rows + r * apart, (size_t) bytes);
    }
}

void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                         void * packed) {
    const struct quant * q = quant_of(type);
    const int64_t row_bytes = k / q->elements * q->bytes, last = min64(first_row + n_rows, m);
    for (int64_t row = first_row, n; row < last; row += n) {
        n = min64(ROWS - row % ROWS, last - row); /* of one panel */
        const char * in = (const char *) rows + (row - first_row) * row_bytes;
        char * out = (char *) packed + row / ROWS * ROWS * row_bytes;
        for (int64_t b = 0; b < k / q->elements; ++b) {
            for (int f = 0; f < 2; ++f) {
                const int bytes = q->fields[f].bytes;
                for (int i = 0; i < q->fields[f].n; ++i, in += bytes, out += ROWS * bytes) {
                    char * lanes = out + row % ROWS * bytes;
                    if (bytes == 4) {
                        n == ROWS ? gather(in, row_bytes, ROWS, 4, lanes) : gather(in, row_bytes, n, 4, lanes);
                    } else {
                        bytes == 2 ? gather(in, row_bytes, n, 2, lanes) : gather(in, row_bytes, n, 1, lanes);
                    }
                }
            }
        }
    }
}

static int has_vnni(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

/* Rows of x by one weight, and where the results go: wherever rows lie. */
struct block {
    const struct quant * q;
    const char * packed;
    int64_t k, m, first_panel, last_panel;
    const float * bias;
    int gelu, vnni;
    int64_t tokens; /* 1 to MAX_TOKENS */
    const float * x[MAX_TOKENS];
    const float * residual[MAX_TOKENS]; /* or NULL */
    float * y[MAX_TOKENS];
};

AVX2 static void finish_256(const struct block * b, const float * sums, int64_t column, int end) {
    const int cols = (int) min64(ROWS, b->m - column);
    float bias[ROWS] = {0};
    if (end && b->bias) {
        memcpy(bias, b->bias + column, (size_t) cols * sizeof(float));
    }
    for (int64_t t = 0; t < b->tokens; ++t) {
        const float * residual = end && b->residual[t] ? b->residual[t] + column : 0;
        finish_row(ROWS, sums + t * ROWS, cols, bias, end && b->gelu, residual, b->y[t] + column);
    }
}

static void multiply(const struct block * b) {
    _Alignas(64) char staged[STAGED];
    _Alignas(64) char unpacked[UNPACKED];
    _Alignas(64) float sums[MAX_TOKENS * ROWS];

    const struct quant * q = b->q;
    const int64_t k = b->k, tokens = b->tokens, panel_bytes = ROWS * (k / q->elements) * q->bytes;
    const int direct = tokens <= (b->vnni ? 1 : DIRECT), dot = b->vnni && !direct, form = dot ? FORM_DOT : q->form;
    const int zero = dot && q->form == FORM_S16 ? 128 : q->zero; /* of signed bytes */
    const stage_fn stage = stage_of[form][q->block == 16];
    const tile_fn * tile = tiles_of[form][q->block == 16][q->mins];
    const int64_t most_tokens = direct ? 1 : dot ? TOKENS_DOT : TOKENS, tiles = (tokens + most_tokens - 1) / most_tokens;
    const int64_t record = RECORD(q->block, form, q->mins), token_record = STAGED_RECORD(q->block, form);
    const int64_t most_at_once = UNPACKED / (SUPERBLOCK / q->block * record) * SUPERBLOCK; /* elements unpacked */
    const int64_t depth = STAGED / (tokens * SUPERBLOCK / q->block * token_record) * SUPERBLOCK;
    const int64_t at_once = tokens <= FEW ? FEW_AT_ONCE : most_at_once;
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
        const int64_t k1 = min64(k0 + depth, k), token_bytes = (k1 - k0) / q->block * token_record;
        for (int64_t i = 0; i < tiles; ++i) {
            const int64_t t0 = tokens * i / tiles;
            const int rows = (int) (tokens * (i + 1) / tiles - t0);
            for (int r = 0; r < rows; ++r) {
                stage(zero, b->x[t0 + r] + k0, k1 - k0, rows, r, staged + t0 * token_bytes);
            }
        }
        for (int64_t panel = b->first_panel; panel < b->last_panel; ++panel) {
            const int64_t column = panel * ROWS;
            memset(sums, 0, (size_t) tokens * NUMBERS);
            for (int64_t t = 0; t < tokens && k0; ++t) { /* the sums so far */
                memcpy(sums + t * ROWS, b->y[t] + column, (size_t) min64(ROWS, b->m - column) * sizeof(float));
            }
            for (int64_t at = k0; at < k1; at += at_once) {
                const int64_t elements = min64(at_once, k1 - at);
                const char * w = b->packed + panel * panel_bytes + ROWS * (at / q->elements) * q->bytes;
                if (direct) {
                    for (int64_t t = 0; t < tokens; ++t) {
                        const char * from = staged + t * token_bytes + (at - k0) / q->block * token_record;
                        q->multiply(w, elements / q->elements, from, sums + t * ROWS);
                    }
                    continue;
                }
                (dot && q->unpack_dot ? q->unpack_dot : q->unpack)(w, elements / q->elements, unpacked);
                for (int64_t i = 0; i < tiles; ++i) {
                    const int64_t t0 = tokens * i / tiles, rows = tokens * (i + 1) / tiles - t0;
                    const char * from = staged + t0 * token_bytes + (at - k0) / q->block * rows * token_record;
                    tile[rows](from, unpacked, elements / q->block, sums + t0 * ROWS);
                }
            }
            finish_256(b, sums, column, k1 == k);
        }
    }
}

/* Thread `ith` of `nth`: its part of n rows, [*first, *last), and of the panels of each of as many weights. */
static struct block share(const struct hotshoe_linear_params * p, int64_t n, int64_t weights, int ith, int nth,
                          int64_t * first, int64_t * last) {
    const int64_t panels = n_panels(p->m);
    const int parts = token_parts(n, weights, panels, nth, 1.5, 4.0), columns = nth / parts;
    *first = n * (ith / columns) / parts;
    *last = n * (ith / columns + 1) / parts;
    const struct block b = {
        .q = quant_of(p->format),
        .packed = (const char *) p->packed,
        .k = p->k,
        .m = p->m,
        .first_panel = panels * (ith % columns) / columns,
        .last_panel = panels * (ith % columns + 1) / columns,
        .gelu = p->activation == HOTSHOE_LINEAR_GELU_ERF,
        .vnni = has_vnni() && !p->avx2_only,
    };
    return b;
}

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_linear_params * p = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor * x = dst->src[0];
    const float * residual = p->has_residual ? (const float *) dst->src[p->has_bias ? 2 : 1]->data : 0;
    int64_t first, last;
    struct block b = share(p, x->ne[1], 1, ith, nth, &first, &last);
    b.bias = p->has_bias ? (const float *) dst->src[1]->data : 0;
    const int64_t blocks = b.first_panel < b.last_panel ? (last - first + MAX_TOKENS - 1) / MAX_TOKENS : 0;
    for (int64_t i = 0; i < blocks; ++i) { /* of nearly one size, as the tiles are */
        const int64_t t0 = first + (last - first) * i / blocks, t1 = first + (last - first) * (i + 1) / blocks;
        for (int64_t t = t0; t < t1; ++t) {
            b.x[t - t0] = (const float *) ((const char *) x->data + t * (int64_t) x->nb[1]);
            b.y[t - t0] = (float *) dst->data + t * p->m;
            b.residual[t - t0] = residual ? residual + t * p->m : 0;
        }
        b.tokens = t1 - t0;
        multiply(&b);
    }
}

/* The first place from i on, of n, where expert e is named; n if there is none. */
AVX2 static int64_t next_of(const int32_t * chosen, int64_t i, int64_t n, int32_t e) {
    for (; i + 8 <= n; i += 8) {
        const __m256i equal = _mm256_cmpeq_epi32(words((const char *) (chosen + i)), _mm256_set1_epi32(e));
        const int found = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
        if (found) {
            return i + __builtin_ctz((unsigned) found);
        }
    }
    while (i < n && chosen[i] != e) {
        ++i;
    }
    return i;
}

/* Each thread looks for itself where an expert is named, once for each of them. */
void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_linear_params * p = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor *x = dst->src[0], *experts = dst->src[1];
    const int32_t * chosen = (const int32_t *) experts->data;
    const int64_t used = experts->ne[0], n = used * experts->ne[1];
    const size_t weight_bytes = hotshoe_quants_size(p->format, p->k, p->m);
    int64_t first, last; /* of the rows in the order of their experts */
    struct block b = share(p, n, min64(n, p->n_experts), ith, nth, &first, &last);
    if (b.first_panel == b.last_panel) {
        return;
    }
    int64_t before = 0; /* rows of the experts before this one */
    for (int32_t e = 0; e < p->n_experts && before < last; ++e) {
        int64_t at = before; /* the row that is looked for next */
        for (int64_t i = next_of(chosen, 0, n, e); i < n; i = next_of(chosen, i + 1, n, e)) {
            ++before;
        }
        const int64_t start = at > first ? at : first, stop = min64(before, last), blocks = (stop - start + MAX_TOKENS - 1) / MAX_TOKENS;
        b.packed = (const char *) p->packed + e * weight_bytes;
        for (int64_t i = 0, block = 0; block < blocks; ++block) {
            const int64_t t1 = start + (stop - start) * (block + 1) / blocks;
            for (b.tokens = 0; at < t1; ++i) {
                i = next_of(chosen, i, n, e);
                if (at++ < start) {
                    continue;
                }
                const int64_t row = i / used, which = x->ne[1] == 1 ? 0 : i % used;
                b.x[b.tokens] = (const float *) ((const char *) x->data + row * (int64_t) x->nb[2] + which * (int64_t) x->nb[1]);
                b.y[b.tokens++] = (float *) dst->data + i * p->m;
            }
            multiply(&b);
        }
    }
}

#else /* no kernels for this CPU or compiler */

int hotshoe_quants_has(int type, int64_t k) {
    (void) type, (void) k;
    return 0;
}

size_t hotshoe_quants_size(int type, int64_t k, int64_t m) {
    (void) type, (void) k, (void) m;
    return 0;
}

void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                         void * packed) {
    (void) type, (void) k, (void) m, (void) first_row, (void) n_rows, (void) rows, (void) packed;
}

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    for (int64_t i = 0; ith == 0 && i < dst->ne[0] * dst->ne[1] * dst->ne[2]; ++i) {
        ((float *) dst->data)[i] = NAN; /* nobody asked hotshoe_quants_has */
    }
}

void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    hotshoe_quants(dst, ith, nth, userdata);
}

#endif
