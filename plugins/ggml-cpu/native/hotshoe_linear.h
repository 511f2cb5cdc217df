/* y = act(x @ W.T + bias) + residual with packed weights, as a callback of ggml's custom op (ggml_custom_4d). */
#ifndef HOTSHOE_LINEAR_H
#define HOTSHOE_LINEAR_H

#include "hotshoe_kernels.h"

/* How a packed weight is stored. F32 and F16 are multiplied exactly as stored, with F32 activations. So is BF16, except
 * on CPUs with a product of BF16: there the activations are rounded to BF16 too, unless params->in_f32. All sums are
 * F32. A file's F16 weight can be packed as BF16: see hotshoe_holds_bf16. */
enum hotshoe_linear_format { HOTSHOE_LINEAR_F32 = 0, HOTSHOE_LINEAR_F16 = 1, HOTSHOE_LINEAR_BF16 = 2 };

enum hotshoe_linear_activation {
    HOTSHOE_LINEAR_NONE = 0,
    HOTSHOE_LINEAR_GELU_ERF = 1,
    HOTSHOE_LINEAR_SILU = 2,      /* only with a gate */
    HOTSHOE_LINEAR_GELU_TANH = 3, /* only with a gate */
};

/* The op's userdata. It must live as long as the graph. hotshoe_quants and hotshoe_quants_experts take the same. */
struct hotshoe_linear_params {
    void * scratch; /* see HOTSHOE_SCRATCH */
    const void * packed;
    /* Only hotshoe_quants and hotshoe_quants_experts: another weight of the same size and type, or NULL. */
    const void * gate;
    /* The weight and the gate as a file has them, as long as they are not packed; else NULL. Each panel is then packed
     * when it is multiplied. hotshoe_linear requires an even k for BF16. Its rows have the type of the format, or
     * are F16 for BF16 on a CPU with a product of BF16. */
    const void * rows;
    const void * gate_rows;
    /* Only hotshoe_quants: the product of x with the next weight; or NULL. See there. */
    const struct hotshoe_linear_params * next;
    int64_t k, m;       /* input and output features */
    int32_t format;     /* enum hotshoe_linear_format, or enum ggml_type for hotshoe_quants */
    int32_t rows_type;  /* only hotshoe_linear: enum ggml_type of `rows`, as for hotshoe_pack_rows */
    int32_t activation; /* enum hotshoe_linear_activation */
    int32_t has_bias;
    int32_t has_residual;
    int32_t in_f32;            /* only hotshoe_linear: BF16 is multiplied in F32, so that x is not rounded */
    int32_t without;           /* 0; in tests: instruction sets of isa.h that are not used even if the CPU has them */
    int32_t separate_outliers; /* only hotshoe_quants and hotshoe_quants_experts: see there */
    int64_t n_experts;         /* only hotshoe_quants_experts: packed weights of k by m, one after the other */
};

/* Whether this CPU has kernels. If not, do not call the other functions. */
HOTSHOE_API int hotshoe_linear_has(void);

/* Whether this CPU has a product of BF16 with BF16. */
HOTSHOE_API int hotshoe_linear_pairs(void);

/* Bytes of the packed weight (m, k). Its memory must start at a multiple of 64 and be zeroed before the first pack. */
HOTSHOE_API size_t hotshoe_packed_size(int format, int64_t k, int64_t m);

/* Packs rows [first_row, first_row + n_rows) of W (m, k). first_row is a multiple of 32. rows: those rows without gaps,
 * of the format's ggml_type `type`; or F32 or F16, which are rounded to the format BF16. Several threads may pack
 * different rows at once. */
HOTSHOE_API void hotshoe_pack_rows(int format, int type, int64_t k, int64_t m, int64_t first_row, int64_t n_rows,
                                   const void * rows, void * packed);

/* Whether each of n F16 numbers is a BF16 number, as in the file of a model that was published in BF16. */
HOTSHOE_API int hotshoe_holds_bf16(const void * numbers, int64_t n);

/* dst (n, m), F32. The sources, in this order:
 *   x         (n, k) F32, rows contiguous
 *   bias      (m) F32; only if params->has_bias
 *   residual  (n, m) F32, contiguous; only if params->has_residual
 * userdata is a struct hotshoe_linear_params. */
HOTSHOE_API void hotshoe_linear(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
