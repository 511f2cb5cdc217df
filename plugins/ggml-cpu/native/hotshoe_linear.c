#include "hotshoe_linear.h"

#include "linear_parts.h"

/* A packed W (m, k) lies in panels of 32 rows, k-major: panel[k][32]; for bf16 panel[k / 2][32][2], as vdpbf16ps takes
 * pairs. One that is multiplied as stored becomes such panels on the way, a piece at a time.
 * A tile is up to 14 tokens by one panel (28 accumulators of 32 registers), or up to 6 tokens by two panels; without
 * AVX-512 6 tokens by half a panel (12 of 16), and then the other half: of a weight as stored all tiles of one half come
 * first, which so is a piece of 512 features. Tokens are staged in blocks on the stack: a constant distance between
 * rows, free of cache aliasing, gives every broadcast an immediate address. Nothing is allocated, and no thread waits
 * for another. */
enum {
    PANEL = 32,
    HALF = PANEL / 2,
    MAX_ROWS = 14, /* of a tile; 6 without AVX-512 */
#if defined(__GLIBC__)
    BLOCK = 112,        /* tokens staged at once, 8 full tiles of 14; 42 made F16 6 % slower */
    DEPTH = 384,        /* their features at once; 256 made F32 3 % slower */
    BLOCK_STORED = 144, /* the same for weights as stored, in halves of panels */
    DEPTH_STORED = 512, /* and twice as many in bf16; 256 made F16 15 % slower */
    WHOLE = 2,          /* depths that are staged at once, where a token has no more: 594 KiB */
    /* Floats, where it has: of some panels' tiles. In the result, whose rows lie far apart, BF16 was 6 % slower. */
    SUMS = 64 << 10,
#elif defined(__linux__)
    /* musl gives a thread 128 KiB of stack. */
    BLOCK = 28,
    DEPTH = 256,
    BLOCK_STORED = 28,
    DEPTH_STORED = 256,
    WHOLE = 1,
    SUMS = 2 << 10,
#else
    /* macOS gives 512 KiB. */
    BLOCK = 70,
    DEPTH = 384,
    BLOCK_STORED = 72,
    DEPTH_STORED = 512,
    WHOLE = 1,
    SUMS = 24 << 10,
#endif
    STRIDE = DEPTH_STORED * 4 + 64, /* bytes between staged tokens: an odd number of cache lines */
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HOTSHOE_X86 1
#endif

static int64_t n_panels(int64_t m) { return (m + PANEL - 1) / PANEL; }
static int64_t element_size(int format) { return format == HOTSHOE_LINEAR_F32 ? 4 : 2; }
static int64_t padded_k(int format, int64_t k) { return format == HOTSHOE_LINEAR_BF16 ? (k + 1) & ~(int64_t) 1 : k; }

size_t hotshoe_packed_size(int format, int64_t k, int64_t m) {
    return (size_t) (n_panels(m) * PANEL * padded_k(format, k) * element_size(format));
}

#if defined(HOTSHOE_X86)

#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))
#define AVX512_BF16 __attribute__((target("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))

enum { ISA_NONE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16 };

static int isa(void) {
    static int chosen = -1; /* threads that race here all write the same value */
    int now = chosen;
    if (now < 0) {
        __builtin_cpu_init();
        /* every CPU with AVX2 has F16C */
        const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
        const int bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
        now = bf16 ? ISA_AVX512_BF16 : avx512 ? ISA_AVX512 : avx2 ? ISA_AVX2 : ISA_NONE;
        chosen = now;
    }
    return now;
}

int hotshoe_linear_formats(void) {
    const int exact = 1 << HOTSHOE_LINEAR_F32 | 1 << HOTSHOE_LINEAR_F16;
    return isa() == ISA_NONE ? 0 : isa() == ISA_AVX512_BF16 ? exact | 1 << HOTSHOE_LINEAR_BF16 : exact;
}

/* From where on benchmarks/products.py found it faster, one thread of Zen 4 or Zen 3. F16 by AVX2: 83 GFLOP/s a core, where ggml's
 * does 80 of 102 that there are. */
int64_t hotshoe_linear_stored_rows(int type) {
    const int wide = isa() >= ISA_AVX512;
    switch (type) {
        case GGML_TYPE_BF16: return isa() == ISA_AVX512_BF16 ? 16 : isa() == ISA_AVX2 ? 48 : 0;
        case GGML_TYPE_F16: return wide ? 128 : 0;
        case GGML_TYPE_F32: return wide ? 64 : 0;
        default: return 0;
    }
}

/* --- packing ------------------------------------------------------------------------------------- */

static uint16_t bf16_from(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) { /* NaN: keep it one */
        return (uint16_t) (bits >> 16 | 64);
    }
    return (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

AVX2 static void pack_row_f16(int64_t k, const float * row, uint16_t * out) {
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
        uint16_t half[8];
        _mm_storeu_si128((__m128i *) half, _mm256_cvtps_ph(_mm256_loadu_ps(row + i), _MM_FROUND_TO_NEAREST_INT));
        for (int j = 0; j < 8; ++j) {
            out[(i + j) * PANEL] = half[j];
        }
    }
    for (; i < k; ++i) {
        out[i * PANEL] = _cvtss_sh(row[i], _MM_FROUND_TO_NEAREST_INT);
    }
}

void hotshoe_pack_rows(int format, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const float * rows,
                       void * packed) {
    const int64_t panel_size = PANEL * padded_k(format, k); /* elements */
    for (int64_t r = first_row; r < first_row + n_rows && r < m; ++r) {
        const float * row = rows + (r - first_row) * k;
        const int64_t panel = r / PANEL * panel_size;
        const int64_t lane = r % PANEL;
        if (format == HOTSHOE_LINEAR_F32) {
            float * out = (float *) packed + panel + lane;
            for (int64_t i = 0; i < k; ++i) {
                out[i * PANEL] = row[i];
            }
        } else if (format == HOTSHOE_LINEAR_F16) {
            pack_row_f16(k, row, (uint16_t *) packed + panel + lane);
        } else {
            uint16_t * out = (uint16_t *) packed + panel + 2 * lane;
            for (int64_t i = 0; i < k; ++i) {
                out[i / 2 * 2 * PANEL + i % 2] = bf16_from(row[i]);
            }
        }
    }
}

/* --- tiles: tile[r][0..] (+)= x[r][0..steps) @ panel ----------------------------------------------- */

/* x: rows STRIDE bytes apart. steps: k, or pairs of k. apart: bytes from one panel to the next. stride: floats between
 * rows of the tile. resume: 0 to start at zero. */
/* Rows of a weight as stored that are turned soon: a piece of `rows` of them, `apart` bytes from each other, is asked for while a
 * tile is computed; a step of it is step_bytes. Without, turning waits for memory: BF16 did 157 GFLOP/s a core of 215. */
struct ahead {
    const char * first;
    int64_t apart;
    int rows, step_bytes;
};
typedef void (*tile_fn)(const char * x, const char * w, int64_t steps, int64_t apart, float * tile, int64_t stride,
                        int resume, const struct ahead * ahead);
ALWAYS_INLINE void ask(const struct ahead * a, int64_t step) {
    if (step % 16 == 0) {
        for (int r = 0; r < a->rows; ++r) {
            __builtin_prefetch(a->first + r * a->apart + step * a->step_bytes, 0, 2);
        }
    }
}

AVX512_BF16 ALWAYS_INLINE void tile_bf16(int rows, int panels, const char * x, const char * w, int64_t steps,
                                         int64_t apart, float * tile, int64_t stride, int resume,
                                         const struct ahead * ahead) {
    __m512 acc[MAX_ROWS][4];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            acc[r][v] = resume ? _mm512_loadu_ps(tile + r * stride + v * 16) : _mm512_setzero_ps();
        }
    }
    for (int64_t i = 0; i < steps; ++i) {
        ask(ahead, i);
        __m512i b[4];
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            b[v] = _mm512_load_si512((const void *) (w + v / 2 * apart + v % 2 * 64));
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
            _mm512_storeu_ps(tile + r * stride + v * 16, acc[r][v]);
        }
    }
}

AVX512 ALWAYS_INLINE void tile_512(int rows, int panels, int half, const char * x, const char * w, int64_t steps,
                                   int64_t apart, float * tile, int64_t stride, int resume,
                                   const struct ahead * ahead) {
    __m512 acc[MAX_ROWS][4];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            acc[r][v] = resume ? _mm512_loadu_ps(tile + r * stride + v * 16) : _mm512_setzero_ps();
        }
    }
    for (int64_t i = 0; i < steps; ++i) {
        ask(ahead, i);
        __m512 b[4];
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            b[v] = half ? _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (w + v / 2 * apart + v % 2 * 32)))
                        : _mm512_load_ps((const float *) (w + v / 2 * apart + v % 2 * 64));
        }
        UNROLL_FOR(int p = 0; p < panels && half; ++p) { /* 8 tokens: 77 GFLOP/s become 95 */
            _mm_prefetch(w + p * apart + 2048, _MM_HINT_T0);
        }
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            const __m512 a = _mm512_set1_ps(*(const float *) (x + r * STRIDE));
            UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
                acc[r][v] = _mm512_fmadd_ps(a, b[v], acc[r][v]);
            }
        }
        x += 4;
        w += half ? 64 : 128;
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2 * panels; ++v) {
            _mm512_storeu_ps(tile + r * stride + v * 16, acc[r][v]);
        }
    }
}

/* Half a panel; step: bytes from one k to the next. */
AVX2 ALWAYS_INLINE void tile_256(int rows, int half, int step, const char * x, const char * w, int64_t steps,
                                 float * tile, int64_t stride, int resume, const struct ahead * ahead) {
    __m256 acc[6][2];
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2; ++v) {
            acc[r][v] = _mm256_setzero_ps();
        }
    }
    for (int64_t i = 0; i < steps; ++i) {
        ask(ahead, i);
        const __m256 b0 =
            half ? _mm256_cvtph_ps(_mm_load_si128((const __m128i *) w)) : _mm256_load_ps((const float *) w);
        const __m256 b1 = half ? _mm256_cvtph_ps(_mm_load_si128((const __m128i *) (w + 16)))
                               : _mm256_load_ps((const float *) (w + 32));
        UNROLL_FOR(int r = 0; r < rows; ++r) {
            const __m256 value = _mm256_broadcast_ss((const float *) (x + r * STRIDE));
            acc[r][0] = _mm256_fmadd_ps(value, b0, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(value, b1, acc[r][1]);
        }
        x += 4;
        w += step;
    }
    UNROLL_FOR(int r = 0; r < rows; ++r) {
        UNROLL_FOR(int v = 0; v < 2; ++v) {
            const __m256 before = resume ? _mm256_loadu_ps(tile + r * stride + v * 8) : _mm256_setzero_ps();
            _mm256_storeu_ps(tile + r * stride + v * 8, _mm256_add_ps(before, acc[r][v]));
        }
    }
}

#define TILE_ARGS                                                                                        \
    const char *x, const char *w, int64_t steps, int64_t apart, float *tile, int64_t stride, int resume, \
        const struct ahead *ahead
#define TILES_512(rows, panels)                                                     \
    AVX512 static void f32_512_##rows##_##panels(TILE_ARGS) {                       \
        tile_512(rows, panels, 0, x, w, steps, apart, tile, stride, resume, ahead); \
    }                                                                               \
    AVX512 static void f16_512_##rows##_##panels(TILE_ARGS) {                       \
        tile_512(rows, panels, 1, x, w, steps, apart, tile, stride, resume, ahead); \
    }                                                                               \
    AVX512_BF16 static void bf16_##rows##_##panels(TILE_ARGS) {                     \
        tile_bf16(rows, panels, x, w, steps, apart, tile, stride, resume, ahead);   \
    }
#define TILES_256(rows)                                                               \
    AVX2 static void f32_256_##rows(TILE_ARGS) {                                      \
        (void) apart;                                                                 \
        tile_256(rows, 0, 128, x, w, steps, tile, stride, resume, ahead);             \
        tile_256(rows, 0, 128, x, w + 64, steps, tile + HALF, stride, resume, ahead); \
    }                                                                                 \
    AVX2 static void f16_256_##rows(TILE_ARGS) {                                      \
        (void) apart;                                                                 \
        tile_256(rows, 1, 64, x, w, steps, tile, stride, resume, ahead);              \
        tile_256(rows, 1, 64, x, w + 32, steps, tile + HALF, stride, resume, ahead);  \
    }                                                                                 \
    AVX2 static void half_256_##rows(TILE_ARGS) {                                     \
        (void) apart;                                                                 \
        tile_256(rows, 0, 64, x, w, steps, tile, stride, resume, ahead);              \
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

/* By panels - 1 and rows. */
#define F32_512(rows, panels) [panels - 1][rows] = f32_512_##rows##_##panels,
#define F16_512(rows, panels) [panels - 1][rows] = f16_512_##rows##_##panels,
#define BF16_512(rows, panels) [panels - 1][rows] = bf16_##rows##_##panels,

typedef tile_fn tile_table[2][MAX_ROWS + 1];
static const tile_table tiles_512[] = {
    {EACH_TO_14(F32_512) EACH_TO_6(F32_512)},
    {EACH_TO_14(F16_512) EACH_TO_6(F16_512)},
    {EACH_TO_14(BF16_512) EACH_TO_6(BF16_512)},
};
static const tile_table tiles_256[] = {
    {{0, f32_256_1, f32_256_2, f32_256_3, f32_256_4, f32_256_5, f32_256_6}},
    {{0, f16_256_1, f16_256_2, f16_256_3, f16_256_4, f16_256_5, f16_256_6}},
};
/* Of halves of panels as F32. */
static const tile_table half_tiles_256 = {{0, half_256_1, half_256_2, half_256_3, half_256_4, half_256_5, half_256_6}};

/* --- staging and finishing ------------------------------------------------------------------------ */

static void stage_f32(const char * x, int64_t apart, int64_t rows, int64_t n, char * staged) {
    for (int64_t r = 0; r < rows; ++r) {
        memcpy(staged + r * STRIDE, x + r * apart, (size_t) n * sizeof(float));
    }
}

AVX512_BF16 static void stage_bf16(const char * x, int64_t apart, int64_t rows, int64_t n, char * staged) {
    for (int64_t r = 0; r < rows; ++r) {
        const float * in = (const float *) (x + r * apart);
        char * out = staged + r * STRIDE;
        for (int64_t i = 0; i < n; i += 16) { /* an odd last one gets a zero beside it */
            const __mmask16 mask = (__mmask16) (n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
            const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, in + i));
            _mm256_storeu_si256((__m256i *) (out + 2 * i), (__m256i) half);
        }
    }
}

/* --- a piece of a weight as F32, or pairs of BF16, k-major, for use by several tiles ------------------ */

/* k F16 of each of n rows, `apart` bytes from each other, to BF16 without gaps. */
AVX512_BF16 static void round_rows(const char * w, int64_t apart, int n, int64_t k, uint16_t * out) {
    for (int r = 0; r < n; ++r, out += k) {
        const uint16_t * row = (const uint16_t *) (w + r * apart);
        for (int64_t i = 0; i < k; i += 16) {
            const __mmask16 mask = (__mmask16) (k - i >= 16 ? 0xffff : (1 << (k - i)) - 1);
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + i)));
            _mm256_mask_storeu_epi16(out + i, mask, (__m256i) rounded);
        }
    }
}

/* Of panels: 102 GFLOP/s a core with F16 become 108. */
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

AVX2 ALWAYS_INLINE __m256 load_256(int format, const char * from) {
    if (format == HOTSHOE_LINEAR_F32) {
        return _mm256_loadu_ps((const float *) from);
    }
    const __m128i half = _mm_loadu_si128((const __m128i *) from);
    return format == HOTSHOE_LINEAR_F16 ? _mm256_cvtph_ps(half)
                                        : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

AVX2 ALWAYS_INLINE void store_transposed(const __m256 * v, float * out, int width) {
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
        _mm256_store_ps(out + i * width, _mm256_permute2f128_ps(b[i], b[i + 4], 0x20));
        _mm256_store_ps(out + (i + 4) * width, _mm256_permute2f128_ps(b[i], b[i + 4], 0x31));
    }
}

/* Of rows as stored: `width` of them from w on, of which n exist; the columns of others repeat the last and are used by
 * nobody. Some k of all rows, then the next: what is written to is asked for, and written whole. */
AVX2 ALWAYS_INLINE void columns_of(int format, const char * w, int64_t apart, int n, int width, int64_t steps,
                                   float * out) {
    enum { AT_ONCE = 32 };
    const int size = format == HOTSHOE_LINEAR_F32 ? 4 : 2;
    const char * row[PANEL];
    for (int r = 0; r < width; ++r) {
        row[r] = w + (r < n ? r : n - 1) * apart;
    }
    int64_t i = 0;
    for (; i + 8 <= steps; i += AT_ONCE) {
        const int64_t stop = min64(i + AT_ONCE, steps & ~(int64_t) 7);
        for (int64_t ahead = stop * width; ahead < min64(stop + AT_ONCE, steps) * width; ahead += 16) {
            __builtin_prefetch(out + ahead, 1);
        }
        for (int first = 0; first < width; first += 8) {
            for (int64_t j = i; j < stop; j += 8) {
                __m256 v[8];
                UNROLL_FOR(int r = 0; r < 8; ++r) {
                    v[r] = load_256(format, row[first + r] + j * size);
                }
                store_transposed(v, out + j * width + first, width);
            }
        }
    }
    for (i = steps & ~(int64_t) 7; i < steps; ++i) {
        for (int r = 0; r < width; ++r) {
            char last[32] = {0};
            memcpy(last, row[r] + i * size, (size_t) size);
            out[i * width + r] = _mm256_cvtss_f32(load_256(format, last));
        }
    }
}
#define COLUMNS_ARGS const char *w, int64_t apart, int n, int width, int64_t steps, float *out
AVX2 static void columns_f32(COLUMNS_ARGS) { columns_of(HOTSHOE_LINEAR_F32, w, apart, n, width, steps, out); }
AVX2 static void columns_f16(COLUMNS_ARGS) { columns_of(HOTSHOE_LINEAR_F16, w, apart, n, width, steps, out); }
AVX2 static void columns_bf16(COLUMNS_ARGS) { columns_of(HOTSHOE_LINEAR_BF16, w, apart, n, width, steps, out); }
static void (*const columns_as_f32[])(COLUMNS_ARGS) = {columns_f32, columns_f16, columns_bf16};

typedef void (*finish_fn)(const float *, int64_t, int, int, const float *, int, const float *, float *, int64_t);
#define FINISH_ARGS                                                                                            \
    const float *tile, int64_t stride, int rows, int cols, const float *bias, int gelu, const float *residual, \
        float *dst, int64_t m
ALWAYS_INLINE void finish(int width, FINISH_ARGS) {
    float own[PANEL] = {0}; /* the bias, with zeros beyond the last column */
    if (bias) {
        memcpy(own, bias, (size_t) cols * sizeof(float));
    }
    for (int r = 0; r < rows; ++r) {
        finish_row(width, tile + r * stride, cols, own, gelu, residual ? residual + r * m : 0, dst + r * m);
    }
}
AVX2 static void finish_half_256(FINISH_ARGS) { finish(HALF, tile, stride, rows, cols, bias, gelu, residual, dst, m); }
AVX2 static void finish_256(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }
AVX512 static void finish_512(FINISH_ARGS) { finish(PANEL, tile, stride, rows, cols, bias, gelu, residual, dst, m); }

/* --- the op ---------------------------------------------------------------------------------------- */

static int format_of(enum ggml_type type) {
    return type == GGML_TYPE_F32   ? HOTSHOE_LINEAR_F32
           : type == GGML_TYPE_F16 ? HOTSHOE_LINEAR_F16
                                   : HOTSHOE_LINEAR_BF16;
}

/* One product: x by a weight that is packed, or as stored. */
struct product {
    const struct ggml_tensor *x, *stored; /* stored: or NULL */
    const char * packed;
    const float *bias, *residual; /* or NULL */
    float * y;
    int64_t k, m;
    int format, wide, rounds, pairs, gelu;
};

static struct product product_of(const struct ggml_tensor * dst, const struct hotshoe_linear_params * p) {
    const struct ggml_tensor * stored = p->packed ? 0 : dst->src[1];
    struct ggml_tensor * const * more = dst->src + (stored ? 2 : 1);
    struct product of = {.x = dst->src[0],
                         .stored = stored,
                         .packed = (const char *) p->packed,
                         .y = (float *) dst->data,
                         .k = p->k,
                         .m = p->m};
    of.bias = p->has_bias ? (const float *) more[0]->data : 0;
    of.residual = p->has_residual ? (const float *) more[p->has_bias ? 1 : 0]->data : 0;
    of.format = stored ? format_of(stored->type) : p->format;
    of.wide = isa() >= ISA_AVX512 && !p->avx2_only;
    of.rounds = stored && of.format == HOTSHOE_LINEAR_F16 && p->format == HOTSHOE_LINEAR_BF16;
    const int may_pair = !stored || (isa() == ISA_AVX512_BF16 && of.wide && p->k % 2 == 0);
    of.pairs = (of.format == HOTSHOE_LINEAR_BF16 || of.rounds) && may_pair;
    of.gelu = p->activation == HOTSHOE_LINEAR_GELU_ERF;
    return of;
}

/* Tokens [t0, t1) by some panels. are_staged: whether the last call had the same tokens, and `staged`. */
static void multiply(const struct product * p, int64_t t0, int64_t t1, int64_t first_panel, int64_t last_panel,
                     char * staged, int are_staged) {
    _Alignas(64) float widened[DEPTH_STORED * PANEL];        /* 64 KiB */
    _Alignas(64) uint16_t rounded[2 * DEPTH_STORED * PANEL]; /* as many */
    _Alignas(64) float sums[SUMS];

    const struct ggml_tensor *x = p->x, *stored = p->stored;
    const float *bias = p->bias, *residual = p->residual;
    const int format = p->format, wide = p->wide, pairs = p->pairs, gelu = p->gelu;
    const int halves = stored && !wide, span = halves ? HALF : PANEL; /* columns of a tile */
    const finish_fn finish_tile = wide ? finish_512 : halves ? finish_half_256 : finish_256;
    const int max_rows = wide ? MAX_ROWS : 6;
    const int64_t k = p->k, m = p->m;
    const int64_t bytes = element_size(format), panel_bytes = PANEL * padded_k(format, k) * bytes;
    const int64_t apart = stored ? (int64_t) stored->nb[1] : 0; /* bytes from one row to the next */
    /* Tiles and depths of nearly one size, rather than full ones and a rest. */
    const int64_t depth = pairs ? 2 * DEPTH_STORED : halves ? DEPTH_STORED : DEPTH;
    const int64_t k_blocks = (k + depth - 1) / depth, k_block = ((k + k_blocks - 1) / k_blocks + 7) & ~(int64_t) 7;
    const int64_t n_tiles = (t1 - t0 + max_rows - 1) / max_rows;
    const int two = wide && !stored && t1 - t0 <= 6;
    const int widen = stored || (n_tiles > 1 && format == HOTSHOE_LINEAR_F16);
    const int read_as = pairs ? HOTSHOE_LINEAR_BF16 : widen ? HOTSHOE_LINEAR_F32 : format;
    const tile_table * tiles = wide ? tiles_512 + read_as : halves ? &half_tiles_256 : tiles_256 + read_as;
    /* Panels that go through the depths together: one where all depths are staged, else as many as there is room for their sums. */
    const int64_t tokens = t1 - t0, limit = min64(last_panel * PANEL, m);
    const int whole = k_blocks <= WHOLE;
    const int64_t at_once = k_blocks == 1 ? last_panel - first_panel : whole ? two + 1 : SUMS / (tokens * PANEL);
    for (; first_panel < last_panel; first_panel += at_once, are_staged = 1) {
        const int64_t start = first_panel * PANEL, stop = min64(start + at_once * PANEL, limit);
        for (int64_t k0 = 0; k0 < k; k0 += k_block) {
            const int64_t n_k = min64(k_block, k - k0), steps = pairs ? (n_k + 1) / 2 : n_k;
            const int end = k0 + k_block >= k, finishing = k_blocks > 1 || bias || gelu || residual;
            const char * from = (const char *) x->data + t0 * (int64_t) x->nb[1] + k0 * 4;
            char * here = staged + (whole ? k0 / k_block * tokens * STRIDE : 0);
            if (!are_staged || !whole) {
                (pairs ? stage_bf16 : stage_f32)(from, (int64_t) x->nb[1], tokens, n_k, here);
            }
            for (int64_t column = start; column < stop;) {
                const int width = two && column + PANEL < stop ? 2 : 1;
                const int cols = (int) min64(width * span, m - column);
                const char * w = 0;
                struct ahead ahead = {0, apart, 0, n_k * bytes / steps};
                int64_t next_column = column + width * span, next_k = k0; /* what is turned next */
                if (next_column >= stop) {
                    next_column = end ? stop : start;
                    next_k = end ? 0 : k0 + k_block;
                }
                if (stored) {
                    w = (const char *) stored->data + column * apart + k0 * bytes;
                    if (pairs && p->rounds) {
                        round_rows(w, apart, cols, n_k, rounded);
                        columns_f32((const char *) rounded, 2 * n_k, cols, span, steps, widened);
                    } else {
                        /* A pair is 4 bytes. */
                        columns_as_f32[pairs ? HOTSHOE_LINEAR_F32 : format](w, apart, cols, span, steps, widened);
                    }
                } else {
                    w = p->packed + column / PANEL * panel_bytes + k0 * PANEL * bytes;
                    if (widen) {
                        (wide ? widen_512 : widen_256)(w, steps, widened);
                    }
                }
                w = widen ? (const char *) widened : w;
                for (int64_t i = 0; i < n_tiles; ++i) {
                    const int64_t r0 = t0 + tokens * i / n_tiles;
                    const int rows = (int) (t0 + tokens * (i + 1) / n_tiles - r0);
                    float * out = p->y + r0 * m + column;
                    for (int r = 0; r < rows && end; ++r) { /* they arrive while the tile is computed */
                        __builtin_prefetch(out + r * m, 1);
                        __builtin_prefetch(out + r * m + 16, 1);
                        if (residual) {
                            __builtin_prefetch(residual + (r0 + r) * m + column);
                            __builtin_prefetch(residual + (r0 + r) * m + column + 16);
                        }
                    }
                    /* Straight into the result, where the whole tile has room there and nothing else follows. */
                    const int direct = cols == width * span && !finishing;
                    float * tile =
                        direct ? out : sums + (k_blocks > 1 ? (column - start) * tokens + (r0 - t0) * width * span : 0);
                    const int64_t stride = direct ? m : width * span;
                    if (stored && next_column < limit) { /* each tile asks for some of the rows */
                        const int64_t r = span * i / n_tiles, there = min64(span, limit - next_column);
                        ahead.first = (const char *) stored->data + (next_column + r) * apart + next_k * bytes;
                        ahead.rows = (int) (min64(span * (i + 1) / n_tiles, there) - r);
                    }
                    (*tiles)[width - 1][rows](here + (r0 - t0) * STRIDE, w, steps, panel_bytes, tile, stride, k0 != 0,
                                              &ahead);
                    for (int part = 0; part < width && end && !direct; ++part) {
                        const int64_t at = column + part * span;
                        finish_tile(tile + part * span, stride, rows, (int) min64(span, m - at), bias ? bias + at : 0,
                                    gelu, residual ? residual + r0 * m + at : 0, out + part * span, m);
                    }
                }
                column += width * span;
            }
        }
    }
}

void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    enum { LEAST_PANELS = 2, LEAST_OF_MANY = 8, FEW = 16 }; /* of many tokens staging is to remain a small part */
    (void) ith;
    const struct product p = product_of(dst, (const struct hotshoe_linear_params *) userdata);
    /* Blocks of tokens of nearly one size, each with all panels. */
    const int64_t n = p.x->ne[1], panels = n_panels(p.m), parts = token_parts(n, panels, nth, 0.2, 4.0);
    const int64_t room = !p.stored ? BLOCK : p.wide ? BLOCK_STORED / MAX_ROWS * MAX_ROWS : BLOCK_STORED;
    const int64_t most = min64(room, (n + parts - 1) / parts), blocks = n ? (n + most - 1) / most : 0;
    const int64_t least = most > FEW ? LEAST_OF_MANY : LEAST_PANELS;
    _Alignas(64) char staged[WHOLE * BLOCK_STORED * STRIDE];
    int64_t from, to, stop, last = -1;
    int32_t * position = position_in(dst);
    while (take_units(position, blocks * panels, least, nth, &from, &to)) {
        for (; from < to; from = stop) {
            const int64_t block = from / panels, before = block * panels;
            stop = min64(to, before + panels);
            multiply(&p, n * block / blocks, n * (block + 1) / blocks, from - before, stop - before, staged,
                     block == last);
            last = block;
        }
    }
    leave(position, nth);
}

#else /* no kernels for this CPU or compiler */

int hotshoe_linear_formats(void) { return 0; }

int64_t hotshoe_linear_stored_rows(int type) {
    (void) type;
    return 0;
}

void hotshoe_pack_rows(int format, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const float * rows,
                       void * packed) {
    (void) format, (void) k, (void) m, (void) first_row, (void) n_rows, (void) rows, (void) packed;
}

void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) nth, (void) userdata;
    for (int64_t i = 0; ith == 0 && i < dst->ne[0] * dst->ne[1]; ++i) {
        ((float *) dst->data)[i] = NAN; /* nobody asked hotshoe_linear_formats */
    }
}

#endif
