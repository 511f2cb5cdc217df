/* Packs a quantized weight: reorders the blocks of 16 rows, so that one vector reads the same numbers of 4 to 16 rows.
 * A packed weight has as many bytes as the file's.
 *
 * Reading order: the table of layouts, then pack_blocks; hotshoe_quants_unpack.h reads packed blocks. */
#include "hotshoe_quants.h"

#include "isa.h"

#if defined(HOTSHOE_X86) || defined(HOTSHOE_ARM)

#include <string.h>

#if defined(HOTSHOE_X86)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "hotshoe_quants_set.h"
#include "tensor_rows.h"

/* A run of `n` elements of a ggml block, each of `bytes` bytes. Element i of the 16 rows goes to byte
 * ROWS * (at + i * step) of the packed block: `at` and `step` are bytes of one row's block. */
struct run {
    uint8_t n, bytes, at, step;
};

/* The runs of the block of each type that hotshoe_quants_tiles.h lists, in the order of the file. A packed block has
 * scales first, then codes in the order in which hotshoe_quants_unpack.h reads them: then the processor prefetches it
 * by itself. For Q4_0 that is 16 scales, then four times 16 words of eight codes. */
enum { MAX_RUNS = 8 };
static const struct layout {
    int type;
    struct run runs[MAX_RUNS];
} layouts[] = {
    {GGML_TYPE_Q4_0, {{1, 2, 0, 2}, {4, 4, 2, 4}}},
    {GGML_TYPE_Q4_1, {{2, 2, 0, 2}, {4, 4, 4, 4}}},
    {GGML_TYPE_Q5_0, {{1, 2, 0, 2}, {5, 4, 2, 4}}},
    {GGML_TYPE_Q5_1, {{2, 2, 0, 2}, {5, 4, 4, 4}}},
    {GGML_TYPE_Q8_0, {{1, 2, 0, 2}, {8, 4, 2, 4}}},
    {GGML_TYPE_IQ4_NL, {{1, 2, 0, 2}, {4, 4, 2, 4}}},
    {GGML_TYPE_MXFP4, {{1, 1, 0, 1}, {4, 4, 1, 4}}},
    {GGML_TYPE_Q2_K, {{20, 4, 4, 4}, {2, 2, 0, 2}}},
    /* third bits, the codes of both halves, scales */
    {GGML_TYPE_Q3_K, {{8, 4, 14, 8}, {8, 4, 18, 8}, {8, 4, 78, 4}, {3, 4, 2, 4}, {1, 2, 0, 2}}},
    {GGML_TYPE_Q4_K, {{2, 2, 0, 2}, {35, 4, 4, 4}}},
    {GGML_TYPE_Q5_K, {{2, 2, 0, 2}, {43, 4, 4, 4}}},
    /* lower bits of sub-blocks 0 and 2, 1 and 3, 4 and 6, 5 and 7; upper bits of both halves, scales */
    {GGML_TYPE_Q6_K,
     {{8, 4, 18, 12},
      {8, 4, 22, 12},
      {8, 4, 114, 12},
      {8, 4, 118, 12},
      {8, 4, 26, 12},
      {8, 4, 122, 12},
      {4, 4, 2, 4},
      {1, 2, 0, 2}}},
    {GGML_TYPE_IQ4_XS, {{2, 2, 0, 2}, {33, 4, 4, 4}}},
};

static const struct run * runs_of(int type) {
    const struct layout * layout = layouts;
    while (layout->type != type) {
        ++layout;
    }
    return layout->runs;
}

size_t hotshoe_quants_size(int type, int64_t k, int64_t m) {
    const struct quant * q = quant_of(hotshoe_quants_best(), type);
    return (size_t) (ceil_div(m, ROWS) * ROWS * (k / q->file_block_elements) * q->file_block_bytes);
}

/* Collects one element from each of n rows: out[n], elements of `bytes` bytes. */
ALWAYS_INLINE void gather(const char * rows, int64_t row_stride, int64_t n, int bytes, char * out) {
    for (int64_t r = 0; r < n; ++r) {
        memcpy(out + r * bytes, rows + r * row_stride, (size_t) bytes);
    }
}

/* Reorders the 32 fifth bits of a row's block. The file has the bit of element i at bit i; the result has the bit of
 * element j of quad q at bit q of byte j, where one shift serves a whole vector of bytes. That is a
 * transposition of 8 by 4 bits: two times, the odd bits move into the upper half, in four exchanges of bits. */
static uint32_t order_fifth_bits(uint32_t bits) {
    for (int i = 0; i < 2; ++i) {
        uint32_t swap;
        swap = (bits ^ bits >> 1) & 0x22222222, bits ^= swap ^ swap << 1;
        swap = (bits ^ bits >> 2) & 0x0c0c0c0c, bits ^= swap ^ swap << 2;
        swap = (bits ^ bits >> 4) & 0x00f000f0, bits ^= swap ^ swap << 4;
        swap = (bits ^ bits >> 8) & 0x0000ff00, bits ^= swap ^ swap << 8;
    }
    return bits;
}

#if defined(HOTSHOE_X86)

/* Transposes 8 words of 8 rows: word i of all rows goes to out + i * step. */
AVX2 static void transpose_8(const char * rows, int64_t row_stride, char * out, int step) {
    __m256i in[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) {
        in[i] = _mm256_loadu_si256((const __m256i *) (rows + i * row_stride));
    }
    for (int i = 0; i < 8; i += 2) { /* words 0, 1 (and 4, 5) of rows i and i + 1; words 2, 3 (and 6, 7) */
        pairs[i] = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) { /* words 0 (and 4), 1 (5), 2 (6) and 3 (7) of rows i to i + 3 */
        fours[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_si256((__m256i *) (out + i * step), _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x20));
        _mm256_storeu_si256((__m256i *) (out + (i + 4) * step),
                            _mm256_permute2x128_si256(fours[i], fours[i + 4], 0x31));
    }
}

/* The same for 4 words of 4 rows. */
static void transpose_4(const char * rows, int64_t row_stride, char * out, int step) {
    __m128i in[4], pairs[4];
    for (int i = 0; i < 4; ++i) {
        in[i] = _mm_loadu_si128((const __m128i *) (rows + i * row_stride));
    }
    for (int i = 0; i < 4; i += 2) {
        pairs[i] = _mm_unpacklo_epi32(in[i], in[i + 1]);
        pairs[i + 1] = _mm_unpackhi_epi32(in[i], in[i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        _mm_storeu_si128((__m128i *) (out + 2 * i * step), _mm_unpacklo_epi64(pairs[i], pairs[i + 2]));
        _mm_storeu_si128((__m128i *) (out + (2 * i + 1) * step), _mm_unpackhi_epi64(pairs[i], pairs[i + 2]));
    }
}

#else

/* Transposes 4 words of 4 rows: word i of all rows goes to out + i * step. */
static void transpose_4(const char * rows, int64_t row_stride, char * out, int step) {
    uint32x4_t in[4];
    for (int i = 0; i < 4; ++i) {
        in[i] = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *) (rows + i * row_stride)));
    }
    const uint32x4x2_t first = vzipq_u32(in[0], in[2]), second = vzipq_u32(in[1], in[3]);
    for (int i = 0; i < 2; ++i) {
        const uint32x4x2_t words = vzipq_u32(first.val[i], second.val[i]);
        vst1q_u8((uint8_t *) (out + 2 * i * step), vreinterpretq_u8_u32(words.val[0]));
        vst1q_u8((uint8_t *) (out + (2 * i + 1) * step), vreinterpretq_u8_u32(words.val[1]));
    }
}

#endif

/* The same for n words of 16 rows. */
static void transpose_words(const char * rows, int64_t row_stride, int n, char * out, int step) {
    int i = 0;
#if defined(HOTSHOE_X86)
    for (; i + 8 <= n; i += 8, rows += 32, out += 8 * step) {
        transpose_8(rows, row_stride, out, step);
        transpose_8(rows + 8 * row_stride, row_stride, out + 32, step);
    }
#endif
    for (; i + 4 <= n; i += 4, rows += 16, out += 4 * step) {
        for (int r = 0; r < ROWS; r += 4) {
            transpose_4(rows + r * row_stride, row_stride, out + 4 * r, step);
        }
    }
    for (; i < n; ++i, rows += 4, out += step) {
        gather(rows, row_stride, ROWS, 4, out);
    }
}

/* Packs `n_blocks` blocks of each of n rows, which are rows [first, first + n) of a panel. */
static void pack_blocks(const struct quant * q, const char * in, int64_t row_bytes, int64_t first, int64_t n,
                        int64_t n_blocks, char * out) {
    const int fifth_bits = q->type == GGML_TYPE_Q5_0 || q->type == GGML_TYPE_Q5_1;
    const struct run * const runs = runs_of(q->type);
    /* The next panel. The processor itself does not foresee reads in 16 places at once. */
    const char * next = in + n * row_bytes;
    for (int64_t b = 0; b < n_blocks; ++b, out += ROWS * q->file_block_bytes) {
        for (int line = 0; line < ROWS * q->file_block_bytes; line += CACHE_LINE, next += CACHE_LINE) {
            __builtin_prefetch(next);
        }
        for (const struct run * run = runs; run < runs + MAX_RUNS && run->n; ++run) {
            const int bytes = run->bytes, step = ROWS * run->step;
            char * const to = out + ROWS * run->at;
            if (bytes == 4 && n == ROWS) {
                transpose_words(in, row_bytes, run->n, to, step);
            } else {
                for (int i = 0; i < run->n; ++i) {
                    const char * from = in + i * bytes;
                    char * lanes = to + i * step + first * bytes;
                    switch (bytes) { /* a constant size, so that no copy is a call */
                        case 1: gather(from, row_bytes, n, 1, lanes); break;
                        case 2: gather(from, row_bytes, n, 2, lanes); break;
                        default: gather(from, row_bytes, n, 4, lanes);
                    }
                }
            }
            if (fifth_bits && bytes == 4) {
                char * lanes = to + first * 4;
                uint32_t words[ROWS];
                memcpy(words, lanes, (size_t) n * 4);
                for (int64_t r = 0; r < n; ++r) {
                    words[r] = order_fifth_bits(words[r]);
                }
                memcpy(lanes, words, (size_t) n * 4);
            }
            in += run->n * bytes;
        }
    }
}

void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                         void * packed) {
    const struct quant * q = quant_of(hotshoe_quants_best(), type);
    const int64_t n_blocks = k / q->file_block_elements, row_bytes = n_blocks * q->file_block_bytes;
    const int64_t last = min64(first_row + n_rows, m);
    for (int64_t row = first_row, n; row < last; row += n) {
        n = min64(ROWS - row % ROWS, last - row); /* rows of one panel */
        const char * in = (const char *) rows + (row - first_row) * row_bytes;
        pack_blocks(q, in, row_bytes, row % ROWS, n, n_blocks, (char *) packed + row / ROWS * ROWS * row_bytes);
    }
}

void hotshoe_quants_pack_piece(const struct quant * q, const char * rows, int64_t k, int64_t n, int64_t k0, int64_t k1,
                               char * out) {
    const int64_t row_bytes = k / q->file_block_elements * q->file_block_bytes;
    const int64_t n_blocks = (k1 - k0) / q->file_block_elements;
    if (n < ROWS) {
        memset(out, 0, (size_t) (ROWS * n_blocks * q->file_block_bytes));
    }
    pack_blocks(q, rows + k0 / q->file_block_elements * q->file_block_bytes, row_bytes, 0, n, n_blocks, out);
}

#else /* no kernels for this CPU or compiler */

size_t hotshoe_quants_size(int type, int64_t k, int64_t m) {
    (void) type, (void) k, (void) m;
    return 0;
}

void hotshoe_quants_pack(int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows, const void * rows,
                         void * packed) {
    (void) type, (void) k, (void) m, (void) first_row, (void) n_rows, (void) rows, (void) packed;
}

#endif
