/* The products with quantized weights of one instruction set: what hotshoe_quants.c has of hotshoe_quants_{avx2,avx_vnni,
 * avx512_vnni}.c. */
#ifndef HOTSHOE_QUANTS_SET_H
#define HOTSHOE_QUANTS_SET_H

#include <stdint.h>

/* How codes are multiplied: unsigned ones of up to 6 bits in pairs, summed in 16 bits; signed ones of 8 bits as 16; or all of
 * them unsigned in fours, summed in 32 bits, by VNNI. Their integers are the same, and so are all results. */
enum form { FORM_U8, FORM_S16, FORM_DOT };

enum {
    ROWS = 16,                            /* of a panel */
    GROUP = 4 * ROWS,                     /* bytes of a group of codes of 8 bits */
    NUMBERS = ROWS * (int) sizeof(float), /* bytes of one number for each row */
    MOST_IN_TILE = 8,                     /* tokens */
    SPAN = 128, /* elements of a token with one scale, for weights in superblocks of 256; for others 32, their block */
};

#define CODE_BYTES(block, form) (ROWS * (block) * ((form) == FORM_S16 ? 2 : 1))
#define RECORD(block, form, mins) (CODE_BYTES(block, form) + NUMBERS * ((mins) ? 2 : 1))
/* A record of activations, for each token: codes, a scale, what sums of products start with, scale * sum of codes. */
#define STAGED_RECORD(block, form) ((block) * ((form) == FORM_S16 ? 2 : 1) + 12)

/* Rounds n numbers of a token, a multiple of the span, into its places in a tile of `tokens`. zero: the weights' code for 0. */
typedef void (*stage_fn)(int zero, const float * x, int64_t n, int tokens, int token, char * out);

/* sums[token][0..16) += x @ records, n of them. What `ahead` points to is asked for meanwhile, `lines` for each record. */
typedef void (*tile_fn)(const char * x, const char * records, int64_t n, float * sums, const char * ahead, int lines);

/* The way out for n tokens: dst[t][column..) = act(sums[t] + bias) + residual[t][column..), for `cols` columns. bias: for the
 * panel, or NULL; residual: or NULL. */
typedef void (*finish_fn)(const float * sums, int64_t n, int cols, int64_t column, const float * bias, int gelu,
                          const float * const * residual, float * const * dst);

/* The largest scale of a span that has no outlier: a number ten times as large as those of the row are. k: a multiple of 32. */
typedef float (*most_scale_fn)(const float * x, int64_t k);

/* sums[i] *= act(gates[i]) for n tokens of 16; activation: enum hotshoe_linear_activation. */
typedef void (*gate_fn)(int activation, const float * gates, int64_t n, float * sums);

struct field {
    uint8_t n, bytes; /* elements, and the size of each */
};

struct quant {
    int type;               /* enum ggml_type */
    int elements, bytes;    /* of a block of the file */
    struct field fields[2]; /* of a block of the file, in its order */
    int block, form, mins;  /* of a record: see hotshoe_quants_unpack.h */
    int zero;
    stage_fn stage, stage_rest; /* the rest: what rounding leaves of the numbers of one span */
    const tile_fn * tiles;      /* by the number of tokens */
    void (*unpack)(const char * in, int64_t n, char * records);
    void (*multiply)(const char * in, int64_t n, const char * x, float * sums); /* by one token */
};

struct quant_set {
    const struct quant * quants;
    int n_quants;
    int in_tile; /* tokens of one at most */
    int direct;  /* tokens up to which each is multiplied by the packed blocks themselves */
    most_scale_fn most_scale;
    finish_fn finish;
    gate_fn gate;
};

#if (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HOTSHOE_AVX_VNNI 1 /* the compiler knows it */
#endif

extern const struct quant_set hotshoe_quants_avx2, hotshoe_quants_avx_vnni, hotshoe_quants_avx512_vnni;

#endif
