/* y = act(x @ W.T + bias) + residual with weights packed once, as a callback of ggml's custom op (ggml_custom_4d). */
#ifndef HOTSHOE_LINEAR_H
#define HOTSHOE_LINEAR_H

#include "hotshoe_kernels.h"

/* How a packed weight is stored. F32 and F16 are multiplied exactly as stored, with F32 activations; BF16 rounds the
 * activations to BF16 too. All sums are F32. */
enum hotshoe_linear_format { HOTSHOE_LINEAR_F32 = 0, HOTSHOE_LINEAR_F16 = 1, HOTSHOE_LINEAR_BF16 = 2 };

enum hotshoe_linear_activation {
    HOTSHOE_LINEAR_NONE = 0,
    HOTSHOE_LINEAR_GELU_ERF = 1,
    HOTSHOE_LINEAR_SILU = 2,      /* only with a gate */
    HOTSHOE_LINEAR_GELU_TANH = 3, /* only with a gate */
};

/* The op's userdata. It must live as long as the graph. hotshoe_quants and hotshoe_quants_experts take the same. */
struct hotshoe_linear_params {
    void * scratch;      /* see HOTSHOE_SCRATCH */
    const void * packed; /* NULL: the weight is src[1], as a file has it */
    /* Only hotshoe_quants and hotshoe_quants_experts: another weight of the same size and type, or NULL. */
    const void * gate;
    /* Only hotshoe_quants and hotshoe_quants_experts: the weight and the gate as a file has them, as long as they are
     * not packed; else NULL. Each panel is then packed when it is multiplied, into the scratch. */
    const void * rows;
    const void * gate_rows;
    int64_t k, m;       /* input and output features */
    int32_t format;     /* enum hotshoe_linear_format; with an F16 weight as a file has it, BF16 rounds it to BF16 */
    int32_t activation; /* enum hotshoe_linear_activation */
    int32_t has_bias;
    int32_t has_residual;
    int32_t avx2_only;         /* 0; 1 in tests: no AVX-512 even if the CPU has it (F32, F16, and hotshoe_quants) */
    int32_t separate_outliers; /* only hotshoe_quants and hotshoe_quants_experts: see there */
    int64_t n_experts;         /* only hotshoe_quants_experts: packed weights of k by m, one after the other */
};

/* A mask of 1 << format for the formats that are fast on this CPU. If it is 0, this CPU has no kernels: do not call the
 * other functions. */
HOTSHOE_API int hotshoe_linear_formats(void);

/* The number of rows of x from which on a weight of this ggml_type, multiplied as stored, is faster here than by ggml's
 * own product; 0 if it never is. */
HOTSHOE_API int64_t hotshoe_linear_stored_rows(int type);

/* Bytes of the packed weight (m, k). Its memory must start at a multiple of 64 and be zeroed before the first pack. */
HOTSHOE_API size_t hotshoe_packed_size(int format, int64_t k, int64_t m);

/* Packs rows [first_row, first_row + n_rows) of W (m, k). rows: those rows, F32, (n_rows, k), without gaps. Several
 * threads may pack different rows at once. */
HOTSHOE_API void hotshoe_pack_rows(int format, int64_t k, int64_t m, int64_t first_row, int64_t n_rows,
                                   const float * rows, void * packed);

/* dst (n, m), F32. The sources, in this order:
 *   x         (n, k) F32, rows contiguous
 *   W         (m, k) F32, F16 or BF16, rows contiguous; only if params->packed is NULL
 *   bias      (m) F32; only if params->has_bias
 *   residual  (n, m) F32, contiguous; only if params->has_residual
 * W is multiplied exactly as stored. For BF16, and for F16 that is rounded to BF16, the activations are rounded to BF16
 * if the CPU has that product and k is even. userdata is a struct hotshoe_linear_params. */
HOTSHOE_API void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
