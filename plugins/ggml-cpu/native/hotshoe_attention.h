/* Attention and norms in one pass each, as callbacks of ggml's custom ops (ggml_custom_4d).
 * All is F32 unless said otherwise; thread `ith` of `nth` does its share, and the parameters must live as long as the graph. */
#ifndef HOTSHOE_ATTENTION_H
#define HOTSHOE_ATTENTION_H

#include "hotshoe_kernels.h"

/* softcap 0: none. has_mask: src[3] is the mask. */
struct hotshoe_attention_params {
    float scale;
    float softcap;
    int32_t has_mask;
};

/* dst = softmax(scale * q k^T + mask) v, with max subtraction, computed in F32 (Vaswani et al. 2017; the online softmax over
 * blocks of keys is that of Milakov and Gimelshein 2018).
 * q [dim, heads, n, batch], k [dim, kv_heads, m, batch], v [v_dim, kv_heads, m, batch], mask [m, n|1, heads|1, batch|1];
 * dst [v_dim, heads, n, batch], contiguous. k, v and mask may be F16, unless hotshoe_kernels_isa is "generic". Only ne[0] must
 * be contiguous in the others: views need no copy. dim and v_dim up to 512. A key is read once for all query heads that
 * share it and, in prompts, for several queries. Keys that the mask hides (-inf) from a whole batch element at the end of m
 * cost nothing, nor do blocks of keys hidden from neighbouring queries: other sequences' cells. A query that sees no key
 * gives NaN, as in NumPy. */
HOTSHOE_API void hotshoe_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* The sources that follow x, in this order, each present if its flag is set. rms_norm has no bias. */
struct hotshoe_norm_params {
    float eps;
    int32_t has_weight;
    int32_t has_bias;
};

/* dst = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over ne[0]. x has contiguous rows; weight and bias are contiguous
 * [ne0]. */
HOTSHOE_API void hotshoe_layer_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst = x / sqrt(mean(x^2) + eps) * weight over ne[0]. */
HOTSHOE_API void hotshoe_rms_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
