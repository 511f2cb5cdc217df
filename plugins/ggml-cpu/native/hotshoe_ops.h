/* Ops that ggml-cpu lacks, or computes in another way than NumPy, as callbacks of ggml's custom ops (ggml_custom_4d).
 * Thread `ith` of `nth` computes its share. The params (userdata) must live as long as the graph. dst is contiguous. */
#ifndef HOTSHOE_OPS_H
#define HOTSHOE_OPS_H

#include "hotshoe_kernels.h"

enum hotshoe_pointwise_op {
    HOTSHOE_EQUAL = 0,
    HOTSHOE_LESS = 1,
    HOTSHOE_LESS_EQUAL = 2,
    HOTSHOE_MINIMUM = 3,
    HOTSHOE_MAXIMUM = 4,
    HOTSHOE_MOD = 5,
    HOTSHOE_FLOOR_DIVIDE = 6,
    HOTSHOE_ADD = 7,
    HOTSHOE_SUB = 8,
    HOTSHOE_MUL = 9,
    HOTSHOE_ABS = 10,
    HOTSHOE_ROUND = 11,
    HOTSHOE_SIGN = 12,
    HOTSHOE_CLAMP = 13,
    HOTSHOE_WHERE = 14
};

struct hotshoe_pointwise_params {
    int32_t op;        /* enum hotshoe_pointwise_op */
    int32_t low, high; /* the limits of HOTSHOE_CLAMP */
};

/* dst[i] = op(src[0][i], src[1][i], ...), as NumPy computes it: NaN and infinity, the sign of a remainder, rounding of
 * halves to even. Integers wrap around; x / 0 and x % 0 are 0. Sources are broadcast, may have any strides, and are all
 * F32 or all I32. ROUND and SIGN take F32 only; ADD, SUB, MUL, ABS and CLAMP take I32 only. Comparisons give F32. WHERE
 * takes a condition of F32 or I32 and two operands of one type of 4 bytes, and copies their bits. */
HOTSHOE_API void hotshoe_pointwise(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [ne1, ne2, ne3] (F32) = the largest number of each row of src[0] (F32, rows contiguous); NaN if a row has NaN. */
HOTSHOE_API void hotshoe_row_max(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [ne1, ne2, ne3] (I32) = the first index of the largest number of each row of src[0] (F32, rows contiguous). NaN
 * counts as the largest. */
HOTSHOE_API void hotshoe_row_argmax(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [n, m, ...] = src[0] [k, m, ...] @ src[1] [n, k, ...], both F32 with contiguous rows; each is broadcast over axes
 * 2 and 3 of the other. It is for small m: every row of src[0] reads all of src[1], in the order of memory. ggml's own
 * product needs src[1] transposed: in a mixture of experts that copy took 7 % of a prompt, and the product 3 %. */
HOTSHOE_API void hotshoe_few_rows(struct ggml_tensor * dst, int ith, int nth, void * userdata);

struct hotshoe_order_params {
    int32_t k; /* how many indices of each row */
    int32_t descending;
};

/* dst [k, ne1, ne2, ne3] (I32) = the first k indices of each row of src[0] (F32, rows contiguous), in the order of its
 * numbers. Equal numbers are in the order of their indices, and NaNs are last. That is a total order; ggml's order is
 * not, and with it std::sort may read beyond the row. */
HOTSHOE_API void hotshoe_row_order(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
