/* The products with quantized weights of one instruction set. hotshoe_quants_{avx2,avx_vnni,avx512_vnni,dotprod}.c
 * define one set each, and hotshoe_quants.c uses them. */
#ifndef HOTSHOE_QUANTS_SET_H
#define HOTSHOE_QUANTS_SET_H

#include <stdint.h>

#include "isa.h"

/* How codes are multiplied. The integers are the same in all forms, and so are all results. */
enum form {
    FORM_U8,  /* unsigned codes of up to 6 bits, in pairs, summed in 16 bits */
    FORM_S16, /* signed codes of 8 bits, as 16 bits */
    FORM_DOT, /* all codes in fours, summed in 32 bits: unsigned by VNNI, signed by ARM's dot products */
};

enum {
    ROWS = 16,                            /* rows of a panel */
    QUAD = 4 * ROWS,                      /* bytes of a quad: the codes, of 8 bits, of four elements of each row */
    NUMBERS = ROWS * (int) sizeof(float), /* bytes of one number for each row */
    CACHE_LINE = 64,                      /* bytes */
    MAX_IN_TILE = 8,                      /* tokens */
    /* A span is the elements of a token that share a scale: SCALE_SPAN of them for weights in superblocks of 256, one
     * block of 32 for other weights. */
    SCALE_SPAN = 128,
};

#define CODE_BYTES(elements, form) (ROWS * (elements) * ((form) == FORM_S16 ? 2 : 1))
#define RECORD(elements, form, mins) (CODE_BYTES(elements, form) + NUMBERS * ((mins) ? 2 : 1))
/* Bytes of a record of activations, for each token: the codes, a scale, the number at which sums of products start, and
 * scale * sum of codes. */
#define STAGED_RECORD(elements, form) ((elements) * ((form) == FORM_S16 ? 2 : 1) + 12)

/* Rounds n numbers of a token, a multiple of the span, and stores them as token number `token` of a tile of `n_tokens`.
 * zero: the weights' code for 0. */
typedef void (*stage_fn)(int zero, const float * x, int64_t n, int n_tokens, int token, char * out);

/* sums[token][0..16) += x @ records, n of them. Meanwhile it prefetches `lines` lines from `next` on for
 * each record. */
typedef void (*tile_fn)(const char * x, const char * records, int64_t n, float * sums, const char * next, int lines);

/* sums[token][0..16) += x, a tile of a few tokens, @ n packed blocks. Meanwhile it prefetches what is `ahead` bytes
 * ahead. */
typedef void (*multiply_fn)(const char * in, int64_t n, const char * x, int64_t ahead, float * sums);

/* dst[t][column..) = act(sums[t] + bias) + residual[t][column..) for n tokens t and `n_columns` columns. bias: of this
 * panel, or NULL. residual: or NULL. */
typedef void (*finish_fn)(const float * sums, int64_t n, int n_columns, int64_t column, const float * bias, int gelu,
                          const float * const * residual, float * const * dst);

/* The largest scale that a span of the row x can have without an outlier: an outlier is ten times as large as the root
 * mean square of the row's k numbers. k: a multiple of 32. */
typedef float (*max_scale_fn)(const float * x, int64_t k);

/* sums[i] *= act(gates[i]) for n tokens of 16 numbers; activation: enum hotshoe_linear_activation. */
typedef void (*gate_fn)(int activation, const float * gates, int64_t n, float * sums);

/* One quantized type. */
struct quant {
    int type;                                  /* enum ggml_type */
    int file_block_elements, file_block_bytes; /* of a ggml block */
    int record_elements, form, mins;           /* of a record: see hotshoe_quants_unpack.h */
    int zero;                                  /* the code for 0 */
    stage_fn stage, stage_correction;          /* stage_correction: stages the rounding errors of one span */
    const tile_fn * tiles;                     /* by the number of tokens */
    void (*unpack)(const char * in, int64_t n, char * records);
    const multiply_fn (*multiply)[2]; /* by the number of tokens less 1; prefetching one line of each block, or all */
};

struct quant_set {
    const struct quant * quants;
    int n_quants;
    int in_tile; /* the largest number of tokens of a tile */
    int at_once; /* the most tokens that packed blocks are multiplied by at once */
    max_scale_fn max_scale;
    finish_fn finish;
    gate_fn gate;
};

#if (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HOTSHOE_AVX_VNNI 1 /* the compiler has these instructions */
#endif

#if defined(HOTSHOE_ARM)
extern const struct quant_set hotshoe_quants_dotprod;
#else
extern const struct quant_set hotshoe_quants_avx2, hotshoe_quants_avx_vnni, hotshoe_quants_avx512_vnni;
#endif

/* The fastest set that this CPU has, or NULL. */
const struct quant_set * hotshoe_quants_best(void);

/* The quant of a ggml type, or NULL. */
static inline const struct quant * quant_of(const struct quant_set * set, int type) {
    for (int i = 0; i < set->n_quants; ++i) {
        if (set->quants[i].type == type) {
            return &set->quants[i];
        }
    }
    return 0;
}

/* Packs elements [k0, k1) of the first n rows of a panel, as hotshoe_quants_pack would, to `out`. rows: of k elements,
 * as a file has them. If n is less than ROWS, the other rows are zeros. */
void hotshoe_quants_pack_piece(const struct quant * q, const char * rows, int64_t k, int64_t n, int64_t k0, int64_t k1,
                               char * out);

#endif
