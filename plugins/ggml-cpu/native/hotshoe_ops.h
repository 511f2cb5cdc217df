/* Ops that ggml-cpu lacks or does otherwise than NumPy, as callbacks of ggml's custom ops (ggml_custom_4d).
 * Thread `ith` of `nth` does its share; the parameters must live as long as the graph. dst is always contiguous. */
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

/* low and high: the limits of HOTSHOE_CLAMP. */
struct hotshoe_pointwise_params {
    int32_t op;
    int32_t low;
    int32_t high;
};

/* One element of each source for one of dst, as NumPy computes it: NaN and infinity, the sign of a remainder, halves that
 * round to even; integers wrap around, and x / 0 and x % 0 are 0. Sources are broadcast and may have any strides; they are
 * all F32 or all I32, and ROUND and SIGN take F32 only, ADD, SUB, MUL, ABS and CLAMP I32 only. Comparisons give F32.
 * WHERE has a condition of F32 or I32 and two operands of any one type of 4 bytes, whose bits it copies. */
HOTSHOE_API void hotshoe_pointwise(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [ne1, ne2, ne3] = the largest of each row of src[0] (F32, rows contiguous); NaN where there is one. */
HOTSHOE_API void hotshoe_row_max(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [ne1, ne2, ne3] (I32) = where the largest of each row of src[0] (F32, rows contiguous) first stands; NaN is largest. */
HOTSHOE_API void hotshoe_row_argmax(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [n, m, ...] = src[0] [k, m, ...] times the rows of src[1] [n, k, ...], both F32 with contiguous rows, and either of them
 * broadcast over the other's axes 2 and 3: for few m, of which each reads all of src[1] in the order it lies in. ggml's product
 * wants it turned: for a mixture of experts that copy took 7 % of a prompt's time and the product 3. */
HOTSHOE_API void hotshoe_few_rows(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* k: how many of each row are wanted. */
struct hotshoe_order_params {
    int32_t k;
    int32_t descending;
};

/* dst [k, ne1, ne2, ne3] (I32) = the order of each row of src[0] (F32, rows contiguous), its first k. Equals stand in the
 * order of their indices and NaNs last: a total order, which std::sort needs not to read beyond the row (ggml's has none). */
HOTSHOE_API void hotshoe_row_order(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
