/* Rounds activations to 8 bits, multiplies tiles of them by the records of hotshoe_quants_unpack.h, and defines the set
 * of one instruction set, which the including file names.
 *
 * The tokens of a tile are stored next to each other, record by record: [elements / 4][tokens][4 codes]; then for each
 * token the scale, the number at which its sums of products start, and scale * sum of codes, 4 bytes each. In a tile
 * for signed weights of 16 bits a quad of codes is [2][tokens][2]: elements 0 and 2, then 1 and 3. A scale serves a
 * span of one record or more. */
#include "finish_row.h"
#if defined(QUANTS_DOTPROD)
#include "hotshoe_quants_stage_neon.h"
#else
#include "hotshoe_quants_stage.h"
#endif
#include "hotshoe_quants_unpack.h"

/* --- activations ----------------------------------------------------------------------------------- */

#define STAGE_ARGS int zero, const float *x, int64_t n, int tokens, int token, char *out
#define STAGE(name, record_elements, scale_span, form)                                                             \
    ISA static void name(STAGE_ARGS) { stage(record_elements, scale_span, form, zero, x, n, tokens, token, out); } \
    ISA static void name##_correction(STAGE_ARGS) {                                                                \
        (void) n, stage_correction(record_elements, scale_span, form, zero, x, tokens, token, out);                \
    }
STAGE(stage_32, 32, 32, FORM_OF_6)
STAGE(stage_k_32, 32, SCALE_SPAN, FORM_OF_6)
STAGE(stage_k_16, 16, SCALE_SPAN, FORM_OF_6)
STAGE(stage_8, 32, 32, FORM_OF_8)
STAGE(stage_k_8, 32, SCALE_SPAN, FORM_OF_8)

/* --- tiles ---------------------------------------------------------------------------------------- */

INLINE void tile(int tokens, int record_elements, int scale_span, int form, int mins, const char * x, const char * w,
                 int64_t n, float * sums, const char * next, int lines) {
    const int staged = tokens * STAGED_RECORD(record_elements, form), wide = form == FORM_S16;
    /* vpmaddwd takes pairs: elements 0 and 2 of a quad, then 1 and 3. */
    const int steps = wide ? record_elements / 2 : record_elements / 4;
    floats total[MAX_IN_TILE][PANEL_VECTORS], span_sum[MAX_IN_TILE][PANEL_VECTORS];
    UNROLL_FOR(int t = 0; t < tokens; ++t) {
        UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
            total[t][v] = V(loadu_ps)(sums + t * ROWS + v * LANES);
        }
    }
    for (const char * end = w + n * RECORD(record_elements, form, mins); w < end;) {
        UNROLL_FOR(int t = 0; t < tokens; ++t) {
            UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                span_sum[t][v] = V(setzero_ps)();
            }
        }
        for (int r = 0; r < scale_span / record_elements; ++r, x += staged, w += RECORD(record_elements, form, mins)) {
            const char * numbers = x + staged - tokens * 12;
            ints sum[MAX_IN_TILE][PANEL_VECTORS];
            UNROLL_FOR(int t = 0; t < tokens; ++t) {
                UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                    sum[t][v] = wide ? zeros() : four_bytes(numbers + (tokens + t) * 4);
                }
            }
            for (int line = 0; line < lines; ++line, next += CACHE_LINE) {
                PREFETCH_RECORDS(next);
            }
            UNROLL_FOR(int step = 0; step < steps; ++step) {
                const char * codes = wide ? w + step / 2 * 2 * QUAD + step % 2 * 32 : w + step * QUAD;
                ints rows[PANEL_VECTORS];
                UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                    rows[v] = load_words(codes + v * (wide ? 64 : 4 * LANES));
                }
#if defined(QUANTS_DOTPROD)
                __asm__ volatile("" ::: "memory"); /* GCC would load the operands of all steps first, and spill them */
                if (tokens == 4) {
                    const ints a = load_words(x + step * 16);
                    UNROLL_FOR(int i = 0; i < 4 * PANEL_VECTORS; ++i) {
                        const int t = i / PANEL_VECTORS, v = i % PANEL_VECTORS;
                        sum[t][v] = dot_products_by(sum[t][v], rows[v], a, t);
                    }
                    continue;
                }
#endif
                UNROLL_FOR(int t = 0; t < tokens; ++t) {
                    const ints a = four_bytes(x + (step * tokens + t) * 4);
                    UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                        sum[t][v] = add_products(form, sum[t][v], rows[v], a);
                    }
                }
            }
            const float * scales = (const float *) (w + CODE_BYTES(record_elements, form));
            UNROLL_FOR(int t = 0; t < tokens; ++t) {
                const floats sum_of_codes =
                    mins ? as_floats(four_bytes(numbers + (2 * tokens + t) * 4)) : V(setzero_ps)();
                UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                    span_sum[t][v] =
                        V(fmadd_ps)(in_floats(form, sum[t][v]), V(load_ps)(scales + v * LANES), span_sum[t][v]);
                    if (mins) {
                        total[t][v] = V(fmadd_ps)(V(load_ps)(scales + ROWS + v * LANES), sum_of_codes, total[t][v]);
                    }
                }
            }
        }
        UNROLL_FOR(int t = 0; t < tokens; ++t) {
            const floats token = as_floats(four_bytes(x - (3 * tokens - t) * 4));
            UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                total[t][v] = V(fmadd_ps)(span_sum[t][v], token, total[t][v]);
            }
        }
    }
    UNROLL_FOR(int t = 0; t < tokens; ++t) {
        UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
            V(storeu_ps)(sums + t * ROWS + v * LANES, total[t][v]);
        }
    }
}

#define TILE_ARGS const char *x, const char *w, int64_t n, float *sums, const char *next, int lines
#define TILE(tokens, name, ...) \
    ISA static void name##_##tokens(TILE_ARGS) { tile(tokens, __VA_ARGS__, x, w, n, sums, next, lines); }
#define FOUR_TILES(name, ...) \
    TILE(1, name, __VA_ARGS__) TILE(2, name, __VA_ARGS__) TILE(3, name, __VA_ARGS__) TILE(4, name, __VA_ARGS__)
/* clang-format off */
#if LANES == 16
#define TILES(name, ...)                                                                                        \
    FOUR_TILES(name, __VA_ARGS__)                                                                               \
    TILE(5, name, __VA_ARGS__) TILE(6, name, __VA_ARGS__) TILE(7, name, __VA_ARGS__) TILE(8, name, __VA_ARGS__) \
    static const tile_fn name[] = {0, name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8};
#else
#define TILES(name, ...)          \
    FOUR_TILES(name, __VA_ARGS__) \
    static const tile_fn name[] = {0, name##_1, name##_2, name##_3, name##_4};
#endif
/* clang-format on */
/* record_elements, scale_span, form, whether there are minimums */
TILES(tiles_32, 32, 32, FORM_OF_6, 0)
TILES(tiles_32_mins, 32, 32, FORM_OF_6, 1)
TILES(tiles_k_32_mins, 32, SCALE_SPAN, FORM_OF_6, 1)
TILES(tiles_k_16, 16, SCALE_SPAN, FORM_OF_6, 0)
TILES(tiles_k_16_mins, 16, SCALE_SPAN, FORM_OF_6, 1)
#if defined(QUANTS_AVX2)
TILES(tiles_8, 32, 32, FORM_OF_8, 0)
#else
#define tiles_8 tiles_32
#endif
TILES(tiles_k_8, 32, SCALE_SPAN, FORM_OF_8, 0)

/* --- finishing  ------------------------------------------------------------------------------------ */

ISA static void finish(const float * sums, int64_t n, int n_columns, int64_t column, const float * bias, int gelu,
                       const float * const * residual, float * const * dst) {
    float padded_bias[ROWS] = {0};
    if (bias) {
        memcpy(padded_bias, bias, (size_t) n_columns * sizeof(float));
    }
    if (!gelu && !residual && n_columns == ROWS) {
        for (int64_t t = 0; t < n; ++t) {
            UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                const floats sum = V(loadu_ps)(sums + t * ROWS + v * LANES);
                V(storeu_ps)(dst[t] + column + v * LANES, V(add_ps)(sum, V(loadu_ps)(padded_bias + v * LANES)));
            }
        }
        return;
    }
    for (int64_t t = 0; t < n; ++t) {
        finish_row(ROWS, sums + t * ROWS, n_columns, padded_bias, gelu, residual ? residual[t] + column : 0,
                   dst[t] + column);
    }
}

ISA static void gate(int activation, const float * gates, int64_t n, float * sums) {
    if (activation == HOTSHOE_LINEAR_SILU) {
        for (int64_t i = 0; i < n * ROWS; ++i) {
            sums[i] *= times_sigmoid(gates[i], gates[i]);
        }
    } else {
        for (int64_t i = 0; i < n * ROWS; ++i) {
            sums[i] *= gelu_tanh(gates[i]);
        }
    }
}

/* --- the set ---------------------------------------------------------------------------------------- */

/* clang-format off */
#define CALLS(stage, tiles, type) \
    stage, stage##_correction, tiles, unpack_##type, multiply_##type
static const struct quant quants[] = {
    /* type; elements and bytes of a ggml block; elements, form, mins and zero of a record */
    {GGML_TYPE_Q4_0,    32,  18, 32, FORM_OF_6, 0,   8, CALLS(stage_32,  tiles_32,        q4_0)},
    {GGML_TYPE_Q4_1,    32,  20, 32, FORM_OF_6, 1,   8, CALLS(stage_32,  tiles_32_mins,   q4_1)},
    {GGML_TYPE_Q5_0,    32,  22, 32, FORM_OF_6, 0,  16, CALLS(stage_32,  tiles_32,        q5_0)},
    {GGML_TYPE_Q5_1,    32,  24, 32, FORM_OF_6, 1,  16, CALLS(stage_32,  tiles_32_mins,   q5_1)},
    {GGML_TYPE_Q8_0,    32,  34, 32, FORM_OF_8, 0, ZERO8, CALLS(stage_8, tiles_8,         q8_0)},
    {GGML_TYPE_IQ4_NL,  32,  18, 32, FORM_OF_8, 0, ZERO8, CALLS(stage_8, tiles_8,         iq4_nl)},
    {GGML_TYPE_MXFP4,   32,  17, 32, FORM_OF_6, 0,  12, CALLS(stage_32,  tiles_32,        mxfp4)},
    {GGML_TYPE_Q2_K,   256,  84, 16, FORM_OF_6, 1,   0, CALLS(stage_k_16,tiles_k_16_mins, q2_k)},
    {GGML_TYPE_Q3_K,   256, 110, 16, FORM_OF_6, 0,   4, CALLS(stage_k_16,tiles_k_16,      q3_k)},
    {GGML_TYPE_Q4_K,   256, 144, 32, FORM_OF_6, 1,   8, CALLS(stage_k_32,tiles_k_32_mins, q4_k)},
    {GGML_TYPE_Q5_K,   256, 176, 32, FORM_OF_6, 1,  16, CALLS(stage_k_32,tiles_k_32_mins, q5_k)},
    {GGML_TYPE_Q6_K,   256, 210, 16, FORM_OF_6, 0,  32, CALLS(stage_k_16,tiles_k_16,      q6_k)},
    {GGML_TYPE_IQ4_XS, 256, 136, 32, FORM_OF_8, 0, ZERO8, CALLS(stage_k_8, tiles_k_8,     iq4_xs)},
};
/* clang-format on */

const struct quant_set SET = {
    .quants = quants,
    .n_quants = sizeof quants / sizeof quants[0],
    .in_tile = LANES == 16 ? 8 : 4,
    .at_once = MAX_AT_ONCE,
    .max_scale = max_scale,
    .finish = finish,
    .gate = gate,
};
