/* What a product with F32, F16 or BF16 weights does around its tiles: stages tokens, brings a piece of a weight into
 * the form that tiles read, packs panels, and finishes tiles. Only hotshoe_linear.c includes this. */
#ifndef HOTSHOE_LINEAR_PIECES_H
#define HOTSHOE_LINEAR_PIECES_H

#include "finish_row.h"
#include "hotshoe_linear_tiles.h"
#include "tensor_rows.h"

/* --- staging: n features of some tokens, STRIDE bytes from each other -------------------------------- */

static void stage_f32(const char * x, int64_t row_stride, int64_t n_tokens, int64_t n, char * staged) {
    for (int64_t r = 0; r < n_tokens; ++r) {
        memcpy(staged + r * STRIDE, x + r * row_stride, (size_t) n * sizeof(float));
    }
}

AVX512_BF16 static void stage_bf16(const char * x, int64_t row_stride, int64_t n_tokens, int64_t n, char * staged) {
    for (int64_t r = 0; r < n_tokens; ++r) {
        const float * in = (const float *) (x + r * row_stride);
        char * out = staged + r * STRIDE;
        for (int64_t i = 0; i < n; i += 16) { /* an odd last number is paired with 0 */
            const __mmask16 mask = (__mmask16) (n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
            const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, in + i));
            _mm256_storeu_si256((__m256i *) (out + 2 * i), (__m256i) half);
        }
    }
}

/* --- a piece of a weight as F32, or as pairs of BF16, k-major, which several tiles read ---------------- */

/* Panels of F16 to F32, once for all tiles: 108 GFLOP/s a core instead of 102. */
AVX512 static void widen_512(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 16) {
        _mm512_store_ps(out + i, _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (w + 2 * i))));
    }
}
AVX2 static void widen_256(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 8) {
        _mm256_store_ps(out + i, _mm256_cvtph_ps(_mm_load_si128((const __m128i *) (w + 2 * i))));
    }
}

/* Panels of pairs of BF16 to F32, feature by feature. */
AVX2 static void widen_pairs(const char * w, int64_t steps, float * out) {
    for (int64_t i = 0; i < steps * PANEL; i += 2 * PANEL) {
        UNROLL_FOR(int v = 0; v < PANEL; v += 8) {
            const __m256i pairs = _mm256_load_si256((const __m256i *) (w + 2 * i + 4 * v));
            _mm256_store_ps(out + i + v, first_of_pairs_256(pairs));
            _mm256_store_ps(out + i + PANEL + v, second_of_pairs_256(pairs));
        }
    }
}

/* How rows of a weight become steps of a panel. Each step is an F32 number, or a pair of BF16 numbers, which moves as 4
 * bytes do. The first three are those of enum hotshoe_linear_format. */
enum { F32_AS_F32, F16_AS_F32, BF16_AS_F32, F16_AS_PAIRS, F32_AS_PAIRS, UNCHANGED = F32_AS_F32 };

/* Bytes of a step in a row. */
ALWAYS_INLINE int step_size(int form) {
    return form == F32_AS_PAIRS ? 8 : form == F32_AS_F32 || form == F16_AS_PAIRS ? 4 : 2;
}

/* Numbers rounded to BF16, each in the low half of 4 bytes. NaN stays NaN. */
AVX2 ALWAYS_INLINE __m256i round_to_bf16(__m256 numbers) {
    const __m256i bits = _mm256_castps_si256(numbers), high = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(numbers, numbers, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(64)), is_nan);
}

/* 8 numbers of a format. */
AVX2 ALWAYS_INLINE __m256 load_numbers(int format, const char * numbers) {
    if (format == HOTSHOE_LINEAR_F32) {
        return _mm256_loadu_ps((const float *) numbers);
    }
    const __m128i half = _mm_loadu_si128((const __m128i *) numbers);
    return format == HOTSHOE_LINEAR_F16 ? _mm256_cvtph_ps(half)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* 8 steps of a row. */
AVX2 ALWAYS_INLINE __m256 load_steps(int form, const char * row) {
    if (form != F32_AS_PAIRS && form != F16_AS_PAIRS) {
        return load_numbers(form, row);
    }
    const int format = form == F32_AS_PAIRS ? HOTSHOE_LINEAR_F32 : HOTSHOE_LINEAR_F16;
    const __m256i first = round_to_bf16(load_numbers(format, row));
    const __m256i second = round_to_bf16(load_numbers(format, row + step_size(form) * 4));
    return _mm256_castsi256_ps(_mm256_permute4x64_epi64(_mm256_packus_epi32(first, second), 0xd8));
}

/* v[r]: 8 steps of row r. Afterwards v[i] has step i of all 8 rows. */
AVX2 ALWAYS_INLINE void transpose_8(__m256 * v) {
    __m256 a[8], b[8];
    UNROLL_FOR(int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL_FOR(int i = 0; i < 8; i += 4) {
        b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    UNROLL_FOR(int i = 0; i < 4; ++i) {
        v[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
    }
}

/* Transposes the first `steps` steps of `width` rows of a weight as stored: out[steps][width]. Only n of the rows
 * exist; the other columns repeat the last row, and nothing reads them. It takes some features of all rows, then the
 * next features, and prefetches the lines that it will write, each as a whole. */
AVX2 ALWAYS_INLINE void transpose_rows(int form, const char * w, int64_t row_stride, int n, int width, int64_t steps,
                                       float * out) {
    enum { AT_ONCE = 32 };
    const int size = step_size(form);
    const char * row[PANEL];
    for (int r = 0; r < width; ++r) {
        row[r] = w + (r < n ? r : n - 1) * row_stride;
    }
    int64_t i = 0;
    for (; i + 8 <= steps; i += AT_ONCE) {
        const int64_t stop = min64(i + AT_ONCE, steps & ~(int64_t) 7);
        for (int64_t later = stop * width; later < min64(stop + AT_ONCE, steps) * width; later += 16) {
            __builtin_prefetch(out + later, 1);
        }
        for (int first = 0; first < width; first += 8) {
            for (int64_t j = i; j < stop; j += 8) {
                __m256 v[8];
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    v[r] = load_steps(form, row[first + r] + j * size);
                }
                transpose_8(v);
                UNROLL_FOR(int s = 0; s < 8; ++s) {
                    _mm256_store_ps(out + (j + s) * width + first, v[s]);
                }
            }
        }
    }
    for (i = steps & ~(int64_t) 7; i < steps; ++i) {
        for (int r = 0; r < width; ++r) {
            char last[64] = {0};
            memcpy(last, row[r] + i * size, (size_t) size);
            out[i * width + r] = _mm256_cvtss_f32(load_steps(form, last));
        }
    }
}
#define TRANSPOSE_ARGS const char *w, int64_t row_stride, int n, int width, int64_t steps, float *out
#define DEFINE_TRANSPOSE(form) \
    AVX2 static void transpose_##form(TRANSPOSE_ARGS) { transpose_rows(form, w, row_stride, n, width, steps, out); }
DEFINE_TRANSPOSE(F32_AS_F32)
DEFINE_TRANSPOSE(F16_AS_F32)
DEFINE_TRANSPOSE(BF16_AS_F32)
/* By way of a buffer: the CPU's instruction rounds 16 numbers at once, AVX2 needs ten times as many. */
AVX512_BF16 static void transpose_F16_AS_PAIRS(TRANSPOSE_ARGS) {
    enum { AT_ONCE = 32, ROW = 4 * AT_ONCE };
    char pairs[PANEL * ROW];
    for (int64_t i = 0; i < steps; i += AT_ONCE) {
        const int64_t n_steps = min64(AT_ONCE, steps - i);
        for (int r = 0; r < n; ++r) {
            const char * row = w + r * row_stride + 4 * i;
            for (int64_t j = 0; j < n_steps; j += 8) {
                const __mmask16 mask = (__mmask16) (n_steps - j >= 8 ? 0xffff : (1 << 2 * (n_steps - j)) - 1);
                const __m512 numbers = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + 4 * j));
                _mm256_storeu_si256((__m256i *) (pairs + r * ROW + 4 * j), (__m256i) _mm512_cvtneps_pbh(numbers));
            }
        }
        transpose_rows(UNCHANGED, pairs, ROW, n, width, n_steps, out + i * width);
    }
}
static void (*const transpose[])(TRANSPOSE_ARGS) = {transpose_F32_AS_F32, transpose_F16_AS_F32, transpose_BF16_AS_F32,
                                                    transpose_F16_AS_PAIRS};

/* --- packing: n rows of a weight as one panel, k-major ------------------------------------------------- */

/* Words 0, 2, 4, ... of pairs, then words 1, 3, 5, .... */
AVX2 ALWAYS_INLINE __m256i separate_words(__m256i pairs) {
    const __m256i order = _mm256_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0, 15, 14, 11, 10, 7, 6, 3,
                                          2, 13, 12, 9, 8, 5, 4, 1, 0);
    return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(pairs, order), 0xd8);
}

/* A number in another format: the first bytes of the result. from: its format; what changes is rounded to BF16. */
AVX2 ALWAYS_INLINE uint32_t converted(int format, int from, const char * number) {
    char bytes[32] = {0};
    memcpy(bytes, number, from == HOTSHOE_LINEAR_F32 ? 4 : 2);
    uint32_t same;
    memcpy(&same, bytes, sizeof same);
    return format == from ? same : (uint32_t) _mm256_cvtsi256_si32(round_to_bf16(load_numbers(from, bytes)));
}

/* from: the format of the rows; another one than `format` is rounded to BF16. 16-bit numbers move as pairs; only F16 is
 * separated again. */
AVX2 ALWAYS_INLINE void pack_rows(int format, int from, int64_t k, int n, const char * rows, char * panel) {
    const int form = format == from ? UNCHANGED : from == HOTSHOE_LINEAR_F32 ? F32_AS_PAIRS : F16_AS_PAIRS;
    const int size = format == HOTSHOE_LINEAR_F32 ? 4 : 2, numbers_in_step = 4 / size, bytes_in_step = step_size(form);
    const int64_t row_size = k * bytes_in_step / numbers_in_step;
    const int64_t n_steps = n == PANEL ? k / numbers_in_step & ~(int64_t) 7 : 0;
    for (int64_t i = 0; i < n_steps; i += 8) {
        UNROLL_FOR(int first = 0; first < PANEL; first += 8) {
            __m256 v[8];
            UNROLL_FOR(int r = 0; r < 8; ++r) {
                v[r] = load_steps(form, rows + (first + r) * row_size + i * bytes_in_step);
            }
            transpose_8(v);
            UNROLL_FOR(int s = 0; s < 8; ++s) {
                if (format != HOTSHOE_LINEAR_F16) {
                    _mm256_store_ps((float *) panel + (i + s) * PANEL + first, v[s]);
                    continue;
                }
                const __m256i words = separate_words(_mm256_castps_si256(v[s]));
                __m128i * out = (__m128i *) (panel + 2 * (2 * (i + s) * PANEL + first));
                _mm_store_si128(out, _mm256_castsi256_si128(words));
                _mm_store_si128(out + PANEL / 8, _mm256_extracti128_si256(words, 1));
            }
        }
    }
    for (int r = 0; r < n; ++r) {
        for (int64_t i = n_steps * numbers_in_step; i < k; ++i) {
            const char * stored = rows + r * row_size + i * bytes_in_step / numbers_in_step;
            const uint32_t number = converted(format, from, stored);
            const int64_t at = format == HOTSHOE_LINEAR_BF16 ? i / 2 * 2 * PANEL + 2 * r + i % 2 : i * PANEL + r;
            memcpy(panel + at * size, &number, (size_t) size);
        }
    }
}
#define PACK_ARGS int64_t k, int n, const char *rows, char *panel
#define DEFINE_PACK(format, from)                                                     \
    AVX2 static void pack_##format##_from_##from(PACK_ARGS) {                         \
        pack_rows(HOTSHOE_LINEAR_##format, HOTSHOE_LINEAR_##from, k, n, rows, panel); \
    }
DEFINE_PACK(F32, F32)
DEFINE_PACK(F16, F16)
DEFINE_PACK(BF16, F32)
DEFINE_PACK(BF16, F16)
DEFINE_PACK(BF16, BF16)
/* By the format of the panel and that of the rows. */
static void (*const pack_panel[3][3])(PACK_ARGS) = {
    [HOTSHOE_LINEAR_F32] = {[HOTSHOE_LINEAR_F32] = pack_F32_from_F32},
    [HOTSHOE_LINEAR_F16] = {[HOTSHOE_LINEAR_F16] = pack_F16_from_F16},
    [HOTSHOE_LINEAR_BF16] = {pack_BF16_from_F32, pack_BF16_from_F16, pack_BF16_from_BF16},
};

/* Whether each of n F16 numbers is a BF16 number. */
AVX2 static int are_bf16(const char * numbers, int64_t n) {
    enum { AT_ONCE = 2048 /* bytes */ };
    for (int64_t i = 0; i < 2 * n; i += AT_ONCE) {
        const int64_t stop = min64(i + AT_ONCE, 2 * n), stop_of_vectors = stop & ~(int64_t) 15;
        __m256 bits = _mm256_setzero_ps();
        for (int64_t j = i; j < stop_of_vectors; j += 16) {
            bits = _mm256_or_ps(bits, load_numbers(HOTSHOE_LINEAR_F16, numbers + j));
        }
        char last[16] = {0};
        memcpy(last, numbers + stop_of_vectors, (size_t) (stop - stop_of_vectors));
        bits = _mm256_or_ps(bits, load_numbers(HOTSHOE_LINEAR_F16, last));
        if (!_mm256_testz_si256(_mm256_castps_si256(bits), _mm256_set1_epi32(0xffff))) {
            return 0;
        }
    }
    return 1;
}

/* --- finishing --------------------------------------------------------------------------------------- */

/* dst = act(tile + bias) + residual, for `rows` rows of a tile and the `cols` columns of it that the result has. tile:
 * rows `stride` floats from each other; residual and dst: m floats. bias and residual: or NULL. */
#define FINISH_ARGS                                                                                            \
    const float *tile, int64_t stride, int rows, int cols, const float *bias, int gelu, const float *residual, \
        float *dst, int64_t m
typedef void (*finish_fn)(FINISH_ARGS);
ALWAYS_INLINE void finish(int width, FINISH_ARGS) {
    float padded_bias[PANEL] = {0};
    if (bias) {
        memcpy(padded_bias, bias, (size_t) cols * sizeof(float));
    }
    for (int r = 0; r < rows; ++r) {
        finish_row(width, tile + r * stride, cols, padded_bias, gelu, residual ? residual + r * m : 0, dst + r * m);
    }
}
AVX2 static void finish_half_256(FINISH_ARGS) {
    finish(HALF_PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m);
}
AVX2 static void finish_256(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }
AVX512 static void finish_512(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }

#endif
