/* y = act(x @ W.T + bias) + residual with weights packed once, as a callback of ggml's custom op (ggml_custom_4d). */
#ifndef HOTSHOE_LINEAR_H
#define HOTSHOE_LINEAR_H

#include "hotshoe_kernels.h"

/* How a packed weight is stored. F32 and F16 are multiplied exactly as stored, with F32 activations; BF16 rounds the
 * activations to bf16 as well. All sum in F32. */
enum hotshoe_linear_format { HOTSHOE_LINEAR_F32 = 0, HOTSHOE_LINEAR_F16 = 1, HOTSHOE_LINEAR_BF16 = 2 };

enum hotshoe_linear_activation {
    HOTSHOE_LINEAR_NONE = 0,
    HOTSHOE_LINEAR_GELU_ERF = 1,
    HOTSHOE_LINEAR_SILU = 2, /* with a gate only, as the next one */
    HOTSHOE_LINEAR_GELU_TANH = 3,
};

/* The op's userdata: lives as long as the graph. */
struct hotshoe_linear_params {
    const void * packed; /* NULL: the weight is src[1], as a file has it */
    const void * gate;   /* of hotshoe_quants and _experts: NULL, or another weight of the same size and type */
    int64_t k, m;        /* input and output features */
    int32_t format;      /* enum hotshoe_linear_format; of a weight in F16 as a file has it, BF16 rounds it to that */
    int32_t activation;  /* enum hotshoe_linear_activation */
    int32_t has_bias;
    int32_t has_residual;
    int32_t avx2_only;      /* 0; 1 in tests: not AVX-512, where that is there (F32, F16, and hotshoe_quants) */
    int32_t outliers_apart; /* of hotshoe_quants and _experts */
    int64_t n_experts;      /* of hotshoe_quants_experts: packed weights of k by m, one after the other */
};

/* A mask of 1 << format: what is fast on this CPU. 0 where there is no kernel for it: then call none of the others. */
HOTSHOE_API int hotshoe_linear_formats(void);

/* From how many rows of x on a weight of this ggml_type is multiplied as stored faster here than by ggml's own product; 0:
 * never. */
HOTSHOE_API int64_t hotshoe_linear_stored_rows(int type);

/* Bytes of the packed weight. Its memory must start at a multiple of 64 and be zeroed before the first pack. */
HOTSHOE_API size_t hotshoe_packed_size(int format, int64_t k, int64_t m);

/* Packs rows [first_row, first_row + n_rows) of W (m, k), given as F32 with k apart. Different rows may be packed by
 * different threads at once. */
HOTSHOE_API void hotshoe_pack_rows(int format, int64_t k, int64_t m, int64_t first_row, int64_t n_rows,
                                   const float * rows, void * packed);

/* dst (n, m) F32 from src: x (n, k) F32, rows contiguous; where it is not packed, the weight (m, k) F32, F16 or BF16, rows
 * contiguous, multiplied exactly as stored (BF16, and F16 that is rounded to it, with activations rounded to it, where the CPU
 * has that product and k is even); then, if the params say so, the bias (m) and the residual (n, m), both F32 and contiguous.
 * userdata is a struct hotshoe_linear_params. */
HOTSHOE_API void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
