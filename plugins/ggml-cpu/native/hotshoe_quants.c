#include "hotshoe_quants.h"

#include "linear_parts.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <cpuid.h>
#include <immintrin.h>

#include "hotshoe_quants_set.h"

/* W (m, k) lies in panels of 16 rows, block after block of ggml's, in as many bytes as in the file. A panel is unpacked, some
 * hundred elements at once, into memory that stays in the first-level cache, and multiplied there by all tokens of a block.
 * Nothing is allocated, and no thread waits for another. */
enum {
    UNPACKED = 24 << 10, /* bytes of a panel's records */
#if defined(__GLIBC__)
    STAGED = 384 << 10, /* bytes of activations, which stay in the second-level cache */
    MAX_TOKENS = 128,   /* of a block of tokens: 16 tiles, so that unpacking is a small part */
#elif defined(__linux__)
    STAGED = 40 << 10, /* musl gives a thread 128 KiB of stack */
    MAX_TOKENS = 24,
#else
    STAGED = 160 << 10, /* macOS 512 */
    MAX_TOKENS = 96,
#endif
    SUPERBLOCK = 256,  /* depths are multiples of it */
    FEW = 16,          /* tokens up to which memory is the limit: */
    FEW_AT_ONCE = 512, /* elements are then unpacked in small steps, so that what comes is on its way meanwhile: */
    AHEAD = 8192,      /* bytes, at least */
    MOST_SPANS = STAGED / 2 / STAGED_RECORD(32, FORM_DOT), /* of all tokens that are staged with their rests */
};

static const struct quant * quant_of(const struct quant_set * set, int type) {
    for (int i = 0; i < set->n_quants; ++i) {
        if (set->quants[i].type == type) {
            return &set->quants[i];
        }
    }
    return 0;
}

static int64_t n_panels(int64_t m) { return (m + ROWS - 1) / ROWS; }

int hotshoe_quants_has(int type, int64_t k) {
    __builtin_cpu_init();
    const struct quant * q = quant_of(&hotshoe_quants_avx2, type);
    return q && k > 0 && k % q->elements == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

size_t hotshoe_quants_size(int type, int64_t k, int64_t m) {
    const struct quant * q = quant_of(&hotshoe_quants_avx2, type);
    return (size_t) (n_panels(m) * ROWS * (k / q->elements) * q->bytes);
}

/* The element of a field for each of n rows, which are `apart` bytes from each other. */
ALWAYS_INLINE void gather(const char * rows, int64_t apart, int64_t n, int bytes, char * out) {
    for (int64_t r = 0; r < n; ++r) {
        memcpy(out + r * bytes, rows + r * apart, (size_t) bytes);
    }
}

/* The fifth bits of a row's block, of which the file has element i's at bit i: that of element j of group g comes to bit g of
 * byte j, where a shift takes it from. Twice every other bit goes to the upper half, in four exchanges. */
static uint32_t in_groups(uint32_t bits) {
    for (int i = 0; i < 2; ++i) {
        uint32_t swap;
        swap = (bits ^ bits >> 1) & 0x22222222, bits ^= swap ^ swap << 1;
        swap = (bits ^ bits >> 2) & 0x0c0c0c0c, bits ^= swap ^ swap << 2;
        swap = (bits ^ bits >> 4) & 0x00f000f0, bits ^= swap ^ swap << 4;
        swap = (bits ^ bits >> 8) & 0x0000ff00, bits ^= swap ^ swap << 8;
    }
    return bits;
}

/* 8 words of 8 rows, to places GROUP from each other. */
__attribute__((target("avx2"))) static void turn_8(const char * rows, int64_t apart, char * out) {
    __m256i in[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) {
        in[i] = _mm256_loadu_si256((const __m256i *) (rows + i * apart));
    }
    for (int i = 0; i < 8; i += 2) { /* words 0 and 1 (4 and 5) of rows i and i + 1; words 2 and 3 (6 and 7) */
        pairs[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* of rows i to i + 3 words 0 (4), 1 (5), 2 (6), 3 (7) */
        fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_si256((__m256i *) (out + i * GROUP), _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_si256((__m256i *) (out + (i + 4) * GROUP),
                            _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31));
    }
}

/* 4 words of 4 rows. */
static void turn_4(const char * rows, int64_t apart, char * out) {
    __m128i in[4], pairs[4];
    for (int i = 0; i < 4; ++i) {
        in[i] = _mm_loadu_si128((const __m128i *) (rows + i * apart));
    }
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = _mm_unpacklo_epi32(in[i], in[i + 1]);
        pairs[i + 1] = _mm_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        _mm_storeu_si128((__m128i *) (out + 2 * i * GROUP), _mm_unpacklo_epi64(pairs[i], pairs[i + 2]));
        _mm_storeu_si128((__m128i *) (out + (2 * i + 1) * GROUP), _mm_unpackhi_epi64(pairs[i], pairs[i + 2]));
    }
}

/* n words of 16 rows, as many together as there are. */
static void turn_words(const char * rows, int64_t apart, int n, char * out) {
    int i = 0;
    for (; i + 8 <= n; i += 8, rows += 32, out += 8 * GROUP) {
        turn_8(rows, apart, out);
        turn_8(rows + 8 * apart, apart, out + 32);
    }
    for (; i + 4 <= n; i += 4, rows += 16, out += 4 * GROUP) {
        for (int r = 0; r < ROWS; r += 4) {
            turn_4(rows + r * apart, apart, out + 4 * r);
        }
    }
    for (; i < n; ++i, rows += 4, out += GROUP) {
        gather(rows, apart, ROWS, 4, out);
    }
}

void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                         void * packed) {
    const struct quant * q = quant_of(&hotshoe_quants_avx2, type);
    const int64_t row_bytes = k / q->elements * q->bytes, last = min64(first_row + n_rows, m);
    const int fifth_bits = type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1;
    for (int64_t row = first_row, n; row < last; row += n) {
        n = min64(ROWS - row % ROWS, last - row); /* of one panel */
        const char * in = (const char *) rows + (row - first_row) * row_bytes;
        char * out = (char *) packed + row / ROWS * ROWS * row_bytes;
        /* The next panel, which the processor does not see coming in 16 places at once. */
        const char * ahead = in + n * row_bytes;
        for (int64_t b = 0; b < k / q->elements; ++b) {
            for (int line = 0; line < ROWS * q->bytes; line += GROUP, ahead += GROUP) {
                __builtin_prefetch(ahead);
            }
            for (int f = 0; f < 2; ++f) {
                const int bytes = q->fields[f].bytes, many = q->fields[f].n;
                if (bytes == 4 && n == ROWS) {
                    turn_words(in, row_bytes, many, out);
                } else {
                    for (int i = 0; i < many; ++i) {
                        const char * first = in + i * bytes;
                        char * lanes = out + (i * ROWS + row % ROWS) * bytes;
                        switch (bytes) { /* a size that the compiler knows */
                            case 1: gather(first, row_bytes, n, 1, lanes); break;
                            case 2: gather(first, row_bytes, n, 2, lanes); break;
                            default: gather(first, row_bytes, n, 4, lanes);
                        }
                    }
                }
                if (fifth_bits && bytes == 4) {
                    char * lanes = out + row % ROWS * 4;
                    uint32_t words[ROWS];
                    memcpy(words, lanes, (size_t) n * 4);
                    for (int64_t r = 0; r < n; ++r) {
                        words[r] = in_groups(words[r]);
                    }
                    memcpy(lanes, words, (size_t) n * 4);
                }
                in += many * bytes;
                out += many * ROWS * bytes;
            }
        }
    }
}

/* The fastest that this CPU has. */
static const struct quant_set * best_set(void) {
#if defined(QUANTS_FORCED) /* in a test */
    return &QUANTS_FORCED;
#endif
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw")) {
        return &hotshoe_quants_avx512_vnni;
    }
#if defined(HOTSHOE_AVX_VNNI)
    unsigned a, b, c, d; /* not every compiler that has its instructions can be asked for avxvnni */
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1) {
        return &hotshoe_quants_avx_vnni;
    }
#endif
    return &hotshoe_quants_avx2;
}

/* Rows of x by one weight, and where the results go: wherever rows lie. */
struct block {
    const struct quant_set * set;
    const struct quant * q;
    const char * packed;
    const char * gate; /* or NULL */
    int64_t k, m, first_panel, last_panel;
    const float * bias;
    int activation, apart;
    int64_t tokens; /* 1 to MAX_TOKENS */
    const float * x[MAX_TOKENS];
    const float * residual[MAX_TOKENS]; /* or NULL, all of them */
    float * y[MAX_TOKENS];
};

/* Tokens that are staged, tile by tile; behind them, where outliers are kept apart, what rounding leaves of those spans that have
 * some, in places as large. */
struct staged {
    _Alignas(64) char tokens[STAGED];
    uint8_t apart[MOST_SPANS]; /* tile by tile: whether there are outliers in a span */
};

static int64_t token_bytes_of(const struct block * b) { /* staged, of all its elements */
    return b->k / b->q->block * STAGED_RECORD(b->q->block, b->q->form) * (b->apart ? 2 : 1);
}
static int is_whole(const struct block * b) { return b->tokens * token_bytes_of(b) <= STAGED; }
static int64_t span_of(const struct quant * q) { return q->elements == SUPERBLOCK ? SPAN : q->elements; }

/* Stages what rounding leaves of the spans with outliers of a tile: elements [k0, k1) of `rows` tokens, which are staged. */
static void stage_rests(const struct block * b, int64_t k0, int64_t k1, int64_t t0, int rows, const char * staged,
                        char * rests, uint8_t * apart) {
    static const float none[SPAN];
    const struct quant * q = b->q;
    const int64_t span = span_of(q), bytes = span / q->block * rows * STAGED_RECORD(q->block, q->form);
    float most[MOST_IN_TILE], scales[MOST_IN_TILE];
    for (int r = 0; r < rows; ++r) {
        most[r] = b->set->most_scale(b->x[t0 + r], b->k);
    }
    for (int64_t at = k0; at < k1; at += span, ++apart) {
        staged += bytes;
        memcpy(scales, staged - rows * 12, (size_t) rows * sizeof(float));
        *apart = 0;
        for (int r = 0; r < rows; ++r) {
            *apart |= scales[r] > most[r];
        }
        for (int r = 0; r < rows && *apart; ++r) {
            q->stage_rest(q->zero, scales[r] > most[r] ? b->x[t0 + r] + at : none, span, rows, r, rests);
        }
        rests += *apart ? bytes : 0;
    }
}

/* Tokens of a block: as many as can be staged whole, for then their sums are made in one go; fewer than LEAST would use too little of
 * what is unpacked for them. */
enum { LEAST = 32 };
static int64_t most_tokens(const struct block * b) {
    const int64_t whole = STAGED / token_bytes_of(b);
    return whole < LEAST ? MAX_TOKENS : min64(whole / b->set->in_tile * b->set->in_tile, MAX_TOKENS);
}

/* A gate and its product are made by turns, panel by panel, of tokens that are staged once. */
int hotshoe_quants_gates(int type, int64_t k, int outliers_apart) {
    const struct block b = {.set = best_set(), .q = quant_of(best_set(), type), .k = k, .apart = outliers_apart};
    return STAGED / token_bytes_of(&b) >= LEAST;
}

/* sums += a tile of `tokens` by what is unpacked of a panel, the spans with outliers twice. What `next` points to is asked for
 * meanwhile, `lines` for each record. */
static void multiply_tile(const struct block * b, int64_t tokens, const char * x, const char * w, int64_t spans,
                          const uint8_t * apart, const char ** rests, float * sums, const char ** next, int lines) {
    const struct quant * q = b->q;
    const int64_t in_span = span_of(q) / q->block; /* records */
    const int64_t x_bytes = in_span * tokens * STAGED_RECORD(q->block, q->form);
    const int64_t w_bytes = in_span * RECORD(q->block, q->form, q->mins);
    for (int64_t first = 0, stop; first < spans; first = stop) {
        stop = b->apart ? first + 1 : spans;
        while (stop < spans && !apart[stop - 1]) {
            ++stop;
        }
        const int64_t n = (stop - first) * in_span;
        q->tiles[tokens](x + first * x_bytes, w + first * w_bytes, n, sums, *next, lines);
        *next += n * lines * GROUP;
        if (b->apart && apart[stop - 1]) {
            q->tiles[tokens](*rests, w + (stop - 1) * w_bytes, in_span, sums, *next, 0);
            *rests += x_bytes;
        }
    }
}

/* are_staged: whether the tokens are, whole, from an earlier call. */
static void multiply(const struct block * b, struct staged * s, int are_staged) {
    _Alignas(64) char unpacked[UNPACKED];
    _Alignas(64) float sums[2][MAX_TOKENS * ROWS]; /* of the weight, and of the gate */

    const struct quant * q = b->q;
    const int64_t k = b->k, tokens = b->tokens, panel_bytes = ROWS * (k / q->elements) * q->bytes;
    const int direct = tokens <= b->set->direct && !b->apart;
    const int64_t most_in_tile = direct ? 1 : b->set->in_tile, tiles = (tokens + most_in_tile - 1) / most_in_tile;
    const int64_t token_record = STAGED_RECORD(q->block, q->form);
    /* Elements unpacked. */
    const int64_t most_at_once = UNPACKED / (SUPERBLOCK / q->block * RECORD(q->block, q->form, q->mins)) * SUPERBLOCK;
    /* Of a token, in bytes. */
    const int64_t superblock = SUPERBLOCK / q->block * token_record * (b->apart ? 2 : 1);
    const int64_t depth = is_whole(b) ? k : STAGED / (tokens * superblock) * SUPERBLOCK;
    const int64_t span = span_of(q);
    char * staged = s->tokens;
    const char * rests[MAX_TOKENS]; /* of each tile, the next */
    const int64_t at_once = tokens <= FEW ? FEW_AT_ONCE : most_at_once;
    /* Lines of what is unpacked next, asked for with each record of a tile: at least 1, and enough for all. */
    const int64_t record_lines = (ROWS * q->block * q->bytes / q->elements + GROUP - 1) / GROUP;
    const int lines = (int) ((record_lines + tiles - 1) / tiles);
    for (int64_t k0 = 0; k0 < k; k0 += depth) {
        const int64_t k1 = min64(k0 + depth, k), token_bytes = (k1 - k0) / q->block * token_record;
        const int64_t depth_spans = (k1 - k0) / span;
        for (int64_t i = 0; i < tiles && !are_staged; ++i) {
            const int64_t t0 = tokens * i / tiles;
            const int rows = (int) (tokens * (i + 1) / tiles - t0);
            for (int r = 0; r < rows; ++r) {
                q->stage(q->zero, b->x[t0 + r] + k0, k1 - k0, rows, r, staged + t0 * token_bytes);
            }
            if (b->apart) {
                stage_rests(b, k0, k1, t0, rows, staged + t0 * token_bytes, staged + (tokens + t0) * token_bytes,
                            s->apart + i * depth_spans);
            }
        }
        const int weights = b->gate ? 2 : 1;
        for (int64_t turn = b->first_panel * weights; turn < b->last_panel * weights; ++turn) {
            const int64_t panel = turn / weights, column = panel * ROWS;
            const int is_gate = b->gate && turn % 2 == 0; /* first */
            const int cols = (int) min64(ROWS, b->m - column);
            const char * w =
                (is_gate ? b->gate : b->packed) + panel * panel_bytes + ROWS * (k0 / q->elements) * q->bytes;
            for (int64_t at = k0, elements; at < k1; at += elements) {
                elements = min64(at_once, k1 - at);
                const int64_t bytes = ROWS * (elements / q->elements) * q->bytes;
                const int64_t spans = elements / span;
                const uint8_t * apart = s->apart + (at - k0) / span; /* of the first tile, if any are */
                const int end = at + elements == k1, finishing = end && k1 == k, out = end && !is_gate;
                /* What comes next, or later; after the end of this part of a panel comes that of the next panel. */
                const char * next = w + (bytes > AHEAD ? bytes : AHEAD);
                next += end ? panel_bytes - ROWS * ((k1 - k0) / q->elements) * q->bytes : 0;
                const char * const last = next + bytes;
                if (!direct) {
                    q->unpack(w, elements / q->elements, unpacked);
                }
                for (int64_t i = 0; i < tiles; ++i, apart += depth_spans) {
                    const int64_t t0 = tokens * i / tiles, rows = tokens * (i + 1) / tiles - t0;
                    const char * from = staged + t0 * token_bytes + (at - k0) / q->block * rows * token_record;
                    float * tile_sums = sums[is_gate] + t0 * ROWS;
                    for (int64_t t = t0; t < t0 + rows && at == k0; ++t) {
                        if (k0) { /* the sums so far */
                            memcpy(sums[0] + t * ROWS, b->y[t] + column, (size_t) cols * sizeof(float));
                        } else {
                            memset(sums[is_gate] + t * ROWS, 0, NUMBERS);
                        }
                    }
                    for (int64_t t = t0; t < t0 + rows && out; ++t) { /* it arrives while the tile is computed */
                        __builtin_prefetch(b->y[t] + column, 1);
                        if (finishing && b->residual[t]) {
                            __builtin_prefetch(b->residual[t] + column);
                        }
                    }
                    if (direct) {
                        q->multiply(w, elements / q->elements, from, tile_sums);
                    } else {
                        if (at == k0) {
                            rests[i] = staged + (tokens + t0) * token_bytes;
                        }
                        multiply_tile(b, rows, from, unpacked, spans, apart, &rests[i], tile_sums, &next,
                                      next < last ? lines : 0);
                    }
                    if (out && b->gate) {
                        b->set->gate(b->activation, sums[1] + t0 * ROWS, rows, tile_sums);
                    }
                    if (out) {
                        const int adding = finishing && b->residual[t0]; /* all tokens have one, or none */
                        b->set->finish(tile_sums, rows, cols, column, finishing && b->bias ? b->bias + column : 0,
                                       finishing && b->activation == HOTSHOE_LINEAR_GELU_ERF,
                                       adding ? b->residual + t0 : 0, b->y + t0);
                    }
                }
                w += bytes;
            }
        }
    }
}

static struct block block_of(const struct hotshoe_linear_params * p) {
    const struct quant_set * set = p->avx2_only ? &hotshoe_quants_avx2 : best_set();
    const struct block b = {
        .set = set,
        .q = quant_of(set, p->format),
        .packed = (const char *) p->packed,
        .k = p->k,
        .m = p->m,
        .last_panel = n_panels(p->m),
        .activation = p->activation,
        .apart = p->outliers_apart,
    };
    return b;
}

enum { LEAST_PANELS = 4, LEAST_OF_MANY = 16 }; /* of many tokens staging is to remain a small part */

void hotshoe_quants(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    struct staged staged;
    (void) ith;
    const struct hotshoe_linear_params * p = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor * x = dst->src[0];
    const float * residual = p->has_residual ? (const float *) dst->src[p->has_bias ? 2 : 1]->data : 0;
    struct block b = block_of(p);
    b.gate = (const char *) p->gate;
    b.bias = p->has_bias ? (const float *) dst->src[1]->data : 0;
    /* Blocks of tokens of nearly one size, as their tiles are; each with all panels. */
    const int64_t n = x->ne[1], panels = n_panels(p->m), parts = token_parts(n, panels, nth, 1.5, 4.0);
    const int64_t most = min64(most_tokens(&b), (n + parts - 1) / parts), blocks = n ? (n + most - 1) / most : 0;
    const int64_t least = most > FEW ? LEAST_OF_MANY : LEAST_PANELS;
    int64_t block = -1, from, to;
    int32_t * position = position_in(dst);
    while (take_units(position, blocks * panels, least, nth, &from, &to)) {
        for (; from < to; from += b.last_panel - b.first_panel) {
            const int same = block == from / panels;
            block = from / panels;
            const int64_t t0 = n * block / blocks, t1 = n * (block + 1) / blocks;
            for (int64_t t = t0; t < t1 && !same; ++t) {
                b.x[t - t0] = (const float *) ((const char *) x->data + t * (int64_t) x->nb[1]);
                b.y[t - t0] = (float *) dst->data + t * p->m;
                b.residual[t - t0] = residual ? residual + t * p->m : 0;
            }
            b.tokens = t1 - t0;
            b.first_panel = from % panels;
            b.last_panel = min64(b.first_panel + to - from, panels);
            multiply(&b, &staged, same && is_whole(&b));
        }
    }
    leave(position, nth);
}

/* The first place from i on, of n, where expert e is named; n if there is none. */
__attribute__((target("avx2"))) static int64_t next_of(const int32_t * chosen, int64_t i, int64_t n, int32_t e) {
    for (; i + 8 <= n; i += 8) {
        const __m256i equal =
            _mm256_cmpeq_epi32(_mm256_loadu_si256((const __m256i *) (chosen + i)), _mm256_set1_epi32(e));
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

/* How often expert e is named. */
static int64_t times_named(const int32_t * chosen, int64_t n, int32_t e) {
    int64_t times = 0;
    for (int64_t i = next_of(chosen, 0, n, e); i < n; i = next_of(chosen, i + 1, n, e)) {
        ++times;
    }
    return times;
}

/* Threads take panels, expert by expert, and of each block by block; each looks for itself where an expert is named. */
void hotshoe_quants_experts(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    struct staged staged;
    (void) ith;
    const struct hotshoe_linear_params * p = (const struct hotshoe_linear_params *) userdata;
    const struct ggml_tensor *x = dst->src[0], *experts = dst->src[1];
    const int32_t * chosen = (const int32_t *) experts->data;
    const int64_t used = experts->ne[0], n = used * experts->ne[1];
    const size_t weight_bytes = hotshoe_quants_size(p->format, p->k, p->m);
    struct block b = block_of(p);
    const int64_t panels = n_panels(p->m), most = most_tokens(&b);
    int64_t total = 0;
    for (int32_t e = 0; e < p->n_experts; ++e) {
        total += (times_named(chosen, n, e) + most - 1) / most * panels;
    }
    int32_t e = -1; /* the expert of the panels from `begin` to `end`: */
    int64_t rows = 0, blocks = 0, begin = 0, end = 0, staged_block = -1, from, to;
    int32_t * position = position_in(dst);
    const int64_t least = n * panels > total * FEW ? LEAST_OF_MANY : LEAST_PANELS;
    while (take_units(position, total, least, nth, &from, &to)) {
        for (; from < to; from += b.last_panel - b.first_panel) {
            while (from >= end) {
                rows = times_named(chosen, n, ++e);
                blocks = (rows + most - 1) / most;
                begin = end;
                end += blocks * panels;
                staged_block = -1;
            }
            const int64_t block = (from - begin) / panels, t0 = rows * block / blocks, t1 = rows * (block + 1) / blocks;
            const int same = block == staged_block;
            int64_t t = 0;
            for (int64_t i = next_of(chosen, 0, n, e); t < t1 && !same; ++t, i = next_of(chosen, i + 1, n, e)) {
                if (t >= t0) {
                    const int64_t row = i / used, which = x->ne[1] == 1 ? 0 : i % used;
                    b.x[t - t0] = (const float *) ((const char *) x->data + row * (int64_t) x->nb[2] +
                                                   which * (int64_t) x->nb[1]);
                    b.y[t - t0] = (float *) dst->data + i * p->m;
                }
            }
            staged_block = block;
            b.tokens = t1 - t0;
            b.packed = (const char *) p->packed + e * weight_bytes;
            b.gate = p->gate ? (const char *) p->gate + e * weight_bytes : 0;
            b.first_panel = (from - begin) % panels;
            b.last_panel = min64(b.first_panel + to - from, panels);
            multiply(&b, &staged, same && is_whole(&b));
        }
    }
    leave(position, nth);
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

int hotshoe_quants_gates(int type, int64_t k, int outliers_apart) {
    (void) outliers_apart;
    return hotshoe_quants_has(type, k);
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
