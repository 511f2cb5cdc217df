/* Tiles of products with F32, F16 and BF16 weights: some tokens by one or two panels. Each number of tokens and each
 * instruction set has its own function, so that the accumulators stay in registers. Only hotshoe_linear.c includes
 * this.
 *
 * A tile is up to 14 tokens by one panel (28 accumulators of the 32 registers) or up to 6 tokens by two panels. Without
 * AVX-512 it is one or two tokens by one panel (up to 8 accumulators of the 16 registers), or up to 6 tokens by half a
 * panel (12 accumulators), then by the other half. */
#ifndef HOTSHOE_LINEAR_TILES_H
#define HOTSHOE_LINEAR_TILES_H

#include <immintrin.h>

#include "hotshoe_linear.h"
#include "isa.h"

enum {
    PANEL = 32,
    HALF_PANEL = PANEL / 2,
    MAX_ROWS = 14,           /* of a tile by one panel, with AVX-512 */
    MAX_ROWS_TWO = 6,        /* of a tile by two panels; without AVX-512, of every tile */
    MAX_TOKENS = 112,        /* tokens staged at once, 8 full tiles of 14; 42 made F16 6 % slower */
    DEPTH = 384,             /* features staged at once; 256 made F32 3 % slower */
    MAX_TOKENS_STORED = 144, /* MAX_TOKENS for weights as stored, in halves of panels */
    DEPTH_STORED = 512,      /* DEPTH for weights as stored, and twice as many in BF16; 256 made F16 15 % slower */
    STAGED_DEPTHS = 2,       /* depths of MAX_TOKENS_STORED that are staged at once, or more of fewer tokens: 594 KiB */
    /* Floats for the sums of some panels' tiles, if a token has more depths. Summing in the result itself, whose rows
     * are far from each other, made BF16 6 % slower. */
    SUMS = 64 << 10,
    PREFETCH_STEPS = 16,                     /* of a tile between two prefetches of each row */
    LINE = 64,                               /* bytes */
    STRIDE = DEPTH_STORED * 4 + 64,          /* bytes from one staged token to the next: an odd number of cache lines */
    BF16_UNPAIRED = HOTSHOE_LINEAR_BF16 + 1, /* panels of BF16 whose numbers are multiplied as F32 */
};

/* Rows of a weight as stored that are transposed next, or lines of a packed panel that is widened next. They are
 * prefetched while a tile is computed; without that, transposing waits for memory: BF16 did 157 GFLOP/s a core instead
 * of 215. */
struct upcoming {
    const char * first;        /* the part of the first row */
    int64_t row_stride;        /* bytes from one row to the next */
    int n_rows, bytes_in_step; /* n_rows 0: nothing is prefetched */
};
ALWAYS_INLINE void prefetch_upcoming(const struct upcoming * next, int64_t step) {
    if (step % PREFETCH_STEPS == 0) {
        for (int r = 0; r < next->n_rows; ++r) {
            __builtin_prefetch(next->first + r * next->row_stride + step * next->bytes_in_step, 0, 2);
        }
    }
}

/* tile[r][0..) (+)= x[r][0..steps) @ panel, for the rows r of a tile.
 * x: staged tokens, STRIDE bytes from each other. w: the panel, k-major. steps: features, or pairs where pairs of BF16
 * are multiplied. panel_stride: bytes from one panel to the next. tile_stride: floats from one row of the tile to the
 * next.
 * resume: 0 to start the sums at zero, 1 to add to the tile. */
#define TILE_ARGS                                                                                                    \
    const char *x, const char *w, int64_t steps, int64_t panel_stride, float *tile, int64_t tile_stride, int resume, \
        const struct upcoming *next
typedef void (*tile_fn)(TILE_ARGS);

AVX512_BF16 ALWAYS_INLINE void tile_bf16(int rows, int panels, const char * x, const char * w, int64_t steps,
                                         int64_t panel_stride, float * tile, int64_t tile_stride, int resume,
                                         const struct upcoming * next) {
    __m512 acc[MAX_ROWS][4];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            acc[r][v] = resume ? _mm512_loadu_ps(tile + r * tile_stride + v * 16) : _mm512_setzero_ps();
        }
    }
    for (int64_t i = 0; i < steps; ++i) {
        prefetch_upcoming(next, i);
        __m512i b[4];
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            b[v] = _mm512_load_si512((const void *) (w + v / 2 * panel_stride + v % 2 * 64));
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            const __m512i a = _mm512_set1_epi32(*(const int32_t *) (x + r * STRIDE));
            UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
                acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh) a, (__m512bh) b[v]);
            }
        }
        x += 4;
        w += 128;
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            _mm512_storeu_ps(tile + r * tile_stride + v * 16, acc[r][v]);
        }
    }
}

/* Pairs of BF16 as F32. */
AVX512 ALWAYS_INLINE __m512 first_of_pairs_512(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
AVX512 ALWAYS_INLINE __m512 second_of_pairs_512(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
AVX2 ALWAYS_INLINE __m256 first_of_pairs_256(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
AVX2 ALWAYS_INLINE __m256 second_of_pairs_256(__m256i pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

AVX512 ALWAYS_INLINE void tile_512(int rows, int panels, int format, const char * x, const char * w, int64_t steps,
                                   int64_t panel_stride, float * tile, int64_t tile_stride, int resume,
                                   const struct upcoming * next) {
    __m512 acc[MAX_ROWS][4];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            acc[r][v] = resume ? _mm512_loadu_ps(tile + r * tile_stride + v * 16) : _mm512_setzero_ps();
        }
    }
    const int is_f16 = format == HOTSHOE_LINEAR_F16, in_pairs = format == BF16_UNPAIRED;
    for (int64_t i = 0; i < steps; i += in_pairs ? 2 : 1) {
        prefetch_upcoming(next, i);
        __m512 b[4], second[4];
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            const char * at = w + v / 2 * panel_stride + v % 2 * (is_f16 ? 32 : 64);
            b[v] =
                is_f16 ? _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) at)) : _mm512_load_ps((const float *) at);
            if (in_pairs) {
                const __m512i pairs = _mm512_castps_si512(b[v]);
                b[v] = first_of_pairs_512(pairs);
                second[v] = second_of_pairs_512(pairs);
            }
        }
        UNROLL_FOR(int p = 0; p < panels && is_f16; ++p) { /* with 8 tokens 95 GFLOP/s instead of 77 */
            _mm_prefetch(w + p * panel_stride + 2048, _MM_HINT_T0);
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            const float * numbers = (const float *) (x + r * STRIDE);
            UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
                acc[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(numbers[0]), b[v], acc[r][v]);
                if (in_pairs) {
                    acc[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(numbers[1]), second[v], acc[r][v]);
                }
            }
        }
        x += in_pairs ? 8 : 4;
        w += is_f16 ? 64 : 128;
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            _mm512_storeu_ps(tile + r * tile_stride + v * 16, acc[r][v]);
        }
    }
}

/* A panel, or half of one: 4 vectors or 2. step: bytes from one feature, or pair of BF16, to the next. */
AVX2 ALWAYS_INLINE void tile_256(int rows, int vectors, int format, int step, const char * x, const char * w,
                                 int64_t steps, float * tile, int64_t tile_stride, int resume,
                                 const struct upcoming * next) {
    __m256 acc[MAX_ROWS_TWO][4];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < vectors; ++v) {
            acc[r][v] = resume ? _mm256_loadu_ps(tile + r * tile_stride + v * 8) : _mm256_setzero_ps();
        }
    }
    const int is_f16 = format == HOTSHOE_LINEAR_F16, in_pairs = format == BF16_UNPAIRED;
    for (int64_t i = 0; i < steps; i += in_pairs ? 2 : 1) {
        prefetch_upcoming(next, i);
        __m256 b[4], second[4];
        UNROLL_FOR(int v = 0; v < vectors; ++v) {
            b[v] = is_f16 ? _mm256_cvtph_ps(_mm_load_si128((const __m128i *) (w + v * 16)))
                          : _mm256_load_ps((const float *) (w + v * 32));
            if (in_pairs) {
                const __m256i pairs = _mm256_castps_si256(b[v]);
                b[v] = first_of_pairs_256(pairs);
                second[v] = second_of_pairs_256(pairs);
            }
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            const float * numbers = (const float *) (x + r * STRIDE);
            UNROLL_FOR(int v = 0; v < vectors; ++v) {
                acc[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(numbers), b[v], acc[r][v]);
                if (in_pairs) {
                    acc[r][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(numbers + 1), second[v], acc[r][v]);
                }
            }
        }
        x += in_pairs ? 8 : 4;
        w += step;
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < vectors; ++v) {
            _mm256_storeu_ps(tile + r * tile_stride + v * 8, acc[r][v]);
        }
    }
}

#define TILES_512(rows, panels)                                                                                 \
    AVX512 static void f32_512_##rows##_##panels(TILE_ARGS) {                                                   \
        tile_512(rows, panels, HOTSHOE_LINEAR_F32, x, w, steps, panel_stride, tile, tile_stride, resume, next); \
    }                                                                                                           \
    AVX512 static void f16_512_##rows##_##panels(TILE_ARGS) {                                                   \
        tile_512(rows, panels, HOTSHOE_LINEAR_F16, x, w, steps, panel_stride, tile, tile_stride, resume, next); \
    }                                                                                                           \
    AVX512 static void unpaired_512_##rows##_##panels(TILE_ARGS) {                                              \
        tile_512(rows, panels, BF16_UNPAIRED, x, w, steps, panel_stride, tile, tile_stride, resume, next);      \
    }                                                                                                           \
    AVX512_BF16 static void bf16_##rows##_##panels(TILE_ARGS) {                                                 \
        tile_bf16(rows, panels, x, w, steps, panel_stride, tile, tile_stride, resume, next);                    \
    }
/* Up to two tokens go by a whole panel, whose four sums do not wait for each other: with two sums one token of F16 read
 * 17 GB/s. */
#define PANEL_256(name, rows, format, step)                                                                      \
    AVX2 static void name##_256_##rows(TILE_ARGS) {                                                              \
        (void) panel_stride;                                                                                     \
        const int vectors = rows <= 2 ? 4 : 2;                                                                   \
        for (int v = 0; v < 4; v += vectors) {                                                                   \
            tile_256(rows, vectors, format, step, x, w + v * step / 4, steps, tile + v * 8, tile_stride, resume, \
                     next);                                                                                      \
        }                                                                                                        \
    }
#define TILES_256(rows)                                                                          \
    PANEL_256(f32, rows, HOTSHOE_LINEAR_F32, 128)                                                \
    PANEL_256(f16, rows, HOTSHOE_LINEAR_F16, 64)                                                 \
    PANEL_256(unpaired, rows, BF16_UNPAIRED, 128)                                                \
    AVX2 static void half_256_##rows(TILE_ARGS) {                                                \
        (void) panel_stride;                                                                     \
        tile_256(rows, 2, HOTSHOE_LINEAR_F32, 64, x, w, steps, tile, tile_stride, resume, next); \
    }
#define EACH_TO_6(call) call(1, 2) call(2, 2) call(3, 2) call(4, 2) call(5, 2) call(6, 2)
#define EACH_TO_14(call)                                                                                           \
    call(1, 1) call(2, 1) call(3, 1) call(4, 1) call(5, 1) call(6, 1) call(7, 1) call(8, 1) call(9, 1) call(10, 1) \
        call(11, 1) call(12, 1) call(13, 1) call(14, 1)
EACH_TO_14(TILES_512)
EACH_TO_6(TILES_512)
TILES_256(1)
TILES_256(2)
TILES_256(3)
TILES_256(4)
TILES_256(5)
TILES_256(6)

/* tables[panels - 1][rows] */
#define F32_512(rows, panels) [panels - 1][rows] = f32_512_##rows##_##panels,
#define F16_512(rows, panels) [panels - 1][rows] = f16_512_##rows##_##panels,
#define BF16_512(rows, panels) [panels - 1][rows] = bf16_##rows##_##panels,
#define UNPAIRED_512(rows, panels) [panels - 1][rows] = unpaired_512_##rows##_##panels,
#define ROWS_256(name) {0, name##_256_1, name##_256_2, name##_256_3, name##_256_4, name##_256_5, name##_256_6}

typedef tile_fn tile_table[2][MAX_ROWS + 1];
static const tile_table tiles_512[] = {
    {EACH_TO_14(F32_512) EACH_TO_6(F32_512)},
    {EACH_TO_14(F16_512) EACH_TO_6(F16_512)},
    {EACH_TO_14(BF16_512) EACH_TO_6(BF16_512)},
    [BF16_UNPAIRED] = {EACH_TO_14(UNPAIRED_512) EACH_TO_6(UNPAIRED_512)},
};
static const tile_table tiles_256[] = {{ROWS_256(f32)}, {ROWS_256(f16)}, [BF16_UNPAIRED] = {ROWS_256(unpaired)}};
/* For half panels of F32. */
static const tile_table half_tiles_256 = {ROWS_256(half)};

#endif
