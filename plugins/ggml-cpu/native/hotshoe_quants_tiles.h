/* Rounds activations to 8 bits, multiplies tiles of them by the records of hotshoe_quants_unpack.h, and defines the set
 * of one instruction set, which the including file names.
 *
 * The tokens of a tile are stored next to each other, record by record: [elements / 4][tokens][4 codes]; then for each
 * token the scale, the number at which its sums of products start, and scale * sum of codes, 4 bytes each. In a tile
 * for signed weights of 16 bits a quad of codes is [2][tokens][2]: elements 0 and 2, then 1 and 3. A scale serves a
 * span of one record or more. */
#include <math.h>

#include "finish_row.h"
#include "hotshoe_quants_unpack.h"

/* --- activations ----------------------------------------------------------------------------------- */

/* 16 numbers times `scale`, rounded to 8 bits. */
INLINE __m128i rounded(__m256 a, __m256 b, float scale) {
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256i both =
        _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(a, factor)), _mm256_cvtps_epi32(_mm256_mul_ps(b, factor)));
    const __m256i ordered = _mm256_permute4x64_epi64(both, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
}

/* The largest magnitude of n numbers, a multiple of 16. */
INLINE float largest_of(const float * x, int n) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i largest[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    UNROLL_FOR(int j = 0; j < n / 8; ++j) { /* as integers, NaN > infinity > all numbers */
        const __m256i v = _mm256_castps_si256(_mm256_loadu_ps(x + 8 * j));
        largest[j % 2] = _mm256_max_epi32(largest[j % 2], _mm256_and_si256(v, magnitude));
    }
    largest[0] = _mm256_max_epi32(largest[0], largest[1]);
    __m128i top = _mm_max_epi32(_mm256_castsi256_si128(largest[0]), _mm256_extracti128_si256(largest[0], 1));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0x4e));
    top = _mm_max_epi32(top, _mm_shuffle_epi32(top, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(top));
}

/* Rounds n numbers, a multiple of `scale_span`, and stores them as token number `token` of `tokens`. zero: the weights'
 * code for 0. */
INLINE void stage(int record_elements, int scale_span, int form, int zero, const float * x, int64_t n, int tokens,
                  int token, char * out) {
    const int record = tokens * STAGED_RECORD(record_elements, form), width = form == FORM_S16 ? 8 : 4;
    float scale = 0, inverse = 0;
    out += token * 4;
    for (int64_t i = 0; i < n; i += record_elements, x += record_elements, out += record) {
        if (i % scale_span == 0) {
            const float largest = largest_of(x, scale_span);
            scale = largest * (1.0f / 127);
            inverse = largest > 1e-36f ? 127 / largest : 0; /* finite; smaller numbers count as 0 */
        }
        __m128i codes[2], pairs = _mm_setzero_si128();
        UNROLL_FOR(int j = 0; j < record_elements / 16; ++j) {
            codes[j] = rounded(_mm256_loadu_ps(x + 16 * j), _mm256_loadu_ps(x + 16 * j + 8), inverse);
            pairs = _mm_add_epi16(pairs, _mm_maddubs_epi16(_mm_set1_epi8(1), codes[j]));
        }
        UNROLL_FOR(int j = 0; j < record_elements / 16; ++j) {
            const int wide = form == FORM_S16;
            const __m128i even = _mm_srai_epi16(_mm_slli_epi16(codes[j], 8), 8), odd = _mm_srai_epi16(codes[j], 8);
            int32_t quads[4], odd_quads[4]; /* one quad in each number */
            _mm_storeu_si128((__m128i *) quads, wide ? even : codes[j]);
            _mm_storeu_si128((__m128i *) odd_quads, odd);
            UNROLL_FOR(int q = 0; q < 4; ++q) {
                char * codes_out = out + (4 * j + q) * tokens * width;
                memcpy(codes_out, &quads[q], 4);
                if (wide) {
                    memcpy(codes_out + tokens * 4, &odd_quads[q], 4);
                }
            }
        }
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0x4e));
        /* The sum of elements 0 and 1 of each quad, and that of 2 and 3. */
        pairs = _mm_add_epi16(pairs, _mm_shuffle_epi32(pairs, 0xb1));
        const int32_t both = _mm_cvtsi128_si32(pairs), all = (int16_t) both + (both >> 16);
        const int32_t in_pairs = _mm_cvtsi128_si32(_mm_mullo_epi16(pairs, _mm_set1_epi16((short) -zero)));
        const int32_t start = form == FORM_DOT ? -zero * all : in_pairs;
        const float sum = scale * (float) all;
        char * numbers = out + record_elements / 4 * tokens * width;
        memcpy(numbers, &scale, 4);
        memcpy(numbers + tokens * 4, &start, 4);
        memcpy(numbers + tokens * 8, &sum, 4);
    }
}

/* Stages the rounding errors of one span. */
INLINE void stage_correction(int record_elements, int scale_span, int form, int zero, const float * x, int tokens,
                             int token, char * out) {
    float errors[SCALE_SPAN];
    const float largest = largest_of(x, scale_span), inverse = largest > 1e-36f ? 127 / largest : 0;
    const __m256 scale = _mm256_set1_ps(largest * (1.0f / 127));
    UNROLL_FOR(int i = 0; i < scale_span; i += 16) {
        const __m128i codes = rounded(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i + 8), inverse);
        const __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
        const __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(codes, codes)));
        _mm256_storeu_ps(errors + i, _mm256_fnmadd_ps(first, scale, _mm256_loadu_ps(x + i)));
        _mm256_storeu_ps(errors + i + 8, _mm256_fnmadd_ps(second, scale, _mm256_loadu_ps(x + i + 8)));
    }
    stage(record_elements, scale_span, form, zero, errors, scale_span, tokens, token, out);
}

ISA static float max_scale(const float * x, int64_t k) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t i = 0; i < k; i += 32) { /* the same order for each instruction set */
        UNROLL_FOR(int j = 0; j < 4; ++j) {
            const __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            sums[j] = _mm256_fmadd_ps(v, v, sums[j]);
        }
    }
    float eight[8], sum = 0;
    _mm256_storeu_ps(eight, _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    for (int j = 0; j < 8; ++j) {
        sum += eight[j];
    }
    return 10.0f / 127 * sqrtf(sum / (float) k);
}

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
                _mm_prefetch(next, PREFETCH_INTO);
            }
            UNROLL_FOR(int step = 0; step < steps; ++step) {
                const char * codes = wide ? w + step / 2 * 2 * QUAD + step % 2 * 32 : w + step * QUAD;
                ints rows[PANEL_VECTORS];
                UNROLL_FOR(int v = 0; v < PANEL_VECTORS; ++v) {
                    rows[v] = load_words(codes + v * (wide ? 64 : 32));
                }
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
    stage, stage##_correction, tiles, unpack_##type, {multiply_##type, multiply_##type##_every_line}
static const struct quant quants[] = {
    /* type; elements, bytes and fields of a ggml block; elements, form, mins and zero of a record */
    {GGML_TYPE_Q4_0,    32,  18, {{1, 2}, {4, 4}},   32, FORM_OF_6, 0,   8, CALLS(stage_32,  tiles_32,        q4_0)},
    {GGML_TYPE_Q4_1,    32,  20, {{2, 2}, {4, 4}},   32, FORM_OF_6, 1,   8, CALLS(stage_32,  tiles_32_mins,   q4_1)},
    {GGML_TYPE_Q5_0,    32,  22, {{1, 2}, {5, 4}},   32, FORM_OF_6, 0,  16, CALLS(stage_32,  tiles_32,        q5_0)},
    {GGML_TYPE_Q5_1,    32,  24, {{2, 2}, {5, 4}},   32, FORM_OF_6, 1,  16, CALLS(stage_32,  tiles_32_mins,   q5_1)},
    {GGML_TYPE_Q8_0,    32,  34, {{1, 2}, {8, 4}},   32, FORM_OF_8, 0, 128, CALLS(stage_8,   tiles_8,         q8_0)},
    {GGML_TYPE_IQ4_NL,  32,  18, {{1, 2}, {4, 4}},   32, FORM_OF_8, 0, 128, CALLS(stage_8,   tiles_8,         iq4_nl)},
    {GGML_TYPE_MXFP4,   32,  17, {{1, 1}, {4, 4}},   32, FORM_OF_6, 0,  12, CALLS(stage_32,  tiles_32,        mxfp4)},
    {GGML_TYPE_Q2_K,   256,  84, {{20, 4}, {2, 2}},  16, FORM_OF_6, 1,   0, CALLS(stage_k_16,tiles_k_16_mins, q2_k)},
    {GGML_TYPE_Q3_K,   256, 110, {{27, 4}, {1, 2}},  16, FORM_OF_6, 0,   4, CALLS(stage_k_16,tiles_k_16,      q3_k)},
    {GGML_TYPE_Q4_K,   256, 144, {{2, 2}, {35, 4}},  32, FORM_OF_6, 1,   8, CALLS(stage_k_32,tiles_k_32_mins, q4_k)},
    {GGML_TYPE_Q5_K,   256, 176, {{2, 2}, {43, 4}},  32, FORM_OF_6, 1,  16, CALLS(stage_k_32,tiles_k_32_mins, q5_k)},
    {GGML_TYPE_Q6_K,   256, 210, {{52, 4}, {1, 2}},  16, FORM_OF_6, 0,  32, CALLS(stage_k_16,tiles_k_16,      q6_k)},
    {GGML_TYPE_IQ4_XS, 256, 136, {{2, 2}, {33, 4}},  32, FORM_OF_8, 0, 128, CALLS(stage_k_8, tiles_k_8,       iq4_xs)},
};
/* clang-format on */

const struct quant_set SET = {
    .quants = quants,
    .n_quants = sizeof quants / sizeof quants[0],
    .in_tile = LANES == 16 ? 8 : 4,
    .max_tokens_without_unpacking = 2,
    .max_scale = max_scale,
    .finish = finish,
    .gate = gate,
};
